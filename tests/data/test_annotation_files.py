"""Lists of Kinetics and JSON files of Something-Something; CSV files are tested with the data sets."""

import json

import pytest

from hf_video.data import load_video_dataset


@pytest.fixture
def root(tmp_path):
    folder = tmp_path / "videos"
    folder.mkdir()
    for name in ("a.mp4", "b c.mp4", "1.webm", "2.webm", "3.mp4"):
        (folder / name).touch()
    return folder


def write(folder, name, *lines):
    path = folder / name
    path.write_text("\n".join(lines) + "\n")
    return path


def read(path, **options):
    split = load_video_dataset(path, **options)["train"]
    names = split.features["label"].names
    return [(row["video"], names[row["label"]], row["start"], row["end"]) for row in split]


@pytest.mark.parametrize("name", ["train.csv", "train.txt"])
@pytest.mark.parametrize(
    "lines", [("a.mp4 0", "b c.mp4 10"), ("a.mp4,0", "b c.mp4,10"), ("", "a.mp4 0", "b c.mp4 10")]
)
def test_lists_of_kinetics(root, tmp_path, name, lines):
    expected = [(str(root / "a.mp4"), "0", None, None), (str(root / "b c.mp4"), "10", None, None)]
    assert read(write(tmp_path, name, *lines), video_root=root) == expected
    assert read(write(root, name, *lines)) == expected


@pytest.mark.parametrize("separator", [" ", ","])
def test_segments_in_a_list(root, tmp_path, separator):
    lines = [separator.join(cells) for cells in (("a.mp4", "run", "0.5", "2"), ("b c.mp4", "sit", "0", "1.5"))]
    found = read(write(tmp_path, "list.txt", *lines), video_root=root)
    assert found == [(str(root / "a.mp4"), "run", 0.5, 2.0), (str(root / "b c.mp4"), "sit", 0.0, 1.5)]


def test_splits_in_a_folder_and_absolute_paths(root, tmp_path):
    for split in ("train", "val"):
        write(tmp_path, f"{split}.txt", f"{root / 'a.mp4'} 0", f"{root / 'b c.mp4'} 1")
    data = load_video_dataset(tmp_path)
    assert {name: len(split) for name, split in data.items()} == {"train": 2, "validation": 2}


def test_something_something(root, tmp_path):
    entries = [
        {"id": "1", "label": "holding potato", "template": "Holding [something]", "placeholders": ["potato"]},
        {"id": "2", "label": "moving a pen", "template": "Moving [something] up", "placeholders": ["a pen"]},
        {"id": 3, "label": "holding a cup", "template": "Holding [something]", "placeholders": ["a cup"]},
    ]
    path = write(tmp_path, "train.json", json.dumps(entries))
    assert read(path, video_root=root) == [
        (str(root / "1.webm"), "Holding something", None, None),
        (str(root / "2.webm"), "Moving something up", None, None),
        (str(root / "3.mp4"), "Holding something", None, None),
    ]


@pytest.mark.parametrize(
    ("name", "lines", "error", "message"),
    [
        ("train.txt", ["a.mp4 0", "none.mp4 1"], FileNotFoundError, "1 of 2 videos do not exist.*line 2.*video_root"),
        ("train.txt", ["a.mp4"], ValueError, "The first line of .* is 'a.mp4'; the columns path,label"),
        ("train.csv", ["none.mp4 0"], ValueError, "The first line of .* the first with a video that exists in"),
        ("train.txt", ["a.mp4,0", "a.mp4,0,1,2,3"], ValueError, "line 2 has 5 cells"),
        (
            "train.txt",
            ["a.mp4 0 5 2", "b c.mp4 1"],
            ValueError,
            "line 1: end is 2.0 s, but the segment starts at 5.0 s",
        ),
        ("train.json", ["{}"], ValueError, "holds a dict; a list of entries"),
        ("train.json", ["[{"], ValueError, "cannot be read as JSON"),
        ("train.json", ['[{"id": "1"}]'], ValueError, "entry 1 is .*or with id and template is expected"),
        ("train.json", ["[]"], ValueError, "has no rows"),
    ],
)
def test_what_is_wrong_is_named(root, tmp_path, name, lines, error, message):
    with pytest.raises(error, match=message):
        load_video_dataset(write(tmp_path, name, *lines), video_root=root)
