"""Declares the settings of the trainers, which are fields of their `TrainingArguments`, in groups.

Declared again is what `--help` should show, what recipes give, and what has another default than in Transformers.
Nothing here imports PyTorch or Transformers, so that `--help` is fast.
"""

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from annotated_types import Le, Lt

from hf_video.data.video_settings import READING_THREADS, ReadingThreads
from hf_video.settings import (
    AtLeast1,
    BelowOne,
    Changeable,
    Common,
    Expected,
    Mark,
    NotNegative,
    Positive,
    Share,
    setting,
    with_defaults,
)

NO_WEIGHT_DECAY = (
    "cls_token",
    "mask_token",
    "query_tokens",
    "position_embedding",
    "position_embeddings",
    "temporal_position_embeddings",
    "frame_position_embeddings",
    "logit_scale",
    "A_log",
)
"""Names of parameters that should not be pulled towards zero, such as positions and scales."""
LOSSES: dict[str, Any] = {
    "cross_entropy": "hf_video.training.losses:CrossEntropy",
    "focal": "hf_video.training.losses:FocalLoss",
}
"""The classes of training losses by the values of the setting `loss`, or where they are. Add your own."""
LossName = Annotated[
    str, Expected("cross_entropy, focal or another name in LOSSES", lambda name: name in LOSSES, tuple(LOSSES))
]
DecoderMaskRatio = Expected("0, 0.25, 0.5 or 0.75", lambda value: value in (0, 0.25, 0.5, 0.75))
IntervalStrategy = Literal["no", "steps", "epoch"]
# `dict` comes first, so that `HfArgumentParser` takes a word.
ClassWeights = Annotated[
    dict[str, float] | str,
    Expected("balanced, effective, or a file or mapping of names and weights", lambda value: True),
]


@dataclass
class OptimizationSettings:
    """Training"""

    learning_rate: Common[Annotated[NotNegative[float], Mark(alias="lr")]] = setting(1e-4, "The peak learning rate.")
    lr_scheduler_type: str = setting("cosine", "The learning rate schedule after the warm-up.")

    warmup_steps: NotNegative[float] = setting(0.1, "Steps of linear warm-up; below 1, a share of all steps.")
    warmup_epochs: NotNegative[float] | None = setting(None, "Epochs of warm-up, in place of warmup_steps.")
    weight_decay: Common[NotNegative[float]] = setting(0.05, "Weight decay of the optimizer.")
    no_weight_decay: list[str] = setting(
        list(NO_WEIGHT_DECAY), "Parts of parameter names without weight decay, besides biases and norms."
    )

    gradient_accumulation_steps: AtLeast1[int] = setting(1, "Batches whose gradients make one step.")
    save_strategy: Literal["no", "steps", "epoch", "best"] = setting("epoch", "When to save a checkpoint.")
    save_total_limit: Changeable[NotNegative[int] | None] = setting(
        2, "Checkpoints to keep; 2: the best and the last."
    )
    logging_steps: Changeable[Positive[float]] = setting(0.01, "Steps between two logged losses; below 1, a share.")
    reading_threads: ReadingThreads = setting(None, READING_THREADS)
    remove_unused_columns: bool = setting(False, "Drop from the items what the model has no argument for.")


@dataclass
class EvaluationSettings:
    """Training"""

    eval_strategy: IntervalStrategy = setting("epoch", "When to evaluate.")
    load_best_model_at_end: bool = setting(True, "Return to the best checkpoint at the end.")
    metric_for_best_model: str | None = setting(
        None, "The metric that makes a checkpoint the best; among equal ones, the lower loss does."
    )
    label_names: list[str] | None = setting(["labels"], "The inputs that are labels.")


@dataclass
class LoraSettings:
    """Training"""

    lora_rank: Common[NotNegative[int]] = setting(0, "Train adapters of this rank on a classifier or language model.")
    lora_alpha: Annotated[Positive[float] | None, Mark(needs="lora_rank")] = setting(
        None, "Weight of the adapters; by default twice the rank."
    )


