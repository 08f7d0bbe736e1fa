"""Class scores of clips, of the windows of a video, and of its frames: a model with a state sees each once, others see
clips, of which the middles are kept."""

import math
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from itertools import chain, groupby, islice
from typing import Any, NamedTuple

import numpy as np
import torch
from transformers import PreTrainedConfig, PreTrainedModel

from hf_video.data.loader import iterate_ahead
from hf_video.models.videomamba.state_videomamba import VideoMambaState
from hf_video.processing import VideoClipProcessor
from hf_video.reading.frame_streaming import StreamedFrame, check_rate, stream_frames
from hf_video.reading.live_queue import LiveQueue
from hf_video.reading.windows import Sample, SampleGroup, group_samples, timed_samples, until_error

from .features import seen_by_head
from .windows import Watcher, choose_windows, image_transform, warn_if_far, window_batches


class ScoredWindow(NamedTuple):
    """A window or a token frame of a video: when its first sample starts and its last real one ends, in seconds after
    the first frame; (num_classes,) float32 probabilities; whether a classifier of frames began anew with it, at the
    start or after a gap; and if they are asked for, the features that the head saw, (hidden_size,) float32."""

    start: float
    end: float
    scores: np.ndarray
    begins_anew: bool = False
    features: np.ndarray | None = None


@torch.inference_mode()
def predict_scores(model: PreTrainedModel, pixel_values: torch.Tensor) -> torch.Tensor:
    """Class probabilities of a batch of videos, of a regression model its values: (batch_size, num_classes) float32 on
    the CPU. The model is a video classifier in evaluation mode, and `pixel_values` are (batch_size, num_frames,
    num_channels, height, width), or (batch_size, num_views, ...), where it averages over the views."""
    outputs = model(**{model.main_input_name: pixel_values.to(model.device, model.dtype)})
    return scores_of(outputs.logits, model.config)


def scores_of(logits: torch.Tensor, config: PreTrainedConfig) -> torch.Tensor:
    """Class probabilities of logits (..., num_classes), float32 on the CPU; of a regression model its values."""
    logits = logits.float().cpu()
    problem_type = problem_type_of(config)
    if problem_type == "regression":
        return logits
    return logits.sigmoid() if problem_type == "multi_label_classification" else logits.softmax(-1)


def problem_type_of(config: PreTrainedConfig) -> str:
    """The `problem_type` of a configuration. If it is None: regression for a model with a single output, otherwise
    classification by a single label."""
    return config.problem_type or ("regression" if config.num_labels == 1 else "single_label_classification")


def require_classes(model: str, config: PreTrainedConfig) -> None:
    """Refuses (`ValueError`) a regression model where classes are needed."""
    if problem_type_of(config) == "regression":
        raise ValueError(f"{model} is a regression model, which has no classes. Choose a classifier.")


def is_frame_classifier(model: PreTrainedModel) -> bool:
    """Whether a model gives scores of frames instead of clips."""
    return type(model).__name__.endswith("ForFrameClassification")


def score_windows(
    model: PreTrainedModel, processor: VideoClipProcessor, video: Any, *, with_features: bool = False, **windows: Any
) -> Iterator[ScoredWindow]:
    """The class scores of the windows of a video, in their order. The next batch is read while the model computes.

    Args:
        model, processor: a video classifier in evaluation mode, and its processor.
        video, windows: arguments and options of [`window_batches`], whose errors are raised.
        with_features: whether windows have features.
    """
    batches = window_batches(processor, video, device=model.device, dtype=model.dtype, **windows)

    def scored() -> Iterator[ScoredWindow]:
        for batch in iterate_ahead(batches):
            with seen_by_head(model) if with_features else nullcontext() as seen:
                scores = predict_scores(model, batch.pixel_values).numpy()
            features = np.full(len(scores), None) if seen is None else seen[0].numpy()
            for start, end, row, of_row in zip(batch.starts, batch.ends, scores, features, strict=True):
                yield ScoredWindow(start, end, row, features=of_row)

    return scored()


