"""Reads the annotation files of other tools, and writes a model's segments back beside what a person annotated."""

import gzip
import json
import logging
import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from hf_video.data.folders import listed, without_suffix
from hf_video.data.rows import UNKNOWN_SPANS, nothing_labelled
from hf_video.io import check_regular_file, replace_file
from hf_video.texts import count

from . import bento, boris, boris_bins, boris_events, elan, feral, frame_tables, via
from .table import Annotations, Found, Medium, Table, name_in

logger = logging.getLogger(__name__)
# The modules of the tools whose projects are made anew.
TOOLS: dict[str, Any] = {"boris": boris, "eaf": elan, "via": via}
_ENDINGS = {".boris": boris, ".boris.gz": boris, ".eaf": elan, ".annot": bento}
# The keys by which a JSON file is told.
_KEYS: dict[Any, set[str]] = {boris: {"observations", "behaviors_conf"}, via: {"metadata", "attribute", "view"}}
_KEYS |= {feral: {"class_names", "labels"}}


def find_format(file: str | os.PathLike, choices: Mapping[str, Any] | None = None) -> Any:
    """The module that reads an annotation file; None for any other list or table."""
    path = Path(file)
    if found := [module for ending, module in _ENDINGS.items() if path.name.lower().endswith(ending)]:
        return found[0]
    if path.suffix.lower() not in (".csv", ".tsv", ".txt", ".json") or not path.is_file():
        return None
    with path.open("rb") as opened:
        text = opened.read(1 << 16).decode("utf-8", errors="replace").lstrip("\ufeff")
    if path.suffix.lower() == ".json":
        try:
            keys = json.loads(path.read_bytes()).keys() if text.lstrip().startswith("{") else set()
        except ValueError:
            return None
        return next((module for module, names in _KEYS.items() if names <= keys), None)
    if text.startswith("#") and re.search(r"^# (ATTRIBUTE|CSV_HEADER|SHAPE_ID) = ", text, re.MULTILINE):
        return via
    if boris_events.find_header(text) is not None:
        return boris_events
    if boris_bins.is_table(text):
        return boris_bins
    cells = [cell.strip().strip('"') for cell in re.split(r"[,;\t]", text.partition("\n")[0])]
    is_frames = cells[0] == "" and (cells[1:2] == [frame_tables.BACKGROUND] or path.parent.name == "targets_inserted")
    return frame_tables if is_frames or "classes" in (choices or {}) else None


def read_annotations(
    file: str | os.PathLike,
    video_root: str | os.PathLike | None = None,
    choices: Mapping[str, Any] | None = None,
) -> Annotations:
    """What an annotation file of another tool says, in seconds of each video's own time.

    Reads projects of BORIS (`.boris`, `.boris.gz`) and the tables that it exports (of events, and binary ones), ELAN
    (`.eaf`), VIA 3 (its JSON and CSV), labels of DeepEthogram, `targets_inserted` of SimBA, FERAL's JSON, and Bento or
    MARS (`.annot`).

    Args:
        file: the annotation file.
        video_root: a folder in which videos are found by their names, at any depth. They are looked for as written,
            from the folder of the file, and beside the file before.
        choices: what the file does not say. `class_from`: "code" (the default), "code+modifier" or "subject+code".
            `classes`: columns of classes of SimBA; for `write_annotations` further classes that a project of BORIS or
            VIA declares. `tiers`: those of ELAN to read, and `tier_is_class`: those whose
            name is the class, whatever the values are. `attribute`: that of VIA which is the class. `by`: "person" or
            "model" reads what `write_annotations` did not write or did alone, "all" (the default) both.

    Returns:
        See [`Annotations`]. What is unpaired, missing or outside of its video is in `reports`, and raises nothing.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file is of no known format or damaged, or a choice is missing.
    """
    return _read(file, video_root, choices)[0].finish()


def _read(
    file: str | os.PathLike, video_root: str | os.PathLike | None, choices: Mapping[str, Any] | None
) -> tuple[Table, Any]:
    """The filled table of a file, and the module of its format."""
    check_regular_file(file)
    module, table = find_format(file, choices), Table(Path(file), video_root, choices or {})
    if module is None:
        raise ValueError(
            f"{file} is no annotation file of BORIS, ELAN, VIA, DeepEthogram, SimBA, FERAL or Bento. Name the columns "
            "of classes in a table of frames with the choice `classes`."
        )
    module.read(table)
    return table, module


