"""Trains a video classifier on labelled videos: `hf-video train` for programs."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from accelerate.utils import gather_object
from datasets import Dataset
from transformers import TrainerCallback, set_seed
from transformers.trainer_utils import IntervalStrategy, SaveStrategy

from hf_video.data import (
    ClipAugmentation,
    ClipMixing,
    ClipTask,
    MixingCollator,
    VideoDataset,
    VideoStream,
    is_multi_label,
)
from hf_video.data.clip_duration import clip_duration
from hf_video.data.rows import class_counts, label_ids
from hf_video.data.video_settings import dataset_options
from hf_video.io import replacing_files
from hf_video.loading.class_names import class_names_of
from hf_video.loading.start import SHIPPED, model_path
from hf_video.metrics import count_clips, measured_in
from hf_video.output_folders import RunLock
from hf_video.processes import failing_together, is_first_process

from .adaptation import add_lora, freeze_layers, make_linear_probe, to_plain_model
from .arguments import VideoTrainingArguments, check_optimization
from .class_balance import make_class_weights
from .evaluation import clip_reader, write_report
from .losses import make_distillation
from .model_choice import choose_model
from .model_loading import classifier_kind, load_model
from .optimization import settings_by_arguments
from .run import plan_run
from .settings import ScratchSettings, TrainSettings
from .trainer import VideoTrainer
from .training_data import (
    check_streamed,
    commit_of,
    cut_splits,
    load_data,
    load_stream,
    readable_videos,
    training_splits,
)
from .values import make

# How often a training on a stream evaluates, where nothing else is said.
NUM_EVALUATIONS = 20
# So many of the training clips show how well the model knows what it was trained on.
MAX_SEEN_CLIPS = 200


def train(settings: TrainSettings, callbacks: Sequence[TrainerCallback] = ()) -> tuple[VideoTrainer, dict[str, Any]]:
    """Trains a video classifier on labelled videos, as `hf-video train`. See `train_retrieval` for captions, and
    `train_detection` for persons.

    Settings and data are checked before anything is written. Model, checkpoints and report are in the output folder.

    Args:
        settings: the data, the output folder, and what differs from the defaults.
        callbacks: as of `transformers.Trainer`.

    Returns:
        The trainer, with the model that is kept, and the contents of `metrics.json`.

    Raises:
        ValueError, OSError: a setting or a video cannot be used, or the output folder is not empty.
    """
    with RunLock() as lock:
        return _train(settings, lock, callbacks)


def _train(
    settings: TrainSettings, lock: RunLock, callbacks: Sequence[TrainerCallback]
) -> tuple[VideoTrainer, dict[str, Any]]:
    start = plan_run(settings, lock, choose_model=choose_model)
    chosen, checkpoint = start.chosen, start.checkpoint
    with failing_together():
        if settings.recipe and settings.resume != "must" and chosen.model is None:
            raise ValueError("A recipe fine-tunes a model: say which with --model, a folder or a name on the Hub.")
        start.check_not_from_scratch(ScratchSettings)
        chosen.per_device_eval_batch_size = chosen.per_device_eval_batch_size or chosen.per_device_train_batch_size
        arguments = make(VideoTrainingArguments, chosen, **start.of_this_machine())
        augmentation, mixing = make(ClipAugmentation, chosen), make(ClipMixing, chosen)
        set_seed(arguments.seed)
        if arguments.lora_rank and chosen.model is None:
            raise ValueError("lora_rank adapts a trained model: say which with --model.")
        # A checkpoint of adapters holds no model. The trainer loads the adapters into the model that they were made
        # for.
        saved_model = None if arguments.lora_rank else checkpoint
        named_model, options = saved_model or model_path(chosen.model), dataset_options(chosen)
        stream = commit = None
        if chosen.streaming:
            check_streamed(chosen)
            _evaluate_by_steps(arguments)
            # A run that goes on reads the commit that it began with, whatever became of the branch.
            commit = (start.saved_data or {}).get("commit") or commit_of(chosen.data, chosen.revision)
            options["revision"] = commit
            stream, data, class_names = load_stream(chosen.data, named_model, chosen.video_root, **options)
        else:
            data, class_names = load_data(chosen.data, named_model, chosen.video_root, chosen.split_by, **options)
        start.check_data(data, class_names, commit)
        if start.model_sentence and is_first_process():
            print(start.model_sentence, flush=True)
        is_multi = is_multi_label(data["train" if stream is None else "validation"])
        problem_type = "multi_label_classification" if is_multi else "single_label_classification"
        arguments.check_problem_type(problem_type)
        arguments.check_metric(problem_type, len(class_names))
        kind = classifier_kind(chosen, class_names, problem_type)
        model, processor = load_model(chosen, kind, saved_model)
        model = _choose_weights(model, arguments)
        # This call is for its errors alone: the optimizer is made after the folder is begun.
        settings_by_arguments(model, arguments)
        check_optimization(arguments, model)
        distillation = make_distillation(arguments, model, processor)
    data, broken = readable_videos(data, chosen.on_error)
    with failing_together():
        splits = dict(data)
        if stream is None:
            splits |= training_splits(data, chosen.validation_fraction, chosen.seed, chosen.split_by)
            seconds = (start.saved_data or {}).get("clip_duration", chosen.clip_duration)
            if seconds is None:
                seconds = clip_duration(VideoDataset(splits["train"], ClipTask(processor), training=True))
            start.describe(clip_duration=seconds)
            splits = cut_splits(splits, seconds)
        for name, split in splits.items():
            if not any(label_ids(split)):
                raise ValueError(f"No video of the {name} split has a class, so nothing can be measured on it.")
        class_weights = make_class_weights(arguments.class_weights, class_names, splits.get("train"))
        # The batch size counts clips. Evaluation may take several clips from each video.
        eval_clips = arguments.per_device_eval_batch_size
        _set_eval_batch_size(arguments, processor, eval_clips)
        start.begin_writing()

    on_error = chosen.on_error
    drawing: dict[str, Any] = {"seed": arguments.seed, "on_error": on_error}
    task = ClipTask(processor, class_names, augmentation=augmentation)
    train_dataset: VideoDataset | VideoStream
    if stream is None:
        train_dataset = VideoDataset(splits["train"], task, training=True, **drawing)
    else:
        train_dataset = VideoStream(stream, task, shuffle_buffer_size=chosen.shuffle_buffer_size, **drawing)
    trainer = VideoTrainer(
        model=model,
        args=arguments,
        train_dataset=train_dataset,
        eval_dataset=VideoDataset(
            splits["validation"], task, training=False, on_error=_without_replacement(on_error)
        ).drop_broken(),
        data_collator=MixingCollator(mixing, len(class_names), arguments.label_smoothing_factor)
        if mixing.is_on
        else None,
        processing_class=processor,
        distillation=distillation,
        class_weights=class_weights,
        callbacks=[*callbacks],
    )
    with start.train(trainer):
        _finish_model(trainer, chosen, eval_clips)
        trainer.save_model()
        return trainer, _report(trainer, chosen, splits.get("test"), broken)


def _evaluate_by_steps(arguments: VideoTrainingArguments) -> None:
    """Evaluates and saves 20 times in the steps of a stream, where the end of an epoch was chosen, which is not known
    there."""
    steps = max(arguments.max_steps // NUM_EVALUATIONS, 1)
    if arguments.eval_strategy == IntervalStrategy.EPOCH:
        arguments.eval_strategy, arguments.eval_steps = IntervalStrategy.STEPS, steps
    if arguments.save_strategy == SaveStrategy.EPOCH:
        arguments.save_strategy, arguments.save_steps = SaveStrategy.STEPS, steps


def _choose_weights(model: Any, arguments: VideoTrainingArguments) -> Any:
    """The model with frozen layers, and with a linear probe or adapters, as the arguments say."""

    freeze_layers(model, arguments.freeze_layers)
    if arguments.linear_probe:
        make_linear_probe(model)
    return add_lora(model, arguments.lora_rank, arguments.lora_alpha) if arguments.lora_rank else model


def _set_eval_batch_size(arguments: VideoTrainingArguments, processor: Any, clips: int) -> None:
    """Sets the evaluation batch size to the number of videos that have `clips` clips, at least one."""
    arguments.per_device_eval_batch_size = max(1, clips // (processor.num_clips * processor.num_crops))


def _finish_model(trainer: VideoTrainer, chosen: TrainSettings, eval_clips: int) -> None:
    """Merges adapters or a probe into a plain model, and sets the views of its final evaluation. A sharded model has
    neither, and its weights stay where they are until it is saved."""

    if trainer.args.lora_rank and trainer.is_world_process_zero():
        with replacing_files(Path(trainer.args.output_dir, "adapter")) as folder:
            trainer.model.save_pretrained(folder)
    if not trainer.is_sharded:
        trainer.model = trainer.model_wrapped = to_plain_model(trainer.accelerator.unwrap_model(trainer.model))
    processor = trainer.processing_class
    for name in ("num_clips", "num_crops"):
        if getattr(chosen, name) is not None:
            setattr(processor, name, getattr(chosen, name))
    _set_eval_batch_size(trainer.args, processor, eval_clips)


def _without_replacement(on_error: str) -> str:
    return "skip" if on_error == "replace" else on_error


def _measure_seen(trainer: VideoTrainer) -> dict[str, float]:
    """The metrics of the model on some of the clips that it was trained on, as they are, without augmentation; none
    for a stream."""
    if isinstance(trainer.train_dataset, VideoStream):
        return {}
    rows = trainer.train_dataset.rows
    rows = rows.select(range(0, len(rows), -(-len(rows) // MAX_SEEN_CLIPS)))
    if not any(label_ids(rows)):
        return {}
    seen = VideoDataset(rows, trainer.train_dataset.task, training=False, on_error=trainer.eval_dataset.on_error)
    measured = trainer.predict(seen.drop_broken(), metric_key_prefix="seen").metrics
    return {metric.name: value for metric, value in measured_in(measured, "seen_")}


def _report(
    trainer: VideoTrainer, chosen: TrainSettings, test_split: Dataset | None, broken: list[str]
) -> dict[str, Any]:

    processor, dataset, split = trainer.processing_class, trainer.eval_dataset, "validation"
    is_stream = isinstance(trainer.train_dataset, VideoStream)
    if test_split is not None:
        dataset = VideoDataset(
            test_split, trainer.eval_dataset.task, training=False, on_error=trainer.eval_dataset.on_error
        )
        dataset, split = dataset.drop_broken(), "test"
    prediction = trainer.predict(dataset)
    on_seen = _measure_seen(trainer)
    datasets = (trainer.train_dataset, trainer.eval_dataset, dataset)
    broken = sorted({*broken, *gather_object([path for used in datasets for path in used.broken_videos()])})
    if not trainer.is_world_process_zero():
        return {}
    return write_report(
        Path(trainer.args.output_dir, "report"),
        scores=prediction.predictions,
        labels=prediction.label_ids,
        class_names=class_names_of(trainer.model.config),
        log_history=trainer.state.log_history,
        split=split,
        training_metrics=on_seen,
        clip_of=clip_reader(dataset, len(prediction.label_ids), broken),
        training_counts=None if is_stream else class_counts(trainer.train_dataset.rows),
        num_videos=len(set(dataset.rows["video"][:]) - set(broken)),
        details={
            "model": "the start that ships" if chosen.model == SHIPPED else chosen.model or "VideoViT from scratch",
            **_count_trained(trainer.train_dataset),
            "clip": f"{processor.num_frames} frames, {processor.sampling_strategy}",
            **({"steps": trainer.args.max_steps} if is_stream else {"epochs": trainer.args.num_train_epochs}),
            "seed": trainer.args.seed,
            **({"broken_videos": broken} if broken else {}),
        },
    )


def _count_trained(dataset: VideoDataset | VideoStream) -> dict[str, Any]:
    if isinstance(dataset, VideoStream):
        return {"training_videos": "a stream"}
    return {name.replace("num", "training"): count for name, count in count_clips(dataset.rows["video"][:]).items()}
