"""Labels of frames from segments of videos, clips of them, and batches."""

import json

import numpy as np
import pytest
import torch

from hf_video.data import FrameTask, VideoDataset, cut_clips, load_video_dataset
from hf_video.data.frame_labels import (
    annotated_videos,
    frame_classes,
    have_several_labels,
    point_classes,
    split_videos,
)
from hf_video.processing import VideoClipProcessor
from tests.testing.videos import encode_video, make_frames

from .frame_videos import write_flashes

PROCESSOR = VideoClipProcessor(num_frames=8, size={"height": 16, "width": 16}, do_center_crop=False)


@pytest.fixture
def rows(tmp_path):
    return load_video_dataset(write_flashes(tmp_path, num_videos=2))["train"]


def test_a_token_frame_has_the_label_of_its_middle(rows):
    video = annotated_videos(rows)[0]
    assert video.parts == [(0.0, pytest.approx(4.0))]
    # bright from 1 to 2 s, dark from 2 to 3.5 s.
    moments = np.array([0.5, 1.0, 1.99, 2.0, 3.49, 3.5])
    assert video.labels_at(moments, 2).tolist() == [-100, 0, 0, 1, 1, -100]
    assert video.labels_at(moments, 3, background=2).tolist() == [2, 0, 0, 1, 1, 2]
    several = video.labels_at(moments, 2, several=True)
    assert several[0].tolist() == [-100, -100] and several[1].tolist() == [1, 0]


def test_overlapping_segments_of_other_classes_are_several_labels(rows, tmp_path):
    assert not have_several_labels(rows)
    (tmp_path / "own.csv").write_text("path,label,start,end\n0.mp4,bright,0,2\n0.mp4,dark,1,3\n")
    own = load_video_dataset(tmp_path / "own.csv")["train"]
    (video,) = annotated_videos(own)
    assert have_several_labels(own)
    assert video.labels_at(np.array([0.5, 1.5, 2.5]), 2, several=True).tolist() == [[1, 0], [1, 1], [0, 1]]


def test_rows_to_label_are_no_class_and_no_background(tmp_path, caplog):
    """Of both lists that `hf-video suggest` writes."""
    write_flashes(tmp_path, num_videos=2)
    times = [
        ("0.mp4", "bright", 1, 2),
        ("0.mp4", "to label", 2.5, 3),
        ("1.mp4", "dark", 0, 1),
        ("0.mp4", "to label", 0, 1),
    ]
    columns = ("path", "label", "start", "end")
    lines = [",".join(map(str, each)) for each in (columns, *times)]
    (tmp_path / "own.csv").write_text("\n".join(lines))
    (tmp_path / "own.json").write_text(json.dumps([dict(zip(columns, each, strict=True)) for each in times]))
    for name in ("own.csv", "own.json"):
        own = load_video_dataset(tmp_path / name)["train"]
        assert own.features["label"].names == ["bright", "dark"] and len(own) == 2
        first, second = annotated_videos(own)
        moments = np.array([0.5, 1.5, 2.2, 2.7, 3.5])
        assert first.labels_at(moments, 3, background=2).tolist() == [-100, 0, 2, -100, 2]
        assert second.labels_at(moments, 3, background=2).tolist() == [1, 2, 2, 2, 2]
    assert "2 rows left out, still 'to label'" in caplog.text


def test_clips_overlap_and_cover_each_frame(rows):
    names = frame_classes(rows, "rest")
    assert names == ["bright", "dark", "rest"]
    options = {"fps": 8, "tubelet_size": 2, "background": "rest"}
    videos = annotated_videos(rows)
    plain = cut_clips(videos, PROCESSOR, names, **options)
    # 32 samples are 16 token frames, and a clip has 4 of them.
    assert plain["start"][:4] == [0, 1, 2, 3] and len(plain) == 8
    assert sum(plain["frame_labels"][:4], []) == [2] * 4 + [0] * 4 + [1] * 6 + [2] * 2
    half = cut_clips(videos, PROCESSOR, names, overlap=0.5, **options)
    assert half["start"][:7] == [0, 0.5, 1, 1.5, 2, 2.5, 3] and len(half) == 14
    late = cut_clips(videos, PROCESSOR, names, frame_delay=1, **options)
    assert late["frame_labels"][1] == [-100, 0, 0, 0]


