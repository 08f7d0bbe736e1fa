"""Declares the settings of `train`, `pretrain`, `train_answers` and `probe`. Nothing here imports PyTorch, so that
`--help` is fast."""

from dataclasses import dataclass, fields
from typing import Annotated, Any, Literal

from annotated_types import Lt

from hf_video.data.video_settings import (
    ClipAugmentationSettings,
    ClipMixingSettings,
    DatasetSettings,
    DetectionDataSettings,
    KeptFramesSettings,
    LabelledVideosSettings,
    OnError,
    StreamSettings,
)
from hf_video.inference.inference_settings import ClassificationSettings, ReadingSettings
from hf_video.settings import AtLeast1, BelowOne, NotNegative, Positive, Settings, setting, settings_of, with_defaults

from .training_settings import (
    AnswerTrainingSettings,
    CaptionSettings,
    DetectionSettings,
    DetectionTrainingSettings,
    FrameSettings,
    FrameTrainingSettings,
    PreTrainingSettings,
    ProbeTrainingSettings,
    RetrievalTrainingSettings,
    VideoTrainingSettings,
)

# Up to so many training clips, `train` begins with the start that ships. A model learns more from many thousands than
# from generated videos.
MAX_CLIPS_FOR_START = 1000
# The names of `SAMPLING_STRATEGIES`, whose module would import NumPy.
SamplingStrategy = Literal["dense", "strided", "uniform", "tsn", "sparse", "linspace", "middle"]


@dataclass(kw_only=True)
class RecipeSettings:
    """Recipe"""

    recipe: str | None = setting(
        None, "A published recipe, or a YAML file of settings; a flag wins.", "NAME_OR_FILE", common=True
    )
    training_arguments: dict[str, Any] = setting({}, "Other fields of transformers.TrainingArguments.")


@dataclass(kw_only=True)
class RunSettings(LabelledVideosSettings, KeptFramesSettings, RecipeSettings, Settings):
    """Data and output"""

    data: str = setting(None, "Labelled videos, or rows of texts.", "DATA", form="word", changeable=True, common=True)
    output_dir: str = setting(
        None, "Folder for the model, checkpoints and report.", "DIR", changeable=True, common=True
    )
    resume: Literal["must", "auto"] | None = setting(
        None,
        "Continue an interrupted run, with the settings it had; auto: begin if there is no checkpoint yet, so that "
        "the same command starts and restarts.",
        "[auto]",
        bare="must",
        common=True,
    )
    overwrite_output_dir: bool = setting(
        False,
        "Start afresh although DIR has files; it is renamed to DIR.backup-1 (-2, ...), nothing is deleted.",
        common=True,
    )
    device: Literal["auto", "cpu", "cuda", "mps"] = setting(
        "auto", "Where to train; auto: on an accelerator if there is one.", changeable=True, common=True
    )


@dataclass(kw_only=True)
class HeldOutSettings:
    """Held-out and broken videos"""

    validation_fraction: Annotated[Positive[float], Lt(1)] = setting(
        0.2, "Share of each class, or of captioned videos, held out if DATA has no validation split.", common=True
    )
    split_by: str | None = setting(
        None,
        "Hold out whole videos, all rows with some values of a COLUMN of the list, or the last seconds of each class; "
        "by default videos, and seconds of one recording.",
        "time|video|COLUMN",
        common=True,
    )


@dataclass(kw_only=True)
class TrainingVideosSettings(HeldOutSettings):
    """Held-out and broken videos"""

    on_error: OnError = setting(
        "error",
        "A video that cannot be read: stop, leave it out, or train on another one in its place.",
        changeable=True,
        common=True,
    )


@dataclass(kw_only=True)
class LongRowsSettings:
    """Data and output"""

    clip_duration: NotNegative[float] | None = setting(
        None,
        "Rows with times that last at least twice as many seconds are cut into clips of about so many; 0: no row is. "
        "By default as long as the model's clips, published recipes say 0.",
    )