@dataclass
class LearningRateSettings:
    """Training"""

    base_learning_rate: Positive[float] | None = setting(None, "Sets learning_rate to it x videos in a step / 256.")
    layer_decay: Common[Annotated[Positive[float], Le(1)]] = setting(
        1.0, "Factor of the learning rate from a layer to the one before it."
    )
    layer_decay_only: list[str] = setting([], "Parts of the parameter names that layer_decay is for; by default all.")


@dataclass
class FineTuningSettings:
    """Training"""

    freeze_layers: Common[NotNegative[int]] = setting(0, "Layer groups that are not trained; 1: the embeddings.")
    distillation_teacher: str | None = setting(None, "A trained classifier to learn from beside the labels.", "MODEL")
    distillation_weight: Annotated[Positive[float], Le(1), Mark(needs="distillation_teacher")] = setting(
        0.5, "Share of the teacher in the loss; the labels have the rest."
    )
    distillation_temperature: Annotated[Positive[float], Mark(needs="distillation_teacher")] = setting(
        1.0, "Temperature of the teacher's and the student's classes."
    )


@dataclass
class MaskSettings:
    """Training"""

    mask_type: Literal["tube", "random", "attention"] | None = setting(
        None,
        "Hide the same places of all frames, any places, or fewest where the teacher looks; by default tube for a "
        "VideoViT and attention for a VideoMamba.",
    )
    decoder_mask_ratio: Annotated[float, DecoderMaskRatio] = setting(
        0.0, "Share of patches that the decoder of a VideoViT leaves out (VideoMAE V2)."
    )
    adam_beta2: BelowOne[float] = setting(0.95, "Decay of AdamW's average of squared gradients.")


@dataclass
@with_defaults(metric_for_best_model="top1_accuracy")
class VideoTrainingSettings(
    OptimizationSettings, EvaluationSettings, LearningRateSettings, LoraSettings, FineTuningSettings
):
    """Training"""

    label_smoothing_factor: BelowOne[float] = setting(0.0, "Share of a label that is spread over all classes.")
    loss: LossName = setting("cross_entropy", "The training loss; focal loss counts what is hard.")
    focal_gamma: Annotated[NotNegative[float], Mark(needs="loss=focal")] = setting(
        2.0, "How little focal loss counts what is easy; 0: cross-entropy."
    )
    class_weights: Common[ClassWeights | None] = setting(
        None,
        "Weights of classes in the training loss: balanced, all classes alike; effective, by the effective number of "
        "videos; or a CSV, JSON or YAML file of names and weights.",
        "{balanced,effective,FILE}",
    )
    sampler: Literal["random", "balanced", "sqrt"] = setting(
        "random",
        "How videos are drawn: each once an epoch; or with repetitions, all classes alike (balanced), or each by the "
        "square root of its number of videos (sqrt).",
    )
    ema_decay: Annotated[Positive[float], Lt(1)] | None = setting(
        None, "Evaluate and save an exponential moving average of the weights, with this decay."
    )
    linear_probe: bool = setting(False, "Train nothing but a new head, or an attentive pooler and its head.")


@dataclass
@with_defaults(metric_for_best_model="loss", logging_steps=500, no_weight_decay=[])
class AnswerTrainingSettings(OptimizationSettings, EvaluationSettings, LoraSettings):
    """Training"""

    lr_by_epoch: bool = setting(
        False, "Let a cosine fall once an epoch, as MA-LMM's; warmup_steps count batches of the first epoch."
    )
    prediction_loss_only: bool = setting(True, "Evaluate only the loss, and keep no scores.")
    predict_with_generate: bool = setting(False, "Answer all questions in each evaluation, and measure top1 and any.")
    train_vision_tower: bool = setting(False, "Train the vision tower, too.")
    train_language_model: bool = setting(False, "Train the language model, too.")
    prompt: Common[str] = setting("{}", "The prompt, with {} in place of the question.")
    max_length: AtLeast1[int] = setting(128, "Prompts are cut after so many tokens.")
    max_target_length: AtLeast1[int] = setting(256, "Answers to learn are cut after so many tokens.")
    max_new_tokens: AtLeast1[int] = setting(30, "A generated answer ends after so many tokens.")
    min_new_tokens: NotNegative[int] = setting(0, "A generated answer has at least so many tokens.")
    num_beams: AtLeast1[int] = setting(5, "Beams of the search for an answer.")
    length_penalty: float = setting(1.0, "A beam's score is divided by its length to this power.")
    repetition_penalty: Positive[float] = setting(1.5, "Divides the scores of tokens that the answer has already.")
    num_return_sequences: AtLeast1[int] = setting(1, "Number of best beams that are evaluated as answers.")
    first_words: Changeable[bool] = setting(False, "Compare only the first words of answers, as MA-LMM may do.")


