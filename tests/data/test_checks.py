"""Which videos are broken, and which rows are found again, in a data set."""

import os
import shutil
from pathlib import Path
from threading import Barrier

import av
import pyarrow.parquet as pq
import pytest
import torch
from datasets import ClassLabel, Dataset
from PIL import Image
from torch.utils.data import DataLoader

from hf_video.data import ClipTask, VideoDataset, checks, collate_clips, inspect_videos, load_video_dataset
from hf_video.data.checks import (
    Overlap,
    SharedSeconds,
    find_copies,
    find_overlaps,
    find_repeated_clips,
    find_shared_seconds,
    repetition_warnings,
    tell_overlaps,
    write_manifest,
)
from hf_video.data.video_texts import load_video_texts
from hf_video.processing import VideoClipProcessor
from hf_video.reading import VideoReadError
from tests.testing.videos import damage_frame, encode_video, make_frames

from .broken_videos import write_broken_videos

PROCESSOR = VideoClipProcessor(num_frames=4, sampling_strategy="uniform", size=16, crop_size=16)


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    folder = tmp_path_factory.mktemp("good")
    return [encode_video(folder / f"{number}.mp4", make_frames(20, 32, 48), fps=10) for number in range(3)]


@pytest.fixture(scope="module")
def broken(tmp_path_factory):
    return write_broken_videos(tmp_path_factory.mktemp("broken"))


@pytest.fixture(scope="module")
def damaged_later(tmp_path_factory):
    """A video whose first frame can be decoded, and no more than that."""
    path = encode_video(tmp_path_factory.mktemp("damaged") / "later.mp4", make_frames(20, 32, 48), fps=10)
    for frame in range(1, 20):
        os.replace(damage_frame(path, frame), path)
    return path


def make_dataset(paths, **options):
    rows = [{"video": str(path), "label": number} for number, path in enumerate(paths)]
    return VideoDataset(Dataset.from_list(rows), ClipTask(PROCESSOR), **options)


def test_every_way_to_be_broken_is_found_by_decoding(good, broken):
    paths = [*good, *map(str, broken.values())]
    found = inspect_videos(Dataset.from_dict({"video": paths}), progress=False)
    assert [video.path for video in found] == paths
    assert [video.path for video in found if video.error] == [str(path) for path in broken.values()]
    assert all(video.path in video.error for video in found if video.error)
    assert (found[0].num_frames, found[0].duration, found[0].height, found[0].width) == (20, 2.0, 32, 48)


@pytest.mark.parametrize("decode", [True, False])
def test_every_segment_is_checked_for_a_frame(good, decode):
    segments = [(0.01, 0.02), (0.0, 1.0), (None, None)]  # the first frames are at 0 and 0.1 s
    rows = [{"video": good[number], "start": start, "end": end} for number, (start, end) in enumerate(segments)]
    rows += [{"video": good[1], "start": 0.51, "end": 0.52}]
    found = inspect_videos(Dataset.from_list(rows), decode=decode, progress=False)
    assert [video.error for video in found] == [None] * 3
    outside = [[(row.start, row.end, row.num_frames) for row in video.rows_outside] for video in found]
    assert outside == [[(0.01, 0.02, 0)], [(0.51, 0.52, 0)], []]
    dataset = VideoDataset(Dataset.from_list(rows), ClipTask(PROCESSOR), training=False, on_error="skip")
    assert dataset[0] is None and dataset.drop_broken().rows["start"][:] == [0.0, None]


def test_a_row_outside_of_its_video_is_refused_or_left_out_and_the_other_rows_stay(good, broken, caplog):
    times = {"start": [0.0, 171.0, 1.0, None], "end": [1.0, 178.0, 9.0, None]}
    rows = Dataset.from_dict({"video": [good[0]] * 3 + [str(broken["text"])], "label": [0, 1, 1, 0]} | times)
    rows = rows.cast_column("label", ClassLabel(names=["run", "sit"]))
    data = {"train": rows, "test": rows.select([0])}
    outside = f"{good[0]} (lasts 00:02.00), 02:51.00 to 02:58.00 (sit)"
    with pytest.raises(ValueError, match="--on-error skip") as refused:
        checks.readable_videos(data, "error")
    assert outside in str(refused.value) and str(broken["text"]) in str(refused.value)
    kept, unreadable = checks.readable_videos(data, "skip")
    assert kept["train"]["start"][:] == [0.0, 1.0] and len(kept["test"]) == 1
    assert outside in caplog.text and len(unreadable) == 1 and str(broken["text"]) in unreadable[0]
    with pytest.raises(ValueError, match="No row of the train split"):
        checks.readable_videos({"train": rows.select([1])}, "skip")


