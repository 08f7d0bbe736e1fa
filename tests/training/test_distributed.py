"""One and two processes on a CPU: the same losses, the same predictions, and sharded weights that load anywhere."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from transformers import AutoModelForVideoClassification

from hf_video.data import collate_clips

from ..fork_server import HF_VIDEO_IMPORTS, Program, run_forked
from ..process_group import free_port, torchrun_variables
from .distributed_run import NUM_STEPS
from .tiny import RandomClips, weights_of

ROOT = Path(__file__).parents[2]


def run(task, folder, num_processes, launcher=()):
    """Runs a task with a launcher, or in processes with the variables that torchrun gives them."""
    folder.mkdir()
    words = [str(Path(__file__).with_name("distributed_run.py")), task, str(folder), str(num_processes)]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "PYTHONFAULTHANDLER": "1"}
    if launcher:
        command = [sys.executable, "-m", *launcher, *words]
        finished = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=400)
        assert finished.returncode == 0, finished.stderr[-20000:]
    else:
        variables = torchrun_variables(num_processes) if num_processes > 1 else [{}]
        programs = (Program(words, environment | each) for each in variables)
        processes = run_forked(*programs, timeout=400, imports=HF_VIDEO_IMPORTS)
        assert not any(each.returncode for each in processes), [each.stderr[-20000:] for each in processes]
    result = json.loads((folder / "result.json").read_text())
    assert result["world_size"] == num_processes
    return result


@pytest.mark.parametrize("task", ["loss_curve", "balanced", pytest.param("distilled", marks=pytest.mark.slow)])
def test_two_processes_have_the_loss_curve_of_one(task, tmp_path):
    one = run(task, tmp_path / "one", 1)["losses"]
    result = run(task, tmp_path / "two", 2)
    two = result["losses"]
    assert not result["looks_for_unused"]
    assert len(one) == len(two) == NUM_STEPS
    assert len(set(one)) > 1
    np.testing.assert_allclose(two, one, rtol=0, atol=1e-4)


def test_gathered_negatives_have_the_gradients_of_one_process_with_the_whole_batch(tmp_path):
    one, two = (run("gathered_negatives", tmp_path / str(number), number) for number in (1, 2))
    expected = one["False"]["gradients"]
    assert len(expected) > 20 and "temperature" in expected
    for original in ("False", "True"):
        assert two[original]["loss"] == pytest.approx(one["False"]["loss"], rel=1e-12)
        assert two[original]["gradients"].keys() == expected.keys()
        for name, gradient in two[original]["gradients"].items():
            # The original recipe divides the gradients of the encoders by the number of processes.
            factor = 0.5 if original == "True" and name != "temperature" else 1
            np.testing.assert_allclose(gradient, factor * np.array(expected[name]), rtol=1e-6, atol=1e-12)


def test_persons_count_alike_in_all_processes_and_batches(tmp_path):
    one, two = (run("detected", tmp_path / str(number), number) for number in (1, 2))
    expected = one["1"]
    assert len(expected["gradients"]) > 100
    for found in (one["2"], two["1"], two["2"]):
        for name in ("loss", "loss_ce", "loss_bbox", "loss_giou", "loss_bce", "grad_norm"):
            assert found["log"][name] == pytest.approx(expected["log"][name], rel=1e-6)
        assert found["gradients"].keys() == expected["gradients"].keys()
        for name, gradient in found["gradients"].items():
            np.testing.assert_allclose(gradient, expected["gradients"][name], rtol=1e-6, atol=1e-9)
    predictions = np.array(one["predictions"])
    assert len(predictions) == 7 and len({*(predictions[..., 0] == -100).sum(axis=1)}) > 1
    np.testing.assert_allclose(two["predictions"], predictions, rtol=1e-5, atol=1e-6)
    assert two["mean_ap"] == pytest.approx(one["mean_ap"])


@pytest.mark.slow
def test_frames_count_alike_in_all_processes_with_and_without_carried_states(tmp_path):
    one, two = (run("framewise", tmp_path / str(number), number) for number in (1, 2))
    for carry_state in ("False", "True"):
        assert len({*one[carry_state]["loss"]}) > 1
        for name, values in one[carry_state].items():
            np.testing.assert_allclose(two[carry_state][name], values, rtol=1e-4, err_msg=f"{name} {carry_state}")


@pytest.mark.slow
def test_carried_states_are_those_of_a_run_that_was_not_stopped_however_processes_share_a_batch(tmp_path):
    one, two = (run("resumed_states", tmp_path / name, number) for number, name in ((1, "one"), (2, "two")))
    expected = one["results"]["split=False dispatch=False"]["losses"][0]
    assert len({*expected}) > 2
    for found in (one, two):
        assert len(found["results"]) == 3
        for name, each in found["results"].items():
            np.testing.assert_allclose(each["losses"], [expected] * 3, rtol=1e-4, err_msg=name)
            assert each["is_same"], name
    assert not one["refusal"] and "would see clips again" in two["refusal"]


@pytest.mark.slow
def test_a_parameter_that_nothing_uses_is_looked_for_or_named_in_an_error(tmp_path):
    result = run("unused", tmp_path / "out", 2)
    assert result["None False"] is True
    assert result["None True"] is True
    assert "set ddp_find_unused_parameters=true" in result["False False"]


def test_a_ragged_last_batch_is_gathered_right(tmp_path):
    one, two = (run("ragged_evaluation", tmp_path / str(number), number) for number in (1, 2))
    assert two["labels"] == one["labels"] == [index % 2 for index in range(7)]
    np.testing.assert_allclose(two["predictions"], one["predictions"], rtol=1e-5, atol=1e-6)
    expected = torch.nn.functional.cross_entropy(torch.tensor(one["predictions"]), torch.tensor(one["labels"]))
    assert two["loss"] == pytest.approx(one["loss"]) == pytest.approx(expected.item())


@pytest.mark.slow  # `tests/cli/test_sharded_training.py` has a quick training in shards, with its weights saved whole
def test_sharded_weights_are_saved_whole(tmp_path):
    config = yaml.safe_load((ROOT / "recipes" / "accelerate" / "fsdp2.yaml").read_text())
    config |= {"use_cpu": True, "num_processes": 2, "mixed_precision": "no", "main_process_port": int(free_port())}
    (tmp_path / "cpu.yaml").write_text(yaml.safe_dump(config))
    launcher = ["accelerate.commands.launch", "--config_file", str(tmp_path / "cpu.yaml")]
    result = run("sharded", tmp_path / "out", 2, launcher)
    assert result["weights"] == ["DTensor"]
    model = AutoModelForVideoClassification.from_pretrained(tmp_path / "out").eval()
    batch = collate_clips([RandomClips(7)[index] for index in range(7)])
    with torch.no_grad():
        logits = model(batch["pixel_values"]).logits
    np.testing.assert_allclose(logits.numpy(), result["predictions"], rtol=1e-4, atol=1e-5)
    assert all(torch.isfinite(weight).all() for weight in weights_of(model).values())
