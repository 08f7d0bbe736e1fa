"""Checks videos: which are broken, and which rows share seconds of one, in a data set or with those of a training."""

import json
import math
import os
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import torch
from accelerate.utils import gather_object
from datasets import Dataset, concatenate_datasets
from torch import distributed
from torch.utils.data import DataLoader
from tqdm.auto import tqdm

from hf_video.io import check_regular_file, read_own_json, replace_text
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
)

TRAINED_VIDEOS_FILE = "trained_videos.json"
_COLUMNS = ("path", "start", "end")
# Start and end in seconds; None stands for the beginning or the end of the video.
Segment = tuple[float | None, float | None]


@dataclass(frozen=True, slots=True)
class InspectedVideo:
    """The result of reading a video.

    Attributes:
        path: the file, the folder of frames, or the name of a video that is stored inside a data set.
        error: why the video cannot be read, None if it can be.
        num_frames: number of frames, 0 if unknown.
        duration: duration in seconds, None if unknown.
        height, width: size of a frame in pixels, 0 if unknown.
    """

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
    together = distributed.is_available() and distributed.is_initialized()
    rank, num_processes = (distributed.get_rank(), distributed.get_world_size()) if together else (0, 1)
    num_videos = pc.count_distinct(arrow_column(dataset, "video")).as_py()
    if at_most is None or num_videos <= at_most:
        chosen = np.arange(num_videos)
    else:
        chosen = np.sort(np.random.default_rng(0).choice(num_videos, at_most, replace=False))
    share = chosen[rank::num_processes].tolist()
    found = [
        (number, video.path, video.error)
        for number, video in zip(
            share,
            inspect_videos(dataset, decode=decode, num_workers=num_workers, progress=rank == 0, chosen=share),
            strict=True,
        )
        if video.error is not None
    ]
    everywhere = gather_object(found) if together else found
    return {path: error for _, path, error in sorted(everywhere)}


def read_durations(rows: Dataset, *, share: bool = False) -> dict[str, float]:
    """The seconds of the videos of rows, 0 for one without times, such as a folder of frames: those that a table has
    in the column `duration`, and of the others those that files say, which several threads open.

    Args:
        rows: One row of each video.
        share: Whether several processes call this with the same rows, so that each opens its share.

    Raises:
        VideoReadError: A video cannot be read.
    """
    known = rows[DURATION][:] if DURATION in rows.column_names else [None] * len(rows)
    unknown = [number for number, duration in enumerate(known) if duration is None]
    together = share and distributed.is_available() and distributed.is_initialized()
    rank, num_processes = (distributed.get_rank(), distributed.get_world_size()) if together else (0, 1)

    def read(number: int) -> tuple[int, float, Exception | None]:
        try:
            return number, probe_video(open_video(rows[number])).duration or 0.0, None
        except (OSError, ValueError) as error:
            return number, 0.0, error

    with ThreadPoolExecutor(min(16, 2 * (os.cpu_count() or 1))) as threads:
        found = [*threads.map(read, unknown[rank::num_processes])]
    for number, duration, error in sorted(gather_object(found) if together else found, key=lambda each: each[0]):
        if error is not None:
            raise error
        known[number] = duration
    return dict(zip(rows["video"][:], known, strict=True))


class _Videos(torch.utils.data.Dataset):
    """The results for the videos of a data set, in the order of their first rows."""

    def __init__(self, dataset: Dataset, decode: bool):
        self.listed = VideoRows(dataset)
        has_times = {"start", "end"} <= {*dataset.column_names} and any(
            arrow_column(dataset, name).null_count < len(dataset) for name in ("start", "end")
        )
        self.times = dataset.select_columns(["start", "end"]) if has_times else None
        self.files = dataset.select_columns([name for name in ("video", BYTES) if name in dataset.column_names])
        self.decode = decode

    def __len__(self) -> int:
        return len(self.listed)

    def __getitem__(self, video: int) -> InspectedVideo:
        rows = self.listed.rows(video)
        segments: list[Segment] = []
        if self.times is not None:
            found = self.times[rows]
            segments = [*zip(found["start"], found["end"], strict=True)]
        return inspect_video(self.files[rows[0]], segments, self.decode)


def inspect_video(video: Mapping[str, object], segments: list[Segment], decode: bool) -> InspectedVideo:
    """What a file holds. What keeps it from being read is in the result."""
    path = str(video["video"])
    try:
        opened = open_video(video)
        kind = kind_of(opened)
        if kind == "path":
            check_regular_file(path)
        metadata = probe_video(opened, segments)
        if decode:
            _decode(opened, path, (metadata.height, metadata.width), metadata.total_num_frames, kind == "folder")
    except Exception as error:  # Damaged files make decoders raise errors of any kind.
        return InspectedVideo(path, tell_reason(path, error))
    return InspectedVideo(
        path,
        num_frames=metadata.total_num_frames,
        duration=metadata.duration,
        height=metadata.height or 0,
        width=metadata.width or 0,
    )


