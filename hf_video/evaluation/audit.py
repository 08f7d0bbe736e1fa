"""Says what a classifier of clips uses of a video, by what it loses without it."""

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torchvision.transforms.v2 import functional as F
from transformers import BatchFeature

from hf_video.data import ClipTask
from hf_video.inference.inference_settings import AuditSettings
from hf_video.inference.scores import predict_scores
from hf_video.io import replace_text, sha256_of
from hf_video.metrics import chance_accuracy, wilson_interval

from .classes import load_measured_clips, read_batches, reading_options, tell_clips
from .matching import Tell

# In the folder of the model.
AUDIT_FILE = "audit.json"
AS_IT_IS = "as_it_is"
# Whoever loses less than this share of the videos, with the upper end of the interval, does not use what is missing.
LITTLE = 0.05
# Distances between the frames of a clip, in those of the clip as it is; they are views behind it, in this order.
_DISTANCES = (0.5, 2.0)
_BORDER = 1 / 8
# So many clips, all of them right as they are and changed, rule out a loss of 5 points.
_ENOUGH = 73


class Variant(NamedTuple):
    """One way to show a clip: how it is called, what is shown, what a model uses that loses by it, and which of
    `_DISTANCES` it has, None for clips as they are."""

    name: str
    shown: str
    tested: str
    distance: int | None = None


VARIANTS = (
    Variant(AS_IT_IS, "clips as they are", ""),
    Variant("frames_shuffled", "shuffled frames", "time (the order of frames)"),
    Variant("frames_reversed", "reversed frames", "the direction of time"),
    Variant("one_frame", "clips of the middle frame alone", "more than one frame"),
    Variant("half_distance", "frames at half the distance", "speed (slower)", 0),
    Variant("double_distance", "frames at double the distance", "speed (faster)", 1),
    Variant("mirrored", "mirrored frames", "left and right"),
    Variant("borders_hidden", "hidden borders, an eighth of each side,", "the borders"),
    Variant("colours_off", "grey frames", "colours"),
)
"""The ways in which [`audit_model`] shows clips; the first is as they are."""


