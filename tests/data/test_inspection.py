import os
import shutil
from pathlib import Path

import av
import pyarrow.parquet as pq
import pytest
import torch
from datasets import Dataset
from PIL import Image
from torch.utils.data import DataLoader

from hf_video.data import ClipTask, VideoDataset, collate_clips, inspect_videos, load_video_dataset
from hf_video.data.inspection import write_manifest
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
    assert ["holds no frame" in (video.error or "") for video in found] == [True, True, False]
    assert VideoDataset(Dataset.from_list(rows), ClipTask(PROCESSOR), training=True, on_error="skip")[0] is None


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
    with pytest.raises(VideoReadError, match="None of the 1 videos can be read"):
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
    with pytest.raises(VideoReadError, match="None of the 2 videos can be read"):
        dataset[0]


def test_evaluation_never_replaces(good):
    with pytest.raises(ValueError, match="for training"):
        make_dataset(good, training=False, on_error="replace")
    with pytest.raises(ValueError, match="on_error='ignore'"):
        make_dataset(good, training=True, on_error="ignore")
