"""Training a video classifier on labelled videos: the task `classification`."""

from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import torch
from datasets import IterableDataset
from torch import nn
from torch.utils.data import Dataset, Sampler
from transformers import AutoConfig, AutoModelForVideoClassification, EvalPrediction, PreTrainedModel
from transformers.trainer_utils import EvalLoopOutput, IntervalStrategy, SaveStrategy, has_length
from transformers.utils import ModelOutput

from hf_video.data import (
    ClipAugmentation,
    ClipMixing,
    ClipTask,
    MixingCollator,
    VideoDataset,
    VideoStream,
    is_multi_label,
    label_names,
)
from hf_video.data.clip_duration import clip_duration, cut_splits, median_frame_interval
from hf_video.data.mixing import SAMPLE_KEY
from hf_video.data.rows import class_counts, label_ids
from hf_video.data.video_settings import annotation_choices, dataset_options
from hf_video.inference.scores import problem_type_of
from hf_video.io import replacing_files
from hf_video.loading.class_names import class_names_of
from hf_video.loading.heads import drop_query_axis, load_classifier
from hf_video.loading.released import SHIPPED, model_path
from hf_video.metrics import compute_metrics as video_metrics
from hf_video.metrics import regression_metrics
from hf_video.processing import VideoClipProcessor
from hf_video.settings import settings_of

from .adaptation import NormalizedLinear, add_lora, freeze_layers, make_linear_probe, to_plain_model
from .arguments import VideoTrainingArguments
from .class_balance import ClassSampler, make_class_weights
from .data import check_streamed, commit_of, load_data, load_stream, require_training, training_splits
from .losses import CrossEntropy, make_distillation, make_loss
from .model_loading import load_model, sizes_of
from .optimization import EMACallback, parameter_groups, settings_by_arguments
from .report import Measured, clip_reader, measure_classes
from .run import ModelChoice, RunPlan
from .task import Task, TaskData
from .task_settings import MAX_CLIPS_FOR_START, HeadSettings, RegularizationSettings, ScratchSettings, TrainSettings
from .trainer import BaseTrainer
from .values import make

# How often a training on a stream evaluates, where nothing else is said.
NUM_EVALUATIONS = 20
# The settings that make a model of another size than the bundled one.
SIZES = ("num_frames", "image_size", *settings_of(ScratchSettings))


