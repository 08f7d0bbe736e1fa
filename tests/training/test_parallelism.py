"""One and two processes on a CPU: the same losses and the same predictions. Sharded weights: what is refused."""

import json
import shutil
from collections import Counter
from itertools import chain
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.distributed.fsdp import StateDictType

from hf_video.training import parameter_settings
from hf_video.training.parallelism import (
    check_plan,
    check_saves_whole_weights,
    choose_blocks,
    prepare_sharding,
)
from tests.testing.processes import launched, run_forked
from tests.testing.trainers import make_arguments, make_model

from . import distributed_run


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
    for name in ("loss", "mean_ap"):
        assert two[name] == pytest.approx(one[name])


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


def run_resumed(root, folder, num_processes, seen, *checkpoint):
    """Runs `resumed_run.py`; returns how often each clip was seen by epoch and row, and what was printed."""
    words = [Path(__file__).with_name("resumed_run.py"), folder, root / seen, *checkpoint]
    processes = run_forked(*launched(words, num_processes))
    assert not any(each.returncode for each in processes), [each.stderr[-5000:] for each in processes]
    found = [json.loads((root / f"{seen}_{each}.json").read_text()) for each in range(num_processes)]
    return Counter(map(tuple, chain(*found))), "".join(each.stdout for each in processes)


@pytest.mark.parametrize(
    ("before", "then"), [(2, 1), *(pytest.param(*each, marks=pytest.mark.slow) for each in ((1, 2), (2, 3)))]
)
def test_an_epoch_goes_on_in_its_order_on_another_number_of_processes(before, then, tmp_path):
    whole, said = run_resumed(tmp_path, tmp_path / "whole", before, "seen")
    assert "go on" not in said and len(whole) == 48 and set(whole.values()) == {1}
    # Step 3 of 4 is the first of the second epoch.
    checkpoint = shutil.copytree(tmp_path / "whole" / "checkpoint-3", tmp_path / "resumed" / "checkpoint-3")
    rest, said = run_resumed(tmp_path, checkpoint.parent, then, "seen_then", checkpoint)
    assert said.count(f"checkpoint-3 has the state of {before} processes, and {then} go on") == 1
    assert len(rest) == 12 and set(rest.values()) == {1} and rest <= whole
    losses, expected = (
        [each["loss"] for each in json.loads((run / "checkpoint-4/trainer_state.json").read_text())["log_history"]]
        for run in (checkpoint.parent, tmp_path / "whole")
    )
    np.testing.assert_allclose(losses, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("options", [{"lora_rank": 2}, {"linear_probe": True}])
def test_what_needs_whole_weights_is_refused(options, tmp_path, monkeypatch):
    [name] = options
    with pytest.raises(ValueError, match=f"{name} needs whole weights"):
        make_arguments(tmp_path, **options, fsdp=True)
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    with pytest.raises(ValueError, match=f"{name} needs whole weights"):
        make_arguments(tmp_path, **options)


def test_checkpoints_in_shards_are_refused():
    plugin = SimpleNamespace(state_dict_type=StateDictType.SHARDED_STATE_DICT, fsdp_version=2)
    state, args = SimpleNamespace(fsdp_plugin=plugin), SimpleNamespace(ema_decay=0.9)
    trainer = SimpleNamespace(accelerator=SimpleNamespace(state=state), args=args)
    with pytest.raises(ValueError, match="SHARDED_STATE_DICT.*FULL_STATE_DICT"):
        check_saves_whole_weights(trainer)
    plugin.state_dict_type = StateDictType.FULL_STATE_DICT
    check_saves_whole_weights(trainer)
    plugin.fsdp_version = 1
    with pytest.raises(ValueError, match="ema_decay needs FSDP2"):
        check_saves_whole_weights(trainer)


def test_deepspeed_averages_no_weights(monkeypatch):
    monkeypatch.setenv("ACCELERATE_USE_DEEPSPEED", "true")
    with pytest.raises(ValueError, match="ema_decay needs whole weights .* leave it out with deepspeed"):
        check_plan({"ema_decay": 0.9})


@pytest.mark.parametrize(("stage", "gathers"), [(2, False), (3, True)])
def test_zero_3_gathers_its_weights_to_save_them(stage, gathers):
    config = {"zero_optimization": {"stage": stage, "stage3_gather_16bit_weights_on_model_save": False}}
    plugin = SimpleNamespace(hf_ds_config=SimpleNamespace(config=config))
    prepare_sharding(SimpleNamespace(deepspeed="settings.json", fsdp=None, deepspeed_plugin=plugin))
    assert config["zero_optimization"]["stage3_gather_16bit_weights_on_model_save"] is gathers


def test_blocks_that_a_model_leaves_out_are_not_sharded():
    model = make_model()
    model._no_split_modules = {"VideoViTLayer", "LayerOfAnotherPart"}
    plugin = SimpleNamespace(transformer_cls_names_to_wrap=None)
    trainer = SimpleNamespace(model=model, accelerator=SimpleNamespace(state=SimpleNamespace(fsdp_plugin=plugin)))
    choose_blocks(trainer)
    assert plugin.transformer_cls_names_to_wrap == ["VideoViTLayer"]
    plugin.transformer_cls_names_to_wrap = ["VideoViTMLP"]
    choose_blocks(trainer)
    assert plugin.transformer_cls_names_to_wrap == ["VideoViTMLP"]


def test_the_shape_of_an_emptied_parameter_decides_on_its_weight_decay():
    model = make_model()
    whole = parameter_settings(model, weight_decay=0.1)
    for weight in model.parameters():
        weight.ds_shape = weight.shape
        weight.data = torch.empty(0)
    assert parameter_settings(model, weight_decay=0.1) == whole
    assert len({setting.weight_decay for setting in whole.values()}) == 2
