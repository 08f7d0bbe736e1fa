"""What `hf-video extract` and `predict` do with `--engine`: one row a video, in Parquet files."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING

from .output_folder import RunLock

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from hf_video.data.video_listing import ListedVideo
    from hf_video.jobs.bulk_parts import PartFolder
    from hf_video.jobs.bulk_run import BulkReport, Engine
    from hf_video.jobs.bulk_tasks import BulkTask

# Without --engine these have no effect; the others are those of Ray.
_OF_BULK = ("part_size", "retry_errors")
_OF_RAY = ("ray_address", "min_decoders", "max_decoders", "models", "num_gpus")


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
    args: argparse.Namespace, videos: Sequence[ListedVideo], task: BulkTask, model: PreTrainedModel
) -> int:
    """Does the videos that are left with the engine of `args`, prints what there is, and returns the exit code.

    Raises:
        ValueError, OSError: see `run_bulk`; or Ray is missing.
        KeyboardInterrupt: Ctrl-C was pressed; the message says how many videos are done.
    """
    from hf_video.jobs.bulk_parts import PartFolder
    from hf_video.jobs.bulk_run import local_engine, run_bulk

    folder = PartFolder(args.output)
    engine: Engine
    if args.engine == "ray":
        engine = _ray_engine(args, task, model, folder)
    else:
        engine = local_engine(task, model, folder, args.batch_size)
    key = task.key(model)
    folder.check(key)
    with RunLock() as lock:
        if folder.path is not None:
            folder.path.mkdir(parents=True, exist_ok=True)
            lock.take(folder.path)
        report = run_bulk(videos, folder, key, engine, part_size=args.part_size, retry_errors=args.retry_errors)
    _print(report, folder.place)
    return 1 if report.num_errors else 0


def _ray_engine(args: argparse.Namespace, task: BulkTask, model: PreTrainedModel, folder: PartFolder) -> Engine:
    from hf_video.jobs.bulk_ray import RaySettings, ray_engine

    settings = RaySettings(
        address=args.ray_address,
        min_decoders=args.min_decoders,
        max_decoders=args.max_decoders,
        models=args.models,
        num_gpus=args.num_gpus,
        device=args.device,
    )
    return ray_engine(task, model, folder, args.batch_size, settings)


def _print(report: BulkReport, place: str) -> None:
    print(f"{place}\n{report.num_videos} rows, {report.num_new} of them new")
    if report.num_errors:
        print(f"{report.num_errors} of {report.num_videos} videos failed:", file=sys.stderr)
        for path, reason in report.errors:
            print(f"  {path}\n    {reason}", file=sys.stderr)
        if report.num_errors > len(report.errors):
            print("  ...\nThe column error has all reasons; --retry-errors tries these videos again.", file=sys.stderr)
