"""Tables of videos: Parquet files, tars, data sets of the `datasets` library, with paths or whole files."""

import io
import math
import shutil
import tarfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from datasets import ClassLabel, Dataset, DatasetDict, Features, List, Value, Video
from huggingface_hub import constants
from huggingface_hub.utils import _http

from hf_video.data import (
    ClipTask,
    VideoDataset,
    VideoStream,
    hold_out,
    inspect_videos,
    load_unlabelled_videos,
    load_video_dataset,
    load_video_stream,
)
from hf_video.data.rows import choose_names
from hf_video.data.tables import cell_text
from hf_video.data.video_listing import list_videos
from hf_video.processing import VideoClipProcessor

PROCESSOR = VideoClipProcessor(num_frames=4, sampling_strategy="uniform", size=32, crop_size=32)
NAMES = ["walk", "run"]


@pytest.fixture(scope="module")
def videos(digits):
    return sorted(str(path) for path in digits.rglob("*.mp4"))[:4]


def stored(path):
    return {"bytes": Path(path).read_bytes(), "path": None}


def named(path):
    """A file inside a data set that knows how it was called."""
    return {"bytes": Path(path).read_bytes(), "path": "clips/" + Path(path).name}


def make(values, labels=(0, 1, 1, 0), label="label", feature=None, **columns):
    feature = feature or ClassLabel(names=NAMES)
    features = Features({"clip": Video(decode=False), label: feature} | {name: Value("float32") for name in columns})
    return Dataset.from_dict({"clip": values, label: list(labels), **columns}, features=features)


def pixels(splits, split="train"):
    clips = VideoDataset(splits[split], ClipTask(PROCESSOR), training=False)
    return torch.cat([clips[index]["pixel_values"] for index in range(len(clips))])


@pytest.mark.parametrize("kind", [str, stored, named])
def test_videos_are_read_wherever_they_are(videos, tmp_path, kind):
    dataset = make([kind(video) for video in videos])
    dataset.save_to_disk(tmp_path / "one")
    DatasetDict(train=dataset, valid=dataset.select([2, 1])).save_to_disk(tmp_path / "splits")
    expected = torch.cat([PROCESSOR(video, return_tensors="pt")["pixel_values"] for video in videos])
    for data in (dataset, tmp_path / "one", str(tmp_path / "splits")):
        splits = load_video_dataset(data)
        assert splits["train"].features["label"] == ClassLabel(names=NAMES)
        assert splits["train"]["label"][:] == [0, 1, 1, 0]
        assert torch.equal(pixels(splits), expected)
        # Saving puts the files inside.
        assert ("bytes" in splits["train"].column_names) is not (data is dataset and kind is str)
        assert len(set(splits["train"]["video"])) == 4
    assert list(splits) == ["train", "validation"]
    assert torch.equal(pixels(splits, "validation"), expected[[2, 1]])


def write_table(file, **columns):
    file.parent.mkdir(exist_ok=True)
    pq.write_table(pa.table(columns), file)
    return file


def expected_pixels(videos):
    return torch.cat([PROCESSOR(video, return_tensors="pt")["pixel_values"] for video in videos])


@pytest.mark.parametrize("kind", ["feature", "struct", "column"])
def test_parquet_with_videos_inside(videos, tmp_path, kind):
    """As the `datasets` library writes them, as another program writes the same, and as a column of bytes."""
    contents = [Path(video).read_bytes() for video in videos]
    if kind == "feature":
        file = tmp_path / "rows" / "train.parquet"
        file.parent.mkdir()
        make([named(video) for video in videos]).cast_column("clip", Video()).to_parquet(file)
    elif kind == "struct":
        rows = [{"bytes": content, "path": "a.mp4"} for content in contents]
        file = write_table(tmp_path / "rows" / "train.parquet", video=rows, label=["walk", "run", "run", "walk"])
    else:
        names = pa.array(["a.mp4"] * 4, pa.large_string())
        file = write_table(
            tmp_path / "rows" / "train.parquet", path=names, bytes=contents, label=["walk", "run", "run", "walk"]
        )
    shutil.copy(file, file.with_name("test.parquet"))
    for data in (file, str(file), file.parent, f"{file.parent}/tr*.parquet"):
        splits = load_video_dataset(data)
        assert torch.equal(pixels(splits), expected_pixels(videos))
        assert ("test" in splits) is (data == file.parent)
    assert {video.open().read() for video in list_videos([str(file)])} == {*contents}


