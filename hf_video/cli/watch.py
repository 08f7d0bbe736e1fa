"""`hf-video watch`: answers questions about a video while it is read, from a memory of constant size."""

import argparse
import json
import math
import re
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hf_video.drawing.texts import clock
from hf_video.loading.models import load_answering_model

from .command_line import add_flags
from .stopping import collected, stop_requests

DESCRIPTION = """\
Watch a video or a live stream and answer questions about all of it so far. The model reads frame by frame and keeps
a memory of constant size: time per frame and memory do not grow with the video.

The first question decides what the model keeps of each frame. Other questions are answered from what the memory kept.
A resumed memory keeps the question that it was begun with.
Ctrl-C, SIGTERM and SIGHUP stop after the current frame, answer once more, and save.
Only a video file can be gone on with by --resume and shown by --picture: a stream does not come again.
"""
EPILOG = """\
example: hf-video watch lecture.mp4 --model my_model --question "what is shown?" --every 30s --memory lecture.memory
         hf-video watch lecture.mp4 --model my_model --question "who speaks?" --memory lecture.memory --resume
"""


def add_parser(commands: argparse._SubParsersAction) -> argparse.ArgumentParser:
    """Declares the command."""
    parser = commands.add_parser(
        "watch",
        help="answer questions about a long video",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--question", action="append", required=True, metavar="TEXT", help="what to answer; may be given several times"
    )
    return parser


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declares its options."""
    from .command_settings import WATCH

    add_flags(parser, WATCH, positional="video")


def seconds(word: str) -> float:
    """The seconds of a time such as 30s, 5m or 1.5h; a number without a unit counts seconds."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", word)
    if match is None or not float(match[1]):
        raise ValueError(f"--every is {word!r}; a time such as 30s, 5m or 1h is expected.")
    return float(match[1]) * {"s": 1, "m": 60, "h": 3600}.get(match[2], 1)


def run(args: argparse.Namespace) -> int:
    """Prints answers with the time in the video. Writes memory and picture at the end, also after an interrupt."""
    args.every = None if args.every is None else seconds(args.every)
    args.memory, args.picture = (None if name is None else Path(name) for name in (args.memory, args.picture))
    _check_files(args)
    frames = _open_video(args)
    watcher = _make_watcher(args)

    # Number in the file and time of every frame that was looked at.
    numbers, times = array("q"), array("d")
    already_seen, answered_at = watcher.frames_seen, 0
    errors: list[Exception] = []
    with stop_requests("stopping after this frame") as stopped:

        def images() -> Iterator[Any]:
            for frame in stopped.until_stopped(frames):
                numbers.append(frame.number)
                times.append(frame.seconds)
                if len(times) > already_seen:
                    yield frame.image

        with collected(errors):
            for seen in watcher.watch(images()):
                now, before = times[seen - 1], times[max(seen - 2, 0)]
                if args.every is not None and _periods(now, args.every) > _periods(before, args.every):
                    with collected(errors):
                        _save_memory(watcher, args)
                    _print_answers(watcher, now, args)
                    answered_at = seen
                if stopped:
                    break
        is_covered = len(times) >= watcher.frames_seen
        if not is_covered and not stopped and not errors:
            raise ValueError(
                f"{args.memory} has seen {watcher.frames_seen} frames, but {args.video} has {len(times)} of them at "
                f"--fps {args.fps:g}: go on with the video and the rate that it was begun with."
            )
        if is_covered and watcher.frames_seen:
            # The decoder is ahead of the memory by the rest of a chunk.
            del numbers[watcher.frames_seen :], times[watcher.frames_seen :]
            with collected(errors):
                if watcher.frames_seen > already_seen:
                    _save_memory(watcher, args)
            with collected(errors):
                if answered_at != watcher.frames_seen:
                    _print_answers(watcher, times[-1], args)
            with collected(errors):
                _draw_picture(watcher, args, numbers, times)
    if errors:
        raise errors[0]
    if stopped:
        raise stopped.interrupt(_what_was_kept(args, watcher.frames_seen))
    return 0


def _periods(now: float, every: float) -> int:
    """Number of times that `every` has passed. The addend is for rounding: 0.3 / 0.1 is below 3."""
    return math.floor(now / every + 1e-6)


def _check_files(args: argparse.Namespace) -> None:
    """Refuses options that would fail, or overwrite a file, after hours of watching."""
    if args.resume and args.memory is None:
        raise ValueError("--resume goes on from a memory: say which with --memory FILE.")
    if args.resume and not args.memory.is_file():
        raise ValueError(f"There is no memory {args.memory} to resume. Leave --resume out to begin one.")
    if args.memory is not None and args.memory.exists() and not args.resume:
        raise ValueError(f"{args.memory} exists already. Go on from it with --resume, or choose another name.")
    if args.picture is not None and args.picture.exists():
        raise ValueError(f"{args.picture} exists already; choose another name.")
    used: dict[Path, str] = {}
    for name, path in (("the video", Path(args.video)), ("--memory", args.memory), ("--picture", args.picture)):
        if path is not None and (other := used.setdefault(path.resolve(), name)) != name:
            raise ValueError(f"{other} and {name} are one file, {path}: give each its own.")
    for path in (args.memory, args.picture):
        if path is not None and not path.absolute().parent.is_dir():
            raise ValueError(f"{path.absolute().parent} is no folder to write {path.name} to.")
    if "{}" not in args.prompt:
        raise ValueError(f"--prompt {args.prompt!r} has no {{}} for the question.")
    if args.resume and not _is_file(args):
        raise ValueError(f"--resume goes on with a video file; the frames of {_name(args)} do not come again.")
    if args.picture is not None and not _is_file(args):
        raise ValueError(f"--picture reads frames of a video file once more; {_name(args)} is none.")


