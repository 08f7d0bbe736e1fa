"""The benchmark of run-length tokens runs, on small models."""

import runpy
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[3] / "benchmarks" / "run_length_tokens.py"


@pytest.mark.parametrize(
    ("words", "figures"),
    [
        (["--rounds", "1"], ["static camera: 12% of the tokens kept", "every patch changes: 100% of the tokens kept"]),
        (["--training"], ["share of a training", "mean accuracy", "with a plain mean"]),
    ],
)
def test_it_prints_its_figures(monkeypatch, capsys, words, figures):
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), "--smoke", "--threads", "1", *words])
    with pytest.raises(SystemExit, match="^0$"):
        runpy.run_path(str(SCRIPT), run_name="__main__")
    output = capsys.readouterr().out
    assert all(figure in output for figure in figures)
