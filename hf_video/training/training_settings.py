"""Declares the settings of a training. Nothing here imports PyTorch or Transformers, so that `--help` is fast.

Every other field of `transformers.TrainingArguments` is a setting, too, with the type that it has there.
"""

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from annotated_types import Le, Lt

from hf_video.data.video_settings import READING_THREADS, ReadingThreads
from hf_video.settings import (
    AtLeast1,
    BelowOne,
    Expected,
    NotNegative,
    Positive,
    Seed,
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
StepsOrAll = Expected("-1 or a whole number of at least 1", lambda value: value == -1 or value >= 1)
DecoderMaskRatio = Expected("0, 0.25, 0.5 or 0.75", lambda value: value in (0, 0.25, 0.5, 0.75))
IntervalStrategy = Literal["no", "steps", "epoch"]
# `dict` comes first, so that `HfArgumentParser` takes a word.
ClassWeights = Annotated[
    dict[str, float] | str,
    Expected("balanced, effective, or a file or mapping of names and weights", lambda value: True),
]


@dataclass
class TrainingSettings:
    """Training

    Fields of `transformers.TrainingArguments`.
    """

    num_train_epochs: Positive[float] = setting(
        3.0,
        "Epochs to train. A resumed run may have others, to train longer.",
        changeable=True,
        alias="epochs",
        common=True,
    )
    max_steps: Annotated[int, StepsOrAll] = setting(
        -1, "Steps to train, in place of epochs; -1: none.", changeable=True
    )
    per_device_train_batch_size: AtLeast1[int] = setting(
        8, "Videos in a step of each process.", alias="batch_size", common=True
    )
    per_device_eval_batch_size: AtLeast1[int] = setting(8, "Clips in a batch of evaluation.", changeable=True)
    gradient_accumulation_steps: AtLeast1[int] = setting(1, "Batches whose gradients make one step.")
    learning_rate: NotNegative[float] = setting(5e-5, "The peak learning rate.", common=True)
    lr_scheduler_type: str = setting("linear", "The learning rate schedule after the warm-up.")
    lr_scheduler_kwargs: dict[str, Any] | str | None = setting(None, "Options of the schedule.", "JSON")
    warmup_steps: NotNegative[float] = setting(0, "Steps of linear warm-up; below 1, a share of all steps.")
    optim: str = setting("adamw_torch_fused", "The optimizer.")
    optim_args: str | None = setting(None, "Options of the optimizer, as name=value,name=value.")
    weight_decay: NotNegative[float] = setting(0.0, "Weight decay of the optimizer.", common=True)
    adam_beta1: BelowOne[float] = setting(0.9, "Decay of AdamW's average of gradients.")
    adam_beta2: BelowOne[float] = setting(0.999, "Decay of AdamW's average of squared gradients.")
    adam_epsilon: NotNegative[float] = setting(1e-8, "What AdamW adds to a denominator.")
    max_grad_norm: NotNegative[float] = setting(1.0, "Gradients are clipped to this norm; 0: they are not.")
    label_smoothing_factor: BelowOne[float] = setting(0.0, "Share of a label that is spread over all classes.")
    neftune_noise_alpha: NotNegative[float] | None = setting(None, "Noise on the embeddings of a language model.")
    seed: Seed[int] = setting(42, "Seed of weights, augmentation and held-out videos.", common=True)
    data_seed: Seed[int] | None = setting(None, "Seed of the order of videos; by default the value of seed.")
    bf16: bool = setting(False, "Train in bfloat16.", common=True)
    fp16: bool = setting(False, "Train in float16.")
    activation_checkpointing: bool | None = setting(None, "Compute activations again to save memory.", changeable=True)
    torch_compile: bool = setting(False, "Compile the model.")
    torch_empty_cache_steps: AtLeast1[int] | None = setting(
        None, "Give unused memory of the device back each time after so many steps; by default never.", changeable=True
    )
    eval_strategy: IntervalStrategy = setting("no", "When to evaluate.")
    eval_steps: Positive[float] | None = setting(
        None, "Steps between two evaluations; below 1, a share of all steps; by default logging_steps."
    )
    eval_delay: NotNegative[float] = setting(0, "Epochs or steps before the first evaluation.")
    eval_accumulation_steps: AtLeast1[int] | None = setting(
        None, "Batches whose scores stay on the device before they are moved; by default all.", changeable=True
    )
    save_strategy: Literal["no", "steps", "epoch", "best"] = setting("steps", "When to save a checkpoint.")
    save_steps: Positive[float] = setting(500, "Steps between two checkpoints; below 1, a share of all steps.")
    save_total_limit: NotNegative[int] | None = setting(
        None, "Number of checkpoints to keep; 2: the best one and the last one.", changeable=True
    )
    save_only_model: bool = setting(False, "Save no state to resume a training from.")
    load_best_model_at_end: bool = setting(False, "Return to the best checkpoint at the end.")
    metric_for_best_model: str | None = setting(None, "The metric that makes a checkpoint the best.")
    greater_is_better: bool | None = setting(
        None, "Whether a higher value of that metric is better; by default yes, except for losses and errors."
    )
    logging_strategy: IntervalStrategy = setting("steps", "When to log the training loss.", changeable=True)
    logging_steps: Positive[float] = setting(
        500, "Steps between two logged training losses; below 1, a share of all steps.", changeable=True
    )
    report_to: None | str | list[str] = setting(
        "none", "Experiment trackers to log to, such as tensorboard or trackio; several with commas.", changeable=True
    )
    logging_first_step: bool = setting(False, "Log the loss of the first step, too.", changeable=True)
    log_level: Literal["detail", "debug", "info", "warning", "error", "critical", "passive"] = setting(
        "passive", "What Transformers prints; passive: as everywhere else.", changeable=True
    )
    run_name: str | None = setting(None, "Name of the run for experiment trackers.", changeable=True)
    disable_tqdm: bool | None = setting(None, "Show no progress.", changeable=True)
    push_to_hub: bool = setting(
        False, "Publish the model on the Hub at the end, and as hub_strategy says.", changeable=True
    )
    hub_model_id: str | None = setting(
        None, "Repository to publish to; by default named as the folder.", changeable=True
    )
    hub_strategy: Literal["end", "every_save", "checkpoint", "all_checkpoints"] = setting(
        "every_save",
        "What is published when: the model at the end or at every save, or checkpoints as well.",
        changeable=True,
    )
    hub_private_repo: bool | None = setting(None, "Whether the repository is private.", changeable=True)
    hub_token: str | None = setting(None, "Token of the Hub; by default that of `hf auth login`.", changeable=True)
    dataloader_num_workers: NotNegative[int] = setting(
        0, "Processes that read videos; 0: this one.", changeable=True, alias="num_workers", common=True
    )
    dataloader_prefetch_factor: AtLeast1[int] | None = setting(
        None, "Batches that each of these processes reads ahead.", changeable=True
    )
    dataloader_persistent_workers: bool = setting(
        False, "Keep these processes from one epoch to the next.", changeable=True, needs="dataloader_num_workers"
    )
    dataloader_pin_memory: bool = setting(
        True, "Keep batches where an accelerator copies them fastest.", changeable=True
    )
    ddp_timeout: AtLeast1[int] = setting(1800, "Seconds that processes wait for each other.", changeable=True)
    ddp_bucket_cap_mb: AtLeast1[int] | None = setting(
        None, "Size of the buckets of gradients that processes exchange, in MiB.", changeable=True
    )
    remove_unused_columns: bool = setting(
        True, "Drop from the items what the model has no argument for: the sample keys, or the texts."
    )
    label_names: list[str] | None = setting(None, "The inputs that are labels.")


@dataclass
@with_defaults(
    learning_rate=1e-4,
    weight_decay=0.05,
    lr_scheduler_type="cosine",
    warmup_steps=0.1,
    eval_strategy="epoch",
    save_strategy="epoch",
    save_total_limit=2,
    load_best_model_at_end=True,
    remove_unused_columns=False,
    label_names=["labels"],
)
class FineTuningSettings(TrainingSettings):
    """Training

    Fields that `VideoTrainingArguments` and `AnswerTrainingArguments` share.
    """

    reading_threads: ReadingThreads = setting(None, READING_THREADS)
    no_weight_decay: list[str] = setting(
        [], "Parts of parameter names without weight decay, besides biases and norms."
    )
    lora_rank: NotNegative[int] = setting(
        0,
        "Train adapters of this rank: on the classifier and its head, or on the language model; 0: none.",
        common=True,
    )
    lora_alpha: Positive[float] | None = setting(
        None, "Weight of the adapters; by default twice the rank.", needs="lora_rank"
    )


@dataclass
class DistillationSettings:
    """Training"""

    distillation_teacher: str | None = setting(
        None, "A trained classifier to learn from beside the labels: a folder or Hub name.", "MODEL"
    )
    distillation_weight: Annotated[Positive[float], Le(1)] = setting(
        0.5, "Share of the teacher in the loss; the labels have the rest.", needs="distillation_teacher"
    )
    distillation_temperature: Positive[float] = setting(
        1.0, "Temperature of the teacher's and the student's classes.", needs="distillation_teacher"
    )


@dataclass
@with_defaults(metric_for_best_model="top1_accuracy", logging_steps=0.01, no_weight_decay=list(NO_WEIGHT_DECAY))
class VideoTrainingSettings(DistillationSettings, FineTuningSettings):
    """Training

    Fields of `VideoTrainingArguments`.
    """

    base_learning_rate: Positive[float] | None = setting(
        None, "Sets learning_rate to this value times (videos in a step of all processes) / 256."
    )
    warmup_epochs: NotNegative[float] | None = setting(None, "Epochs of warm-up, in place of warmup_steps.")
    layer_decay: Positive[float] = setting(
        1.0, "Factor of the learning rate from a layer to the one before it.", common=True
    )
    layer_decay_only: list[str] = setting([], "Parts of the parameter names that layer_decay is for; by default all.")
    loss: Literal["cross_entropy", "focal"] = setting(
        "cross_entropy", "The training loss: cross-entropy, or focal loss, which counts what is hard."
    )
    focal_gamma: NotNegative[float] = setting(
        2.0, "How little focal loss counts what is easy; 0: cross-entropy.", needs="loss=focal"
    )
    class_weights: ClassWeights | None = setting(
        None,
        "Weights of classes in the training loss: balanced, all classes alike; effective, by the effective number of "
        "videos; or a CSV, JSON or YAML file of names and weights.",
        "{balanced,effective,FILE}",
        common=True,
    )
    sampler: Literal["random", "balanced", "sqrt"] = setting(
        "random",
        "How videos are drawn: each once an epoch; or with repetitions, all classes alike (balanced), or each by the "
        "square root of its number of videos (sqrt).",
    )
    ema_decay: Annotated[Positive[float], Lt(1)] | None = setting(
        None, "Evaluate and save an exponential moving average of the weights, with this decay."
    )
    linear_probe: bool = setting(False, "Train a new head on batch-normalised features, and nothing else.")
    freeze_layers: NotNegative[int] = setting(
        0, "Number of layer groups, from the input on, that are not trained; 1: the embeddings.", common=True
    )


@dataclass
@with_defaults(adam_beta2=0.95, eval_strategy="no", load_best_model_at_end=False)
class PreTrainingSettings(VideoTrainingSettings):
    """Training

    Fields of `PreTrainingArguments`.
    """

    mask_type: Literal["tube", "random", "attention"] | None = setting(
        None,
        "Hide the same places of all frames, any places, or fewest where the teacher looks; by default tube for a "
        "VideoViT and attention for a VideoMamba.",
    )
    decoder_mask_ratio: Annotated[float, DecoderMaskRatio] = setting(
        0.0, "Share of patches that the decoder of a VideoViT leaves out: 0, 0.25, 0.5 or 0.75 (VideoMAE V2)."
    )


@dataclass
@with_defaults(metric_for_best_model="loss")
class AnswerTrainingSettings(FineTuningSettings):
    """Training

    Fields of `AnswerTrainingArguments`.
    """

    lr_by_epoch: bool = setting(
        False,
        "Let a cosine fall once an epoch, after a warm-up whose warmup_steps count batches and which the first epoch "
        "ends, as MA-LMM's.",
    )
    prediction_loss_only: bool = setting(True, "Evaluate only the loss, and keep no scores.")
    predict_with_generate: bool = setting(
        False, "Answer all questions in each evaluation, and measure the right answers, top1 and any."
    )
    train_vision_tower: bool = setting(False, "Train the vision tower, too.")
    train_language_model: bool = setting(False, "Train the language model, too.")
    prompt: str = setting("{}", "The prompt, with {} in place of the question.", common=True)
    max_length: AtLeast1[int] = setting(128, "Prompts are cut after so many tokens.")
    max_target_length: AtLeast1[int] = setting(256, "Answers to learn are cut after so many tokens.")
    max_new_tokens: AtLeast1[int] = setting(30, "A generated answer ends after so many tokens.")
    min_new_tokens: NotNegative[int] = setting(0, "A generated answer has at least so many tokens.")
    num_beams: AtLeast1[int] = setting(5, "Beams of the search for an answer.")
    length_penalty: float = setting(
        1.0, "The score of a beam is divided by its length to this power; above 0 favours long answers."
    )
    repetition_penalty: Positive[float] = setting(
        1.5, "Divides the scores of tokens that the answer has already; above 1 avoids repetition."
    )
    num_return_sequences: AtLeast1[int] = setting(1, "Number of best beams that are evaluated as answers.")
    first_words: bool = setting(
        False, "Compare only the first words of answers, as MA-LMM does for MSRVTT-QA and MSVD-QA.", changeable=True
    )


@dataclass
class CaptionSettings:
    """Training on captions, with --task retrieval"""

    max_length: AtLeast1[int] | None = setting(None, "Captions are cut after so many tokens; by default the model's.")
    vtc_weight: NotNegative[float] = setting(1.0, "Weight of the contrast of videos and captions.")
    vtm_weight: NotNegative[float] = setting(1.0, "Weight of the matching of pairs.")
    mlm_weight: NotNegative[float] = setting(0.0, "Weight of the prediction of masked words.")
    original_gradient_scale: bool = setting(
        False, "Divide the gradient of the contrast by the number of processes, as VideoMamba's training does."
    )


@dataclass
@with_defaults(metric_for_best_model="text_to_video_r1", no_weight_decay=list(NO_WEIGHT_DECAY))
class RetrievalTrainingSettings(CaptionSettings, FineTuningSettings):
    """Training

    Fields of `RetrievalTrainingArguments`.
    """


@dataclass
class DetectionSettings:
    """Persons and their actions, with --task action-detection"""

    scales: list[float] = setting([1.0, 1.25], "Factors of the shorter side of training clips, drawn anew each time.")
    flip_prob: Share[float] = setting(
        0.5, "Share of training clips that are mirrored, unless an action names a direction."
    )
    num_queries: AtLeast1[int] | None = setting(
        None, "Most persons of a clip that are found; by default the model's, 100 around a backbone."
    )
    detector_config: dict[str, Any] | str | None = setting(
        None,
        "Fields of the configuration of a detector that is made around a backbone, such as "
        '\'{"hidden_size":64,"num_hidden_layers":3}\'.',
        "JSON",
    )
    action_weight: NotNegative[float] | None = setting(
        None, "Weight of the actions in the loss; by default the model's, 24 around a backbone."
    )
    original_loss_means: bool = setting(
        False, "Average losses over the batch of each process, as STMixer's training, and not over the whole step."
    )
    full_weight_decay: list[str] = setting(
        [], "Modules of the model with weight decay on all parameters, also on biases and norms."
    )
    lr_drop_epochs: list[float] = setting(
        [],
        "The learning rate falls to a tenth after each of these epochs, with --lr-scheduler-type "
        "constant_with_warmup.",
    )
    warmup_lr_rate: Share[float] = setting(
        0.0, "Share of the learning rate at which its warm-up begins.", needs="lr_drop_epochs"
    )


@dataclass
@with_defaults(
    metric_for_best_model="mean_ap",
    no_weight_decay=list(NO_WEIGHT_DECAY),
)
class DetectionTrainingSettings(DetectionSettings, FineTuningSettings):
    """Training

    Fields of `DetectionTrainingArguments`.
    """

    warmup_epochs: NotNegative[float] | None = setting(None, "Epochs of warm-up, in place of warmup_steps.")


@dataclass
class FrameSettings:
    """Classes of frames, with --task frame-classification"""

    fps: Positive[float] | None = setting(
        None, "Frames a second that the model sees, by the times of a video; by default the model's, or 8."
    )
    clip_overlap: BelowOne[float] = setting(0.5, "Share of a training clip that the next one shows again.")
    background: str | None = setting(
        None,
        "Class of frames outside of all segments; by default the model's, or else they are unknown and teach nothing.",
        "NAME",
    )
    family: Literal["videomamba", "videovit"] = setting("videomamba", "What is trained without --model.")
    causal: bool = setting(False, "Make a VideoMamba that sees no later frames, and answers live.")
    delay: NotNegative[int] | None = setting(
        None,
        "Token frames that the model sees behind the one it answers for: its answers are late by as many. By default "
        "the model's, or 0.",
    )
    frame_pooling: Literal["mean", "last"] | None = setting(
        None, "Feature of a frame: the mean of its patches, or its last one; by default the model's."
    )
    smoothing_loss_weight: NotNegative[float] | None = setting(
        None, "Weight of the loss that makes neighbouring frames alike, 0.15 in MS-TCN; by default the model's."
    )


@dataclass
@with_defaults(metric_for_best_model="f1_50", logging_steps=0.01, no_weight_decay=list(NO_WEIGHT_DECAY))
class FrameTrainingSettings(FrameSettings, DistillationSettings, FineTuningSettings):
    """Training

    Fields of `FrameTrainingArguments`.
    """

    warmup_epochs: NotNegative[float] | None = setting(None, "Epochs of warm-up, in place of warmup_steps.")


@dataclass
@with_defaults(**PROBE_DEFAULTS)
class ProbeTrainingSettings(TrainingSettings):
    """Training"""
