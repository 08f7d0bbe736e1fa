"""What `hf-video extract` and `predict` do with `--engine`: one row a video, in Parquet files."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING

from hf_video.training.output_folder import RunLock

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from hf_video.data.video_listing import ListedVideo
    from hf_video.jobs.tasks import Task

# Without --engine these have no effect; the others are those of Ray.
_OF_BULK = ("part_size", "retry_errors")
_OF_RAY = ("ray_address", "min_decoders", "max_decoders", "models", "num_gpus")
# Errors that are printed.
_SHOWN = 10


def check_options(args: argparse.Namespace) -> None:
    """Refuses options that have no effect.

    Raises:
        ValueError: an option is given without the engine that it is for.
    """
    for name in (*_OF_BULK, *_OF_RAY):
        if name in args.given and args.engine is None:
            raise ValueError(f"{args.given[name][0]} has no effect without --engine local or --engine ray.")
    for name in _OF_RAY:
        if name in args.given and args.engine != "ray":
            raise ValueError(f"{args.given[name][0]} has no effect without --engine ray.")
    if args.engine == "ray" and find_spec("ray") is None:
        raise ImportError("--engine ray needs Ray, which is not installed: pip install 'hf-video-models[ray]'")


def model_device(args: argparse.Namespace) -> str:
    """The device on which this process loads the model. With Ray, other processes compute with it."""
    return "cpu" if args.engine == "ray" else args.device


def run_bulk_command(
    args: argparse.Namespace, videos: Sequence[ListedVideo], task: Task, model: PreTrainedModel
) -> int:
    """Does the videos that are left with the engine of `args`, prints what there is, and returns the exit code.

    Raises:
        ValueError, OSError: see `hf_video.jobs.run`; or Ray is missing.
        KeyboardInterrupt: Ctrl-C was pressed; the message says how many videos are done.
    """
    from hf_video.jobs.parquet_parts import ParquetParts
    from hf_video.jobs.runner import Engine, LocalEngine, run

    engine: Engine
    if args.engine == "ray":
        from hf_video.jobs.ray_engine import RayEngine

        of_ray = {name: getattr(args, name) for name in ("min_decoders", "max_decoders", "models", "num_gpus")}
        engine = RayEngine(model, args.batch_size, address=args.ray_address, device=args.device, **of_ray)
    else:
        engine = LocalEngine(model, args.batch_size, reading_threads=getattr(args, "reading_threads", None))
    sink = ParquetParts(args.output, task.key(model), args.part_size)
    sink.check()
    with RunLock() as lock:
        if sink.path is not None:
            sink.path.mkdir(parents=True, exist_ok=True)
            lock.take(sink.path)
        if args.retry_errors:
            sink.forget_errors()
        report = run(task, videos, sink, engine)
    num_rows, errors = len(sink.finished) + report.num_new, sink.known_errors() + report.errors
    print(f"{sink.place}\n{num_rows} rows, {report.num_new} of them new")
    if errors:
        print(f"{len(errors)} of {num_rows} videos failed:", file=sys.stderr)
        for path, reason in errors[:_SHOWN]:
            print(f"  {path}\n    {reason}", file=sys.stderr)
        if len(errors) > _SHOWN:
            print("  ...\nThe column error has all reasons; --retry-errors tries these videos again.", file=sys.stderr)
    return 1 if errors else 0
