"""Answers to questions about a video."""

from collections.abc import Iterator
from pathlib import Path

from hf_video import VideoWatcher
from hf_video.reading.frame_streaming import stream_frames

from .loaded_models import LoadedModel
from .visitors import Ticket, Visitor

# Frames of each second that are looked at, and those in the vision tower at once, after which work can be cancelled.
_FRAMES_PER_SECOND = 1.0
_CHUNK_SIZE = 4


def answer(model: LoadedModel, video: Path, question: str, visitor: Visitor, ticket: Ticket) -> Iterator[float | str]:
    """
    The seconds of the video that were watched, again and again, and last the answer.

    The first question about a video decides what the model keeps of it. Others are answered from what was kept.

    Args:
        model: a model that answers.
        video: the file.
        question: the question.
        visitor: remembers what was watched.
        ticket: ends the work between two frames.

    Raises:
        VideoReadError: the video cannot be read.
        ValueError: the question is too long.
        Cancelled: the work was cancelled.
    """
    if visitor.watched[:2] != (model, video):
        watcher = VideoWatcher(model.network, model.processor, question, chunk_size=_CHUNK_SIZE)
        watcher.check_question(question)
        yield from _watch(model, watcher, video, ticket)
        visitor.watched = model, video, watcher
    ticket.check()
    with model.lock:
        found = visitor.watched[2].answer(question, do_sample=False)
    yield found


def _watch(model: LoadedModel, watcher: VideoWatcher, video: Path, ticket: Ticket) -> Iterator[float]:
    times: list[float] = []

    def images() -> Iterator:
        for frame in stream_frames(str(video), _FRAMES_PER_SECOND):
            times.append(frame.seconds)
            yield frame.image

    frames = watcher.watch(images())
    nothing = object()
    while True:
        with model.lock:
            seen = next(frames, nothing)
        ticket.check()
        if seen is nothing:
            return
        yield times[watcher.frames_seen - 1]
