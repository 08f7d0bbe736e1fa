"""`hf-video detect`: files of persons and their actions, and what it refuses."""

import csv
import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from hf_video.bulk import read_detections, run
from hf_video.cli.main import main
from hf_video.inference import detect_actions
from hf_video.reading import read_video

from ..data.detection_files import write_videos
from ..training.detection_testing import ACTIONS, make_detector, make_processor


@pytest.fixture(scope="module")
def videos(tmp_path_factory):
    return write_videos(tmp_path_factory.mktemp("videos"))


@pytest.fixture(scope="module")
def detector(tmp_path_factory):
    saved = tmp_path_factory.mktemp("detector")
    for part in (make_detector(), make_processor()):
        part.save_pretrained(saved)
    return saved


@pytest.fixture
def detect(detector, capsys):
    def run(*words, threshold=0.25):
        options = ("--model", detector, "--device", "cpu", "--person-threshold", threshold)
        code = main(["detect", *map(str, (*words, *options))])
        return code, capsys.readouterr()

    return run


def test_a_file_has_what_the_function_gives(detect, videos, tmp_path):
    file = tmp_path / "a.json"
    code, printed = detect(videos / "a.mp4", "--output", file, "--action-threshold", 0, "--annotate")
    assert code == 0 and "at 3 key frames of 1 video" in printed.out
    found = json.loads(file.read_text())
    assert (found["video"], found["width"], found["height"]) == (str(videos / "a.mp4"), 64, 48)
    options = {"person_threshold": 0.25, "action_threshold": 0}
    expected = detect_actions(make_detector().eval(), make_processor(), videos / "a.mp4", **options)
    assert [frame["second"] for frame in found["key_frames"]] == [0, 1, 2]
    for frame, of_function in zip(found["key_frames"], expected, strict=True):
        assert len(frame["persons"]) == len(of_function.persons) > 0
        for person, other in zip(frame["persons"], of_function.persons, strict=True):
            assert person["box"] == pytest.approx(other.box, abs=0.01)
            assert person["actions"] == pytest.approx(other.actions, abs=1e-5)
            assert (person["track"], set(person["actions"])) == (other.track, set(ACTIONS))
    assert read_video(tmp_path / "a.annotated.mp4")[0].shape == (90, 240, 320, 3)
    code, printed = detect(videos / "a.mp4", "--output", file)
    assert code == 2 and f"{file} exists" in printed.err


def test_a_table_has_a_row_for_each_action(detect, videos, tmp_path):
    file = tmp_path / "b.csv"
    assert detect(videos / "b.mp4", "--output", file, "--action-threshold", 0, "--seconds", 0.5, 0)[0] == 0
    rows = list(csv.DictReader(file.open()))
    assert {row["second"] for row in rows} == {"0.0", "0.5"} and {row["action"] for row in rows} == set(ACTIONS)
    assert detect(videos / "b.mp4", "--output", tmp_path / "none.csv", "--action-threshold", 1)[0] == 0
    rows = list(csv.DictReader((tmp_path / "none.csv").open()))
    assert rows and {(row["action"], row["action_score"]) for row in rows} == {("", "")}


def test_a_folder_is_continued_and_never_mixed(detect, videos, tmp_path, monkeypatch):
    output, encode, calls = tmp_path / "found", run._encode, []

    def counted(task, network, values):
        calls.append(len(values))
        if len(calls) == 2:
            raise KeyboardInterrupt
        return encode(task, network, values)

    monkeypatch.setattr(run, "_encode", counted)
    words = (videos, "--output", output, "--batch-size", 3)
    code, printed = detect(*words)
    assert code == 130 and "detections of 1 of 2 videos are kept" in printed.err
    first = (output / "a.json").read_bytes()
    code, printed = detect(*words)
    assert code == 0 and "1 video done before" in printed.out and calls == [3, 2, 2]
    assert (output / "a.json").read_bytes() == first and (output / "b.json").is_file()
    code, printed = detect(*words, threshold=0.4)
    assert code == 2 and "person_threshold 0.25, not 0.4" in printed.err


def test_nobody_is_no_error(detect, videos, tmp_path):
    code, printed = detect(videos / "b.mp4", "--output", tmp_path / "b.json", threshold=1)
    assert code == 0 and "No person was found: the highest score is 0." in printed.err
    assert json.loads((tmp_path / "b.json").read_text())["key_frames"] == [
        {"second": second, "persons": []} for second in (0, 1)
    ]


def test_an_engine_writes_rows(detect, videos, tmp_path):
    assert detect(videos, "--output", tmp_path / "rows", "--engine", "local")[0] == 0
    rows = pq.read_table(tmp_path / "rows").to_pylist()
    assert {row["key"] for row in rows} == {"a", "b"}
    assert detect(videos, "--output", tmp_path / "files")[0] == 0
    by_video = read_detections(tmp_path / "rows")
    assert by_video.keys() == {str(videos / "a.mp4"), str(videos / "b.mp4")}
    for path, key_frames in by_video.items():
        expected = json.loads((tmp_path / "files" / f"{Path(path).stem}.json").read_text())["key_frames"]
        assert [frame.second for frame in key_frames] == [frame["second"] for frame in expected]
        tracks = [[each.track for each in frame.persons] for frame in key_frames]
        assert tracks == [[each["track"] for each in frame["persons"]] for frame in expected] and any(tracks)
    persons = [person for row in rows for person in row["persons"]]
    assert persons and all(0 <= each["x1"] <= each["x2"] <= 1 and each["score"] >= 0.25 for each in persons)
    assert detect(videos, "--output", tmp_path / "none", "--engine", "local", threshold=1)[0] == 0
    rows = pq.read_table(tmp_path / "none").to_pylist()
    assert {row["key"] for row in rows} == {"a", "b"}
    assert all(row["persons"] == [] and row["error"] is None for row in rows)


def test_what_is_refused(detect, videos, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "mine.txt").touch()
    for words, named in (
        (["--output", "found.json"], "is a file for one video, not 2"),
        (["--output", "files"], "has other files"),
        (["--output", "found", "--engine", "local", "--annotate"], "without --annotate"),
        (["--output", "found", "--every", "2", "--seconds", "1"], "--every 2 has no effect"),
    ):
        code, printed = detect(videos, *words)
        assert code == 2 and named in printed.err
    assert [path.name for path in (tmp_path / "files").iterdir()] == ["mine.txt"]