def test_broken_videos_are_left_out_of_a_batch(good, broken):
    dataset = make_dataset([good[0], broken["text"], good[1]], training=True, on_error="skip")
    assert collate_clips([dataset[index] for index in range(3)])["labels"].tolist() == [0, 2]
    assert dataset.broken_videos() == [str(broken["text"])]
    with pytest.raises(ValueError, match="at least one readable video is expected"):
        collate_clips([dataset[1]])


def test_a_broken_video_is_replaced_by_another_drawn_from_seed_epoch_and_index(good, broken):
    paths = [broken["empty"], *good, broken["damaged"]]
    drawn = set()
    for epoch in range(8):
        first, second = (make_dataset(paths, training=True, on_error="replace") for _ in range(2))
        first.set_epoch(epoch)
        second.set_epoch(epoch)
        second[4]  # which videos were met before does not matter
        item = first[0]
        assert (item["pixel_values"] == second[0]["pixel_values"]).all()
        assert item["sample_key"] == (0, epoch, 0)
        drawn.add(item["labels"])
    assert len(drawn) > 1 and drawn <= {1, 2, 3}


def test_a_training_batch_of_broken_videos_gets_another_video(good, broken):
    dataset = make_dataset([broken["text"], *good, broken["damaged"]], training=True, on_error="skip")
    loader = DataLoader(dataset, batch_size=1, collate_fn=collate_clips)
    drawn = [batch["labels"].item() for batch in loader]
    assert drawn[1:4] == [1, 2, 3] and {drawn[0], drawn[4]} <= {1, 2, 3}
    assert [batch["labels"].item() for batch in loader] == drawn
    assert dataset.broken_videos() == sorted(map(str, (broken["text"], broken["damaged"])))
    full = DataLoader(dataset, batch_size=3, collate_fn=collate_clips)
    assert [batch["labels"].tolist() for batch in full] == [[1, 2], [3]]


def test_an_evaluation_goes_on_without_the_videos_that_break_off(good, damaged_later):
    assert inspect_videos(Dataset.from_dict({"video": [damaged_later]}), decode=False, progress=False)[0].error is None
    dataset = make_dataset([*good, damaged_later], training=False, on_error="skip")
    assert dataset.drop_broken() is dataset and len(dataset) == 3
    batches = list(DataLoader(dataset, batch_size=1, collate_fn=collate_clips))
    assert [batch["labels"].item() for batch in batches] == [0, 1, 2]
    assert dataset.broken_videos() == dataset.drop_broken().broken_videos() == [damaged_later]
    kept = make_dataset([*good, damaged_later], training=False).drop_broken()
    with pytest.raises(VideoReadError, match="damaged"):
        kept[3]
    with pytest.raises(VideoReadError, match="None of 1 video can be read"):
        make_dataset([damaged_later], training=False, on_error="skip").drop_broken()


def test_a_video_is_decoded_in_one_pass(tmp_path, monkeypatch):
    paths = [encode_video(tmp_path / "a.mp4", make_frames(200, 32, 48), fps=10)]
    paths.append(encode_video(tmp_path / "b.avi", make_frames(200, 32, 48), fps=10, codec="mpeg4"))
    (tmp_path / "frames").mkdir()
    for number in range(200):
        Image.new("RGB", (16, 16)).save(tmp_path / "frames" / f"{number}.png")
    paths.append(str(tmp_path / "frames"))
    opened, open_container = [], av.open
    monkeypatch.setattr(av, "open", lambda *args, **kwargs: opened.append(args) or open_container(*args, **kwargs))
    found = inspect_videos(Dataset.from_dict({"video": paths}), progress=False)
    assert [(video.error, video.num_frames) for video in found] == [(None, 200)] * 3
    # One pass shows the frames, and one decodes them; of an AVI file the first has to decode, too.
    assert len(opened) <= 5


def test_a_frame_of_another_size_makes_a_video_broken(tmp_path):
    for number, size in enumerate((16, 16, 20)):
        Image.new("RGB", (size, size)).save(tmp_path / f"{number}.png")
    (found,) = inspect_videos(Dataset.from_dict({"video": [str(tmp_path)]}), progress=False)
    assert "(20, 20)" in found.error


def test_durations_are_read_side_by_side_where_no_table_says_them(good, broken, monkeypatch):
    both_are_open, probe = Barrier(2, timeout=30), checks.probe_video
    monkeypatch.setattr(checks, "probe_video", lambda video: (both_are_open.wait(), probe(video))[1])
    rows = Dataset.from_dict({"video": [*good[:2], "gone.mp4"], "duration": [None, None, 7.5]})
    assert checks.read_durations(rows) == {good[0]: 2.0, good[1]: 2.0, "gone.mp4": 7.5}
    monkeypatch.undo()
    with pytest.raises(VideoReadError, match=str(broken["text"])):
        checks.read_durations(Dataset.from_dict({"video": [good[0], str(broken["text"])]}))


