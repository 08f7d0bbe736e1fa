"""Resizing of 8-bit frames without smoothing, to the values that the original video models were trained on."""

import torch
import torch.nn.functional as F

# OpenCV holds the weights of the two neighbours as integers that add up to this.
_WEIGHT_SCALE = 1 << 11


def resize_bilinear(video: torch.Tensor, height: int, width: int) -> torch.Tensor:
    """
    Frames (..., height, width) uint8 resized to `height` and `width` in the fixed-point arithmetic of `cv2.resize(...,
    interpolation=cv2.INTER_LINEAR)`, without smoothing: every byte is that of OpenCV. Frames of this size are returned
    themselves.
    """
    if tuple(video.shape[-2:]) == (height, width):
        return video
    low, fraction = _positions(video.shape[-2], height)
    above, below, above_weight, below_weight = _neighbours(low, fraction, video.shape[-2], video.device)
    if 2 * height < video.shape[-2]:
        # The other rows would be made narrower for nothing.
        needed, places = torch.cat([above, below]).unique(return_inverse=True)
        video, (above, below) = video.index_select(-2, needed), places.chunk(2)
    low, fraction = _positions(video.shape[-1], width)
    # Beyond the outermost column, OpenCV gives it the full weight. Beyond the outermost row, it splits the weight into
    # two parts, and rounds each.
    fraction = torch.where((low < 0) | (low >= video.shape[-1] - 1), 0.0, fraction)
    left, right, left_weight, right_weight = _neighbours(low, fraction, video.shape[-1], video.device)
    shape = (*video.shape[:-1], width)
    # `gather` is several times faster here than indexing along the last dimension.
    rows = video.gather(-1, left.expand(shape)) * left_weight
    rows += video.gather(-1, right.expand(shape)) * right_weight
    rows >>= 4
    resized = (rows.index_select(-2, above) * above_weight[:, None]) >> 16
    resized += (rows.index_select(-2, below) * below_weight[:, None]) >> 16
    return ((resized + 2) >> 2).to(torch.uint8)


def resize_bicubic(video: torch.Tensor, height: int, width: int, rounds: bool = False) -> torch.Tensor:
    """
    Frames (num_frames, channels, height, width) uint8 resized to `height` and `width` by PyTorch's bicubic
    interpolation. Fractions are dropped, as in the video processor of LAVIS and MA-LMM, or with `rounds` rounded, as
    in torchvision. Values beyond black and white are clamped; in LAVIS they wrap around.
    """
    resized = F.interpolate(video.float(), size=(height, width), mode="bicubic", align_corners=False)
    return (resized.round() if rounds else resized).clamp(0, 255).to(torch.uint8)


def _positions(size: int, new_size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The positions of new values among the old ones: index of the value before, and fraction after it; each float32
    (new_size,)."""
    position = (torch.arange(new_size, dtype=torch.float64) + 0.5) * (size / new_size) - 0.5
    position = position.float()
    low = position.floor()
    return low, position - low


def _neighbours(
    low: torch.Tensor, fraction: torch.Tensor, size: int, device: torch.device
) -> tuple[torch.Tensor, ...]:
    """Indices, int64, and weights, int32, of the old values before and after each new one; each (new_size,)."""
    low_index = low.long().clamp(0, size - 1)
    high_index = (low.long() + 1).clamp(0, size - 1)
    low_weight = ((1 - fraction) * _WEIGHT_SCALE).round().int()
    high_weight = (fraction * _WEIGHT_SCALE).round().int()
    return tuple(x.to(device) for x in (low_index, high_index, low_weight, high_weight))
