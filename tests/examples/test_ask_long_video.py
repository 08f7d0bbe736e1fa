"""The example learns to answer from nothing, and what it saves answers the same."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "ask_long_video.py"


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_it_answers_about_hundreds_of_frames(tmp_path):
    short = ["--short-steps", "400", "--long-steps", "30", "--test-clips", "100"]
    result = subprocess.run([sys.executable, EXAMPLE, tmp_path, *short], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    results = json.loads((tmp_path / "answers.json").read_text())
    assert results["accuracy"] >= 0.9
    assert results["the saved model answers the same"] is True
    assert results["accuracy when asked later"] >= 0.85
