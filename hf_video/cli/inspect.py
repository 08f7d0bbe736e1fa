"""`hf-video inspect`: reads every video of a data set, describes the data, lists broken videos, writes a manifest."""

from __future__ import annotations

import json
import os
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_video.data.video_settings import LabelledVideosSettings
from hf_video.output_folders import check_output_file
from hf_video.settings import AtLeast1, Settings, setting

from .command import Command

if TYPE_CHECKING:
    from datasets import DatasetDict

    from hf_video.data.inspection import InspectedVideo


@dataclass(kw_only=True)
class InspectSettings(LabelledVideosSettings, Settings):
    """Data"""

    quick: bool = setting(False, "Read the structure and one frame of each file only.")
    output: str | None = setting(
        None,
        "Also write a manifest, which other commands take as DATA and trust: a Parquet FILE, which must not exist.",
        "FILE",
    )
    num_workers: AtLeast1[int] | None = setting(None, "Processes that read videos; by default one a core.")
    json: bool = setting(False, "Print one JSON object.")


SOME_BROKEN = 1


def run(settings: InspectSettings) -> int:
    """Prints the findings, and writes the manifest if there is to be one."""
    output = check_output_file("output", settings.output)
    if output is not None and output.suffix.lower() != ".parquet":
        raise ValueError(f"--output {output}: a manifest is a Parquet file; choose a name that ends in .parquet.")

    from hf_video.data import load_video_dataset
    from hf_video.data.inspection import check_can_list
    from hf_video.data.manifest import without_checks
    from hf_video.data.repeated_videos import find_overlaps, find_repeated_clips, repetition_warnings, tell_overlaps

    splits = without_checks(load_video_dataset(settings.data, video_root=settings.video_root))
    if output is not None:
        check_can_list(splits)
    findings = inspect_video(settings, splits, output)
    listed = splits if output is None else load_video_dataset(output)
    repeated, overlaps = find_repeated_clips(listed), find_overlaps(listed)
    durations = sorted(findings.durations)
    result: dict[str, Any] = {
        "data": settings.data,
        "num_videos": findings.num_videos,
        "num_clips": sum(map(len, splits.values())),
        "splits": {name: _count_classes(split) for name, split in splits.items()},
        "seconds": {
            "total": sum(durations),
            "shortest": durations[0] if durations else None,
            "median": durations[len(durations) // 2] if durations else None,
            "longest": durations[-1] if durations else None,
        },
        "num_frames": {"fewest": findings.fewest_frames, "most": findings.most_frames},
        "sizes": sorted(findings.sizes),
        "broken": findings.broken,
        "repeated": [asdict(clip) for clip in repeated],
        "overlaps": [asdict(overlap) for overlap in overlaps],
        **({"manifest": str(output)} if output is not None else {}),
    }
    lines = [_describe(result), *repetition_warnings(repeated), *([tell_overlaps(overlaps)] if overlaps else [])]
    print(json.dumps(result) if settings.json else "\n".join(lines))
    return SOME_BROKEN if result["broken"] or overlaps else 0


@dataclass
class _Findings:
    """What is kept of the videos after they were read."""

    num_videos: int = 0
    durations: array[float] = field(default_factory=lambda: array("d"))
    fewest_frames: int | None = None
    most_frames: int | None = None
    sizes: set[str] = field(default_factory=set)
    broken: dict[str, str] = field(default_factory=dict)

    def watch(self, videos: Iterable[InspectedVideo]) -> Iterator[InspectedVideo]:
        for video in videos:
            self.num_videos += 1
            if video.error is not None:
                self.broken[video.path] = video.error
            else:
                self.sizes.add(f"{video.width}x{video.height}")
                self.fewest_frames = min(self.fewest_frames or video.num_frames, video.num_frames)
                self.most_frames = max(self.most_frames or 0, video.num_frames)
                if video.duration is not None:
                    self.durations.append(video.duration)
            yield video


def inspect_video(settings: InspectSettings, splits: DatasetDict, output: Path | None) -> _Findings:
    """Reads the videos, and writes the manifest meanwhile."""
    from datasets import concatenate_datasets

    from hf_video.data.inspection import iterate_inspected, write_manifest
    from hf_video.io import replace_file

    findings = _Findings()
    num_workers = settings.num_workers or os.cpu_count() or 1
    rows = concatenate_datasets([*splits.values()])
    videos = iterate_inspected(rows, decode=not settings.quick, digest=output is not None, num_workers=num_workers)
    if output is None:
        for _ in findings.watch(videos):
            pass
        return findings
    data = Path(settings.video_root or settings.data).expanduser().absolute()
    write = partial(
        write_manifest,
        splits=splits,
        inspected=findings.watch(videos),
        base=data if data.is_dir() else data.parent,
        decoded=not settings.quick,
        folder=output.absolute().parent,
    )
    replace_file(output, write)
    return findings


def _count_classes(split: Any) -> dict[str, int]:
    from hf_video.data import label_names
    from hf_video.data.columns import label_ids

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
    if "manifest" in result:
        lines += ["", f"manifest  {result['manifest']}"]
    return "\n".join(lines)


COMMAND = Command(
    name="inspect",
    settings=InspectSettings,
    run=run,
    help="read every video of a data set: counts, durations, classes, broken files",
    description="Decode every video of a data set and report splits, classes, durations, sizes, broken files, and "
    "clips that have different labels or stand in several splits. The exit code is 1 where a video is broken, or "
    "splits share seconds of one. --output keeps what was found: other commands take that manifest as DATA and "
    "check no video again.",
)
