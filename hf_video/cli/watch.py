"""Watch a video or a live stream and answer questions about all of it so far. The model reads frame by frame and keeps
a memory of constant size: time per frame and memory do not grow with the video.

The first question decides what the model keeps of each frame. Other questions are answered from what the memory kept.
A resumed memory keeps the question that it was started with.
Ctrl-C, SIGTERM and SIGHUP stop after the current frame, answer once more, and save.
Only a video file can be gone on with by --resume: a stream does not come again.

example: hf-video watch lecture.mp4 --model my_model --question "what is shown?" --every 30s --memory lecture.memory
         hf-video watch lecture.mp4 --model my_model --question "who speaks?" --memory lecture.memory --resume
"""

import json
import math
import os
import re
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from hf_video.inference.inference_settings import FrameSourceSettings, JsonLinesSettings, TrainedModelSettings
from hf_video.loading.models import load_answering_model
from hf_video.output_folders import check_output_file, collected
from hf_video.reading.sources import public_url
from hf_video.settings import AtLeast1, Mark, Positive, Settings, setting
from hf_video.texts import clock, count

from .command import command
from .signals import stop_requests


@dataclass(kw_only=True)
class WatchSettings(FrameSourceSettings, TrainedModelSettings, JsonLinesSettings, Settings):
    """Watching"""

    video: Annotated[str, Mark(form="word", names="videos")] = setting(
        help="Video file or its URL, RTSP, RTMP, UDP or TCP stream, camera (/dev/video0), or folder of frames.",
        metavar="VIDEO",
    )
    question: Annotated[list[str], Mark(form="flags")] = setting(
        help="What to answer; may be given several times.", metavar="TEXT"
    )
    prompt: str = setting("{}", 'Text around a question, with {} in its place, such as "Question: {} Short answer:".')
    every: str | None = setting(
        None, "Answer each time so much of the video has passed: 30s, 5m, 1h; by default only at the end.", "TIME"
    )
    fps: Positive[float] = setting(1.0, "Frames to look at in each second.")
    memory: Path | None = setting(None, "File for the memory, saved with each answer.", "FILE")
    resume: bool = setting(False, "Go on from the memory in FILE, after the frames that it has seen.")
    chunk_size: AtLeast1[int] = setting(8, "Frames in the vision tower at once.")
    max_new_tokens: AtLeast1[int] | None = setting(None, "Tokens of an answer; by default as the model was saved.")
    num_beams: AtLeast1[int] | None = setting(None, "Beams of the search; by default as the model was saved.")


