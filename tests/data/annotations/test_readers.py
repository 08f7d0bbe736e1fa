"""Every format against files in the structure that its tool writes, and the rows that they hold."""

import json
import shutil
from pathlib import Path

import pytest

from hf_video.data import read_annotations
from tests.testing.videos import encode_video, make_frames

CASES = Path(__file__).parents[2] / "fixtures" / "annotation_formats"
NAMES = sorted(each.parent.name for each in CASES.glob("*/expected.json"))


def place(name, folder):
    """The file of a case in a folder, with its videos, and what it must give."""
    expected = json.loads((CASES / name / "expected.json").read_text())
    shutil.copytree(CASES / name, folder / name)
    for media in expected["media"].values():
        path = folder / name / media["place"]
        path.parent.mkdir(parents=True, exist_ok=True)
        if media["exists"]:
            codec = {"codec": "mpeg4", "codec_options": {}} if path.suffix == ".avi" else {}
            encode_video(path, make_frames(media["frames"], 16, 16), fps=media["fps"], **codec)
    return folder / name / expected["file"], expected


def same(found, expected):
    """Whether two lists of objects hold the same, in any order, with times within a millisecond."""

    def is_same(one, other):
        if isinstance(one, dict) and isinstance(other, dict):
            return one.keys() == other.keys() and all(is_same(one[key], other[key]) for key in one)
        if isinstance(one, float) or isinstance(other, float):
            return one == pytest.approx(other, abs=1e-3)
        return one == other

    left = list(expected)
    for each in found:
        if (match := next((other for other in left if is_same(each, other)), None)) is None:
            return False
        left.remove(match)
    return not left


@pytest.mark.parametrize("name", NAMES)
def test_format(name, tmp_path):
    file, expected = place(name, tmp_path)
    found = read_annotations(file, choices=expected.get("choices"))
    for key in ("rows", "unknown", "reports"):
        assert same(getattr(found, key), expected[key]), (key, getattr(found, key))
    assert found.classes == expected.get("classes", {})
    assert found.splits == expected.get("splits", {})
    assert found.background == expected.get("background")


def boris(folder, observations, **project):
    """A project of BORIS beside two videos of 4 and 2 seconds."""
    for name, frames in (("a.mp4", 40), ("b.mp4", 20), ("side.mp4", 40)):
        encode_video(folder / name, make_frames(frames, 16, 16), fps=10)
    classes = {"0": {"type": "State event", "code": "walk"}, "1": {"type": "Point event", "code": "rear"}}
    content = {"behaviors_conf": classes, "observations": observations, **project}
    (folder / "p.boris").write_text(json.dumps(content))
    return folder / "p.boris"


def test_queue_of_files_and_views(tmp_path):
    """Times run on over the files of player 1, from the time offset on; player 2 shows the same moments."""
    files = {"1": ["C:\\lab\\a.mp4", "C:\\lab\\b.mp4"], "2": ["side.mp4"]}
    events = [[101.0, "", "walk", "", ""], [105.0, "", "walk", "", ""], [104.0, "", "rear", "", ""]]
    events += [[100.5, "x", "run", "", ""]]
    observation = {"file": files, "type": "MEDIA", "time offset": 100.0, "events": events}
    observation |= {"observation time interval": [0.5, 5.5], "media_info": {"offset": {"2": 0.5}}}
    found = read_annotations(boris(tmp_path, {"o": observation}))
    rows = [(row["media"], row["class"], row.get("start"), row.get("end", row.get("instant"))) for row in found.rows]
    assert rows == [("b.mp4", "rear", None, 0), ("a.mp4", "walk", 1, 4), ("b.mp4", "walk", 0, 1)]
    assert found.unknown == [
        {"media": "a.mp4", "start": 0, "end": 0.5},
        {"media": "b.mp4", "start": 1.5, "end": 2},
    ]
    told = {each["kind"]: each for each in found.reports}
    assert told["other_view"] == {"kind": "other_view", "media": "side.mp4", "of": "a.mp4", "offset": -0.5}
    assert (told["crosses_files"]["start"], told["crosses_files"]["end"]) == (1, 5)
    assert (told["undefined_class"]["class"], told["undefined_class"]["time"]) == ("run", 0.5)


def test_moved_videos(tmp_path):
    """A video is found by its name below the folder of videos. Two of one name are reported, not guessed, unless
    more of the path tells them apart."""
    observation = {"file": {"1": ["X:/day2/a.mp4"]}, "type": "MEDIA", "events": []}
    file = boris(tmp_path, {"o": observation})
    for day in ("day1", "day2", "day3"):
        (tmp_path / "videos" / day).mkdir(parents=True)
        shutil.copy(tmp_path / "a.mp4", tmp_path / "videos" / day)
    (tmp_path / "a.mp4").unlink()
    assert [each["kind"] for each in read_annotations(file).reports] == ["missing_media"]
    assert read_annotations(file, tmp_path / "videos").paths["a.mp4"].endswith("day2/a.mp4")
    file.write_text(file.read_text().replace("day2", "day9"))
    (report,) = read_annotations(file, tmp_path / "videos").reports
    assert report["kind"] == "missing_media" and len(report["candidates"]) == 3


def test_choice_of_the_class(tmp_path):
    file, _ = place("boris_project", tmp_path)
    for class_from, label in (("code+modifier", "walk (slow)"), ("subject+code", "mouse A: walk")):
        assert label in {row["class"] for row in read_annotations(file, choices={"class_from": class_from}).rows}
    with pytest.raises(ValueError, match="class_from is 'colour'"):
        read_annotations(file, choices={"class_from": "colour"})