def clips_of(videos, processor=PROCESSOR, training=True, task=None, **options):
    names = ["bright", "dark"]
    clips = cut_clips(videos, processor, names, fps=8, tubelet_size=2, **options)
    return VideoDataset(clips, task or FrameTask(processor, names, fps=8), training=training)


def test_items_show_what_their_labels_say(rows):
    dataset = clips_of(annotated_videos(rows), training=False)
    item = dataset[0]
    assert item["pixel_values"].shape == (8, 3, 16, 16) and item["labels"].tolist() == [0] * 4
    assert item["pixel_values"].mean() > dataset[1]["pixel_values"].mean() + 1
    for clip in dataset:
        assert clip["pixel_values"].shape[0] == 2 * len(clip["labels"])


def test_batches_are_padded_at_the_end(rows):
    clips = clips_of([video._replace(parts=[(0.0, 3.0)]) for video in annotated_videos(rows)], overlap=0.5)
    items = [clips[0]]
    shorter = {name: items[0][name][:count] for name, count in {"pixel_values": 4, "labels": 2}.items()}
    batch = clips.task.collate([*items, None, shorter])
    assert batch["pixel_values"].shape == (2, 8, 3, 16, 16) and not batch["pixel_values"][1, 4:].any()
    assert batch["attention_mask"].tolist() == [[1] * 4, [1, 1, 0, 0]]
    assert batch["labels"][1, 2:].tolist() == [-100, -100] and batch["labels"].dtype == torch.int64
    with pytest.raises(ValueError, match="nothing to collate"):
        clips.task.collate([None, None])


def test_the_last_seconds_of_each_class_are_held_out(tmp_path):
    """A class whose segments are in the middle is measured, too, and nothing is on both sides."""
    write_flashes(tmp_path, num_videos=1)
    file = tmp_path / "own.csv"
    rows = [f"long.mp4,{label},{start},{start + 8}" for label, start in (("a", 0), ("b", 10), ("a", 20), ("c", 30))]
    file.write_text("\n".join(["path,label,start,end", *rows]) + "\n")
    encode_video(tmp_path / "long.mp4", make_frames(400, 16, 16), fps=10)
    splits = load_video_dataset(file)
    videos, sentence = split_videos(splits, 0.25, seed=0)
    assert "the last 25 % of the seconds of each class of long.mp4, with a gap of 0.64 s" in sentence
    (trained,), (held_out,) = videos["train"], videos["validation"]
    moments = np.arange(0, 40, 0.01) + 0.005
    known = [video.labels_at(moments, 3) for video in (trained, held_out)]
    assert not ((known[0] >= 0) & (known[1] >= 0)).any()
    # The second segment of `a` is held out as a whole, and the others are cut.
    for label, (kept, held) in enumerate([(8, 8), (6 - 0.64, 2), (6 - 0.64, 2)]):
        assert (known[0] == label).sum() / 100 == pytest.approx(kept, abs=0.05)
        assert (known[1] == label).sum() / 100 == pytest.approx(held, abs=0.05)
    # A clip is of one part.
    clips = cut_clips([held_out], PROCESSOR, ["a", "b", "c"], fps=8, tubelet_size=2)
    assert all(any(begin <= row["start"] < row["end"] <= end + 1e-3 for begin, end in held_out.parts) for row in clips)
    # Between the segments is background, whose last segment is held out.
    videos, _ = split_videos(splits, 0.25, seed=0, background="rest")
    found = videos["validation"][0].labels_at(moments, 4, background=3)
    assert (found == 3).sum() / 100 == pytest.approx(2, abs=0.05)


