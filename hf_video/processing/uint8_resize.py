"""Resizing of 8-bit frames without smoothing, to the values that the original video models were trained on."""

import torch
import torch.nn.functional as F

# OpenCV holds the weights of the two neighbours as integers that add up to this.
_WEIGHT_SCALE = 1 << 11


def resize_bilinear(video: torch.Tensor, height: int, width: int) -> torch.Tensor:
    """
    Resize in the fixed-point arithmetic of `cv2.resize(..., interpolation=cv2.INTER_LINEAR)`, without smoothing.

    Shrinking gives the very bytes of OpenCV; enlarging differs by one grey level in about one value of a thousand.

    Args:
        video (`torch.Tensor`):
            (..., height, width) uint8.
        height (`int`):
            New height in pixels.
        width (`int`):
            New width in pixels.

    Returns:
        `torch.Tensor`: (..., height, width) uint8, on the device of `video`.
    """
    left, right, left_weight, right_weight = _neighbours(video.shape[-1], width, video.device)
    shape = (*video.shape[:-1], width)
    # `gather` is several times faster here than indexing along the last dimension.
    rows = video.gather(-1, left.expand(shape)) * left_weight
    rows += video.gather(-1, right.expand(shape)) * right_weight
    rows >>= 4
    above, below, above_weight, below_weight = _neighbours(video.shape[-2], height, video.device)
    resized = (rows.index_select(-2, above) * above_weight[:, None]) >> 16
    resized += (rows.index_select(-2, below) * below_weight[:, None]) >> 16
    return ((resized + 2) >> 2).to(torch.uint8)


def resize_bicubic(video: torch.Tensor, height: int, width: int) -> torch.Tensor:
    """
    Resize by PyTorch's bicubic interpolation and cut fractions off, as the video processor of LAVIS and MA-LMM does.
    Values beyond black and white are limited, where the original lets them wrap around.

    Args:
        video (`torch.Tensor`):
            (num_frames, channels, height, width) uint8.
        height (`int`):
            New height in pixels.
        width (`int`):
            New width in pixels.

    Returns:
        `torch.Tensor`: (num_frames, channels, height, width) uint8, on the device of `video`.
    """
    resized = F.interpolate(video.float(), size=(height, width), mode="bicubic", align_corners=False)
    return resized.clamp(0, 255).to(torch.uint8)


def _neighbours(size: int, new_size: int, device: torch.device) -> tuple[torch.Tensor, ...]:
    """Indices int64 and weights int32, each (new_size,), of the two values between which every new one lies."""
    position = (torch.arange(new_size, dtype=torch.float64) + 0.5) * (size / new_size) - 0.5
    position = position.float()
    low = position.floor()
    outside = (low < 0) | (low >= size - 1)
    fraction = torch.where(outside, 0.0, position - low)
    low_index = low.long().clamp(0, size - 1)
    high_index = (low_index + 1).clamp(max=size - 1)
    low_weight = ((1 - fraction) * _WEIGHT_SCALE).round().int()
    high_weight = (fraction * _WEIGHT_SCALE).round().int()
    return tuple(x.to(device) for x in (low_index, high_index, low_weight, high_weight))
