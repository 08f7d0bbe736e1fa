"""Tiny video classifiers of Transformers, each saved with a processor file of its own family."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from transformers import (
    AutoModelForVideoClassification,
    LlavaOnevisionVideoProcessor,
    PreTrainedConfig,
    TimesformerConfig,
    VideoMAEConfig,
    VideoMAEImageProcessor,
    VideoPrismVisionConfig,
    VivitConfig,
    VivitImageProcessor,
    VJEPA2Config,
    VJEPA2VideoProcessor,
    set_seed,
)

NUM_FRAMES, IMAGE_SIZE = 4, 32
_WIDTHS: dict[str, Any] = {"hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 32}
_SQUARE = {"height": IMAGE_SIZE, "width": IMAGE_SIZE}
_CROPPED: dict[str, Any] = {"size": {"shortest_edge": 36}, "crop_size": _SQUARE}


class Family(NamedTuple):
    """How a family is built: a configuration, and the processor that its checkpoints are released with."""

    configuration: Callable[..., PreTrainedConfig]
    processor: Callable[[], Any]


def _videomae(**options: Any) -> PreTrainedConfig:
    sizes = {"image_size": IMAGE_SIZE, "num_frames": NUM_FRAMES, "num_hidden_layers": 2, "patch_size": 16}
    return VideoMAEConfig(**_WIDTHS, **sizes, **options)


def _timesformer(**options: Any) -> PreTrainedConfig:
    sizes = {"image_size": IMAGE_SIZE, "num_frames": NUM_FRAMES, "num_hidden_layers": 2, "patch_size": 16}
    return TimesformerConfig(**_WIDTHS, **sizes, **options)


def _vivit(**options: Any) -> PreTrainedConfig:
    sizes = {"image_size": IMAGE_SIZE, "num_frames": NUM_FRAMES, "num_hidden_layers": 2, "tubelet_size": [2, 16, 16]}
    return VivitConfig(**_WIDTHS, **sizes, **options)


def _vjepa2(**options: Any) -> PreTrainedConfig:
    sizes = {"crop_size": IMAGE_SIZE, "frames_per_clip": NUM_FRAMES, "num_hidden_layers": 2, "patch_size": 16}
    # Rotary positions of three axes need 6 channels a head.
    widths = {"hidden_size": 24, "num_attention_heads": 2, "mlp_ratio": 2.0, "num_pooler_layers": 1}
    predictor = {"pred_hidden_size": 24, "pred_num_attention_heads": 2, "pred_num_hidden_layers": 1}
    return VJEPA2Config(**sizes, **widths, **predictor, **options)


def _videoprism(**options: Any) -> PreTrainedConfig:
    sizes = {"image_size": IMAGE_SIZE, "num_frames": NUM_FRAMES, "tubelet_size": [1, 16, 16]}
    layers = {"num_spatial_layers": 1, "num_temporal_layers": 1, "num_auxiliary_layers": 1}
    return VideoPrismVisionConfig(**_WIDTHS, **sizes, **layers, **options)


FAMILIES = {
    "videomae": Family(_videomae, lambda: VideoMAEImageProcessor(**_CROPPED)),
    "timesformer": Family(
        _timesformer, lambda: VideoMAEImageProcessor(**_CROPPED, image_mean=[0.45] * 3, image_std=[0.225] * 3)
    ),
    "vivit": Family(_vivit, lambda: VivitImageProcessor(**_CROPPED)),
    "vjepa2": Family(_vjepa2, lambda: VJEPA2VideoProcessor(crop_size=_SQUARE)),
    "videoprism": Family(_videoprism, lambda: LlavaOnevisionVideoProcessor(size=_SQUARE, do_normalize=False)),
}


def save_family(name: str, folder: Path, class_names: list[str], **options: Any) -> Path:
    """Writes a tiny classifier with random weights and the processor of its family into `folder`."""
    set_seed(0)
    config = FAMILIES[name].configuration(
        id2label=dict(enumerate(class_names)),
        label2id={name: index for index, name in enumerate(class_names)},
        **options,
    )
    AutoModelForVideoClassification.from_config(config).save_pretrained(folder)
    FAMILIES[name].processor().save_pretrained(folder)
    return folder
