"""MemoryBankQFormer model configuration."""

import copy
import math
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any, Literal, get_type_hints

import torch
from huggingface_hub.dataclasses import strict, type_validator
from huggingface_hub.errors import StrictDataclassFieldValidationError
from transformers import AutoConfig, InstructBlipQFormerConfig
from transformers.activations import ACT2FN
from transformers.configuration_utils import PreTrainedConfig, SubConfigSpec

POSITION_EMBEDDING_TYPES = ("absolute", "relative_key", "relative_key_query")
# What the fields of a sub-configuration that is not ours must be at least. A field that it does not have is left out.
LEAST_VALUES = {
    "hidden_size": 1,
    "num_hidden_layers": 0,
    "num_attention_heads": 1,
    "intermediate_size": 1,
    "vocab_size": 1,
    "max_position_embeddings": 1,
    "cross_attention_frequency": 1,
    "encoder_hidden_size": 1,
    "image_size": 1,
    "patch_size": 1,
    "num_channels": 1,
    "initializer_range": 0,
}
DROPOUTS = ("hidden_dropout_prob", "attention_probs_dropout_prob", "attention_dropout", "hidden_dropout", "dropout")


@strict
class MemoryBankQFormerConfig(PreTrainedConfig):
    r"""
    Configuration of the MemoryBankQFormer family: the long-video Q-Former of MA-LMM
    (https://arxiv.org/abs/2404.05726). By default it is that Q-Former on precomputed features of EVA-ViT-g.

    Args:
        vision_config (`PreTrainedConfig` or `dict`, *optional*):
            Vision tower: any image encoder of Transformers, such as [`InstructBlipVisionConfig`] for EVA-ViT, or a
            video encoder with `tubelet_size=1`. Its `hidden_size` sets `qformer_config.encoder_hidden_size`. A model
            without a tower takes `vision_embeds`.
        qformer_config (`InstructBlipQFormerConfig` or `dict`, *optional*):
            The Q-Former; by default that of InstructBLIP. If there is no query bank, its `position_embedding_type` may
            be `"relative_key"` or `"relative_key_query"` instead of `"absolute"`.
        text_config (`PreTrainedConfig` or `dict`, *optional*):
            Language model that reads the projected output of the Q-Former. The width of its embeddings sets
            `projection_dim`; it is `hidden_size`, except in some OPT models.
        projection_dim (`int`, *optional*):
            Width that the output of the Q-Former is projected to. Without it there is no projection.
        use_language_projection (`bool`, *optional*):
            Whether the model has the projection, if `projection_dim` is set. Models with a head set it. The default is
            `False` if `architectures` name the classifier, otherwise `True`.
        num_query_tokens (`int`, defaults to 32):
            Number of learned queries, and of output tokens.
        use_qformer_text_input (`bool`, defaults to `True`):
            Whether the Q-Former can read a text beside the frames.
        memory_bank_length (`int`, defaults to 20):
            Number of frames that each memory bank holds. With 0 there is no memory, and every frame is encoded on its
            own.
        memory_policy (`"merge"`, `"fifo"` or `"uniform"`, defaults to `"merge"`):
            What happens when a bank is full. `"merge"`: the two most similar neighbours become their mean (MA-LMM).
            `"fifo"`: the oldest frame is dropped. `"uniform"`: the bank keeps frames spread evenly over the video.
        visual_memory (`bool`, defaults to `True`):
            Whether queries attend to the vision tokens of earlier frames. If so, positions of frames are added to the
            tokens.
        query_memory (`bool`, defaults to `True`):
            Whether every layer attends to its own input at earlier frames.
        max_num_frames (`int`, defaults to 120):
            Number of rows in the table of frame positions.
        frame_position_overflow (`"clamp"` or `"scale"`, defaults to `"clamp"`):
            Positions in videos with more frames than the table has rows. `"clamp"`: the later frames get the last row.
            `"scale"`: the table is stretched over `expected_num_frames`.
        expected_num_frames (`int`, *optional*):
            Number of frames of a whole video, for `frame_position_overflow="scale"`.
        vision_layer_norm_eps (`float`, defaults to 1e-5):
            Epsilon of the norm after the vision tower.
        classifier_dropout (`float`, defaults to 0.0):
            Dropout before the classifier of [`MemoryBankQFormerForVideoClassification`].
        initializer_range (`float`, defaults to 0.02):
            Standard deviation of the normal initialisation.
        video_token_id (`int`, *optional*):
            Id of the token that holds the place of a video in a text.

    Raises:
        ValueError: if a value is out of range, or values contradict each other. The message names them.
    """

    model_type = "memory_bank_qformer"
    keys_to_ignore_at_inference = [
        "memory",
        "past_key_values",
        "video_embeds",
        "encoder_last_hidden_state",
        "qformer_outputs",
    ]
    sub_configs_defaults = {
        "vision_config": SubConfigSpec(AutoConfig, model_type="instructblip_vision_model", optional=True),
        "qformer_config": InstructBlipQFormerConfig,
        "text_config": SubConfigSpec(AutoConfig, model_type="llama", optional=True),
    }

    # `__post_init__` turns these three into configurations.
    vision_config: Any = None
    qformer_config: Any = None
    text_config: Any = None
    projection_dim: int | None = None
    use_language_projection: bool | None = None
    num_query_tokens: int = 32
    use_qformer_text_input: bool = True
    memory_bank_length: int = 20
    memory_policy: Literal["merge", "fifo", "uniform"] = "merge"
    visual_memory: bool = True
    query_memory: bool = True
    max_num_frames: int = 120
    frame_position_overflow: Literal["clamp", "scale"] = "clamp"
    expected_num_frames: int | None = None
    vision_layer_norm_eps: float = 1e-5
    classifier_dropout: float | int = 0.0
    initializer_range: float = 0.02
    video_token_id: int | None = None

    def __post_init__(self, **kwargs):
        _check_inherited(self, kwargs)
        for name in self.sub_configs:
            part = getattr(self, name)
            if not (part is None or isinstance(part, (dict, PreTrainedConfig))):
                raise ValueError(f"`{name}` must be a configuration or its values in a `dict`, got {part!r}.")
        super().__post_init__(**kwargs)
        if self.vision_config is not None:
            self.qformer_config.encoder_hidden_size = self.vision_config.hidden_size
        if self.text_config is not None:
            embedding_width = getattr(self.text_config, "word_embed_proj_dim", None)
            self.projection_dim = embedding_width or self.text_config.hidden_size
        if self.use_language_projection is None:
            # Folders of the first versions do not have this field.
            self.use_language_projection = "MemoryBankQFormerForVideoClassification" not in (self.architectures or ())

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> Any:
        """Read a saved configuration, as in Transformers. Fields that `kwargs` change are checked too."""
        return _read_checked(super().from_dict, config_dict, **kwargs)

    def with_language_projection(self, use_language_projection: bool) -> "MemoryBankQFormerConfig":
        """This configuration with the given value. It is a copy if the value differs, because models share it."""
        if self.use_language_projection == use_language_projection:
            return self
        config = copy.deepcopy(self)
        config.use_language_projection = use_language_projection
        return config

    @property
    def num_frames(self) -> None:
        """`None`: any number. The video-classification pipeline asks for it, and then asks the processor."""

    @property
    def pad_token_id(self) -> int | None:
        """Padding token of the language model, if there is one. `Seq2SeqTrainer` looks for it here."""
        return getattr(self.text_config, "pad_token_id", None)

    @pad_token_id.setter
    def pad_token_id(self, value: int | None) -> None:
        if self.text_config is not None:
            self.text_config.pad_token_id = value

    def validate_architecture(self):
        """Raise `ValueError` for values that contradict each other; `@strict` calls it."""
        # The language model is left out, because its numbers may be infinite on purpose: one limit of Mamba-2 is.
        for prefix, part in (
            ("", self),
            ("qformer_config.", self.qformer_config),
            ("vision_config.", self.vision_config),
        ):
            values = {} if part is None else vars(part)
            _check_finite({prefix + name: value for name, value in values.items()})
            if prefix:
                _check_part(prefix, values)
        for name, eps in (
            ("vision_layer_norm_eps", self.vision_layer_norm_eps),
            ("qformer_config.layer_norm_eps", self.qformer_config.layer_norm_eps),
        ):
            if eps <= 0:
                raise ValueError(f"`{name}` must be above 0, got {eps}.")
        if self.initializer_range < 0:
            raise ValueError(f"`initializer_range` must be at least 0, got {self.initializer_range}.")
        positive = {"num_query_tokens": 1, "max_num_frames": 1, "projection_dim": 1, "expected_num_frames": 1}
        for name, least in {**positive, "memory_bank_length": 0, "video_token_id": 0}.items():
            if getattr(self, name) is not None and getattr(self, name) < least:
                raise ValueError(f"`{name}` must be at least {least}, got {getattr(self, name)}.")
        if not 0 <= self.classifier_dropout < 1:
            raise ValueError(f"`classifier_dropout` must be in [0, 1), got {self.classifier_dropout}.")
        if self.frame_position_overflow == "scale" and not (self.expected_num_frames or 0) > 0:
            raise ValueError(
                '`frame_position_overflow="scale"` stretches the frame positions over a whole video: set '
                f"`expected_num_frames` to the frames of one, got {self.expected_num_frames}."
            )
        qformer = self.qformer_config
        if qformer.hidden_size % qformer.num_attention_heads:
            raise ValueError(
                f"`qformer_config.hidden_size` ({qformer.hidden_size}) must be a multiple of "
                f"`qformer_config.num_attention_heads` ({qformer.num_attention_heads})."
            )
        tubelet_size = getattr(self.vision_config, "tubelet_size", 1)
        if tubelet_size != 1:
            raise ValueError(
                f"The vision tower reads one frame at a time, but its `tubelet_size` is {tubelet_size}: choose one "
                "with `tubelet_size=1`."
            )
        positions = getattr(qformer, "position_embedding_type", "absolute")
        if positions not in POSITION_EMBEDDING_TYPES:
            raise ValueError(
                f"`qformer_config.position_embedding_type` must be one of {', '.join(POSITION_EMBEDDING_TYPES)}, got "
                f"{positions!r}."
            )
        if positions != "absolute" and self.query_memory and self.memory_bank_length > 0:
            # Their table has the distances within one sequence. A bank holds several.
            raise ValueError(
                f"`qformer_config.position_embedding_type` must be 'absolute' with a query bank, got {positions!r}: "
                "distances have no meaning between frames. Set `query_memory=False` or `memory_bank_length=0`."
            )


