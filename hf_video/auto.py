"""The registration table: which class answers for which Auto class of Transformers."""

from importlib import import_module
from typing import Any, NamedTuple


class Registration(NamedTuple):
    """One class and the Auto class it plugs into.

    Attributes:
        module: module of the class, relative to `hf_video`.
        class_name: the class to register.
        auto_class: name of the Auto class in `transformers`.
        config_class: the configuration class that the Auto class looks it up by.
    """

    module: str
    class_name: str
    auto_class: str
    config_class: str


_VIDEOVIT = ".models.videovit.modeling_videovit"
_VIDEOMAMBA = ".models.videomamba.modeling_videomamba"
_MEMORY_BANK_QFORMER = ".models.memory_bank_qformer.modeling_memory_bank_qformer"
_MEMORY_BANK_QFORMER_GENERATION = _MEMORY_BANK_QFORMER + "_generation"

CONFIGURATIONS = {
    "VideoViTConfig": ".models.videovit.configuration_videovit",
    "VideoMambaConfig": ".models.videomamba.configuration_videomamba",
    "MemoryBankQFormerConfig": ".models.memory_bank_qformer.configuration_memory_bank_qformer",
}
PARTS = {
    "MemoryBank": ".models.memory_bank_qformer.memory_bank",
    "VideoWatcher": ".models.memory_bank_qformer.video_watcher",
    "draw_memory": ".drawing.memory_picture",
    "replay_memory": ".models.memory_bank_qformer.memory_bank",
    "selective_scan": ".ops.selective_scan",
}

CLASSES = (
    Registration(_VIDEOVIT, "VideoViTModel", "AutoModel", "VideoViTConfig"),
    Registration(_VIDEOVIT, "VideoViTForVideoClassification", "AutoModelForVideoClassification", "VideoViTConfig"),
    Registration(_VIDEOVIT, "VideoViTForImageClassification", "AutoModelForImageClassification", "VideoViTConfig"),
    Registration(_VIDEOVIT, "VideoViTForPreTraining", "AutoModelForPreTraining", "VideoViTConfig"),
    Registration(_VIDEOVIT, "VideoViTBackbone", "AutoBackbone", "VideoViTConfig"),
    Registration(".processing.video_processing_clip", "VideoClipProcessor", "AutoVideoProcessor", "VideoViTConfig"),
    Registration(_VIDEOMAMBA, "VideoMambaModel", "AutoModel", "VideoMambaConfig"),
    Registration(
        _VIDEOMAMBA, "VideoMambaForVideoClassification", "AutoModelForVideoClassification", "VideoMambaConfig"
    ),
    Registration(
        _VIDEOMAMBA, "VideoMambaForImageClassification", "AutoModelForImageClassification", "VideoMambaConfig"
    ),
    Registration(_VIDEOMAMBA, "VideoMambaForPreTraining", "AutoModelForPreTraining", "VideoMambaConfig"),
    Registration(_VIDEOMAMBA, "VideoMambaBackbone", "AutoBackbone", "VideoMambaConfig"),
    Registration(".processing.video_processing_clip", "VideoClipProcessor", "AutoVideoProcessor", "VideoMambaConfig"),
    Registration(
        ".processing.image_processing_center_crop",
        "CenterCropImageProcessor",
        "AutoImageProcessor",
        "VideoMambaConfig",
    ),
    Registration(_MEMORY_BANK_QFORMER, "MemoryBankQFormerModel", "AutoModel", "MemoryBankQFormerConfig"),
    Registration(
        _MEMORY_BANK_QFORMER,
        "MemoryBankQFormerForVideoClassification",
        "AutoModelForVideoClassification",
        "MemoryBankQFormerConfig",
    ),
    Registration(
        _MEMORY_BANK_QFORMER_GENERATION,
        "MemoryBankQFormerForConditionalGeneration",
        "AutoModelForMultimodalLM",
        "MemoryBankQFormerConfig",
    ),
    # Of several Auto classes, examples on model cards use the last.
    Registration(
        _MEMORY_BANK_QFORMER_GENERATION,
        "MemoryBankQFormerForConditionalGeneration",
        "AutoModelForImageTextToText",
        "MemoryBankQFormerConfig",
    ),
    Registration(
        ".processing.video_processing_clip", "VideoClipProcessor", "AutoVideoProcessor", "MemoryBankQFormerConfig"
    ),
    Registration(
        ".models.memory_bank_qformer.processing_memory_bank_qformer",
        "MemoryBankQFormerProcessor",
        "AutoProcessor",
        "MemoryBankQFormerConfig",
    ),
)

PUBLIC_NAMES = CONFIGURATIONS | PARTS | {row.class_name: row.module for row in CLASSES}


def register_auto_classes() -> None:
    """Register every configuration, model and processor of `hf_video` with the Auto classes of Transformers."""
    transformers = import_module("transformers")

    def load(class_name: str) -> Any:
        return getattr(import_module(PUBLIC_NAMES[class_name], __package__), class_name)

    for class_name in CONFIGURATIONS:
        transformers.AutoConfig.register(load(class_name).model_type, load(class_name), exist_ok=True)
    for row in CLASSES:
        register, config_class = getattr(transformers, row.auto_class).register, load(row.config_class)
        if row.auto_class == "AutoImageProcessor":
            register(config_class, image_processor_classes={"torchvision": load(row.class_name)}, exist_ok=True)
        else:
            register(config_class, load(row.class_name), exist_ok=True)
