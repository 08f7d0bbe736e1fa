"""What does not go with sharded weights is refused in a sentence, and checkpoints are recognised by their weights."""

from types import SimpleNamespace

import pytest
import torch
from torch.distributed.fsdp import StateDictType

from hf_video.training import VideoTrainer, parameter_settings
from hf_video.training.parallelism import (
    WeightsForm,
    check_saves_whole_weights,
    choose_blocks,
    form_of_checkpoint,
    prepare_sharding,
)
from tests.testing.trainers import make_arguments, make_model


@pytest.mark.parametrize(
    "options", [{"ema_decay": 0.9}, {"lora_rank": 2}, {"linear_probe": True}, {"save_on_each_node": True}]
)
def test_what_needs_whole_weights_is_refused(options, tmp_path, monkeypatch):
    [name] = options
    with pytest.raises(ValueError, match=f"{name} needs whole weights"):
        make_arguments(tmp_path, **options, fsdp=True)
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    with pytest.raises(ValueError, match=f"{name} needs whole weights"):
        make_arguments(tmp_path, **options)


def test_checkpoints_in_shards_are_refused():
    plugin = SimpleNamespace(state_dict_type=StateDictType.SHARDED_STATE_DICT)
    trainer = SimpleNamespace(accelerator=SimpleNamespace(state=SimpleNamespace(fsdp_plugin=plugin)))
    with pytest.raises(ValueError, match="SHARDED_STATE_DICT.*FULL_STATE_DICT"):
        check_saves_whole_weights(trainer)
    plugin.state_dict_type = StateDictType.FULL_STATE_DICT
    check_saves_whole_weights(trainer)


@pytest.mark.parametrize("launched", [True, False])
def test_deepspeed_on_a_cpu_is_refused(launched, tmp_path, monkeypatch):
    if launched:
        monkeypatch.setenv("ACCELERATE_USE_DEEPSPEED", "true")
    with pytest.raises(ValueError, match="DeepSpeed trains on accelerators, and this run is on the CPU"):
        make_arguments(tmp_path, deepspeed=None if launched else "settings.json")


@pytest.mark.parametrize(("stage", "gathers"), [(2, False), (3, True)])
def test_zero_3_gathers_its_weights_to_save_them(stage, gathers):
    config = {"zero_optimization": {"stage": stage, "stage3_gather_16bit_weights_on_model_save": False}}
    plugin = SimpleNamespace(hf_ds_config=SimpleNamespace(config=config))
    prepare_sharding(SimpleNamespace(deepspeed="settings.json", fsdp=None, deepspeed_plugin=plugin))
    assert config["zero_optimization"]["stage3_gather_16bit_weights_on_model_save"] is gathers


def test_a_run_goes_on_with_the_form_of_weights_that_it_had(tmp_path):
    checkpoint = tmp_path / "checkpoint-2"
    checkpoint.mkdir()
    assert form_of_checkpoint(checkpoint) is WeightsForm.WHOLE
    (checkpoint / "pytorch_model_fsdp.bin").touch()
    trainer = VideoTrainer(model=make_model(), args=make_arguments(tmp_path, eval_strategy="no", save_strategy="no"))
    assert not trainer.is_sharded
    with pytest.raises(ValueError, match="saved with FSDP, and this run has whole weights"):
        trainer.train(str(checkpoint))


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
