"""Annotations of ELAN (`.eaf`), which are XML.

A value is the class, and the participant of its tier the subject; a tier without any value is a class itself. Tiers
without times depend on others, and give modifiers. Times are milliseconds, and TIME_ORIGIN is added to them.
"""

import re
import xml.etree.ElementTree as ET
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np

from hf_video.data.rows import TO_LABEL
from hf_video.io import replace_file

from .table import Medium, Table, What

_BY_MODEL = "hf_video (model)"
_SOUND = (".wav", ".mp3", ".aif", ".aiff", ".flac", ".ogg", ".m4a")
ET.register_namespace("xsi", "http://www.w3.org/2001/XMLSchema-instance")


def load_document(file: Path) -> ET.Element:
    """The root of a document. Entities, which EAF does not have, are refused: they can name other files."""
    content = file.read_bytes()
    if re.search(rb"<!\0?(DOCTYPE|ENTITY|D\0O|E\0N)", content):
        raise ValueError(f"{file} has a DOCTYPE or entities, which no file of ELAN has.")
    try:
        root = ET.fromstring(content, ET.XMLParser(target=ET.TreeBuilder(insert_comments=True, insert_pis=True)))
    except ET.ParseError as error:
        raise ValueError(f"{file} cannot be read as XML: {error}.") from error
    if root.tag != "ANNOTATION_DOCUMENT":
        raise ValueError(f"{file} is a {root.tag}; an ANNOTATION_DOCUMENT of ELAN is expected.")
    return root


def read(table: Table) -> None:
    """Fills the table with the annotations of all tiers, or those of the choice `tiers`."""
    root = load_document(table.file)
    (medium, origin), *others = videos_of(table, root) or [(None, 0.0)]
    for other, other_origin in others:
        if medium is not None and other is not None:
            offset = round(other_origin - origin, 6)
            table.report("other_view", media=other.name, of=medium.name, offset=offset)
    slots = {each.get("TIME_SLOT_ID"): each.get("TIME_VALUE") for each in root.iter("TIME_SLOT")}
    modifiers, vocabularies = _modifiers(root), _vocabularies(root)
    chosen, is_class = table.choices.get("tiers"), table.choices.get("tier_is_class") or ()
    for tier in root.iter("TIER"):
        name, found = tier.get("TIER_ID", ""), [*tier.iter("ALIGNABLE_ANNOTATION")]
        if not found or (chosen is not None and name not in chosen):
            continue
        if not table.is_read(name, tier.get("ANNOTATOR") == _BY_MODEL):
            continue
        is_empty = name in is_class or not any(_value(each) for each in found)
        labels = [name] if is_empty else vocabularies.get(tier.get("LINGUISTIC_TYPE_REF"), [])
        table.found.classes |= dict.fromkeys(labels, "state")
        for annotation, (start, end, is_estimated) in zip(found, _times(found, slots), strict=True):
            if medium is None:
                continue
            table.observe_all(medium, name)
            label = name if is_empty else _value(annotation)
            times = {"start": round(start / 1000 + origin, 6), "end": round(end / 1000 + origin, 6)}
            if not label:
                table.report("empty_value", media=medium.name, source=name, **times)
                continue
            table.found.classes.setdefault(label, "state")
            what = What(name, tier.get("PARTICIPANT", ""), label, modifiers.get(annotation.get("ANNOTATION_ID"), {}))
            if is_estimated:
                table.report("estimated_time", media=medium.name, **what.columns(), **times)
            table.add(medium, what, times["start"], times["end"])


def videos_of(table: Table, root: ET.Element) -> list[tuple[Medium | None, float]]:
    """The videos, and the seconds at which annotations begin in each."""
    found = []
    for each in root.iter("MEDIA_DESCRIPTOR"):
        place, near = each.get("MEDIA_URL", ""), each.get("RELATIVE_MEDIA_URL", "")
        if each.get("MIME_TYPE", "").startswith("audio") or place.lower().endswith(_SOUND):
            continue
        written = near if near and (table.file.parent / near).is_file() else place or near
        found.append((table.medium(written, table.file.name), float(each.get("TIME_ORIGIN") or 0) / 1000))
    if not found:
        table.report("no_media", source=table.file.name)
    return found