@dataclass(kw_only=True)
class ClassifierSettings:
    """Model"""

    model: str | None = setting(
        None,
        "What to fine-tune: a folder, Hub or released name; start: the VideoViT that ships, by default for up to "
        f"{MAX_CLIPS_FOR_START:,} clips without a size; scratch: random weights.",
        "MODEL",
        common=True,
    )
    num_frames: AtLeast1[int] | None = setting(None, "Frames in a clip.", from_scratch=16, common=True)
    frame_sampling_rate: AtLeast1[int] | None = setting(
        None, "Distance between two frames of a dense or strided clip.", from_scratch=4
    )
    sampling_strategy: SamplingStrategy | None = setting(
        None,
        "How frames are chosen: dense and strided keep a distance, the others cover the whole video. The published "
        "trainings drew strided, tsn or sparse clips.",
        from_scratch="uniform",
        common=True,
    )
    image_size: AtLeast1[int] | None = setting(
        None, "Height and width of a clip in pixels.", from_scratch=112, common=True
    )
    num_clips: AtLeast1[int] | None = setting(
        None, "Clips of a video in the report and wherever the model is used; by default the model's.", changeable=True
    )
    num_crops: AtLeast1[int] | None = setting(
        None, "Crops of a clip in the report and wherever the model is used; by default the model's.", changeable=True
    )


@dataclass(kw_only=True)
class RegularizationSettings:
    """Model"""

    drop_path_rate: BelowOne[float] | None = setting(None, "Largest rate of stochastic depth; by default the model's.")
    classifier_dropout: BelowOne[float] | None = setting(None, "Dropout before the head; by default the model's.")
    classifier_init_scale: Positive[float] | None = setting(
        None, "Factor on the first weights of a fresh head; by default the model's."
    )


@dataclass(kw_only=True)
class ScratchSettings:
    """Model from scratch, without --model"""

    patch_size: AtLeast1[int] = setting(16, "Pixels on a side of a patch.")
    tubelet_size: AtLeast1[int] = setting(2, "Frames in a patch.")
    hidden_size: AtLeast1[int] = setting(192, "Width of a token.")
    num_hidden_layers: AtLeast1[int] = setting(6, "Number of layers.")
    num_attention_heads: AtLeast1[int] = setting(3, "Attention heads of a layer.")


# What `train` and `pretrain` change of the settings that they share with their arguments.
_OF_RUNS: dict[str, Any] = {
    "num_train_epochs": 20.0,
    "learning_rate": {"from_scratch": 1e-3},
    "per_device_eval_batch_size": None,
    "dataloader_pin_memory": None,
}
# What is meant for 20 to 500 clips, from the start that ships. `benchmarks/small_data.py` leaves out one after the
# other, and with `--sweep` compares other values. No clip is mirrored, since left and right may be classes under any
# name.
_FROM_START: dict[str, Any] = {
    "num_train_epochs": {"default": 20.0, "from_start": 40.0},
    "learning_rate": {"from_scratch": 1e-3, "from_start": 5e-4},
    # A dozen validation clips cannot tell checkpoints apart, and their loss is least before anything is learned.
    "load_best_model_at_end": {"from_start": False},
    "crop_min_area": {"from_start": 0.5},
    "color_jitter": {"from_start": 0.4},
}


@dataclass(kw_only=True)
class TaskSettings:
    """Data and output"""

    task: Literal["classification", "retrieval", "action-detection", "frame-classification"] = setting(
        "classification",
        "What is learned: classes, captions of videos, actions of persons, or the class of each frame.",
    )


@dataclass(kw_only=True)
@with_defaults(**_OF_RUNS | _FROM_START)
class TrainSettings(
    RunSettings,
    TaskSettings,
    LongRowsSettings,
    DatasetSettings,
    StreamSettings,
    ClassifierSettings,
    RegularizationSettings,
    VideoTrainingSettings,
    TrainingVideosSettings,
    ClipAugmentationSettings,
    ClipMixingSettings,
    CaptionSettings,
    DetectionDataSettings,
    DetectionSettings,
    FrameSettings,
    ScratchSettings,
):
    """Settings of `hf_video.training.train`, and of the command `hf-video train`. Fields that are None or left at
    their defaults take those of the recipe, of the model, or of a run that is resumed."""


@dataclass(kw_only=True)
@with_defaults(data={"help": "Videos, which need no labels."})
class UnlabelledRunSettings(RunSettings):
    """Data and output"""


@dataclass(kw_only=True)
@with_defaults(sampling_strategy={"from_scratch": "dense"})
class EncoderSettings(ClassifierSettings):
    """Model"""

    model: str | None = setting(
        None, "Model folder or Hub name to go on from; by default a model from scratch.", "MODEL", common=True
    )


@dataclass(kw_only=True)
class TeacherSettings:
    """Model"""

    teacher: str | None = setting(
        None,
        "Image model that a VideoMamba learns from, such as openai/clip-vit-base-patch16: a folder or Hub name.",
        "MODEL",
        common=True,
    )


