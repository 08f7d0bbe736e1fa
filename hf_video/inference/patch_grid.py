"""The patches that a model cuts a clip into."""

from collections.abc import Iterator
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import nn
from transformers import PreTrainedModel

_CONVOLUTIONS = (nn.Conv2d, nn.Conv3d)


class PatchGrid(NamedTuple):
    """Size and number of the patches of a clip.

    Attributes:
        patch_shape: frames, rows and columns of a patch.
        grid: patches in time, in rows and in columns (t, h, w).
    """

    patch_shape: tuple[int, int, int]
    grid: tuple[int, int, int]

    def sum_pixels(self, values: torch.Tensor) -> torch.Tensor:
        """Sums over the pixels of each patch: (1, num_frames, num_channels, height, width) to (1, t, h, w).

        Frames, rows and columns at the end that fill no patch are left out.
        """
        return F.avg_pool3d(values.sum(2)[:, None], self.patch_shape, divisor_override=1)[:, 0]


def find_patch_grid(model: PreTrainedModel, clip: torch.Tensor) -> PatchGrid:
    """The patches that a model cuts a clip (1, num_frames, num_channels, height, width) into.

    The layer that turns a patch into a token tells them. It is the only convolution or linear layer in the input
    embeddings of the model or, if these read text, of the vision tower within it. A convolution's kernel is the patch.
    A linear layer does not tell its patch: there the `patch_shape` of the embeddings' configuration does.

    Raises:
        ValueError: no such layer is found, patches overlap, or the clip holds no patch.
    """
    for part in (part for part in model.modules() if isinstance(part, PreTrainedModel)):
        try:
            embedding = part.get_input_embeddings()
        except NotImplementedError:
            continue
        found = [] if embedding is None else list(_projections(embedding))
        if len(found) == 1:
            patch_shape = _patch_shape(found[0], getattr(embedding, "config", None))
            if patch_shape is not None:
                sizes = clip.shape[1], *clip.shape[3:]
                t, h, w = (size // patch for size, patch in zip(sizes, patch_shape, strict=True))
                if not t * h * w:
                    raise ValueError(
                        f"{sizes[0]} frames of {sizes[1]} x {sizes[2]} pixels hold no patch of {patch_shape} (frames, "
                        "height, width)."
                    )
                return PatchGrid(patch_shape, (t, h, w))
    raise ValueError(
        f"{type(model).__name__} cannot be explained: no layer was found that turns patches of pixels into tokens."
    )


def _projections(module: nn.Module) -> Iterator[nn.Module]:
    """The convolutions and linear layers in a module. One with a LoRA adapter of PEFT is one layer."""
    layer = getattr(module, "base_layer", module)
    if isinstance(layer, (*_CONVOLUTIONS, nn.Linear)):
        yield layer
    else:
        for child in module.children():
            yield from _projections(child)


def _patch_shape(projection: nn.Module, config: object) -> tuple[int, int, int] | None:
    """Frames, rows and columns of a patch; None if patches overlap, or the shape is unknown."""
    if not isinstance(projection, _CONVOLUTIONS):
        return getattr(config, "patch_shape", None)
    if projection.kernel_size != projection.stride or any(projection.padding):
        return None
    sizes = (1, *projection.kernel_size)[-3:]
    return sizes[0], sizes[1], sizes[2]
