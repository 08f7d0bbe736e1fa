import json
import re

import pytest

from hf_video.cli.main import main


def entry(label, start, end, **others):
    return {"label": label, "segment": [start, end], **others}


@pytest.fixture
def files(tmp_path):
    """Predictions and ground truth: one of two dives is found, and one of one run, less well."""
    predictions, truth = tmp_path / "predictions.json", tmp_path / "truth.json"
    found = [entry("dive", 0, 10, score=0.9), entry("run", 20, 26, score=0.8)]
    predictions.write_text(json.dumps({"version": "1", "results": {"a": found}, "external_data": {}}))
    known = [entry("dive", 0, 10), entry("dive", 30, 40), entry("run", 20, 30)]
    database = {
        "a": {"subset": "test", "duration": 60, "annotations": known},
        "b": {"subset": "training", "duration": 60, "annotations": [entry("run", 0, 5)]},
    }
    truth.write_text(json.dumps({"database": database}))
    return [str(predictions), "--task", "segments", "--ground-truth", str(truth)]


def test_a_table_for_people(files, capsys):
    assert main(["evaluate", *files, "--subset", "test", "--tiou", "0.5", "0.7"]) == 0
    out, err = capsys.readouterr()
    lines = [re.split(r"  +", line.strip()) for line in out.splitlines()]
    assert lines[0] == ["3 segments of 2 classes in 1 videos, 2 predictions"]
    # dive: one of two, 50%. run: IoU 0.6.
    assert ["temporal IoU", "0.50", "0.70", "mean"] in lines
    assert ["average precision", "75.0%", "25.0%", "50.0%"] in lines
    assert ["recall", "66.7%", "33.3%"] in lines and ["precision", "100.0%", "50.0%"] in lines
    assert ["F1", "80.0%", "40.0%"] in lines
    assert ["median border error", "0.00 s", "0.00 s"] in lines
    assert ["dive", "50.0%", "50.0%", "2"] in lines and ["run", "100.0%", "0.0%", "1"] in lines
    assert err == ""


def test_json_on_stdout_and_in_a_file_and_warnings_on_stderr(files, tmp_path, capsys):
    output = tmp_path / "figures.json"
    assert main(["evaluate", *files, "--json", "--output", str(output)]) == 0
    out, err = capsys.readouterr()
    result = json.loads(out)
    assert result == json.loads(output.read_text())
    assert result["tious"] == [0.3, 0.4, 0.5, 0.6, 0.7] and result["num_segments"] == 4
    assert result["classes"]["run"]["average_precision"] == [0.5, 0.5, 0.5, 0.5, 0]
    assert err == "warning: 1 of 2 videos have no predictions ('b').\n"


def test_mistakes_are_sentences(files, tmp_path, fails):
    assert "a ground truth has `database`" in fails("evaluate", *files[:-1], files[0])
    assert "does not exist" in fails("evaluate", tmp_path / "none.json", *files[1:])
    assert "no video of the subset 'validation'" in fails("evaluate", *files, "--subset", "validation")
    assert "needs --ground-truth" in fails("evaluate", files[0], "--task", "segments")
    assert "no effect without task=segments" in fails("evaluate", files[0], "--model", "m", "--subset", "test")
    assert "above 0 and up to 1" in fails("evaluate", *files, "--tiou", "50")