def test_a_tar_of_webdataset(videos, tmp_path):
    (tmp_path / "tars").mkdir()
    file = tmp_path / "tars" / "train-0.tar"
    with tarfile.open(file, "w") as tar:
        for number, video in enumerate(videos):
            for suffix, content in (("mp4", Path(video).read_bytes()), ("cls", b"%d" % (number % 2))):
                member = tarfile.TarInfo(f"{number}.{suffix}")
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
    for data in (file, file.parent):
        splits = load_video_dataset(data)
        assert torch.equal(pixels(splits), expected_pixels(videos)) and splits["train"]["label"][:] == [0, 1, 0, 1]


def test_a_stream_of_parquet_files_has_their_rows(videos, tmp_path):
    for split in ("train", "validation"):
        columns = {"path": ["a.mp4"] * 4, "bytes": [Path(video).read_bytes() for video in videos], "label": [*"xyyx"]}
        write_table(tmp_path / "rows" / f"{split}.parquet", **columns)
    stream, others = load_video_stream(tmp_path / "rows", labels=["x", "y"])
    clips = VideoStream(stream, ClipTask(PROCESSOR, class_names=["x", "y"])).draw_clips()
    rows = [next(clips).row for _ in range(4)]
    assert {row["bytes"] for row in rows} == {*columns["bytes"]} and sum(row["label"] for row in rows) == 2
    assert torch.equal(pixels(others, "validation"), expected_pixels(videos))


def test_a_column_says_the_split_and_paths_count_from_the_file(videos, tmp_path):
    root = Path(videos[0]).parents[2]
    paths = [str(Path(video).relative_to(root)) for video in videos]
    columns = {"path": paths, "split": ["val", "train", "train", "val"], "label": [3, 11, 3, 3]}
    file = write_table(root / "own.parquet", **columns, start=[None, 0.1, None, None], note=["p", "q", None, "r"])
    splits = load_video_dataset(file, columns=None)
    assert {name: rows["video"][:] for name, rows in splits.items()} == {
        "train": videos[1:3],
        "validation": [videos[0], videos[3]],
    }
    assert splits["train"].features["label"].names == ["3", "11"] and splits["train"]["start"][:] == [0.1, None]
    assert splits["validation"]["note"][:] == ["p", "r"]
    moved = shutil.copy(file, tmp_path / "moved.parquet")
    assert load_video_dataset(moved, video_root=root)["train"]["video"][:] == videos[1:3]
    with pytest.raises(FileNotFoundError, match=paths[1]):
        load_video_dataset(moved)


def test_what_lies_beside_class_folders_is_no_data_of_the_folder(videos):
    root = Path(videos[0]).parents[1]
    (root / "archive.tar").touch()
    write_table(root / "videos.parquet", path=videos, label=[*"xyyx"])
    assert load_video_dataset(root)["train"].features["label"].names != ["x", "y"]


def test_labels_are_not_needed_where_they_are_not_read(videos, tmp_path):
    file = write_table(tmp_path / "rows" / "train.parquet", path=videos)
    for data in (file, Dataset.from_dict({"video": videos})):
        assert load_unlabelled_videos(data)["train"]["video"][:] == videos
    assert [video.source for video in list_videos([str(file.parent)])] == videos
    assert len({video.id for video in list_videos([str(file)])}) == 4
    with pytest.raises(ValueError, match="no column of labels"):
        load_video_dataset(file)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"path": ["a", ""], "label": ["b", "c"]}, r"\[1\]: video is ''"),
        ({"path": ["a", "d"], "label": ["b", None]}, r"\[1\]: label is None"),
        ({"path": ["a", "d"], "labels": [["b"], [None]]}, r"\[1\]: one of labels is None"),
        ({"path": ["a", "d"], "labels": [["b"], None]}, r"\[1\]: labels is None"),
        ({"path": ["a", "d"], "label": ["b", "c"], "split": ["train", "rest"]}, "split is 'rest'"),
        ({"path": ["a", "d"], "label": ["b", "c"], "start": [0.0, -1.0]}, r"\[1\]: start is -1.0"),
        ({"path": ["a", "d"], "label": ["b", "c"], "start": [2.0, 0.0], "end": [2.0, 1.0]}, r"\[0\]: end is 2.0"),
        ({"path": ["a", "d"], "label": ["b", "c"], "end": ["1", "soon"]}, r"\[1\]: end is 'soon'"),
        (
            {"path": ["a", "d"], "label": ["b", "c"], "end": ["no", "no"]},
            r"2 rows (.|\n)*\[0\]: end is 'no'(.|\n)*\[1\]: end is 'no'",
        ),
        (
            {"path": ["a", "d"], "label": ["b", "c"], "start": [1, 2], "end": [0, 1]},
            r"2 rows (.|\n)*\[0\]: end is 0(.|\n)*\[1\]: end is 1",
        ),
    ],
)
def test_what_is_wrong_in_a_file_is_named(tmp_path, columns, message):
    with pytest.raises(ValueError, match=message):
        load_video_dataset(write_table(tmp_path / "own.parquet", **columns, frames=[1, 1]))


