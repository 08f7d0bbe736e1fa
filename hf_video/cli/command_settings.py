"""The settings of each command, put together from their groups."""

from hf_video.data.settings import ClipAugmentationSettings, ClipMixingSettings
from hf_video.training.settings import AnswerTrainingSettings, ProbeTrainingSettings

from .command_line import CommandSettings
from .settings import (
    AnsweringModelSettings,
    AppSettings,
    BulkSettings,
    ClassificationSettings,
    ClassifierSettings,
    DemoSettings,
    EncoderSettings,
    EvaluateSegmentsSettings,
    EvaluateSettings,
    ExplainSettings,
    ExportSettings,
    ExtractSettings,
    HeldOutSettings,
    InspectSettings,
    JsonLinesSettings,
    MaskedModelSettings,
    MaskedScratchSettings,
    PackSettings,
    PredictSettings,
    PretrainSettings,
    ProbeSettings,
    ReadingSettings,
    RegularizationSettings,
    RunLengthSettings,
    RunSettings,
    ScratchSettings,
    TeacherSettings,
    TimelineSettings,
    TrainedModelSettings,
    TrainingVideosSettings,
    TrainSettings,
    UnlabelledRunSettings,
    WatchSettings,
    WindowSettings,
)

# What most people set when they train; `--help` lists these, `--help-all` every setting.
_COMMON = (
    *("data", "output_dir", "device", "model", "teacher", "num_frames", "image_size", "sampling_strategy"),
    *("frame_sampling_rate", "memory_bank_length", "mask_ratio", "num_train_epochs", "per_device_train_batch_size"),
    *("learning_rate", "weight_decay", "layer_decay", "warmup_epochs", "lora_rank", "freeze_layers", "seed", "bf16"),
    *("gradient_accumulation_steps", "dataloader_num_workers", "validation_fraction", "on_error", "prompt", "kind"),
)
TRAIN = CommandSettings(
    RunSettings,
    ClassifierSettings,
    RegularizationSettings,
    RunLengthSettings,
    TrainSettings,
    TrainingVideosSettings,
    ClipAugmentationSettings,
    ClipMixingSettings,
    ScratchSettings,
    takes_training_arguments=True,
    common=_COMMON,
)
PRETRAIN = CommandSettings(
    UnlabelledRunSettings,
    EncoderSettings,
    TeacherSettings,
    MaskedModelSettings,
    PretrainSettings,
    TrainingVideosSettings,
    ClipAugmentationSettings,
    MaskedScratchSettings,
    takes_training_arguments=True,
    common=_COMMON,
    # What needs classes, an evaluation or a trained head.
    without=(
        *("num_clips", "num_crops", "validation_fraction", "label_smoothing_factor", "label_names"),
        *("eval_strategy", "eval_steps", "eval_delay", "eval_accumulation_steps", "per_device_eval_batch_size"),
        *("load_best_model_at_end", "metric_for_best_model", "greater_is_better", "neftune_noise_alpha"),
        *("linear_probe", "freeze_layers", "lora_rank", "lora_alpha", "distillation_teacher", "distillation_target"),
        *("distillation_weight", "distillation_temperature", "ema_decay"),
    ),
)
TRAIN_ANSWERS = CommandSettings(
    RunSettings,
    AnsweringModelSettings,
    AnswerTrainingSettings,
    ClipAugmentationSettings,
    takes_training_arguments=True,
    common=_COMMON,
    # A data set of texts has one view of each video.
    without=("num_augmentations",),
)
PROBE = CommandSettings(
    ReadingSettings,
    HeldOutSettings,
    ProbeSettings,
    ClassificationSettings,
    ProbeTrainingSettings,
    takes_training_arguments=True,
    common=_COMMON,
)
EVALUATE = CommandSettings(ReadingSettings, ClassificationSettings, EvaluateSettings)
EVALUATE_SEGMENTS = CommandSettings(EvaluateSegmentsSettings)
PREDICT = CommandSettings(ClassificationSettings, PredictSettings, BulkSettings)
EXTRACT = CommandSettings(ExtractSettings, WindowSettings, BulkSettings)
INSPECT = CommandSettings(InspectSettings)
PACK = CommandSettings(PackSettings)
DEMO = CommandSettings(DemoSettings)
WATCH = CommandSettings(WatchSettings, JsonLinesSettings)
EXPLAIN = CommandSettings(ExplainSettings)
TIMELINE = CommandSettings(TimelineSettings, WindowSettings, JsonLinesSettings)
EXPORT = CommandSettings(ExportSettings)
APP = CommandSettings(AppSettings, TrainedModelSettings, without=("model",))
# By the name of the command, for the reference page.
ALL = {
    "train": TRAIN,
    "pretrain": PRETRAIN,
    "train-answers": TRAIN_ANSWERS,
    "probe": PROBE,
    "evaluate": EVALUATE,
    "evaluate-segments": EVALUATE_SEGMENTS,
    "predict": PREDICT,
    "extract": EXTRACT,
    "timeline": TIMELINE,
    "explain": EXPLAIN,
    "inspect": INSPECT,
    "pack": PACK,
    "watch": WATCH,
    "app": APP,
    "export": EXPORT,
    "demo": DEMO,
}
