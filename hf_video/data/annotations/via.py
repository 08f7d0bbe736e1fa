"""Projects of VIA 3 (JSON), and the CSV that it exports of them, which names the attributes in a comment.

A segment is an entry with two times and no region, a point one with one time. What it shows is an attribute, whose
value is the id of an option, or several, or free text.
"""

import hashlib
import json
from base64 import urlsafe_b64encode
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from csv import reader
from pathlib import Path
from typing import Any

from hf_video.data.rows import TO_LABEL
from hf_video.io import replace_text

from .table import Table, What, name_in

_TEXT, _CHOSEN_NOT, _SEVERAL = 1, "_DEFAULT", 2
_SEGMENT, _POINT = "FILE1_Z2_XY0", "FILE1_Z1_XY0"
_BY_MODEL = "hf_video (model)"
_COLUMNS = ("metadata_id", "file_list", "flags", "temporal_coordinates", "spatial_coordinates", "metadata")


def read(table: Table) -> None:
    """Fills the table with the segments and points of all views."""
    is_csv = table.file.suffix.lower() != ".json"
    attributes, entries = _read_csv(table) if is_csv else _read_project(table)
    by_model = {key: each.get("desc") == _BY_MODEL for key, each in attributes.items()}
    out = [key for key, each in attributes.items() if not table.is_read(each.get("aname", key), by_model[key])]
    attributes = {key: each for key, each in attributes.items() if key not in out}
    kinds = {_SEGMENT: "state", _POINT: "point"}
    for attribute in attributes.values():
        if attribute.get("anchor_id") in kinds and attribute.get("aname") in _chosen(table, attributes):
            options = dict.fromkeys(attribute.get("options", {}).values(), kinds[attribute["anchor_id"]])
            table.found.classes |= options
    regions = 0
    for source, files, times, region, values in entries:
        if region or len(times) not in (1, 2):
            regions += 1
            continue
        if values and not values.keys() - {*out}:
            continue
        values = {key: value for key, value in values.items() if key not in out}
        media = [table.medium(file, source) for file in files]
        if not media:
            table.report("no_media", source=source)
        for other in media[1:]:
            if media[0] is not None and other is not None:
                table.report("other_view", media=other.name, of=media[0].name, offset=0.0)
        if media and media[0] is not None:
            _add(table, media[0], source, [float(each) for each in times], attributes, values)
    if regions:
        table.report("not_temporal", count=regions)


def _chosen(table: Table, attributes: Mapping[str, Any]) -> list[str]:
    """The names of the attributes that may be the class."""
    choice = table.choices.get("attribute")
    chosen = [choice] if isinstance(choice, str) else choice
    return [each.get("aname", "") for each in attributes.values()] if chosen is None else [*chosen]


def _add(
    table: Table,
    medium: Any,
    source: str,
    times: list[float],
    attributes: Mapping[str, Any],
    values: Mapping[str, str],
) -> None:
    """The rows of an entry: one for each class that it has."""
    found = {}
    for key, value in values.items():
        attribute = attributes.get(key, {})
        answers = _names(attribute, str(value))
        if None in answers:
            told = {"class": str(value), "time": times[0]}
            table.report("undefined_class", media=medium.name, source=source, **told)
        if names := [name for name in answers if name]:
            found[attribute.get("aname", key)] = names
    labelling = [name for name in found if name in _chosen(table, attributes)]
    if len(labelling) > 1:
        raise ValueError(
            f"{table.file}: an entry of {medium.name} at {times[0]:g} s has {', '.join(map(repr, labelling))}. Say "
            "which attribute is the class with the choice `attribute` (--choose attribute=NAME)."
        )
    if not labelling:
        told = {"start": times[0], "end": times[-1]} if len(times) > 1 else {"instant": times[0]}
        if not any(None in _names(attributes.get(key, {}), str(value)) for key, value in values.items()):
            table.report("empty_value", media=medium.name, source=source, **told)
        return
    table.observe_all(medium, labelling[0])
    modifiers = {name: answers for name, answers in found.items() if name != labelling[0]}
    for label in found[labelling[0]]:
        table.found.classes.setdefault(label, "state" if len(times) > 1 else "point")
        table.add(medium, What(source, "", label, modifiers), *times)


def _names(attribute: Mapping[str, Any], value: str) -> list[str | None]:
    """The options that a value names by their ids, None for an unknown one; or the text itself."""
    options = attribute.get("options") or {}
    if value in ("", _CHOSEN_NOT):
        return []
    if attribute.get("type") == _TEXT or not options:
        return [value.strip()] if value.strip() else []
    ids = value.split(",") if attribute.get("type") == _SEVERAL else [value]
    return [options.get(each.strip()) for each in ids if each.strip()]


