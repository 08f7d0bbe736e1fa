"""Projects of VIA 3 (JSON), and the CSV that it exports of them, which names the attributes in a comment.

A segment is an entry with two times and no region, a point one with one time. What it shows is an attribute, whose
value is the id of an option, or several, or free text.
"""

import hashlib
import json
from base64 import urlsafe_b64encode
from collections.abc import Mapping
from copy import deepcopy
from csv import DictReader
from typing import Any

from hf_video.data.rows import TO_LABEL

from .table import Found, Medium, Table, name_in, new_name, row_of

_TEXT, _SEVERAL, _SELECT = 1, 2, 4
# What an attribute is of, by the number of times.
_ANCHORS = {1: "FILE1_Z1_XY0", 2: "FILE1_Z2_XY0"}
_BY_MODEL = "hf_video (model)"
_COLUMNS = "metadata_id,file_list,flags,temporal_coordinates,spatial_coordinates,metadata"


def read(table: Table) -> None:
    """Fills the table with the segments and points of all views."""
    project = table.json if table.file.suffix.lower() == ".json" else _project_of_csv(table)
    attributes, regions = project["attribute"], 0
    by_model = {key: each.get("desc") == _BY_MODEL for key, each in attributes.items()}
    left = {key for key, each in attributes.items() if not table.is_read(each["aname"], by_model[key])}
    kept = {key: each for key, each in attributes.items() if key not in left}
    for attribute in kept.values():
        for num_times, anchor in _ANCHORS.items():
            if attribute.get("anchor_id") == anchor and _may_be_class(table, attribute["aname"]):
                labels = (attribute.get("options") or {}).values()
                table.found.classes |= dict.fromkeys(labels, "point" if num_times == 1 else "state")
    for entry in project["metadata"].values():
        source, times, values = str(entry["vid"]), entry.get("z") or [], entry.get("av") or {}
        if entry.get("xy") or len(times) not in _ANCHORS:
            regions += 1
        elif not values or values.keys() - left:
            media = [table.medium(file, source) for file in _files(project, source)]
            if not media:
                table.report("no_media", source=source)
            for other in media[1:]:
                table.other_view(other, media[0], 0.0)
            if media and media[0] is not None:
                _add(table, media[0], source, times, kept, {key: values[key] for key in values if key not in left})
    if regions:
        table.report("not_temporal", count=regions)


def _may_be_class(table: Table, name: str) -> bool:
    chosen = table.choices.get("attribute")
    return chosen is None or name in ([chosen] if isinstance(chosen, str) else chosen)


def _add(
    table: Table, medium: Medium, source: str, times: list[float], attributes: Mapping[str, Any], values: Any
) -> None:
    """The rows of an entry: one for each class that it has."""
    found, is_known = dict[str, list[str]](), True
    for key, value in values.items():
        answers = _answers(attributes.get(key, {}), str(value))
        if None in answers:
            is_known = False
            table.report("undefined_class", media=medium.name, source=source, **{"class": value, "time": times[0]})
        if names := [name for name in answers if name]:
            found[attributes.get(key, {}).get("aname", key)] = names
    labelling = [name for name in found if _may_be_class(table, name)]
    if len(labelling) > 1:
        raise ValueError(
            f"{table.file}: an entry of {medium.name} at {times[0]:g} s has {', '.join(map(repr, labelling))}. Say "
            "which attribute is the class with the choice `attribute` (--choose attribute=NAME)."
        )
    if not labelling and is_known:
        told = dict(zip(("start", "end") if len(times) > 1 else ("instant",), times, strict=True))
        table.report("empty_value", media=medium.name, source=source, **told)
    for name in labelling:
        table.observe(medium, name)
        for label in found.pop(name):
            table.found.classes.setdefault(label, "state" if len(times) > 1 else "point")
            table.add(medium, row_of(source, label, modifiers=found), *times)


def _answers(attribute: Mapping[str, Any], value: str) -> list[str | None]:
    """The options that a value names by their ids, None for an unknown one; or the text itself."""
    options = attribute.get("options") or {}
    if attribute.get("type") == _TEXT or not options or value == "_DEFAULT":
        return [value.strip()] if value.strip() and value != "_DEFAULT" else []
    ids = value.split(",") if attribute.get("type") == _SEVERAL else [value]
    return [options.get(each.strip()) for each in ids if each.strip()]


