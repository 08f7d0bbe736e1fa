"""MemoryBankQFormer model configuration."""

import copy
from typing import Any, Literal

from huggingface_hub.dataclasses import strict
from transformers import AutoConfig, InstructBlipQFormerConfig
from transformers.configuration_utils import PreTrainedConfig, SubConfigSpec

from ..shared_configuration import CheckedConfigMixin, check_limits
from .memory_compression import POLICIES

LIMITS = {
    "at least 1": ["num_query_tokens", "max_num_frames", "projection_dim", "expected_num_frames"],
    "at least 0": ["memory_bank_length", "video_token_id", "initializer_range"],
    "above 0": ["vision_layer_norm_eps"],
    "in [0, 1)": ["classifier_dropout"],
}


@strict
class MemoryBankQFormerConfig(CheckedConfigMixin, PreTrainedConfig):
    r"""
    Configuration of the MemoryBankQFormer family: the long-video Q-Former of MA-LMM
    (https://arxiv.org/abs/2404.05726). By default it is that Q-Former on precomputed features of EVA-ViT-g.

    Args:
        vision_config (`PreTrainedConfig` or `dict`, *optional*):
            Vision tower: any image encoder of Transformers, such as [`InstructBlipVisionConfig`] for EVA-ViT, or a
            video encoder with `tubelet_size=1`. Its `hidden_size` sets `qformer_config.encoder_hidden_size`. A model
            without a tower takes `vision_embeds`.
        qformer_config (`InstructBlipQFormerConfig` or `dict`, *optional*):
            The Q-Former; by default that of InstructBLIP.
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
        memory_policy (`str`, defaults to `"merge"`, that of MA-LMM):
            What happens when a bank is full: a key of `POLICIES` in `memory_compression.py`, which describes each.
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
            Id of the token that holds the place of a video in a text; by default the first number that the language
            model has no token for, `text_config.vocab_size`.

    Raises:
        ValueError: if a value is out of range, or values contradict each other. The message names them.
    """

    model_type = "memory_bank_qformer"
    keys_to_ignore_at_inference = [
        "memory",
        "past_key_values",
        "cache",
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
    memory_policy: str = "merge"
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
            if self.video_token_id is None:
                self.video_token_id = self.text_config.vocab_size
        if self.use_language_projection is None:
            self.use_language_projection = True

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
        check_limits(self, LIMITS)
        if self.memory_policy not in POLICIES:
            raise ValueError(f"`memory_policy` must be one of {', '.join(POLICIES)}, got {self.memory_policy!r}.")
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
        if positions != "absolute":
            # Distances within one sequence have no meaning between the frames of a memory.
            raise ValueError(f"`qformer_config.position_embedding_type` must be 'absolute', got {positions!r}.")


__all__ = ["MemoryBankQFormerConfig"]
