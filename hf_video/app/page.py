"""The page: its layout, and what its buttons do."""

import json
import logging
from abc import ABCMeta
from collections.abc import Callable, Iterator, Sequence
from inspect import signature
from pathlib import Path
from typing import Any

import gradio as gr
from gradio.data_classes import FileData

from hf_video.inference.inference_settings import SHORTEST_SEGMENT
from hf_video.inference.segments import SegmentFinder

from . import page_texts as texts
from .work import LoadedModel, Step, annotate, answer, classify, draw_heat_map, find_segments

logger = logging.getLogger(__name__)

_DEFAULT_ONSET = signature(SegmentFinder).parameters["onset"].default
_LONGEST_DURATION = 10
# Seconds: how often files are looked at, and how old those are that are removed.
_REMOVED = (600, 6 * 3600)
# Puts the time of the player in place of the last value that a button sends.
_WITH_MOMENT = """
(...values) => [...values.slice(0, -1), document.querySelector("#player video")?.currentTime ?? 0]
"""
# A click on a segment, or Enter on it, makes the player jump to its start and play.
_JUMP = """
element.addEventListener("click", (event) => {
  const segment = event.target.closest("button[data-start]"), player = document.querySelector("#player video");
  if (!segment || !player) return;
  player.currentTime = Number(segment.dataset.start);
  player.play().catch(() => {});
  player.scrollIntoView({ block: "nearest" });
});
"""


