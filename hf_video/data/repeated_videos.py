"""Finds videos again by their paths and times: twice in a data set, and among those that a model was trained on."""

import json
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from datasets import Dataset

from hf_video.io import read_own_json, replace_text

from .annotation_files import listed
from .columns import label_ids, label_names
from .stored_videos import BYTES

TRAINED_VIDEOS_FILE = "trained_videos.json"
_COLUMNS = ("path", "start", "end")


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