def score_frames(
    model: PreTrainedModel,
    processor: VideoClipProcessor,
    video: Any,
    *,
    batch_size: int = 1,
    fps: float | None = None,
    frame_sampling_rate: float | None = None,
    source_fps: float | None = None,
    longest_gap: float | None = None,
    queue: LiveQueue | None = None,
    watch: Watcher | None = None,
    with_features: bool = False,
) -> Iterator[ScoredWindow]:
    """The class scores of all token frames of a video, in their order. Time and memory for a frame do not grow with
    the video.

    A causal VideoMamba sees each frame once, and a state holds what came before. Other models see clips of the length
    of the processor that overlap by half, and a frame has the scores of the clip in whose middle it is. The last clip
    ends with the video.

    Args:
        model, processor: a classifier of frames in evaluation mode, and its processor.
        video, source_fps: see [`stream_frames`].
        batch_size: token frames in a forward pass with a state, clips in one without.
        fps, frame_sampling_rate: the rate of samples, by default that of training, see [`choose_windows`].
        longest_gap: seconds between two frames of the video, after which the model begins anew; None for no limit.
            Without a limit the last frame goes on in a gap. It also begins anew where timestamps fall back.
        queue: what a live video waits in if the model is slower; None lets the video wait for the model.
        watch, with_features: see [`window_batches`] and [`score_windows`].

    Returns:
        A [`ScoredWindow`] for each token frame, from its first sample to the sample after its last one. Where the
        video ends, or the model begins anew, a token frame with too few samples repeats the last one, and those whose
        scores would come later, by `config.frame_delay` token frames, have the last scores.

    Raises:
        ValueError: an option is out of its bounds.
        VideoReadError: the video cannot be read, or is damaged. The frames before the damage have been given.
    """
    if batch_size < 1:
        raise ValueError(f"batch_size={batch_size} must be at least 1.")
    check_rate("longest_gap", longest_gap)
    sizes = choose_windows(processor, fps=fps, frame_sampling_rate=frame_sampling_rate)
    clip_length, _ = sizes.pop("num_frames"), sizes.pop("stride")
    limit = math.inf if longest_gap is None else longest_gap
    tubelet_size = model.config.tubelet_size
    num_tokens = None if _keeps_state(model.config) else max(clip_length // tubelet_size, 1)
    process, delay = image_transform(processor, model.device, model.dtype, watch), model.config.frame_delay
    errors, frames = list[Exception](), stream_frames(video, source_fps=source_fps)
    if queue is not None:
        frames = queue.watch(frames)

    def token_frames() -> Iterator[SampleGroup]:
        for _, run in groupby(_count_gaps(frames, limit), lambda frame: frame.num_restarts):
            samples = warn_if_far(timed_samples(run, **sizes), clip_length, processor)
            yield from group_samples(samples, tubelet_size, tubelet_size)

    def scored() -> Iterator[ScoredWindow]:
        tokens = token_frames() if queue is None else queue.newest(token_frames())
        batches = _clips(until_error(tokens, errors), limit, num_tokens, batch_size, process)
        found = _score_clips(model, iterate_ahead(batches), num_tokens, with_features)
        try:
            # Not `yield from`: whoever closes this generator must close the queue before the thread that waits for it.
            for window in _answer_late(found, delay):  # noqa: UP028
                yield window
        finally:
            if queue is not None:
                queue.close()
        # Damage lies behind the last frames, which may fill no batch.
        if errors:
            raise errors[0]

    return scored()


def _keeps_state(config: PreTrainedConfig) -> bool:
    """Whether a model gives frame by frame what it gives on the whole video, by a state that it hands on."""
    return (
        config.model_type == "videomamba"
        and not config.bidirectional
        and config.scan_order == "spatial_first"
        and not config.use_temporal_position_embeddings
        and not config.use_pool_norm
    )


def _count_gaps(frames: Iterable[StreamedFrame], limit: float) -> Iterator[StreamedFrame]:
    """The frames, where a gap of more than `limit` seconds counts as a restart of the video."""
    num_gaps, last = 0, math.inf
    for frame in frames:
        num_gaps += frame.seconds - last > limit
        last = frame.seconds
        yield replace(frame, num_restarts=frame.num_restarts + num_gaps) if num_gaps else frame


def _clips(
    tokens: Iterator[SampleGroup], limit: float, num_tokens: int | None, batch_size: int, process: Any
) -> Iterator[tuple[bool, list[Any]]]:
    """Batches of clips of one length, and whether the model begins anew with them. The samples of their token frames
    are a tensor (tubelet_size, num_channels, height, width). For a model with a state a batch is one clip of
    `batch_size` token frames; otherwise clips overlap by half."""
    num_runs, last = 0, None

    def number_of_run(token: SampleGroup) -> int:
        """A run ends at a restart, and where a live video lost frames for longer than the limit."""
        nonlocal num_runs, last
        if last is not None:
            restarts = token.values[0].num_restarts - last.values[0].num_restarts
            num_runs += restarts != 0 or token.start - last.end > limit
        last = token
        return num_runs

    def transform(tokens: list[SampleGroup]) -> list[SampleGroup]:
        images = torch.stack([*process([frame for token in tokens for frame in token.values])])
        parts = images.split([len(token.values) for token in tokens])
        return [token._replace(values=part) for token, part in zip(tokens, parts, strict=True)]

    for _, run in groupby(tokens, number_of_run):
        if num_tokens is None:
            batches: Iterator[list[Any]] = ([transform(clip)] for clip in _batched(run, batch_size))
        else:
            samples = (Sample(token.start, token.end, token) for token in run)
            groups = group_samples(samples, num_tokens, max(num_tokens // 2, 1), "shift", transform)
            # Only the clip of a run that is shorter than a clip is shorter.
            batches = _batched((group.values[: group.num_real] for group in groups), batch_size)
        for number, batch in enumerate(batches):
            yield number == 0, batch


def _batched(items: Iterator[Any], size: int) -> Iterator[list[Any]]:
    return iter(lambda: list(islice(items, size)), [])


@torch.inference_mode()
def _score_clips(
    model: PreTrainedModel, batches: Iterable[tuple[bool, list[Any]]], num_tokens: int | None, with_features: bool
) -> Iterator[ScoredWindow]:
    """Each token frame once: with a state all of a clip, otherwise with the scores of the clip in whose middle it is,
    for the last clip of a run also those behind."""
    middle = None if num_tokens is None else (num_tokens + max(num_tokens // 2, 1)) // 2
    last, rest, state = -math.inf, list[ScoredWindow](), dict[str, Any]()
    for begins_anew, clips in batches:
        if begins_anew:
            yield from rest
            state = {"state": VideoMambaState(model.config, device=model.device)} if num_tokens is None else {}
        # (batch_size, samples, num_channels, height, width)
        pixel_values = torch.stack([torch.cat([token.values for token in clip]) for clip in clips])
        with seen_by_head(model) if with_features else nullcontext() as seen:
            outputs = model(**{model.main_input_name: pixel_values}, **state)
        state = {"state": outputs.state} if state else {}
        scores = scores_of(outputs.logits, model.config).numpy()
        features = np.full(scores.shape[:2], None) if seen is None else seen[0].numpy()
        for clip, *rows in zip(clips, scores, features, strict=True):
            tokens = zip(clip, *rows, strict=True)
            scored = [ScoredWindow(token.start, token.end, row, features=of_row) for token, row, of_row in tokens]
            for window in scored[:middle]:
                if window.start > last:
                    last = window.start
                    yield window._replace(begins_anew=begins_anew)
                    begins_anew = False
            rest = [] if middle is None else scored[middle:]
    yield from rest


def _answer_late(scored: Iterator[ScoredWindow], delay: int) -> Iterator[ScoredWindow]:
    """Each token frame with the scores that come `delay` token frames later, which are for it, or the last ones of its
    run."""
    waiting, last = deque[ScoredWindow](), np.empty(0)
    for window in chain(scored, [None]):
        if window is None or window.begins_anew:
            yield from (each._replace(scores=last) for each in waiting)
            waiting.clear()
        if window is not None:
            waiting.append(window)
            last = window.scores
        if len(waiting) > delay:
            yield waiting.popleft()._replace(scores=last)
