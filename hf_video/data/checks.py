"""Checks videos: which are broken, and which rows share seconds of one, in a data set."""

import logging
import math
import os
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from operator import itemgetter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import torch
from accelerate.utils import gather_object
from datasets import Dataset, DatasetDict, concatenate_datasets
from torch import distributed
from torch.utils.data import DataLoader
from tqdm.auto import tqdm

from hf_video.io import check_regular_file
from hf_video.processes import is_first_process
from hf_video.reading import VideoReadError, probe_video
from hf_video.reading.frame_streaming import stream_frames
from hf_video.reading.sources import is_url, kind_of

from .folders import listed
from .rows import (
    BYTES,
    DURATION,
    FRAMES,
    KNOWN_COLUMNS,
    VideoRows,
    arrow_column,
    is_multi_label,
    label_ids,
    label_names,
    open_video,
    rows_without,
)

logger = logging.getLogger(__name__)

# Videos that are opened before training at most, about ten seconds of work.
MAX_OPENED = 5000
# Video, start and end in seconds; None stands for the beginning or the end of the video.
Clip = tuple[str, float | None, float | None]


@dataclass(frozen=True, slots=True)
class InspectedVideo:
    """The result of reading a video: its path, or its name if it is stored inside a data set; why it cannot be read,
    if it cannot; its number of frames, 0 if unknown; its duration in seconds, None if unknown; and the size of a frame
    in pixels, 0 if unknown."""

    path: str
    error: str | None = None
    num_frames: int = 0
    duration: float | None = None
    height: int = 0
    width: int = 0


def inspect_videos(
    dataset: Dataset,
    *,
    decode: bool = True,
    num_workers: int = 1,
    progress: bool = True,
    chosen: Sequence[int] | None = None,
) -> list[InspectedVideo]:
    """Reads every video of a data set once.

    Args:
        dataset: rows of `load_video_dataset`. A segment without a frame is an error of its video.
        decode: whether to decode all frames; otherwise only the structure of a file and one frame are read.
        num_workers: number of processes that read videos; this one reads them if it is 0 or 1.
        progress: whether to show a progress bar.
        chosen: the numbers of the videos to read, in the order of their first rows; by default all.

    Returns:
        One entry for each video, in the order of their first rows. A broken video raises no error.
    """
    videos = _Videos(dataset, decode)
    numbers = range(len(videos)) if chosen is None else chosen
    loader = DataLoader(
        videos,
        batch_size=None,
        sampler=numbers,
        num_workers=num_workers if num_workers > 1 else 0,
        generator=torch.Generator(),  # a loader draws a seed, which must not be missing in the draws of a training
    )
    return list(tqdm(loader, total=len(numbers), desc="Checking videos", disable=None if progress else True))


def find_broken(dataset: Dataset, *, decode: bool, num_workers: int = 1, at_most: int | None = None) -> dict[str, str]:
    """The videos that cannot be read, with the reasons; of more than `at_most`, a random sample is read. If there are
    several processes, each of them must call this: each reads its share of the videos, and all get the whole answer.
    """
    rank, num_processes = _processes()
    num_videos = pc.count_distinct(arrow_column(dataset, "video")).as_py()
    chosen = np.arange(num_videos)
    if at_most is not None and num_videos > at_most:
        chosen = np.sort(np.random.default_rng(0).choice(num_videos, at_most, replace=False))
    share = chosen[rank::num_processes].tolist()
    inspected = inspect_videos(dataset, decode=decode, num_workers=num_workers, progress=rank == 0, chosen=share)
    found = [(number, video.path, video.error) for number, video in zip(share, inspected, strict=True) if video.error]
    return {path: error for _, path, error in sorted(gather_object(found) if num_processes > 1 else found)}


