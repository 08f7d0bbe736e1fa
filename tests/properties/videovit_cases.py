"""Hypothesis strategies for VideoViT: a model class, a configuration that it takes, and an input for it."""

import math
from typing import Any

import torch
from hypothesis import assume
from hypothesis import strategies as st
from transformers.activations import ACT2FN

from hf_video import (
    VideoViTBackbone,
    VideoViTConfig,
    VideoViTForImageClassification,
    VideoViTForPreTraining,
    VideoViTForVideoClassification,
    VideoViTModel,
)

from .cases import Case, classes_of, dropouts, input_sizes, layers_to_recompute, norm_eps, small

MODELS = (
    VideoViTModel,
    VideoViTForVideoClassification,
    VideoViTForImageClassification,
    VideoViTForPreTraining,
    VideoViTBackbone,
)


@st.composite
def videovit_settings(draw: st.DrawFn, model_class: type = VideoViTModel) -> dict[str, Any]:
    """Keyword arguments of a small configuration that `model_class` takes."""
    is_pretraining = model_class is VideoViTForPreTraining
    settings = draw(input_sizes(is_image=model_class is VideoViTForImageClassification))
    num_layers = draw(st.integers(min_value=int(model_class is VideoViTBackbone), max_value=3))
    num_heads, num_decoder_heads = draw(small(3)), draw(small(2))
    settings |= {
        "num_hidden_layers": num_layers,
        "num_attention_heads": num_heads,
        "hidden_size": num_heads * draw(st.sampled_from([6, 8, 10])),
        "head_dim": draw(st.sampled_from([None, 6, 8])),
        "intermediate_size": draw(small(20)),
        "hidden_act": draw(st.sampled_from(sorted(ACT2FN))),
        **draw(
            dropouts("hidden_dropout_prob", "attention_probs_dropout_prob", "drop_path_rate", "classifier_dropout")
        ),
        "initializer_range": draw(st.floats(1e-4, 0.5)),
        "weight_init": draw(st.sampled_from(["trunc_normal", "xavier_uniform"])),
        "classifier_init_scale": draw(st.sampled_from([0, 0.001, 1.0, 2])),
        "norm_type": draw(st.sampled_from(["layer_norm", "rms_norm"])),
        "layer_norm_eps": draw(norm_eps()),
        "head_norm_eps": draw(st.none() | norm_eps()),
        **{name: draw(st.booleans()) for name in ("qkv_bias", "key_bias", "use_qk_norm", "use_cosine_attention")},
        "layer_scale_init_value": draw(st.sampled_from([0, 1e-5, 0.1])),
        "position_embedding_type": draw(st.sampled_from(["sinusoidal", "learned", "rope", "none"])),
        "rope_theta": draw(st.floats(1, 1e5)),
        "detach_position_embeddings": draw(st.booleans()),
        "use_class_token": not is_pretraining and draw(st.booleans()),
        "use_mean_pooling": draw(st.booleans()),
        "use_final_norm": draw(st.sampled_from([None, True, False])),
        "decoder_num_attention_heads": num_decoder_heads,
        "decoder_hidden_size": num_decoder_heads * draw(st.sampled_from([6, 8])),
        "decoder_num_hidden_layers": draw(st.integers(0, 2)),
        "decoder_intermediate_size": draw(small(20)),
        "mask_ratio": draw(st.floats(0.3, 0.7)),
        "norm_pix_loss": draw(st.booleans()),
        "gradient_checkpointing_layers": draw(layers_to_recompute(num_layers)),
        **draw(classes_of(model_class)),
    }
    if not settings["use_cosine_attention"]:
        settings["qk_scale"] = draw(st.sampled_from([None, 0.01, 1]))
    if settings["position_embedding_type"] != "learned":
        settings["position_embedding_resize"] = draw(st.sampled_from(["interpolate", "rebuild", "token_count"]))
    if settings["position_embedding_type"] == "sinusoidal":
        # Positions that are resized over space alone are made for as many token frames as the input has.
        frames = settings["num_frames"] // settings["tubelet_size"]
        times = st.just(frames) if settings["position_embedding_resize"] == "token_count" else small(3)
        settings["position_embedding_grid"] = draw(st.none() | st.tuples(times, small(4), small(4)))
    statistics = [draw(st.floats(0.1, 1)) for _ in range(settings["num_channels"])]
    settings |= {"image_mean": statistics, "image_std": statistics}
    if model_class is VideoViTBackbone:
        settings["out_indices"] = sorted(draw(st.sets(st.integers(0, num_layers), min_size=1)))
    return settings


@st.composite
def videovit_cases(draw: st.DrawFn) -> Case:
    """A model class, its configuration, and an input of the configured size."""
    model_class = draw(st.sampled_from(MODELS))
    config = VideoViTConfig(**draw(videovit_settings(model_class)))
    clips = torch.randn(2, config.num_frames, config.num_channels, *config.image_shape)
    inputs = {"pixel_values": clips[:, 0] if model_class is VideoViTForImageClassification else clips}
    if model_class is VideoViTForPreTraining:
        num_patches = math.prod(config.token_grid)
        assume(num_patches > 1)
        mask = torch.arange(num_patches) % 2 == 0
        inputs["bool_masked_pos"] = mask.expand(2, -1)
    return Case(model_class, config, inputs)