def test_processes_draw_nothing(good):
    state = torch.get_rng_state()
    alone, together = (
        inspect_videos(Dataset.from_dict({"video": good}), num_workers=n, progress=False) for n in (1, 2)
    )
    assert alone == together and torch.equal(torch.get_rng_state(), state)


def write_list(folder, good):
    """Segments of three videos, of which one is broken, with a further column; and what is found."""
    videos = [Path(shutil.copy(video, folder)).name for video in good]
    (folder / videos[1]).write_bytes(b"no video")
    rows = [f"{videos[0]},run,0,1,anna", f"{videos[0]},sit,1,,ben", f"{videos[1]},run,,,anna", f"{videos[2]},sit,,,"]
    (folder / "list.csv").write_text("\n".join(["path,label,start,end,person", *rows]))
    splits = load_video_dataset(folder / "list.csv", columns=None)
    return splits, inspect_videos(splits["train"], progress=False)


def test_a_manifest_has_the_rows_that_can_be_read_with_all_columns(good, tmp_path):
    splits, found = write_list(tmp_path, good)
    write_manifest(tmp_path / "videos.parquet", splits, found, tmp_path)
    rows = pq.read_table(tmp_path / "videos.parquet").to_pylist()
    assert [(row["path"], row["split"], row["label"], row["start"], row["person"]) for row in rows] == [
        ("0.mp4", "train", "run", 0.0, "anna"),
        ("0.mp4", "train", "sit", 1.0, "ben"),
        ("2.mp4", "train", "sit", None, None),
    ]
    assert all((row["frames"], row["duration"]) == (20, 2.0) for row in rows)
    again = load_video_dataset(tmp_path / "videos.parquet", columns=["person"])["train"]
    expected = splits["train"].select([0, 1, 3])
    assert again.select_columns(expected.column_names)[:] == expected[:]


def test_videos_of_a_manifest_are_not_looked_for_before_they_are_read(good, tmp_path):
    splits, found = write_list(tmp_path, good)
    (tmp_path / "elsewhere").mkdir()
    write_manifest(tmp_path / "elsewhere" / "videos.parquet", splits, found, tmp_path / "elsewhere")
    (tmp_path / "0.mp4").unlink()
    clips = VideoDataset(
        load_video_dataset(tmp_path / "elsewhere" / "videos.parquet")["train"], ClipTask(PROCESSOR), training=True
    )
    assert len(clips[2]["pixel_values"]) == 1
    with pytest.raises(VideoReadError, match="0.mp4 does not exist"):
        clips[0]


def test_no_readable_video_at_all(broken):
    dataset = make_dataset([broken["empty"], broken["text"]], training=True, on_error="replace")
    with pytest.raises(VideoReadError, match="None of 2 videos can be read"):
        dataset[0]


def test_evaluation_never_replaces(good):
    with pytest.raises(ValueError, match="for training"):
        make_dataset(good, training=False, on_error="replace")
    with pytest.raises(ValueError, match="on_error='ignore'"):
        make_dataset(good, training=True, on_error="ignore")


@pytest.fixture
def folder(tmp_path):
    for name in "abcd":
        (tmp_path / f"{name}.mp4").touch()
    return tmp_path


def load(folder, **splits):
    for name, lines in splits.items():
        columns = ["path,labels"] if ";" in "".join(lines) else ["path,label,start,end"]
        (folder / f"{name}.csv").write_text("\n".join([*columns, *lines]))
    return load_video_dataset(folder)


def find(folder, **splits):
    return find_repeated_clips(load(folder, **splits))


def test_different_clips_are_no_repetition(folder):
    train = ["a.mp4,run", "b.mp4,sit", "c.mp4,run,0,1", "c.mp4,sit,1,2", "a.mp4,run"]
    assert find(folder, train=train, test=["d.mp4,run", "c.mp4,run,2,3"]) == []


def test_one_clip_with_two_labels(folder):
    (clip,) = find(folder, train=["a.mp4,run,,2", "b.mp4,sit", "a.mp4,sit,0,2.0", "a.mp4,run,1,2"])
    assert (clip.video, clip.start, clip.end) == (str(folder / "a.mp4"), None, 2.0)
    assert (clip.splits, clip.labels) == (("train",), ("run", "sit"))
    (sentence,) = repetition_warnings([clip])
    assert "(1 clip)" in sentence and f"{folder / 'a.mp4'}, 0 s to 2 s (train: run or sit)" in sentence


