"""`hf-video evaluate --against`: files of two persons, without a model."""

import json

import pytest

from hf_video.data import write_annotations
from tests.testing.videos import encode_video, make_frames

from ..data.annotations.test_readers import boris, place


def test_two_files_without_a_model(tmp_path, says, fails):
    """Of a project and a table; nobody looked before 1 s and after 9 s, and one video is in one of them alone."""
    file, _ = place("boris_project", tmp_path)
    table, output = tmp_path / "boris_project" / "mine.csv", tmp_path / "found.json"
    table.write_text("path,start,end,label\nvideos/arena_02.mp4,0,3,groom\nvideos/arena_02.mp4,5,12,walk\n")
    found = json.loads(says("evaluate", table, "--against", file, "--json", "--output", output))
    assert found == json.loads(output.read_text()) and (found["num_videos"], found["num_seconds"]) == (1, 8.0)
    assert found["classes"]["groom"]["bouts"][0] == found["classes"]["walk"]["bouts"][0] == 1
    assert "arena_01" in found["warnings"][0] and found["classes"]["walk"]["seconds"][0] == 4
    told = says("evaluate", file, "--against", file)
    assert "kappa, 1 s" in told and "\nall " in told and "1.00 [1.00, 1.00]" in told
    assert "leave --model" in fails("evaluate", table, "--against", file, "--model", "m")
    found = json.loads(says("evaluate", table, "--task", "segments", "--ground-truth", file, "--json"))
    assert (found["agreement"]["num_videos"], found["agreement"]["num_seconds"]) == (1, 8.0)


def test_classes_of_instants_are_told_apart(tmp_path, says, fails):
    rows = ["path,start,end,label", "a.mp4,1,2,walk", "a.mp4,4,4,kick", "a.mp4,6,6,kick"]
    first, second, kicks = (tmp_path / f"{name}.csv" for name in ("first", "second", "kicks"))
    first.write_text("\n".join(rows) + "\n")
    second.write_text("\n".join(rows).replace("6,6", "6.2,6.2") + "\n")
    kicks.write_text("\n".join([*rows[:1], *rows[2:]]) + "\n")
    words = ("--task", "segments", "--ground-truth", second)
    found = json.loads(says("evaluate", first, *words, "--json"))
    assert found["num_segments"] == 1 and [*found["agreement"]["classes"]] == ["walk"] == [*found["classes"]]
    assert found["points"]["f1"] == pytest.approx([0.5] * 3 + [1.0] * 7) and "kick" in found["warnings"][-1]
    told = says("evaluate", first, *words)
    assert "tolerance, s" in told and "temporal IoU" in told
    found = json.loads(says("evaluate", kicks, "--task", "segments", "--ground-truth", kicks, "--json"))
    assert found["points"]["average_map"] == 1 and found["warnings"] == [] and "agreement" not in found
    assert "2 instants" in says("evaluate", kicks, "--task", "segments", "--ground-truth", kicks)
    assert [*json.loads(says("evaluate", first, "--against", second, "--json"))["classes"]] == ["walk"]
    assert "There is no class" in fails("evaluate", kicks, "--against", kicks)


def test_predictions_in_a_project_are_what_the_model_wrote(tmp_path, says, fails):
    """Beside the ground truth, which is always a person's."""
    encode_video(tmp_path / "a.mp4", make_frames(50, 16, 16), fps=10)
    events = [[time, "fly", "walk", "", "", 0] for time in (0.0, 1.0, 3.0, 4.0)]
    project = boris(tmp_path, {"day 1": {"type": "MEDIA", "file": {"1": ["a.mp4"]}, "events": events}})
    found = tmp_path / "found.boris"
    segment = {"media": "a.mp4", "class": "walk", "start": 0.0, "end": 1.0, "score": 0.9}
    write_annotations(project, [segment], found)
    words = ("--task", "segments", "--ground-truth", found, "--json")
    for by, number in {"": 1, "model": 1, "person": 2, "all": 3}.items():
        result = json.loads(says("evaluate", found, *words, *(["--choose", f"by={by}"] if by else [])))
        assert (result["num_segments"], result["num_predictions"]) == (2, number)
    assert "--choose by=all" in fails("evaluate", project, *words)
