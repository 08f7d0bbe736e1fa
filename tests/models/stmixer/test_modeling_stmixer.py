"""STMixerForActionDetection: backbones, sizes, precision, storage, initial weights, and that it learns."""

import copy
import math

import pytest
import torch
from huggingface_hub.errors import StrictDataclassError
from transformers import AutoModelForObjectDetection

from hf_video import STMixerConfig, STMixerForActionDetection

from .stmixer_testing import BACKBONE, make, random_clips, random_labels, tiny_config

NAMES = ("logits", "action_logits", "pred_boxes")
MAMBA = {"model_type": "videomamba", "num_frames": 2, "image_size": 32, "patch_size": 16, "hidden_size": 16}
MAMBA |= {"num_hidden_layers": 1, "state_size": 4}


def test_a_model_is_saved_and_loaded_by_its_auto_class(tmp_path):
    model, clips = make(), random_clips()
    model.save_pretrained(tmp_path)
    loaded, loading = AutoModelForObjectDetection.from_pretrained(tmp_path, output_loading_info=True)
    assert type(loaded) is STMixerForActionDetection and not any(loading.values())
    with torch.no_grad():
        outputs, expected = loaded(clips), model.eval()(clips)
    for name in NAMES:
        torch.testing.assert_close(outputs[name], expected[name])
    assert len(outputs.auxiliary_outputs) == 1 and outputs.loss is None
    assert isinstance(model(clips, return_dict=False), tuple)


def test_the_choice_of_attention_is_that_of_the_backbone(tmp_path):
    make().save_pretrained(tmp_path)
    for given, expected in ((None, "sdpa"), ({"backbone_config": "eager"}, "eager")):
        loaded = AutoModelForObjectDetection.from_pretrained(tmp_path, attn_implementation=given)
        assert loaded.backbone.config._attn_implementation == expected
    with pytest.raises(ValueError, match="does not support"):
        AutoModelForObjectDetection.from_pretrained(tmp_path, attn_implementation="flex_attention")


def test_boxes_start_with_the_frame_before_padding():
    torch.manual_seed(0)
    model, clips = STMixerForActionDetection(tiny_config()), random_clips()
    sizes = torch.tensor([[30, 50], [32, 64]])
    with torch.no_grad():
        boxes = model(clips, original_sizes=sizes).pred_boxes
        torch.testing.assert_close(boxes[:, 0], torch.tensor([[0.0, 0.0, 50.0, 30.0], [0.0, 0.0, 64.0, 32.0]]))
        torch.testing.assert_close(model(clips).pred_boxes[:, 0], torch.tensor([[0.0, 0.0, 64.0, 32.0]] * 2))


def test_another_backbone_and_another_patch_size():
    clips, labels = random_clips(), random_labels(1, 2)
    mamba = make(backbone_config=MAMBA, num_temporal_points=4)
    mamba(clips, labels=labels).loss.backward()
    assert all(parameter.grad is not None for parameter in mamba.backbone.parameters())
    small = make(backbone_config=BACKBONE | {"patch_size": 8})
    assert small.config.strides == [2, 4, 8, 16] and tiny_config().strides == [4, 8, 16, 32]
    assert STMixerConfig.from_dict(small.config.to_dict()).strides == [2, 4, 8, 16]
    small(clips, labels=labels).loss.backward()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"hidden_size": 20, "num_groups": 2}, "multiple of 8"),
        ({"num_groups": 3}, "multiple of `num_groups`"),
        ({"num_attention_heads": 5}, "multiple of `num_attention_heads`"),
        ({"num_queries": 0}, "`num_queries` must be at least 1"),
        ({"num_ffn_layers": 1}, "`num_ffn_layers` must be at least 2"),
        ({"strides": [4, 8]}, "`strides` must be 4 numbers"),
        ({"loss_weights": {"vtc": 1.0}}, "`loss_weights` must give ce, bbox, giou, bce"),
        ({"match_weights": {"class": -1.0}}, "`match_weights` must give class"),
        ({"backbone_config": BACKBONE | {"patch_size": [8, 16]}}, "square patches"),
    ],
)
def test_values_that_contradict_each_other_are_refused(settings, message):
    with pytest.raises((ValueError, StrictDataclassError), match=message):
        tiny_config(**settings)


