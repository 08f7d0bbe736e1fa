"""`hf-video timeline` writes what it found for the tool of the person: a new project, or a copy of the person's."""

import json
from pathlib import Path

import pytest

from hf_video.data import read_annotations

from ..data.annotations.test_readers import boris
from .test_timeline_command import model_folder, run, sees_light, video  # noqa: F401

NEW = {"boris": "segments.boris", "eaf": "segments.eaf", "via": "segments.via.json"}


@pytest.mark.parametrize("words", [*NEW, "vtt", "csv"])
def test_formats(model_folder, video, sees_light, tmp_path, words):  # noqa: F811
    folder = tmp_path / "found"
    assert run(model_folder, video, "--background", "dark", "--output", folder, "--format", words) == 0
    files = {each.name for each in folder.iterdir()}
    always = {"segments.csv", "segments.json", "scores.parquet", "timeline.png"}
    assert files == always | {NEW.get(words, f"segments.{words}")}
    if words in NEW:
        (row,) = read_annotations(folder / NEW[words]).rows
        (line,) = json.loads((folder / "segments.json").read_text())["results"]["flash"]
        assert [row["start"], row["end"]] == pytest.approx(line["segment"], abs=1e-3) and row["class"] == "bright"


def test_a_copy_of_the_project_of_the_person(model_folder, video, sees_light, tmp_path):  # noqa: F811
    events = [[100.5, "fly", "walk", "", "", 15], [101.0, "fly", "walk", "", "", 30]]
    observation = {"type": "MEDIA", "file": {"1": ["D:\\lab\\flash.mp4"]}, "events": events, "time offset": 100.0}
    project = boris(tmp_path, {"day 1": observation})
    before, folder = project.read_bytes(), tmp_path / "found"
    words = ["--background", "dark", "--output", folder, "--annotations", project]
    assert run(model_folder, video, *words) == 0
    assert project.read_bytes() == before and (folder / "segments.vtt").exists()
    rows = read_annotations(folder / "p.boris", Path(video).parent).rows
    assert [(row["source"], row["class"]) for row in rows] == [("day 1", "walk"), ("day 1 (model)", "bright")]
    assert json.loads((folder / "p.boris").read_text())["observations"]["day 1"] == observation


def test_what_cannot_be_written_is_refused_before_the_model_is_loaded(
    model_folder,  # noqa: F811
    video,  # noqa: F811
    tmp_path,
    capsys,
    monkeypatch,
):
    monkeypatch.delattr("hf_video.inference.timeline.load_trained_model")
    project, folder = boris(tmp_path, {}), tmp_path / "found"
    for words, message in (
        (["--format", "eaf"], "need --output DIR"),
        (["--output", folder, "--annotations", project], "has no observation of flash.mp4"),
        (["--output", folder, "--annotations", tmp_path / "no.eaf"], "no.eaf"),
    ):
        assert run(model_folder, video, *words) == 2
        assert message in capsys.readouterr().err and not folder.exists()
    assert run(model_folder, "rtsp://host/live", "--output", folder, "--format", "via") == 2
    assert "and a video file on this machine" in capsys.readouterr().err
