"""Finds clips that occur several times in a data set: with different labels, or in several splits."""

import os
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

import pyarrow.compute as pc
from datasets import Dataset

from .annotation_files import listed
from .content_digest import bytes_digest, content_digest
from .labels import label_ids, label_names
from .manifest import CONTENT, ERROR
from .video_column import BYTES


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


def find_repeated_clips(splits: Mapping[str, Dataset]) -> list[RepeatedClip]:
    """The clips that have different labels, or are in several splits.

    Two clips are the same if they are the same segment of one file, also if links lead to it, or of files with the
    same `content_digest`. Only files of the same size are opened. Folders of frames, URLs and files that cannot be
    read are compared by their paths alone. Empty files are never the same. Where a manifest says the `content_digest`,
    it is believed, and no file is looked at; videos that it calls broken are compared by their paths alone.

    Args:
        splits: data sets of `load_video_dataset` or `load_video_texts` by name.
    """
    contents = _contents(splits)
    videos: dict[str, list[str]] = {}
    labels: dict[str, list[str]] = {}
    places: dict[tuple[str, float | None, float | None], list[tuple[str, int]]] = defaultdict(list)
    for name, split in splits.items():
        rows = split.select_columns(["video", "start", "end"])[:]
        videos[name], labels[name] = rows["video"], _labels(split)
        for row, (video, start, end) in enumerate(zip(*rows.values(), strict=True)):
            places[contents[video], start or None, end].append((name, row))
    found = []
    for (_, start, end), rows in places.items():
        if len(rows) == 1:
            continue
        clip = RepeatedClip(
            videos=tuple(dict.fromkeys(videos[name][row] for name, row in rows)),
            start=start,
            end=end,
            splits=tuple(dict.fromkeys(name for name, _ in rows)),
            labels=tuple(dict.fromkeys(labels[name][row] for name, row in rows)),
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


def _labels(split: Dataset) -> list[str]:
    """The label of each row as one text; empty for data without labels."""
    if not {"label", "labels"} & set(split.column_names):
        return [""] * len(split)
    names = label_names(split)
    return [";".join(sorted(names[label] for label in ids)) for ids in label_ids(split)]


def _contents(splits: Mapping[str, Dataset]) -> dict[str, str]:
    """A text that stands for the content of each video: its digest if a manifest says it or another has the same
    size, else its path."""
    paths: dict[str, str] = {}
    of_size: dict[int, dict[str, Callable[[], str]]] = defaultdict(dict)
    for split in splits.values():
        if CONTENT in split.column_names:
            rows = split.select_columns(["video", CONTENT, ERROR])[:]
            found = zip(*rows.values(), strict=True)
            paths |= {video: content if content and not error else video for video, content, error in found}
            continue
        for row, (video, size) in enumerate(zip(split["video"][:], _stored_sizes(split), strict=True)):
            if video in paths:
                continue
            paths[video] = path = video if size is not None or "://" in video else os.path.realpath(video)
            if size is not None:
                of_size[size][path] = partial(_stored_digest, split, row)
            elif os.path.isfile(path):
                of_size[os.path.getsize(path)][path] = partial(content_digest, path)
    digests: dict[str, str] = {}
    for size, files in of_size.items():
        if size > 0 and len(files) > 1:
            for path, digest in files.items():
                with suppress(OSError):
                    digests[path] = digest()
    return {video: digests.get(path, path) for video, path in paths.items()}


def _stored_sizes(split: Dataset) -> list[int | None]:
    """The sizes of the videos that are stored inside a data set, without reading them; None for all others."""
    if BYTES not in split.column_names:
        return [None] * len(split)
    batches = split.select_columns(BYTES).with_format("arrow").iter(1000)
    return [size for batch in batches for size in pc.binary_length(batch[BYTES]).to_pylist()]


def _stored_digest(split: Dataset, row: int) -> str:
    return bytes_digest(split[row][BYTES])
