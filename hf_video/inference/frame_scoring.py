"""Class scores of a video whose frames are seen once with a state, or in clips of which the middles are kept."""

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby, islice
from typing import Any, NamedTuple, TypeVar

import torch
from transformers import PreTrainedConfig, PreTrainedModel

from hf_video.data.loader import iterate_ahead
from hf_video.models.videomamba.state_videomamba import VideoMambaState
from hf_video.processing import VideoClipProcessor
from hf_video.reading.frame_streaming import StreamedFrame, stream_frames
from hf_video.reading.live_queue import LiveQueue
from hf_video.reading.sources import VideoReadError, describe
from hf_video.reading.windows import Sample, group_samples, timed_samples, until_error

from .prediction import ScoredWindow, scores_of
from .window_batching import choose_windows, image_transform, warn_if_far

Item = TypeVar("Item")


class _TokenFrame(NamedTuple):
    """The samples of a tubelet, which have one answer, and the number of gaps before them. Once processed, the samples
    are images."""

    start: float
    end: float
    samples: list[Any]
    num_gaps: int


class _Clip(NamedTuple):
    """Processed token frames for one row of a batch, and whether the model begins anew with them."""

    is_first: bool
    tokens: list[_TokenFrame]


_Transform = Callable[[list[_TokenFrame]], list[_TokenFrame]]


def is_frame_classifier(model: PreTrainedModel) -> bool:
    """Whether a model gives scores of frames instead of clips."""
    return type(model).__name__.endswith("ForFrameClassification")


