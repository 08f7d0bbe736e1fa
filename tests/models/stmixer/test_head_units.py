"""Each operation of STMixer's decoder layers equals the original's."""

import pytest
import torch
from transformers import PreTrainedConfig

from hf_video.models.stmixer.modeling_stmixer import (
    STMixerLayer,
    decode_boxes,
    embed_boxes,
    find_samples,
    initial_boxes,
    intersection_over_foreground,
    level_weights,
    make_table,
    read_table,
    refine_boxes,
    sample_points,
)
from tests.testing.goldens import load_golden

GOLDEN = load_golden("stmixer", "head_units")
STRIDES = GOLDEN.config["featmap_strides"]
CONFIG = PreTrainedConfig(
    **{
        "hidden_size": 16,
        "num_attention_heads": 4,
        "num_groups": 2,
        "num_spatial_points": 6,
        "num_temporal_points": 4,
    },
    **{"point_multiplier": 2, "intermediate_size": 24, "num_ffn_layers": 2, "attention_dropout": 0.0},
    **{"num_class_layers": 1, "num_box_layers": 1, "num_action_layers": 1, "strides": STRIDES},
)


def inputs_in(dtype):
    return {name: tensor.to(dtype, copy=True) for name, tensor in GOLDEN.inputs.items()}


def make_layer(dtype=torch.float32):
    layer, inputs = STMixerLayer(CONFIG), inputs_in(torch.float32)
    sources = {
        "iof_tau": "iof_tau",
        "spatial.attention.qkv.weight": "attention_s.attn.in_proj_weight",
        "spatial.attention.qkv.bias": "attention_s.attn.in_proj_bias",
    }
    for kind in ("weight", "bias"):
        sources |= {
            f"spatial.attention.o_proj.{kind}": f"attention_s.attn.out_proj.{kind}",
            f"spatial.ffn.0.0.{kind}": f"ffn_s.layers.0.0.{kind}",
            f"spatial.ffn.1.{kind}": f"ffn_s.layers.1.{kind}",
            f"offset_generator.{kind}": f"samplingmixing.offset_generator.0.{kind}",
        }
        for branch, letter in (("spatial", "s"), ("temporal", "t")):
            theirs = f"samplingmixing.adaptive_mixing_{letter}"
            sources |= {
                f"{branch}.mixing.parameter_generator.{kind}": f"{theirs}.parameter_generator.0.{kind}",
                f"{branch}.mixing.out_proj.{kind}": f"{theirs}.out_proj.{kind}",
                f"{branch}.mixing_norm.{kind}": f"samplingmixing.norm_{letter}.{kind}",
            }
    loading = layer.load_state_dict({ours: inputs[f"param.{name}"] for ours, name in sources.items()}, strict=False)
    assert not loading.unexpected_keys
    return layer.to(dtype)


def sample(feature_maps, points):
    """Features `(batch_size, num_queries, num_groups, t, num_points, channels)` at points of each frame."""
    table = make_table(feature_maps, 2, points.dtype)
    samples = find_samples(points, [each.shape[-2:] for each in feature_maps], STRIDES)
    return read_table(table, *samples).transpose(3, 4)


def check(actual, name, atol=1e-4):
    expected = GOLDEN.expected[name]
    torch.testing.assert_close(actual, expected, atol=atol, rtol=atol, msg=lambda text: f"{name}: {text}")


def test_boxes():
    inputs = inputs_in(torch.float32)
    boxes = decode_boxes(inputs["xyzr"])
    refined = refine_boxes(inputs["xyzr"], inputs["xyzr_delta"])
    check(boxes, "boxes", 1e-3)
    check(refined, "refined_xyzr", 1e-3)
    check(decode_boxes(refined), "refined_boxes", 1e-3)
    check(initial_boxes(inputs["whwh"][:, [1, 0]])[:, None].expand(-1, 7, -1), "init_xyzr", 1e-3)
    check(embed_boxes(inputs["xyzr"], 16), "position_embedding")
    iof = intersection_over_foreground(boxes)
    check(iof, "iof")
    check((iof + 1e-7).log(), "log_iof")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_attention_and_feed_forward_network(dtype):
    layer, inputs = make_layer(dtype).spatial, inputs_in(dtype)
    queries = inputs["spatial_queries"]
    embedded = queries + embed_boxes(inputs["xyzr"], 16).to(dtype)
    bias = (intersection_over_foreground(decode_boxes(inputs["xyzr"])) + 1e-7).log()[:, None]
    bias = bias * inputs["param.iof_tau"][:, None, None]
    prefix, atol = ("", 1e-4) if dtype == torch.float32 else ("float64.", 1e-5)
    with torch.no_grad():
        check(embedded + layer.attention(embedded, bias), f"{prefix}attention_output", atol)
        if dtype == torch.float32:
            check(bias, "attention_bias")
            check(queries + layer.ffn(queries), "ffn_output")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_samples_and_their_gradients(dtype):
    inputs = inputs_in(dtype)
    maps = [inputs[f"features.{level}"].requires_grad_() for level in range(4)]
    offsets, xyzr = inputs["offsets"].requires_grad_(), inputs["xyzr"].requires_grad_()
    points = sample_points(offsets.unflatten(-1, (2, 6, 3)), xyzr)
    sampled = sample(maps, points)
    (sampled * torch.linspace(-1, 1, sampled.numel(), dtype=dtype).view_as(sampled)).sum().backward()
    if dtype == torch.float64:
        check(sampled, "float64.sampled", 1e-9)
        check(xyzr.grad, "float64.grad.xyzr", 1e-9)
        return
    check(points, "sample_points", 1e-3)
    check(level_weights(points[..., 2], 4), "level_weights")
    check(sampled, "sampled")
    for name, gradient in (("offsets", offsets.grad), ("xyzr", xyzr.grad), ("features.3", maps[3].grad)):
        check(gradient, f"grad.{name}", 1e-3)
    check(maps[0].grad.sum(dim=2), "grad.features.0_sum_over_time", 1e-3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_mixing(dtype):
    layer, inputs = make_layer(dtype), inputs_in(dtype)
    spatial, temporal = inputs["spatial_queries"], inputs["temporal_queries"]
    maps = [inputs[f"features.{level}"] for level in range(4)]
    with torch.no_grad():
        given = sample_points(inputs["offsets"].unflatten(-1, (2, 6, 3)), inputs["xyzr"])
        own = sample_points(layer.offset_generator(spatial).unflatten(-1, (2, 6, 3)), inputs["xyzr"])
        for queries, branch, axis, name in (
            (spatial, layer.spatial, 3, "spatial"),
            (temporal, layer.temporal, 4, "temporal"),
        ):
            if dtype == torch.float32:
                sampled = sample(maps, given).mean(dim=axis)
                check(queries + branch.mixing(sampled, queries), f"mixing_{name}_output")
            sampled = sample(maps, own).mean(dim=axis)
            mixed = branch.mixing_norm(queries + branch.mixing(sampled, queries))
            prefix, atol = ("", 1e-4) if dtype == torch.float32 else ("float64.", 1e-9)
            check(mixed, f"{prefix}samplingmixing_{name}", atol)