def test_several_labels_are_compared_without_order(folder):
    assert find(folder, train=["a.mp4,run;sit", "a.mp4,sit;run"]) == []
    (clip,) = find(folder, train=["a.mp4,run;sit", "a.mp4,run"])
    assert clip.labels == ("run;sit", "run")


def test_one_clip_in_two_splits(folder):
    train, test = ["a.mp4,run", "b.mp4,sit"], ["c.mp4,sit", "a.mp4,run"]
    (clip,) = find(folder, train=train, validation=["b.mp4,sit,0,1"], test=test)
    assert (clip.splits, clip.labels) == (("train", "test"), ("run",))


def test_videos_with_texts_repeat_in_other_splits_alone(folder):
    (folder / "train.csv").write_text("video,question,answer\na.mp4,who,I\na.mp4,what,tea\nb.mp4,who,you\n")
    (folder / "val.csv").write_text("video,question,answer\nc.mp4,who,I\nb.mp4,what,milk\n")
    (clip,) = find_repeated_clips(load_video_texts(folder))
    assert clip.video == str(folder / "b.mp4") and clip.splits == ("train", "validation")


def test_many_are_counted_and_three_are_shown(folder):
    rows = []
    for number in range(5):
        (folder / f"{number}.mp4").touch()
        rows += [f"{number}.mp4,run", f"{number}.mp4,sit"]
    (sentence,) = repetition_warnings(find(folder, train=rows))
    assert "(5 clips)" in sentence and "2 more" in sentence
    assert [f"{number}.mp4" in sentence for number in range(5)] == [True] * 3 + [False] * 2


def test_splits_that_share_no_second_do_not_overlap(folder):
    train = ["a.mp4,run,0,2", "a.mp4,sit,1,3", "b.mp4,sit"]
    assert find_overlaps(load(folder, train=train, validation=["a.mp4,run,3,4", "c.mp4,run"])) == []


def test_rows_of_two_splits_that_share_seconds_are_named(folder):
    train = ["a.mp4,run,0,9", "a.mp4,sit,2,3", "b.mp4,sit,1,", "c.mp4,run"]
    others = {"validation": ["b.mp4,sit,0,", "a.mp4,run,8,20"], "test": ["c.mp4,run"]}
    found = find_overlaps(load(folder, train=train, **others))
    assert found == [
        Overlap(str(folder / "a.mp4"), 8.0, 9.0, ("train", "validation"), (1, 2)),
        Overlap(str(folder / "b.mp4"), 1.0, None, ("validation", "train"), (1, 3)),
        Overlap(str(folder / "c.mp4"), 0.0, None, ("test", "train"), (1, 4)),
    ]
    sentence = tell_overlaps(found)
    assert "3 pairs of rows" in sentence and "a.mp4, 8 s to 9 s (train row 1 and validation row 2)" in sentence


def test_seconds_that_rows_of_different_classes_share_are_named(folder):
    train = ["a.mp4,run,0,4", "a.mp4,sit,3,9", "a.mp4,run,2,5", "a.mp4,sit,5,6", "b.mp4,sit,1,2", "b.mp4,run,1,2"]
    found = find_shared_seconds(load(folder, train=train))
    video = str(folder / "a.mp4")
    # Rows that only touch share nothing, and a clip with two labels is named elsewhere.
    assert found == [
        SharedSeconds(video, 3.0, 4.0, ("run", "sit")),
        SharedSeconds(video, 3.0, 5.0, ("run", "sit")),
    ]


def test_copies_are_clips_of_their_originals(folder):
    for name in "abd":
        (folder / f"{name}.mp4").write_text("same")
    (folder / "c.mp4").write_text("size")
    splits = load(folder, train=["a.mp4,run", "c.mp4,sit"], test=["b.mp4,sit", "d.mp4,run,1,2"])
    original = str(folder / "a.mp4")
    copies = find_copies(splits)
    assert copies == {str(folder / "b.mp4"): original, str(folder / "d.mp4"): original}
    assert find_copies(splits, at_most=3) == {}
    (clip,) = find_repeated_clips(splits, copies)
    assert (clip.video, clip.splits, clip.labels) == (original, ("train", "test"), ("run", "sit"))
    copy = shutil.copy(original, str(folder / "a - Copy.mp4"))
    copies = find_copies(load(folder, train=["a - Copy.mp4,run", "a.mp4,sit"], test=["c.mp4,run"]))
    assert copies[copy] == original and original not in copies
