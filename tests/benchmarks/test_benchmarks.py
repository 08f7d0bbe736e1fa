"""The scripts of `benchmarks/` say what they measure, run on small inputs, and print no ratio of wrong outputs."""

import argparse
import importlib
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"
SCRIPTS = sorted(path.name for path in FOLDER.glob("*.py"))
# Statements that make outputs wrong which a script compares before it prints how the times compare.
DRIFT = """
import itertools, torch
calls, linear = itertools.count(), torch.nn.Linear.forward
torch.nn.Linear.forward = lambda self, x: linear(self, x) * (1 + 0.1 * next(calls))
"""
WRONG_OUTPUTS = {
    **dict.fromkeys(("extract.py", "gpu.py", "int8.py", "training.py", "videomamba_lengths.py", "videovit.py"), DRIFT),
    "bulk.py": "import numpy; load = numpy.load; numpy.load = lambda *words: load(*words) + 1",
    "reading.py": "import hf_video.reading as p; read = p.read_video; "
    "p.read_video = lambda *words: (read(*words)[0] + 1, None)",
}


@pytest.fixture
def helper(monkeypatch):
    monkeypatch.syspath_prepend(FOLDER)
    return importlib.import_module


def run(name: str, before: str = "") -> subprocess.CompletedProcess[str]:
    """Runs a script on small inputs as `python SCRIPT --smoke` does, after the statements `before`."""
    words = [str(FOLDER / name), "--smoke"]
    start = f"import runpy, sys; sys.path[0] = {str(FOLDER)!r}; sys.argv = {words}"
    program = f"{before}\n{start}\nrunpy.run_path(sys.argv[0], run_name='__main__')"
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": ""}
    return subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)


def test_their_helps_say_what_they_measure_and_how_long_it_takes(helper, monkeypatch, capsys):
    for name in SCRIPTS:
        monkeypatch.setattr(sys, "argv", [str(FOLDER / name), "--help"])
        with pytest.raises(SystemExit) as end:
            runpy.run_path(str(FOLDER / name), run_name="__main__")
        said = capsys.readouterr().out
        assert not end.value.code and "--smoke" in said and f"python benchmarks/{name}" in said, name
        assert re.search(r"\b(second|minute)s?\b", said), name


@pytest.mark.slow
@pytest.mark.parametrize("name", SCRIPTS)
def test_it_runs_on_small_inputs(name):
    completed = run(name)
    assert not completed.returncode and completed.stdout, completed.stderr


@pytest.mark.slow
@pytest.mark.parametrize("name", WRONG_OUTPUTS)
def test_it_prints_no_ratio_for_wrong_outputs(name):
    completed = run(name, before=WRONG_OUTPUTS[name])
    assert completed.returncode == 1 and "Traceback" not in completed.stderr, completed.stderr
    assert "ratio |" not in completed.stdout


def test_outputs_that_differ_or_are_no_numbers_end_a_script(helper):
    require_agreement = helper("helpers.measurement").require_agreement
    require_agreement("Logits", 1e-4, 1e-3)
    for difference in (1e-2, float("nan")):
        with pytest.raises(SystemExit, match="Logits"):
            require_agreement("Logits", difference, 1e-3)


def test_held_out_captions_have_words_of_the_training(helper):
    train, test = helper("video_text").split_scenes()
    captions = [{scene.caption for scene in scenes} for scenes in (train, test)]
    assert [len(each) for each in captions] == [1080, 200] and not captions[0] & captions[1]
    words = [{word for caption in each for word in caption.split()} for each in captions]
    assert words[1] <= words[0]


def test_a_plan_is_as_fast_as_its_slowest_stage(helper):
    plan = helper("scale_plan")
    given = argparse.Namespace(gpus=2, cores=10, network=8.0, gpu_price=3.6)
    for cost, found in (((0.05, 2e5), (100, "GPUs")), ((0.2, 2e5), (50, "decoding")), ((0.05, 2e7), (50, "network"))):
        speed, limit, dollars = plan.plan(plan.ClipCost(*cost), 50, given)
        assert (speed, limit) == (pytest.approx(found[0]), found[1])
        assert dollars == pytest.approx(2e3 / found[0])


def test_what_is_slower_than_its_limit_or_its_peer_is_told(helper):
    gpu = helper("gpu")
    rows = [
        *(
            gpu.Row("8 frames, forward", name, time, 10.0)
            for name, time in (("VideoViT-B", 22.0), ("VideoMAE-B", 20.0))
        ),
        gpu.Row("8 frames, forward", "VideoMamba-M", 45.0, 10.0),
        *(gpu.Row("scan", name, time, 1.0) for name, time in (("triton", 3.0), ("mamba_ssm", 2.0))),
        gpu.Row("scan", "kernels", note="cannot run"),
    ]
    slow = gpu.find_slow(rows)
    assert len(slow) == 3 and all(
        f"{time:.2f} times as long as" in line for time, line in zip((1.1, 4.5, 1.5), slow, strict=True)
    )
    assert gpu.find_slow(rows[1:2]) == gpu.find_slow(rows[5:]) == []


def test_lines_are_counted_by_room(helper, tmp_path):
    structure = helper("structure")
    files = {
        "hf_video/cli/run.py": "from ..data import clips\n\n\ndef run():\n    '''Runs.'''\n    # now\n    return 1\n",
        "hf_video/models/one/modeling_one.py": (
            "from .plain import x\n\n\nclass VideoViTForVideoClassification(A):\n    y = x\n"
        ),
        "hf_video/models/one/plain.py": "scan = [\n    1,\n]\n",
        "tests/test_run.py": "\n\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    figures = structure.describe(tmp_path)
    assert figures["package"] == "3 files, 15 lines" and figures["tests"] == "1 files, 2 lines"
    assert figures["lines of code in the package"] == "9"
    assert (figures["  hf_video/cli"], figures["  hf_video/models/one"]) == ("7", "8")
    assert figures["travels with a VideoViT"] == "2 files, 8 lines"
    with pytest.raises(SystemExit):
        structure.describe(tmp_path / "tests")
