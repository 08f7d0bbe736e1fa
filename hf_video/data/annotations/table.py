"""The table that the readers of annotation files fill: finding videos, pairing starts with stops, clipping to a video,
time that nobody annotated, and reports of what was left out."""

import gzip
import json
import math
import os
import re
import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate, chain, zip_longest
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote

import numpy as np

from hf_video.data.folders import is_named_video
from hf_video.data.rows import TO_LABEL
from hf_video.io import check_regular_file
from hf_video.reading import probe_video
from hf_video.reading.sources import is_url

# Seconds below which times are equal: annotation tools keep milliseconds.
ROUNDING = 5e-4
# The largest difference of two rates, frames per second, that is a matter of rounding.
_SAME_RATE = 0.01


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


class What(NamedTuple):
    """What a row is of."""

    source: str
    subject: str
    label: str
    modifiers: dict[str, list[str]]

    def columns(self) -> dict[str, Any]:
        return {"source": self.source, "subject": self.subject, "class": self.label, "modifiers": self.modifiers}


class Table:
    """Collects the rows of one file. `choices` is what the user says about it, see `read_annotations`."""

    def __init__(self, file: Path, video_root: str | os.PathLike | None, choices: Mapping[str, Any]):
        self.file, self.root, self.choices = file, None if video_root is None else Path(video_root), choices
        self.found = Annotations()
        self.media: dict[str, Medium] = {}
        self._files: dict[Path | None, list[Path]] = {}
        self._by_written: dict[str, Medium | dict[str, Any]] = {}
        self._observed: dict[str, list[tuple[float, float]]] = defaultdict(list)
        self._to_label: dict[str, list[tuple[float, float]]] = defaultdict(list)

    @cached_property
    def text(self) -> str:
        """The text of the file. Tables that a spreadsheet program saved again are in the code page of Windows."""
        check_regular_file(self.file)
        content = self.file.read_bytes()
        content = gzip.decompress(content) if self.file.suffix == ".gz" else content
        try:
            return content.decode("utf-8-sig")
        except UnicodeDecodeError:
            return content.decode("cp1252", errors="replace")

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
        if by != "all" and by_model != (by == "model"):
            self.report("by_model" if by_model else "by_person", source=source)
            return False
        return True

    def report(self, kind: str, **facts: Any) -> None:
        """Notes what was left out, once."""
        if (entry := {"kind": kind, **facts}) not in self.found.reports:
            self.found.reports.append(entry)

    def medium(
        self, written: str, source: str, fps: float | None = None, extra: Path | None = None, any_suffix: bool = False
    ) -> Medium | None:
        """The video that a file names; None if it is not found, which is reported. `fps` is the rate in the file, and
        `extra` a further folder to look in; with `any_suffix` the name has no ending."""
        if written not in self._by_written:
            self._by_written[written] = self._look_for(_plain(written), extra, any_suffix)
        medium = self._by_written[written]
        if isinstance(medium, dict):
            self.report("missing_media", media=name_in(written), source=source, **medium)
            return None
        if fps and abs(fps - medium.fps) > _SAME_RATE:
            self.report("fps_differs", media=medium.name, in_file=float(fps), in_video=round(medium.fps, 6))
        return medium

    def _look_for(self, written: str, extra: Path | None, any_suffix: bool) -> Medium | dict[str, Any]:
        """A video, or what is to be said of one that is missing."""
        paths = self._find(written, extra, any_suffix)
        try:
            return (
                self._open(str(paths[0]))
                if len(paths) == 1
                else {"candidates": sorted(map(str, paths))}
                if paths
                else {}
            )
        except (OSError, ValueError) as error:
            return {"error": str(error)}

    def _find(self, written: str, extra: Path | None, any_suffix: bool) -> list[Any]:
        """The places of a video, several if its name is ambiguous: as written, from the file, beside the file, and at
        any depth below the folder of videos, where more of the path decides between equal names."""
        if is_url(written):
            return [written]
        bases = [self.file.parent, *([self.root] if self.root else [])]
        for path in [Path(written)] * os.path.isabs(written) + [base / written.lstrip("/") for base in bases]:
            if path.is_file() and not any_suffix:
                return [path]
        parts = _normal(written).split("/")

        def fits(path: Path) -> bool:
            is_same = path.stem == parts[-1] and is_named_video(path) if any_suffix else path.name == parts[-1]
            return is_same or _normal(path.name) == parts[-1]

        beside = [each for each in self.file.parent.iterdir() if each.is_file()]
        found = [*filter(fits, beside)] or [*filter(fits, self._below(extra) + self._below(self.root))]
        found = list({each.resolve(): each for each in found}.values())

        def shared(path: Path) -> int:
            pairs = zip(reversed(parts), reversed(_normal(str(path)).split("/")), strict=False)
            return next((count for count, (one, other) in enumerate(pairs) if one != other), len(parts))

        longest = max(map(shared, found), default=0)
        return [path for path in found if shared(path) == longest]

    def _below(self, folder: Path | None) -> list[Path]:
        if folder not in self._files:
            self._files[folder] = [each for each in folder.rglob("*") if each.is_file()] if folder else []
        return self._files[folder]

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

    def _open(self, path: str) -> Medium:
        place = path if is_url(path) else os.path.abspath(path)
        if known := [medium for medium in self.media.values() if medium.path == place]:
            return known[0]
        metadata = probe_video(place)
        count, parts = 1, place.replace("\\", "/").split("/")
        while (name := "/".join(parts[-count:])) in self.media:  # another video of this name
            count += 1
        self.media[name] = Medium(name, place, np.append(metadata.times, metadata.duration))
        self.found.paths[name] = place
        return self.media[name]

    def observe(self, medium: Medium, start: float, end: float) -> None:
        """Notes that a stretch of a video was looked at. Other parts of it are unknown then."""
        self._observed[medium.name].append((start, end))

    def observe_all(self, medium: Medium, source: str) -> None:
        """Notes that a video was looked at; in what was made for stretches to label, that no other parts were."""
        self.observe(medium, 0.0, 0.0 if TO_LABEL in source else medium.duration)

    def observe_frames(self, medium: Medium, is_known: np.ndarray) -> None:
        """Notes which frames have a label, (num_frames,) bool."""
        self._observed[medium.name] += self.runs(medium, is_known)

    def runs(self, medium: Medium, is_set: np.ndarray) -> list[tuple[float, float]]:
        """Start and end in seconds of each run of frames that are set, (num_frames,) bool."""
        return _runs(medium.times, is_set[: len(medium.times) - 1])

    def add(self, medium: Medium, what: What, start: float, end: float | None = None) -> None:
        """A segment in seconds of a video, or without `end` a point. What is outside of the video is cut off, and
        reported if it is more than a frame."""
        tolerance, last = 1 / medium.fps + ROUNDING, medium.duration
        is_point = end is None
        until = start if end is None else end
        times = {"instant": _round(start)} if is_point else {"start": _round(start), "end": _round(until)}
        if not is_point and until - start <= 0:
            self.report("reversed", media=medium.name, source=what.source, **{"class": what.label}, **times)
            return
        is_outside = not is_point and (start >= last - ROUNDING or until <= ROUNDING)
        if is_outside or start < -tolerance or until > last + tolerance:
            self.report("outside_video", media=medium.name, **what.columns(), **times)
            if is_outside or is_point:
                return
        clipped = {name: _round(min(max(time, 0.0), last)) for name, time in times.items()}
        if what.label == TO_LABEL:
            self.report("to_label", media=medium.name, source=what.source, **clipped)
            self._to_label[medium.name].append((min(clipped.values()), max(clipped.values())))
            return
        self.found.rows.append({"media": medium.name, **what.columns(), **clipped})

    def add_to_queue(self, queue: Sequence[Queued], what: What, start: float, end: float | None = None) -> None:
        """A segment or point in seconds of videos that play one after the other. A border belongs to the later one."""
        if end is None or end <= start:
            medium, begin, _ = self._at(queue, start)
            if medium is not None:
                self.add(medium, what, start - begin, None if end is None else end - begin)
            return
        first, last = queue[0].begin, queue[-1].begin
        pieces = []
        for medium, begin, length in queue:
            since = start if begin == first else max(start, begin)
            until = end if begin == last else min(end, begin + length)
            if until - since > ROUNDING:
                pieces.append((medium, since - begin, until - begin))
        if len(pieces) > 1:
            medium, begin, _ = self._at(queue, start)
            times = {"start": _round(start - begin), "end": _round(end - begin)}
            named = {} if medium is None else {"media": medium.name}
            self.report("crosses_files", **named, **what.columns(), **times)
        for medium, since, until in pieces:
            if medium is not None:
                self.add(medium, what, since, until)

    def pair(self, queue: Sequence[Queued], events: Iterable[tuple[float, What, str]]) -> None:
        """Events of time, what, and "point", "start", "stop" or, where starts and stops alternate, "state". A start
        without a stop is reported and gives no row; "undefined" is a class that nobody declared."""
        started: dict[str, tuple[float, What]] = {}
        for time, what, kind in sorted(events, key=lambda event: (event[0], event[2] == "start")):
            key = json.dumps(what)
            if kind == "point":
                self.add_to_queue(queue, what, time)
            elif kind == "undefined":
                self._report_at(queue, "undefined_class", what, time)
            elif kind != "start" and key in started:
                self.add_to_queue(queue, what, started.pop(key)[0], time)
            elif kind == "stop":
                self._report_at(queue, "unpaired_start", what, time)
            else:
                if key in started:
                    self._report_at(queue, "unpaired_start", what, started[key][0])
                started[key] = time, what
        for time, what in started.values():
            self._report_at(queue, "unpaired_start", what, time)

    def _report_at(self, queue: Sequence[Queued], kind: str, what: What, time: float) -> None:
        medium, begin, _ = self._at(queue, time)
        named = {} if medium is None else {"media": medium.name}
        self.report(kind, **named, **what.columns(), time=_round(time - begin))

    @staticmethod
    def _at(queue: Sequence[Queued], time: float) -> Queued:
        return next((each for each in reversed(queue) if time >= each.begin - ROUNDING), queue[0])

    def finish(self) -> Annotations:
        """The result, with the spans that nobody annotated and the classes that the user chose."""
        self.found.classes.pop(TO_LABEL, None)
        for name in dict.fromkeys([*self._observed, *self._to_label]):
            medium = self.media[name]
            rows = [(row["start"], row["end"]) for row in self.found.rows if row["media"] == name and "start" in row]
            spans, open_spans = self._observed.get(name, [(0.0, medium.duration)]), self._to_label[name]
            borders = np.unique([0.0, medium.duration, *chain(*spans, *rows, *open_spans)])
            borders = borders[(borders >= 0) & (borders <= medium.duration)]
            middles = (borders[1:] + borders[:-1]) / 2
            is_seen, is_open, is_labelled = (_inside(middles, each) for each in (spans, open_spans, rows))
            is_unknown = ~is_labelled & (is_open | ~is_seen)
            for start, end in _runs(borders, is_unknown):
                if end - start > 0.9 / medium.fps:
                    self.found.unknown.append({"media": name, "start": _round(start), "end": _round(end)})
        for row in self.found.rows:
            row["class"] = _class_of(row, self.choices.get("class_from") or "code")
        if self.choices.get("class_from", "code") != "code" and self.found.classes:
            kinds = {row["class"]: "state" if "start" in row else "point" for row in self.found.rows}
            self.found.classes = dict(sorted(kinds.items()))
        return self.found