def _decode(opened: object, path: str, size: tuple[int | None, ...], num_frames: int, is_folder: bool) -> None:
    """Decodes all frames in one pass. They must be as many, and as large, as readers expect."""
    count = 0
    for frame in stream_frames(opened, source_fps=1 if is_folder else None):
        count += 1
        if frame.image.shape[:2] != size:
            raise VideoReadError(
                f"{path}: frame {frame.number} is {frame.image.shape[:2]} (height, width), the first is {size}."
            )
    if count != num_frames:
        raise VideoReadError(f"{path} is damaged: it has packets for {num_frames} frames, but gives {count}.")


def tell_reason(video: str, error: Exception) -> str:
    """A sentence that says why a video cannot be read, and names it."""
    # Names of frames that are not UTF-8 have characters that no file of text can hold.
    reason = (str(error) or type(error).__name__).encode(errors="backslashreplace").decode()
    return reason if video in reason else f"{video} cannot be read: {reason}"


def write_manifest(
    path: Path, splits: Mapping[str, Dataset], inspected: Sequence[InspectedVideo], folder: Path
) -> None:
    """Writes the rows whose video can be read as a Parquet file, with `frames` and `duration` of the videos.

    Args:
        path: The file to write.
        splits: Data sets of `load_video_dataset`, with the further columns to keep, of files.
        inspected: The results of `inspect_videos` for the rows of all splits.
        folder: Where the file will be: paths count from there if they are below.

    Raises:
        ValueError: no video can be read.
    """
    rows = concatenate_datasets([*splits.values()])
    path_from, of_row = _paths_from(folder), VideoRows(rows).of_row
    label = "labels" if is_multi_label(rows) else "label"
    ids, names = arrow_column(rows, label), pa.array(label_names(rows), pa.string())
    is_multi = pa.types.is_list(ids.type)
    table = pa.table(
        {
            "path": pa.array([path_from(video.path) for video in inspected], pa.string()).take(of_row),
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


def _paths_from(folder: Path) -> Callable[[str], str]:
    """Gives the path of a video from a folder if it lies below it, through links or not; else the whole path."""
    resolve = cache(os.path.realpath)
    prefix = f"{folder}{os.sep}"

    def path_of(video: str) -> str:
        if is_url(video) or video.startswith(prefix):
            return video.removeprefix(prefix)
        place, name = os.path.split(video)
        whole = Path(resolve(place), name)
        return str(whole.relative_to(resolve(folder))) if whole.is_relative_to(resolve(folder)) else video

    return path_of


@dataclass(frozen=True)
class RepeatedClip:
    """A clip that is in several rows.

    Attributes:
        video: the file.
        start, end: start and end of the segment in seconds, None for those of the video.
        splits: the splits that have the clip.
        labels: the different labels of the clip, each the name of a class, or several names joined by semicolons.
    """

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
    """Seconds of a video that two rows of different splits have.

    Attributes:
        video: the file.
        start, end: start and end of what both have, in seconds; an end of None is that of the video.
        splits: the splits of the two rows.
        rows: the numbers of the two rows in their splits, from 1 on.
    """

    video: str
    start: float
    end: float | None
    splits: tuple[str, str]
    rows: tuple[int, int]

    def __str__(self) -> str:
        places = " and ".join(f"{split} row {row}" for split, row in zip(self.splits, self.rows, strict=True))
        return f"{self.video}, {self.start:g} s to {'its end' if self.end is None else f'{self.end:g} s'} ({places})"


def find_repeated_clips(splits: Mapping[str, Dataset]) -> list[RepeatedClip]:
    """The clips, segments of one path, that have different labels or are in several splits.

    Args:
        splits: data sets of `load_video_dataset` or `load_video_texts` by name.
    """
    rows = pa.concat_tables(_segments(name, split) for name, split in splits.items())
    keys = ["video", "start", "end"]
    counts = rows.group_by(keys).aggregate([([], "count_all")])
    repeated = counts.filter(pc.greater(counts["count_all"], 1)).select(keys)
    rows = rows.append_column("place", pa.array(range(len(rows))))
    rows = rows.join(repeated, keys, join_type="left semi").sort_by("place")
    names = {name: _labels(split) for name, split in splits.items()} if len(rows) else {}
    found: dict[tuple[str, float, float], list[tuple[str, str]]] = defaultdict(list)
    for row in rows.to_pylist():
        found[row["video"], row["start"], row["end"]].append((row["split"], names[row["split"]][row["row"]]))
    clips = [
        RepeatedClip(
            video,
            start or None,
            None if math.isinf(end) else end,
            tuple(dict.fromkeys(split for split, _ in places)),
            tuple(dict.fromkeys(label for _, label in places)),
        )
        for (video, start, end), places in found.items()
    ]
    return [clip for clip in clips if len(clip.splits) > 1 or len(clip.labels) > 1]


def repetition_warnings(clips: Sequence[RepeatedClip]) -> list[str]:
    """A sentence for each kind of repetition that occurs, with the number of clips and the first three of them."""
    kinds = {
        "in several splits, so that what is learned is also measured": lambda clip: len(clip.splits) > 1,
        "listed with different labels": lambda clip: len(clip.labels) > 1,
    }
    sentences = []
    for kind, fits in kinds.items():
        if chosen := [clip for clip in clips if fits(clip)]:
            count = f"{len(chosen)} clips are" if len(chosen) > 1 else "1 clip is"
            sentences.append(f"{count} {kind}: {listed(chosen, limit=3, separator='; ')}.")
    return sentences


def find_overlaps(splits: Mapping[str, Dataset]) -> list[Overlap]:
    """The pairs of rows of different splits that share seconds of one video. A video is known by its path.
    Of the rows of a split that a later row overlaps, the one that ends last is given.

    Args:
        splits: data sets of `load_video_dataset` by name.
    """
    rows = pa.concat_tables(_segments(name, split) for name, split in splits.items())
    counts = rows.group_by("video").aggregate([("split", "count_distinct")])
    shared = counts.filter(pc.greater(counts["split_count_distinct"], 1)).select(["video"])
    order = [(name, "ascending") for name in ("video", "start", "split", "row")]
    rows = rows.join(shared, "video", join_type="left semi").sort_by(order).select(rows.column_names)
    # By video and split, the row that ends last of those that began, with its end.
    begun: dict[str, dict[str, tuple[float, int]]] = defaultdict(dict)
    found = []
    for video, start, end, split, row in zip(*rows.to_pydict().values(), strict=True):
        for other, (other_end, other_row) in begun[video].items():
            if other != split and other_end > start:
                last = None if math.isinf(until := min(end, other_end)) else until
                found.append(Overlap(video, start, last, (other, split), (other_row + 1, row + 1)))
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


def _segments(name: str, split: Dataset) -> pa.Table:
    """Video, start, end, split and row of each clip. The start of a whole video is 0, its end infinity."""
    rows = split.select_columns(["video", "start", "end"]).with_format("arrow")[:].combine_chunks()
    return pa.table(
        {
            "video": rows["video"],
            "start": pc.fill_null(rows["start"], 0.0),
            "end": pc.fill_null(rows["end"], math.inf),
            "split": pa.array([name] * len(rows), pa.string()),
            "row": pa.array(range(len(rows)), pa.int64()),
        }
    )


def _labels(split: Dataset) -> list[str]:
    """The label of each row as one text; empty for data without labels."""
    if not {"label", "labels"} & set(split.column_names):
        return [""] * len(split)
    names = label_names(split)
    return [";".join(sorted(names[label] for label in ids)) for ids in label_ids(split)]


def write_trained_videos(folder: Path, splits: Mapping[str, Dataset]) -> None:
    """Writes `trained_videos.json`: path, start and end of the rows of each split, once each. Videos that are stored
    inside a data set have no path, and are left out."""
    rows = {name: [*dict.fromkeys(_rows(split))] for name, split in splits.items() if BYTES not in split.column_names}
    replace_text(folder / TRAINED_VIDEOS_FILE, json.dumps({"columns": _COLUMNS, "splits": rows}) + "\n")


def run_folder(folder: Path) -> Path:
    """The folder of a training, for that of its model or of a checkpoint inside."""
    folder = folder.expanduser().absolute()
    return folder.parent if folder.name.startswith("checkpoint-") else folder


def count_trained(folder: Path, rows: Dataset) -> dict[str, int] | None:
    """How many rows share seconds of a video with those that a model was trained on, or that its checkpoint was chosen
    on, by split. None if the folder, that of a model or of a checkpoint inside, does not say so, or the videos are
    stored inside a data set."""
    kept = read_own_json(run_folder(folder) / TRAINED_VIDEOS_FILE)
    if BYTES in rows.column_names or not isinstance(kept, dict) or not {"columns", "splits"} <= kept.keys():
        return None
    asked, counts = _rows(rows), {}
    for name, of_split in kept["splits"].items():
        known: dict[str, list[tuple[float, float]]] = defaultdict(list)
        for video, start, end in of_split:
            known[video].append((start or 0.0, math.inf if end is None else end))
        counts[name] = sum(
            any(first < (math.inf if end is None else end) and (start or 0.0) < last for first, last in known[video])
            for video, start, end in asked
        )
    return counts


def _rows(dataset: Dataset) -> list[tuple[str, float | None, float | None]]:
    times = (dataset[name][:] if name in dataset.column_names else [None] * len(dataset) for name in ("start", "end"))
    return [*zip(dataset["video"][:], *times, strict=True)]
