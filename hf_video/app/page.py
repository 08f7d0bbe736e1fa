"""The page: its layout, and what its buttons do."""

import logging
import os
import shutil
from abc import ABCMeta
from collections.abc import Callable, Iterator, Sequence
from inspect import signature
from pathlib import Path
from typing import Any

import gradio as gr
from gradio.data_classes import FileData

from hf_video.inference.segments import SegmentFinder

from . import page_texts as texts
from .visitors import Cancelled, Ticket, Visitor, Visitors
from .work import MEGABYTE, LoadedModel, Step, annotate, answer, classify, draw_heat_map, fetch_video, find_segments

logger = logging.getLogger(__name__)

_DEFAULT_ONSET = signature(SegmentFinder).parameters["onset"].default
_LONGEST_DURATION = 10
_BUSY = "Too many others are waiting. Try again in a while."
# Puts the time of the player in place of the last value that a button sends.
_WITH_MOMENT = """
(...values) => [...values.slice(0, -1), document.querySelector("#player video")?.currentTime ?? 0]
"""


class Page:
    """
    A page for some models, of which the first is chosen at the start. Its methods are what its buttons do.

    Args:
        models: the models.
        visitors: who has the page open.
        max_upload: megabytes that a video may have.
        workers: requests that are worked on at a time, over all visitors.
        only_local: whether the page is for this machine alone. Then it opens addresses; for others it would reach
            the private network of this machine.
        tell_error: gives a sentence for an error that an input explains, None for a bug.
        has_tracebacks: whether the log shows where an error came from.
        examples: videos that the page offers. A page that opens one gets a copy.

    Attributes:
        blocks: the page, as Gradio has it.
    """

    def __init__(
        self,
        models: Sequence[LoadedModel],
        visitors: Visitors,
        *,
        max_upload: int,
        workers: int,
        only_local: bool,
        tell_error: Callable[[Exception], str | None],
        has_tracebacks: bool = False,
        examples: Sequence[Path] = (),
    ):
        self.models = {model.name: model for model in models}
        self.visitors, self.max_upload, self.workers, self.only_local = visitors, max_upload, workers, only_local
        self.tell_error, self.has_tracebacks, self.examples = tell_error, has_tracebacks, examples
        title = models[0].name if len(models) == 1 else "Video models"
        # Results and files belong to the page in a browser: nothing of them is kept in this object.
        with gr.Blocks(title=title, analytics_enabled=False, delete_cache=(600, 6 * 3600)) as self.blocks:
            ways = "record one, or open one by its address" if only_local else "or record one"
            gr.Markdown(f"# {title}\n\nDrop a video, {ways}. Then choose what to do with it below.", elem_id="title")
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
                gr.HTML(texts.message(), elem_id="playback")
            with gr.Column(min_width=320):
                if self.only_local:
                    self.url = gr.Textbox(
                        label="Address of a video", placeholder="https://...", elem_id="url", max_lines=1, type="text"
                    )
                    self.open_url = gr.Button("Open address", elem_id="open-url")
                self.message = gr.HTML(texts.message(), elem_id="message")
                self.cancel = gr.Button("Cancel", variant="stop", elem_id="cancel", interactive=False)
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
                self.segments = gr.HTML(elem_id="segments")
                self.timeline_picture = gr.HTML(elem_id="timeline-picture")
                self.files = Files(label="Files", file_count="multiple", interactive=False, elem_id="timeline-files")
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
        shared: dict[str, Any] = {"api_visibility": "private", "show_progress": "hidden"}
        at_once = shared | {"queue": False}
        in_turn = shared | {"concurrency_id": "work", "concurrency_limit": self.workers}
        works = []

        def work(trigger: Any, step: Callable, inputs: list, outputs: list, js: str | None = None) -> None:
            """The button says at once that work waits, works in its turn, and then lets go of Cancel."""
            begun = trigger(self._wait, None, [self.message, self.cancel], **at_once)
            run = self._guarded(step, outputs)
            running = begun.then(run, [self.video, self.model, *inputs], [self.message, *outputs], js=js, **in_turn)
            works.append(running)
            running.then(self._finish, None, self.cancel, **at_once)
            running.failure(self._turn_away, None, self.message, **at_once)

        if self.only_local:
            for trigger in (self.open_url.click, self.url.submit):
                work(trigger, self._open_url, [self.url], [self.video])
        if self.examples:
            work(self.example.click, self._open_example, [self.example], [self.video])
        work(self.classify.click, classify, [], [self.classes])
        thresholds = [self.onset, self.shortest, self.shortest_gap]
        found = [self.segments, self.timeline_picture, self.files, self.annotated]
        work(self.find_segments.click, find_segments, thresholds, found)
        work(self.annotate.click, annotate, [], [self.annotated])
        part, heat_map = [self.target, self.part, self.moment], [self.heat_map, self.heat_map_frames]
        work(self.explain.click, draw_heat_map, part, heat_map, js=_WITH_MOMENT)
        for trigger in (self.ask.click, self.question.submit):
            work(trigger, answer, [self.question], [self.answer])

        self.cancel.click(self._cancel, None, [self.message, self.cancel], cancels=works, **at_once)
        self.video.change(self._keep, self.video, [self.message, *self.results], **at_once)
        durations = [self.shortest, self.shortest_gap]
        chosen = [self.for_classes, self.for_questions, self.target, *durations, self.message, *self.results]
        self.model.change(self._choose, self.model, chosen, **at_once)
        self.blocks.unload(self._leave)

    def _visitor(self, request: gr.Request) -> Visitor:
        return self.visitors[str(request.session_hash)]

    def _wait(self, request: gr.Request) -> dict[Any, Any]:
        self._visitor(request).was_cancelled = False
        return self._say("Waiting for a free place ...") | {self.cancel: _active(True)}

    def _turn_away(self, request: gr.Request) -> dict[Any, Any]:
        """Work tells its own errors; it fails only in the queue: if that is full, or if Cancel takes it out."""
        if self._visitor(request).was_cancelled:
            return self._say("Cancelled.")
        return {self.message: texts.message(_BUSY, is_problem=True)}

    def _finish(self, request: gr.Request) -> Any:
        return _active(self._visitor(request).is_busy)

    def _choose(self, name: str, request: gr.Request) -> dict[Any, Any]:
        visitor, model = self._visitor(request), self.models[name]
        visitor.cancel_outdated(model=name)
        shown = {
            self.for_classes: gr.update(visible=not model.answers),
            self.for_questions: gr.update(visible=model.answers),
            self.target: gr.update(choices=_targets(model), value=""),
            self.shortest: _shortest(model),
            self.shortest_gap: _shortest(model),
        }
        return shown | self._what_is_open(visitor) | self.results

    def _keep(self, video: str | None, request: gr.Request) -> dict[Any, Any]:
        file = None if video is None else Path(video)
        if not self.visitors.keep(str(request.session_hash), file):
            return {self.message: gr.skip()}
        return self._what_is_open(self._visitor(request)) | self.results

    def _leave(self, request: gr.Request) -> None:
        self.visitors.leave(str(request.session_hash))

    def _cancel(self, request: gr.Request) -> dict[Any, Any]:
        visitor = self._visitor(request)
        visitor.was_cancelled = True
        visitor.cancel()
        return self._say("Cancelled.") | {self.cancel: _active(False)}

    def _open_url(self, model: LoadedModel, visitor: Visitor, ticket: Ticket, url: str) -> Iterator[Step]:
        for fetched in fetch_video(url.strip(), visitor.new_folder(), self.max_upload * MEGABYTE, ticket):
            if isinstance(fetched, Path):
                yield f"{fetched.name} is open.", str(fetched)
            else:
                yield (f"{fetched / MEGABYTE:.0f} MB fetched ...",)

    def _open_example(self, model: LoadedModel, visitor: Visitor, ticket: Ticket, number: int) -> Iterator[Step]:
        example = self.examples[number]
        yield f"{example.name} is open.", str(shutil.copy(example, visitor.new_folder()))

    def _guarded(
        self, work: Callable[..., Iterator[Step]], outputs: Sequence[Any]
    ) -> Callable[..., Iterator[dict[Any, Any]]]:
        """Work of a visitor, as Gradio calls it. An error is its last step, and so is the removal of what it has shown
        of another video or model."""

        def run(request: gr.Request, video: str | None, model: str, *inputs: Any) -> Iterator[dict[Any, Any]]:
            visitor = self._visitor(request)
            with visitor.work(None if video is None else Path(video), model) as ticket:
                try:
                    for said, *values in work(self.models[model], visitor, ticket, *inputs):
                        message = self._say(said) if isinstance(said, str) else self._problem(visitor, said)
                        yield message | dict(zip(outputs, values, strict=False))
                except Cancelled:
                    if ticket.is_outdated:
                        shown = {each: empty for each, empty in self.results.items() if each in outputs}
                        yield self._what_is_open(visitor) | shown
                except Exception as error:
                    yield self._problem(visitor, error)

        return run

    def _what_is_open(self, visitor: Visitor) -> dict[Any, Any]:
        return self._say("" if visitor.video is None else f"{visitor.video.name} is open.")

    def _say(self, sentence: str) -> dict[Any, Any]:
        return {self.message: texts.message(sentence)}

    def _problem(self, visitor: Visitor, error: Exception) -> dict[Any, Any]:
        sentence = self.tell_error(error)
        if sentence is None or self.has_tracebacks:
            logger.error(str(error), exc_info=error if self.has_tracebacks else None)
        names = {str(model.network.config.name_or_path): model.name for model in self.models.values()}
        if visitor.video is not None:
            names[str(visitor.video)] = visitor.video.name
        sentence = sentence or f"This is a bug ({type(error).__name__}): see the log of the server."
        return {self.message: texts.message(texts.without_paths(sentence, names), is_problem=True)}