def _inside(seconds: np.ndarray, spans: Sequence[tuple[float, float]]) -> np.ndarray:
    """Whether each of some moments, none of them a border, is in a span."""
    starts, ends = np.sort(np.reshape(spans, (-1, 2)), axis=0).T
    return np.searchsorted(starts, seconds) > np.searchsorted(ends, seconds)


def _runs(borders: np.ndarray, is_set: np.ndarray) -> list[tuple[float, float]]:
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


def name_in(written: str) -> str:
    """The last part of a path of any system."""
    return _plain(written).rstrip("/").rsplit("/", 1)[-1]


def _normal(text: str) -> str:
    # Names with umlauts have two forms, and a disk of macOS gives the other one.
    return unicodedata.normalize("NFC", text.replace("\\", "/"))


def _round(seconds: float) -> float:
    return round(float(seconds), 6)


def number(text: Any) -> float | None:
    """A number of a cell, also with a decimal comma; None if there is none."""
    try:
        found = float(str(text).strip().replace(",", "."))
    except ValueError:
        return None
    return found if math.isfinite(found) else None


def answers_of(written: str, names: Sequence[str] = ()) -> dict[str, list[str]]:
    """The answers of modifiers, by the names of their sets or else #1, #2, ...: sets are joined by |, answers by a
    comma, and None is no answer."""
    found = {}
    for place, cell in enumerate(str(written or "").split("|")):
        answers = [each.strip() for each in cell.split(",") if each.strip() not in ("", "None")]
        if answers:
            name = names[place] if place < len(names) else ""
            found[name or f"#{place + 1}"] = answers
    return found
