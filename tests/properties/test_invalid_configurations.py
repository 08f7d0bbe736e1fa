"""Every wrong value of every field is an error of the configuration, which names the field."""

import math
from collections import Counter
from dataclasses import fields
from typing import get_type_hints

import pytest
import torch
from huggingface_hub.dataclasses import type_validator
from huggingface_hub.errors import StrictDataclassError
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers import PreTrainedConfig

from hf_video import MemoryBankQFormerConfig, VideoMambaConfig, VideoViTConfig

from .memory_bank_qformer_cases import memory_bank_qformer_settings
from .videomamba_cases import videomamba_settings
from .videovit_cases import videovit_settings

SETTINGS = {
    VideoViTConfig: videovit_settings(),
    VideoMambaConfig: videomamba_settings(),
    MemoryBankQFormerConfig: memory_bank_qformer_settings(),
}
QUICK = settings(max_examples=40, derandomize=True, deadline=None, database=None, suppress_health_check=[*HealthCheck])
THOROUGH = settings(QUICK, max_examples=5000, derandomize=False)

# Values of many types. Each field gets those that its type does not allow.
OTHER_TYPES = (True, 1.5, math.nan, math.inf, None, "nonsense", b"", [None], ["nonsense"], {"nonsense": 1}, (1.5, 2.5))
# The values of the right type that are wrong, by kind of field.
WRONG = {
    "size": (0, -1),
    "count": (-1,),
    "rate": (-0.1, 1.0, 1.5, math.nan),
    "share": (0.0, -0.1, 1.0, math.nan),
    "positive": (0.0, -1e-6, math.nan, math.inf),
    "not negative": (-0.1, math.nan, math.inf),
    "sides": (0, -1, [8], [8, 8, 8], [0, 8], [8, -1]),
    "statistics": ([math.nan] * 3, [math.inf] * 3),
    "deviations": ([0.0] * 3, [-1.0] * 3, [math.nan] * 3, [0.5] * 7),
    "grid": ([1, 2], [0, 1, 1], [1, 1, -1]),
    "layers": (0, -1, 99, [], [-1], [99]),
    "activation": ("nonsense", ""),
    "policy": ("nonsense", ""),
    "free": (),
}
VISION = {
    "sides": ["image_size", "patch_size"],
    "size": ["num_channels", "num_frames", "tubelet_size", "hidden_size"],
    "count": ["num_hidden_layers", "frame_delay"],
    "activation": ["hidden_act"],
    "rate": ["hidden_dropout_prob", "drop_path_rate", "classifier_dropout"],
    "positive": ["initializer_range", "layer_norm_eps"],
    "layers": ["gradient_checkpointing_layers"],
    "share": ["mask_ratio"],
    "not negative": ["smoothing_loss_weight"],
    "free": ["background_label"],
}
# The kind of every field that is neither a switch nor one of a few names.
KINDS = {
    VideoViTConfig: (
        VISION,
        {
            "size": ["num_attention_heads", "head_dim", "intermediate_size"],
            "rate": ["attention_probs_dropout_prob"],
            "positive": ["head_norm_eps", "qk_scale", "rope_theta"],
            "not negative": ["classifier_init_scale", "layer_scale_init_value", "run_length_threshold"],
            "grid": ["position_embedding_grid"],
            "statistics": ["image_mean"],
            "deviations": ["image_std"],
            # `VideoViTForPreTraining` refuses wrong ones. Other models are saved and read with them.
            "free": ["decoder_hidden_size", "decoder_num_hidden_layers", "decoder_num_attention_heads"]
            + ["decoder_intermediate_size"],
        },
    ),
    VideoMambaConfig: (
        VISION,
        {
            "sides": ["patch_stride"],
            "size": ["state_size", "conv_kernel", "time_step_rank", "projection_dim", "num_aligned_layers"],
            "positive": ["expand", "time_step_min", "time_step_max", "aligned_layer_interval"],
            "not negative": ["time_step_floor", "time_step_scale"],
        },
    ),
    MemoryBankQFormerConfig: (
        {
            "free": ["vision_config", "qformer_config", "text_config"],
            "policy": ["memory_policy"],
            "size": ["projection_dim", "num_query_tokens", "max_num_frames", "expected_num_frames"],
            "count": ["memory_bank_length", "video_token_id"],
            "positive": ["vision_layer_norm_eps"],
            "rate": ["classifier_dropout"],
            "not negative": ["initializer_range"],
        },
    ),
}
PARTS = ("vision_config", "qformer_config", "text_config")