def _value(annotation: ET.Element) -> str:
    return (annotation.findtext("ANNOTATION_VALUE") or "").strip()


def _times(annotations: Sequence[ET.Element], slots: Mapping[Any, str | None]) -> list[tuple[float, float, bool]]:
    """Start and end in milliseconds of the annotations of a tier, and whether one of them is estimated: slots without
    a time lie evenly between those of the annotations before and behind that have one."""
    values: list[float] = []
    places = []
    for annotation in annotations:
        start, end = (slots.get(annotation.get(f"TIME_SLOT_REF{each}")) for each in (1, 2))
        if not (start is None and values and np.isnan(values[-1])):  # else it begins where the one before ends
            values.append(np.nan if start is None else float(start))
        places.append(len(values) - 1)
        values.append(np.nan if end is None else float(end))
    is_known = ~np.isnan(values)
    filled = (
        np.interp(range(len(values)), np.flatnonzero(is_known), np.array(values)[is_known]) if any(is_known) else []
    )
    return [(filled[at], filled[at + 1], not is_known[at : at + 2].all()) for at in places] if any(is_known) else []


def _modifiers(root: ET.Element) -> dict[Any, dict[str, list[str]]]:
    """By the id of an annotation with times, the values of those that depend on it, also through others, by tier."""
    of = {each.get("ANNOTATION_ID"): each for each in root.iter("REF_ANNOTATION")}

    def follow(annotation: ET.Element, name: str) -> list[Any]:
        chain: list[Any] = [annotation.get(name)]
        while chain[-1] in of and len(chain) <= len(of):
            chain.append(of[chain[-1]].get(name))
        return chain

    found: dict[Any, dict[str, list[str]]] = defaultdict(dict)
    for tier in root.iter("TIER"):
        for each in sorted(tier.iter("REF_ANNOTATION"), key=lambda each: len(follow(each, "PREVIOUS_ANNOTATION"))):
            if value := _value(each):
                found[follow(each, "ANNOTATION_REF")[-1]].setdefault(tier.get("TIER_ID", ""), []).append(value)
    return found


def _vocabularies(root: ET.Element) -> dict[Any, list[str]]:
    """The values of the controlled vocabulary of each linguistic type."""
    values = {}
    for vocabulary in root.iter("CONTROLLED_VOCABULARY"):
        texts = [entry.findtext("CVE_VALUE") for entry in vocabulary.iter("CV_ENTRY_ML")]
        texts += [entry.text for entry in vocabulary.iter("CV_ENTRY")]
        values[vocabulary.get("CV_ID")] = [text.strip() for text in texts if text and text.strip()]
    return {
        each.get("LINGUISTIC_TYPE_ID"): values.get(each.get("CONTROLLED_VOCABULARY_REF"), [])
        for each in root.iter("LINGUISTIC_TYPE")
    }


