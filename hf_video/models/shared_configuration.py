"""What the configurations of several families share: checks of their fields, and their layers."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any


class CheckedConfigMixin:
    """A configuration whose fields are also checked when a saved one is read and changed."""

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> Any:
        """Read a saved configuration, as in Transformers. Fields that `kwargs` change are checked too."""
        made = super().from_dict(config_dict, **kwargs)  # type: ignore[misc]
        (made[0] if isinstance(made, tuple) else made).validate()
        return made


class LayeredConfigMixin:
    """A configuration with `num_hidden_layers` and `gradient_checkpointing_layers`."""

    num_hidden_layers: int
    gradient_checkpointing_layers: list[int] | int | None

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


def check_limits(config: Any, limits: Mapping[str, Sequence[str]]) -> None:
    """Raise `ValueError` for numbers beyond their limits, NaN and infinite ones among them. `None` passes."""
    fits: dict[str, Callable[[Any], bool]] = {
        "at least 1": lambda number: 1 <= number < math.inf,
        "at least 0": lambda number: 0 <= number < math.inf,
        "above 0": lambda number: 0 < number < math.inf,
        "in [0, 1)": lambda number: 0 <= number < 1,
        "between 0 and 1": lambda number: 0 < number < 1,
    }
    for limit, names in limits.items():
        for name in names:
            number = getattr(config, name)
            if number is not None and not fits[limit](number):
                raise ValueError(f"`{name}` must be {limit}, got {number}.")