def test_draws_depend_on_seed_epoch_and_index(rows):
    processor = VideoClipProcessor(num_frames=8, size={"shortest_edge": 20}, crop_size={"height": 16, "width": 16})
    videos = annotated_videos(rows)
    first, second = (clips_of(videos, processor) for _ in range(2))
    torch.testing.assert_close(first[3]["pixel_values"], second[3]["pixel_values"], rtol=0, atol=0)


def test_nothing_to_learn(rows):
    videos = [
        video._replace(labels=[[]], starts=np.array([9.0]), ends=np.array([9.5])) for video in annotated_videos(rows)
    ]
    with pytest.raises(ValueError, match="No frame of the videos has a known label"):
        cut_clips(videos, PROCESSOR, ["bright"], fps=8, tubelet_size=2)


def test_instants_have_the_time_around_them(rows, tmp_path):
    """A class with any segment has segments; its instants are short ones."""
    file, keep = tmp_path / "own.csv", {"choices": {"point_width": 0.0}}
    file.write_text("path,label,start,end\n0.mp4,kick,0.1,0.1\n0.mp4,kick,2,2\n0.mp4,run,3,3\n1.mp4,run,1,3\n")
    own = load_video_dataset(file, **keep)["train"]
    assert point_classes(own) == ["kick"] and not have_several_labels(own)
    first, second = annotated_videos(own, point_width=0.5)
    assert first.instants == [(0.1, 0), (2.0, 0), (3.0, 1)] and second.instants == []
    moments = np.array([0.0, 0.3, 0.4, 1.74, 1.75, 2.24, 2.25, 2.8, 3.2])
    assert first.labels_at(moments, 3, background=2).tolist() == [0, 0, 2, 2, 0, 0, 2, 1, 1]
    assert have_several_labels(own, point_width=1.2) and not have_several_labels(own, point_width=0.9)
    assert first._replace(parts=[(1.0, 3.0)]).known_instants() == [(2.0, 0)]
    # Clips have the instants for which they have an answer.
    clips = cut_clips([first], PROCESSOR, ["kick", "run", "rest"], fps=8, tubelet_size=2, background="rest")
    assert clips["instants"][:] == [[[0.1, 0]], [], [[2.0, 0]], [[3.0, 1]]]
    options = {"fps": 8, "tubelet_size": 2, "background": "rest", "frame_delay": 1}
    late = cut_clips([first._replace(parts=[(0.0, 2.1)])], PROCESSOR, ["kick", "run", "rest"], **options)
    assert [len(each) for each in late["instants"][:]] == [1, 0]
    (held_out,) = split_videos({"train": own, "validation": own}, 0.5, 0, point_width=0.2)[0]["validation"][1:]
    assert held_out.starts.tolist() == [1.0]


def test_instants_of_a_table(tmp_path):
    write_flashes(tmp_path, num_videos=1)
    file = tmp_path / "own.csv"

    def times(text, **choices):
        file.write_text(text)
        rows = load_video_dataset(file, choices=choices, min_classes=1)["train"]
        return [*zip(rows["start"], rows["end"], strict=True)]

    assert times("path;Time;label\n0.mp4;0:01,5;a\n", point_width=0.0) == [(1.5, 1.5)]
    assert times("path,time,label\n0.mp4,1.5,a\n0.mp4,0.1,a\n", point_width=1.0) == [(1.0, 2.0), (0.0, 0.6)]
    # Beside start and end it is a column of the user.
    assert times("path,time,label,start,end\n0.mp4,noon,a,1,2\n", point_width=1.0) == [(1.0, 2.0)]
    with pytest.raises(ValueError, match="line 2: end is 1.5 s.* --choose point_width"):
        times("path,time,label\n0.mp4,1.5,a\n")
    with pytest.raises(ValueError, match="starts at 2.0 s; a later end is expected.$"):
        times("path,start,end,label\n0.mp4,2,1,a\n", point_width=0.0)
