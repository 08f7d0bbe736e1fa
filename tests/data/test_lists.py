"""Lists of videos: lines of a path and a label, CSV and JSON, and what is wrong in them."""

import json
import math

import pytest

from hf_video.data import label_names, load_video_dataset


@pytest.fixture
def root(tmp_path):
    folder = tmp_path / "videos"
    folder.mkdir()
    for name in ("a.mp4", "b.mp4", "b c.mp4", "1.webm", "2.webm", "3.mp4"):
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


@pytest.mark.parametrize("header", ["path;label;start;end;note", None])
def test_a_list_as_excel_saves_it(root, tmp_path, header):
    """In the code page of Windows, with rows of empty cells at the end."""
    lines = [*filter(None, [header]), "a.mp4;Käfig;1;2", "b c.mp4;Gehege;0;1", ";;;", " ; ;;"]
    path = tmp_path / "list.csv"
    path.write_bytes("\r\n".join(lines).encode("cp1252"))
    expected = [(str(root / "a.mp4"), "Käfig", 1.0, 2.0), (str(root / "b c.mp4"), "Gehege", 0.0, 1.0)]
    assert read(path, video_root=root) == expected


def test_a_list_of_addresses(tmp_path):
    found = read(write(tmp_path, "list.txt", "https://example.com/a.mp4 run", "s3://bucket/b.mp4 sit"))
    assert [row[:2] for row in found] == [("https://example.com/a.mp4", "run"), ("s3://bucket/b.mp4", "sit")]


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
        ("train.txt", ["a.mp4"], ValueError, "no column of labels"),
        ("train.csv", ["none.mp4 0"], ValueError, "'none.mp4 0'"),
        ("train.txt", ["a.mp4,0", "a.mp4,0,1,2,3"], ValueError, "line 2 has more cells"),
        ("train.txt", ["a.mp4 0 5 2", "b c.mp4 1"], ValueError, "line 1: end is 2.0 s"),
        ("train.csv", ["path", "a.mp4"], ValueError, "no column of labels"),
        ("train.csv", ["File Name,Defect", "a.mp4,jam"], ValueError, "its columns are File Name, Defect"),
        ("train.csv", ["path,label"], ValueError, "no rows"),
        ("train.csv", ["path,label", "a.mp4,run,fast"], ValueError, "line 2 has more cells"),
        ("train.csv", ["path,label", "../videos,run"], FileNotFoundError, "line 2: .*videos"),
        ("train.json", ["{}"], ValueError, "dict"),
        ("train.json", ["[{"], ValueError, "cannot be read as JSON"),
        ("train.json", ['[{"id": "1"}]'], ValueError, "no column of labels"),
        ("train.json", ['[{"name": "1"}]'], ValueError, "entry 1 "),
        ("train.json", ["[]"], ValueError, "has no rows"),
        ("train.csv", ["path,label,label", "a.mp4,run,sit"], ValueError, "'label' twice"),
        ("train.csv", ["path,label", 'a.mp4,"run', "b.mp4,sit"], ValueError, "line 2"),
    ],
)
def test_what_is_wrong_in_a_list_is_named(root, tmp_path, name, lines, error, message):
    with pytest.raises(error, match=message):
        load_video_dataset(write(tmp_path, name, *lines), video_root=root)


def write_json(folder, rows):
    return write(folder, "train.json", json.dumps(rows))


@pytest.mark.parametrize("value", [None, math.nan, "nan"])
@pytest.mark.parametrize("column", ["label", "template"])
def test_a_label_in_json(root, column, value):
    others = {"path": "a.mp4"} if column == "label" else {"id": "a"}
    rows = [{**others, column: "run"}, {**others, column: "sit"}]
    load_video_dataset(write_json(root, rows))
    rows[1][column] = value
    with pytest.raises(ValueError, match="train.json, entry 2: label is "):
        load_video_dataset(write_json(root, rows))


@pytest.mark.parametrize("value", ["", "nan"])
@pytest.mark.parametrize("column", ["label", "labels"])
def test_a_label_in_csv(root, column, value):
    (root / "train.csv").write_text(f"path,{column}\na.mp4,run\nb.mp4,sit\na.mp4,{value}\n")
    if column == "labels" and not value.strip():
        assert load_video_dataset(root / "train.csv")["train"]["labels"][:] == [[0], [1], []]
        return
    with pytest.raises(ValueError, match=f"train.csv, line 4: (one of )?{column} is "):
        load_video_dataset(root / "train.csv")


def test_a_number_and_its_text_are_one_class(root):
    rows = [{"path": "a.mp4", "label": label} for label in (1, 0, "1")]
    assert load_video_dataset(write_json(root, rows))["train"]["label"][:] == [1, 0, 1]


@pytest.mark.parametrize(
    ("cells", "seconds"),
    [
        ("0.5,2", (0.5, 2.0)),
        (",", (None, None)),
        ("0:51,1:02:03.5", (51.0, 3723.5)),
        ('"0,5","0:00:01,25"', (0.5, 1.25)),
    ],
)
def test_times(root, cells, seconds):
    path = write(root, "list.csv", "path,label,start,end", f"a.mp4,run,{cells}", "b.mp4,sit,,")
    assert read(path)[0][2:] == seconds


@pytest.mark.parametrize("cells", ["soon,", "nan,", "-1,", "1:61,", "1:2:3:4,", "-0:05,", "1,1", ",0", "0:05,4"])
def test_wrong_times(root, cells):
    path = write(root, "list.csv", "path,label,start,end", "a.mp4,run,,", f"b.mp4,sit,{cells}")
    with pytest.raises(ValueError, match="line 3: (start|end) is "):
        read(path)


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_csv_of_spreadsheet_programs(root, end):
    lines = ["path,label", 'a.mp4,"run, fast"', '"b.mp4", "sit"', ""]
    (root / "train.csv").write_bytes(b"\xef\xbb\xbf" + end.join(lines).encode())
    data = load_video_dataset(root / "train.csv")["train"]
    assert data["video"][:] == [str(root / "a.mp4"), str(root / "b.mp4")]
    assert label_names(data) == ["run, fast", "sit"]


def test_starts_without_a_column_of_ends_are_told_with_the_columns_that_are_not_understood(root, caplog):
    path = write(root, "list.csv", "path,label,start,finished", "a.mp4,x,1,2", "b.mp4,y,1,2")
    assert [end for *_, end in read(path)] == [None, None]
    assert "lasts to the end of its video. Other columns: finished." in caplog.text