def _is_file(args: argparse.Namespace) -> bool:
    return Path(args.video).is_file()


def _name(args: argparse.Namespace) -> str:
    """The video in messages and in the memory, without passwords."""
    from hf_video.reading.sources import public_url

    return public_url(args.video)


def _open_video(args: argparse.Namespace) -> Iterator[Any]:
    """The frames of the video at the rate of --fps."""
    from hf_video.reading import frame_streaming

    return frame_streaming.stream_frames(args.video, args.fps, args.source_fps)


def _make_watcher(args: argparse.Namespace) -> Any:
    from hf_video import MemoryBank, VideoWatcher
    from hf_video.drawing.memory_picture import check_picture_format

    if args.picture is not None:
        check_picture_format(args.picture)
    memory = MemoryBank.load(args.memory) if args.resume else None
    origin = _origin(args)
    if memory is not None:
        _check_origin(memory.origin, origin, args)
    model, processor = load_answering_model(args.model, device=args.device, dtype=args.dtype)
    questions = [_ask(question, args) for question in args.question]
    # A memory keeps its question: merged frames hold what the first question found in them.
    in_mind = questions[0] if memory is None else memory.origin.get("text", questions[0])
    watcher = VideoWatcher(model, processor, in_mind, chunk_size=args.chunk_size, memory=memory)
    for question in questions:
        watcher.check_question(question)
    watcher.memory.origin |= origin
    return watcher


def _origin(args: argparse.Namespace) -> dict[str, Any]:
    if not _is_file(args):
        return {"video": _name(args), "fps": args.fps}
    video = Path(args.video)
    return {"video": video.name, "bytes": video.stat().st_size, "fps": args.fps}


def _check_origin(kept: dict[str, Any], given: dict[str, Any], args: argparse.Namespace) -> None:
    """Refuses a video or rate other than those that the memory was begun with. A video may be renamed, or grow."""
    if kept.get("fps", args.fps) != args.fps:
        raise ValueError(f"{args.memory} was begun with --fps {kept['fps']:g}: go on with it, not {args.fps:g}.")
    if "video" in kept and "bytes" not in kept:
        raise ValueError(f"{args.memory} was begun with {kept['video']}, which is no file and does not come again.")
    has_grown = kept.get("video") == given["video"] and kept.get("bytes", 0) < given["bytes"]
    if not has_grown and kept.get("bytes", given["bytes"]) != given["bytes"]:
        raise ValueError(
            f"{args.memory} was begun with {kept['video']} of {kept['bytes']} bytes, but {args.video} has "
            f"{given['bytes']}: go on with the video that it was begun with, or choose another --memory."
        )


def _ask(question: str, args: argparse.Namespace) -> str:
    return args.prompt.replace("{}", question)


def _print_answers(watcher: Any, now: float, args: argparse.Namespace) -> None:
    given = {name: getattr(args, name) for name in ("max_new_tokens", "num_beams")}
    options = {name: value for name, value in given.items() if value is not None} | {"do_sample": False}
    for question in args.question:
        answer = watcher.answer(_ask(question, args), **options)
        if args.json:
            line = {"seconds": round(now, 3), "frames": watcher.frames_seen, "question": question}
            print(json.dumps(line | {"answer": answer}), flush=True)
        else:
            about = f"{question} " if len(args.question) > 1 else ""
            print(f"{clock(now)}  {about}{answer}", flush=True)


def _save_memory(watcher: Any, args: argparse.Namespace) -> None:
    if args.memory is not None:
        watcher.save(args.memory)


def _draw_picture(watcher: Any, args: argparse.Namespace, numbers: array, times: array) -> None:
    if args.picture is not None:
        from hf_video import draw_memory
        from hf_video.reading import read_video

        def read_images(frames: Any) -> Any:
            return read_video(args.video, lambda metadata: [numbers[frame] for frame in frames])[0]

        draw_memory(watcher.memory, args.picture, read_images, times)


def _what_was_kept(args: argparse.Namespace, frames_seen: int) -> str:
    if args.memory is None or not frames_seen:
        return "Without --memory nothing is kept."
    kept = f"{args.memory} holds the {frames_seen} frames so far"
    return f"{kept}; run the same command with --resume to go on." if _is_file(args) else f"{kept}."