def seconds(word: str) -> float:
    """The seconds of a time such as 30s, 5m or 1.5h; a number without a unit counts seconds."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", word)
    if match is None or not float(match[1]):
        raise ValueError(f"--every is {word!r}; a time such as 30s, 5m or 1h is expected.")
    return float(match[1]) * {"s": 1, "m": 60, "h": 3600}.get(match[2], 1)


@command(help="answer questions about a long video")
def run(settings: WatchSettings) -> int:
    """Prints answers with the time in the video. Writes the memory at the end, also after an interrupt."""
    every = None if settings.every is None else seconds(settings.every)
    _check_files(settings)

    from hf_video.reading.frame_streaming import stream_frames

    frames, watcher = stream_frames(settings.video, settings.fps, settings.source_fps), _make_watcher(settings)
    # The time of every frame that was looked at.
    times = array("d")
    already_seen, answered_at = watcher.frames_seen, 0
    errors: list[Exception] = []
    with stop_requests("stopping after this frame") as stopped:

        def images() -> Iterator[Any]:
            for frame in stopped.until_stopped(frames):
                times.append(frame.seconds)
                if len(times) > already_seen:
                    yield frame.image

        with collected(errors):
            for seen in watcher.watch(images()):
                now, before = times[seen - 1], times[max(seen - 2, 0)]
                if every is not None and _periods(now, every) > _periods(before, every):
                    with collected(errors):
                        _save_memory(watcher, settings)
                    _print_answers(watcher, now, settings)
                    answered_at = seen
                if stopped:
                    break
        is_covered = len(times) >= watcher.frames_seen
        if not is_covered and not stopped and not errors:
            raise ValueError(
                f"{settings.memory} has seen {watcher.frames_seen} frames, but {settings.video} has {len(times)} of "
                f"them at --fps {settings.fps:g}: continue with the same video and rate."
            )
        if is_covered and watcher.frames_seen:
            with collected(errors):
                if watcher.frames_seen > already_seen:
                    _save_memory(watcher, settings)
            with collected(errors):
                if answered_at != watcher.frames_seen:
                    # The decoder is ahead of the memory by the rest of a chunk.
                    _print_answers(watcher, times[watcher.frames_seen - 1], settings)
    if errors:
        raise errors[0]
    if stopped:
        raise stopped.interrupt(_what_was_kept(settings, watcher.frames_seen))
    return 0


def _periods(now: float, every: float) -> int:
    """Number of times that `every` has passed. The addend is for rounding: 0.3 / 0.1 is below 3."""
    return math.floor(now / every + 1e-6)


def _check_files(settings: WatchSettings) -> None:
    """Refuses options that would fail, or overwrite a file, after hours of watching."""
    memory = settings.memory
    if "{}" not in settings.prompt:
        raise ValueError(f"--prompt {settings.prompt!r} has no {{}} for the question.")
    if not settings.resume:
        if memory is not None and memory.exists():
            raise ValueError(f"{memory} exists already. Go on from it with --resume, or choose another name.")
        check_output_file("memory", None if memory is None else str(memory))
    elif memory is None or not memory.is_file():
        raise ValueError("--resume continues from a memory: name it with --memory FILE.")
    elif not os.path.isfile(settings.video):
        name = public_url(settings.video)
        raise ValueError(f"--resume needs a video file: the frames of {name} do not come again.")


def _make_watcher(settings: WatchSettings) -> Any:
    from hf_video.inference.video_watcher import VideoWatcher
    from hf_video.models.memory_bank_qformer.memory_bank import MemoryBank

    memory, origin = MemoryBank.load(str(settings.memory)) if settings.resume else None, _origin(settings)
    if memory is not None:
        _check_origin(memory.origin, origin, settings)
    model, processor = load_answering_model(settings.model, device=settings.device, dtype=settings.dtype)
    questions = [settings.prompt.replace("{}", question) for question in settings.question]
    # A memory keeps its question: merged frames hold what the first question found in them.
    in_mind = questions[0] if memory is None else memory.origin.get("text", questions[0])
    watcher = VideoWatcher(model, processor, in_mind, chunk_size=settings.chunk_size, memory=memory)
    for question in questions:
        watcher.check_question(question)
    watcher.memory.origin |= origin
    return watcher


def _origin(settings: WatchSettings) -> dict[str, Any]:
    """What the memory of a video says of it, without passwords."""
    if not os.path.isfile(settings.video):
        return {"video": public_url(settings.video), "fps": settings.fps}
    return {"video": os.path.basename(settings.video), "bytes": os.path.getsize(settings.video), "fps": settings.fps}


def _check_origin(kept: dict[str, Any], given: dict[str, Any], settings: WatchSettings) -> None:
    """Refuses a video or rate other than those that the memory was begun with. A video may be renamed, or grow."""
    has_grown = kept.get("video") == given["video"] and kept.get("bytes", 0) < given["bytes"]
    is_same = kept.get("bytes") == given["bytes"] or has_grown
    if "video" in kept and not (is_same and kept["fps"] == settings.fps):
        begun = f"{kept['video']} of {kept.get('bytes', 0)} bytes at --fps {kept['fps']:g}"
        raise ValueError(f"{settings.memory} was started with {begun}: continue with it, or choose another --memory.")


def _print_answers(watcher: Any, now: float, settings: WatchSettings) -> None:
    given = {name: getattr(settings, name) for name in ("max_new_tokens", "num_beams")}
    options = {name: value for name, value in given.items() if value is not None} | {"do_sample": False}
    for question in settings.question:
        answer = watcher.answer(settings.prompt.replace("{}", question), **options)
        if settings.json:
            line = {"seconds": round(now, 3), "frames": watcher.frames_seen, "question": question}
            print(json.dumps(line | {"answer": answer}), flush=True)
        else:
            about = f"{question} " if len(settings.question) > 1 else ""
            print(f"{clock(now)}  {about}{answer}", flush=True)


def _save_memory(watcher: Any, settings: WatchSettings) -> None:
    if settings.memory is not None:
        watcher.save(settings.memory)


def _what_was_kept(settings: WatchSettings, frames_seen: int) -> str:
    if settings.memory is None or not frames_seen:
        return "Without --memory nothing is kept."
    kept = f"{settings.memory} holds {count(frames_seen, 'frame')} so far"
    return f"{kept}; run the same command with --resume to continue." if os.path.isfile(settings.video) else f"{kept}."
