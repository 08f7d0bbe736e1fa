"""Training a video classifier on labelled videos: the task `classification`."""

from collections.abc import Collection
from pathlib import Path
from typing import Any

from datasets import IterableDataset
from transformers import AutoConfig, AutoModelForVideoClassification, PreTrainedModel
from transformers.trainer_utils import IntervalStrategy, SaveStrategy

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
from hf_video.data.clip_duration import clip_duration
from hf_video.data.rows import class_counts, label_ids
from hf_video.data.video_settings import dataset_options
from hf_video.io import replacing_files
from hf_video.loading.class_names import class_names_of
from hf_video.loading.classifiers import load_classifier
from hf_video.loading.start import SHIPPED, model_path
from hf_video.settings import settings_of

from .adaptation import add_lora, freeze_layers, make_linear_probe, to_plain_model
from .arguments import VideoTrainingArguments
from .class_balance import make_class_weights
from .data import check_streamed, commit_of, cut_splits, load_data, load_stream, require_training, training_splits
from .losses import make_distillation
from .model_loading import load_model, sizes_of
from .report import Measured, clip_reader, measure_classes
from .run import ModelChoice, RunPlan
from .settings import MAX_CLIPS_FOR_START, HeadSettings, RegularizationSettings, ScratchSettings, TrainSettings
from .task import Task, TaskData
from .trainer import VideoTrainer
from .values import make

# How often a training on a stream evaluates, where nothing else is said.
NUM_EVALUATIONS = 20
# The settings that make a model of another size than that of the start.
SIZES = ("num_frames", "image_size", *settings_of(ScratchSettings))


class ClassificationTask(Task):
    """Learns one class, or several, of each clip."""

    arguments, trainer, sizes = VideoTrainingArguments, VideoTrainer, ScratchSettings
    measures_training = True
    try_it = "hf-video predict VIDEO --model {model}"

    listed: Any = None
    stream: IterableDataset | None = None
    training_counts: Any = None

    def choose_model(self, named: Collection[str], chosen: Any) -> ModelChoice:
        """The start that ships, if it suits: no size of another model is given, and DATA has at most
        `MAX_CLIPS_FOR_START` training clips. Videos of any size, length, rate and colour suit, and classes of either
        kind. Otherwise a VideoViT from random weights."""
        if chosen.recipe is not None:
            return ModelChoice(None)
        reason = next((f"{settings_of(TrainSettings)[name].flag} is given" for name in SIZES if name in named), "")
        if chosen.streaming:
            reason = reason or "the number of training clips in a stream is not known"
        if not reason:
            self.listed = load_data(chosen.data, None, chosen.video_root, chosen.split_by, **dataset_options(chosen))
            number = len(self.listed.get("train", ()))
            known = f"{number:,} training clips"
            if number <= MAX_CLIPS_FOR_START:
                return ModelChoice(
                    SHIPPED,
                    f"Model: the start that ships, because there are {known}, at most {MAX_CLIPS_FOR_START:,}. "
                    "It knows motion and simple shapes, and no objects; --model scratch trains from random weights.",
                )
            reason = f"there are {known}, more than {MAX_CLIPS_FOR_START:,}"
        sentence = (
            f"Model: a VideoViT from random weights, because {reason}; --model start fine-tunes the one that ships."
        )
        return ModelChoice(None, sentence)

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
        splits = self.listed or load_data(chosen.data, named, chosen.video_root, chosen.split_by, **options)
        require_training(chosen.data, splits)
        return TaskData(splits, label_names(splits["train"]))

    def load_model(self, run: RunPlan, data: TaskData, arguments: VideoTrainingArguments) -> tuple[Any, Any]:
        chosen, names = run.chosen, data.class_names or []
        is_multi = is_multi_label(next(iter(data.splits.values())))
        problem_type = "multi_label_classification" if is_multi else "single_label_classification"
        if self.stream is not None:
            _evaluate_by_steps(arguments)
        arguments.check_problem_type(problem_type)
        arguments.check_metric(problem_type, len(names))

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
            make_linear_probe(model)
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
        """Merges adapters or a probe into a plain model, and sets the views of its final evaluation. A sharded model
        has neither, and its weights stay where they are until it is saved."""
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
    """Evaluates and saves 20 times in the steps of a stream, where the end of an epoch was chosen, which is not known
    there."""
    steps = max(arguments.max_steps // NUM_EVALUATIONS, 1)
    if arguments.eval_strategy == IntervalStrategy.EPOCH:
        arguments.eval_strategy, arguments.eval_steps = IntervalStrategy.STEPS, steps
    if arguments.save_strategy == SaveStrategy.EPOCH:
        arguments.save_strategy, arguments.save_steps = SaveStrategy.STEPS, steps


def _set_eval_batch_size(arguments: VideoTrainingArguments, processor: Any, clips: int) -> None:
    """Sets the evaluation batch size to the number of videos that have `clips` clips, at least one. The setting counts
    clips, and evaluation may take several from each video."""
    arguments.per_device_eval_batch_size = max(1, clips // (processor.num_clips * processor.num_crops))
