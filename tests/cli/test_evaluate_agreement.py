"""`hf-video evaluate --against`: files of two persons, without a model."""

import json

from ..data.annotations.test_readers import place


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
    assert found["agreement"]["num_seconds"] > 8 and found["agreement"]["num_videos"] == 2