def _variants(
    clips: torch.Tensor, generator: np.random.Generator, mean: torch.Tensor, deviation: torch.Tensor
) -> Iterator[torch.Tensor]:
    """The clips (batch_size, views, num_frames, num_channels, height, width) in each of the `VARIANTS`, of those of
    all distances (batch_size, 1 + len(_DISTANCES), ...) that were normalised by mean and deviation (num_channels, 1,
    1)."""
    whole = clips[:, 0]
    orders = [generator.permutation(whole.shape[2]) for _ in whole]
    top, left = (round(_BORDER * side) for side in whole.shape[-2:])
    inside = whole[..., top : whole.shape[-2] - top, left : whole.shape[-1] - left]
    hidden = inside.mean((2, 4, 5), keepdim=True).expand_as(whole).clone()
    hidden[..., top : whole.shape[-2] - top, left : whole.shape[-1] - left] = inside
    yield whole
    yield torch.stack([clip[:, order] for clip, order in zip(whole, orders, strict=True)])
    yield whole.flip(2)
    yield whole[:, :, whole.shape[2] // 2, None].expand_as(whole)
    yield from clips[:, 1:].unbind(1)
    yield whole.flip(-1)
    yield hidden
    yield (F.rgb_to_grayscale(whole * deviation + mean, num_output_channels=3) - mean) / deviation


class _DistancesTask(ClipTask):
    """Clips as they are, and behind them those of the same middles with other distances between frames. An item says
    for which of these the video has as many different frames."""

    def make_clip(self, row: Mapping[str, Any], key: tuple[int, ...], training: bool) -> BatchFeature:
        with self.open_clips(row, training) as reader:
            segment = reader.segment(row.get("start"), row.get("end"))
            frames = self.choose_frames(reader, row, None)
            numbers = [frames, *(_at_distance(frames, distance, segment) for distance in _DISTANCES)]
            clips = reader.read(np.concatenate(numbers))
        has_frames = torch.tensor([_has(frames, *pair) for pair in zip(_DISTANCES, numbers[1:], strict=True)])
        pixels = self._process(list(clips)).flatten(0, -5)
        return BatchFeature({"pixel_values": pixels, "has_frames": has_frames})


def _at_distance(frames: np.ndarray, distance: float, segment: range) -> np.ndarray:
    """Frames (num_clips, T) with another distance between them, moved into the segment as far as they fit."""
    middles = (frames[:, :1] + frames[:, -1:]) / 2
    found = np.rint(middles + distance * (frames - middles)).astype(np.int64)
    found += (segment.start - found[:, :1]).clip(0) - (found[:, -1:] - segment.stop + 1).clip(0)
    return found.clip(segment.start, segment.stop - 1)


def _has(frames: np.ndarray, distance: float, found: np.ndarray) -> bool:
    """Whether the frames that were found lie at a distance, and are as many different ones."""
    spans, reached = (each[:, -1] - each[:, 0] for each in (frames, found))
    counts = [[len({*clip}) for clip in each.tolist()] for each in (frames, found)]
    return bool((reached >= distance * spans - 1).all()) and counts[1] >= counts[0]


def audit_model(settings: AuditSettings, tell: Tell = lambda result: None) -> dict[str, Any]:
    """Measures a classifier of clips on videos that lack something, as `hf-video audit`.

    Args:
        settings: the data, the model, and what differs from the defaults.
        tell: is called with the result before it is written.

    Returns:
        What `hf-video audit --json` prints. `chance` is the accuracy of always guessing the most frequent class.
        `variants` has for each of `VARIANTS`, on `num_clips` clips, the `accuracy` with its `interval`; the `cost`,
        which is the accuracy of the same clips as they are less that, with its `cost_interval`; whether what it tests
        `is_used`, None if that is open; and a `sentence`. A clip of several classes is right with all of them right.
        Figures are shares, intervals are of 95 %. Where the model is a folder that can be written to, its `audit.json`
        has the same, and the digests of the `weights`.

    Raises:
        ValueError, OSError: a setting or a video cannot be used, there is no such model, or it does not classify
            clips.
    """
    model, dataset, facts = load_measured_clips(settings, _DistancesTask)
    processor, generator = dataset.task.processor, np.random.default_rng(0)
    normal = (processor.image_mean, processor.image_std) if processor.do_normalize else ([0.0], [1.0])
    statistics = [torch.tensor(values).reshape(-1, 1, 1) for values in normal]
    right, has_frames, labels = list[np.ndarray](), list[np.ndarray](), list[np.ndarray]()
    for batch in read_batches(dataset, **reading_options(settings)):
        clips = batch["pixel_values"].unflatten(1, (1 + len(_DISTANCES), -1))
        shown = (each if each.shape[1] > 1 else each[:, 0] for each in _variants(clips, generator, *statistics))
        labels.append(batch["labels"].numpy())
        right.append(np.stack([_is_right(predict_scores(model, each).numpy(), labels[-1]) for each in shown]))
        has_frames.append(batch["has_frames"].numpy())
    is_right, known = np.concatenate(right, axis=1), np.concatenate(has_frames)
    kinds = np.unique(np.concatenate(labels), axis=0, return_inverse=True)[1].ravel()
    chance, video_of = chance_accuracy(kinds), np.unique(dataset.rows["video"][:], return_inverse=True)[1]
    variants = dict[str, dict[str, Any]]()
    for variant, row in zip(VARIANTS, is_right, strict=True):
        clips = slice(None) if variant.distance is None else known[:, variant.distance]
        variants[variant.name] = _measure(variant, is_right[0][clips], row[clips], video_of[clips], chance)
    result = facts | {"chance": chance, "variants": variants}
    tell(result)
    folder = Path(settings.model)
    if folder.is_dir() and os.access(folder, os.W_OK):
        content = result | {"weights": weights_of(folder)}
        replace_text(folder / AUDIT_FILE, json.dumps(content, indent=2) + "\n")
    return result


def _is_right(scores: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Which rows of scores are right, (n,) bool."""
    if labels.ndim == 1:
        return scores.argmax(axis=1) == labels
    return ((scores >= 0.5) == (labels > 0.5)).all(axis=1)


def _measure(
    variant: Variant, as_it_is: np.ndarray, changed: np.ndarray, video_of: np.ndarray, chance: float
) -> dict[str, Any]:
    """What a result says of a variant."""
    if not len(changed):
        sentence = f"Whether it uses {variant.tested} is open: no row of the data has {variant.shown}."
        return {"num_clips": 0, "is_used": None, "sentence": sentence}
    interval = wilson_interval(changed.mean(), effective_number(changed, video_of))
    found = {"num_clips": len(changed), "accuracy": float(changed.mean()), "interval": [*interval]}
    lowest = wilson_interval(as_it_is.mean(), effective_number(as_it_is, video_of))[0]
    if variant.name == AS_IT_IS:
        guessing = f"than always guessing the most frequent class ({chance:.1%})"
        is_better = f"It is better {guessing}.", f"It may be no better {guessing}, so that costs tell little."
        return found | {"sentence": is_better[int(lowest <= chance)]}
    cost, (low, high) = as_it_is.mean() - changed.mean(), paired_interval(as_it_is, changed, video_of)
    is_used = True if low > 0 else False if high < LITTLE and lowest > chance else None
    verdict = {True: "It uses {}", False: "It does not use {}", None: "Whether it uses {} is open"}[is_used]
    points = f"{100 * cost:.1f} points ({100 * low:.1f} to {100 * high:.1f})"
    sentence = f"{verdict.format(variant.tested)}: {variant.shown} cost {points}."
    return found | {"cost": float(cost), "cost_interval": [low, high], "is_used": is_used, "sentence": sentence}


def effective_number(values: np.ndarray, video_of: np.ndarray) -> float:
    """The number of independent clips whose mean is as uncertain as that of these, of which those of one video are
    alike: their number divided by the design effect (L. Kish, Survey Sampling, 1965). Both are (num_clips,)."""
    deviations, num_videos = values - values.mean(), len(np.unique(video_of))
    if num_videos in (1, len(values)) or not deviations.any():
        return num_videos
    between = np.square(np.bincount(video_of, deviations)).sum() * num_videos / (num_videos - 1)
    return float(min(len(values) * np.square(deviations).sum() / between, len(values)))


def paired_interval(first: np.ndarray, second: np.ndarray, video_of: np.ndarray) -> tuple[float, float]:
    """The 95 % interval of the difference of two accuracies on the same clips, `first` less `second`, (num_clips,)
    bool. It also has a width where no clip differs. Source: R. G. Newcombe, Improved confidence intervals for the
    difference between binomial proportions based on paired data, Statistics in Medicine 17 (1998), 2635-2650, method
    10."""
    number = effective_number(first.astype(float) - second, video_of)
    share, other_share = first.mean(), second.mean()
    both, neither = number * (first & second).mean(), number * (~first & ~second).mean()
    excess = both * neither - number**2 * (first & ~second).mean() * (~first & second).mean()
    excess = max(excess - number / 2, 0.0) if excess > 0 else excess
    scale = np.sqrt(share * (1 - share) * other_share * (1 - other_share)) * number**2
    correlation = excess / scale if scale else 0.0
    (low, high), (other_low, other_high) = wilson_interval(share, number), wilson_interval(other_share, number)

    def reach(one: float, other: float) -> float:
        return float(np.sqrt(one**2 - 2 * correlation * one * other + other**2))

    cost = float(share - other_share)
    return cost - reach(share - low, other_high - other_share), cost + reach(high - share, other_share - other_low)


def weights_of(folder: Path) -> dict[str, str]:
    """The SHA-256 of each file of weights in the folder of a model."""
    return {file.name: sha256_of(file) for file in sorted(folder.glob("*.safetensors"))}


def tell_audit(result: Mapping[str, Any]) -> list[str]:
    """The lines that show what [`audit_model`] gives."""
    lines = [f"{name:15}  {accuracy:22}  {sentence}" for name, accuracy, sentence in audit_rows(result)]
    is_open = any(each["num_clips"] and each.get("is_used", True) is None for each in result["variants"].values())
    if is_open:
        is_few = result["variants"][AS_IT_IS]["num_clips"] < _ENOUGH
        enough = f" (fewer than {_ENOUGH} cannot rule out a loss of 5 points)" if is_few else ""
        way_out = "label another folder for this, or train with a larger --validation-fraction."
        lines += ["", f"What is open needs more clips{enough}: {way_out}"]
    return [*tell_clips(result), "", f"{'':15}  accuracy (95 %)", *lines]


def audit_rows(result: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Name, accuracy with its interval, and sentence of each variant in what [`audit_model`] gives."""
    rows = []
    for name, each in result["variants"].items():
        low, high = each.get("interval", (0.0, 0.0))
        accuracy = f"{each['accuracy']:.1%} ({low:.1%} to {high:.1%})" if each["num_clips"] else "-"
        if 0 < each["num_clips"] < result["variants"][AS_IT_IS]["num_clips"]:
            accuracy += f" of {each['num_clips']}"
        rows.append((name.replace("_", " "), accuracy, each["sentence"]))
    return rows
