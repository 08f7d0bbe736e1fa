"""The page: its layout, and what its buttons do."""

import json
from abc import ABCMeta
from collections.abc import Callable, Iterator, Sequence
from html import escape
from pathlib import Path
from typing import Any

import gradio as gr
from gradio.data_classes import FileData

from hf_video.inference.inference_settings import TimelineSettings
from hf_video.reading.frame_streaming import stream_frames

from .work import THRESHOLDS, LoadedModel, Step, annotate, answer, classify, draw_heat_map, find_segments

Tell = Callable[[Exception], str]
# Seconds: how often files are looked at, and how old those are that are removed.
_REMOVED = (600, 6 * 3600)
# Puts in place of the last value that is sent: the time of the player, or whether the browser can play the video.
_WITH_MOMENT = """
(...values) => [...values.slice(0, -1), document.querySelector("#player video")?.currentTime ?? 0]
"""
_WITH_PLAYS = """
(video) => video ? new Promise((tell) => {
  const player = Object.assign(document.createElement("video"), { preload: "metadata", src: video.url });
  player.onloadedmetadata = () => tell([video, player.videoWidth > 0]);
  player.onerror = () => tell([video, false]);
}) : [video, true]
"""
# The sliders: from, to, step and label.
_THRESHOLDS = (
    (0.05, 1, 0.05, "Score with which a segment begins"),
    (0, 10, 0.1, "Shortest segment, seconds"),
    (0, 10, 0.1, "Shortest gap, seconds"),
)
# The player goes to a time such as 0:01:02.5, and plays.
_JUMP = """
(time) => {
  const player = document.querySelector("#player video");
  if (!player) return;
  player.currentTime = time.split(":").reduce((total, part) => 60 * total + Number(part), 0);
  player.play().catch(() => {});
  player.scrollIntoView({ block: "nearest" });
}
"""


