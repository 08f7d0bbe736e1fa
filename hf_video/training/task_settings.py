"""Declares what each task of a training takes: a class that is composed of groups of settings.

Every field of `transformers.TrainingArguments` is a setting, too. Nothing here imports PyTorch or Transformers.
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from annotated_types import Lt

from hf_video.data.video_settings import (
    ClipAugmentationSettings,
    ClipMixingSettings,
    DatasetSettings,
    DetectionDataSettings,
    KeptFramesSettings,
    LabelledVideosSettings,
    OnError,
    RepeatedAugmentationSettings,
    StreamSettings,
)
from hf_video.inference.inference_settings import ClassificationSettings, ReadingSettings
from hf_video.loading.released import SHIPPED
from hf_video.settings import (
    AtLeast1,
    BelowOne,
    Changeable,
    Common,
    Expected,
    Mark,
    NotNegative,
    Positive,
    Seed,
    Settings,
    setting,
    with_defaults,
)

from .settings import (
    AnswerTrainingSettings,
    DetectionTrainingSettings,
    FrameTrainingSettings,
    LearningRateSettings,
    MaskSettings,
    OptimizationSettings,
    RetrievalTrainingSettings,
    VideoTrainingSettings,
)

# With these, a probe of some thousand videos takes seconds on a laptop.
PROBE_DEFAULTS: dict[str, Any] = {
    "num_train_epochs": 50,
    "per_device_train_batch_size": 64,
    "per_device_eval_batch_size": 256,
    "learning_rate": 3e-3,
    "weight_decay": 0.01,
    "lr_scheduler_type": "cosine",
    "warmup_steps": 0.1,
    "dataloader_pin_memory": False,
    "eval_strategy": "epoch",
    "logging_strategy": "epoch",
    "save_strategy": "best",
    "save_total_limit": 1,
    "save_only_model": True,
    "load_best_model_at_end": True,
    "metric_for_best_model": "loss",
    "remove_unused_columns": False,
    "report_to": "none",
    "disable_tqdm": True,
}
_DECLARED_FOR_PROBES = ("num_train_epochs", "per_device_train_batch_size", "per_device_eval_batch_size")
# Up to so many training clips, `train` begins with the bundled model. A model learns more from many thousands than
# from generated videos and pictures.
MAX_CLIPS_FOR_START = 1000
StepsOrAll = Expected("-1 or a whole number of at least 1", lambda value: value == -1 or value >= 1)
# The names of `SAMPLING_STRATEGIES`, whose module would import NumPy.
SamplingStrategy = Literal["dense", "strided", "uniform", "tsn", "padded_tsn", "sparse", "linspace", "middle"]


@dataclass(kw_only=True)
class RecipeSettings:
    """Data and output"""

    recipe: Common[str | None] = setting(
        None, "A published recipe, or a YAML file of settings; a flag wins.", "NAME_OR_FILE"
    )
    training_arguments: dict[str, Any] = setting({}, "Other fields of transformers.TrainingArguments.")


@dataclass(kw_only=True)
class PaceSettings:
    """Training"""

    num_train_epochs: Changeable[Common[Annotated[Positive[float], Mark(alias="epochs")]]] = setting(20.0, "Epochs.")
    max_steps: Changeable[Annotated[int, StepsOrAll]] = setting(-1, "Steps to train, in place of epochs; -1: none.")
    per_device_train_batch_size: Common[Annotated[AtLeast1[int], Mark(alias="batch_size")]] = setting(
        8, "Videos in a step of each process."
    )
    seed: Common[Seed[int]] = setting(42, "Seed of weights, augmentation and held-out videos.")
    bf16: Common[bool | None] = setting(None, "Train in bfloat16; by default on a GPU that has it.")
    dataloader_num_workers: Changeable[Common[Annotated[NotNegative[int], Mark(alias="num_workers")]]] = setting(
        0, "Processes that read videos; 0: this one."
    )
    dataloader_pin_memory: Changeable[bool | None] = setting(
        None, "Pin batches for an accelerator; else if it is used."
    )


@dataclass(kw_only=True)
class MeasuringSettings:
    """Training"""

    per_device_eval_batch_size: Changeable[AtLeast1[int] | None] = setting(
        None, "Clips in a batch of evaluation; by default as in training."
    )


@dataclass(kw_only=True)
class RunSettings(LabelledVideosSettings, RecipeSettings, PaceSettings, Settings):
    """Data and output"""

    metrics: ClassVar[Collection[str]] = ()
    """What an evaluation measures besides the loss: the values of `metric_for_best_model`."""

    data: Changeable[Common[Annotated[str, Mark(form="word")]]] = setting(None, "Videos, or rows of texts.", "DATA")
    output_dir: Changeable[Common[str]] = setting(None, "Folder for the model, checkpoints and report.", "DIR")
    resume: Common[Annotated[Literal["must", "auto"] | None, Mark(bare="must")]] = setting(
        None, "Continue an interrupted run, with its settings; auto: begin if there is no checkpoint.", "auto"
    )
    overwrite_output_dir: Common[bool] = setting(False, "Start afresh; a DIR with files is renamed to DIR.backup-1.")
    device: Changeable[Common[Literal["auto", "cpu", "cuda", "mps"]]] = setting(
        "auto", "Where to train; auto: on an accelerator if there is one."
    )


@dataclass(kw_only=True)
class HeldOutSettings:
    """Held-out and broken videos"""

    validation_fraction: Common[Annotated[Positive[float], Lt(1)]] = setting(
        0.2, "Share of each class, or of captioned videos, held out if DATA has no validation split."
    )


@dataclass(kw_only=True)
class SplitSettings:
    """Held-out and broken videos"""

    split_by: Common[str | None] = setting(
        None,
        "What is held out: the last seconds of each class, whole videos, or all rows with some values of a COLUMN.",
        "time|video|COLUMN",
    )


@dataclass(kw_only=True)
class BrokenVideosSettings:
    """Held-out and broken videos"""

    on_error: Changeable[Common[OnError]] = setting(
        "error", "A video that cannot be read: stop, leave it out, or train on another one in its place."
    )


@dataclass(kw_only=True)
class ClipSettings:
    """Model"""

    num_frames: Common[Annotated[AtLeast1[int] | None, Mark(from_scratch=16)]] = setting(None, "Frames in a clip.")
    frame_sampling_rate: Annotated[AtLeast1[int] | None, Mark(from_scratch=4)] = setting(
        None, "Distance between two frames of a dense or strided clip."
    )
    sampling_strategy: Common[Annotated[SamplingStrategy | None, Mark(from_scratch="uniform")]] = setting(
        None, "How frames are chosen: dense and strided keep a distance, the others cover the whole video."
    )
    image_size: Common[Annotated[AtLeast1[int] | None, Mark(from_scratch=112)]] = setting(
        None, "Height and width of a clip in pixels."
    )


@dataclass(kw_only=True)
class SavedClipSettings:
    """Model"""

    num_frames: Common[AtLeast1[int] | None] = setting(None, "Frames of a clip; by default the model's.")
    sampling_strategy: Common[SamplingStrategy | None] = setting(
        None, "How frames are chosen; by default the model's."
    )


@dataclass(kw_only=True)
class RegularizationSettings:
    """Model"""

    drop_path_rate: BelowOne[float] | None = setting(None, "Largest rate of stochastic depth; by default the model's.")
    classifier_dropout: BelowOne[float] | None = setting(None, "Dropout before the head; by default the model's.")


@dataclass(kw_only=True)
class HeadSettings:
    """Model"""

    classifier_init_scale: Positive[float] | None = setting(
        None, "Factor on the first weights of a fresh head; by default the model's."
    )
    pooler_type: Literal["attentive"] | None = setting(None, "V-JEPA 2's pooler for a fresh head; else the model's.")


@dataclass(kw_only=True)
class MaskedModelSettings:
    """Model"""

    mask_ratio: Common[Annotated[Positive[float], Lt(1)] | None] = setting(
        None, "Share of patches that are hidden; by default the model's, from scratch 0.9 or, for a VideoMamba, 0.8."
    )
    drop_path_rate: BelowOne[float] | None = setting(None, "Largest rate of stochastic depth; by default the model's.")
    norm_pix_loss: bool | None = setting(None, "Reconstruct pixels that are standardised by patch and channel.")
    last_aligned_feature: Literal["normalized", "raw", "unmixed"] | None = setting(
        None, "What of a VideoMamba's last layer is aligned: unmixed as the released models; by default the model's."
    )


@dataclass(kw_only=True)
class ScratchSettings:
    """Model from scratch, without --model"""

    patch_size: AtLeast1[int] = setting(16, "Pixels on a side of a patch.")
    tubelet_size: AtLeast1[int] = setting(2, "Frames in a patch.")
    hidden_size: AtLeast1[int] = setting(192, "Width of a token.")
    num_hidden_layers: AtLeast1[int] = setting(6, "Number of layers.")
    num_attention_heads: AtLeast1[int] = setting(3, "Attention heads of a layer.")


@dataclass(kw_only=True)
class MaskedScratchSettings(ScratchSettings):
    """Model from scratch, without --model"""

    family: Literal["videovit", "videomamba"] = setting("videovit", "What learns: pixels, or the teacher's features.")
    intermediate_size: AtLeast1[int] | None = setting(None, "Width inside an MLP; by default four times hidden_size.")
    decoder_hidden_size: AtLeast1[int] | None = setting(None, "Width of the decoder; by default half of hidden_size.")
    decoder_num_hidden_layers: NotNegative[int] = setting(4, "Number of layers of the decoder.")
    decoder_num_attention_heads: AtLeast1[int] | None = setting(None, "Attention heads of the decoder; else half.")


# Losses of their own have neither.
_OF_CLASS_LOSSES = ("label_smoothing_factor", "neftune_noise_alpha")


# What is meant for 20 to 500 clips, from the bundled model. `benchmarks/small_data.py` leaves out one after the
# other, and with `--sweep` compares other values. No clip is mirrored, since left and right may be classes under any
# name. A dozen validation clips cannot tell checkpoints apart, and their loss is least before anything is learned.
@dataclass(kw_only=True)
@with_defaults(
    num_train_epochs=Mark(from_start=40.0),
    learning_rate=Mark(from_scratch=1e-3, from_start=8e-4),
    label_smoothing_factor=Mark(from_start=0.1),
    load_best_model_at_end=Mark(from_start=False),
    crop_min_area=Mark(from_start=0.5),
    color_jitter=Mark(from_start=0.4),
)
class TrainSettings(
    RunSettings,
    KeptFramesSettings,
    DatasetSettings,
    StreamSettings,
    ClipSettings,
    RegularizationSettings,
    HeadSettings,
    MeasuringSettings,
    VideoTrainingSettings,
    HeldOutSettings,
    SplitSettings,
    BrokenVideosSettings,
    ClipAugmentationSettings,
    RepeatedAugmentationSettings,
    ClipMixingSettings,
    ScratchSettings,
):
    """Model

    Settings of a classification. Fields that are None or left at their defaults take those of the recipe, of the
    model, or of a run that is resumed.
    """

    metrics = ("top1_accuracy", "top5_accuracy", "mean_class_accuracy", "mean_average_precision")

    model: Common[str | None] = setting(
        None,
        "What to fine-tune: a folder, Hub or released name; start: the bundled model, by default for up to "
        f"{MAX_CLIPS_FOR_START:,} clips without a size; scratch: random weights.",
        "MODEL",
    )
    clip_duration: NotNegative[float] | None = setting(
        None, "Longer rows are cut into clips of about so many seconds, by default of the model's length; 0: none is."
    )
    num_clips: Changeable[AtLeast1[int] | None] = setting(
        None, "Clips of a video in the report and wherever the model is used; by default the model's."
    )
    num_crops: Changeable[AtLeast1[int] | None] = setting(
        None, "Crops of a clip in the report and wherever the model is used; by default the model's."
    )


@dataclass(kw_only=True)
@with_defaults(learning_rate=Mark(from_scratch=1e-3, from_start=8e-4))
class TrainFrameSettings(
    RunSettings,
    KeptFramesSettings,
    RegularizationSettings,
    MeasuringSettings,
    FrameTrainingSettings,
    HeldOutSettings,
    SplitSettings,
    BrokenVideosSettings,
    ClipAugmentationSettings,
    ScratchSettings,
):
    """Model

    Settings of a classification of frames.
    """

    metrics = ("f1_50", "f1_25", "f1_10", "edit_score", "frame_accuracy", "point_map")
    no_effect = _OF_CLASS_LOSSES

    model: Common[str | None] = setting(
        None,
        "The VideoMamba or VideoViT to fine-tune; start: the bundled model, by default without a size, --family or "
        "--causal; scratch: random weights.",
        "MODEL",
    )
    num_frames: Common[Annotated[AtLeast1[int] | None, Mark(from_scratch=32)]] = setting(
        None, "Frames of a training clip."
    )
    image_size: Common[Annotated[AtLeast1[int] | None, Mark(from_scratch=112)]] = setting(
        None, "Height and width of a clip in pixels."
    )


@dataclass(kw_only=True)
class TrainDetectionSettings(RunSettings, DetectionDataSettings, MeasuringSettings, DetectionTrainingSettings):
    """Model

    Settings of a training on persons and their actions.
    """

    metrics = ("mean_ap",)
    no_effect = _OF_CLASS_LOSSES

    model: Common[str] = setting(
        None, "The detector to train, or the backbone of a detector: a folder or Hub name.", "MODEL"
    )
    num_frames: Common[AtLeast1[int] | None] = setting(None, "Frames of a clip; by default the model's.")
    frame_sampling_rate: AtLeast1[int] | None = setting(
        None, "Distance between two frames of a clip, in frames of a 30th of a second; by default the model's, or 4."
    )
    image_size: Common[AtLeast1[int] | None] = setting(None, "Shorter side of a clip; by default the model's.")
    drop_path_rate: BelowOne[float] | None = setting(None, "Largest rate of stochastic depth in the backbone.")


@dataclass(kw_only=True)
class TrainRetrievalSettings(
    RunSettings,
    KeptFramesSettings,
    SavedClipSettings,
    MeasuringSettings,
    RetrievalTrainingSettings,
    HeldOutSettings,
    ClipAugmentationSettings,
):
    """Model

    Settings of a training on captions.
    """

    metrics = tuple(f"{way}_r{k}" for way in ("text_to_video", "video_to_text") for k in (1, 5, 10))
    no_effect = _OF_CLASS_LOSSES

    model: Common[str] = setting(None, "Folder or Hub name of the video-text model to fine-tune.", "MODEL")


@dataclass(kw_only=True)
@with_defaults(num_train_epochs=3.0, per_device_eval_batch_size=8)
class TrainAnswersSettings(
    RunSettings,
    KeptFramesSettings,
    SavedClipSettings,
    MeasuringSettings,
    AnswerTrainingSettings,
    ClipAugmentationSettings,
):
    """Model

    Settings of a training on questions and answers, or captions.
    """

    metrics = ("top1", "any")

    model: Common[str] = setting(None, "Folder or Hub name of the MemoryBankQFormer to fine-tune.", "MODEL")
    memory_bank_length: Common[NotNegative[int] | None] = setting(
        None, "Frames that the memory holds, 0 for no memory; by default the model's."
    )


@dataclass(kw_only=True)
@with_defaults(learning_rate=Mark(from_scratch=1e-3), sampling_strategy=Mark(from_scratch="dense"))
class PretrainSettings(
    RunSettings,
    KeptFramesSettings,
    ClipSettings,
    MaskedModelSettings,
    OptimizationSettings,
    LearningRateSettings,
    MaskSettings,
    BrokenVideosSettings,
    ClipAugmentationSettings,
    RepeatedAugmentationSettings,
    MaskedScratchSettings,
):
    """Model

    Settings of a masked pre-training. It evaluates nothing, and its result is the last model.
    """

    no_effect = (
        *("eval_strategy", "eval_steps", "eval_delay", "eval_accumulation_steps", "per_device_eval_batch_size"),
        *("load_best_model_at_end", "metric_for_best_model", "greater_is_better", "label_names"),
        *_OF_CLASS_LOSSES,
    )

    model: Common[str | None] = setting(None, "What to go on from; by default a model from scratch.", "MODEL")
    teacher: Common[str | None] = setting(
        None, "Image model that a VideoMamba learns from, such as openai/clip-vit-base-patch16.", "MODEL"
    )


@dataclass(kw_only=True)
class KeptFeaturesSettings:
    """Features"""

    features: str | None = setting(
        None, "Where features are kept; by default in the cache folder of Hugging Face.", "DIR"
    )


@dataclass(kw_only=True)
@with_defaults(data=None, model=None, **{name: PROBE_DEFAULTS[name] for name in _DECLARED_FOR_PROBES})
class ProbeSettings(
    KeptFeaturesSettings,
    ReadingSettings,
    HeldOutSettings,
    SplitSettings,
    ClassificationSettings,
    PaceSettings,
    MeasuringSettings,
    RecipeSettings,
    Settings,
):
    """Probe"""

    learning_rate: Common[Annotated[NotNegative[float], Mark(alias="lr")]] = setting(
        PROBE_DEFAULTS["learning_rate"], "The peak learning rate."
    )
    weight_decay: Common[NotNegative[float]] = setting(
        PROBE_DEFAULTS["weight_decay"], "Weight decay of the optimizer."
    )
    output_dir: Common[str] = setting(None, "Folder for the probe and its report; new or empty.", "DIR")


@dataclass(kw_only=True)
@with_defaults(model=SHIPPED)
class PlanSettings(KeptFeaturesSettings, ReadingSettings, ClassificationSettings, Settings):
    """Plan"""

    more: AtLeast1[int] = setting(30, "Further clips of each class whose gain is foretold.")
    seed: Seed[int] = setting(0, "Seed of the draws.")
    json: bool = setting(False, "Print one JSON object.")
