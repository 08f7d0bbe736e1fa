"""Hypothesis strategies for VideoMamba: a model class, a configuration that it takes, and an input for it."""

import math
from typing import Any

import torch
from hypothesis import assume
from hypothesis import strategies as st
from transformers.activations import ACT2FN

from hf_video import (
    VideoMambaBackbone,
    VideoMambaConfig,
    VideoMambaForImageClassification,
    VideoMambaForPreTraining,
    VideoMambaForVideoClassification,
    VideoMambaModel,
)

from .cases import Case, classes_of, dropouts, input_sizes, layers_to_recompute, norm_eps, small

MODELS = (
    VideoMambaModel,
    VideoMambaForVideoClassification,
    VideoMambaForImageClassification,
    VideoMambaForPreTraining,
    VideoMambaBackbone,
)


@st.composite
def videomamba_settings(draw: st.DrawFn, model_class: type = VideoMambaModel) -> dict[str, Any]:
    """Keyword arguments of a small configuration that `model_class` takes."""
    settings = draw(input_sizes(is_image=model_class is VideoMambaForImageClassification))
    needs_layers = model_class in (VideoMambaForPreTraining, VideoMambaBackbone)
    num_layers = draw(st.integers(min_value=int(needs_layers), max_value=3))
    low, high = sorted(draw(st.tuples(st.floats(1e-4, 0.5), st.floats(1e-4, 0.5))))
    normalize = draw(st.booleans())
    settings |= {
        "patch_stride": draw(st.none() | small(5) | st.lists(small(5), min_size=2, max_size=2)),
        "use_temporal_position_embeddings": draw(st.sampled_from([None, True, False])),
        "hidden_size": draw(st.integers(2, 20)),
        "num_hidden_layers": num_layers,
        "state_size": draw(small(6)),
        "conv_kernel": draw(small(5)),
        "expand": draw(st.sampled_from([0.5, 1, 1.5, 2])),
        "time_step_rank": draw(st.just("auto") | small(4)),
        "time_step_init_scheme": draw(st.sampled_from(["zero_bias", "random", "constant"])),
        "time_step_min": low,
        "time_step_max": high,
        "time_step_floor": draw(st.sampled_from([0.0, 1e-4, 0.01])),
        "time_step_scale": draw(st.sampled_from([0, 0.5, 1.0])),
        "use_bias": draw(st.booleans()),
        "use_conv_bias": draw(st.booleans()),
        "hidden_act": draw(st.sampled_from(sorted(ACT2FN))),
        **draw(dropouts("hidden_dropout_prob", "drop_path_rate", "classifier_dropout")),
        "initializer_range": draw(st.floats(1e-4, 0.5)),
        "norm_type": draw(st.sampled_from(["layer_norm", "rms_norm"])),
        "layer_norm_eps": draw(norm_eps()),
        "residual_in_fp32": draw(st.booleans()),
        "gradient_checkpointing_layers": draw(layers_to_recompute(num_layers)),
        "use_mean_pooling": draw(st.booleans()),
        "projection_dim": draw(small(8)),
        "num_aligned_layers": draw(small(max(num_layers, 1))),
        "last_aligned_feature": draw(st.sampled_from(["normalized", "raw", "unmixed"])),
        "normalize_features": normalize,
        "alignment_loss": draw(st.sampled_from(["mse", "smooth_l1", *(["cosine"] if normalize else [])])),
        "mask_ratio": draw(st.floats(0.3, 0.7)),
        **draw(classes_of(model_class)),
    }
    settings["bidirectional"] = draw(st.booleans())
    orders = ["spatial_first", "temporal_first", *(["spatiotemporal"] if settings["bidirectional"] else [])]
    settings["scan_order"] = draw(st.sampled_from(orders))
    if model_class is VideoMambaBackbone:
        settings["out_indices"] = sorted(draw(st.sets(st.integers(0, num_layers), min_size=1)))
    return settings


@st.composite
def videomamba_cases(draw: st.DrawFn) -> Case:
    """A model class, its configuration, and an input of the configured size."""
    model_class = draw(st.sampled_from(MODELS))
    config = VideoMambaConfig(**draw(videomamba_settings(model_class)))
    clips = torch.randn(2, config.num_frames, config.num_channels, *config.image_shape)
    inputs = {"pixel_values": clips[:, 0] if model_class is VideoMambaForImageClassification else clips}
    if model_class is VideoMambaForPreTraining:
        num_patches = math.prod(config.token_grid)
        assume(num_patches > 1)
        mask = torch.arange(num_patches) % 2 == 0
        inputs["bool_masked_pos"] = mask.expand(2, -1)
    return Case(model_class, config, inputs)
