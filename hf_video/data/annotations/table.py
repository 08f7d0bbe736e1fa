"""The table that the readers of annotation files fill: finding videos, pairing starts with stops, clipping to a video,
time that nobody annotated, and reports of what was left out."""

import gzip
import json
import math
import os
import re
import unicodedata
from collections import defaultdict
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate, chain, count, zip_longest
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote

import numpy as np

from hf_video.data.folders import is_named_video
from hf_video.data.rows import TO_LABEL
from hf_video.io import check_regular_file, decode_table
from hf_video.reading import probe_video
from hf_video.reading.sources import is_url

# Seconds below which times are equal: annotation tools keep milliseconds.
ROUNDING = 5e-4
# The largest difference of two rates, frames per second, that is a matter of rounding.
_SAME_RATE = 0.01
# A model's segments, by the name of their video.
Found = Mapping[str, Sequence[Mapping[str, Any]]]


@dataclass
class Annotations:
    """What an annotation file says, in seconds of each video's own time.

    Attributes:
        rows: segments and points. Each has `media`, the name of the video; `source`, the observation, tier, view,
            channel or column; `subject`; `class`; `modifiers`, the answers by the name of their set; and `start` and
            `end`, or `instant`.
        unknown: spans that nobody annotated, which are not background: `media`, `start`, `end`.
        reports: what was left out or is doubtful: `kind`, and `media`, `source`, `class` and times as far as there
            are any.
        classes: "state" or "point" of each class, if the file declares classes.
        splits: the names of videos by "train", "validation", "test" and "inference", if the file has splits.
        background: the class that means none of the others, if the file has one.
        paths: where each video was found, by its name.
    """

    rows: list[dict[str, Any]] = field(default_factory=list)
    unknown: list[dict[str, Any]] = field(default_factory=list)
    reports: list[dict[str, Any]] = field(default_factory=list)
    classes: dict[str, str] = field(default_factory=dict)
    splits: dict[str, list[str]] = field(default_factory=dict)
    background: str | None = None
    paths: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Medium:
    """A video that was found. `times` has the begin of each frame in seconds, and the end of the last one."""

    name: str
    path: str
    times: np.ndarray

    @property
    def duration(self) -> float:
        return float(self.times[-1])

    @property
    def fps(self) -> float:
        return (len(self.times) - 1) / self.duration


class Queued(NamedTuple):
    """A video among those that play one after the other: None if it was not found; when it begins, and its seconds."""

    medium: Medium | None
    begin: float
    length: float


def row_of(source: str, label: str, subject: str = "", modifiers: Any = None) -> dict[str, Any]:
    """What a row is of."""
    return {"source": source, "subject": subject, "class": label, "modifiers": modifiers or {}}


