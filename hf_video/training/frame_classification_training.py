"""Trains a classifier of frames on segments of videos: `hf-video train --task frame-classification` for programs."""

import json
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from transformers import TrainerCallback, set_seed

from hf_video.data import ClipAugmentation, FrameTask, VideoDataset, cut_clips, is_multi_label, load_video_dataset
from hf_video.data.frame_labels import frame_classes, have_several_labels, split_videos
from hf_video.data.holding_out import further_columns
from hf_video.io import replace_text
from hf_video.loading.class_names import background_of, class_names_of
from hf_video.loading.configurations import load_config
from hf_video.loading.frame_classifiers import load_frame_classifier, make_frame_classifier
from hf_video.output_folders import RunLock
from hf_video.processes import failing_together, is_first_process

from .arguments import FrameTrainingArguments, check_optimization
from .frame_classification import FrameClassificationTrainer, measure_clips
from .losses import make_distillation
from .optimization import settings_by_arguments
from .run import plan_run
from .settings import RegularizationSettings, ScratchSettings, TrainFrameSettings
from .values import make

# Frames a second of a model that has no rate.
FPS = 8.0


def train_frames(
    settings: TrainFrameSettings, callbacks: Sequence[TrainerCallback] = ()
) -> tuple[FrameClassificationTrainer, dict[str, Any]]:
    """Trains a classifier of frames on segments of videos, as `hf-video train --task frame-classification`.

    Settings and data are checked before anything is written. Model, checkpoints and `report/frames.json` are in the
    output folder.

    Args:
        settings: the data, see `load_video_dataset`, the output folder, the model, and what differs from the defaults.
        callbacks: as of `transformers.Trainer`.

    Returns:
        The trainer, with the best model, and what `evaluate_frames` gives for the test split, or else the validation
        split. Without one, whole videos are held out, or the last seconds of each where there is a single one.

    Raises:
        ValueError, OSError: a setting or a file cannot be used, or the output folder is not empty.
    """
    with RunLock() as lock:
        return _train_frames(settings, lock, callbacks)


def _train_frames(
    settings: TrainFrameSettings, lock: RunLock, callbacks: Sequence[TrainerCallback]
) -> tuple[FrameClassificationTrainer, dict[str, Any]]:
    start = plan_run(settings, lock)
    chosen = start.chosen
    with failing_together():
        start.check_not_from_scratch(ScratchSettings)
        data = load_video_dataset(chosen.data, video_root=chosen.video_root, columns=further_columns(chosen.split_by))
        if "train" not in data:
            raise ValueError(f"{chosen.data} has no training split, only {', '.join(data)}. Add train.csv.")
        background = chosen.background or _background_of_model(chosen.model)
        names = frame_classes(data["train"], background)
        start.check_data(data, names)
        videos, held_out = split_videos(data, chosen.validation_fraction, chosen.seed, chosen.split_by)
        if held_out and is_first_process():
            print(held_out, flush=True)
        if background != chosen.background and is_first_process():
            print(f"Frames outside of all segments are {background!r}, as in {chosen.model}.", flush=True)
        several = is_multi_label(data["train"]) or any(map(have_several_labels, videos.values()))
        chosen.per_device_eval_batch_size = chosen.per_device_eval_batch_size or chosen.per_device_train_batch_size
        arguments = make(FrameTrainingArguments, chosen, **start.of_this_machine())
        augmentation = make(ClipAugmentation, chosen)
        set_seed(arguments.seed)
        model, processor = _make_model(chosen, names, background, several)
        # These calls are for their errors alone.
        settings_by_arguments(model, arguments)
        check_optimization(arguments, model)
        distillation = make_distillation(arguments, model, processor)
        fps = chosen.fps or (1 / processor.frame_interval if processor.frame_interval else processor.fps or FPS)
        processor.frame_interval = 1 / fps
        options: dict[str, Any] = {
            "fps": fps,
            "tubelet_size": model.config.tubelet_size,
            "background": background,
            "several": several,
            "frame_delay": model.config.frame_delay,
        }
        task = FrameTask(processor, names, fps=fps, augmentation=augmentation)
        splits = {
            name: VideoDataset(
                cut_clips(each, processor, names, **options, overlap=chosen.clip_overlap if name == "train" else 0.0),
                task,
                training=name == "train",
                seed=arguments.seed,
            )
            for name, each in videos.items()
        }
        start.begin_writing()
    trainer = FrameClassificationTrainer(
        model=model,
        args=arguments,
        train_dataset=splits["train"],
        eval_dataset=splits["validation"],
        processing_class=processor,
        background=background,
        distillation=distillation,
        callbacks=[*callbacks],
    )
    with start.train(trainer):
        trainer.save_model()
        return trainer, _evaluate(trainer, splits)


def _background_of_model(model: str | None) -> str | None:
    return None if model is None else next(iter(background_of(load_config(model))), None)


def _make_model(
    chosen: TrainFrameSettings, names: list[str], background: str | None, several: bool
) -> tuple[Any, Any]:
    kind = "multi_label_classification" if several else "single_label_classification"
    fields_of_config = [each.name for each in fields(RegularizationSettings) if hasattr(chosen, each.name)]
    fields_of_config += ["frame_pooling", "smoothing_loss_weight"]
    changes = {name: getattr(chosen, name) for name in fields_of_config if getattr(chosen, name) is not None}
    changes |= {"background_label": background} | ({} if chosen.delay is None else {"frame_delay": chosen.delay})
    options: dict[str, Any] = {
        "num_frames": chosen.num_frames,
        "image_size": chosen.image_size,
        "causal": chosen.causal,
    }
    if chosen.model is not None:
        return load_frame_classifier(chosen.model, names, kind, **options, **changes)
    sizes = {each.name: getattr(chosen, each.name) for each in fields(ScratchSettings)}
    return make_frame_classifier(chosen.family, names, kind, **options, **sizes, **changes)


def _evaluate(trainer: FrameClassificationTrainer, splits: dict[str, VideoDataset]) -> dict[str, Any]:
    split = "test" if "test" in splits else "validation"
    # Every process takes part.
    found = trainer.predict(splits[split])
    names = class_names_of(trainer.model.config)
    measured = measure_clips(found.predictions, splits[split], names, trainer.background)
    metrics = {"split": split, "loss": found.metrics["test_loss"], **measured}
    if trainer.is_world_process_zero():
        folder = Path(str(trainer.args.output_dir), "report")
        folder.mkdir(exist_ok=True)
        replace_text(folder / "frames.json", json.dumps(metrics, indent=2) + "\n")
    return metrics
