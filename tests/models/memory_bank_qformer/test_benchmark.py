"""The benchmark of memories runs, on a small model."""

import runpy
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[3] / "benchmarks" / "memory_bank.py"


def test_it_measures_what_a_call_that_can_be_undone_costs(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), "--smoke", "--threads", "1"])
    runpy.run_path(str(SCRIPT), run_name="__main__")
    output = capsys.readouterr().out
    assert "kept" in output and "can be undone" in output and "MiB" in output
