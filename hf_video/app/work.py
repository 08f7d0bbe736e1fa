"""What the buttons of the page do with a model and a video; nothing here imports Gradio.

The work of a button takes the model, the video and the other inputs of the button. It gives steps: a sentence, or at
the end the error that cut it short, and the values of the first outputs of the button, or of all. Gradio closes a work
that is cancelled between two steps.
"""

from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Lock
from typing import Any

from transformers import PreTrainedModel

from hf_video.drawing import draw_heat_maps, draw_timeline, write_heat_map_video
from hf_video.drawing.timeline_picture import save_figure
from hf_video.drawing.video import annotate_frames
from hf_video.inference import Segment, explain, frame_shares, predict_scores, read_clip, score_windows, top_frames
from hf_video.inference.scores import is_frame_classifier, score_frames
from hf_video.inference.segments import make_finder
from hf_video.inference.timeline import Timeline
from hf_video.inference.video_watcher import VideoWatcher
from hf_video.inference.windows import choose_windows
from hf_video.loading.class_names import class_names_of
from hf_video.reading.frame_streaming import stream_frames
from hf_video.reading.sources import VideoReadError
from hf_video.texts import class_color, clock, count

Step = tuple[Any, ...]

_WINDOWS_AT_ONCE = 4
# What a visitor decides about segments.
THRESHOLDS = ("onset", "min_duration_on", "min_duration_off")
# Frames of each second that a question is about, and those in the vision tower at once.
_FRAMES_PER_SECOND = 1.0
_FRAMES_AT_ONCE = 4


@dataclass(frozen=True, eq=False)
class LoadedModel:
    """A model in evaluation mode and its processor, under the name that the page has for it. The lock is held while
    the network computes: an explanation changes it for a moment, and two requests would need the memory of both."""

    name: str
    network: PreTrainedModel
    processor: Any
    lock: Lock = field(default_factory=Lock)

    @property
    def answers(self) -> bool:
        """Whether the model answers questions instead of choosing a class."""
        return self.network.can_generate()

    def check_clips(self) -> None:
        """Refuses (`ValueError`) a model that gives no class of a clip."""
        if is_frame_classifier(self.network):
            raise ValueError(f"{self.name} gives a class for every frame, and none for a clip: find segments instead.")

    @property
    def class_names(self) -> list[str]:
        """The names of its classes, by number; empty if it answers."""
        return [] if self.answers else class_names_of(self.network.config)

    def locked(self, steps: Any) -> Iterator[Any]:
        """What a generator gives, which is closed at the end. Others may use the model between two steps."""

        def step() -> Any:
            with self.lock:
                return next(steps, None)

        with closing(steps):
            yield from iter(step, None)


def name_models(models: Iterable[str]) -> list[str]:
    """The names that a page shows for folders and names of the Hub: of a folder only its own name, of several with
    one name also a number."""
    names = [Path(model).resolve().name if Path(model).is_dir() else model for model in models]
    return [
        f"{name} ({names[: place + 1].count(name)})" if names.count(name) > 1 else name
        for place, name in enumerate(names)
    ]


def classify(model: LoadedModel, file: Path) -> Iterator[Step]:
    """The classes with their scores."""
    model.check_clips()
    yield "Reading the video ...", None
    clips = model.processor(str(file), return_tensors="pt")[model.processor.model_input_names[0]]
    with model.lock:
        scores = predict_scores(model.network, clips)[0]
    # Of classes with one name, the highest comes last and stays.
    shown = {model.class_names[index]: scores[index].item() for index in scores.argsort().tolist()}
    best = int(scores.argmax())
    yield f"{model.class_names[best]}: {scores[best]:.1%}.", shown


def find_segments(model: LoadedModel, file: Path, *values: float) -> Iterator[Step]:
    """The table of the segments, whenever it has grown, and at the end the picture of the timeline, the files that
    `hf-video timeline` writes, and what [`annotate`] takes, by the values of `THRESHOLDS`. A damaged video gives the
    part before the damage."""
    damage: Exception | None = None
    yield "Opening the video ...", None, None, None, None, None
    thresholds: dict[str, Any] = dict(zip(THRESHOLDS, values, strict=True))
    finder, of_frames = make_finder(model.network, **thresholds), is_frame_classifier(model.network)
    score, sizes = (score_frames, {}) if of_frames else (score_windows, choose_windows(model.processor))
    # Gradio copies a file before the next step.
    with TemporaryDirectory() as name:
        timeline, folder = Timeline(finder, file.name, name), Path(name)
        options = {"batch_size": _WINDOWS_AT_ONCE, "watch": timeline.watch, **sizes}
        try:
            for window in model.locked(score(model.network, model.processor, str(file), **options)):
                is_longer = bool(timeline.add(window))
                said = f"Looked at {clock(window.end)}, {count(len(timeline.segments), 'segment')} so far ..."
                yield (said, _table(timeline.segments)) if is_longer else (said,)
        except OSError as error:
            if not timeline.end:
                raise
            damage, timeline.ending = error, "the video is damaged"
        timeline.finish()
        timeline.write({"model": model.name, **thresholds, "background": finder.background, **sizes})
        save_figure(draw_timeline(timeline), folder / "timeline.png")
        segments, end = timeline.segments, timeline.end
        said = f"{count(len(segments), 'segment')} in {clock(end)}." + " Choose one to see it." * bool(segments)
        files, found = sorted(map(str, folder.iterdir())), (model, file, segments, end)
        yield damage or said, _table(segments), str(folder / "timeline.png"), files, None, found


