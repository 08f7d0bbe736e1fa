"""What the strategies for the configurations of all families share."""

from typing import Any, NamedTuple

import torch
from hypothesis import strategies as st
from transformers import PreTrainedConfig


class Case(NamedTuple):
    """A model class, a configuration that it takes, and the inputs of a batch of two without labels."""

    model_class: type
    config: PreTrainedConfig
    inputs: dict[str, torch.Tensor]


def small(most: int) -> st.SearchStrategy[int]:
    """Whole numbers from 1 on."""
    return st.integers(min_value=1, max_value=most)


def norm_eps() -> st.SearchStrategy[float]:
    return st.floats(1e-8, 1.0)


@st.composite
def dropouts(draw: st.DrawFn, *names: str) -> dict[str, float]:
    """A rate in [0, 1) for each name."""
    return {name: draw(st.sampled_from([0, 0.0, 0.1, 0.9])) for name in names}


@st.composite
def input_sizes(draw: st.DrawFn, is_image: bool = False) -> dict[str, Any]:
    """Sizes of frames, clips and patches. A clip has from one patch to a few dozen."""
    tubelet_size = 1 if is_image else draw(small(3))
    patch = [draw(st.integers(3, 6)), draw(st.integers(3, 6))]
    image = [side * draw(small(3)) + draw(st.integers(0, 2)) for side in patch]
    if draw(st.booleans()):
        patch, image = patch[0], max(image[0], patch[0])
    return {
        "image_size": image,
        "patch_size": patch,
        "num_channels": draw(small(4)),
        "tubelet_size": tubelet_size,
        "num_frames": 1 if is_image else tubelet_size * draw(small(3)) + draw(st.integers(0, tubelet_size - 1)),
    }


@st.composite
def layers_to_recompute(draw: st.DrawFn, num_layers: int) -> int | list[int] | None:
    """A value of `gradient_checkpointing_layers`."""
    if num_layers == 0:
        return None
    return draw(st.none() | small(num_layers) | st.lists(st.integers(0, num_layers - 1), min_size=1, unique=True))


@st.composite
def classes_of(draw: st.DrawFn, model_class: type) -> dict[str, Any]:
    """`num_labels` or `id2label`, and a `problem_type` for them."""
    num_labels = draw(st.integers(0, 4))
    problem_types: list[str | None] = [None, "multi_label_classification", "regression"]
    if num_labels != 1:
        problem_types.append("single_label_classification")
    chosen: dict[str, Any] = {"problem_type": draw(st.sampled_from(problem_types))}
    if draw(st.booleans()):
        return chosen | {"num_labels": num_labels}
    names = draw(st.lists(st.text(min_size=1, max_size=4), min_size=num_labels, max_size=num_labels, unique=True))
    return chosen | {"id2label": dict(enumerate(names)), "label2id": {name: i for i, name in enumerate(names)}}


def labels_for(config: PreTrainedConfig) -> torch.Tensor:
    """Labels of a batch of two for a classifier."""
    if config.problem_type == "regression" or config.problem_type is None and config.num_labels == 1:
        return torch.randn(2, config.num_labels) if config.num_labels > 1 else torch.randn(2)
    if config.problem_type == "multi_label_classification":
        return torch.ones(2, config.num_labels)
    return torch.tensor([0, config.num_labels - 1])
