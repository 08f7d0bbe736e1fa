"""Decode every video of a data set and report splits, classes, durations, sizes, broken files, rows outside of their
video, exact copies, and clips that have different labels or are in several splits. The exit code is 1 if a video is
broken, a row has no frame of its video, or splits share seconds of one. --output keeps what was found: other commands
take that file as DATA, and a training on it opens no video before the first step.
"""

from __future__ import annotations

import json
import math
import os
from collections import Counter
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from hf_video.data.folders import listed
from hf_video.data.video_settings import LabelledVideosSettings, annotation_choices
from hf_video.output_folders import check_output_file
from hf_video.settings import AtLeast1, Settings, setting
from hf_video.texts import count

from .command import command


@dataclass(kw_only=True)
class InspectSettings(LabelledVideosSettings, Settings):
    """Data"""

    quick: bool = setting(False, "Read the structure and one frame of each file only.")
    output: str | None = setting(
        None, "Also write the rows that can be read, as a new Parquet FILE: DATA of other commands.", "FILE"
    )
    num_workers: AtLeast1[int] | None = setting(None, "Threads that read videos; by default one a core.")
    json: bool = setting(False, "Print one JSON object.")


SOME_BROKEN = 1


@command(help="read every video of a data set: counts, durations, classes, broken files")
def run(settings: InspectSettings) -> int:
    """Prints the findings, and writes the table if there is to be one."""
    output = check_output_file("output", settings.output)
    if output is not None and output.suffix.lower() != ".parquet":
        raise ValueError(f"--output {output}: a Parquet file is written; choose a name that ends in .parquet.")

    from datasets import concatenate_datasets

    from hf_video.data import inspect_videos, load_video_dataset
    from hf_video.data.checks import (
        find_copies,
        find_overlaps,
        find_repeated_clips,
        find_shared_seconds,
        repetition_warnings,
        tell_copies,
        tell_overlaps,
        tell_rows_outside,
        tell_shared_seconds,
        write_manifest,
    )
    from hf_video.data.rows import BYTES
    from hf_video.data.video_dataset import left_out
    from hf_video.io import replace_file

    choices = {"point_width": 0.0} | annotation_choices(settings)
    options: dict[str, Any] = {"columns": None, "min_classes": 1, "choices": choices}
    splits = load_video_dataset(settings.data, video_root=settings.video_root, **options)
    rows = concatenate_datasets([*splits.values()])
    if output is not None and BYTES in rows.column_names:
        raise ValueError(
            f"The videos are stored inside {settings.data}, and --output lists files: leave it out, and give the data "
            "to other commands as they are."
        )
    num_workers = settings.num_workers or os.cpu_count() or 1
    videos = inspect_videos(rows, decode=not settings.quick, num_workers=num_workers)
    copies = find_copies(splits)
    outside, overlaps = [row for video in videos for row in video.rows_outside], find_overlaps(splits)
    repeated, shared = find_repeated_clips(splits, copies), find_shared_seconds(splits)
    readable = [video for video in videos if video.error is None]
    durations = sorted(video.duration for video in readable if video.duration is not None)
    num_frames = [video.num_frames for video in readable]
    result: dict[str, Any] = {
        "data": settings.data,
        "num_videos": len(videos),
        "num_clips": len(rows),
        "splits": {name: _count_classes(split) for name, split in splits.items()},
        "class_seconds": {name: _seconds_of_classes(split) for name, split in splits.items()},
        "seconds": {
            "total": sum(durations),
            "shortest": durations[0] if durations else None,
            "median": median(durations) if durations else None,
            "longest": durations[-1] if durations else None,
        },
        "num_frames": {"fewest": min(num_frames, default=None), "most": max(num_frames, default=None)},
        "sizes": sorted({f"{video.width}x{video.height}" for video in readable}),
        "left_out": left_out(settings.data),
        "broken": {video.path: video.error for video in videos if video.error is not None},
        "rows_outside": [asdict(row) for row in outside],
        "copies": copies,
        "repeated": [asdict(clip) for clip in repeated],
        "overlaps": [asdict(overlap) for overlap in overlaps],
        "shared_seconds": [asdict(each) for each in shared],
    }
    if output is not None:
        folder = output.absolute().parent
        replace_file(output, lambda unfinished: write_manifest(unfinished, splits, videos, folder))
        result["manifest"] = str(output)
    lines = [_describe(result), *tell_rows_outside(outside)]
    lines += [*([tell_copies(copies)] if copies else []), *repetition_warnings(repeated)]
    lines += [tell_shared_seconds(shared)] if shared else []
    lines += [tell_overlaps(overlaps)] if overlaps else []
    print(json.dumps(result) if settings.json else "\n".join(lines))
    return SOME_BROKEN if result["broken"] or overlaps or any(video.empty_rows for video in videos) else 0


def _count_classes(split: Any) -> dict[str, int]:
    from hf_video.data import label_names
    from hf_video.data.rows import label_ids

    counts = Counter(label for labels in label_ids(split) for label in labels)
    return {name: counts[label] for label, name in enumerate(label_names(split))}


def _seconds_of_classes(split: Any) -> dict[str, float]:
    """The seconds of the rows of each class, if all rows have an end."""
    from hf_video.data import label_names
    from hf_video.data.rows import label_ids, times_of

    starts, ends = times_of(split)
    seconds, names = ends - starts, label_names(split)
    found = dict.fromkeys(names, 0.0)
    for of_row, ids in zip(seconds.tolist(), label_ids(split), strict=True):
        for label in ids:
            found[names[label]] += of_row
    return found if math.isfinite(seconds.sum()) else {}


def _total(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.1f} min" if seconds < 3600 else f"{seconds / 3600:.1f} h"


def _describe(result: dict[str, Any]) -> str:
    seconds, frames, sizes = result["seconds"], result["num_frames"], result["sizes"]
    broken = result["broken"]
    of_which = f" ({len(broken)} broken)" if broken else ""
    lines = [f"{count(result['num_videos'], 'video')}{of_which}, {count(result['num_clips'], 'labelled clip')}"]
    if seconds["median"] is not None:
        lines.append(
            f"duration  {seconds['shortest']:.2f} to {seconds['longest']:.2f} s, median {seconds['median']:.2f} s, "
            f"{_total(seconds['total'])} in all"
        )
    if sizes:
        lines.append(f"frames    {frames['fewest']} to {frames['most']}")
        lines.append(f"size      {', '.join(sizes[:5])}{f' and {len(sizes) - 5} more' if len(sizes) > 5 else ''}")
    width = max(len(name) for counts in result["splits"].values() for name in counts)
    digits = max(len(str(number)) for counts in result["splits"].values() for number in counts.values())
    for split, counts in result["splits"].items():
        lines += ["", f"{split}: {count(sum(counts.values()), 'clip')} of {count(len(counts), 'class', 'classes')}"]
        of_classes = result["class_seconds"][split]
        ends = {name: f"  {_total(seconds):>8}" for name, seconds in of_classes.items()}
        lines += [f"  {name:{width}}  {number:>{digits}}{ends.get(name, '')}" for name, number in counts.items()]
    if others := result["left_out"]:
        lines += ["", f"{len(others)} left out, because the name is not that of a video: {listed(others)}"]
    lines += ["", f"{count(len(broken), 'broken video')}{':' if broken else ''}"]
    lines += [f"  {error}" for error in broken.values()]
    if "manifest" in result:
        lines += ["", f"manifest  {result['manifest']}"]
    return "\n".join(lines)