def read_durations(rows: Dataset, *, share: bool = False) -> dict[str, float]:
    """The seconds of the videos of rows, 0 for one without times, such as a folder of frames: those that a table has
    in the column `duration`, and of the others those that files say, which several threads open. With `share` several
    processes call this with the same rows, and each opens its share. Raises `VideoReadError`."""
    rows = rows.select(VideoRows(rows).first)
    known = rows[DURATION][:] if DURATION in rows.column_names else [None] * len(rows)
    unknown = [number for number, duration in enumerate(known) if duration is None]
    rank, num_processes = _processes() if share else (0, 1)

    def read(number: int) -> tuple[int, float, Exception | None]:
        try:
            return number, probe_video(open_video(rows[number])).duration or 0.0, None
        except (OSError, ValueError) as error:
            return number, 0.0, error

    with ThreadPoolExecutor(min(16, 2 * (os.cpu_count() or 1))) as threads:
        found = [*threads.map(read, unknown[rank::num_processes])]
    for number, duration, error in sorted(gather_object(found) if num_processes > 1 else found, key=itemgetter(0)):
        if error is not None:
            raise error
        known[number] = duration
    return dict(zip(rows["video"][:], known, strict=True))


def _processes() -> tuple[int, int]:
    """The number of this process, and how many there are."""
    together = distributed.is_available() and distributed.is_initialized()
    return (distributed.get_rank(), distributed.get_world_size()) if together else (0, 1)


class _Videos(torch.utils.data.Dataset):
    """The results for the videos of a data set, in the order of their first rows."""

    def __init__(self, dataset: Dataset, decode: bool):
        self.listed, self.decode = VideoRows(dataset), decode
        self.files, self.times = (
            dataset.select_columns([name for name in names if name in dataset.column_names])
            for names in (("video", BYTES), ("start", "end"))
        )

    def __len__(self) -> int:
        return len(self.listed)

    def __getitem__(self, video: int) -> InspectedVideo:
        rows = self.listed.rows(video)
        segments = [*zip(*self.times[rows].values(), strict=True)] if self.times.column_names else []
        # Of an instant the frame after it counts.
        segments = [(start, None if start == end else end) for start, end in segments]
        return inspect_video(self.files[rows[0]], segments, self.decode)


def inspect_video(
    video: Mapping[str, object], segments: Sequence[tuple[float | None, float | None]], decode: bool
) -> InspectedVideo:
    """What a file holds. What keeps it from being read is in the result. Frames that are decoded, in one pass, must be
    as many, and as large, as readers expect."""
    path = str(video["video"])
    try:
        opened = open_video(video)
        kind = kind_of(opened)
        if kind == "path":
            check_regular_file(path)
        metadata = probe_video(opened, segments)
        size, count = (metadata.height or 0, metadata.width or 0), 0
        for frame in stream_frames(opened, source_fps=1 if kind == "folder" else None) if decode else ():
            count += 1
            if frame.image.shape[:2] != size:
                raise VideoReadError(
                    f"{path}: frame {frame.number} is {frame.image.shape[:2]} (height, width), the first is {size}."
                )
        if decode and count != metadata.total_num_frames:
            raise VideoReadError(
                f"{path} is damaged: it has packets for {metadata.total_num_frames} frames, but gives {count}."
            )
    except Exception as error:  # Damaged files make decoders raise errors of any kind.
        return InspectedVideo(path, _tell_reason(path, error))
    return InspectedVideo(path, None, metadata.total_num_frames, metadata.duration, *size)


def _tell_reason(video: str, error: Exception) -> str:
    """A sentence that says why a video cannot be read, and names it."""
    # Names of frames that are not UTF-8 have characters that no file of text can hold.
    reason = (str(error) or type(error).__name__).encode(errors="backslashreplace").decode()
    return reason if video in reason else f"{video} cannot be read: {reason}"


