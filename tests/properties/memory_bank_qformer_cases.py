"""Hypothesis strategies for MemoryBankQFormer: a model class, a configuration that it takes, and an input for it."""

from typing import Any

import torch
from hypothesis import strategies as st

from hf_video import MemoryBankQFormerConfig, MemoryBankQFormerForVideoClassification, MemoryBankQFormerModel

from .cases import Case, classes_of, dropouts, norm_eps, small

MODELS = (MemoryBankQFormerModel, MemoryBankQFormerForVideoClassification)
# Sizes of a vision tower.
IMAGE_SIZE, PATCH_SIZE = 8, 4


@st.composite
def vision_settings(draw: st.DrawFn) -> dict[str, Any]:
    num_heads = draw(small(2))
    return {
        "model_type": draw(st.sampled_from(["instructblip_vision_model", "clip_vision_model", "vit"])),
        "hidden_size": num_heads * draw(st.sampled_from([4, 8])),
        "intermediate_size": draw(small(16)),
        "num_hidden_layers": draw(st.integers(0, 2)),
        "num_attention_heads": num_heads,
        "image_size": IMAGE_SIZE,
        "patch_size": PATCH_SIZE,
    }


@st.composite
def qformer_settings(draw: st.DrawFn) -> dict[str, Any]:
    num_heads = draw(small(3))
    return {
        "vocab_size": draw(st.integers(8, 20)),
        "hidden_size": num_heads * draw(st.sampled_from([4, 8])),
        "num_hidden_layers": draw(st.integers(1, 3)),
        "num_attention_heads": num_heads,
        "intermediate_size": draw(small(16)),
        "hidden_act": draw(st.sampled_from(["gelu", "relu", "silu"])),
        **draw(dropouts("hidden_dropout_prob", "attention_probs_dropout_prob")),
        "max_position_embeddings": draw(st.integers(8, 16)),
        "layer_norm_eps": draw(norm_eps()),
        "cross_attention_frequency": draw(small(3)),
        "encoder_hidden_size": draw(small(12)),
    }


@st.composite
def memory_bank_qformer_settings(draw: st.DrawFn, model_class: type = MemoryBankQFormerModel) -> dict[str, Any]:
    """Keyword arguments of a small configuration that `model_class` takes."""
    return {
        "qformer_config": draw(qformer_settings()),
        "vision_config": draw(st.none() | vision_settings()),
        "projection_dim": draw(st.none() | small(8)),
        "use_language_projection": draw(st.sampled_from([None, True, False])),
        "num_query_tokens": draw(small(5)),
        "use_qformer_text_input": draw(st.booleans()),
        "memory_bank_length": draw(st.integers(0, 4)),
        "memory_policy": draw(st.sampled_from(["merge", "fifo", "uniform"])),
        "visual_memory": draw(st.booleans()),
        "query_memory": draw(st.booleans()),
        "max_num_frames": draw(small(8)),
        "frame_position_overflow": draw(st.sampled_from(["clamp", "scale"])),
        "expected_num_frames": draw(small(12)),
        "vision_layer_norm_eps": draw(norm_eps()),
        **draw(dropouts("classifier_dropout")),
        "initializer_range": draw(st.floats(1e-4, 0.5)),
        **draw(classes_of(model_class)),
    }


@st.composite
def memory_bank_qformer_cases(draw: st.DrawFn) -> Case:
    """A model class, its configuration, and a video of a few frames: pixels for a tower, otherwise features."""
    model_class = draw(st.sampled_from(MODELS))
    config = MemoryBankQFormerConfig(**draw(memory_bank_qformer_settings(model_class)))
    num_frames = draw(small(6))
    if config.vision_config is not None:
        inputs = {"pixel_values": torch.randn(2, num_frames, 3, IMAGE_SIZE, IMAGE_SIZE)}
    else:
        inputs = {"vision_embeds": torch.randn(2, num_frames, 3, config.qformer_config.encoder_hidden_size)}
    return Case(model_class, config, inputs)
