"""Annotations of ELAN (`.eaf`), which are XML.

A value is the class, and the participant of its tier the subject; a tier without any value is a class itself. Tiers
without times depend on others, and give modifiers. Times are milliseconds, and TIME_ORIGIN is added to them.
"""

import re
import xml.etree.ElementTree as ET
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, count
from typing import Any

import numpy as np

from hf_video.data.rows import TO_LABEL

from .table import ROUNDING, Found, Medium, Table, merged, new_name, row_of

# Of the tiers that `render` makes: the annotator, and the linguistic type, with times of its own and any value.
_BY_MODEL, _TYPE = "hf_video (model)", "hf_video"
_SOUND = (".wav", ".mp3", ".aif", ".aiff", ".flac", ".ogg", ".m4a")
ET.register_namespace("xsi", "http://www.w3.org/2001/XMLSchema-instance")


def _root(table: Table) -> ET.Element:
    """The root of the document. Entities, which EAF does not have, are refused: they can name other files."""
    if re.search("<!(DOCTYPE|ENTITY)", table.text):
        raise ValueError(f"{table.file} has a DOCTYPE or entities, which no file of ELAN has.")
    try:
        root = ET.fromstring(table.text, ET.XMLParser(target=ET.TreeBuilder(insert_comments=True, insert_pis=True)))
    except ET.ParseError as error:
        raise ValueError(f"{table.file} cannot be read as XML: {error}.") from error
    if root.tag != "ANNOTATION_DOCUMENT":
        raise ValueError(f"{table.file} is a {root.tag}; an ANNOTATION_DOCUMENT of ELAN is expected.")
    return root


def read(table: Table) -> None:
    """Fills the table with the annotations of all tiers, or those of the choice `tiers`."""
    root = _root(table)
    (medium, origin), *others = _videos(table, root) or [(None, 0.0)]
    for other, other_origin in others:
        table.other_view(other, medium, round(other_origin - origin, 6))
    slots = {each.get("TIME_SLOT_ID"): each.get("TIME_VALUE") for each in root.iter("TIME_SLOT")}
    modifiers, vocabularies = _modifiers(root), _vocabularies(root)
    chosen, classes = table.choices.get("tiers"), table.choices.get("tier_is_class") or ()
    for tier in root.iter("TIER"):
        name, found = tier.get("TIER_ID", ""), [*tier.iter("ALIGNABLE_ANNOTATION")]
        if not found or (chosen is not None and name not in chosen):
            continue
        if not table.is_read(name, tier.get("ANNOTATOR") == _BY_MODEL):
            continue
        is_class = name in classes or not any(map(_value, found))
        declared = [name] if is_class else vocabularies.get(tier.get("LINGUISTIC_TYPE_REF"), [])
        labels = [name if is_class else _value(each) for each in found]
        table.found.classes |= dict.fromkeys(filter(None, [*declared, *labels]), "state")
        table.observe(medium, name)
        for annotation, label, (start, end, is_estimated) in zip(found, labels, _times(found, slots), strict=False):
            times = {"start": round(start / 1000 + origin, 6), "end": round(end / 1000 + origin, 6)}
            of = row_of(name, label, tier.get("PARTICIPANT", ""), modifiers.get(annotation.get("ANNOTATION_ID")))
            if label:
                table.add(medium, of, **times)
            if medium is not None and not label:
                table.report("empty_value", media=medium.name, source=name, **times)
            elif medium is not None and is_estimated:
                table.report("estimated_time", media=medium.name, **of, **times)