class Table:
    """Collects the rows of one file. `choices` is what the user says about it, see `read_annotations`. Methods take
    None for a video that was not found, and do nothing then."""

    def __init__(self, file: Path, video_root: str | os.PathLike | None, choices: Mapping[str, Any]):
        self.file, self.choices, self.root = file, choices, None if video_root is None else Path(video_root)
        self.found = Annotations()
        self.media: dict[str, Medium] = {}
        self._by_written: dict[str, Medium | dict[str, Any]] = {}
        self._observed: dict[str, list[tuple[float, float]]] = defaultdict(list)

    @cached_property
    def text(self) -> str:
        """The text of the file."""
        check_regular_file(self.file)
        content = self.file.read_bytes()
        return decode_table(self.file, gzip.decompress(content) if self.file.suffix == ".gz" else content)

    @cached_property
    def json(self) -> Any:
        """The content of a JSON file."""
        try:
            return json.loads(self.text)
        except ValueError as error:
            raise ValueError(f"{self.file} cannot be read as JSON: {error}.") from error

    def is_read(self, source: str, by_model: bool) -> bool:
        """Whether an observation, tier, attribute or channel is read: the choice `by`, "all" by default. What is left
        out is reported."""
        by = self.choices.get("by") or "all"
        if by not in ("all", "person", "model"):
            raise ValueError(f"by is {by!r}; one of all, person and model is expected.")
        if is_left := by != "all" and by_model != (by == "model"):
            self.report("by_model" if by_model else "by_person", source=source)
        return not is_left

    def report(self, kind: str, **facts: Any) -> None:
        """Notes what was left out, once."""
        if (entry := {"kind": kind, **facts}) not in self.found.reports:
            self.found.reports.append(entry)

    def medium(self, written: str, source: str, fps: float | None = None) -> Medium | None:
        """The video that a file names, with or without its ending; None if it is not found, which is reported. `fps`
        is the rate in the file."""
        if written not in self._by_written:
            self._by_written[written] = self._open(self._find(_plain(written)))
        medium = self._by_written[written]
        if isinstance(medium, dict):
            self.report("missing_media", media=name_in(written), source=source, **medium)
            return None
        if fps and abs(fps - medium.fps) > _SAME_RATE:
            self.report("fps_differs", media=medium.name, in_file=float(fps), in_video=round(medium.fps, 6))
        return medium

    def has_video(self, written: str) -> bool:
        """Whether a video of this name is found."""
        return bool(self._find(_plain(written)))

    def _find(self, written: str) -> Sequence[Any]:
        """The places of a video, several if its name is ambiguous: as written, from the file, beside the file, and at
        any depth below the folder of videos, where more of the path decides between equal names."""
        if is_url(written):
            return [written]
        folder, parts = self.file.absolute().parent, _parts(written)
        for path in (folder / written, *([] if self.root is None else [self.root / written])):
            if path.is_file():
                return [path]

        def fits(path: Path) -> bool:
            is_same = _parts(path.name) == parts[-1:] or (is_named_video(path) and _parts(path.stem) == parts[-1:])
            return is_same and path.is_file()

        found = [*filter(fits, folder.iterdir())] or [*filter(fits, self._below)]
        alike = {each.resolve(): len(os.path.commonprefix([parts[::-1], _parts(each)[::-1]])) for each in found}
        return [path for path, length in alike.items() if length == max(alike.values())]

    @cached_property
    def _below(self) -> list[Path]:
        return [] if self.root is None else [*self.root.rglob("*")]

    def _open(self, paths: Sequence[Any]) -> Medium | dict[str, Any]:
        """A video, or what is to be said of one that is missing."""
        if len(paths) != 1:
            return {"candidates": sorted(map(str, paths))} if paths else {}
        place = str(paths[0])
        if known := [medium for medium in self.media.values() if medium.path == place]:
            return known[0]
        try:
            metadata = probe_video(place)
        except (OSError, ValueError) as error:
            return {"error": str(error)}
        names = ("/".join(_parts(place)[-number:]) for number in count(1))  # several videos may have the last part
        name = next(name for name in names if name not in self.media)
        self.media[name] = Medium(name, place, np.append(metadata.times, metadata.duration))
        self.found.paths[name] = place
        return self.media[name]

    def other_view(self, other: Medium | None, of: Medium | None, offset: float | None) -> None:
        """Reports a video that shows the same moments as another one, whose times are `offset` later in it."""
        if other is not None and of is not None and other is not of:
            self.report("other_view", media=other.name, of=of.name, offset=offset)

    def queue(
        self,
        paths: Sequence[str],
        source: str,
        rates: Sequence[float | None] = (),
        lengths: Sequence[float | None] = (),
    ) -> list[Queued]:
        """Videos that play one after the other, with the rates and seconds that the file says. The durations of videos
        count; what the file says does only for those that are not found."""
        told = zip_longest(paths, rates, lengths)
        media = [(self.medium(path, source, rate), float(length or 0)) for path, rate, length in told]
        seconds = [medium.duration if medium else length for medium, length in media]
        begins = accumulate(seconds, initial=0.0)
        return [Queued(*each) for each in zip((medium for medium, _ in media), begins, seconds, strict=False)]

    def observe(self, medium: Medium | None, source: str, start: float = 0.0, end: float = math.inf) -> None:
        """Notes that a stretch of a video was looked at. Other parts of it are unknown then, and so is all of a video
        that was made for stretches to label."""
        if medium is not None:
            self._observed[medium.name].append((0.0, 0.0) if TO_LABEL in source else (start, end))

    def add_frames(
        self, medium: Medium, shown: Mapping[str, np.ndarray], is_known: np.ndarray, source: str | None = None
    ) -> None:
        """The runs of frames of each class, and which frames have a label, (num_frames,) bool. The source is the name
        of the class by default."""
        num_frames = len(medium.times) - 1
        if len(is_known) != num_frames:
            self.report("frame_count", media=medium.name, in_file=len(is_known), in_video=num_frames)
        for label, is_shown in shown.items():
            for span in runs(medium.times, is_shown[:num_frames]):
                self.add(medium, row_of(source or label, label), *span)
        self._observed[medium.name] += runs(medium.times, is_known[:num_frames])

    def add(self, medium: Medium | None, of: Mapping[str, Any], start: float, end: float | None = None) -> None:
        """A segment in seconds of a video, or without `end` a point. What is outside of the video is cut off, and
        reported if it is more than a frame."""
        if medium is None:
            return
        times = {"instant": _round(start)} if end is None else {"start": _round(start), "end": _round(end)}
        until, last, tolerance = start if end is None else end, medium.duration, 1 / medium.fps + ROUNDING
        if end is not None and end <= start:
            named = {name: of[name] for name in ("source", "class")}
            return self.report("reversed", media=medium.name, **named, **times)
        is_outside = end is not None and (start >= last - ROUNDING or end <= ROUNDING)
        if is_outside or start < -tolerance or until > last + tolerance:
            self.report("outside_video", media=medium.name, **of, **times)
            if is_outside or end is None:
                return None
        clipped = {name: _round(min(max(time, 0.0), last)) for name, time in times.items()}
        return self.found.rows.append({"media": medium.name, **of, **clipped})

    def add_to_queue(
        self, queue: Sequence[Queued], of: Mapping[str, Any], start: float, end: float | None = None
    ) -> None:
        """A segment or point in seconds of videos that play one after the other. A border belongs to the later one."""
        at = _at(queue, start)
        if end is None or end <= start:
            return self.add(at.medium, of, start - at.begin, None if end is None else end - at.begin)
        pieces = []
        for each in queue:
            since = start if each is queue[0] else max(start, each.begin)
            until = end if each is queue[-1] else min(end, each.begin + each.length)
            if until - since > ROUNDING:
                pieces.append((each.medium, of, since - each.begin, until - each.begin))
        if len(pieces) > 1:
            self._report_at(at, "crosses_files", of, start=start, end=end)
        for piece in pieces:
            self.add(*piece)
        return None

    def pair(self, queue: Sequence[Queued], events: Iterable[tuple[float, Mapping[str, Any], str]]) -> None:
        """Events of time, what they are of, and "point", "start", "stop" or, where starts and stops alternate,
        "state". A start without a stop is reported and gives no row; "undefined" is a class that nobody declared."""
        if not any(each.medium for each in queue):
            return
        started: dict[str, tuple[float, Mapping[str, Any]]] = {}
        unpaired = []
        for time, of, kind in sorted(events, key=lambda event: (event[0], event[2] == "start")):
            key = json.dumps(of)
            if kind == "point":
                self.add_to_queue(queue, of, time)
            elif kind == "undefined":
                self._report_at(_at(queue, time), "undefined_class", of, time=time)
            elif kind != "start" and key in started:
                self.add_to_queue(queue, of, started.pop(key)[0], time)
            elif kind == "stop":
                unpaired.append((time, of))
            else:
                unpaired += [started[key]] if key in started else []
                started[key] = time, of
        for time, of in [*unpaired, *started.values()]:
            self._report_at(_at(queue, time), "unpaired_start", of, time=time)

    def _report_at(self, at: Queued, kind: str, of: Mapping[str, Any], **times: float) -> None:
        named = {} if at.medium is None else {"media": at.medium.name}
        self.report(kind, **named, **of, **{name: _round(time - at.begin) for name, time in times.items()})

    def finish(self) -> Annotations:
        """The result, with the spans that nobody annotated and the classes that the user chose."""
        found, to_label = self.found, [row for row in self.found.rows if row["class"] == TO_LABEL]
        found.classes.pop(TO_LABEL, None)
        found.rows = [row for row in found.rows if row["class"] != TO_LABEL]
        for row in to_label:
            kept = (name for name in ("media", "source", "start", "end", "instant") if name in row)
            self.report("to_label", **{name: row[name] for name in kept})
        for name, medium in self.media.items():
            labelled, still_open = (
                [(row["start"], row["end"]) for row in rows if row["media"] == name and "start" in row]
                for rows in (found.rows, to_label)
            )
            spans = self._observed.get(name, [(0.0, medium.duration)])
            borders = np.unique(np.clip([0.0, *chain(*spans, *labelled, *still_open), np.inf], 0.0, medium.duration))
            middles = (borders[1:] + borders[:-1]) / 2
            is_seen, is_labelled, is_open = (_inside(middles, each) for each in (spans, labelled, still_open))
            for start, end in runs(borders, ~is_labelled & (is_open | ~is_seen)):
                if end - start > 0.9 / medium.fps:
                    found.unknown.append({"media": name, "start": _round(start), "end": _round(end)})
        class_from = self.choices.get("class_from") or "code"
        for row in found.rows:
            row["class"] = _class_of(row, class_from)
        if class_from != "code" and found.classes:
            kinds = {row["class"]: "state" if "start" in row else "point" for row in found.rows}
            found.classes = dict(sorted(kinds.items()))
        return found