@dataclass(kw_only=True)
class MaskedModelSettings:
    """Model"""

    mask_ratio: Annotated[Positive[float], Lt(1)] | None = setting(
        None,
        "Share of patches that are hidden; by default the model's, from scratch 0.9 or, for a VideoMamba, 0.8.",
        common=True,
    )
    drop_path_rate: BelowOne[float] | None = setting(None, "Largest rate of stochastic depth; by default the model's.")
    norm_pix_loss: bool | None = setting(
        None,
        "Reconstruct pixels that are standardised by patch and channel; by default the model's, from scratch true.",
    )
    last_aligned_feature: Literal["normalized", "raw", "unmixed"] | None = setting(
        None, "What of a VideoMamba's last layer is aligned: unmixed as the released models; by default the model's."
    )


@dataclass(kw_only=True)
class MaskedScratchSettings(ScratchSettings):
    """Model from scratch, without --model"""

    family: Literal["videovit", "videomamba"] = setting("videovit", "What learns: pixels, or the teacher's features.")
    intermediate_size: AtLeast1[int] | None = setting(
        None, "Width of the hidden layer of an MLP; by default four times hidden_size."
    )
    decoder_hidden_size: AtLeast1[int] | None = setting(
        None, "Width of a token in the decoder; by default half of hidden_size."
    )
    decoder_num_hidden_layers: NotNegative[int] = setting(4, "Number of layers of the decoder.")
    decoder_num_attention_heads: AtLeast1[int] | None = setting(
        None, "Attention heads of a layer of the decoder; by default half of num_attention_heads."
    )


@dataclass(kw_only=True)
@with_defaults(**_OF_RUNS)
class PretrainSettings(
    UnlabelledRunSettings,
    EncoderSettings,
    TeacherSettings,
    MaskedModelSettings,
    PreTrainingSettings,
    TrainingVideosSettings,
    ClipAugmentationSettings,
    MaskedScratchSettings,
):
    """Settings of `hf_video.training.pretrain`, and of the command `hf-video pretrain`."""

    # What needs classes, an evaluation or a trained head.
    without = (
        *("num_clips", "num_crops", "validation_fraction", "split_by", "label_smoothing_factor", "label_names"),
        *("eval_strategy", "eval_steps", "eval_delay", "eval_accumulation_steps", "per_device_eval_batch_size"),
        *("load_best_model_at_end", "metric_for_best_model", "greater_is_better", "neftune_noise_alpha"),
        *("linear_probe", "freeze_layers", "lora_rank", "lora_alpha", "distillation_teacher", "distillation_weight"),
        *("distillation_temperature", "ema_decay"),
        *("loss", "focal_gamma", "class_weights", "sampler"),
    )


@dataclass(kw_only=True)
class AnsweringModelSettings:
    """Model"""

    model: str = setting(None, "Folder or Hub name of the MemoryBankQFormer to fine-tune.", "MODEL", common=True)
    num_frames: AtLeast1[int] | None = setting(None, "Frames of a video; by default the model's.", common=True)
    sampling_strategy: SamplingStrategy | None = setting(
        None, "How frames are chosen; by default the model's.", common=True
    )
    memory_bank_length: NotNegative[int] | None = setting(
        None, "Frames that the memory holds, 0 for no memory; by default the model's.", common=True
    )


@dataclass(kw_only=True)
class TrainAnswersSettings(RunSettings, AnsweringModelSettings, AnswerTrainingSettings, ClipAugmentationSettings):
    """Settings of `hf_video.training.train_answers`, and of the command `hf-video train-answers`."""

    # A data set of texts has one view of each video.
    without = ("num_augmentations",)


@dataclass(kw_only=True)
class VideoTextModelSettings:
    """Model"""

    model: str = setting(None, "Folder or Hub name of the video-text model to fine-tune.", "MODEL", common=True)
    num_frames: AtLeast1[int] | None = setting(None, "Frames of a clip; by default the model's.", common=True)
    sampling_strategy: SamplingStrategy | None = setting(
        None, "How frames are chosen; by default the model's.", common=True
    )


@dataclass(kw_only=True)
@with_defaults(num_train_epochs=20.0, per_device_eval_batch_size=None)
class TrainRetrievalSettings(
    RunSettings, VideoTextModelSettings, RetrievalTrainingSettings, HeldOutSettings, ClipAugmentationSettings
):
    """Settings of `hf_video.training.train_retrieval`, and of `hf-video train --task retrieval`."""

    # A caption has one clip, and the whole model is trained. Whole videos are held out.
    without = (
        *("num_augmentations", "lora_rank", "lora_alpha", "label_smoothing_factor", "neftune_noise_alpha"),
        "split_by",
    )


