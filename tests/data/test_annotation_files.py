"""Lists of Kinetics and JSON files of Something-Something; CSV files are tested with the data sets."""

import json
import math

import pytest

from hf_video.data import label_names, load_video_dataset
from hf_video.data.annotation_files import cell_text, segment


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
        ("train.txt", ["a.mp4 0", "none.mp4 1"], FileNotFoundError, "1 of 2 .*line 2"),
        ("train.txt", ["a.mp4"], ValueError, "'a.mp4'"),
        ("train.csv", ["none.mp4 0"], ValueError, "'none.mp4 0'"),
        ("train.txt", ["a.mp4,0", "a.mp4,0,1,2,3"], ValueError, "line 2 has 5 cells"),
        ("train.txt", ["a.mp4 0 5 2", "b c.mp4 1"], ValueError, "line 1: end is 2.0 s"),
        ("train.json", ["{}"], ValueError, "dict"),
        ("train.json", ["[{"], ValueError, "cannot be read as JSON"),
        ("train.json", ['[{"id": "1"}]'], ValueError, "entry 1 "),
        ("train.json", ["[]"], ValueError, "has no rows"),
    ],
)
def test_what_is_wrong_is_named(root, tmp_path, name, lines, error, message):
    with pytest.raises(error, match=message):
        load_video_dataset(write(tmp_path, name, *lines), video_root=root)


NO_TEXTS = [None, math.nan, math.inf, True, False, "", "  ", [], ["a"], {"a": 1}]
MISSING = ["nan", "NaN", "None", "null", "NULL", "<NA>", " None "]


@pytest.fixture
def folder(tmp_path):
    for name in ("a.mp4", "b.mp4"):
        (tmp_path / name).touch()
    return tmp_path


def write_json(folder, rows, name="train.json"):
    (folder / name).write_text(json.dumps(rows))
    return folder / name


@pytest.mark.parametrize("value", [*NO_TEXTS, *MISSING, b"run", -math.inf])
def test_what_is_no_text_is_refused_by_column_and_row(value):
    shown = value.strip() if value in MISSING else value
    with pytest.raises(ValueError) as error:
        cell_text("x.csv, line 2", "label", value)
    assert str(error.value).startswith(f"x.csv, line 2: label is {shown!r}")


@pytest.mark.parametrize("value", [None, math.nan, "nan"])
@pytest.mark.parametrize("column", ["label", "template"])
def test_a_label_in_json(folder, column, value):
    others = {"path": "a.mp4"} if column == "label" else {"id": "a"}
    rows = [{**others, column: "run"}, {**others, column: "sit"}]
    load_video_dataset(write_json(folder, rows))
    rows[1][column] = value
    with pytest.raises(ValueError, match=f"train.json, entry 2: {column} is "):
        load_video_dataset(write_json(folder, rows))


@pytest.mark.parametrize("value", ["", "nan"])
@pytest.mark.parametrize("column", ["label", "labels"])
def test_a_label_in_csv(folder, column, value):
    (folder / "train.csv").write_text(f"path,{column}\na.mp4,run\nb.mp4,sit\na.mp4,{value}\n")
    if column == "labels" and not value.strip():
        assert load_video_dataset(folder / "train.csv")["train"]["labels"][:] == [[0], [1], []]
        return
    with pytest.raises(ValueError, match=f"train.csv, line 4: (one of )?{column} is "):
        load_video_dataset(folder / "train.csv")


def test_numbers_and_texts_are_not_mixed(folder):
    rows = [{"path": "a.mp4", "label": label} for label in (1, 0)]
    assert label_names(load_video_dataset(write_json(folder, rows))["train"]) == ["0", "1"]
    with pytest.raises(ValueError, match="entry 3 has '1' and .* entry 1 has 1"):
        load_video_dataset(write_json(folder, [*rows, {"path": "b.mp4", "label": "1"}]))


def test_times():
    assert segment("x", "0.5", 2) == (0.5, 2.0) and segment("x", "", None) == (None, None)
    for value in ("soon", "nan", math.inf, -1, True, []):
        with pytest.raises(ValueError, match="x: start is "):
            segment("x", value, None)
    for start, end in ((1, 1), (None, 0)):
        with pytest.raises(ValueError, match=f"x: end is {float(end)}"):
            segment("x", start, end)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["path,label,label", "a.mp4,run,sit"], "'label' twice"),
        (["path,label,Start", "a.mp4,run,1"], "'Start'.*'start'"),
        (["path,label", 'a.mp4,"run', "b.mp4,sit"], "line 2"),
    ],
)
def test_columns_and_rows_of_csv_are_not_lost(folder, lines, message):
    (folder / "train.csv").write_text("\n".join(lines))
    with pytest.raises(ValueError, match=message):
        load_video_dataset(folder / "train.csv")


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_csv_of_spreadsheet_programs(folder, end):
    lines = ["path,label", 'a.mp4,"run, fast"', '"b.mp4", "sit"', ""]
    (folder / "train.csv").write_bytes(b"\xef\xbb\xbf" + end.join(lines).encode())
    data = load_video_dataset(folder / "train.csv")["train"]
    assert data["video"][:] == [str(folder / "a.mp4"), str(folder / "b.mp4")]
    assert label_names(data) == ["run, fast", "sit"]
