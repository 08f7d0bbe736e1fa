"""What the configurations of several families share: checks of their fields, patches, layers and labels of frames."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from transformers.activations import ACT2FN
from transformers.backbone_utils import BackboneConfigMixin

FRAME_LIMITS = {"at least 0": ["smoothing_loss_weight", "frame_delay", "point_width"]}


class CheckedConfigMixin:
    """A configuration whose fields are also checked when a saved one is read and changed."""

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> Any:
        """Read a saved configuration, as in Transformers. Fields that `kwargs` change are checked too."""
        made = super().from_dict(config_dict, **kwargs)  # type: ignore[misc]
        (made[0] if isinstance(made, tuple) else made).validate()
        return made


@dataclass(init=False, repr=False, eq=False)
class FrameLabelsConfigMixin:
    """
    The fields of a configuration that its classifier of frames reads.

    Args:
        frame_pooling (`"mean"` or `"last"`, defaults to `"mean"`):
            Which feature is classified: the mean of a frame's patches, or the last.
        smoothing_loss_weight (`float`, defaults to 0.0):
            Weight of the loss by which neighbouring frames get similar log-probabilities; MS-TCN has 0.15.
        frame_delay (`int`, defaults to 0):
            Token frames by which the logits are late: those of a frame are for the one `frame_delay` before it.
        background_label (`str`, *optional*):
            Class of frames in which nothing happens: a run of them is no segment.
        point_labels (`list[str]`, *optional*):
            Classes of instants, such as a whistle: a run of their frames is no segment, but has one instant.
        point_width (`float`, *optional*):
            Seconds around an instant that were labelled with its class.
    """

    frame_pooling: Literal["mean", "last"] = "mean"
    smoothing_loss_weight: float | int = 0.0
    frame_delay: int = 0
    background_label: str | None = None
    point_labels: list[str] | None = None
    point_width: float | int | None = None


class EncoderConfigMixin(BackboneConfigMixin):
    """A configuration of a video encoder, with the names that VideoMAE in Transformers has for patches and layers."""

    def __post_init__(self, **kwargs: Any) -> None:
        self.stage_names = ["stem"] + [f"stage{i}" for i in range(1, self.num_hidden_layers + 1)]
        self.set_output_features_output_indices(
            out_indices=kwargs.pop("out_indices", None), out_features=kwargs.pop("out_features", None)
        )
        super().__post_init__(**kwargs)

    @property
    def patch_shape(self) -> tuple[int, int, int]:
        """Frames, rows and columns of pixels in a patch."""
        return (self.tubelet_size, *pair(self.patch_size))

    @property
    def image_shape(self) -> tuple[int, int]:
        """Height and width of a frame in pixels."""
        return pair(self.image_size)

    @property
    def token_grid(self) -> tuple[int, int, int]:
        """Token grid (t, h, w) of an input of the configured size."""
        return self.token_grid_of(self.num_frames, *self.image_shape)

    @property
    def recomputed_layers(self) -> list[int]:
        """Indices of the layers that gradient checkpointing recomputes."""
        layers = self.gradient_checkpointing_layers
        if isinstance(layers, list):
            return layers
        return list(range(self.num_hidden_layers if layers is None else layers))

    def check_layers(self) -> None:
        """Raise `ValueError` if there is no layer: backbones and pre-training by alignment read what layers give."""
        if self.num_hidden_layers < 1:
            raise ValueError("`num_hidden_layers` must be at least 1 in this model, got 0.")

    def check_encoder(self, *sizes: str) -> None:
        """Raise `ValueError` for `sizes` that are not one number or two, and for what holds no patch or layer."""
        for name in sizes:
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) and len(value) != 2 or min(pair(value)) < 1):
                raise ValueError(f"`{name}` must be one positive number or (height, width), got {value}.")
        if min(self.token_grid) < 1:
            raise ValueError(
                f"{self.num_frames} frames of {self.image_size} pixels hold no patch of {self.patch_shape} (frames, "
                "height, width): enlarge `num_frames` or `image_size`, or shrink `tubelet_size` or `patch_size`."
            )
        recomputed, chosen = self.recomputed_layers, self.gradient_checkpointing_layers
        if chosen is not None and not (recomputed and set(recomputed) <= set(range(self.num_hidden_layers))):
            raise ValueError(
                f"`gradient_checkpointing_layers` must be a number of layers from 1 to {self.num_hidden_layers}, or a "
                f"list of their indices, which start at 0, got {chosen}. To recompute none of them, leave gradient "
                "checkpointing off."
            )
        if self.hidden_act not in ACT2FN:
            raise ValueError(f"`hidden_act` {self.hidden_act!r} is unknown; choose one of {', '.join(ACT2FN)}.")


def pair(size: int | Sequence[int]) -> tuple[int, int]:
    """Height and width of a size that may be one number."""
    height, width = (size, size) if isinstance(size, int) else size
    return height, width


def check_limits(config: Any, *tables: Mapping[str, Sequence[str]]) -> None:
    """Raise `ValueError` for numbers beyond their limits, NaN and infinite ones among them. `None` passes."""
    fits: dict[str, Callable[[Any], bool]] = {
        "at least 1": lambda number: 1 <= number < math.inf,
        "at least 0": lambda number: 0 <= number < math.inf,
        "above 0": lambda number: 0 < number < math.inf,
        "in [0, 1)": lambda number: 0 <= number < 1,
        "between 0 and 1": lambda number: 0 < number < 1,
    }
    for limit, names in (row for table in tables for row in table.items()):
        for name in names:
            number = getattr(config, name)
            if number is not None and not fits[limit](number):
                raise ValueError(f"`{name}` must be {limit}, got {number}.")