class Page:
    """
    A page for some models, of which the first is chosen at the start. Its methods are what its buttons do.

    Args:
        models: the models.
        workers: requests that are worked on at a time, over all visitors.
        tell_error: gives a sentence for an error that an input explains, None for a bug.
        has_tracebacks: whether the log shows where an error came from.
        examples: videos that the page offers.

    Attributes:
        blocks: the page, as Gradio has it.
    """

    def __init__(
        self,
        models: Sequence[LoadedModel],
        *,
        workers: int,
        tell_error: Callable[[Exception], str | None],
        has_tracebacks: bool = False,
        examples: Sequence[Path] = (),
    ):
        self.models = {model.name: model for model in models}
        self.workers, self.tell_error = workers, tell_error
        self.has_tracebacks, self.examples = has_tracebacks, examples
        title = models[0].name if len(models) == 1 else "Video models"
        # Results and files belong to the page in a browser: nothing of them is kept in this object.
        with gr.Blocks(title=title, analytics_enabled=False, delete_cache=_REMOVED) as self.blocks:
            gr.Markdown(f"# {title}\n\nDrop or record a video. Then choose what to do with it below.", elem_id="title")
            self._lay_out(models)
            self._wire()

    def _lay_out(self, models: Sequence[LoadedModel]) -> None:
        first = models[0]
        self.model = gr.Dropdown(
            list(self.models), value=first.name, label="Model", elem_id="model", visible=len(models) > 1
        )
        with gr.Row():
            with gr.Column(min_width=320, elem_id="player"):
                self.video = VideoFile(sources=["upload", "webcam"], label="Video", elem_id="video")
            with gr.Column(min_width=320):
                self.message = gr.HTML(texts.message(), elem_id="message")
                self.cancel = gr.Button("Cancel", variant="stop", elem_id="cancel")
        # What was found and watched last, with the model and the video.
        self.found, self.watched = gr.State(), gr.State()
        if self.examples:
            self.example = gr.Dataset(
                components=[gr.Textbox(render=False)],
                samples=[[file.name] for file in self.examples],
                type="index",
                label="Examples",
                elem_id="examples",
            )
        # Two groups, because Gradio does not hide a tab that was shown.
        with gr.Column(visible=not first.answers) as self.for_classes, gr.Tabs():
            with gr.Tab("Classes"):
                self.classify = gr.Button("Classify", variant="primary", elem_id="classify")
                self.classes = gr.HTML(elem_id="classes")
            with gr.Tab("Timeline"):
                with gr.Row():
                    self.onset = gr.Slider(
                        0.05, 1, value=_DEFAULT_ONSET, step=0.05, label="Score with which a segment begins"
                    )
                    shortest = {"minimum": 0, "maximum": _LONGEST_DURATION, "value": _shortest(first), "step": 0.1}
                    self.shortest = gr.Slider(**shortest, label="Shortest segment, in seconds", elem_id="shortest")
                    self.shortest_gap = gr.Slider(
                        **shortest, label="Shortest gap in a class, in seconds", elem_id="shortest-gap"
                    )
                self.find_segments = gr.Button("Find segments", variant="primary", elem_id="find-segments")
                self.segments = gr.HTML(elem_id="segments", js_on_load=_JUMP)
                self.timeline_picture = gr.HTML(elem_id="timeline-picture")
                self.files = gr.File(label="Files", file_count="multiple", interactive=False, elem_id="timeline-files")
                self.annotate = gr.Button("Draw the segments on the video", elem_id="annotate")
                self.annotated = VideoFile(label="Annotated video", elem_id="annotated", interactive=False, height=360)
            with gr.Tab("Heat map"):
                self.target = gr.Dropdown(_targets(first), value="", label="What speaks for", elem_id="heat-map-class")
                self.part = gr.Radio(
                    [("frames of the whole video", False), ("two seconds around where the player is", True)],
                    value=False,
                    label="Frames to look at",
                    elem_id="heat-map-part",
                )
                self.moment = gr.Number(0, visible=False)
                self.explain = gr.Button("Show the heat map", variant="primary", elem_id="explain")
                self.heat_map = VideoFile(
                    label="Heat map", elem_id="heat-map", interactive=False, height=360, loop=True, autoplay=True
                )
                self.heat_map_frames = gr.HTML(elem_id="heat-map-frames")
        with gr.Column(visible=first.answers) as self.for_questions, gr.Tabs(), gr.Tab("Question"):
            self.question = gr.Textbox(label="Question", elem_id="question", max_lines=3)
            self.ask = gr.Button("Ask", variant="primary", elem_id="ask")
            self.answer = gr.Textbox(label="Answer", interactive=False, elem_id="answer", lines=2)
        self.results = {
            self.classes: "",
            self.segments: "",
            self.timeline_picture: "",
            self.files: None,
            self.annotated: None,
            self.heat_map: None,
            self.heat_map_frames: "",
            self.answer: "",
        }

    def _wire(self) -> None:
        shared: dict[str, Any] = {"api_visibility": "private"}
        at_once = shared | {"queue": False, "show_progress": "hidden"}
        in_turn = shared | {"concurrency_id": "work", "concurrency_limit": self.workers}
        in_turn |= {"show_progress": "minimal", "show_progress_on": self.message}
        works = []

        def work(trigger: Any, step: Callable, inputs: list, outputs: list, js: str | None = None) -> None:
            run = self._guarded(step, outputs)
            works.append(trigger(run, [self.video, self.model, *inputs], [self.message, *outputs], js=js, **in_turn))

        work(self.classify.click, classify, [], [self.classes])
        thresholds = [self.onset, self.shortest, self.shortest_gap]
        segments = [self.segments, self.timeline_picture, self.files, self.annotated, self.found]
        work(self.find_segments.click, find_segments, thresholds, segments)
        work(self.annotate.click, annotate, [self.found], [self.annotated])
        part, heat_map = [self.target, self.part, self.moment], [self.heat_map, self.heat_map_frames]
        work(self.explain.click, draw_heat_map, part, heat_map, js=_WITH_MOMENT)
        for trigger in (self.ask.click, self.question.submit):
            work(trigger, answer, [self.watched, self.question], [self.answer, self.watched])

        if self.examples:
            self.example.click(self._open_example, self.example, self.video, **at_once)
        # Each of these ends all work of the page, and what it shows comes after the last step of that.
        for trigger in (self.cancel.click, self.video.change, self.model.change):
            trigger(None, cancels=works, **at_once)
        self.cancel.click(self._cancel, None, self.message, **at_once)
        # In the browser, so that it comes before whatever is pressed next.
        cleared = f"() => {json.dumps([texts.message(), *self.results.values()])}"
        self.video.change(None, None, [self.message, *self.results], js=cleared, **at_once)
        durations = [self.shortest, self.shortest_gap]
        chosen = [self.for_classes, self.for_questions, self.target, *durations, self.message, *self.results]
        self.model.change(self._choose, self.model, chosen, **at_once)

    def _choose(self, name: str) -> dict[Any, Any]:
        model = self.models[name]
        shown = {
            self.for_classes: gr.update(visible=not model.answers),
            self.for_questions: gr.update(visible=model.answers),
            self.target: gr.update(choices=_targets(model), value=""),
            self.shortest: _shortest(model),
            self.shortest_gap: _shortest(model),
        }
        return shown | {self.message: texts.message()} | self.results

    def _cancel(self) -> str:
        return texts.message("Cancelled.")

    def _open_example(self, number: int) -> str:
        return str(self.examples[number])

    def _guarded(
        self, work: Callable[..., Iterator[Step]], outputs: Sequence[Any]
    ) -> Callable[..., Iterator[dict[Any, Any]]]:
        """The work of a button, as Gradio calls it. An error is its last step."""

        def run(video: str | None, model: str, *inputs: Any) -> Iterator[dict[Any, Any]]:
            try:
                for said, *values in work(self.models[model], _file(video), *inputs):
                    shown = texts.message(said) if isinstance(said, str) else self._problem(video, said)
                    yield {self.message: shown} | dict(zip(outputs, values, strict=False))
            except Exception as error:
                yield {self.message: self._problem(video, error)}

        return run

    def _problem(self, video: str | None, error: Exception) -> str:
        sentence = self.tell_error(error)
        if sentence is None or self.has_tracebacks:
            logger.error(str(error), exc_info=error if self.has_tracebacks else None)
        sentence = sentence or f"This is a bug ({type(error).__name__}): see the log of the server."
        # Under the names that the visitor knows.
        names = {str(model.network.config.name_or_path): model.name for model in self.models.values()}
        names |= {} if video is None else {video: Path(video).name}
        for path in sorted(filter(None, names), key=len, reverse=True):
            sentence = sentence.replace(path, names[path])
        return texts.message(sentence, is_problem=True)