def _at(queue: Sequence[Queued], time: float) -> Queued:
    return next((each for each in reversed(queue) if time >= each.begin - ROUNDING), queue[0])


def _inside(seconds: np.ndarray, spans: Sequence[tuple[float, float]]) -> np.ndarray:
    """Whether each of some moments, none of them a border, is in a span."""
    starts, ends = np.sort(np.reshape(spans, (-1, 2)), axis=0).T
    return np.searchsorted(starts, seconds) > np.searchsorted(ends, seconds)


def runs(borders: np.ndarray, is_set: np.ndarray) -> list[tuple[float, float]]:
    """Start and end of each run of what is set between borders, (len(borders) - 1,) bool."""
    changes = np.flatnonzero(np.diff(np.concatenate([[False], is_set, [False]]).astype(int)))
    return [(float(borders[a]), float(borders[b])) for a, b in changes.reshape(-1, 2)]


def _class_of(row: Mapping[str, Any], class_from: str) -> str:
    answers = ", ".join("+".join(each) for each in row["modifiers"].values())
    named = {
        "code": row["class"],
        "code+modifier": f"{row['class']} ({answers})" if answers else row["class"],
        "subject+code": f"{row['subject']}: {row['class']}" if row["subject"] else row["class"],
    }
    if class_from not in named:
        raise ValueError(f"class_from is {class_from!r}; one of {', '.join(named)} is expected.")
    return named[class_from]