class VideoTrainer(BaseTrainer):
    """`transformers.Trainer` for video classification and regression, with a collator, losses and metrics for videos
    and the settings of `VideoTrainingArguments`.

    Float labels of a single-label model are soft targets, such as those of `MixingCollator`. In training alone,
    `label_smoothing_factor`, `loss` and `class_weights` have an effect, so that evaluation losses compare. A
    `compute_loss_func` takes the place of all three, also in evaluation.

    Args:
        *args, **kwargs: see [`BaseTrainer`].
        compute_metrics: defaults to the metrics of `hf_video.metrics.METRICS` for the `problem_type` of the model;
            None for the loss alone.
        class_weights: (num_classes,) float, see `CrossEntropy`; defaults to those that the arguments describe.

    Raises:
        ValueError, OSError: the arguments do not suit the model or the training set, or name a metric that the default
            `compute_metrics` does not measure, or a teacher or a file of weights that cannot be used.
    """

    optimizer: torch.optim.Optimizer | None
    _signature_columns: list[str]
    _training_loss: Callable[..., torch.Tensor] | None = None

    def __init__(
        self,
        *args: Any,
        compute_metrics: Callable[[EvalPrediction], dict[str, float]] | None = video_metrics,
        class_weights: torch.Tensor | None = None,
        **kwargs: Any,
    ) -> None:
        kwargs.setdefault("compute_loss_func", self._classification_loss)
        super().__init__(*args, compute_metrics=compute_metrics, **kwargs)
        drop_query_axis(self.model)
        problem_type = problem_type_of(self.model.config)
        if compute_metrics is video_metrics and problem_type == "regression":
            self.compute_metrics = regression_metrics
        if isinstance(self.args, VideoTrainingArguments):
            eval_sets = list(self.eval_dataset) if isinstance(self.eval_dataset, dict) else []
            loss_alone = compute_metrics is None or self.args.prediction_loss_only
            if compute_metrics is video_metrics:
                self.args.check_metric(problem_type, self.model.config.num_labels, eval_sets)
            self.args.choose_metric(problem_type, eval_sets, loss_alone)
        self._given_weights = class_weights
        if self.train_dataset is not None:
            sampler = getattr(self.args, "sampler", "random")
            if sampler != "random" and not isinstance(self.train_dataset, VideoDataset):
                raise ValueError(f"sampler={sampler} needs all labels: give a VideoDataset as train_dataset.")
            self._make_training_loss()  # for its errors
        self.ema = EMACallback()
        self.add_callback(self.ema)

    def _make_training_loss(self) -> Callable[..., torch.Tensor]:
        """The loss that the arguments describe now."""
        weights = self._given_weights
        if weights is None:
            rows = self.train_dataset.rows if isinstance(self.train_dataset, VideoDataset) else None
            chosen = getattr(self.args, "class_weights", None)
            weights = make_class_weights(chosen, class_names_of(self.model.config), rows)
        return make_loss(self.args, problem_type_of(self.model.config), weights)

    def call_model_init(self, trial: Any = None) -> nn.Module:
        return drop_query_axis(super().call_model_init(trial))

    def _update_auto_batch_size(self, batch_size: int) -> None:
        super()._update_auto_batch_size(batch_size)
        before = self.args.learning_rate
        self._scale_learning_rate()
        if self.args.learning_rate != before:
            self.optimizer = None  # it has the learning rate of another batch

    def _scale_learning_rate(self) -> None:
        if isinstance(self.args, VideoTrainingArguments):
            self.args.scale_learning_rate(self._train_batch_size)

    def is_last_batch_dropped(self) -> bool:
        """Whether it is a single video and the head a probe: batch normalisation fails, since it has no variance."""
        is_probe = isinstance(getattr(self.model, "classifier", None), NormalizedLinear)
        return is_probe and has_length(self.train_dataset) and len(self.train_dataset) % self._train_batch_size == 1

    def train(self, *args: Any, **kwargs: Any) -> Any:
        """As in [`BaseTrainer.train`]. Before the first step, `frame_interval` of the processor is measured on the
        training videos, or those beside a `VideoStream`. A step of several processes that did not use all parameters
        that are trained is a `ValueError`."""
        measured = self.eval_dataset if isinstance(self.train_dataset, VideoStream) else self.train_dataset
        if isinstance(measured, VideoDataset) and isinstance(self.processing_class, VideoClipProcessor):
            self.processing_class.frame_interval = median_frame_interval(measured)
        self._training_loss = None  # a trial of a search has its own
        try:
            return super().train(*args, **kwargs)
        except RuntimeError as error:
            if "find_unused_parameters=True" not in str(error):
                raise
            text = "A step did not use all parameters that are trained: set ddp_find_unused_parameters=true."
            raise ValueError(text) from error

    def _prepare_inputs(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """Batches have `pixel_values`; the model may have another name for them."""
        prepared = super()._prepare_inputs(inputs)
        name = getattr(self.model, "main_input_name", "pixel_values")
        return {name if key == "pixel_values" else key: value for key, value in prepared.items()}

    def _classification_loss(
        self, outputs: ModelOutput, labels: torch.Tensor, num_items_in_batch: torch.Tensor | int | None = None
    ) -> torch.Tensor:
        if not self.model.training:
            return CrossEntropy(problem_type_of(self.model.config))(outputs, labels, num_items_in_batch)
        self._training_loss = self._training_loss or self._make_training_loss()
        return self._training_loss(outputs, labels, num_items_in_batch)

    def _get_train_sampler(self, train_dataset: Dataset | None = None) -> Sampler | None:
        sampler = getattr(self.args, "sampler", "random")
        if sampler == "random":
            return super()._get_train_sampler(train_dataset)
        return ClassSampler(self.train_dataset, sampler, self.args.data_seed)

    def _set_signature_columns_if_needed(self) -> None:
        super()._set_signature_columns_if_needed()
        # Collators need both, also for a model that has no such argument.
        self._signature_columns = [*{*self._signature_columns, "pixel_values", SAMPLE_KEY}]

    def create_optimizer(self, model: nn.Module | None = None) -> torch.optim.Optimizer:
        self._scale_learning_rate()
        if self.optimizer is None and getattr(self.args, "layer_decay", 1.0) != 1.0:
            model = self.model if model is None else model
            optimizer_class, options = self.get_optimizer_cls_and_kwargs(self.args, model)
            groups = parameter_groups(model, settings_by_arguments(model, self.args), self.args.learning_rate)
            self.optimizer = optimizer_class(groups, **options)
        return super().create_optimizer(model)

    def evaluation_loop(self, *args: Any, **kwargs: Any) -> EvalLoopOutput:
        with self.ema.applied_to(self.model):
            return super().evaluation_loop(*args, **kwargs)

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        super().save_model(output_dir, _internal_call)
        # The model in a checkpoint has the weights that are being trained; the average has a file of its own.
        if self.ema.average and output_dir is not None:
            self.ema.save(output_dir, self.args.should_save)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: nn.Module | None = None) -> None:
        super()._load_from_checkpoint(resume_from_checkpoint, model)
        if getattr(self.args, "ema_decay", None) is not None:
            self.ema.load(resume_from_checkpoint)