def _file(video: str | None) -> Path:
    """The video; it is a `ValueError` if there is none."""
    if video is None:
        raise ValueError("There is no video yet: drop one, or record one.")
    # A folder would be read as frames; nobody can send one.
    if not Path(video).is_file():
        raise ValueError("The video was removed: open it again.")
    return Path(video)


def _shortest(model: LoadedModel) -> float:
    """As `hf-video timeline`."""
    return SHORTEST_SEGMENT


def _targets(model: LoadedModel) -> list[tuple[str, str]]:
    return [("the predicted class", ""), *((name, name) for name in model.class_names)]


class _WithoutStub(type(gr.Video)):  # type: ignore[misc]
    """Makes a class of a component. Gradio's own way also writes a stub beside the source file."""

    def __new__(cls, name: str, bases: tuple[type, ...], attributes: dict[str, Any]) -> Any:
        return ABCMeta.__new__(cls, name, bases, attributes)


class VideoFile(gr.Video, metaclass=_WithoutStub):
    """
    A `gr.Video` that leaves files as they are. Gradio's own converts what a browser cannot play, with a program that
    may be missing, and fetches any address that a browser names, of any size.
    """

    # Gradio then shows it as what it is derived from, which must be its first base.
    is_template = True

    def preprocess(self, payload: FileData | None) -> str | None:
        """The path of the file."""
        return None if payload is None else payload.path

    def postprocess(self, value: str | Path | None) -> FileData | None:
        """The file at a path."""
        return None if value is None else FileData(path=str(value), orig_name=Path(value).name)

    async def async_move_resource_to_block_cache(self, url_or_file_path: Any) -> str | None:
        """The path of the file in the folder of the page; an address is a `gr.Error`."""
        if url_or_file_path is not None and "://" in str(url_or_file_path):
            raise gr.Error("A video is uploaded; no address is opened.")
        return await gr.blocks.Block.async_move_resource_to_block_cache(self, url_or_file_path)
