"""Checks videos: which are broken, and which rows share seconds of one, in a data set."""

import logging
import math
import os
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from accelerate.utils import gather_object
from datasets import Dataset, DatasetDict, concatenate_datasets
from torch import distributed
from tqdm.auto import tqdm

from hf_video.io import check_regular_file, sha256_of
from hf_video.processes import is_first_process
from hf_video.reading import VideoReader, VideoReadError, probe_video
from hf_video.reading.frame_streaming import stream_frames
from hf_video.reading.sources import kind_of
from hf_video.texts import clock, count

from .folders import listed
from .loader import map_ahead
from .rows import BYTES, DURATION, FRAMES, VideoRows, label_ids, label_names, open_video, times_of

logger = logging.getLogger(__name__)

# Videos that are opened before training at most, about ten seconds of work.
MAX_OPENED = 5000


@dataclass(frozen=True)
class _Span:
    """A part of a video: start and end in seconds, None for those of the video."""

    video: str
    start: float | None
    end: float | None

    def __str__(self) -> str:
        return f"{self.video}, {self.start or 0:g} s to {'its end' if self.end is None else f'{self.end:g} s'}"


@dataclass(frozen=True)
class RowOutside(_Span):
    """A row that holds no frame of its video, or ends after it, where it is cut off: its class, as of `RepeatedClip`,
    the duration of the video in seconds, and how many frames of it the row holds."""

    label: str
    duration: float
    num_frames: int

    def __str__(self) -> str:
        end = self.duration if self.end is None else self.end
        start, until, lasts = (clock(time, 2).removeprefix("0:") for time in (self.start or 0, end, self.duration))
        return f"{self.video} (lasts {lasts}), {start} to {until}{f' ({self.label})' if self.label else ''}"


def rows_outside(video: str, reader: VideoReader, rows: Iterable[tuple[float, float, str]]) -> Iterator[RowOutside]:
    """Those of the rows of a video, start, end and class of each, that hold no frame of it, or end more than a frame
    after it."""
    latest = reader.end + reader.end / len(reader)
    for start, end, label in rows:
        try:
            # Of an instant the frame after it counts. Frames of a folder have no times.
            frames = len(reader.segment(start or None, None if end in (start, math.inf) else end))
        except VideoReadError:
            frames = 0
        if not frames or 0 < latest < end < math.inf:
            yield RowOutside(video, start, _end_or_none(end), label, float(reader.end), frames)


def tell_rows_outside(rows: Sequence[RowOutside]) -> list[str]:
    """A sentence for each kind that occurs."""
    kinds = {
        "without a frame of the video": [row for row in rows if not row.num_frames],
        "cut off at the end of the video": [row for row in rows if row.num_frames],
    }
    return [
        f"{count(len(found), 'row')} {kind}: {listed(found, limit=10, separator='; ')}."
        for kind, found in kinds.items()
        if found
    ]


