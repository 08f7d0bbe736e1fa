"""The registration table: which class answers for which Auto class of Transformers."""

from importlib import import_module
from typing import NamedTuple


class Registration(NamedTuple):
    """One class and the Auto class it plugs into.

    Attributes:
        module: module of the class, relative to `hf_video`.
        class_name: the class to register.
        auto_class: name of the Auto class in `transformers`.
        config_class: the configuration class the Auto class looks it up by; `None` for configurations themselves.
    """

    module: str
    class_name: str
    auto_class: str
    config_class: str | None = None


_VIDEOVIT = ".models.videovit.modeling_videovit"

CONFIGURATIONS = (Registration(".models.videovit.configuration_videovit", "VideoViTConfig", "AutoConfig"),)

CLASSES = (
    Registration(_VIDEOVIT, "VideoViTModel", "AutoModel", "VideoViTConfig"),
    Registration(_VIDEOVIT, "VideoViTForVideoClassification", "AutoModelForVideoClassification", "VideoViTConfig"),
    Registration(_VIDEOVIT, "VideoViTForImageClassification", "AutoModelForImageClassification", "VideoViTConfig"),
    Registration(_VIDEOVIT, "VideoViTForPreTraining", "AutoModelForPreTraining", "VideoViTConfig"),
    Registration(_VIDEOVIT, "VideoViTBackbone", "AutoBackbone", "VideoViTConfig"),
    Registration(".processing.video_processing_clip", "VideoClipProcessor", "AutoVideoProcessor", "VideoViTConfig"),
)

PUBLIC_NAMES = {row.class_name: row.module for row in (*CONFIGURATIONS, *CLASSES)}


def register_auto_classes() -> None:
    """Register every configuration, model and processor of `hf_video` with the Auto classes of Transformers."""
    transformers = import_module("transformers")

    def load(row: Registration) -> type:
        return getattr(import_module(row.module, __package__), row.class_name)

    configurations = {row.class_name: load(row) for row in CONFIGURATIONS}
    for config_class in configurations.values():
        transformers.AutoConfig.register(config_class.model_type, config_class, exist_ok=True)
    for row in CLASSES:
        auto_class = getattr(transformers, row.auto_class)
        auto_class.register(configurations[row.config_class], load(row), exist_ok=True)
