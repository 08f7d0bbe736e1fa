"""Finds videos again by digests of their content: twice in a data set, and among those that a model was trained on."""

import functools
import json
import math
import os
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from datasets import Dataset

from hf_video.io import read_own_json, replace_text
from hf_video.reading.sources import is_url

from .annotation_files import listed
from .columns import label_ids, label_names
from .manifest import CONTENT, ERROR
from .stored_videos import BYTES, bytes_digest, content_digest, is_packed, path_digest, stored_sizes

TRAINED_VIDEOS_FILE = "trained_videos.json"
# Rows whose videos are read for their digests at most, some seconds of work; and digests that are kept at most, 7 MB.
MAX_READ, MAX_KEPT = 5_000, 100_000


@dataclass(frozen=True)
class RepeatedClip:
    """A clip that is in several rows.

    Attributes:
        videos: the files of the clip; several if they have the same content.
        start, end: start and end of the segment in seconds, None for those of the video.
        splits: the splits that have the clip.
        labels: the different labels of the clip, each the name of a class, or several names joined by semicolons.
    """

    videos: tuple[str, ...]
    start: float | None
    end: float | None
    splits: tuple[str, ...]
    labels: tuple[str, ...]

    def __str__(self) -> str:
        segment = "" if self.start is self.end is None else f", {self.start or 0.0} s to {self.end or 'its end'}"
        labels = " or ".join(filter(None, self.labels))
        videos = listed(self.videos, limit=3, separator=" = ")
        return f"{videos}{segment} ({', '.join(self.splits)}{': ' + labels if labels else ''})"


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
    """The clips that have different labels, or are in several splits.

    Two clips are the same if they are the same segment of one file, also if links lead to it, or of files with the
    same `content_digest`. Only files of the same size are opened. Folders of frames, URLs and files that cannot be
    read are compared by their paths alone. Empty files are never the same. Where a manifest says the `content_digest`,
    it is believed, and no file is looked at; videos that it calls broken are compared by their paths alone.

    Args:
        splits: data sets of `load_video_dataset` or `load_video_texts` by name.
    """
    rows = _repeated_rows(pa.concat_tables(_listing(splits)).combine_chunks())
    labels: dict[tuple[str, int], str] = {}
    for name in {*rows["split"]}:
        of_split = [row for row, split in zip(rows["row"], rows["split"], strict=True) if split == name]
        names = _labels(splits[name].select(of_split))
        labels |= {(name, row): label for row, label in zip(of_split, names, strict=True)}
    places: dict[tuple[str, float, float], list[tuple[str, str, int]]] = defaultdict(list)
    for video, start, end, split, row, content in zip(*rows.values(), strict=True):
        places[content, start, end].append((video, split, row))
    found = []
    for (_, start, end), clips in places.items():
        clip = RepeatedClip(
            videos=tuple(dict.fromkeys(video for video, _, _ in clips)),
            start=start or None,
            end=None if math.isinf(end) else end,
            splits=tuple(dict.fromkeys(split for _, split, _ in clips)),
            labels=tuple(dict.fromkeys(labels[split, row] for _, split, row in clips)),
        )
        if len(clip.splits) > 1 or len(clip.labels) > 1:
            found.append(clip)
    return found


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
    """The pairs of rows of different splits that share seconds of one video. A video is known by its path here; see
    `find_repeated_clips` for equal videos under several. Of the rows of a split that a later row overlaps, the one
    that ends last is given.

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


def _listing(splits: Mapping[str, Dataset]) -> Iterator[pa.Table]:
    """Video, start, end, split, row and content of each clip."""
    has_contents = all(CONTENT in split.column_names for split in splits.values())
    contents = {} if has_contents else _contents(splits)
    for name, split in splits.items():
        rows = _segments(name, split)
        if has_contents:
            known = split.select_columns([CONTENT, ERROR]).with_format("arrow")[:].combine_chunks()
            is_known = pc.and_(pc.is_valid(known[CONTENT]), pc.is_null(known[ERROR]))
            content = pc.if_else(is_known, known[CONTENT], rows["video"])
        else:
            content = pa.array([contents[video] for video in rows["video"].to_pylist()], pa.string())
        yield rows.append_column("content", content)


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


def _repeated_rows(listing: pa.Table) -> dict[str, list]:
    """The columns of a listing, with the rows alone whose content, start and end another row has, too."""
    keys = ["content", "start", "end"]
    counts = listing.group_by(keys).aggregate([([], "count_all")])
    repeated = counts.filter(pc.greater(counts["count_all"], 1)).select(keys)
    place = pa.array(range(len(listing)), pa.int64())
    rows = listing.append_column("place", place).join(repeated, keys, join_type="left semi").sort_by("place")
    return rows.select(listing.column_names).to_pydict()


def _labels(split: Dataset) -> list[str]:
    """The label of each row as one text; empty for data without labels."""
    if not {"label", "labels"} & set(split.column_names):
        return [""] * len(split)
    names = label_names(split)
    return [";".join(sorted(names[label] for label in ids)) for ids in label_ids(split)]


def _contents(splits: Mapping[str, Dataset]) -> dict[str, str]:
    """A text that stands for the content of each video: its digest if another has the same size, else its path."""
    paths: dict[str, str] = {}
    of_size: dict[int, dict[str, Callable[[], str]]] = defaultdict(dict)
    for split in splits.values():
        for row, (video, size) in enumerate(zip(split["video"][:], stored_sizes(split), strict=True)):
            if video in paths:
                continue
            paths[video] = path = video if size is not None or is_url(video) else os.path.realpath(video)
            if size is not None:
                of_size[size][path] = partial(lambda split, row: bytes_digest(split[row][BYTES]), split, row)
            elif os.path.isfile(path):
                of_size[os.path.getsize(path)][path] = partial(content_digest, path)
    digests: dict[str, str] = {}
    for size, files in of_size.items():
        if size > 0 and len(files) > 1:
            for path, digest in files.items():
                with suppress(OSError):
                    digests[path] = digest()
    return {video: digests.get(path, path) for video, path in paths.items()}


# The digest of a video, and the start and end of a row in seconds.
_Row = tuple[str, float, float]


class TrainedVideos(NamedTuple):
    """How many rows have a video that a model knows, for each split of its training; there may be more if `is_least`,
    because only a sample of many videos was compared."""

    by_split: dict[str, int]
    is_least: bool


def write_trained_videos(folder: Path, splits: Mapping[str, Dataset]) -> None:
    """Writes `trained_videos.json`: the `content_digest`s of the videos of each split, and no name. Of a video that is
    in several splits it has the seconds of each.

    Of a split with more than `MAX_READ` rows whose videos would have to be read, or more than `MAX_KEPT` whose digests
    a manifest or pack knows, an evenly spaced sample is kept."""
    found = {name: list(_digests(rows)) for name, rows in splits.items()}
    digests = {name: sorted({digest for digest, _, _ in rows}) for name, rows in found.items()}
    samples = [name for name, rows in splits.items() if _step(rows) > 1]
    counts = Counter(chain.from_iterable(digests.values()))
    seconds: dict[str, dict[str, list[tuple[float, float | None]]]] = {name: defaultdict(list) for name in splits}
    for name, rows in found.items():
        for digest, start, end in rows:
            if counts[digest] > 1:
                seconds[name][digest].append((start, None if math.isinf(end) else end))
    kept = {"samples": samples, "digests": digests, "seconds": seconds}
    replace_text(folder / TRAINED_VIDEOS_FILE, json.dumps(kept) + "\n")


def run_folder(folder: Path) -> Path:
    """The folder of a training, for that of its model or of a checkpoint inside."""
    folder = folder.expanduser().absolute()
    return folder.parent if folder.name.startswith("checkpoint-") else folder


def count_trained(folder: Path, rows: Dataset) -> TrainedVideos | None:
    """How many rows have a video that a model was trained on, or that its checkpoint was chosen on; of many, a sample
    is compared. None if the folder, that of a model or of a checkpoint inside, does not say so."""
    kept = read_own_json(run_folder(folder) / TRAINED_VIDEOS_FILE)
    if not isinstance(kept, dict) or not {"samples", "digests"} <= kept.keys():
        return None
    found = list(_digests(rows))
    seconds = kept.get("seconds", {})
    counts = {
        name: sum(_is_known(row, known, seconds.get(name, {})) for row in found)
        for name, known in ((name, set(digests)) for name, digests in kept["digests"].items())
    }
    return TrainedVideos(counts, bool(kept["samples"]) or _step(rows) > 1)


def _step(rows: Dataset) -> int:
    """Every how manieth row is looked at."""
    return math.ceil(len(rows) / (MAX_KEPT if CONTENT in rows.column_names else MAX_READ)) or 1


def _is_known(row: _Row, digests: Set[str], seconds: Mapping[str, Sequence[tuple[float, float | None]]]) -> bool:
    """Whether a row has a video of a split; of one in several splits, some of the seconds that the split has."""
    digest, start, end = row
    if digest not in digests or digest not in seconds:
        return digest in digests
    return any(first < end and (last is None or start < last) for first, last in seconds[digest])


def _digests(rows: Dataset) -> Iterator[_Row]:
    """The digest of the video of each row that is looked at and can be read, and the start and end of the row in
    seconds."""
    rows = rows.select(range(0, len(rows), _step(rows)))
    digests: Iterable[str | None] = ()
    if CONTENT in rows.column_names:
        digests = rows[CONTENT][:]
    elif BYTES in rows.column_names:
        digests = (path_digest(row["video"]) if row[BYTES] is None else bytes_digest(row[BYTES]) for row in rows)
    elif not is_packed(rows):
        digests = map(functools.cache(path_digest), rows["video"][:])
    times = (rows[name][:] if name in rows.column_names else [None] * len(rows) for name in ("start", "end"))
    for digest, start, end in zip(digests, *times, strict=False):
        if digest is not None:
            yield digest, start or 0.0, math.inf if end is None else end
