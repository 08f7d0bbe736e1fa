"""`hf-video inspect`: reads every video of a data set, describes the data and lists broken videos."""

from __future__ import annotations

import argparse
import json
import os
from dataclasses import asdict
from typing import Any

from .command_line import add_flags

SOME_BROKEN = 1


def add_parser(commands: argparse._SubParsersAction) -> argparse.ArgumentParser:
    """Declares the command."""
    return commands.add_parser(
        "inspect",
        help="read every video of a data set: counts, durations, classes, broken files",
        description="Decode every video of a data set and report splits, classes, durations, sizes, broken files, and "
        "clips that have different labels or stand in several splits. The exit code is 1 where a video is broken.",
    )


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declares its options."""
    from .settings import INSPECT

    add_flags(parser, INSPECT, positional="data")


def run(args: argparse.Namespace) -> int:
    """Prints the findings; changes nothing."""
    from datasets import concatenate_datasets

    from hf_video.data import inspect_videos, load_video_dataset
    from hf_video.data.repeated_clips import find_repeated_clips, repetition_warnings

    splits = load_video_dataset(args.data, video_root=args.video_root)
    rows = concatenate_datasets([*splits.values()])
    videos = inspect_videos(rows, decode=not args.quick, num_workers=args.num_workers or os.cpu_count() or 1)
    repeated = find_repeated_clips(splits)
    readable = [video for video in videos if video.error is None]
    durations = sorted(video.duration for video in readable if video.duration is not None)
    result: dict[str, Any] = {
        "data": args.data,
        "num_videos": len(videos),
        "num_clips": len(rows),
        "splits": {name: _count_classes(split) for name, split in splits.items()},
        "seconds": {
            "total": sum(durations),
            "shortest": durations[0] if durations else None,
            "median": durations[len(durations) // 2] if durations else None,
            "longest": durations[-1] if durations else None,
        },
        "num_frames": {
            "fewest": min((video.num_frames for video in readable), default=None),
            "most": max((video.num_frames for video in readable), default=None),
        },
        "sizes": sorted({f"{video.width}x{video.height}" for video in readable}),
        "broken": {video.path: video.error for video in videos if video.error is not None},
        "repeated": [asdict(clip) for clip in repeated],
    }
    print(json.dumps(result) if args.json else "\n".join([_describe(result), *repetition_warnings(repeated)]))
    return SOME_BROKEN if result["broken"] else 0


def _count_classes(split: Any) -> dict[str, int]:
    from hf_video.data import label_names
    from hf_video.data.labels import label_ids

    names = label_names(split)
    counts = dict.fromkeys(names, 0)
    for labels in label_ids(split):
        for label in labels:
            counts[names[label]] += 1
    return counts


def _describe(result: dict[str, Any]) -> str:
    seconds, frames, sizes = result["seconds"], result["num_frames"], result["sizes"]
    lines = [f"{result['num_videos']} videos, {result['num_clips']} labelled clips"]
    if seconds["median"] is not None:
        lines.append(
            f"duration  {seconds['shortest']:.2f} to {seconds['longest']:.2f} s, median {seconds['median']:.2f} s, "
            f"{seconds['total'] / 3600:.2f} h in all"
        )
    if sizes:
        lines.append(f"frames    {frames['fewest']} to {frames['most']}")
        lines.append(f"size      {', '.join(sizes[:5])}{f' and {len(sizes) - 5} more' if len(sizes) > 5 else ''}")
    width = max(len(name) for counts in result["splits"].values() for name in counts)
    for split, counts in result["splits"].items():
        lines += ["", f"{split}: {sum(counts.values())} clips of {len(counts)} classes"]
        lines += [f"  {name:{width}}  {count}" for name, count in counts.items()]
    broken = result["broken"]
    lines += ["", f"{len(broken)} broken videos{':' if broken else ''}"]
    lines += [f"  {error}" for error in broken.values()]
    return "\n".join(lines)