def _check_part(prefix: str, values: Mapping[str, Any]) -> None:
    """Raise `ValueError` for values of a sub-configuration of Transformers that no model can have."""
    for name, least in LEAST_VALUES.items():
        if isinstance(values.get(name), (int, float)) and values[name] < least:
            raise ValueError(f"`{prefix}{name}` must be at least {least}, got {values[name]}.")
    for name in DROPOUTS:
        if isinstance(values.get(name), (int, float)) and not 0 <= values[name] <= 1:
            raise ValueError(f"`{prefix}{name}` must be in [0, 1], got {values[name]}.")
    if isinstance(values.get("hidden_act"), str) and values["hidden_act"] not in ACT2FN:
        raise ValueError(
            f"`{prefix}hidden_act` {values['hidden_act']!r} is unknown; choose one of {', '.join(ACT2FN)}."
        )


# Copied from hf_video.models.videovit.configuration_videovit._check_finite
def _check_finite(values: Mapping[str, Any]) -> None:
    """Raise `ValueError` for numbers and lists with numbers that are NaN or infinite: comparisons do not find them."""
    for name, value in values.items():
        numbers = value if isinstance(value, (list, tuple)) else [value]
        if any(isinstance(number, float) and not math.isfinite(number) for number in numbers):
            raise ValueError(f"`{name}` must be finite, got {value}.")