@dataclass
@with_defaults(metric_for_best_model="text_to_video_r1", logging_steps=500)
class RetrievalTrainingSettings(OptimizationSettings, EvaluationSettings):
    """Training on captions"""

    max_length: AtLeast1[int] | None = setting(None, "Captions are cut after so many tokens; by default the model's.")
    vtc_weight: NotNegative[float] = setting(1.0, "Weight of the contrast of videos and captions.")
    vtm_weight: NotNegative[float] = setting(1.0, "Weight of the matching of pairs.")
    mlm_weight: NotNegative[float] = setting(0.0, "Weight of the prediction of masked words.")
    original_gradient_scale: bool = setting(
        False, "Divide the gradient of the contrast by the number of processes, as VideoMamba's training."
    )


@dataclass
@with_defaults(metric_for_best_model="mean_ap", logging_steps=500)
class DetectionTrainingSettings(OptimizationSettings, EvaluationSettings):
    """Persons and their actions"""

    scales: list[float] = setting([1.0, 1.25], "Factors of the shorter side of training clips, drawn anew each time.")
    flip_prob: Share[float] = setting(0.5, "Share of clips that are mirrored, unless an action names a direction.")
    num_queries: AtLeast1[int] | None = setting(
        None, "Most persons of a clip that are found; else the model's or 100."
    )
    detector_config: dict[str, Any] | str | None = setting(
        None, "Fields of the configuration of a detector that is made around a backbone.", "JSON"
    )
    action_weight: NotNegative[float] | None = setting(None, "Weight of actions in the loss; else the model's or 24.")
    original_loss_means: bool = setting(False, "Average losses over the batch of each process, as STMixer's training.")
    full_weight_decay: list[str] = setting(
        [], "Modules with weight decay on all parameters, also on biases and norms."
    )
    lr_drop_epochs: list[float] = setting([], "The learning rate falls to a tenth after each of these epochs.")
    warmup_lr_rate: Annotated[Share[float], Mark(needs="lr_drop_epochs")] = setting(
        0.0, "Share of the learning rate at which its warm-up begins."
    )


@dataclass
@with_defaults(metric_for_best_model="f1_50")
class FrameTrainingSettings(OptimizationSettings, EvaluationSettings, FineTuningSettings):
    """Classes of frames"""

    fps: Positive[float] | None = setting(None, "Frames a second that the model sees; by default the model's, or 8.")
    clip_overlap: BelowOne[float] = setting(0.5, "Share of a training clip that the next one shows again.")
    background: str | None = setting(
        None, "Class of frames outside of all segments; else the model's, or none, and they teach nothing.", "NAME"
    )
    family: Literal["videomamba", "videovit"] = setting("videomamba", "What begins with random weights.")
    causal: bool = setting(False, "Make a VideoMamba that sees no later frames, and answers live.")
    delay: NotNegative[int] | None = setting(
        None, "Token frames that the model sees behind the one it answers for; by default the model's, or 0."
    )
    frame_pooling: Literal["mean", "last"] | None = setting(
        None, "Feature of a frame: the mean of its patches, or its last one; by default the model's."
    )
    smoothing_loss_weight: NotNegative[float] | None = setting(
        None, "Weight of the loss that makes neighbouring frames alike, 0.15 in MS-TCN; by default the model's."
    )
