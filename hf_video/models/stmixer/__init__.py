"""STMixer: a detector of people and their actions at key frames, on the feature maps of any video backbone."""

from .configuration_stmixer import STMixerConfig
from .modeling_stmixer import STMixerForActionDetection, STMixerForActionDetectionOutput, STMixerPreTrainedModel

__all__ = ["STMixerConfig", "STMixerForActionDetection", "STMixerForActionDetectionOutput", "STMixerPreTrainedModel"]
