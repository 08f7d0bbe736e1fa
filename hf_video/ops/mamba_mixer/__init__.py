"""Parts of a Mamba mixer (https://arxiv.org/abs/2312.00752) as single operations."""

from .cpu import Direction, can_fuse_mixer, mamba_mixer
from .direction import convolve_and_scan

__all__ = ["Direction", "can_fuse_mixer", "convolve_and_scan", "mamba_mixer"]