def write(table: Table, predictions: Mapping[str, Sequence[Mapping[str, Any]]], output: Path) -> None:
    """Writes the document with further tiers of the model's segments, one a class; as annotations of a tier never
    overlap, a class that overlaps itself has several."""
    root = load_document(table.file)
    (name, found), *others = predictions.items()
    origins = {medium.name: origin for medium, origin in videos_of(table, root) if medium is not None}
    if others or name not in origins:
        raise ValueError(f"{table.file} is of {', '.join(origins)}, and the segments are of {', '.join(predictions)}.")
    rows = [(*(round((each[at] - origins[name]) * 1000) for at in ("start", "end")), each["class"]) for each in found]
    lanes: dict[tuple[str, int], list[tuple[int, int]]] = {}
    for start, end, label in sorted(rows):
        lane = 1
        while lanes.get((label, lane), [(0, start)])[-1][1] > start:
            lane += 1
        lanes.setdefault((label, lane), []).append((start, max(end, start + 1)))
    used = {each.get(name) for each in root.iter() for name in ("TIER_ID", "ANNOTATION_ID", "TIME_SLOT_ID")}
    last = next((each for each in root.iter("PROPERTY") if each.get("NAME") == "lastUsedAnnotationId"), ET.Element(""))
    number, order = max(int(last.text or 0), _highest("a", used)), root.find("TIME_ORDER")
    slot, slots = _highest("ts", used), [] if order is None else [*order]
    # A slot without a time stays behind the one before it.
    begins = [*accumulate((int(each.get("TIME_VALUE") or 0) for each in slots), max)]
    for (label, lane), times in lanes.items():
        title = _names(label, lane, used)
        facts = {} if label == TO_LABEL else {"ANNOTATOR": _BY_MODEL}
        facts |= {"LINGUISTIC_TYPE_REF": _free_type(root), "TIER_ID": title}
        tier = ET.Element("TIER", facts)
        tier.text = tier.tail = "\n    "
        for span in times:
            number += 1
            refs = {"ANNOTATION_ID": f"a{number}"}
            for place, time in enumerate(span, 1):
                slot += 1
                refs[f"TIME_SLOT_REF{place}"] = f"ts{slot}"
                begins.append(time)
                slots.append(ET.Element("TIME_SLOT", {"TIME_SLOT_ID": f"ts{slot}", "TIME_VALUE": str(time)}))
                slots[-1].tail = "\n        "
            each = ET.SubElement(ET.SubElement(tier, "ANNOTATION"), "ALIGNABLE_ANNOTATION", refs)
            ET.SubElement(each, "ANNOTATION_VALUE").text = label
        root.insert(_place(root, "TIER", "TIME_ORDER"), tier)
    if order is not None:
        order[:] = [slots[place] for place in sorted(range(len(slots)), key=begins.__getitem__)]
    if last.text:
        last.text = str(number)
    replace_file(output, lambda path: ET.ElementTree(root).write(path, encoding="UTF-8", xml_declaration=True))


def _names(label: str, lane: int, used: set[str | None]) -> str:
    """A name for a tier that is not used."""
    title = TO_LABEL if label == TO_LABEL else f"model {label}"
    while (name := title if lane == 1 else f"{title} {lane}") in used:
        lane += 1
    used.add(name)
    return name


def _highest(letters: str, ids: Iterable[str | None]) -> int:
    found = [re.fullmatch(rf"{letters}(\d+)", each or "") for each in ids]
    return max([int(each[1]) for each in found if each], default=0)


def _place(root: ET.Element, *tags: str) -> int:
    """The place behind the last element of some kinds."""
    return max(place for place, each in enumerate(root) if each.tag in tags) + 1


def _free_type(root: ET.Element) -> str:
    """A linguistic type with times of its own and any value; a new one if there is none."""
    types = [*root.iter("LINGUISTIC_TYPE")]
    for each in types:
        is_free = each.get("CONSTRAINTS") is None and each.get("CONTROLLED_VOCABULARY_REF") is None
        if is_free and each.get("TIME_ALIGNABLE") == "true":
            return each.get("LINGUISTIC_TYPE_ID", "")
    name = "model"
    while name in {each.get("LINGUISTIC_TYPE_ID") for each in types}:
        name += " "
    new = {"GRAPHIC_REFERENCES": "false", "LINGUISTIC_TYPE_ID": name, "TIME_ALIGNABLE": "true"}
    root.insert(_place(root, "TIER", "TIME_ORDER", "LINGUISTIC_TYPE"), ET.Element("LINGUISTIC_TYPE", new))
    return name