@dataclass(frozen=True, slots=True)
class InspectedVideo:
    """The result of reading a video: its path, or its name if it is stored inside a data set; why it cannot be read,
    if it cannot; its number of frames, 0 if unknown; its duration in seconds, None if unknown; the size of a frame in
    pixels, 0 if unknown; and the rows that are, in part or as a whole, outside of it."""

    path: str
    error: str | None = None
    num_frames: int = 0
    duration: float | None = None
    height: int = 0
    width: int = 0
    rows_outside: tuple[RowOutside, ...] = ()

    @property
    def empty_rows(self) -> list[RowOutside]:
        """The rows that hold no frame."""
        return [row for row in self.rows_outside if not row.num_frames]


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
        dataset: rows of `load_video_dataset`.
        decode: whether to decode all frames; otherwise only the structure of a file and one frame are read.
        num_workers: number of threads that read videos.
        progress: whether to show a progress bar.
        chosen: the numbers of the videos to read, in the order of their first rows; by default all.

    Returns:
        One entry for each video, in the order of their first rows. A broken video raises no error.
    """
    videos, times, labels = VideoRows(dataset), spans(dataset), _labels(dataset)
    files = dataset.select_columns([name for name in ("video", BYTES) if name in dataset.column_names])

    def inspect(video: int) -> InspectedVideo:
        rows = videos.rows(video)
        return inspect_video(files[rows[0]], [(*times[row][1:], labels[row]) for row in rows], decode)

    numbers = range(len(videos)) if chosen is None else chosen
    found = map_ahead(inspect, numbers, num_workers if num_workers > 1 else 0, 2 * num_workers)
    return list(tqdm(found, total=len(numbers), desc="Checking videos", disable=None if progress else True))


def find_broken(
    dataset: Dataset, *, decode: bool, num_workers: int = 1, at_most: int | None = None
) -> tuple[dict[str, str], list[RowOutside]]:
    """The videos that cannot be read, with the reasons, and the rows that hold no frame of theirs; of more than
    `at_most` videos, those of a sample. All processes call it."""
    rank, num_processes = _processes()
    chosen = np.arange(len(VideoRows(dataset)))
    if at_most is not None and len(chosen) > at_most:
        chosen = np.sort(np.random.default_rng(0).choice(len(chosen), at_most, replace=False))
    share = chosen[rank::num_processes].tolist()
    inspected = inspect_videos(dataset, decode=decode, num_workers=num_workers, progress=rank == 0, chosen=share)
    found = [each for each in zip(share, inspected, strict=True) if each[1].error or each[1].rows_outside]
    videos = [video for _, video in sorted(gather_object(found) if num_processes > 1 else found, key=itemgetter(0))]
    empty = [row for video in videos for row in video.empty_rows]
    return {video.path: video.error for video in videos if video.error}, empty


def readable_rows(dataset: Dataset, broken: Collection[str], empty: Iterable[RowOutside]) -> list[int]:
    """The numbers of the rows that can be read, by what `find_broken` gives."""
    without = {(row.video, row.start, row.end) for row in empty}
    return [
        row
        for row, (video, start, end) in enumerate(spans(dataset))
        if video not in broken and (video, start, _end_or_none(end)) not in without
    ]


def warn_of_empty_rows(empty: Sequence[RowOutside]) -> None:
    """Logs the rows that are left out, as they hold no frame, on the first process of a launcher."""
    for sentence in tell_rows_outside(empty) if is_first_process() else ():
        logger.warning(f"Left out: {sentence}")


def read_durations(rows: Dataset, *, share: bool = False, skip: bool = False) -> dict[str, float]:
    """The seconds of each video, 0 for one without times; those that no table says, of its file. With `share` all
    processes call it, and each opens its share; with `skip` a video that cannot be read has 0, too."""
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
        if error is not None and not skip:
            raise error
        known[number] = duration
    return dict(zip(rows["video"][:], known, strict=True))


def _processes() -> tuple[int, int]:
    """The number of this process, and how many there are."""
    together = distributed.is_available() and distributed.is_initialized()
    return (distributed.get_rank(), distributed.get_world_size()) if together else (0, 1)


def inspect_video(
    video: Mapping[str, object], rows: Sequence[tuple[float, float, str]], decode: bool
) -> InspectedVideo:
    """What a file holds, of one pass; the frames must be as many, and as large, as readers expect. For `rows` see
    `rows_outside`."""
    path, error = str(video["video"]), None
    try:
        opened = open_video(video)
        kind = kind_of(opened)
        if kind == "path":
            check_regular_file(path)
        with VideoReader(opened) as reader:
            metadata, outside = reader.metadata, tuple(rows_outside(path, reader, rows))
        size, count = (metadata.height or 0, metadata.width or 0), 0
        for frame in stream_frames(opened, source_fps=1 if kind == "folder" else None) if decode else ():
            count += 1
            if frame.image.shape[:2] != size:
                error = f"frame {frame.number} is {frame.image.shape[:2]} (height, width), the first is {size}."
                break
        else:
            if not decode or count == metadata.total_num_frames:
                return InspectedVideo(path, None, metadata.total_num_frames, metadata.duration, *size, outside)
            error = f"it is damaged: it has packets for {metadata.total_num_frames} frames, but gives {count}."
    except Exception as caught:  # Damaged files make decoders raise errors of any kind.
        error = str(caught) or type(caught).__name__
    return InspectedVideo(path, error if path in error else f"{path} cannot be read: {error}")


def write_manifest(
    path: Path, splits: Mapping[str, Dataset], inspected: Sequence[InspectedVideo], folder: Path
) -> None:
    """Writes the rows that can be read as a Parquet file that will be in a folder."""
    rows = concatenate_datasets([*splits.values()])
    of_row, known = VideoRows(rows).of_row, rows.with_format("arrow")[:]
    (label,) = {"label", "labels"}.intersection(rows.column_names)
    ids, names = known[label].combine_chunks(), pa.array(label_names(rows), pa.string())
    prefix = f"{folder}{os.sep}"
    columns = {
        "path": pa.array([video.path.removeprefix(prefix) for video in inspected], pa.string()).take(of_row),
        "split": pa.array([name for name, split in splits.items() for _ in range(len(split))], pa.string()),
        label: names.take(ids) if label == "label" else pa.ListArray.from_arrays(ids.offsets, names.take(ids.values)),
        DURATION: pa.array([video.duration for video in inspected], pa.float64()).take(of_row),
        FRAMES: pa.array([video.num_frames for video in inspected], pa.int64()).take(of_row),
    }
    others = [name for name in rows.column_names if name not in (*columns, "video")]
    table = pa.table(columns | {name: known[name] for name in others})
    broken = {video.path for video in inspected if video.error is not None}
    empty = [row for video in inspected for row in video.empty_rows]
    kept = readable_rows(rows, broken, empty)
    if not kept:
        raise ValueError(f"No row can be read. One of them: {inspected[0].error or empty[0]}")
    pq.write_table(table.take(kept), path)


@dataclass(frozen=True)
class RepeatedClip(_Span):
    """A clip that is in several rows: the splits that have it, and its different labels, each the name of a class, or
    several names joined by semicolons."""

    splits: tuple[str, ...]
    labels: tuple[str, ...]

    def __str__(self) -> str:
        clip = self.video if self.start is self.end is None else super().__str__()
        labels = " or ".join(filter(None, self.labels))
        return f"{clip} ({', '.join(self.splits)}{': ' + labels if labels else ''})"


@dataclass(frozen=True)
class Overlap(_Span):
    """Seconds of a video that two rows of different splits have. Rows count from 1 in their splits."""

    splits: tuple[str, str]
    rows: tuple[int, int]

    def __str__(self) -> str:
        places = " and ".join(f"{split} row {row}" for split, row in zip(self.splits, self.rows, strict=True))
        return f"{super().__str__()} ({places})"


@dataclass(frozen=True)
class SharedSeconds(_Span):
    """Seconds of a video that two rows of a split with different labels have."""

    labels: tuple[str, str]

    def __str__(self) -> str:
        return f"{super().__str__()} ({' and '.join(self.labels)})"


def find_copies(splits: Mapping[str, Dataset], *, at_most: int | None = None) -> dict[str, str]:
    """The local files with the same bytes as another whose path without its ending sorts before, by path, and that
    path. None is looked for among more than `at_most` files, because those of the same size are read."""
    files = {path for split in splits.values() if BYTES not in split.column_names for path in split["video"][:]}
    if at_most is not None and len(files) > at_most:
        return {}
    of_size: dict[int, list[str]] = defaultdict(list)
    for file in sorted(files, key=os.path.splitext):  # "a - Copy.mp4" after "a.mp4"
        if os.path.isfile(file) and (size := os.path.getsize(file)):
            of_size[size].append(file)
    copies: dict[str, str] = {}
    for same_size in of_size.values():
        first: dict[str, str] = {}
        for file in same_size if len(same_size) > 1 else ():
            if (original := first.setdefault(sha256_of(Path(file)), file)) != file:
                copies[file] = original
    return copies


def tell_copies(copies: Mapping[str, str]) -> str:
    pairs = listed((f"{copy} of {original}" for copy, original in copies.items()), limit=3, separator="; ")
    return f"{count(len(copies), 'exact copy', 'exact copies')} of another video: {pairs}."


def find_repeated_clips(splits: Mapping[str, Dataset], copies: Mapping[str, str] | None = None) -> list[RepeatedClip]:
    """The clips, segments of one file or its `copies`, that have different labels or are in several splits."""
    found: dict[tuple[str, float, float], tuple[dict[str, None], dict[str, None]]] = defaultdict(lambda: ({}, {}))
    for name, split in splits.items():
        for (video, start, end), label in zip(spans(split), _labels(split), strict=True):
            of_clip = found[(copies or {}).get(video, video), start, end]
            of_clip[0][name] = of_clip[1][label] = None
    return [
        RepeatedClip(video, start or None, _end_or_none(end), tuple(of_clip[0]), tuple(of_clip[1]))
        for (video, start, end), of_clip in found.items()
        if max(map(len, of_clip)) > 1
    ]


def repetition_warnings(clips: Sequence[RepeatedClip]) -> list[str]:
    """A sentence for each kind of repetition that occurs."""
    kinds = {
        "is in several splits, so that what is learned is also measured": [c for c in clips if len(c.splits) > 1],
        "has different labels in different rows": [c for c in clips if len(c.labels) > 1],
    }
    return [
        f"The same clip {kind} ({count(len(found), 'clip')}): {listed(found, limit=3, separator='; ')}."
        for kind, found in kinds.items()
        if found
    ]


def find_overlaps(splits: Mapping[str, Dataset]) -> list[Overlap]:
    """The pairs of rows of different splits that share seconds of a video: of a split, that which ends last."""
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
                until = _end_or_none(min(end, other_end))
                found.append(Overlap(video, start, until, (other, split), (other_row, row)))
        begun[video][split] = max(begun[video].get(split, (0.0, 0)), (end, row), key=itemgetter(0))
    return found


def tell_overlaps(overlaps: Sequence[Overlap]) -> str:
    return (
        "Splits share seconds of a video, so that what is learned or chosen by is also measured, in "
        f"{count(len(overlaps), 'pair')} of rows: {listed(overlaps, limit=3, separator='; ')}. Change or remove one "
        "row of each pair; or leave a split out: a training without validation holds a part out, and one without test "
        "reports on the validation."
    )


def find_shared_seconds(splits: Mapping[str, Dataset]) -> list[SharedSeconds]:
    """The seconds that rows of a split with different labels share. The same clip with two labels is not among them:
    see `find_repeated_clips`."""
    found = []
    for split in splits.values():
        begun: list[tuple[str, float, float, str]] = []
        for video, start, end, label in sorted(
            (*span, label) for span, label in zip(spans(split), _labels(split), strict=True)
        ):
            begun = [row for row in begun if row[0] == video and row[2] > start]
            for _, other_start, other_end, other in begun:
                if other != label and (other_start, other_end) != (start, end) and start < end:
                    found.append(SharedSeconds(video, start, _end_or_none(min(end, other_end)), (other, label)))
            begun.append((video, start, end, label))
    return found


def tell_shared_seconds(shared: Sequence[SharedSeconds]) -> str:
    return (
        f"Rows of different classes share seconds of a video ({count(len(shared), 'pair')}): "
        f"{listed(shared, limit=3, separator='; ')}. A model of frames then gives each class a score of its own; if "
        "only one class can be right at a time, correct the list."
    )


def spans(dataset: Dataset) -> list[tuple[str, float, float]]:
    """The video of each row, and start and end in seconds; infinity stands for the end of the video."""
    starts, ends = times_of(dataset)
    return [*zip(dataset["video"][:], starts.tolist(), ends.tolist(), strict=True)]


def _labels(dataset: Dataset) -> list[str]:
    """The name of the class of each row, or the names, joined by semicolons; empty if they have none."""
    names = label_names(dataset)
    return [";".join(sorted(names[label] for label in ids)) if names else "" for ids in label_ids(dataset)]


def _end_or_none(end: float) -> float | None:
    return None if math.isinf(end) else end


def readable_videos(data: Mapping[str, Dataset], on_error: str) -> tuple[Mapping[str, Dataset], list[str]]:
    """The data without the videos that cannot be opened, and a sentence about each of these, and without the rows that
    hold no frame of theirs; with `on_error="error"` both are a `ValueError`. All processes call it."""
    rows, sentences = concatenate_datasets([*data.values()]), []
    if FRAMES in rows.column_names:
        unknown = np.flatnonzero([frames is None for frames in rows[FRAMES][:]])
        if known := len(rows) - len(unknown):
            sentences.append(
                f"{count(known, 'row')} of a table that `hf-video inspect` wrote: these videos are not checked again."
            )
        rows = rows.select(unknown)
    if (num_videos := len(VideoRows(rows))) > MAX_OPENED:
        sentences.append(
            f"There are {num_videos:,} videos, and {MAX_OPENED:,} of them, drawn at random, are opened before "
            "training. `hf-video inspect DATA --output videos.parquet` checks all of them once; training on "
            "videos.parquet then opens none."
        )
    for sentence in sentences if is_first_process() else ():
        logger.warning(sentence)
    broken, empty = find_broken(rows, decode=False, at_most=MAX_OPENED)
    if not broken and not empty:
        return data, []
    if on_error == "error":
        line = "\n  "
        kinds: dict[str, Sequence[object]] = {
            f"{count(len(broken), 'video')} cannot be read: repair what is broken": [*broken.values()],
            f"{count(len(empty), 'row')} without a frame of the video: correct the times": empty,
        }
        way_out = "take it out of the data, or go on without it with --on-error skip"
        told = (f"{kind}, {way_out}:{line}{listed(found, separator=line)}" for kind, found in kinds.items() if found)
        raise ValueError("\n".join(told))
    if broken and is_first_process():
        logger.warning(f"{count(len(broken), 'video')} left out, not readable: {listed(broken, limit=3)}.")
    warn_of_empty_rows(empty)
    kept = DatasetDict({name: split.select(readable_rows(split, broken, empty)) for name, split in data.items()})
    for name, split in kept.items():
        if not len(split):
            raise ValueError(f"No row of the {name} split can be read, for example of {data[name]['video'][0]}.")
    return kept, list(broken.values())