def _files(project: Mapping[str, Any], view: str) -> list[str]:
    """The paths of the files of a view."""
    files = [project["file"][str(number)] for number in project["view"].get(view, {}).get("fid_list", ())]
    return [each["src"] if each.get("src") and each.get("loc") != 4 else each["fname"] for each in files]


def _project_of_csv(table: Table) -> dict[str, Any]:
    """What a project has of the entries in a CSV; a view is called as its first file."""
    lines = table.text.splitlines()
    told = [line.partition(" = ") for line in lines if line.startswith("#")]
    facts = {name.lstrip("# "): value for name, mark, value in told if mark}
    if "ATTRIBUTE" not in facts:
        raise ValueError(
            f"{table.file} has the ids of options without their names: no line begins with # ATTRIBUTE. Export all "
            "of the project from VIA, or give the project itself, a JSON file."
        )
    names = [name.strip() for name in facts.get("CSV_HEADER", _COLUMNS).split(",")]
    project: dict[str, Any] = {"attribute": json.loads(facts["ATTRIBUTE"]), "metadata": {}, "view": {}, "file": {}}
    for row in DictReader((line for line in lines if line[:1] not in ("", "#")), names):
        files, times, region, values = (json.loads(row[name]) for name in _COLUMNS.split(",")[1:] if name != "flags")
        view = name_in(files[0]) if files else ""
        project["metadata"][row["metadata_id"]] = {"vid": view, "z": times, "xy": region, "av": values}
        project["view"][view] = {"fid_list": files}
        project["file"] |= {file: {"fname": file} for file in files}
    return project


def render(table: Table, predictions: Found) -> str:
    """The project with the model's segments in a further attribute, and its points in another one."""
    if table.file.suffix.lower() != ".json":
        raise ValueError(f"{table.file} is an export; segments are written into the project itself, a JSON file.")
    project = deepcopy(table.json)
    attributes, views = project["attribute"], project["view"]
    # Attribute and option of each class, of points and of segments.
    keys: dict[tuple[int, str], dict[str, str]] = {}
    for times, anchor in reversed(_ANCHORS.items()):
        every = [each["class"] for found in predictions.values() for each in found if _num_times(each) == times]
        if every:
            labels = [*dict.fromkeys([*every, *table.choices.get("classes", ())])]
            name, by = (TO_LABEL, "") if TO_LABEL in labels else ("model", _BY_MODEL)
            options = {str(number): label for number, label in enumerate(labels, 1)}
            new = {"aname": new_name(name, {each.get("aname") for each in attributes.values()}), "anchor_id": anchor}
            key = str(max([int(each) for each in attributes if each.isdecimal()] or [0]) + 1)
            attributes[key] = new | {"type": _SELECT, "desc": by, "options": options, "default_option_id": ""}
            keys |= {(times, label): {key: option} for option, label in options.items()}
    shown = {view: [table.medium(file, view) for file in _files(project, view)] for view in views}
    for medium, found in predictions.items():
        of_medium = [view for view, media in shown.items() if medium in [each.name for each in media if each]]
        if not of_medium:
            raise ValueError(f"{table.file} has no view of {medium}: add the video in VIA first.")
        view = min(of_medium, key=lambda view: len(shown[view]))  # the one that shows the video alone
        for number, each in enumerate(found):
            value = keys[_num_times(each), each["class"]]
            digest = hashlib.sha256(f"{medium} {number} {json.dumps(each)} {value}".encode()).digest()
            span = [round(each["start"], 3), round(each["end"], 3)][: _num_times(each)]
            entry = {"vid": view, "flg": 0, "z": span, "xy": [], "av": value}
            project["metadata"][f"{view}_{urlsafe_b64encode(digest)[:8].decode()}"] = entry
    return json.dumps(project, separators=(",", ":"), ensure_ascii=False)


def _num_times(prediction: Mapping[str, Any]) -> int:
    return 1 if prediction["start"] == prediction["end"] else 2