@pytest.mark.parametrize(
    ("counts", "are_told"),
    [
        ({"running": 12, "Runing": 2}, True),
        ({"running": 12, "Running": 12}, True),
        ({"RUN ": 1, "run": 1}, True),
        ({"run": 1, "runs": 1}, False),
        ({"running": 12, "runing": 3}, False),
        ({"class1": 12, "class2": 1}, False),
        ({"player A": 12, "player B": 1}, False),
        ({"left": 12, "lift": 1}, False),
    ],
)
def test_classes_that_may_be_one_are_told_with_their_rows(caplog, counts, are_told):
    assert choose_names("rows", {"train": counts}, None) == sorted(counts)
    assert ("almost the same name" in caplog.text) == are_told
    assert not are_told or all(f"{name!r} ({count})" in caplog.text for name, count in counts.items())


def test_a_data_set_of_a_hub_that_is_out_of_reach_is_asked_for_once(monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.setattr(_http.time, "sleep", lambda seconds: pytest.fail("a request is tried again"))
    with pytest.raises(FileNotFoundError, match="nobody/nothing is no path, and cannot be read"):
        load_video_dataset("nobody/nothing")
    assert not constants.HF_HUB_OFFLINE


def test_files_that_are_none(tmp_path):
    (tmp_path / "wrong.parquet").write_text("path,label")
    with pytest.raises(ValueError, match="wrong.parquet cannot be read"):
        load_video_dataset(tmp_path / "wrong.parquet")
    with pytest.raises(FileNotFoundError, match="none.parquet"):
        load_video_dataset(tmp_path / "none.parquet")
    with pytest.raises(FileNotFoundError, match="memory://nowhere"):
        load_video_dataset("memory://nowhere")
    with pytest.raises(ImportError, match="s3fs"):
        load_video_dataset("s3://bucket/rows.parquet")


def test_a_shuffled_selection(videos):
    dataset = make([named(video) for video in videos])
    assert torch.equal(pixels(load_video_dataset(dataset.select([3, 0, 2]))), expected_pixels(videos)[[3, 0, 2]])


def test_segments_and_relative_paths(videos, monkeypatch):
    root = Path(videos[0]).parents[2]
    relative = [str(Path(video).relative_to(root)) for video in videos]
    dataset = make(relative, start=[0.0, 0.5, None, 0.0], end=[None, 1.0, None, 0.5])
    splits = load_video_dataset(dataset, video_root=root)
    assert splits["train"]["video"][:] == videos
    assert splits["train"]["start"][:] == [0.0, 0.5, None, 0.0] and splits["train"]["end"][1] == 1.0
    monkeypatch.chdir(root)
    assert load_video_dataset(dataset)["train"]["video"][:] == videos


@pytest.mark.parametrize(
    ("label", "feature", "values", "names"),
    [
        ("label", Value("string"), ["sit", "run", "run", "sit"], ["run", "sit"]),
        ("label", Value("int64"), [10, 9, 9, 10], ["9", "10"]),
        ("action", ClassLabel(names=["z", "a", "unused"]), [0, 1, 1, 0], ["z", "a", "unused"]),
    ],
)
def test_labels_are_declared_or_found(videos, label, feature, values, names):
    splits = load_video_dataset(make(videos, values, label, feature))
    assert splits["train"].features["label"].names == names
    found = [splits["train"].features["label"].int2str(label) for label in splits["train"]["label"]]
    assert found == [names[value] if isinstance(feature, ClassLabel) else str(value) for value in values]


@pytest.mark.parametrize(
    ("feature", "values"),
    [(List(ClassLabel(names=["run", "sit"])), [[0, 1], [0], [], [1]]), (List(Value("string")), None)],
)
def test_several_labels(videos, feature, values):
    values = values or [["run", "sit"], ["run"], [], ["sit"]]
    splits = load_video_dataset(make(videos, values, "labels", feature))
    assert splits["train"]["labels"][:] == [[0, 1], [0], [], [1]]
    assert VideoDataset(splits["train"], ClipTask(PROCESSOR), training=False)[0]["labels"].tolist() == [1.0, 1.0]


@pytest.mark.parametrize("kind", [str, stored])
def test_people_stay_together_by_a_further_column(videos, kind):
    dataset = make([kind(video) for video in videos], labels=(0, 0, 1, 1)).add_column("person", [3, 4, 3, 4])
    rows = load_video_dataset(dataset, columns=["person"])["train"]
    assert rows["person"][:] == ["3", "4", "3", "4"]
    train, held_out = hold_out(rows, 0.5, seed=0, split_by="person")
    assert len({*train["person"]}) == len({*held_out["person"]}) == 1 and train["person"][0] != held_out["person"][0]
    assert "person" not in load_video_dataset(dataset)["train"].column_names


def test_broken_videos_are_known_by_name(videos):
    broken = {"bytes": b"no video", "path": "broken.mp4"}
    rows = load_video_dataset(make([named(videos[0]), broken, named(videos[2]), stored(videos[3])]))["train"]
    clips = VideoDataset(rows, ClipTask(PROCESSOR), training=True, on_error="skip")
    assert clips[1] is None and clips.broken_videos() == ["train[1] broken.mp4"]
    found = inspect_videos(rows, progress=False)
    assert [video.path for video in found if video.error] == ["train[1] broken.mp4"]


def test_a_split_without_labels_is_left_out(videos, caplog):
    splits = DatasetDict(train=make(videos), test=make(videos, [-1] * 4), validation=make([], []))
    assert list(load_video_dataset(splits)) == ["train"]
    assert "The test split is left out" in caplog.text
    with pytest.raises(ValueError, match="no labels"):
        load_video_dataset(DatasetDict(test=splits["test"]))


def test_origin_on_the_hub_is_kept(videos):
    dataset = make(videos)
    dataset.info.download_checksums = {"hf://datasets/alice/clips@0123456789abcdef/train.parquet": {"num_bytes": 1}}
    assert load_video_dataset(dataset)["train"].info.download_checksums == dataset.info.download_checksums


def test_what_is_wrong_is_named(videos):
    dataset = make(videos)
    two = dataset.add_column("other", videos).cast_column("other", Video(decode=False))
    wrong = {
        "no column of the feature Video": dataset.remove_columns("clip"),
        "2 columns of the feature Video: clip, other": two,
        "no column of labels": dataset.remove_columns("label"),
        r"train\[1\]: label is None": make(videos, [0, -1, 1, 1]),
        "none of train, validation and test": DatasetDict(extra=dataset),
    }
    for message, data in wrong.items():
        with pytest.raises(ValueError, match=message):
            load_video_dataset(data)
    with pytest.raises(FileNotFoundError, match="/no/such.mp4"):
        load_video_dataset(make([*videos[:3], "/no/such.mp4"]))
    with pytest.raises(ValueError, match="make them with load_video_dataset"):
        VideoDataset(dataset.rename_column("clip", "video"), ClipTask(PROCESSOR), training=False)


NO_TEXTS = [None, math.nan, math.inf, "", "  ", [], ["a"], {"a": 1}]
MISSING = ["nan", "NaN", "<NA>", " nan "]


@pytest.mark.parametrize("value", [*NO_TEXTS, *MISSING, b"run", -math.inf])
def test_what_is_no_text_is_refused_by_column_and_row(value):
    shown = value.strip() if isinstance(value, str) else value
    with pytest.raises(ValueError) as error:
        cell_text("x.csv, line 2", "label", value)
    assert str(error.value).startswith(f"x.csv, line 2: label is {shown!r}")