def _videos(table: Table, root: ET.Element) -> list[tuple[Medium | None, float]]:
    """The videos, and the seconds at which annotations begin in each."""
    found = []
    for each in root.iter("MEDIA_DESCRIPTOR"):
        place, near = each.get("MEDIA_URL", ""), each.get("RELATIVE_MEDIA_URL", "")
        if not each.get("MIME_TYPE", "").startswith("audio") and not place.lower().endswith(_SOUND):
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
    values, places = list[float](), list[int]()
    for each in annotations:
        times = [float(slots.get(each.get(f"TIME_SLOT_REF{number}")) or "nan") for number in (1, 2)]
        begins_at_last = values and np.isnan([values[-1], times[0]]).all()
        values += times[1:] if begins_at_last else times
        places.append(len(values) - 2)
    known = np.flatnonzero(~np.isnan(values))
    if not len(known):
        return []
    filled = np.interp(range(len(values)), known, np.array(values)[known])
    return [(filled[at], filled[at + 1], bool(np.isnan(values[at : at + 2]).any())) for at in places]


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
        texts = [entry.findtext("CVE_VALUE") or entry.text or "" for entry in vocabulary if "ENTRY" in str(entry.tag)]
        values[vocabulary.get("CV_ID")] = [text.strip() for text in texts]
    types = root.iter("LINGUISTIC_TYPE")
    return {each.get("LINGUISTIC_TYPE_ID"): values.get(each.get("CONTROLLED_VOCABULARY_REF"), []) for each in types}


def render(table: Table, predictions: Found) -> str:
    """The document with further tiers of the model's segments, one a class. As annotations of a tier never overlap,
    segments of a class that do are one."""
    root = _root(table)
    (medium, found), *others = predictions.items()
    origins = {each.name: origin for each, origin in _videos(table, root) if each is not None}
    if others or medium not in origins:
        raise ValueError(f"{table.file} is of {', '.join(origins)}, and the segments are of {', '.join(predictions)}.")
    ids, slot_ids = _free_numbers(root, "ANNOTATION_ID"), _free_numbers(root, "TIME_SLOT_ID")
    (order,) = root.iter("TIME_ORDER")
    slots = [*order]
    # A slot without a time stays behind the one before it.
    begins = [*accumulate((int(each.get("TIME_VALUE") or 0) for each in slots), max)]
    tiers, used = [], {each.get("TIER_ID") for each in root.iter("TIER")}
    for label in sorted({each["class"] for each in found}):
        title, facts = (label, {}) if label == TO_LABEL else (f"model {label}", {"ANNOTATOR": _BY_MODEL})
        tiers.append(ET.Element("TIER", {**facts, "LINGUISTIC_TYPE_REF": _TYPE, "TIER_ID": new_name(title, used)}))
        for each in merged((each for each in found if each["class"] == label), -ROUNDING):
            start, end = (round((each[name] - origins[medium]) * 1000) for name in ("start", "end"))
            refs = {"ANNOTATION_ID": f"a{(last := next(ids))}"}
            for place, time in enumerate((start, max(end, start + 1)), 1):
                refs[f"TIME_SLOT_REF{place}"] = slot = f"ts{next(slot_ids)}"
                slots.append(ET.Element("TIME_SLOT", {"TIME_SLOT_ID": slot, "TIME_VALUE": str(time)}))
                begins.append(time)
            new = ET.SubElement(ET.SubElement(tiers[-1], "ANNOTATION"), "ALIGNABLE_ANNOTATION", refs)
            ET.SubElement(new, "ANNOTATION_VALUE").text = label
    order[:] = [slots[place] for place in sorted(range(len(slots)), key=begins.__getitem__)]
    if _TYPE not in [each.get("LINGUISTIC_TYPE_ID") for each in root.iter("LINGUISTIC_TYPE")]:
        facts = {"GRAPHIC_REFERENCES": "false", "LINGUISTIC_TYPE_ID": _TYPE, "TIME_ALIGNABLE": "true"}
        tiers.append(ET.Element("LINGUISTIC_TYPE", facts))
    place = max(place for place, each in enumerate(root, 1) if each.tag in ("TIER", "TIME_ORDER"))
    root[place:place] = tiers
    for fact in root.iter("PROPERTY"):
        if fact.get("NAME") == "lastUsedAnnotationId":
            fact.text = str(last)
    ET.indent(root, "    ")
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{ET.tostring(root, encoding="unicode")}\n'


def _free_numbers(root: ET.Element, name: str) -> Iterator[int]:
    """Numbers that are in no id."""
    used = [each.get(name, "") for each in root.iter()]
    used += [each.text or "" for each in root.iter("PROPERTY") if each.get("NAME") == "lastUsedAnnotationId"]
    return count(max((int(found[0]) for each in used if (found := re.search(r"\d+$", each))), default=0) + 1)