def _active(is_active: bool) -> Any:
    return gr.update(interactive=is_active)


def _shortest(model: LoadedModel) -> float:
    """Segments and gaps of less than a clip are seldom more than noise."""
    return min(model.window_seconds, _LONGEST_DURATION)


def _targets(model: LoadedModel) -> list[tuple[str, str]]:
    return [("the predicted class", ""), *((name, name) for name in model.class_names)]


class _WithoutStub(type(gr.Video)):  # type: ignore[misc]
    """Makes a class of a component. Gradio's own way also writes a stub beside the source file."""

    def __new__(cls, name: str, bases: tuple[type, ...], attributes: dict[str, Any]) -> Any:
        return ABCMeta.__new__(cls, name, bases, attributes)


async def _move_upload(component: gr.blocks.Block, url_or_file_path: Any) -> str | None:
    """The path of an uploaded file, relative as `private_folder` is: the browser is told it.

    Raises:
        gr.Error: it is an address.
    """
    if url_or_file_path is not None and "://" in str(url_or_file_path):
        raise gr.Error("A video is uploaded, or opened by its address; a browser cannot name one otherwise.")
    path = await gr.blocks.Block.async_move_resource_to_block_cache(component, url_or_file_path)
    return None if path is None else os.path.relpath(path)


class VideoFile(gr.Video, metaclass=_WithoutStub):
    """
    A `gr.Video` that leaves files as they are. Gradio's own converts what a browser cannot play, with a program that
    may be missing, and fetches any address that a browser names, of any size.
    """

    # Gradio then shows it as what it is derived from, which must be its first base.
    is_template = True
    async_move_resource_to_block_cache = _move_upload

    def preprocess(self, payload: FileData | None) -> str | None:
        """The path of the file."""
        return None if payload is None else payload.path

    def postprocess(self, value: str | Path | None) -> FileData | None:
        """The file at a path in the folder of the page."""
        return None if value is None else FileData(path=str(value), orig_name=Path(value).name)


class Files(gr.File, metaclass=_WithoutStub):
    """A `gr.File` that tells a browser no path of the server."""

    is_template = True
    async_move_resource_to_block_cache = _move_upload