def test_table_that_a_spreadsheet_saved(tmp_path):
    """With semicolons, decimal commas, and the code page of Windows."""
    file, expected = place("boris_aggregated_events", tmp_path)
    text = file.read_text().replace("groom", "für")
    lines = [line.split("\t") for line in text.splitlines()]
    cells = [";".join(cell.replace(".", ",") if cell[:1].isdecimal() else cell for cell in line) for line in lines]
    (file.parent / "saved.csv").write_bytes("\r\n".join(cells).encode("cp1252"))
    rows = read_annotations(file.parent / "saved.csv").rows
    assert same(rows, [row | {"class": row["class"].replace("groom", "für")} for row in expected["rows"]])


def test_binary_tables_of_boris(tmp_path):
    """A row is of the time to the next one, and what counts to two are points."""
    encode_video(tmp_path / "trial_2.mp4", make_frames(40, 16, 16), fps=10)
    lines = [
        "time\trear\twalk\trest (den)",
        "1.0\t0\t1\t0",
        "1.5\t2\t1\t0",
        "2.0\t0\t0\t1",
        "2.5\t1\t0\t1",
        "3.0\t0\t0\t0",
    ]
    (tmp_path / "trial_2_Alice.tsv").write_text("\n".join(lines))
    found = read_annotations(tmp_path / "trial_2_Alice.tsv")
    assert found.classes == {"rear": "point", "walk": "state", "rest (den)": "state"}
    times = [(row["class"], *(row[name] for name in ("start", "end", "instant") if name in row)) for row in found.rows]
    assert sorted(times) == [("rear", 1.625), ("rear", 1.875), ("rear", 2.75), ("rest (den)", 2, 3), ("walk", 1, 2)]
    assert {row["subject"] for row in found.rows} == {"Alice"} and not found.reports
    assert [(each["start"], each["end"]) for each in found.unknown] == [(0, 1), (3.5, 4)]

    # A spreadsheet saved it, without a subject, and its last row is that of the end.
    (tmp_path / "trial_2.csv").write_text(
        "Time;walk\r\n" + "\r\n".join(f"{n / 2:.1f};1".replace(".", ",") for n in range(9))
    )
    found = read_annotations(tmp_path / "trial_2.csv")
    assert [(row["start"], row["end"], row["subject"]) for row in found.rows] == [(0, 4, "")]
    assert not found.reports and not found.unknown
    (tmp_path / "moved.csv").write_text("time,walk\n0.0,1\n1.0,0\n")
    assert [each["kind"] for each in read_annotations(tmp_path / "moved.csv").reports] == ["missing_media"]


def test_times_of_elan(tmp_path):
    """The media begins later than the annotations, a time without a value is between its neighbours, and an entity
    is refused."""
    file, _ = place("elan", tmp_path)
    text = file.read_text().replace('MIME_TYPE="video/mp4"', 'MIME_TYPE="video/mp4" TIME_ORIGIN="500"')
    text = text.replace('"ts5" TIME_VALUE="3400"', '"ts5"').replace('"ts6" TIME_VALUE="3400"', '"ts6"')
    file.write_text(text)
    found = read_annotations(file)
    times = [(row["start"], row["end"]) for row in found.rows if row["source"] == "adult_gaze"]
    assert times == [(1.5, 3.6), (3.6, 5.7), (7.5, 12)]
    assert [each["kind"] for each in found.reports].count("estimated_time") == 2
    file.write_text(
        text.replace("<ANNOTATION_DOCUMENT", '<!DOCTYPE a [<!ENTITY b SYSTEM "c">]><ANNOTATION_DOCUMENT', 1)
    )
    with pytest.raises(ValueError, match="DOCTYPE or entities"):
        read_annotations(file)


def test_several_attributes_of_via(tmp_path):
    file, _ = place("via_project", tmp_path)
    project = json.loads(file.read_text())
    project["attribute"]["3"] = {"aname": "Bird", "anchor_id": "FILE1_Z2_XY0", "type": 1, "options": {}}
    project["metadata"]["1_k3Xw9QbA"]["av"]["3"] = "blue"
    file.write_text(json.dumps(project))
    with pytest.raises(ValueError, match="'Behaviour', 'Bird'"):
        read_annotations(file)
    (row,) = (row for row in read_annotations(file, choices={"attribute": "Behaviour"}).rows if row["start"] == 0.6)
    assert (row["class"], row["modifiers"]) == ("perch", {"Bird": ["blue"]})


def test_several_classes_of_a_frame(tmp_path):
    """FERAL's labels with a 0 or 1 for each class."""
    encode_video(tmp_path / "a.mp4", make_frames(10, 16, 16), fps=10)
    content = {"class_names": {"0": "other", "1": "x", "2": "y"}, "is_multilabel": True}
    content |= {"labels": {"a.mp4": [[0, 1, int(n > 4)] for n in range(10)]}, "splits": {"train": ["a.mp4"]}}
    (tmp_path / "l.json").write_text(json.dumps(content))
    rows = read_annotations(tmp_path / "l.json").rows
    assert [(row["class"], row["start"], row["end"]) for row in rows] == [("x", 0, 1), ("y", 0.5, 1)]


def test_other_files_are_no_annotations(tmp_path):
    (tmp_path / "times.csv").write_text("path,start,end,label\na.mp4,0,1,x\n")
    with pytest.raises(ValueError, match="is no annotation file of BORIS"):
        read_annotations(tmp_path / "times.csv")
