"""Show what a model looked at: where in the frames of a video the evidence for a class lies, and which frames counted
most. The model sees one clip, as its processor samples it, in the centre of the frames. --start and --end choose the
part of a long video that it is sampled from.

Of a MemoryBankQFormer, explanation.json also tells which frames the memory held when the answer was given. One that
answers in words has no classes: it needs a --question, and is explained by its memory alone.

files in the folder of --output, which is complete or not there (needs matplotlib):
  heat_maps.png     all frames, below each the same with its heat map and its share of the evidence
  heat_maps.mp4     the frames with their heat maps, each as long as it stands for the video
  top_frames/       a picture of each frame that counted most
  explanation.json  all of it in numbers: scores, times, shares, and the place of each frame's highest evidence

example: hf-video explain pouring.mp4 --model my_model --class "pouring water" --output why_pouring
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from hf_video.data.folders import listed
from hf_video.inference.inference_settings import FrameSourceSettings, TrainedModelSettings
from hf_video.loading.models import answers_in_words, load_answering_model, load_trained_model
from hf_video.output_folders import KEEP, require_fresh
from hf_video.reading.sources import kind_of, name_of, public_url
from hf_video.settings import AtLeast1, Mark, NotNegative, Positive, Settings, closest, setting
from hf_video.texts import clock, one_line

from .command import command
from .printing import say_files

if TYPE_CHECKING:
    from hf_video.inference import Clip


@dataclass(kw_only=True)
class ExplainSettings(FrameSourceSettings, TrainedModelSettings, Settings):
    """Explanation"""

    video: Annotated[str, Mark(form="word", names="videos")] = setting(
        help="Video file, URL, or folder of frames.", metavar="VIDEO"
    )
    class_name: Annotated[str | None, Mark(alias="class")] = setting(
        None, "Name or number of the class to explain; by default the one with the highest score.", "CLASS"
    )
    question: str | None = setting(None, "What a model that answers in words is asked.", "TEXT")
    start: NotNegative[float] | None = setting(
        None, "Seconds at which the part to look at begins; by default the start of the video."
    )
    end: Positive[float] | None = setting(None, "Seconds at which it ends; by default the end of the video.")
    top_k: AtLeast1[int] = setting(5, "Classes shown.", "K")
    output: str | None = setting(None, "Folder for the files listed above; new or empty.", "DIR")
    json: bool = setting(False, "Print one JSON object.")


@command(help="show what a model looked at")
def run(settings: ExplainSettings) -> int:
    """Prints the answer and the frames that counted most; writes the folder."""
    _check(settings)
    found, clip, heat_map = (_explain_answer if answers_in_words(settings.model) else _explain_class)(settings)
    details = {"video": name_of(settings.video), "model": settings.model} | found
    if settings.output is not None:
        _write(settings.output, details, clip, heat_map)
    print(json.dumps(details) if settings.json else "\n".join(_lines(settings.video, details)), flush=True)
    return 0


def _check(settings: ExplainSettings) -> None:
    """Refuses frames without times, and a folder that cannot be written, before the model is loaded."""
    if settings.source_fps is None and kind_of(settings.video) == "folder":
        raise ValueError(
            f"{settings.video} is a folder of frames, which have no times: give --source-fps, the rate at which they "
            "were taken."
        )
    if settings.output is not None:
        require_fresh(Path(settings.output), KEEP, option="--output")
        if importlib.util.find_spec("matplotlib") is None:
            raise ImportError(
                "--output draws with matplotlib: pip install 'hf-video-models[explain]'. Leave --output out to be "
                "told the frames that counted most without pictures."
            )


def find_class(word: str, names: Sequence[str]) -> int:
    """The id of a class, for its name or the id itself; else a `ValueError` lists the closest names."""
    if word in names:
        return names.index(word)
    if word.isdecimal() and int(word) < len(names):
        return int(word)
    hint = closest(word, names) or f"They are {listed(map(repr, names))}."
    raise ValueError(f"The model has {len(names)} classes, and --class {word!r} is not one of them. {hint}")


def _explain_class(settings: ExplainSettings) -> tuple[dict[str, Any], Clip, Any]:
    """What is explained in numbers, the clip that the model saw, and the heat map (T, H, W) of a class."""
    if settings.question is not None:
        raise ValueError(
            f"--question asks a model that answers in words; {settings.model} gives classes: leave it out."
        )
    model, processor = load_trained_model(
        settings.model, device=settings.device, dtype=settings.dtype, num_clips=1, num_crops=1
    )

    import torch

    from hf_video.drawing.heat_maps import describe_frames
    from hf_video.inference import explain, predict_scores
    from hf_video.inference.scores import require_classes
    from hf_video.loading.class_names import class_names_of

    require_classes(settings.model, model.config)
    names = class_names_of(model.config)
    target = None if settings.class_name is None else find_class(settings.class_name, names)
    clip = _read_clip(settings, processor)
    scores = predict_scores(model, clip.pixel_values)[0]
    if not scores.isfinite().all():
        raise ValueError(f"The scores of {settings.model} for this video are not finite: there is nothing to explain.")
    target = int(scores.argmax()) if target is None else target
    heat_map = explain(model, clip.pixel_values, target)[0].numpy()
    top = scores.topk(min(settings.top_k, len(scores)))
    details = {
        "label": names[target],
        "class_id": target,
        "score": round(float(scores[target]), 6),
        "predictions": [
            {"label": names[index], "score": round(score, 6)}
            for score, index in zip(top.values.tolist(), top.indices.tolist(), strict=True)
        ],
        "frames": describe_frames(clip, heat_map),
    }
    if model.config.model_type == "memory_bank_qformer":
        with torch.inference_mode():
            memory = model(clip.pixel_values.to(model.device, model.dtype)).memory
        if memory is not None and memory.visual is not None:
            details["memory"] = frames_held(memory, clip)
    return details, clip, heat_map


def _explain_answer(settings: ExplainSettings) -> tuple[dict[str, Any], Clip, None]:
    """Explains an answer in words by the frames that the memory held."""
    if settings.class_name is not None:
        raise ValueError(
            f"{settings.model} answers in words and has no classes: leave --class out, and give a --question."
        )
    if settings.question is None:
        raise ValueError(f"{settings.model} answers in words: say with --question what it is asked.")
    model, processor = load_answering_model(settings.model, device=settings.device, dtype=settings.dtype)

    from hf_video.models.memory_bank_qformer.video_watcher import VideoWatcher

    clip = _read_clip(settings, processor.video_processor)
    # The images of the clip have their size already.
    processor.video_processor.do_resize = processor.video_processor.do_center_crop = False
    watcher = VideoWatcher(model, processor, settings.question)
    watcher.check_question(settings.question)
    watcher.update(clip.images)
    details = {
        "question": settings.question,
        "answer": watcher.answer(do_sample=False),
        "frames": [{"seconds": round(seconds, 3)} for seconds in clip.times.tolist()],
        "memory": frames_held(watcher.memory, clip),
    }
    return details, clip, None


def _read_clip(settings: ExplainSettings, processor: Any) -> Clip:
    from hf_video.inference import read_clip

    return read_clip(processor, settings.video, start=settings.start, end=settings.end, source_fps=settings.source_fps)


def frames_held(memory: Any, clip: Clip) -> list[list[float]]:
    """The seconds of the first and the last frame that each entry of a memory holds, oldest first. An entry may hold
    other frames at other token positions: these are the first and the last of all."""
    # At each token position an entry stands for as many frames in a row as its count, after those of the one before.
    counts = memory.visual.counts[0, : memory.visual.num_entries[0]].cpu().round().long()
    stop = memory.frames_seen[0] - counts.sum(0) + counts.cumsum(0)
    firsts, lasts = (stop - counts).amin(1).tolist(), (stop - 1).amax(1).tolist()
    return [[round(float(clip.times[each]), 3) for each in entry] for entry in zip(firsts, lasts, strict=True)]


def _write(output: str, details: dict[str, Any], clip: Clip, heat_map: Any) -> None:
    from hf_video.drawing.heat_maps import write_explanation, write_heat_maps
    from hf_video.io import new_folder

    with new_folder(output) as folder:
        if heat_map is not None:
            write_heat_maps(folder, clip, heat_map, details)
        write_explanation(folder, clip, details)
    say_files(output)


def _lines(video: str, details: dict[str, Any]) -> Iterator[str]:
    yield public_url(video)
    if "answer" in details:
        yield from (f"  {one_line(details['answer'])}", "what the memory held:")
        yield from (f"  {clock(first, 2)}  {clock(last, 2)}" for first, last in details["memory"])
        return
    import numpy as np

    from hf_video.inference import top_frames

    yield from (f"  {each['score']:6.1%}  {one_line(each['label'])}" for each in details["predictions"])
    frames, explained = details["frames"], f"{one_line(details['label'])} ({details['score']:.1%})"
    top = top_frames(np.array([frame["share"] for frame in frames]))
    yield f"what spoke most for {explained}:" if top else f"nothing in the clip speaks for {explained}"
    yield from (f"  {frames[each]['share']:6.1%}  {clock(frames[each]['seconds'], 2)}" for each in top)