def read_as_rows(file: Path, video_root: str | os.PathLike | None, choices: Mapping[str, Any]) -> pa.Table:
    """The rows of an annotation file as those of a list of times; those of a model only if the choice `by` says so.
    What the file lacks is told in a line each, before anything starts. Points end where they start, and are left out
    without the choice `point_width`."""
    found = read_annotations(file, video_root, {"by": "person"} | {**choices})
    with_points = choices.get("point_width") is not None
    for report in found.reports:
        logger.warning(f"{file}: {_tell(report)}")
    if not with_points and (points := sum("instant" in row for row in found.rows)):
        logger.warning(
            f"{file}: {count(points, 'point')} left out, without a length: say --choose point_width=SECONDS."
        )
    split_of = {video: split for split, videos in found.splits.items() for video in videos}
    unknown: dict[str, list[list[float]]] = {}
    for span in found.unknown:
        unknown.setdefault(span["media"], []).append([span["start"], span["end"]])
    rows = [
        {
            "video": found.paths[row["media"]],
            "label": row["class"],
            "split": split_of.get(row["media"], "train"),
            **{name: row.get(name, row.get("instant")) for name in ("start", "end")},
            **{name: row[name] for name in ("source", "subject")},
            "modifiers": _modifiers(row["modifiers"]),
            UNKNOWN_SPANS: unknown.get(row["media"], []),
        }
        for row in found.rows
        if split_of.get(row["media"]) != "inference" and (with_points or "start" in row)
    ]
    if not rows:
        kinds = Counter(report["kind"] for report in found.reports)
        if kinds["to_label"] and not kinds["missing_media"]:
            raise nothing_labelled(file, kinds["to_label"])
        way_out = "`video_root` (--video-root) says where videos are"
        if not kinds["missing_media"] and (kinds["by_model"] or kinds["by_person"]):
            way_out = "give what a model wrote and you corrected a name of yours, or --choose by=all reads all"
        raise ValueError(
            f"{file} has no segment of a video that is found; {way_out}: "
            f"{listed(map(_tell, found.reports), separator='; ')}."
        )
    types: dict[str, Any] = dict.fromkeys(rows[0], pa.string()) | {"start": pa.float64(), "end": pa.float64()}
    types[UNKNOWN_SPANS] = pa.list_(pa.list_(pa.float64()))
    if not found.splits:
        del types["split"]
    return pa.Table.from_pylist(rows, pa.schema(types))


def _modifiers(answers: Mapping[str, Sequence[str]]) -> str:
    return "; ".join(f"{name}: {', '.join(each)}" for name, each in answers.items())


def _tell(report: Mapping[str, Any]) -> str:
    """A report as a sentence."""
    kinds = {"by_model": "left out, as a model wrote it", "by_person": "left out, as a person wrote it"}
    facts = dict(report) | {"modifiers": _modifiers(report.get("modifiers", {}))}
    told = [f"{name} {value}" for name, value in facts.items() if name != "kind" and value != ""]
    return f"{kinds.get(report['kind'], report['kind'].replace('_', ' '))}: {', '.join(told)}"


def write_annotations(
    source_file: str | os.PathLike,
    predictions: Iterable[Mapping[str, Any]],
    output: str | os.PathLike,
    video_root: str | os.PathLike | None = None,
    choices: Mapping[str, Any] | None = None,
) -> None:
    """Writes a model's segments as a file that the tool of `source_file` opens, beside all that a person annotated
    there: a further observation (BORIS), tier (ELAN), attribute (VIA) or channel (Bento), or a table or JSON of the
    same columns or classes (DeepEthogram, SimBA, FERAL). The file that is read is never changed.

    Args:
        source_file: the annotation file.
        predictions: `media`, the name of the video; `class`; `start` and `end` in seconds; and `score`.
        output: the file to write.
        video_root: see [`read_annotations`].
        choices: see [`read_annotations`].

    Raises:
        FileNotFoundError, ValueError: as [`read_annotations`]; or the output is the source, or the file cannot hold
            the segments, such as those of a video that it does not name.
    """
    table, module = _read(source_file, video_root, choices)
    if os.path.exists(output) and os.path.samefile(source_file, output):
        raise ValueError(f"{output} is the file that is read: give another one, so that nothing can be lost.")
    if not hasattr(module, "render"):
        raise ValueError(f"{source_file} is an export of BORIS: segments are written into the project itself.")
    content = module.render(table, by_video(table, predictions)).encode()
    content = gzip.compress(content) if Path(output).suffix == ".gz" else content
    replace_file(output, lambda path: path.write_bytes(content))


def by_video(table: Table, predictions: Iterable[Mapping[str, Any]]) -> Found:
    """The segments of each video, by the name that it has in the table; one that a file names may lack its ending."""
    found, known = dict[str, list[Mapping[str, Any]]](), [*table.media.values()]
    for each in predictions:
        name, stem = name_in(each["media"]), without_suffix(name_in(each["media"]))

        def alike(medium: Medium, media: str = each["media"], name: str = name, stem: str = stem) -> int:
            is_named = medium.name in (media, name), without_suffix(medium.name) == stem
            return 3 if medium.path == os.path.abspath(media) else 2 * is_named[0] or is_named[1]

        best = max(known, key=alike, default=None)
        medium = best if best is not None and alike(best) else table.medium(each["media"], "")
        if medium is None:
            raise FileNotFoundError(f"{name} is not found: say where videos are with `video_root` (--video-root).")
        found.setdefault(medium.name, []).append(each)
    if not found:
        raise ValueError("There is no segment to write.")
    return found
