"""Videos without labels, of folders, lists and data sets."""

import json

import pytest

from hf_video.data import load_unlabelled_videos
from hf_video.data.video_dataset import load_video_dataset


def names_in(data, **options):
    splits = load_unlabelled_videos(data, **options)
    assert list(splits) == ["train"]
    assert not {"label", "labels"} & set(splits["train"].column_names)
    return sorted(video.rpartition("/")[2] for video in splits["train"]["video"])


def test_a_folder_gives_videos_at_any_depth(tmp_path):
    for name in ("a.mp4", "deep/b.mp4", "deep/deeper/c.webm", "notes.txt", ".hidden/d.mp4"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "deep" / "frames").mkdir()
    (tmp_path / "deep" / "frames" / "1.jpg").touch()
    assert names_in(tmp_path) == ["a.mp4", "b.mp4", "c.webm", "frames"]


@pytest.mark.parametrize("depth", ["", "class/"])
def test_of_a_folder_with_splits_the_training_split_counts(tmp_path, depth):
    for name in ("train/{}a.mp4", "test/{}b.mp4", "val/{}c.mp4"):
        path = tmp_path / name.format(depth)
        path.parent.mkdir(parents=True)
        path.touch()
    assert names_in(tmp_path) == ["a.mp4"]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("list.csv", "path\na b.mp4\nc.mp4\n"),
        ("list.csv", "path,start,end\na b.mp4,0,1\nc.mp4,,\n"),
        ("list.csv", "path,label\na b.mp4,one\nc.mp4,\n"),
        ("list.txt", "a b.mp4\nc.mp4\n"),
        ("list.csv", "a b.mp4,0\nc.mp4,0\n"),
        ("list.json", json.dumps([{"path": "a b.mp4"}, {"path": "c.mp4", "label": "one"}])),
        ("train.csv", "path\na b.mp4\nc.mp4\n"),
    ],
)
def test_rows_of_a_list_need_no_labels(tmp_path, name, text):
    for video in ("a b.mp4", "c.mp4"):
        (tmp_path / video).touch()
    (tmp_path / name).write_text(text)
    assert names_in(tmp_path if name == "train.csv" else tmp_path / name) == ["a b.mp4", "c.mp4"]
    (tmp_path / "elsewhere").mkdir()
    moved = (tmp_path / name).rename(tmp_path / "elsewhere" / "list").rename(tmp_path / "elsewhere" / name)
    assert names_in(moved, video_root=tmp_path) == ["a b.mp4", "c.mp4"]


def test_labelled_lists_still_need_labels(tmp_path):
    (tmp_path / "a.mp4").touch()
    for name, text in (("list.csv", "path\na.mp4\n"), ("list.txt", "a.mp4\n"), ("list.json", '[{"path": "a.mp4"}]')):
        (tmp_path / name).write_text(text)
        with pytest.raises(ValueError, match="expected"):
            load_video_dataset(tmp_path / name)


def test_a_missing_video_of_a_list_is_named(tmp_path):
    (tmp_path / "list.csv").write_text("path\nnone.mp4\n")
    with pytest.raises(FileNotFoundError, match="none.mp4"):
        load_unlabelled_videos(tmp_path / "list.csv")


def test_a_file_of_one_split_alone_that_is_not_for_training_is_refused(tmp_path):
    (tmp_path / "a.mp4").touch()
    (tmp_path / "test.csv").write_text("path\na.mp4\n")
    with pytest.raises(ValueError, match="has no training split, only test"):
        load_unlabelled_videos(tmp_path)
