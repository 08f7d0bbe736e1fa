"""What the buttons of the page do with a model and a video. Other work goes on between two steps, or cancels it."""

import re
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import Any
from urllib.parse import unquote, urlsplit

import numpy as np
from transformers import PreTrainedModel

from hf_video import VideoWatcher
from hf_video.drawing import TimelineFolder, draw_heat_maps, write_heat_map_video
from hf_video.drawing.texts import clock
from hf_video.drawing.timeline_picture import save_figure
from hf_video.inference import Segment, explain, frame_shares, predict_scores, read_clip, score_windows, top_frames
from hf_video.inference.segments import make_finder
from hf_video.inference.window_batching import choose_windows
from hf_video.reading.downloading import open_response, receive_pieces
from hf_video.reading.frame_streaming import stream_frames
from hf_video.reading.sources import public_url

from .visitors import Ticket, Visitor

MEGABYTE = 2**20
_LONGEST_NAME = 80
_WINDOWS_AT_ONCE = 4
# Frames of each second that a question is about, and those in the vision tower at once.
_FRAMES_PER_SECOND = 1.0
_FRAMES_AT_ONCE = 4


@dataclass(frozen=True, eq=False)
class LoadedModel:
    """
    A model and its processor.

    Attributes:
        name: what the page calls it.
        network: the model in evaluation mode.
        processor: a `VideoClipProcessor`, or the processor of a model that answers questions.
        lock: held while the network computes. An explanation changes the network for a moment, and two requests at
            once would also need the memory of both.
    """

    name: str
    network: PreTrainedModel
    processor: Any
    lock: Lock = field(default_factory=Lock)

    @property
    def answers(self) -> bool:
        """Whether the model answers questions instead of choosing a class."""
        return self.network.can_generate()

    @property
    def class_names(self) -> list[str]:
        """The names of its classes, by number; empty if it answers."""
        config = self.network.config
        return [] if self.answers else [config.id2label[index] for index in range(config.num_labels)]

    def locked(self, steps: Any) -> Iterator[Any]:
        """What a generator gives. The model is free for others between two steps. The generator is closed at the
        end."""
        nothing = object()
        with closing(steps):
            while True:
                with self.lock:
                    step = next(steps, nothing)
                if step is nothing:
                    return
                yield step


def name_models(models: Iterable[str]) -> list[str]:
    """The names that a page shows for folders and names of the Hub: of a folder only its own name, of several with
    one name also a number."""
    names = [Path(model).resolve().name if Path(model).is_dir() else model for model in models]
    total, seen = Counter(names), Counter[str]()
    shown = []
    for name in names:
        seen[name] += 1
        shown.append(f"{name} ({seen[name]})" if total[name] > 1 else name)
    return shown


def fetch_video(url: str, folder: Path, max_size: int, ticket: Ticket) -> Iterator[Path | int]:
    """
    The bytes of a video so far, after each megabyte, and last its file. Of an unfinished one nothing stays.

    Args:
        url: its address, of http or https.
        folder: an empty folder for the file, which is named as in the address.
        max_size: most bytes.
        ticket: ends the work between two pieces.

    Raises:
        VideoReadError: the address is none, or the video cannot be fetched or is too large.
        Cancelled: the work was cancelled.
    """
    name = public_url(url)
    too_large = f"{name} is larger than {max_size / MEGABYTE:,.0f} MB, the most that this page takes."
    is_whole = False
    try:
        with open_response(url) as response:
            last_part = unquote(urlsplit(url).path).rpartition("/")[2]
            file = folder / (re.sub(r"[^\w.-]+", "_", last_part).strip("._")[-_LONGEST_NAME:] or "video")
            told = 0
            with file.open("xb") as output:
                for piece in ticket.until_cancelled(receive_pieces(response, name, max_size, too_large)):
                    output.write(piece)
                    if output.tell() - told >= MEGABYTE:
                        told = output.tell()
                        yield told
        is_whole = True
    finally:
        if not is_whole:
            shutil.rmtree(folder, ignore_errors=True)
    yield file


def classify(model: LoadedModel, video: Path, ticket: Ticket) -> dict[str, float]:
    """
    The score of each class, by name, the highest first.

    Raises:
        VideoReadError: the video cannot be read.
        ValueError: the scores are not finite.
        Cancelled: the work was cancelled.
    """
    clips = model.processor(str(video), return_tensors="pt")[model.processor.model_input_names[0]]
    ticket.check()
    with model.lock:
        scores = predict_scores(model.network, clips)[0]
    if not scores.isfinite().all():
        raise ValueError("The model's scores of this video are not finite.")
    order = scores.argsort(descending=True).tolist()
    return {model.class_names[index]: scores[index].item() for index in order}


@dataclass
class Timeline:
    """
    A timeline so far.

    Attributes:
        end: seconds of the video that were looked at.
        segments: in the order in which they closed; at the end in the order in which they begin.
        picture: PNG, at the end.
        ending: what ended it before the video did.
    """

    end: float = 0.0
    segments: list[Segment] = field(default_factory=list)
    picture: bytes | None = None
    ending: Exception | None = None