def types_of(config_class):
    """The types of our own fields. Those of `PreTrainedConfig` are left to Transformers."""
    hints = get_type_hints(config_class, localns={"torch": torch})
    inherited = {each.name for each in fields(PreTrainedConfig)}
    own = (each.name for each in fields(config_class) if each.name not in inherited)
    return {name: hints[name] for name in own if not name.startswith("_")}


def is_of_type(name, value, hint):
    try:
        type_validator(name, value, hint)
    except TypeError:
        return False
    return True


def kinds_of(config_class):
    """The kind of each field in the tables."""
    return {name: kind for table in KINDS[config_class] for kind, names in table.items() for name in names}


def wrong_values(config_class):
    """Pairs of a field and a value that it cannot have."""
    kinds = kinds_of(config_class)
    for name, hint in types_of(config_class).items():
        for value in OTHER_TYPES:
            if name in PARTS:
                wrong = value is not None and not isinstance(value, dict)
            else:
                wrong = not is_of_type(name, value, hint)
            if wrong:
                yield name, value
        for value in WRONG[kinds.get(name, "free")]:
            yield name, value


def check(config_class, options, name, value):
    with pytest.raises((StrictDataclassError, ValueError)) as error:
        config_class(**{**options, name: value})
    assert name in str(error.value), f"{name}={value!r}: {error.value}"


@st.composite
def wrong_configurations(draw, config_class):
    """A valid configuration, and a field with a value that it cannot have."""
    return draw(SETTINGS[config_class]), *draw(st.sampled_from(list(wrong_values(config_class))))


@pytest.mark.parametrize("config_class", KINDS)
def test_every_number_and_list_has_a_kind(config_class):
    """A new field is checked here, or somebody decided that it has no bounds."""
    kinds = kinds_of(config_class)
    assert kinds.keys() <= types_of(config_class).keys()
    unbounded = [
        name
        for name, hint in types_of(config_class).items()
        if name not in kinds and any(is_of_type(name, value, hint) for value in (3, 0.5, [3], "free text"))
    ]
    assert not unbounded


@pytest.mark.parametrize("config_class", KINDS)
def test_wrong_values_are_refused(config_class):
    for name, value in wrong_values(config_class):
        check(config_class, {}, name, value)


@pytest.mark.parametrize("config_class", KINDS)
def test_wrong_values_in_random_configurations_are_refused(config_class):
    QUICK(given(wrong_configurations(config_class))(lambda wrong: check(config_class, *wrong)))()


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("config_class", KINDS)
def test_thousands_of_wrong_configurations_are_refused(config_class, capsys):
    counts: Counter[str] = Counter()

    def counted(wrong):
        check(config_class, *wrong)
        counts[wrong[1]] += 1

    THOROUGH(given(wrong_configurations(config_class))(counted))()
    with capsys.disabled():
        print(f"\n{counts.total()} wrong values of {len(counts)} fields of {config_class.__name__}")
    assert counts.total() >= THOROUGH.max_examples


@pytest.mark.parametrize("config_class", KINDS)
def test_what_is_changed_while_a_configuration_is_read_is_checked(config_class, tmp_path):
    config_class(num_labels=3).save_pretrained(tmp_path)
    kinds = kinds_of(config_class)
    for name, value in wrong_values(config_class):
        if name in PARTS or value is None:
            continue  # Parts are merged, and `None` has a meaning of its own here.
        if kinds.get(name) == "statistics" or not isinstance(value, int | float | str | dict):
            continue
        with pytest.raises((StrictDataclassError, ValueError)) as error:
            config_class.from_pretrained(tmp_path, **{name: value})
        assert name in str(error.value), f"{name}={value!r}: {error.value}"
