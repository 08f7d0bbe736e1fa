"""The selective scan of state space models (Mamba, https://arxiv.org/abs/2312.00752)."""

from .dispatch import selective_scan

__all__ = ["selective_scan"]
