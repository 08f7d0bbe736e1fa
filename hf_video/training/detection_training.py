"""Trains an action detector on persons at key frames: `hf-video train --task action-detection` for programs."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from datasets import Dataset, DatasetDict
from transformers import TrainerCallback, set_seed

from hf_video.data import BoxTask, VideoDataset
from hf_video.data.boxes import action_names, load_detections
from hf_video.io import replace_text
from hf_video.loading.detectors import load_detector
from hf_video.output_folders import RunLock
from hf_video.processes import failing_together

from .arguments import DetectionTrainingArguments, check_optimization
from .detection import ActionDetectionTrainer, measure_predictions
from .optimization import settings_by_arguments
from .run import plan_run
from .settings import TrainDetectionSettings
from .training_data import warn_of_repetitions
from .values import make

# Settings that `load_detector` takes by their names.
_OF_MODEL = (
    *("num_frames", "frame_sampling_rate", "image_size", "num_queries", "drop_path_rate", "action_weight"),
    *("original_loss_means", "detector_config"),
)


def train_detection(
    settings: TrainDetectionSettings, callbacks: Sequence[TrainerCallback] = ()
) -> tuple[ActionDetectionTrainer, dict[str, Any]]:
    """Trains an action detector on persons at key frames, as `hf-video train --task action-detection`.

    Settings and data are checked before anything is written. Model, checkpoints and `report/detection.json` are in the
    output folder.

    Args:
        settings: the data, see `load_detections`, the output folder, the model, and what differs from the defaults.
        callbacks: as of `transformers.Trainer`.

    Returns:
        The trainer, with the best model, and the metrics of the test split, or else of the validation split: `mean_ap`
        and `ap` by action among them; empty if there is neither.

    Raises:
        ValueError, OSError: a setting or a file cannot be used, a key frame has more persons than the model queries,
            or the output folder is not empty.
    """
    with RunLock() as lock:
        return _train_detection(settings, lock, callbacks)


def _train_detection(
    settings: TrainDetectionSettings, lock: RunLock, callbacks: Sequence[TrainerCallback]
) -> tuple[ActionDetectionTrainer, dict[str, Any]]:
    start = plan_run(settings, lock)
    chosen = start.chosen
    with failing_together():
        if chosen.model is None:
            raise ValueError("The model to train is missing: give --model, a detector or a backbone.")
        data = load_detections(
            chosen.data,
            video_root=chosen.video_root,
            label_map=chosen.label_map,
            exclude=chosen.exclude,
            first_second=chosen.first_second,
        )
        if "train" not in data:
            raise ValueError(f"{chosen.data} has no training split, only {', '.join(data)}. Add train.csv.")
        warn_of_repetitions({name: _key_frames(rows) for name, rows in data.items()})
        class_names = action_names(data["train"])
        start.check_data(data, class_names)
        chosen.per_device_eval_batch_size = chosen.per_device_eval_batch_size or chosen.per_device_train_batch_size
        here = start.of_this_machine() | start.without_validation(data)
        arguments = make(DetectionTrainingArguments, chosen, **here)
        set_seed(arguments.seed)
        options = {name: getattr(chosen, name) for name in _OF_MODEL}
        model, processor = load_detector(chosen.model, class_names, **options)
        _check_persons(data, model.config.num_queries)
        # This call is for its errors alone.
        settings_by_arguments(model, arguments)
        check_optimization(arguments, model)
        task = BoxTask(processor, scales=chosen.scales, flip_prob=chosen.flip_prob)
        splits = {
            name: VideoDataset(rows, task, training=name == "train", seed=arguments.seed)
            for name, rows in data.items()
        }
        start.begin_writing()
    trainer = ActionDetectionTrainer(
        model=model,
        args=arguments,
        train_dataset=splits["train"],
        eval_dataset=splits.get("validation"),
        processing_class=processor,
        callbacks=[*callbacks],
    )
    with start.train(trainer):
        trainer.save_model()
        return trainer, _evaluate(trainer, splits)


def _key_frames(rows: Dataset) -> Dataset:
    """The key frames as segments of videos."""
    segments = rows.remove_columns(["boxes", "actions"]).rename_column("second", "start")
    return segments.add_column("end", rows["second"][:])


def _check_persons(data: DatasetDict, num_queries: int) -> None:
    """Refuses (`ValueError`) key frames with more persons than a model has queries."""
    for rows in data.values():
        for video, second, boxes in zip(*(rows[name][:] for name in ("video", "second", "boxes")), strict=True):
            if len(boxes) > num_queries:
                raise ValueError(
                    f"{video} has {len(boxes)} persons at {second:g} s, and the model {num_queries} queries, each of "
                    "which finds one at most: set a larger num_queries with a detector that is made anew, or leave "
                    "persons out."
                )


def _evaluate(trainer: ActionDetectionTrainer, splits: dict[str, VideoDataset]) -> dict[str, Any]:
    split = next((name for name in ("test", "validation") if name in splits), None)
    if split is None:
        return {}
    # Every process takes part.
    found = trainer.predict(splits[split])
    measured = measure_predictions(found.predictions, splits[split].rows)
    metrics = {"split": split, "num_key_frames": len(splits[split]), "loss": found.metrics["test_loss"], **measured}
    if trainer.is_world_process_zero():
        folder = Path(trainer.args.output_dir, "report")
        folder.mkdir(exist_ok=True)
        replace_text(folder / "detection.json", json.dumps(metrics, indent=2) + "\n")
    return metrics