@dataclass(kw_only=True)
class DetectorSettings:
    """Model"""

    model: str = setting(
        None, "The detector to train, or the backbone of a detector: a folder or Hub name.", "MODEL", common=True
    )
    num_frames: AtLeast1[int] | None = setting(None, "Frames of a clip; by default the model's.", common=True)
    frame_sampling_rate: AtLeast1[int] | None = setting(
        None, "Distance between two frames of a clip, in frames of a 30th of a second; by default the model's, or 4."
    )
    image_size: AtLeast1[int] | None = setting(
        None, "Shorter side of a clip in pixels; by default the model's.", common=True
    )
    drop_path_rate: BelowOne[float] | None = setting(
        None, "Largest rate of stochastic depth in the backbone; by default the model's."
    )


@dataclass(kw_only=True)
@with_defaults(num_train_epochs=20.0, per_device_eval_batch_size=None)
class TrainDetectionSettings(RunSettings, DetectionDataSettings, DetectorSettings, DetectionTrainingSettings):
    """Settings of `hf_video.training.train_detection`, and of `hf-video train --task action-detection`."""

    # The whole model is trained, and losses are those of the detector. Its clips have several sizes.
    without = ("lora_rank", "lora_alpha", "label_smoothing_factor", "neftune_noise_alpha", "kept_frames_gib")


@dataclass(kw_only=True)
class FrameModelSettings:
    """Model"""

    model: str | None = setting(
        None,
        "What to fine-tune, a VideoMamba or VideoViT: a folder or Hub name; by default a model with random weights.",
        "MODEL",
        common=True,
    )
    num_frames: AtLeast1[int] | None = setting(None, "Frames of a training clip.", from_scratch=32, common=True)
    image_size: AtLeast1[int] | None = setting(
        None, "Height and width of a clip in pixels.", from_scratch=112, common=True
    )


@dataclass(kw_only=True)
@with_defaults(num_train_epochs=20.0, per_device_eval_batch_size=None, learning_rate={"from_scratch": 1e-3})
class TrainFrameSettings(
    RunSettings,
    FrameModelSettings,
    RegularizationSettings,
    FrameTrainingSettings,
    HeldOutSettings,
    ClipAugmentationSettings,
    ScratchSettings,
):
    """Settings of `hf_video.training.train_frames`, and of `hf-video train --task frame-classification`."""

    # A clip has one view, its frames have hard labels, and the whole model is trained.
    without = (
        *("num_augmentations", "lora_rank", "lora_alpha", "label_smoothing_factor", "neftune_noise_alpha"),
        "classifier_init_scale",
    )


# For each other task of `train` its settings, and those which `train` has for it alone.
TASKS: dict[str, tuple[type[Settings], tuple[type, ...]]] = {
    "retrieval": (TrainRetrievalSettings, (CaptionSettings,)),
    "action-detection": (TrainDetectionSettings, (DetectionDataSettings, DetectionSettings)),
    "frame-classification": (TrainFrameSettings, (FrameSettings,)),
}


def settings_of_task(settings: TrainSettings) -> Any:
    """What was given of the settings of `train`, as the settings of its task.

    Raises:
        ValueError: a setting that was given is for another task.
    """
    given = {name: getattr(settings, name) for name in settings.given if name != "task"}
    kind = TASKS[settings.task][0] if settings.task in TASKS else TrainSettings
    others = {
        each.name: f"without --task {task}"
        for task, (_, groups) in TASKS.items()
        if task != settings.task
        for group in groups
        for each in fields(group)
    }
    for name in given:
        if name in others or name not in settings_of(kind):
            flag = settings_of(TrainSettings)[name].flag
            where = others.get(name, f"with --task {settings.task}")
            raise ValueError(f"{flag} has no effect {where}: leave it out.")
    return kind(**given)


@dataclass(kw_only=True)
@with_defaults(data=None, model=None)
class ProbeSettings(
    ReadingSettings, HeldOutSettings, ClassificationSettings, ProbeTrainingSettings, RecipeSettings, Settings
):
    """Probe"""

    output_dir: str = setting(None, "Folder for the probe and its report; new or empty.", "DIR", common=True)
    features: str | None = setting(
        None, "Where features are kept; by default in the cache folder of Hugging Face.", "DIR"
    )