class Page:
    """A page for some models, and for videos that it offers; `blocks` is what Gradio serves. At most `workers`
    requests are worked on at a time, over all visitors. `tell_error` gives a sentence for an error."""

    def __init__(
        self, models: Sequence[LoadedModel], workers: int, tell_error: Tell, examples: Sequence[Path] = ()
    ) -> None:
        self.models = {model.name: model for model in models}
        self.workers, self.tell_error, self.examples = workers, tell_error, examples
        title = models[0].name if len(models) == 1 else "Video models"
        # Results and files belong to the page in a browser: nothing of them is kept in this object.
        with gr.Blocks(title=title, analytics_enabled=False, delete_cache=_REMOVED) as self.blocks:
            gr.Markdown(f"# {title}\n\nDrop or record a video. Then choose what to do with it below.", elem_id="title")
            self._lay_out(models[0])
            self._wire()

    def _lay_out(self, first: LoadedModel) -> None:
        names = list(self.models)
        self.model = gr.Dropdown(names, value=first.name, label="Model", elem_id="model", visible=len(names) > 1)
        with gr.Row():
            with gr.Column(min_width=320, elem_id="player"):
                self.video = VideoFile(sources=["upload", "webcam"], label="Video", elem_id="video")
                self.about = gr.HTML(elem_id="about")
                self.first_frame = _result(gr.Image, "First frame", "first-frame")
            with gr.Column(min_width=320):
                self.message = gr.HTML(_message(), elem_id="message")
                self.cancel = gr.Button("Cancel", variant="stop", elem_id="cancel")
        # What was found and watched last, with the model and the video.
        self.found, self.watched = gr.State(), gr.State()
        # What the browser tells, and is told.
        self.plays, self.moment = gr.Checkbox(visible=False), gr.Number(0, visible=False)
        self.begin = gr.Textbox(visible=False)
        if self.examples:
            texts, samples = [gr.Textbox(render=False)], [[file.name] for file in self.examples]
            self.example = gr.Dataset(texts, samples=samples, type="index", label="Examples", elem_id="examples")
        # Two groups, because Gradio does not hide a tab that was shown.
        with gr.Column(visible=not first.answers) as self.for_classes, gr.Tabs():
            with gr.Tab("Classes"):
                self.classify = gr.Button("Classify", variant="primary", elem_id="classify")
                self.classes = _result(gr.Label, "Classes", "classes", num_top_classes=5)
            with gr.Tab("Timeline"):
                with gr.Row():
                    self.thresholds = [
                        gr.Slider(low, high, getattr(TimelineSettings, name), step=step, label=label)
                        for name, (low, high, step, label) in zip(THRESHOLDS, _THRESHOLDS, strict=True)
                    ]
                self.find_segments = gr.Button("Find segments", variant="primary", elem_id="find-segments")
                self.segments = _result(gr.Dataframe, "Segments", "segments", max_height=400, wrap=True, buttons=[])
                self.timeline_picture = _result(gr.Image, "Timeline", "timeline-picture")
                self.files = _result(gr.File, "Files", "timeline-files", file_count="multiple")
                self.annotate = gr.Button("Draw the segments on the video", elem_id="annotate")
                self.annotated = _result(VideoFile, "Annotated video", "annotated", height=360)
            with gr.Tab("Heat map"):
                self.target = gr.Dropdown(_targets(first), value="", label="What speaks for", elem_id="heat-map-class")
                parts = [("frames of the whole video", False), ("two seconds around where the player is", True)]
                self.part = gr.Radio(parts, value=False, label="Frames to look at", elem_id="heat-map-part")
                self.explain = gr.Button("Show the heat map", variant="primary", elem_id="explain")
                self.heat_map = _result(VideoFile, "Heat map", "heat-map", height=360, loop=True, autoplay=True)
                self.heat_map_frames = _result(gr.Image, "Frames", "heat-map-frames")
        with gr.Column(visible=first.answers) as self.for_questions, gr.Tab("Question"):
            self.question = gr.Textbox(label="Question", elem_id="question", max_lines=3)
            self.ask = gr.Button("Ask", variant="primary", elem_id="ask")
            self.answer = gr.Textbox(label="Answer", interactive=False, elem_id="answer", lines=2)

    def _wire(self) -> None:
        at_once: dict[str, Any] = {"api_visibility": "private", "queue": False, "show_progress": "hidden"}
        works = list[Any]()

        queued = {"api_visibility": "private", "concurrency_id": "work", "concurrency_limit": self.workers}
        queued |= {"show_progress": "minimal", "show_progress_on": self.message}

        def work(trigger: Callable, step: Callable, inputs: list, outputs: list, js: str | None = None) -> None:
            run, given = self._guarded(step, outputs), [self.video, self.model, *inputs]
            works.append(trigger(run, given, [self.message, *outputs], js=js, **queued))

        segments = [self.segments, self.timeline_picture, self.files, self.annotated, self.found]
        part, heat_map = [self.target, self.part, self.moment], [self.heat_map, self.heat_map_frames]
        work(self.classify.click, classify, [], [self.classes])
        work(self.find_segments.click, find_segments, self.thresholds, segments)
        work(self.annotate.click, annotate, [self.found], [self.annotated])
        work(self.explain.click, draw_heat_map, part, heat_map, js=_WITH_MOMENT)
        for trigger in (self.ask.click, self.question.submit):
            work(trigger, answer, [self.watched, self.question], [self.answer, self.watched])

        if self.examples:
            self.example.click(lambda number: str(self.examples[number]), self.example, self.video, **at_once)
        chosen = self.segments.select(_begin_of, None, self.begin, **at_once)
        chosen.then(None, self.begin, None, js=_JUMP, **at_once)
        # Each of these ends all work of the page, and what it shows comes after the last step of that.
        for trigger in (self.cancel.click, self.video.change, self.model.change):
            trigger(None, cancels=works, **at_once)
        self.cancel.click(lambda: _message("Cancelled."), None, self.message, **at_once)
        # In the browser, so that it comes before whatever is pressed next.
        results = [self.classes, *segments[:-1], *heat_map, self.answer]
        empty: dict[Any, Any] = {self.classes: {}, self.segments: {"headers": [], "data": []}}
        cleared = f"() => {json.dumps([_message(), *map(empty.get, results)])}"
        for trigger in (self.video.change, self.model.change):
            trigger(None, None, [self.message, *results], js=cleared, **at_once)
        about = [self.about, self.first_frame]
        self.video.change(self._describe, [self.video, self.plays], about, js=_WITH_PLAYS, **at_once)
        self.model.change(self._show_tabs, self.model, [self.for_classes, self.for_questions, self.target], **at_once)

    def _show_tabs(self, name: str) -> tuple[Any, ...]:
        answers, targets = self.models[name].answers, _targets(self.models[name])
        return gr.update(visible=not answers), gr.update(visible=answers), gr.update(choices=targets, value="")

    def _describe(self, video: str | None, plays: bool) -> tuple[str, Any]:
        """Says of a file if it is no video, or none that the browser can play."""
        if video is None or plays:
            return "", None
        try:
            frame = next(stream_frames(video)).image
        except Exception as error:
            return self._problem(error, video), None
        return _message(f"Your browser cannot play {Path(video).name}. The model can read it."), frame

    def _guarded(self, work: Callable[..., Iterator[Step]], outputs: Sequence[Any]) -> Callable[..., Iterator[dict]]:
        """The work of a button, as Gradio calls it. An error is its last step."""

        def run(video: str | None, name: str, *inputs: Any) -> Iterator[dict]:
            try:
                if video is None or not Path(video).is_file():
                    raise ValueError("There is no video, or it was removed: drop one, or record one.")
                for said, *values in work(self.models[name], Path(video), *inputs):
                    shown = _message(said) if isinstance(said, str) else self._problem(said, video, name)
                    yield {self.message: shown} | dict(zip(outputs, values, strict=False))
            except Exception as error:
                yield {self.message: self._problem(error, video, name)}

        return run

    def _problem(self, error: Exception, video: str | None, model: str | None = None) -> str:
        """The sentence for an error, with the names that the visitor knows."""
        sentence = self.tell_error(error)
        if video is not None:
            sentence = sentence.replace(video, Path(video).name)
        if model in self.models and (path := str(self.models[model].network.config.name_or_path)):
            sentence = sentence.replace(path, model)
        return _message(sentence, is_problem=True)