def find_segments(
    model: LoadedModel, video: Path, folder: Path, ticket: Ticket, **thresholds: Any
) -> Iterator[Timeline]:
    """
    The timeline of a video, given whenever it has grown: one object, which changes. A damaged video gives the part
    before the damage.

    Args:
        model: a classifier.
        video: the file.
        folder: an empty folder, which is removed at the end.
        ticket: ends the work between two windows.
        thresholds: of [`make_finder`], such as `onset`.

    Raises:
        ValueError: the model is a regression model, or a threshold is out of its bounds.
        VideoReadError: nothing of the video can be read.
        Cancelled: the work was cancelled.
    """
    found = Timeline()
    try:
        finder = make_finder(model.network, **thresholds)
        sizes = {"batch_size": _WINDOWS_AT_ONCE, **choose_windows(model.processor)}
        windows = score_windows(model.network, model.processor, str(video), **sizes)
        output = TimelineFolder(folder, video.name, finder, model.processor)

        def add(segments: list[Segment]) -> None:
            for segment in segments:
                output.add_segment(segment)
            found.segments += segments

        try:
            for window in ticket.until_cancelled(model.locked(windows)):
                found.end = window.end
                output.add_window(window)
                add(finder.add(window.start, window.end, window.scores))
                yield found
        except OSError as error:
            if not found.end:
                raise
            found.ending = error
        add(finder.finish())
        found.segments = output.finish({}, None if found.ending is None else "the video is damaged")
        found.picture = (folder / "timeline.png").read_bytes()
        yield found
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@dataclass(frozen=True)
class HeatMap:
    """
    A heat map as files.

    Attributes:
        video: MP4 of the frames with their heat maps.
        picture: PNG of all frames, without and with heat, in which those that counted most are marked.
        sentence: what was explained, and which frames counted most.
    """

    video: Path
    picture: bytes
    sentence: str


def draw_heat_map(
    model: LoadedModel,
    video: Path,
    class_name: str | None,
    folder: Path,
    ticket: Ticket,
    start: float | None = None,
    end: float | None = None,
) -> HeatMap:
    """
    The evidence for a class in the clip that the model sees.

    Args:
        model: a classifier.
        video: the file.
        class_name: name of the class; None for the predicted one.
        folder: an empty folder, for the video.
        ticket: ends the work between its steps.
        start, end: seconds of the part of the video that the clip is taken from; by default all of it.

    Raises:
        VideoReadError: the video cannot be read.
        ValueError: the model cannot be explained.
        ImportError: what explains or draws is not installed.
        Cancelled: the work was cancelled.
    """
    clip = read_clip(model.processor, str(video), start=start, end=end)
    ticket.check()
    with model.lock:
        scores = predict_scores(model.network, clip.pixel_values)[0]
        class_id = int(scores.argmax()) if class_name is None else model.class_names.index(class_name)
        heat_maps = explain(model.network, clip.pixel_values, class_id)[0].numpy()
    ticket.check()
    label, times = model.class_names[class_id], clip.times.tolist()
    title = f"{video.name}\nwhat speaks for {label} ({scores[class_id]:.1%})"
    picture, moving = folder / "heat_map.png", folder / "heat_map.mp4"
    save_figure(draw_heat_maps(clip.images, heat_maps, times, title), picture)
    ticket.check()
    write_heat_map_video(moving, clip.images, heat_maps, times, clip.end)
    return HeatMap(moving, picture.read_bytes(), _describe(label, float(scores[class_id]), heat_maps, times))


def _describe(label: str, score: float, heat_maps: np.ndarray, times: list[float]) -> str:
    top = [clock(times[frame], 2) for frame in top_frames(frame_shares(heat_maps))]
    if not top:
        return f"Nothing in these frames speaks for {label} ({score:.1%})."
    return f"For {label} ({score:.1%}) the frames at {', '.join(top)} counted most."


def answer(model: LoadedModel, video: Path, question: str, visitor: Visitor, ticket: Ticket) -> Iterator[float | str]:
    """
    The seconds of the video that were watched, again and again, and last the answer.

    The first question about a video decides what the model keeps of it. Others are answered from what was kept, which
    the visitor remembers.

    Raises:
        VideoReadError: the video cannot be read.
        ValueError: the question is too long.
        Cancelled: the work was cancelled.
    """
    if visitor.watched[:2] != (model, video):
        watcher = VideoWatcher(model.network, model.processor, question, chunk_size=_FRAMES_AT_ONCE)
        watcher.check_question(question)
        times: list[float] = []

        def images() -> Iterator:
            for frame in stream_frames(str(video), _FRAMES_PER_SECOND):
                times.append(frame.seconds)
                yield frame.image

        for _ in model.locked(watcher.watch(images())):
            ticket.check()
            yield times[watcher.frames_seen - 1]
        visitor.watched = model, video, watcher
    ticket.check()
    with model.lock:
        found = visitor.watched[2].answer(question, do_sample=False)
    yield found
