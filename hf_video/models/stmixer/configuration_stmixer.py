"""STMixer model configuration."""

import math
from typing import Any

from huggingface_hub.dataclasses import strict
from transformers import AutoConfig
from transformers.configuration_utils import PreTrainedConfig, SubConfigSpec

from ..shared_configuration import CheckedConfigMixin, check_limits

# Strides of the original's feature maps, in pixels, on a backbone with patches of 16 pixels.
STRIDES = (4, 8, 16, 32)
LOSS_WEIGHTS = {"ce": 2.0, "bbox": 2.0, "giou": 2.0, "bce": 24.0}
MATCH_WEIGHTS = {"class": 2.0, "bbox": 2.0, "giou": 2.0}
LIMITS = {
    "at least 1": ["num_queries", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size"]
    + ["num_spatial_points", "num_temporal_points", "point_multiplier", "num_groups"],
    "at least 0": ["num_class_layers", "num_box_layers", "num_action_layers", "background_weight"],
    "in [0, 1)": ["attention_dropout"],
}


@strict
class STMixerConfig(CheckedConfigMixin, PreTrainedConfig):
    r"""
    Configuration of STMixer (https://arxiv.org/abs/2303.15879), which detects people and their actions at key frames.
    The defaults are the released settings on AVA, apart from the number of actions, `num_labels`, which is 80 there.

    Args:
        backbone_config (`PreTrainedConfig` or `dict`, *optional*):
            The backbone, whose feature maps are `(batch_size, channels, t, h, w)`; by default [`VideoViTConfig`].
        num_queries (`int`, defaults to 100):
            Queries, each of which finds at most one person.
        hidden_size (`int`, defaults to 256):
            Width of queries and feature maps, a multiple of 8.
        num_hidden_layers (`int`, defaults to 6):
            Decoder layers. Each refines the boxes and has heads of its own.
        num_attention_heads (`int`, defaults to 8):
            Heads of the attention between queries.
        intermediate_size (`int`, defaults to 2048):
            Width of the hidden layers of the feed-forward networks.
        num_spatial_points (`int`, defaults to 32):
            Points that a query samples in each frame for each group.
        num_temporal_points (`int`, defaults to 8):
            Frames of the feature maps.
        point_multiplier (`int`, defaults to 4):
            Points after mixing for each point before it.
        num_groups (`int`, defaults to 4):
            Groups of channels. Each is sampled and mixed by itself.
        num_class_layers, num_box_layers, num_action_layers (`int`, defaults to 1):
            Hidden layers of the heads of persons, boxes and actions.
        num_ffn_layers (`int`, defaults to 2):
            Linear layers of a feed-forward network.
        attention_dropout (`float`, defaults to 0.0):
            Dropout of the attention weights.
        strides (`list[float]`, *optional*):
            Pixels from one position to the next in the four feature maps; by default (4, 8, 16, 32) times
            `patch_size / 16` of the backbone.
        loss_weights (`dict[str, float]`, *optional*):
            Weights of the losses: `"ce"` (person or background), `"bbox"` (distance of boxes), `"giou"` (overlap of
            boxes) and `"bce"` (actions); by default 2, 2, 2 and 24.
        match_weights (`dict[str, float]`, *optional*):
            Weights of the costs by which persons are matched to queries: `"class"`, `"bbox"` and `"giou"`; by default
            2 each.
        background_weight (`float`, defaults to 0.1):
            Weight of a query without a person in the loss `"ce"`.
        original_loss_means (`bool`, defaults to `False`):
            Whether losses are averaged as in the original, which divides `"ce"` and `"bce"` by what the batch of each
            process holds. By default they are averaged over the whole step, so that its division into processes and
            accumulated batches changes nothing.

    Raises:
        ValueError: if a value is out of range, or values contradict each other. The message names them.
    """

    model_type = "stmixer"
    keys_to_ignore_at_inference = ["loss_dict", "auxiliary_outputs"]
    sub_configs_defaults = {"backbone_config": SubConfigSpec(AutoConfig, model_type="videovit")}

    # `__post_init__` turns it into a configuration.
    backbone_config: Any = None
    num_queries: int = 100
    hidden_size: int = 256
    num_hidden_layers: int = 6
    num_attention_heads: int = 8
    intermediate_size: int = 2048
    num_spatial_points: int = 32
    num_temporal_points: int = 8
    point_multiplier: int = 4
    num_groups: int = 4
    num_class_layers: int = 1
    num_box_layers: int = 1
    num_action_layers: int = 1
    num_ffn_layers: int = 2
    attention_dropout: float | int = 0.0
    strides: list[float | int] | tuple[float | int, ...] | None = None
    loss_weights: dict[str, float | int] | None = None
    match_weights: dict[str, float | int] | None = None
    background_weight: float | int = 0.1
    original_loss_means: bool = False

    def __post_init__(self, **kwargs):
        self.loss_weights = LOSS_WEIGHTS | (self.loss_weights or {})
        self.match_weights = MATCH_WEIGHTS | (self.match_weights or {})
        super().__post_init__(**kwargs)
        if self.strides is None:
            patch_size = self.backbone_config.patch_size
            sides = [patch_size] if isinstance(patch_size, int) else patch_size
            if len(set(sides)) > 1:
                raise ValueError(f"`strides` are derived from square patches alone: pass them, got {patch_size}.")
            self.strides = [stride * sides[0] / 16 for stride in STRIDES]

    def validate_architecture(self):
        """Raise `ValueError` for values that contradict each other; `@strict` calls it."""
        check_limits(self, LIMITS)
        divisors = {"`num_attention_heads`": self.num_attention_heads, "`num_groups`": self.num_groups, "8": 8}
        for name, divisor in divisors.items():
            if self.hidden_size % divisor:
                raise ValueError(f"`hidden_size` must be a multiple of {name}, got {self.hidden_size} and {divisor}.")
        if self.num_ffn_layers < 2:
            raise ValueError(f"`num_ffn_layers` must be at least 2, got {self.num_ffn_layers}.")
        strides = self.strides or ()
        if len(strides) != len(STRIDES) or not all(0 < stride < math.inf for stride in strides):
            raise ValueError(f"`strides` must be {len(STRIDES)} numbers above 0, got {self.strides}.")
        for name, known in (("loss_weights", LOSS_WEIGHTS), ("match_weights", MATCH_WEIGHTS)):
            weights = getattr(self, name)
            if set(weights) != set(known) or not all(0 <= weight < math.inf for weight in weights.values()):
                raise ValueError(f"`{name}` must give {', '.join(known)} numbers of at least 0, got {weights}.")


__all__ = ["STMixerConfig"]