class ClassificationTask(Task):
    """Learns one class, or several, of each clip."""

    arguments, trainer, sizes = VideoTrainingArguments, VideoTrainer, ScratchSettings
    measures_training = True
    try_it = "hf-video predict VIDEO --model {model}"

    listed: Any = None
    stream: IterableDataset | None = None
    training_counts: Any = None

    def choose_model(self, named: Collection[str], chosen: Any) -> ModelChoice:
        """The bundled model, if no size of another model is given, and DATA has at most `MAX_CLIPS_FOR_START`
        training clips. Otherwise a VideoViT from random weights."""
        if chosen.recipe is not None:
            return ModelChoice(None)
        reason = next((f"{settings_of(TrainSettings)[name].flag} is given" for name in SIZES if name in named), "")
        if chosen.streaming:
            reason = reason or "the number of training clips in a stream is not known"
        if not reason:
            options = dataset_options(chosen) | {"choices": annotation_choices(chosen)}
            self.listed = load_data(chosen.data, None, chosen.video_root, chosen.split_by, **options)
            number = len(self.listed.get("train", ()))
            known = f"{number:,} clips"
            if number <= MAX_CLIPS_FOR_START:
                return ModelChoice.of_bundled(f"because there are {known}, at most {MAX_CLIPS_FOR_START:,}")
            reason = f"there are {known}, more than {MAX_CLIPS_FOR_START:,}"
        return ModelChoice.of_random("VideoViT", reason)

    def load_data(self, run: RunPlan) -> TaskData:
        chosen = run.chosen
        if chosen.model is None and run.settings.recipe and run.checkpoint is None:
            raise ValueError("A recipe fine-tunes a model: say which with --model, a folder or a name on the Hub.")
        if chosen.model is None and chosen.lora_rank:
            raise ValueError("lora_rank adapts a trained model: say which with --model.")
        named, options = model_path(chosen.model), dataset_options(chosen)
        if chosen.streaming:
            check_streamed(chosen)
            # A run that goes on reads the commit that it began with, whatever became of the branch.
            options["revision"] = (run.saved_data or {}).get("commit") or commit_of(chosen.data, chosen.revision)
            self.stream, splits, names = load_stream(chosen.data, named, chosen.video_root, **options)
            return TaskData(splits, names, commit=options["revision"])
        options["choices"] = annotation_choices(chosen)
        splits = self.listed or load_data(chosen.data, named, chosen.video_root, chosen.split_by, **options)
        require_training(chosen.data, splits, chosen.split_by)
        return TaskData(splits, label_names(splits["train"]))

    def load_model(self, run: RunPlan, data: TaskData, arguments: VideoTrainingArguments) -> tuple[Any, Any]:
        chosen, names = run.chosen, data.class_names or []
        is_multi = is_multi_label(next(iter(data.splits.values())))
        problem_type = "multi_label_classification" if is_multi else "single_label_classification"
        if self.stream is not None:
            _evaluate_by_steps(arguments)
        if is_multi and chosen.model == SHIPPED and not run.settings.label_smoothing_factor:
            arguments.label_smoothing_factor = 0.0  # the default with the bundled model is for one class a video

        def load(model: str | Path, **changes: Any) -> PreTrainedModel:
            # A checkpoint has all weights, and is frozen by the caller.
            is_frozen = chosen.linear_probe and model == model_path(chosen.model)
            return load_classifier(model, names, problem_type, is_frozen=is_frozen, dtype="float32", **changes)

        def begin(changes: dict[str, Any]) -> PreTrainedModel:
            config = AutoConfig.for_model(
                "videovit",
                **sizes_of(chosen, ScratchSettings),
                **changes,
                intermediate_size=4 * chosen.hidden_size,
                problem_type=problem_type,
                id2label=dict(enumerate(names)),
                label2id={name: index for index, name in enumerate(names)},
            )
            return AutoModelForVideoClassification.from_config(config)

        # A checkpoint of adapters holds no model. The trainer loads the adapters into the model that they were made
        # for.
        checkpoint = None if chosen.lora_rank else run.checkpoint
        model, processor = load_model(chosen, checkpoint, load, begin, (RegularizationSettings, HeadSettings))
        freeze_layers(model, chosen.freeze_layers)
        if chosen.linear_probe:
            make_linear_probe(model, with_pooler=True)
        if chosen.lora_rank:
            model = add_lora(model, chosen.lora_rank, chosen.lora_alpha)
        _set_eval_batch_size(arguments, processor, chosen.per_device_eval_batch_size)
        return model, processor

    def make_splits(self, run: RunPlan, data: TaskData, processor: Any) -> None:
        chosen, splits = run.chosen, dict(data.splits)
        if self.stream is None:
            splits |= training_splits(splits, chosen.validation_fraction, chosen.seed, chosen.split_by)
            seconds = (run.saved_data or {}).get("clip_duration", chosen.clip_duration)
            if seconds is None:
                seconds = clip_duration(VideoDataset(splits["train"], ClipTask(processor), training=True))
            run.describe(clip_duration=seconds)
            splits = cut_splits(splits, seconds)
        for name, split in splits.items():
            if not any(label_ids(split)):
                raise ValueError(f"No video of the {name} split has a class, so nothing can be measured on it.")
        data.splits = splits

    def item_task(self, run: RunPlan, data: TaskData, processor: Any) -> ClipTask:
        return ClipTask(processor, data.class_names, augmentation=make(ClipAugmentation, run.chosen))

    def datasets(self, run: RunPlan, data: TaskData, processor: Any) -> dict[str, Any]:
        made = super().datasets(run, data, processor)
        if self.stream is not None:
            chosen, task = run.chosen, made["validation"].task
            options = {"seed": chosen.seed, "on_error": chosen.on_error}
            made["train"] = VideoStream(self.stream, task, shuffle_buffer_size=chosen.shuffle_buffer_size, **options)
        return made

    def trainer_options(
        self, run: RunPlan, data: TaskData, arguments: VideoTrainingArguments, model: Any, processor: Any
    ) -> dict[str, Any]:
        mixing, names, rows = make(ClipMixing, run.chosen), data.class_names or [], data.splits.get("train")
        self.training_counts = None if rows is None else class_counts(rows)
        smoothing = arguments.label_smoothing_factor
        return {
            "data_collator": MixingCollator(mixing, len(names), smoothing) if mixing.is_on else None,
            "class_weights": make_class_weights(arguments.class_weights, names, rows),
            "distillation": make_distillation(arguments, model, processor),
        }

    def finish(self, run: RunPlan, trainer: VideoTrainer) -> None:
        """Merges adapters or a probe into a plain model, and sets the views of its final evaluation."""
        chosen = run.chosen
        if chosen.lora_rank and trainer.is_world_process_zero():
            with replacing_files(Path(str(trainer.args.output_dir), "adapter")) as folder:
                trainer.model.save_pretrained(folder)
        if not trainer.is_sharded:
            trainer.model = trainer.model_wrapped = to_plain_model(trainer.accelerator.unwrap_model(trainer.model))
        for name in ("num_clips", "num_crops"):
            if getattr(chosen, name) is not None:
                setattr(trainer.processing_class, name, getattr(chosen, name))
        _set_eval_batch_size(trainer.args, trainer.processing_class, chosen.per_device_eval_batch_size)

    def measure(self, trainer: VideoTrainer, dataset: VideoDataset) -> Measured:
        found, broken = trainer.predict(dataset), dataset.broken_videos()
        return measure_classes(
            found.predictions,
            found.label_ids,
            class_names_of(trainer.model.config),
            num_videos=len(set(dataset.rows["video"][:]) - set(broken)),
            training_counts=self.training_counts,
            clip_of=clip_reader(dataset, len(found.label_ids), broken),
        )


def _evaluate_by_steps(arguments: VideoTrainingArguments) -> None:
    """Evaluates and saves 20 times in the steps of a stream in place of the end of an epoch, which is not known."""
    steps = max(arguments.max_steps // NUM_EVALUATIONS, 1)
    if arguments.eval_strategy == IntervalStrategy.EPOCH:
        arguments.eval_strategy, arguments.eval_steps = IntervalStrategy.STEPS, steps
    if arguments.save_strategy == SaveStrategy.EPOCH:
        arguments.save_strategy, arguments.save_steps = SaveStrategy.STEPS, steps


def _set_eval_batch_size(arguments: VideoTrainingArguments, processor: Any, clips: int) -> None:
    """Sets the evaluation batch size, which is a number of videos, to the setting, which counts their clips."""
    arguments.per_device_eval_batch_size = max(1, clips // (processor.num_clips * processor.num_crops))