def _message(sentence: str = "", is_problem: bool = False) -> str:
    """What goes on, or what went wrong; screen readers say it. Names of files and classes come from strangers."""
    kind = ' class="problem"' if is_problem else ""
    return f'<p role="status"{kind}>{escape(sentence)}</p>'


def _result(kind: Callable, label: str, name: str, **options: Any) -> Any:
    """What shows a result, and takes no place before there is one."""
    options |= {} if kind is gr.Label else {"interactive": False}
    return kind(label=label, elem_id=name, elem_classes="result", **options)


def _targets(model: LoadedModel) -> list[tuple[str, str]]:
    return [("the predicted class", ""), *((name, name) for name in model.class_names)]


def _begin_of(row: gr.SelectData) -> str:
    return row.row_value[0]


class _AsItIs:
    """Leaves files as they are. Gradio's own video converts what a browser cannot play, with a program that may be
    missing, and fetches any address that a browser names, of any size."""

    def get_block_name(self) -> str:
        return "video"

    def preprocess(self, payload: FileData | None) -> str | None:
        return None if payload is None else payload.path

    def postprocess(self, value: str | None) -> FileData | None:
        return None if value is None else FileData(path=value, orig_name=Path(value).name)

    async def async_move_resource_to_block_cache(self, url_or_file_path: Any) -> str | None:
        if url_or_file_path is not None and "://" in str(url_or_file_path):
            raise gr.Error("A video is uploaded; no address is opened.")
        return await super().async_move_resource_to_block_cache(url_or_file_path)  # type: ignore[misc]


# A class statement would also write a stub beside this file.
VideoFile = ABCMeta.__new__(type(gr.Video), "VideoFile", (_AsItIs, gr.Video), {"__module__": __name__})