def test_initial_weights_are_those_of_the_original():
    torch.manual_seed(0)
    model = STMixerForActionDetection(tiny_config(num_queries=100, hidden_size=64, num_spatial_points=32))
    assert model.spatial_queries.weight.std().item() == pytest.approx(1, abs=0.05)
    layer = model.layers[1]
    assert (layer.action_head.output.bias + math.log(99)).abs().max() < 1e-6
    zeros = [layer.box_head.output.weight, layer.box_head.output.bias, layer.offset_generator.weight]
    zeros += [layer.spatial.mixing.parameter_generator.weight, layer.temporal.mixing.parameter_generator.weight]
    zeros += [layer.spatial.attention.qkv.bias, layer.temporal.attention.o_proj.bias]
    assert not any(parameter.any() for parameter in zeros)
    x, y, level = layer.offset_generator.bias.view(-1, 3).T
    assert not level.any() and x.std().item() == pytest.approx(1 / 12**0.5, abs=0.05) and y.abs().max() <= 0.5
    assert 0 <= layer.iof_tau.min() and layer.iof_tau.max() <= 4 and len(set(layer.iof_tau.tolist())) > 1
    # Glorot's uniform distribution, and PyTorch's own of convolutions and biases.
    qkv, branch = layer.spatial.attention.qkv.weight, model.lateral_branches[0]
    assert qkv.abs().max().item() == pytest.approx((6 / (64 + 192)) ** 0.5, rel=0.02)
    assert layer.spatial.mixing.parameter_generator.bias.abs().max().item() == pytest.approx(1 / 64**0.5, rel=0.02)
    assert branch[-1].weight.abs().max().item() == pytest.approx((64 * 27) ** -0.5, rel=0.02)
    assert (branch[1].weight == 1).all() and not branch[1].bias.any()


def test_half_precision_keeps_boxes_and_losses_in_float32(tmp_path):
    model, clips, labels = make().eval(), random_clips(), random_labels(2, 1)
    model.save_pretrained(tmp_path)
    half = AutoModelForObjectDetection.from_pretrained(tmp_path, dtype=torch.bfloat16)
    assert half.layers[0].iof_tau.dtype == torch.float32 and half.spatial_queries.weight.dtype == torch.bfloat16
    with torch.no_grad():
        expected = model(clips, labels=labels)
        outputs = half(clips.bfloat16(), labels=labels)
        with torch.autocast("cpu", torch.bfloat16):
            mixed = model(clips, labels=labels)
    for actual in (outputs, mixed):
        assert actual.pred_boxes.dtype == actual.loss.dtype == torch.float32
        assert actual.logits.dtype == torch.bfloat16
        torch.testing.assert_close(actual.loss, expected.loss, atol=0, rtol=0.03)
        assert (actual.pred_boxes - expected.pred_boxes).abs().mean() < 0.5


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_layers_and_backbone_are_recomputed_with_the_same_gradients(use_reentrant):
    model, clips, labels = make().train(), random_clips(), random_labels(2, 1)
    checkpointed, runs = copy.deepcopy(model), []
    checkpointed.activation_checkpointing_enable({"use_reentrant": use_reentrant})
    for module in (checkpointed.layers[0].box_head, checkpointed.backbone.videovit.layers[0].attention):
        module.register_forward_hook(lambda module, *_: runs.append(type(module)))
    for each in (model, checkpointed):
        each(clips, labels=labels).loss.backward()
    assert len(runs) == 4
    for (name, old), new in zip(model.named_parameters(), checkpointed.parameters(), strict=True):
        torch.testing.assert_close(new.grad, old.grad, msg=name)


def test_another_number_of_actions_gets_new_heads_alone(tmp_path):
    model = make()
    model.save_pretrained(tmp_path)
    loaded = AutoModelForObjectDetection.from_pretrained(
        tmp_path, id2label={0: "run", 1: "sit"}, label2id={"run": 0, "sit": 1}, ignore_mismatched_sizes=True
    )
    assert loaded.config.num_labels == 2
    assert loaded(random_clips()).action_logits.shape == (2, 6, 2)
    for name, parameter in loaded.named_parameters():
        if ".action_head.output." not in name:
            assert torch.equal(parameter, model.get_parameter(name)), name
    assert (loaded.layers[0].action_head.output.bias + math.log(99)).abs().max() < 1e-6
    assert loaded.layers[0].action_head.output.weight.std() > 0.1


def test_a_model_learns_where_people_are_and_what_they_do():
    model, clips, labels = make().train(), random_clips(), random_labels(2, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = []
    for _ in range(60):
        optimizer.zero_grad()
        loss = model(clips, labels=labels).loss
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.1 * losses[0]
    with torch.no_grad():
        outputs = model.eval()(clips)
    for clip, label in enumerate(labels):
        found = outputs.pred_boxes[clip].masked_fill(outputs.logits[clip].argmax(dim=-1, keepdim=True) == 1, -1e4)
        nearest = torch.cdist(label["boxes"], found).argmin(dim=1)
        torch.testing.assert_close(found[nearest], label["boxes"], atol=3, rtol=0)
        assert torch.equal((outputs.action_logits[clip, nearest] > 0).float(), label["class_labels"])
