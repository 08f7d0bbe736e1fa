"""The depthwise causal convolution with SiLU that comes before Mamba's selective scan."""

from .dispatch import causal_conv1d

__all__ = ["causal_conv1d"]