def _table(segments: list[Segment]) -> dict[str, Any]:
    """What a `gr.Dataframe` shows; a class has its colour."""
    rows = [[clock(each.start, 1), clock(each.end, 1), each.label, f"{each.score:.0%}"] for each in segments]
    styles = [["", "", f"border-left: 0.8rem solid {class_color(each.class_id)}", ""] for each in segments]
    return {"headers": ["Begin", "End", "Class", "Score"], "data": rows, "metadata": {"styling": styles}}


def annotate(model: LoadedModel, file: Path, found: tuple[Any, ...] | None) -> Iterator[Step]:
    """The video, with the segments on it that [`find_segments`] gave. A damaged one gives the part before the
    damage."""
    if found is None or found[:2] != (model, file):
        raise ValueError("There are no segments of this video yet: find them first.")
    yield "Drawing on the video ...", None
    end, damage = 0.0, None
    with TemporaryDirectory() as folder:
        annotated = Path(folder, f"{file.stem}_annotated.mp4")
        try:
            for seconds in annotate_frames(file, annotated, *found[2:]):
                if seconds >= end + 1:
                    end = seconds
                    yield (f"Drawn on {clock(end)} ...",)
        except VideoReadError as error:
            damage = error
        yield damage or f"{annotated.name} is ready.", str(annotated)


def draw_heat_map(model: LoadedModel, file: Path, target: str, is_around: bool, moment: float) -> Iterator[Step]:
    """The evidence for a class, by default the predicted one, in the clip that the model sees: a video of the frames
    with their heat maps, and a picture of all frames. The clip is from the whole video, or `is_around` from one second
    before a moment, in seconds, to one after it."""
    model.check_clips()
    yield "Reading the video ...", None, None
    part = {"start": max(moment - 1, 0.0), "end": moment + 1} if is_around else {}
    clip = read_clip(model.processor, str(file), **part)
    with model.lock:
        scores = predict_scores(model.network, clip.pixel_values)[0]
        class_id = model.class_names.index(target) if target else int(scores.argmax())
        heat_maps = explain(model.network, clip.pixel_values, class_id)[0].numpy()
    label, times = f"{model.class_names[class_id]} ({scores[class_id]:.1%})", clip.times.tolist()
    with TemporaryDirectory() as folder:
        picture, moving = Path(folder, "heat_map.png"), Path(folder, "heat_map.mp4")
        save_figure(draw_heat_maps(clip.images, heat_maps, times, f"{file.name}\nwhat speaks for {label}"), picture)
        write_heat_map_video(moving, clip.images, heat_maps, times, clip.end)
        top = [clock(times[frame], 2) for frame in top_frames(frame_shares(heat_maps))]
        most = f"For {label} the frames at {', '.join(top)} counted most."
        yield most if top else f"Nothing in these frames speaks for {label}.", str(moving), str(picture)


def answer(model: LoadedModel, file: Path, watched: tuple[Any, ...] | None, question: str) -> Iterator[Step]:
    """The answer to a question, and what the model keeps of the video, which the first question decides: `watched` for
    further ones."""
    question = question.strip()
    if not question:
        raise ValueError("There is no question: type one first.")
    yield "Watching the video ...", ""
    if watched is None or watched[:2] != (model, file):
        watcher = VideoWatcher(model.network, model.processor, question, chunk_size=_FRAMES_AT_ONCE)
        watcher.check_question(question)
        frames = (frame.image for frame in stream_frames(str(file), _FRAMES_PER_SECOND))
        for seen in model.locked(watcher.watch(frames)):
            yield (f"Watched {clock((seen - 1) / _FRAMES_PER_SECOND)} ...",)
        watched = model, file, watcher
    with model.lock:
        text = watched[2].answer(question, do_sample=False)
    yield "Answered.", text, watched
