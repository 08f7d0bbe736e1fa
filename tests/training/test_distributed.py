"""One and two processes on a CPU: the same losses and the same predictions."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.testing.processes import launched, run_forked

from . import distributed_run

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def one(tmp_path_factory):
    """What this process finds, by task."""
    return distributed_run.run(tmp_path_factory.mktemp("one"), 1)


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """What two processes find, by task."""
    folder = tmp_path_factory.mktemp("two")
    processes = run_forked(*launched([Path(__file__).with_name("distributed_run.py"), folder], 2))
    assert not any(each.returncode for each in processes), [each.stderr[-20000:] for each in processes]
    return json.loads((folder / "result.json").read_text())


@pytest.mark.parametrize("task", ["plain", "balanced", "distilled"])
def test_two_processes_have_the_losses_of_one(task, one, two):
    assert len(one[task]) == distributed_run.NUM_STEPS and len(set(one[task])) > 1
    np.testing.assert_allclose(two[task], one[task], rtol=0, atol=1e-4)


def test_gathered_negatives_have_the_gradients_of_one_process_with_the_whole_batch(one, two):
    one, two = one["gathered_negatives"], two["gathered_negatives"]
    expected = one["False"]["gradients"]
    assert len(expected) > 20 and "temperature" in expected
    for original in ("False", "True"):
        assert two[original]["loss"] == pytest.approx(one["False"]["loss"], rel=1e-12)
        assert two[original]["gradients"].keys() == expected.keys()
        for name, gradient in two[original]["gradients"].items():
            # The original recipe divides the gradients of the encoders by the number of processes.
            factor = 0.5 if original == "True" and name != "temperature" else 1
            np.testing.assert_allclose(gradient, factor * np.array(expected[name]), rtol=1e-6, atol=1e-12)


def test_persons_count_alike_in_all_processes_and_batches(one, two):
    one, two = one["detected"], two["detected"]
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


def test_frames_count_alike_in_all_processes(one, two):
    assert len({*one["framewise"]["loss"]}) > 1
    for name, values in one["framewise"].items():
        np.testing.assert_allclose(two["framewise"][name], values, rtol=1e-4, err_msg=name)


def test_a_parameter_that_nothing_uses_is_named_in_an_error(one, two):
    assert "set ddp_find_unused_parameters=true" in two["unused"] and not one["unused"]


def test_a_ragged_last_batch_is_gathered_right(one, two):
    one, two = one["ragged_evaluation"], two["ragged_evaluation"]
    assert two["labels"] == one["labels"] == [index % 2 for index in range(7)]
    np.testing.assert_allclose(two["predictions"], one["predictions"], rtol=1e-5, atol=1e-6)
    expected = torch.nn.functional.cross_entropy(torch.tensor(one["predictions"]), torch.tensor(one["labels"]))
    assert two["loss"] == pytest.approx(one["loss"]) == pytest.approx(expected.item())
