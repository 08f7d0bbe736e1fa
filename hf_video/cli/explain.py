"""Show what a model looked at: where in the frames of a video the evidence for a class lies, and which frames counted
most. The model sees one clip, as its processor samples it, in the centre of the frames. --start and --end choose the
part of a long video that it is sampled from.

For a MemoryBankQFormer the explanation is its memory: the frames that it held when it answered. One that answers
in words has no classes, and needs a --question.

files in the folder of --output, which is complete or not there (needs matplotlib):
  heat_maps.png     all frames, below each the same with its heat map and its share of the evidence
  heat_maps.mp4     the frames with their heat maps, each shown for the time that it covers in the video
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
from hf_video.reading.sources import name_of, public_url
from hf_video.settings import AtLeast1, Mark, NotNegative, Positive, Settings, closest, setting
from hf_video.texts import clock, one_line, replace_json, shorten

from .command import command
from .printing import say_files

if TYPE_CHECKING:
    from hf_video.inference import Clip

# Where no frame has so many times an even share, none is named.
_ABOUT_EVEN = 1.2


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
    if settings.output is not None:
        require_fresh(Path(settings.output), KEEP, option="--output")
        if importlib.util.find_spec("matplotlib") is None:
            raise ImportError("--output draws with matplotlib: pip install 'hf-video-models[explain]'.")
    found, clip, heat_map = (_explain_answer if answers_in_words(settings.model) else _explain_class)(settings)
    details = {"video": name_of(settings.video), "model": settings.model} | found
    if settings.output is not None:
        _write(settings.output, details, clip, heat_map)
    print(json.dumps(details) if settings.json else "\n".join(_lines(settings, details)), flush=True)
    return 0


def _explain_class(settings: ExplainSettings) -> tuple[dict[str, Any], Clip, Any]:
    """What is explained in numbers, the clip that the model saw, and the heat map (T, H, W) of a class; None of a
    model with a memory, which is explained by the frames that it held."""
    if settings.question is not None:
        raise ValueError(f"{settings.model} gives classes and no answers in words: leave --question out.")
    where: dict[str, Any] = {"device": settings.device, "dtype": settings.dtype}
    model, processor = load_trained_model(settings.model, **where, num_clips=1, num_crops=1)

    import torch

    from hf_video.inference import explain, predict_scores
    from hf_video.inference.explanation import describe_frames
    from hf_video.inference.scores import require_classes
    from hf_video.loading.class_names import class_names_of

    require_classes(settings.model, model.config)
    names = class_names_of(model.config)
    target = None if settings.class_name is None else _find_class(settings.class_name, names)
    clip = _read_clip(settings, processor)
    scores = predict_scores(model, clip.pixel_values)[0]
    target = int(scores.argmax()) if target is None else target
    best = scores.argsort(descending=True)[: settings.top_k].tolist()
    rows = [{"label": names[index], "score": round(float(scores[index]), 6)} for index in best]
    score = round(float(scores[target]), 6)
    details = {"label": names[target], "class_id": target, "score": score, "predictions": rows}
    if model.config.model_type == "memory_bank_qformer":
        with torch.inference_mode():
            memory = model(clip.pixel_values.to(model.device, model.dtype)).memory
        return details | _describe_memory(memory, clip), clip, None
    heat_map = explain(model, clip.pixel_values, target)[0].numpy()
    return details | {"frames": describe_frames(clip, heat_map)}, clip, heat_map


def _find_class(word: str, names: Sequence[str]) -> int:
    """The id of a class, for its name or the id itself."""
    if word in names:
        return names.index(word)
    if word.isdecimal() and int(word) < len(names):
        return int(word)
    hint = closest(word, names) or f"They are {listed(map(repr, names))}."
    raise ValueError(f"The model has {len(names)} classes, and --class {word!r} is not one of them. {hint}")


def _explain_answer(settings: ExplainSettings) -> tuple[dict[str, Any], Clip, None]:
    """Explains an answer in words by the frames that the memory held."""
    if settings.question is None or settings.class_name is not None:
        raise ValueError(f"{settings.model} answers in words, without classes: give a --question, and no --class.")
    model, processor = load_answering_model(settings.model, device=settings.device, dtype=settings.dtype)

    from hf_video.inference.video_watcher import VideoWatcher

    clip = _read_clip(settings, processor.video_processor)
    # The images of the clip have their size already.
    processor.video_processor.do_resize = processor.video_processor.do_center_crop = False
    watcher = VideoWatcher(model, processor, settings.question)
    watcher.check_question(settings.question)
    watcher.update(clip.images)
    details = {"question": settings.question, "answer": watcher.answer(do_sample=False)}
    return details | _describe_memory(watcher.memory, clip), clip, None


def _read_clip(settings: ExplainSettings, processor: Any) -> Clip:
    from hf_video.inference import read_clip

    return read_clip(processor, settings.video, start=settings.start, end=settings.end, source_fps=settings.source_fps)


def _describe_memory(memory: Any, clip: Clip) -> dict[str, Any]:
    """The seconds of all frames, and as `memory` those of the first and the last frame that each entry of a memory
    holds, oldest first; without a bank of frames, none. An entry may hold other frames at other token positions."""
    seconds = [round(second, 3) for second in clip.times.tolist()]
    entries = []
    if memory is not None and memory.visual is not None:
        # At each position an entry stands for as many frames in a row as its count, after those of the one before.
        counts = memory.visual.counts[0, : memory.visual.num_entries[0]].cpu().round().long()
        stop = memory.frames_seen[0].cpu() - counts.sum(0) + counts.cumsum(0)
        firsts, lasts = (stop - counts).amin(1).tolist(), (stop - 1).amax(1).tolist()
        entries = [[seconds[first], seconds[last]] for first, last in zip(firsts, lasts, strict=True)]
    return {"frames": [{"seconds": second} for second in seconds], "memory": entries}


def _write(output: str, details: dict[str, Any], clip: Clip, heat_map: Any) -> None:
    """Writes a folder with the details, the sizes of clip and video, and pictures of a heat map."""
    from hf_video.drawing.heat_maps import write_heat_maps
    from hf_video.io import new_folder

    height, width = clip.images.shape[1:3]
    sizes = {"end": round(clip.end, 3), "image_size": [height, width], "video_size": list(clip.video_size)}
    with new_folder(output) as folder:
        if heat_map is not None:
            name = shorten(one_line(details["label"]) or f"class {details['class_id']}", 60)
            title = f"{one_line(details['video'])}\nwhat speaks for {name} ({details['score']:.1%})"
            write_heat_maps(folder, clip, heat_map, title)
        replace_json(folder / "explanation.json", details | sizes)
    say_files(output)


def _lines(settings: ExplainSettings, details: dict[str, Any]) -> Iterator[str]:
    yield public_url(settings.video)
    yield from (f"  {each['score']:6.1%}  {one_line(each['label'])}" for each in details.get("predictions", ()))
    if "answer" in details:
        yield f"  {one_line(details['answer'])}"
    if "memory" in details:
        yield "what the memory held:"
        yield from (f"  {clock(first, 2)}  {clock(last, 2)}" for first, last in details["memory"])
        return
    import numpy as np

    from hf_video.inference import top_frames

    frames, explained = details["frames"], f"{one_line(details['label'])} ({details['score']:.1%})"
    shares = np.array([frame["share"] for frame in frames])
    top = top_frames(shares)
    if top and shares.max() < _ABOUT_EVEN * shares.mean():
        yield (
            f"all frames speak about evenly for {explained}: none has more than {shares.max():.1%} of the evidence, "
            f"and an even share is {shares.mean():.1%}"
        )
    else:
        yield f"what spoke most for {explained}:" if top else f"nothing in the clip speaks for {explained}"
        yield from (f"  {frames[each]['share']:6.1%}  {clock(frames[each]['seconds'], 2)}" for each in top)
    if settings.output is None:
        yield "--output DIR draws where in each frame"
