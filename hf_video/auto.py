"""The table that registers classes with the Auto classes of Transformers."""

from importlib import import_module
from typing import Any, NamedTuple


class Registration(NamedTuple):
    """A class, its module relative to `hf_video`, and the Auto class of Transformers that finds it by a configuration
    class."""

    module: str
    class_name: str
    auto_class: str
    config_class: str


_VIDEOVIT = ".models.videovit.modeling_videovit"
_VIDEOMAMBA = ".models.videomamba.modeling_videomamba"
_QFORMER = ".models.memory_bank_qformer"
_GENERATION = f"{_QFORMER}.modeling_memory_bank_qformer_generation"
_VIDEO_TEXT = ".models.video_text"
_STMIXER = ".models.stmixer"
_VIDEO_ENCODER = ".models.video_encoder"
_PROCESSING = ".processing.video_processing_clip"

CONFIGURATIONS = {
    "VideoViTConfig": ".models.videovit.configuration_videovit",
    "VideoMambaConfig": ".models.videomamba.configuration_videomamba",
    "MemoryBankQFormerConfig": f"{_QFORMER}.configuration_memory_bank_qformer",
    "VideoTextDualEncoderConfig": f"{_VIDEO_TEXT}.configuration_video_text",
    "STMixerConfig": f"{_STMIXER}.configuration_stmixer",
    "VideoEncoderConfig": f"{_VIDEO_ENCODER}.configuration_video_encoder",
}
PARTS = {
    "MemoryBank": f"{_QFORMER}.memory_bank",
    "VideoMambaState": ".models.videomamba.state_videomamba",
    "VideoWatcher": ".inference.video_watcher",
    "load_released": ".loading.models",
    "replay_memory": f"{_QFORMER}.memory_bank",
    "retrieval_recall": ".metrics",
    "selective_scan": ".ops.selective_scan",
}

# Module, class and Auto class of everything that a configuration is for. If a class has several Auto classes, examples
# on model cards use the last.
FAMILIES = {
    "VideoViTConfig": (
        (_VIDEOVIT, "VideoViTModel", "AutoModel"),
        (_VIDEOVIT, "VideoViTForVideoClassification", "AutoModelForVideoClassification"),
        (_VIDEOVIT, "VideoViTForImageClassification", "AutoModelForImageClassification"),
        (f"{_VIDEOVIT}_dense", "VideoViTForFrameClassification", "AutoModelForTokenClassification"),
        (f"{_VIDEOVIT}_pretraining", "VideoViTForPreTraining", "AutoModelForPreTraining"),
        (f"{_VIDEOVIT}_dense", "VideoViTBackbone", "AutoBackbone"),
        (_PROCESSING, "VideoClipProcessor", "AutoVideoProcessor"),
    ),
    "VideoMambaConfig": (
        (_VIDEOMAMBA, "VideoMambaModel", "AutoModel"),
        (_VIDEOMAMBA, "VideoMambaForVideoClassification", "AutoModelForVideoClassification"),
        (_VIDEOMAMBA, "VideoMambaForImageClassification", "AutoModelForImageClassification"),
        (f"{_VIDEOMAMBA}_dense", "VideoMambaForFrameClassification", "AutoModelForTokenClassification"),
        (f"{_VIDEOMAMBA}_pretraining", "VideoMambaForPreTraining", "AutoModelForPreTraining"),
        (f"{_VIDEOMAMBA}_dense", "VideoMambaBackbone", "AutoBackbone"),
        (_PROCESSING, "VideoClipProcessor", "AutoVideoProcessor"),
        (".processing.image_processing_center_crop", "CenterCropImageProcessor", "AutoImageProcessor"),
    ),
    "MemoryBankQFormerConfig": (
        (f"{_QFORMER}.modeling_memory_bank_qformer", "MemoryBankQFormerModel", "AutoModel"),
        (
            f"{_QFORMER}.modeling_memory_bank_qformer",
            "MemoryBankQFormerForVideoClassification",
            "AutoModelForVideoClassification",
        ),
        (_GENERATION, "MemoryBankQFormerForConditionalGeneration", "AutoModelForMultimodalLM"),
        (_GENERATION, "MemoryBankQFormerForConditionalGeneration", "AutoModelForImageTextToText"),
        (_PROCESSING, "VideoClipProcessor", "AutoVideoProcessor"),
        (f"{_QFORMER}.processing_memory_bank_qformer", "MemoryBankQFormerProcessor", "AutoProcessor"),
    ),
    "VideoTextDualEncoderConfig": (
        (f"{_VIDEO_TEXT}.modeling_video_text", "VideoTextDualEncoderModel", "AutoModel"),
        (_PROCESSING, "VideoClipProcessor", "AutoVideoProcessor"),
        (f"{_VIDEO_TEXT}.processing_video_text", "VideoTextDualEncoderProcessor", "AutoProcessor"),
    ),
    "STMixerConfig": (
        (f"{_STMIXER}.modeling_stmixer", "STMixerForActionDetection", "AutoModelForObjectDetection"),
        (".processing.video_processing_detection", "VideoDetectionProcessor", "AutoVideoProcessor"),
    ),
    "VideoEncoderConfig": (
        (
            f"{_VIDEO_ENCODER}.modeling_video_encoder",
            "VideoEncoderForFrameClassification",
            "AutoModelForTokenClassification",
        ),
        (_PROCESSING, "VideoClipProcessor", "AutoVideoProcessor"),
    ),
}

CLASSES = tuple(Registration(*row, config) for config, rows in FAMILIES.items() for row in rows)
PUBLIC_NAMES = CONFIGURATIONS | PARTS | {row.class_name: row.module for row in CLASSES}


def find_public(name: str) -> Any:
    """A public class by its name."""
    return getattr(import_module(PUBLIC_NAMES[name], __package__), name)


def register_auto_classes() -> None:
    """Register every configuration, model and processor of `hf_video` with the Auto classes of Transformers."""
    transformers = import_module("transformers")
    for class_name in CONFIGURATIONS:
        transformers.AutoConfig.register(find_public(class_name).model_type, find_public(class_name), exist_ok=True)
    for row in CLASSES:
        register, config_class = getattr(transformers, row.auto_class).register, find_public(row.config_class)
        if row.auto_class == "AutoImageProcessor":
            register(config_class, image_processor_classes={"torchvision": find_public(row.class_name)}, exist_ok=True)
        else:
            register(config_class, find_public(row.class_name), exist_ok=True)