def write_manifest(
    path: Path, splits: Mapping[str, Dataset], inspected: Sequence[InspectedVideo], folder: Path
) -> None:
    """Writes the rows of `load_video_dataset` whose video can be read as a Parquet file, with all their columns and
    `frames` and `duration` of the videos. Paths below the `folder`, where the file will be, count from there. If no
    video can be read, it is a `ValueError`."""
    rows = concatenate_datasets([*splits.values()])
    of_row = VideoRows(rows).of_row
    label = "labels" if is_multi_label(rows) else "label"
    ids, names = arrow_column(rows, label), pa.array(label_names(rows), pa.string())
    is_multi = pa.types.is_list(ids.type)
    table = pa.table(
        {
            "path": pa.array([*_paths_from(folder, inspected)], pa.string()).take(of_row),
            "split": pa.array([name for name, split in splits.items() for _ in range(len(split))], pa.string()),
            label: pa.ListArray.from_arrays(ids.offsets, names.take(ids.values)) if is_multi else names.take(ids),
            "start": arrow_column(rows, "start"),
            "end": arrow_column(rows, "end"),
            DURATION: pa.array([video.duration for video in inspected], pa.float64()).take(of_row),
            FRAMES: pa.array([video.num_frames for video in inspected], pa.int64()).take(of_row),
            **{name: arrow_column(rows, name) for name in rows.column_names if name not in KNOWN_COLUMNS},
        }
    )
    table = table.filter(pa.array([video.error is None for video in inspected]).take(of_row))
    if not len(table):
        raise ValueError(f"No video can be read. One of them: {inspected[0].error}")
    pq.write_table(table, path)


def _paths_from(folder: Path, videos: Sequence[InspectedVideo]) -> Iterator[str]:
    """The paths of videos from a folder if they lie below it, through links or not; else the whole paths."""
    resolve = cache(os.path.realpath)
    prefix = f"{folder}{os.sep}"
    for video in (each.path for each in videos):
        if is_url(video) or video.startswith(prefix):
            yield video.removeprefix(prefix)
        else:
            place, name = os.path.split(video)
            whole = Path(resolve(place), name)
            yield str(whole.relative_to(resolve(folder))) if whole.is_relative_to(resolve(folder)) else video


@dataclass(frozen=True)
class RepeatedClip:
    """A clip that is in several rows: its video, start and end, None for those of the video; the splits that have it;
    and its different labels, each the name of a class, or several names joined by semicolons."""

    video: str
    start: float | None
    end: float | None
    splits: tuple[str, ...]
    labels: tuple[str, ...]

    def __str__(self) -> str:
        segment = "" if self.start is self.end is None else f", {self.start or 0.0} s to {self.end or 'its end'}"
        labels = " or ".join(filter(None, self.labels))
        return f"{self.video}{segment} ({', '.join(self.splits)}{': ' + labels if labels else ''})"


@dataclass(frozen=True)
class Overlap:
    """Seconds of a video that two rows of different splits have, to the end of the video if the end is None. Rows
    count from 1 in their splits."""

    video: str
    start: float
    end: float | None
    splits: tuple[str, str]
    rows: tuple[int, int]

    def __str__(self) -> str:
        places = " and ".join(f"{split} row {row}" for split, row in zip(self.splits, self.rows, strict=True))
        return f"{self.video}, {self.start:g} s to {'its end' if self.end is None else f'{self.end:g} s'} ({places})"


def find_repeated_clips(splits: Mapping[str, Dataset]) -> list[RepeatedClip]:
    """The clips, segments of one path, that have different labels or are in several splits, which have names."""
    found: dict[tuple[str, float, float], list[tuple[str, str]]] = defaultdict(list)
    for name, split in splits.items():
        names = label_names(split)
        for clip, ids in zip(spans(split), label_ids(split), strict=True):
            found[clip].append((name, ";".join(sorted(names[label] for label in ids))))
    clips = [
        RepeatedClip(
            video,
            start or None,
            None if math.isinf(end) else end,
            tuple(dict.fromkeys(split for split, _ in places)),
            tuple(dict.fromkeys(label for _, label in places)),
        )
        for (video, start, end), places in found.items()
        if len(places) > 1
    ]
    return [clip for clip in clips if len(clip.splits) > 1 or len(clip.labels) > 1]


def repetition_warnings(clips: Sequence[RepeatedClip]) -> list[str]:
    """A sentence for each kind of repetition that occurs, with the number of clips and the first three of them."""
    kinds = {
        "in several splits, so that what is learned is also measured": lambda clip: len(clip.splits) > 1,
        "listed with different labels": lambda clip: len(clip.labels) > 1,
    }
    repeated = {kind: [clip for clip in clips if fits(clip)] for kind, fits in kinds.items()}
    return [
        f"{len(found)} clip{'s are' if len(found) > 1 else ' is'} {kind}: {listed(found, limit=3, separator='; ')}."
        for kind, found in repeated.items()
        if found
    ]


