"""Data sets of the `datasets` library whose videos are a column, as paths or as the bytes of files."""

from pathlib import Path

import datasets
import pytest
import torch
from datasets import ClassLabel, Dataset, DatasetDict, Features, List, Value, Video

from hf_video.data import ClipDataset, hold_out, inspect_videos, load_video_dataset
from hf_video.demo import write_moving_digits
from hf_video.processing import VideoClipProcessor
from hf_video.reading import VideoReadError

PROCESSOR = VideoClipProcessor(num_frames=4, sampling_strategy="uniform", size=32, crop_size=32)
NAMES = ["walk", "run"]


@pytest.fixture(scope="module")
def videos(tmp_path_factory):
    folder = write_moving_digits(
        tmp_path_factory.mktemp("digits"), train_per_class=1, test_per_class=1, num_frames=8, image_size=32
    )
    return sorted(str(path) for path in folder.rglob("*.mp4"))[:4]


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
    clips = ClipDataset(splits[split], PROCESSOR, training=False)
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
        if data is dataset and kind is str:
            assert splits["train"].column_names == ["video", "label", "start", "end"]
            assert splits["train"]["video"][:] == videos
        else:  # saving puts the files inside
            assert splits["train"].column_names == ["video", "label", "start", "end", "bytes"]
            assert len(set(splits["train"]["video"])) == 4
    assert list(splits) == ["train", "validation"]
    assert torch.equal(pixels(splits, "validation"), expected[[2, 1]])


def test_parquet_files_and_a_shuffled_selection(videos, tmp_path):
    dataset = make([named(video) for video in videos]).cast_column("clip", Video())
    (tmp_path / "data").mkdir()
    dataset.to_parquet(tmp_path / "data" / "train-00000-of-00001.parquet")
    dataset.to_parquet(tmp_path / "data" / "test-00000-of-00001.parquet")
    splits = load_video_dataset(tmp_path)
    assert list(splits) == ["train", "test"]
    expected = torch.cat([PROCESSOR(video, return_tensors="pt")["pixel_values"] for video in videos])
    assert torch.equal(pixels(splits, "test"), expected)
    assert torch.equal(pixels(load_video_dataset(dataset.select([3, 0, 2]))), expected[[3, 0, 2]])


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
    assert ClipDataset(splits["train"], PROCESSOR, training=False)[0]["labels"].tolist() == [1.0, 1.0]


@pytest.mark.parametrize("kind", [str, stored])
def test_people_stay_together_by_a_further_column(videos, kind):
    dataset = make([kind(video) for video in videos], labels=(0, 0, 1, 1)).add_column("person", [3, 4, 3, 4])
    rows = load_video_dataset(dataset, columns=["person"])["train"]
    assert rows["person"][:] == ["3", "4", "3", "4"]
    train, held_out = hold_out(rows, 0.5, seed=0, split_by="person")
    assert len({*train["person"]}) == len({*held_out["person"]}) == 1 and train["person"][0] != held_out["person"][0]
    assert "person" not in load_video_dataset(dataset)["train"].column_names


def test_given_labels_fix_the_ids(videos):
    assert load_video_dataset(make(videos), labels=["run", "fly", "walk"])["train"]["label"][:] == [2, 0, 0, 2]
    with pytest.raises(ValueError, match="The data set has 'walk', not among the 1 known labels"):
        load_video_dataset(make(videos), labels=["run"])


@pytest.mark.parametrize("on_error", ["error", "skip", "replace"])
def test_broken_videos_are_known_by_name(videos, on_error):
    dataset = make(
        [named(videos[0]), {"bytes": b"no video", "path": "broken.mp4"}, named(videos[2]), stored(videos[3])]
    )
    splits = load_video_dataset(dataset)
    name = splits["train"]["video"][1]
    assert name == "train[1] broken.mp4"
    clips = ClipDataset(splits["train"], PROCESSOR, training=True, on_error=on_error)
    if on_error == "error":
        with pytest.raises(VideoReadError, match=r"train\[1\] broken.mp4"):
            clips[1]
    else:
        assert (clips[1] is None) is (on_error == "skip")
    assert clips.broken_videos() == [name]
    for decode in (True, False):
        found = inspect_videos(splits["train"], decode=decode, progress=False)
        assert [video.path for video in found if video.error] == [name]


def test_splits_with_files_inside_and_beside(videos):
    splits = load_video_dataset(DatasetDict(train=make([stored(video) for video in videos]), test=make(videos)))
    assert "bytes" in splits["train"].column_names and "bytes" not in splits["test"].column_names
    found = inspect_videos(datasets.concatenate_datasets([*splits.values()]), progress=False)
    assert len(found) == 8 and not any(video.error for video in found)


def test_a_split_without_labels_is_left_out(videos, caplog):
    splits = DatasetDict(train=make(videos), test=make(videos, [-1] * 4), validation=make([], []))
    assert list(load_video_dataset(splits)) == ["train"]
    assert "The test split is left out: none of its 4 rows has a label" in caplog.text
    with pytest.raises(ValueError, match="has no labels in its column 'label'"):
        load_video_dataset(DatasetDict(test=splits["test"]))


def test_origin_on_the_hub_is_kept(videos):
    dataset = make(videos)
    dataset.info.download_checksums = {"hf://datasets/alice/clips@0123456789abcdef/train.parquet": {"num_bytes": 1}}
    assert load_video_dataset(dataset)["train"].info.download_checksums == dataset.info.download_checksums


def test_a_name_on_the_hub_is_asked_for_there(videos, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    asked = []

    def load_dataset(name, config, *, revision, streaming):
        assert (config, revision, streaming) == (None, None, False)
        asked.append(name)
        if name == "alice/none":
            raise datasets.exceptions.DatasetNotFoundError("Dataset 'alice/none' doesn't exist on the Hub")
        return DatasetDict(train=make(videos))

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    assert len(load_video_dataset("alice/clips")["train"]) == 4
    with pytest.raises(
        FileNotFoundError, match="alice/none does not exist, and no data set of this name.*doesn't exist"
    ):
        load_video_dataset("alice/none")
    with pytest.raises(FileNotFoundError, match="some/where/else does not exist. Expected"):
        load_video_dataset("some/where/else")
    assert asked == ["alice/clips", "alice/none"]


def test_what_is_wrong_is_named(videos, caplog):
    dataset = make(videos)
    with pytest.raises(ValueError, match="no column of the feature Video; its columns are label. Rename"):
        load_video_dataset(dataset.remove_columns("clip"))
    with pytest.raises(ValueError, match="2 columns of the feature Video: clip, other"):
        load_video_dataset(dataset.add_column("other", videos).cast_column("other", Video(decode=False)))
    with pytest.raises(ValueError, match="no column of labels"):
        load_video_dataset(dataset.remove_columns("label"))
    with pytest.raises(ValueError, match=r"train\[1\] has no label"):
        load_video_dataset(make(videos, [0, -1, 1, 1]))
    with pytest.raises(FileNotFoundError, match="1 videos of the data set do not exist: /no/such.mp4"):
        load_video_dataset(make([*videos[:3], "/no/such.mp4"]))
    with pytest.raises(ValueError, match="none of train, validation and test"):
        load_video_dataset(DatasetDict(extra=dataset))
    assert "The split 'extra' is left out" in caplog.text
    with pytest.raises(ValueError, match="make it with load_video_dataset"):
        ClipDataset(dataset.rename_column("clip", "video"), PROCESSOR, training=False)