def keeps_state(config: PreTrainedConfig) -> bool:
    """Whether a model gives in chunks what it gives on the whole video, by a state that it hands on."""
    return (
        config.model_type == "videomamba"
        and not config.bidirectional
        and config.scan_order == "spatial_first"
        and not config.use_temporal_position_embeddings
        and not config.use_pool_norm
    )


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
) -> Iterator[ScoredWindow]:
    """
    The class scores of the token frames of a video, in their order. Time and memory for a frame do not grow with the
    video.

    A causal VideoMamba sees each frame once, and a state holds what came before. Other models see clips of the length
    of the processor that overlap by half, and a frame has the scores of the clip in whose middle it is. The last clip
    ends with the video.

    Args:
        model: a classifier of frames in evaluation mode, such as [`VideoMambaForFrameClassification`].
        processor: its processor.
        video: see [`stream_frames`].
        batch_size: token frames in a forward pass with a state, clips in one without.
        fps, frame_sampling_rate: the rate of samples, by default that of training, see [`choose_windows`].
        source_fps: see [`stream_frames`].
        longest_gap: seconds between two frames of the video, after which the model begins anew; None for no limit.
            Without a limit the last frame goes on in a gap. It also begins anew where timestamps fall back.
        queue: what a live video waits in if the model is slower; None lets the video wait for the model.

    Returns:
        An iterator of [`ScoredWindow`]s that last for one token frame each. The time of a token frame is from its
        first sample to the sample after its last one; samples at the end that fill no token frame are dropped, and so
        are the last `config.frame_delay` token frames, whose scores would come later.

    Raises:
        ValueError: an option is out of its bounds.
        VideoReadError: the video cannot be read, or is damaged. The frames before the damage have been given.
    """
    if batch_size < 1:
        raise ValueError(f"batch_size={batch_size} must be at least 1.")
    if longest_gap is not None and not longest_gap > 0:
        raise ValueError(f"longest_gap={longest_gap} must be a positive number of seconds.")
    sizes = choose_windows(processor, fps=fps, frame_sampling_rate=frame_sampling_rate)
    clip_length = sizes.pop("num_frames")
    del sizes["stride"]
    limit = math.inf if longest_gap is None else longest_gap
    tubelet_size = model.config.tubelet_size
    name, errors = describe(video), list[Exception]()
    frames = stream_frames(video, source_fps=source_fps)
    if queue is not None:
        frames = queue.watch(frames)

    def samples_of(run: Iterator[StreamedFrame]) -> Iterator[Sample[StreamedFrame]]:
        return warn_if_far(timed_samples(run, **sizes), clip_length, processor)

    runs = _split(frames, lambda a, b: a.num_restarts != b.num_restarts or b.seconds - a.seconds > limit)
    tokens = _token_frames(map(samples_of, runs), name, tubelet_size)
    if queue is not None:
        tokens = queue.newest(tokens)
    token_runs = _split(until_error(tokens, errors), lambda a, b: a.num_gaps != b.num_gaps or b.start - a.end > limit)
    process = _token_transform(image_transform(processor, name, model.device, model.dtype))
    if keeps_state(model.config):
        scored = _score_with_state(model, iterate_ahead(_chunks(token_runs, process, batch_size)))
    else:
        num_tokens = max(clip_length // tubelet_size, 1)
        scored = _score_clips(model, iterate_ahead(_clips(token_runs, process, num_tokens, batch_size)), num_tokens)
    return _give(_without_delay(scored, model.config.frame_delay), queue, errors)


def _without_delay(scored: Iterator[ScoredWindow], delay: int) -> Iterator[ScoredWindow]:
    """Each frame with the scores that come `delay` token frames later, which are for it. The last ones of a run have
    none."""
    waiting = deque[ScoredWindow]()
    for window in scored:
        if window.begins_anew:
            waiting.clear()
        waiting.append(window)
        if len(waiting) > delay:
            yield waiting.popleft()._replace(scores=window.scores)


def _give(scored: Iterator[ScoredWindow], queue: LiveQueue | None, errors: list[Exception]) -> Iterator[ScoredWindow]:
    try:
        # Not `yield from`: whoever closes this generator must close the queue before the thread that waits for it.
        for window in scored:  # noqa: UP028
            yield window
    finally:
        if queue is not None:
            queue.close()
    # Damage lies behind the last frames, which may fill no batch.
    if errors:
        raise errors[0]


def _token_frames(
    runs: Iterable[Iterator[Sample[StreamedFrame]]], name: str, tubelet_size: int
) -> Iterator[_TokenFrame]:
    """The token frames of a video. Samples at the end of a run that fill none are left out."""
    number = -1
    for number, run in enumerate(runs):
        for group in group_samples(run, tubelet_size, tubelet_size, "drop"):
            yield _TokenFrame(group.start, group.end, group.values, number)
    if number < 0:
        raise VideoReadError(f"{name} gave no frame.")


def _split(items: Iterable[Item], is_break: Callable[[Item, Item], bool]) -> Iterator[Iterator[Item]]:
    """The items in runs, each to be read before the next: a new one begins where two neighbours are a break."""
    number, last = 0, None

    def number_of_run(item: Item) -> int:
        nonlocal number, last
        number += last is not None and is_break(last, item)
        last = item
        return number

    return (run for _, run in groupby(items, number_of_run))


def _token_transform(process: Callable[[list[StreamedFrame]], Sequence[torch.Tensor]]) -> _Transform:
    """A function of token frames that puts images as a model takes them in place of their samples."""

    def transform(tokens: list[_TokenFrame]) -> list[_TokenFrame]:
        images = iter(process([frame for token in tokens for frame in token.samples]))
        return [token._replace(samples=list(islice(images, len(token.samples)))) for token in tokens]

    return transform


def _chunks(runs: Iterable[Iterator[_TokenFrame]], transform: _Transform, size: int) -> Iterator[_Clip]:
    for run in runs:
        is_first = True
        while tokens := list(islice(run, size)):
            yield _Clip(is_first, transform(tokens))
            is_first = False


def _clips(
    runs: Iterable[Iterator[_TokenFrame]], transform: _Transform, num_tokens: int, batch_size: int
) -> Iterator[list[_Clip]]:
    """Batches of clips that overlap by half. Only the clip of a run that is shorter than a clip is shorter."""
    for run in runs:
        samples = (Sample(token.start, token.end, token) for token in run)
        groups = group_samples(samples, num_tokens, max(num_tokens // 2, 1), "shift", transform)
        is_first = True
        while batch := list(islice(groups, batch_size)):
            yield [
                _Clip(is_first and not number, group.values[: group.num_real]) for number, group in enumerate(batch)
            ]
            is_first = False


def _score_with_state(model: PreTrainedModel, chunks: Iterator[_Clip]) -> Iterator[ScoredWindow]:
    state = None
    for chunk in chunks:
        if chunk.is_first:
            state = VideoMambaState(model.config, device=model.device)
        scored, state = _score(model, [chunk], state=state)
        yield from scored[0]


def _score_clips(model: PreTrainedModel, batches: Iterator[list[_Clip]], num_tokens: int) -> Iterator[ScoredWindow]:
    """Each token frame once, with the scores of the clip in whose middle it is."""
    middle = (num_tokens + max(num_tokens // 2, 1)) // 2
    last, rest = -math.inf, list[ScoredWindow]()
    for batch in batches:
        for scored in _score(model, batch)[0]:
            if scored[0].begins_anew:
                yield from rest
            for window in scored[:middle]:
                if window.start > last:
                    last = window.start
                    yield window
            rest = scored[middle:]
    yield from rest


@torch.inference_mode()
def _score(model: PreTrainedModel, clips: list[_Clip], **state: Any) -> tuple[list[list[ScoredWindow]], Any]:
    """The scores of the token frames of clips of one length, and the next state."""
    images = [torch.stack(token.samples) for clip in clips for token in clip.tokens]
    # (batch_size, token frames, tubelet_size, num_channels, height, width)
    tubelets = torch.stack(images).unflatten(0, (len(clips), -1))
    outputs = model(**{model.main_input_name: tubelets.flatten(1, 2)}, **state)
    scores = scores_of(outputs.logits, model.config).numpy()
    scored = [
        [
            ScoredWindow(token.start, token.end, row, images, clip.is_first and token is clip.tokens[0])
            for token, row, images in zip(clip.tokens, rows, of_clip, strict=True)
        ]
        for clip, rows, of_clip in zip(clips, scores, tubelets, strict=True)
    ]
    return scored, getattr(outputs, "state", None)
