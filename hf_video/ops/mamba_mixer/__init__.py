"""Parts of a Mamba mixer (https://arxiv.org/abs/2312.00752) as single operations."""

from .cpu import can_fuse_mixer, mamba_mixer
from .direction import Direction, convolve_and_scan

__all__ = ["Direction", "can_fuse_mixer", "convolve_and_scan", "mamba_mixer"]