def find_overlaps(splits: Mapping[str, Dataset]) -> list[Overlap]:
    """The pairs of rows of different splits, which have names, that share seconds of a video, known by its path. Of
    the rows of a split that a later row overlaps, the one that ends last is given."""
    rows = [
        (video, start, name, number, end)
        for name, split in splits.items()
        for number, (video, start, end) in enumerate(spans(split), 1)
    ]
    # By video and split, the row that ends last of those that began, with its end.
    begun: dict[str, dict[str, tuple[float, int]]] = defaultdict(dict)
    found = []
    for video, start, split, row, end in sorted(rows):
        for other, (other_end, other_row) in begun[video].items():
            if other != split and other_end > start:
                last = min(end, other_end)
                until = None if math.isinf(last) else last
                found.append(Overlap(video, start, until, (other, split), (other_row, row)))
        if split not in begun[video] or begun[video][split][0] < end:
            begun[video][split] = end, row
    return found


def tell_overlaps(overlaps: Sequence[Overlap]) -> str:
    """A sentence with the number of overlaps, the first three of them, and the way out."""
    count = f"{len(overlaps)} pairs of rows" if len(overlaps) > 1 else "1 pair of rows"
    return (
        f"Splits share seconds of a video, so that what is learned or chosen by is also measured, in {count}: "
        f"{listed(overlaps, limit=3, separator='; ')}. Change or remove one row of each pair; or leave a split out: a "
        "training without validation holds a part out, and one without test reports on the validation."
    )


def clip_times(dataset: Dataset) -> list[Clip]:
    times = (dataset[name][:] if name in dataset.column_names else [None] * len(dataset) for name in ("start", "end"))
    return [*zip(dataset["video"][:], *times, strict=True)]


def spans(dataset: Dataset) -> list[tuple[str, float, float]]:
    return [(video, *span(*times)) for video, *times in clip_times(dataset)]


def span(start: float | None, end: float | None) -> tuple[float, float]:
    """Start and end in seconds; infinity stands for the end of the video."""
    return start or 0.0, math.inf if end is None else end


def readable_videos(data: Mapping[str, Dataset], on_error: str) -> tuple[Mapping[str, Dataset], list[str]]:
    """The data without the videos that cannot be opened, and a sentence about each of these; with `on_error="error"`
    they are a `ValueError`. Videos of which a table knows the `frames` are not opened; of more than `MAX_OPENED`
    others a random sample is. Each process opens its share, so all must call this."""
    rows = concatenate_datasets([*data.values()])
    if FRAMES in rows.column_names:
        unknown = rows.select([row for row, frames in enumerate(rows[FRAMES][:]) if frames is None])
        _say(f"{len(rows) - len(unknown):,} rows say how many frames their videos have, which are not checked again.")
        rows = unknown
    if not len(rows):
        return data, []
    if (num_videos := len(VideoRows(rows))) > MAX_OPENED:
        _say(
            f"There are {num_videos:,} videos, and {MAX_OPENED:,} of them, drawn at random, are opened before "
            "training. `hf-video inspect DATA --output videos.parquet` checks all of them once; training on "
            "videos.parquet then opens none."
        )
    broken = find_broken(rows, decode=False, at_most=MAX_OPENED)
    if not broken:
        return data, []
    reasons = list(broken.values())
    if on_error == "error":
        listed = "\n  ".join(reasons[:5] + (["..."] if len(reasons) > 5 else []))
        raise ValueError(
            f"{len(reasons)} videos cannot be read; repair them, take them out of the data, or go on without them "
            f"with --on-error skip:\n  {listed}"
        )
    kept = DatasetDict({name: split.select(rows_without(split, broken)) for name, split in data.items()})
    for name, split in kept.items():
        if not len(split):
            raise ValueError(f"No video of the {name} split can be read, for example {data[name]['video'][0]}.")
    return kept, reasons


def _say(sentence: str) -> None:
    """Logs a sentence on the first process of a launcher."""
    if is_first_process():
        logger.warning(sentence)