# Copied from hf_video.models.videovit.configuration_videovit._check_inherited
def _check_inherited(config: PreTrainedConfig, given: Mapping[str, Any]) -> None:
    """
    Check the fields that [`PreTrainedConfig`] declares. Their types are written as texts, which `@strict` skips.

    Args:
        config: a configuration, of which `PreTrainedConfig.__post_init__` need not have read the fields yet.
        given: arguments that may have `num_labels`, which is no field.

    Raises:
        StrictDataclassFieldValidationError: for a value of another type, or one that no model can have.
        ValueError: for such a `num_labels`, or one that contradicts `id2label`.
    """
    types = get_type_hints(PreTrainedConfig, localns={"torch": torch})
    # The names of classes may be numbers, and a list has the indices of the hidden states to return.
    types |= {"id2label": dict | None, "label2id": dict | None, "output_hidden_states": bool | list[int] | None}
    for name, value in [(each.name, getattr(config, each.name)) for each in fields(PreTrainedConfig)]:
        try:
            type_validator(name, value, types[name])
            if name == "dtype" and isinstance(value, str) and not isinstance(getattr(torch, value, None), torch.dtype):
                raise ValueError(f"`dtype` must be the name of a dtype of PyTorch, got {value!r}.")
            if name == "id2label" and value and {str(index) for index in value} != set(map(str, range(len(value)))):
                raise ValueError(f"`id2label` must name the classes from 0 to {len(value) - 1}, got {list(value)}.")
        except (TypeError, ValueError) as error:
            raise StrictDataclassFieldValidationError(field=name, cause=error) from error
    num_labels = given.get("num_labels", 0)
    if type(num_labels) is not int or num_labels < 0:
        raise ValueError(f"`num_labels` must be a whole number of at least 0, got {num_labels!r}.")
    if "num_labels" in given and config.id2label is not None and len(config.id2label) != num_labels:
        raise ValueError(f"`num_labels` is {num_labels}, but `id2label` names {len(config.id2label)} classes.")


# Copied from hf_video.models.videovit.configuration_videovit._read_checked
def _read_checked(read: Callable[..., Any], config_dict: dict[str, Any], **kwargs: Any) -> Any:
    """
    Read a saved configuration, and check the fields that `kwargs` change after its construction.

    Args:
        read: `from_dict` of Transformers.
        config_dict: the saved fields. If `kwargs` have another number of labels, the names of the classes are dropped.
        kwargs: arguments of `read`.
    """
    if "num_labels" in kwargs and kwargs["num_labels"] != len(config_dict.get("id2label") or ()):
        config_dict = {**config_dict, "id2label": None, "label2id": None}
    made = read(config_dict, **kwargs)
    config = made[0] if isinstance(made, tuple) else made
    config.validate()
    _check_inherited(config, kwargs)
    return made


__all__ = ["MemoryBankQFormerConfig"]