def _read_project(table: Table) -> tuple[dict[str, Any], Iterator[tuple[str, list[str], Any, Any, Any]]]:
    project = table.json
    return project["attribute"], (
        (
            str(each["vid"]),
            _files(project, str(each["vid"])),
            each.get("z") or [],
            each.get("xy"),
            each.get("av") or {},
        )
        for each in project["metadata"].values()
    )


def _files(project: Mapping[str, Any], view: str) -> list[str]:
    """The paths of the files of a view."""
    files = [project["file"][str(number)] for number in project["view"].get(view, {}).get("fid_list", ())]
    return [each["src"] if each.get("src") and each.get("loc") != 4 else each["fname"] for each in files]


def _read_csv(table: Table) -> tuple[dict[str, Any], Iterator[tuple[str, list[str], Any, Any, Any]]]:
    lines = table.text.splitlines()
    told = [line.partition(" = ") for line in lines if line.startswith("#")]
    facts = {name.lstrip("# "): value for name, mark, value in told if mark}
    if "ATTRIBUTE" not in facts:
        raise ValueError(
            f"{table.file} has the ids of options without their names: no line begins with # ATTRIBUTE. Export all "
            "of the project from VIA, or give the project itself, a JSON file."
        )
    names = [name.strip() for name in facts.get("CSV_HEADER", ",".join(_COLUMNS)).split(",")]
    rows = (dict(zip(names, row, strict=False)) for row in reader(line for line in lines if line[:1] not in ("", "#")))

    def entries() -> Iterator[tuple[str, list[str], Any, Any, Any]]:
        for row in rows:
            files, times, region, values = (json.loads(row[name]) for name in (_COLUMNS[1], *_COLUMNS[3:]))
            yield name_in(files[0]) if files else "", files, times, region, values

    return json.loads(facts["ATTRIBUTE"]), entries()


def write(table: Table, predictions: Mapping[str, Sequence[Mapping[str, Any]]], output: Path) -> None:
    """Writes the project with the model's segments in a further attribute, and its points in another one."""
    if table.file.suffix.lower() != ".json":
        raise ValueError(f"{table.file} is an export; segments are written into the project itself, a JSON file.")
    project = deepcopy(table.json)
    # Attribute and option of each class, of segments and of points.
    keys: dict[tuple[str, str], tuple[str, str]] = {}
    for anchor in (_SEGMENT, _POINT):
        every = (each for found in predictions.values() for each in found if _anchor(each) == anchor)
        if labels := [*dict.fromkeys(each["class"] for each in every)]:
            labels = [*dict.fromkeys([*labels, *table.choices.get("classes", ())])]
            key = _add_attribute(project["attribute"], anchor, labels)
            keys |= {(anchor, label): (key, str(number)) for number, label in enumerate(labels, 1)}
    shown = {view: [table.medium(file, view) for file in _files(project, view)] for view in project["view"]}
    for medium, found in predictions.items():
        views = [view for view, media in shown.items() if medium in [each.name for each in media if each is not None]]
        if not views:
            raise ValueError(f"{table.file} has no view of {medium}: add the video in VIA first.")
        view = min(views, key=lambda view: len(shown[view]))  # the one that shows the video alone
        for number, each in enumerate(found):
            key, option = keys[_anchor(each), each["class"]]
            digest = hashlib.sha256(f"{medium} {number} {json.dumps(each)} {key}".encode()).digest()
            entry = f"{view}_{urlsafe_b64encode(digest)[:8].decode()}"
            times = [round(each["start"], 3), round(each["end"], 3)][: 1 if _anchor(each) == _POINT else 2]
            project["metadata"][entry] = {"vid": view, "flg": 0, "z": times, "xy": [], "av": {key: option}}
    replace_text(output, json.dumps(project, separators=(",", ":"), ensure_ascii=False))


def _anchor(prediction: Mapping[str, Any]) -> str:
    return _POINT if prediction["start"] == prediction["end"] else _SEGMENT


def _add_attribute(attributes: dict[str, Any], anchor: str, labels: Sequence[str]) -> str:
    """The key of a new attribute, of the model or to be labelled, with these options."""
    used = {each.get("aname") for each in attributes.values()}
    first, by = (TO_LABEL, "") if TO_LABEL in labels else ("model", _BY_MODEL)
    key, name, count = str(max([int(each) for each in attributes if each.isdecimal()] or [0]) + 1), first, 2
    while name in used:
        name, count = f"{first} {count}", count + 1
    options = {str(number): label for number, label in enumerate(labels, 1)}
    new = {"aname": name, "anchor_id": anchor, "type": 4, "desc": by}
    attributes[key] = new | {"options": options, "default_option_id": ""}
    return key