def _plain(written: str) -> str:
    """A path with slashes, of a path of any system or a file URI."""
    if written.startswith("file:"):
        written = re.sub(r"^/+(?=[A-Za-z]:)|^//+(?=/)", "", unquote(written[5:]))
    return written if is_url(written) else written.replace("\\", "/")


def _parts(path: str | Path) -> list[str]:
    # Names with umlauts have two forms, and a disk of macOS gives the other one.
    return unicodedata.normalize("NFC", str(path).replace("\\", "/")).rstrip("/").split("/")


def name_in(written: str) -> str:
    """The last part of a path of any system."""
    return _plain(written).rstrip("/").rsplit("/", 1)[-1]


def new_name(first: str, used: Container[Any], form: str = "{} {}") -> str:
    """A name that is not used: the first one, or with the numbers 2, 3, ... behind it."""
    names = (form.format(first, number) if number > 1 else first for number in count(1))
    return next(name for name in names if name not in used)


def merged(found: Iterable[Mapping[str, Any]], gap: float) -> list[dict[str, Any]]:
    """Segments of a class by their starts. Those with a gap of at most so many seconds are one."""
    kept = list[dict[str, Any]]()
    for each in sorted(found, key=lambda each: each["start"]):
        if kept and each["start"] <= kept[-1]["end"] + gap:
            kept[-1] |= {name: max(kept[-1].get(name, 0), each[name]) for name in ("end", "score") if name in each}
        else:
            kept.append(dict(each))
    return kept


def number(text: Any) -> float | None:
    """A number of a cell, also with a decimal comma; None if there is none."""
    try:
        found = float(str(text).strip().replace(",", "."))
    except ValueError:
        return None
    return found if math.isfinite(found) else None


def _round(seconds: float) -> float:
    return round(float(seconds), 6)
