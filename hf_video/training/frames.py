"""Training a classifier of frames on segments of videos: the task `frames`."""

from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from itertools import groupby
from typing import Any

import numpy as np
import torch

from hf_video.data import ClipAugmentation, FrameTask, VideoDataset, cut_clips, is_multi_label, load_video_dataset
from hf_video.data.frame_labels import (
    POINT_WIDTH,
    UNKNOWN,
    frame_classes,
    have_several_labels,
    point_classes,
    split_videos,
)
from hf_video.data.holding_out import further_columns
from hf_video.data.mixing import collate_frames
from hf_video.data.video_settings import annotation_choices
from hf_video.evaluation.frames import evaluate_frames, figures_by_name
from hf_video.evaluation.points import Spotted, measure_points, tell_points
from hf_video.inference.scores import scores_of
from hf_video.loading.class_names import background_of, class_names_of, points_of
from hf_video.loading.configurations import load_config
from hf_video.loading.heads import load_frame_classifier
from hf_video.loading.released import model_path
from hf_video.metrics import wilson_interval
from hf_video.processes import is_first_process
from hf_video.settings import settings_of

from .adaptation import freeze_layers
from .arguments import FrameTrainingArguments
from .data import require_training
from .losses import make_distillation
from .report import Measured, class_table, clip_reader, clip_table, table
from .report_pictures import ShownClip, plot_clips, plot_confusion_matrix
from .run import ModelChoice, RunPlan
from .task import Task, TaskData
from .task_settings import RegularizationSettings, ScratchSettings, TrainFrameSettings
from .trainer import BaseTrainer
from .values import make

# Frames a second of a model that has no rate.
FPS = 8.0
_NUM_WORST_CLIPS = 8
# The settings that make a model of another size or kind than the bundled one.
_OF_OTHERS = ("num_frames", "image_size", "family", "causal", *settings_of(ScratchSettings))


class FrameClassificationTrainer(BaseTrainer):
    """`transformers.Trainer` for a classifier of frames such as [`VideoMambaForFrameClassification`] and a
    [`VideoDataset`] of a [`FrameTask`]. The loss is the model's, over the known frames of the whole step.

    An evaluation gives what [`evaluate_frames`][hf_video.evaluation.evaluate_frames] measures. It puts the clips of a
    video together, so they must not overlap. `background` is the class that is no segment, if there is one.
    """

    def __init__(self, *args: Any, background: str | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.background = background

    def default_collator(self) -> Any:
        return collate_frames

    def figures_of(self, predictions: Any, dataset: Any) -> dict[str, float]:
        if predictions is None:
            return {}
        return figures_by_name(measure_clips(predictions, dataset, self.model.config, self.background))


class FramesTask(Task):
    """Learns the class, or classes, of each frame of long videos."""

    arguments, trainer, sizes = FrameTrainingArguments, FrameClassificationTrainer, ScratchSettings
    measures_training = True
    enough_clips = 8000
    try_it = "hf-video timeline VIDEO --model {model}"

    background: str | None = None
    points: Sequence[str] = ()
    point_width = POINT_WIDTH
    several = False
    fps = FPS
    model: Any = None

    def choose_model(self, named: Collection[str], chosen: Any) -> ModelChoice:
        """The bundled model, unless a size or kind of another one is given."""
        if chosen.recipe is not None:
            return ModelChoice(None)
        known = settings_of(TrainFrameSettings)
        if given := next((known[name].flag for name in _OF_OTHERS if name in named), None):
            return ModelChoice.of_random(chosen.family, f"{given} is given")
        return ModelChoice.of_bundled()

    def load_data(self, run: RunPlan) -> TaskData:
        chosen = run.chosen
        choices = annotation_choices(chosen)
        self.point_width = choices.pop("point_width", POINT_WIDTH)
        self.background = chosen.background
        if chosen.background is None and chosen.model is not None:
            self.background = next(iter(background_of(load_config(model_path(chosen.model) or ""))), None)
            if self.background is not None and is_first_process():
                print(f"Frames outside of all segments are {self.background!r}, as in {chosen.model}.", flush=True)
        options: dict[str, Any] = {"columns": further_columns(chosen.split_by), "video_root": chosen.video_root}
        options |= {"choices": choices | {"point_width": 0}, "min_classes": 2 if self.background is None else 1}
        splits = load_video_dataset(chosen.data, **options)
        require_training(chosen.data, splits, chosen.split_by)
        self.points = point_classes(splits["train"])
        if self.points and self.background is None:
            raise ValueError(
                f"The rows of {', '.join(self.points)} are instants, which a model finds only if it knows other time: "
                "say --background NAME."
            )
        return TaskData(splits, frame_classes(splits["train"], self.background))

    def load_model(self, run: RunPlan, data: TaskData, arguments: Any) -> tuple[Any, Any]:
        chosen, names = run.chosen, data.class_names or []
        self.several = any(map(is_multi_label, data.splits.values()))
        if not self.several and any(have_several_labels(rows, self.point_width) for rows in data.splits.values()):
            self.several = True
            if is_first_process():
                print(
                    "Rows of different classes share seconds of a video, so the model gives each class a score of its "
                    "own. If only one class can be right at a time, correct the rows that `hf-video inspect "
                    f"{chosen.data}` lists.",
                    flush=True,
                )
        problem_type = "multi_label_classification" if self.several else "single_label_classification"
        known = [*settings_of(RegularizationSettings), "frame_pooling", "smoothing_loss_weight"]
        changes = {name: value for name in known if (value := getattr(chosen, name)) is not None}
        changes |= {"background_label": self.background}
        changes |= {} if chosen.delay is None else {"frame_delay": chosen.delay}
        options = {"num_frames": chosen.num_frames, "image_size": chosen.image_size, "causal": chosen.causal}
        if chosen.model is None:
            sizes = {name: getattr(chosen, name) for name in settings_of(ScratchSettings)}
            heads = {"num_attention_heads": sizes.pop("num_attention_heads")}
            if chosen.family == "videovit":
                changes |= heads | {"intermediate_size": 4 * chosen.hidden_size}
            changes |= sizes | {"family": chosen.family}
        found = load_frame_classifier(model_path(chosen.model), names, problem_type, **options, **changes)
        self.model, processor = found
        freeze_layers(self.model, chosen.freeze_layers)
        known_fps = 1 / processor.frame_interval if processor.frame_interval else processor.fps
        self.fps = chosen.fps or known_fps or FPS
        processor.frame_interval = 1 / self.fps
        # Some token frame has its middle in it.
        self.point_width = max(self.point_width, self.model.config.tubelet_size / self.fps)
        fields = (list(self.points), self.point_width) if self.points else (None, None)
        self.model.config.point_labels, self.model.config.point_width = fields
        return found

    def make_splits(self, run: RunPlan, data: TaskData, processor: Any) -> None:
        chosen, config = run.chosen, self.model.config
        how = (chosen.validation_fraction, chosen.seed, chosen.split_by)
        videos, sentence = split_videos(data.splits, *how, self.background, self.point_width)
        if sentence and is_first_process():
            print(sentence, flush=True)
        options = {"fps": self.fps, "tubelet_size": config.tubelet_size, "several": self.several}
        options |= {"background": self.background, "frame_delay": config.frame_delay}
        overlaps = {"train": chosen.clip_overlap}
        data.splits = {
            name: cut_clips(each, processor, data.class_names or [], **options, overlap=overlaps.get(name, 0.0))
            for name, each in videos.items()
        }

    def item_task(self, run: RunPlan, data: TaskData, processor: Any) -> FrameTask:
        augmentation = make(ClipAugmentation, run.chosen)
        return FrameTask(processor, data.class_names or [], fps=self.fps, augmentation=augmentation)

    def trainer_options(
        self, run: RunPlan, data: TaskData, arguments: Any, model: Any, processor: Any
    ) -> dict[str, Any]:
        return {"background": self.background, "distillation": make_distillation(arguments, model, processor)}

    def describe(self, run: RunPlan, trainer: FrameClassificationTrainer) -> dict[str, Any]:
        num_frames = trainer.processing_class.num_frames
        return {"clip": f"{num_frames} frames, {self.fps:g} a second"}

    def measure(self, trainer: FrameClassificationTrainer, dataset: VideoDataset) -> Measured:
        found, names = trainer.predict(dataset), class_names_of(trainer.model.config)
        result = measure_clips(found.predictions, dataset, trainer.model.config, trainer.background)
        counts = np.array([each["num_frames"] for each in result["classes"].values()])
        metrics = {"loss": found.metrics["test_loss"], **result, **figures_by_name(result)}
        rows = [
            (name, each["num_frames"], each["num_segments"], *(_share(f1) for f1 in each["f1"] or [None] * 3))
            for name, each in result["classes"].items()
        ]
        tables = table(("class", "frames", "segments", *(f"F1@{t * 100:.0f}" for t in result["tious"])), rows)
        if "points" in result:
            tables += ["", "```text", *tell_points(result["points"]), "```"]
        if self.several:
            return Measured(metrics, tables=tables)
        # Frames of one segment are right or wrong together, so that segments are counted.
        interval = wilson_interval(result["frame_accuracy"], max(result["num_segments"], 1))
        metrics |= {"chance": float(counts.max() / counts.sum()), "interval": [*interval]}
        labels = [np.asarray(row) for row in dataset.rows["frame_labels"]]
        confused = _confusions(found.predictions, labels, len(names))
        clips = _worst_clips(found.predictions, labels, names, dataset)

        def draw(split: str) -> Iterator[tuple[str, Any]]:
            yield "confusion_matrix.png", plot_confusion_matrix(confused, names)
            if clips:
                title = f"The {len(clips)} {split} clips with the fewest right frames"
                yield "worst_clips.png", plot_clips(clips, title)

        return Measured(
            metrics,
            tables=[*clip_table(clips), *tables, "", *class_table(confused, names, counted="frames")],
            pictures=draw,
        )


def measure_clips(
    logits: np.ndarray, clips: VideoDataset, config: Any, background: str | None = None
) -> dict[str, Any]:
    """What `evaluate_frames` and `measure_points` say of logits (num_clips, t, num_classes) for the clips of a data
    set, in the order of each video. Between them may be unknown time."""
    found, truth = defaultdict[str, list[np.ndarray]](list), defaultdict[str, list[np.ndarray]](list)
    spotted = list[Spotted]()
    columns = {"video", "start", "end", "frame_labels", "instants"} & {*clips.rows.column_names}
    for logit, row in zip(logits, clips.rows.select_columns([*columns]), strict=True):
        video, labels = row["video"], np.asarray(row["frame_labels"])
        logit = logit[: len(labels)]
        predictions = logit.argmax(-1) if labels.ndim == 1 else (logit > 0).astype(labels.dtype)
        found[video].append(predictions)
        truth[video].append(labels)
        if "instants" in row:
            middles = np.arange(len(labels)) + 0.5 - config.frame_delay
            moments = row["start"] + middles * (row["end"] - row["start"]) / len(labels)
            scores = scores_of(torch.from_numpy(logit), config).numpy()
            instants = [(time, int(label)) for time, label in row["instants"]]
            # The first answers of a clip with a delay are for what came before it.
            known = slice(config.frame_delay, None)
            spotted.append(Spotted(video, moments[known], scores[known], labels[known], instants))
    predictions, references = ([np.concatenate(parts) for parts in each.values()] for each in (found, truth))
    names = class_names_of(config)
    points = measure_points(spotted, names, points_of(config), config.point_width or 0.0)
    return evaluate_frames(predictions, references, names, [] if background is None else [background]) | points


def _confusions(logits: np.ndarray, labels: Sequence[np.ndarray], num_classes: int) -> np.ndarray:
    """The confusion matrix of frames, (num_classes, num_classes) int64."""
    pairs = [
        truth[known] * num_classes + scores[: len(truth)][known].argmax(-1)
        for scores, truth in zip(logits, labels, strict=True)
        for known in [truth != UNKNOWN]
    ]
    return np.bincount(np.concatenate(pairs), minlength=num_classes**2).reshape(num_classes, num_classes)


def _worst_clips(
    logits: np.ndarray, labels: Sequence[np.ndarray], names: Sequence[str], dataset: VideoDataset
) -> list[ShownClip]:
    clip_of = clip_reader(dataset, len(logits))
    if clip_of is None:
        return []
    found = [scores[: len(truth)].argmax(-1) for scores, truth in zip(logits, labels, strict=True)]
    shares = [(each == truth)[truth != UNKNOWN].mean() for each, truth in zip(found, labels, strict=True)]
    clips = []
    for row in np.argsort(shares, kind="stable")[:_NUM_WORST_CLIPS].tolist():
        video, frames = clip_of(row)
        caption = (f"true: {_told(labels[row], names)}", f"predicted: {_told(found[row], names)}")
        clips.append(ShownClip((*caption, f"{shares[row]:.0%} of the frames right, {video}"), frames))
    return clips


def _told(ids: np.ndarray, names: Sequence[str]) -> str:
    """The classes of frames in their order."""
    return ", ".join("unknown" if label == UNKNOWN else names[label] for label, _ in groupby(ids.tolist()))


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:.1%}"
