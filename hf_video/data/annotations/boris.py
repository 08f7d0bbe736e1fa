"""Projects of BORIS (`.boris`, `.boris.gz`).

States have no start or stop in the file: they alternate for the same subject, class and modifiers. Times are those of
the files of player 1, one after the other, and the offset of the observation. Other players show the same moments.
"""

import gzip
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

from hf_video.data.rows import TO_LABEL
from hf_video.io import replace_file

from .table import ROUNDING, Queued, Table, What, answers_of

# How the names of observations end that `write` makes.
BY_MODEL = re.compile(r" \(model( \d+)?\)$")
# In this order BORIS writes the keys of a class.
_NEW_CLASS: dict[str, Any] = dict.fromkeys(("type", "key", "code", "description", "color", "category"), "")
_NEW_CLASS |= {"modifiers": {}, "excluded": "", "coding map": ""}


def read(table: Table) -> None:
    """Fills the table with the rows of all observations."""
    project = table.json
    classes = {each["code"]: each for each in project.get("behaviors_conf", {}).values()}
    table.found.classes = {code: _kind(each) for code, each in classes.items()}
    for name, observation in project["observations"].items():
        if table.is_read(name, BY_MODEL.search(name) is not None):
            _read_observation(table, name, observation, classes)


def _read_observation(table: Table, name: str, observation: Mapping[str, Any], classes: Mapping[str, Any]) -> None:
    players = players_of(observation)
    if not players:
        table.report("no_media", source=name)
        return
    queue, *others = (queue_of(table, name, observation, paths) for _, paths in players)
    offsets = {"2": observation.get("time offset second player")} | (_info(observation, "offset"))
    for (player, _), other in zip(players[1:], others, strict=True):
        for number, (medium, begin, _) in enumerate(other):
            main = queue[min(number, len(queue) - 1)]
            if medium is not None and main.medium is not None:
                offset = round(main.begin - begin - float(offsets.get(player) or 0), 6) + 0.0
                table.report("other_view", media=medium.name, of=main.medium.name, offset=offset)
    if all(medium is None for medium, *_ in queue):
        return
    offset = offset_of(observation, players[0][1])
    start, end = observation.get("observation time interval") or (0, 0)
    for medium, begin, length in queue:
        if medium is not None:
            if TO_LABEL in name or end <= start:
                table.observe_all(medium, name)
            else:
                span = max(start - begin, 0.0), min(end - begin, length)
                table.observe(medium, span[0], max(span))

    def events() -> Iterator[tuple[float, What, str]]:
        for time, subject, code, modifiers, *_ in observation.get("events", ()):
            if time is None or not math.isfinite(time):
                continue
            known = classes.get(code)
            answers = answers_of(modifiers, [each.get("name", "") for each in _sets(known)])
            yield time - offset, What(name, subject or "", code, answers), _kind(known) if known else "undefined"

    table.pair(queue, events())


def players_of(observation: Mapping[str, Any]) -> list[tuple[str, list[str]]]:
    """The players that have files, in their order, with these; none of an observation without videos."""
    if observation.get("type", "MEDIA") != "MEDIA":
        return []
    files = observation.get("file") or {}
    files = files if isinstance(files, dict) else {"1": files}
    return sorted((player, paths) for player, paths in files.items() if paths)


def offset_of(observation: Mapping[str, Any], paths: Sequence[str]) -> float:
    """What the times of an observation are more than those of its first player."""
    offset = float(observation.get("time offset") or 0)
    if observation.get("media_creation_date_as_offset"):
        created = _info(observation, "media_creation_time").get(paths[0])
        offset += float(created) if isinstance(created, int | float) else 0.0
    return offset


def queue_of(table: Table, name: str, observation: Mapping[str, Any], paths: Sequence[str]) -> list[Queued]:
    """The videos of a player."""
    facts = (_info(observation, fact) for fact in ("fps", "length"))
    return table.queue(paths, name, *([each.get(path) for path in paths] for each in facts))


def _info(observation: Mapping[str, Any], fact: str) -> dict[str, Any]:
    return (observation.get("media_info") or {}).get(fact) or {}


def _kind(behaviour: Mapping[str, Any]) -> str:
    return "point" if behaviour.get("type", "").startswith("Point") else "state"


def _sets(behaviour: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    """The modifier sets of a class: a dictionary by "0", "1", ... today; before version 4 a text, before that a list,
    both without names."""
    modifiers = (behaviour or {}).get("modifiers") or {}
    if isinstance(modifiers, dict):
        return [modifiers[key] for key in sorted(modifiers, key=int)]
    return [{}] * (len(modifiers) if isinstance(modifiers, list) else modifiers.count("|") + 1)


def write(table: Table, predictions: Mapping[str, Sequence[Mapping[str, Any]]], output: Path) -> None:
    """Writes the project with a further observation of the model's segments for each that shows one of the videos."""
    project = deepcopy(table.json)
    classes = {each["code"]: each for each in project["behaviors_conf"].values()}
    every = [each for found in predictions.values() for each in found]
    codes = {each["class"] for each in every}
    points = codes - {each["class"] for each in every if each["start"] < each["end"]}
    by = TO_LABEL if TO_LABEL in codes else "model"
    for code in sorted(codes.union(table.choices.get("classes", ())) - classes.keys()):
        key = str(max(map(int, project["behaviors_conf"]), default=-1) + 1)
        kind = "Point event" if code in points else "State event"
        classes[code] = project["behaviors_conf"][key] = _NEW_CLASS | {"type": kind, "code": code}
    left = set(predictions)
    for name, observation in [*project["observations"].items()]:
        players = players_of(observation)
        if not players or table.choices.get("observation", name) != name:
            continue
        queue, offset = queue_of(table, name, observation, players[0][1]), offset_of(observation, players[0][1])
        shown = [each for each in queue if each.medium is not None and each.medium.name in left]
        if shown:
            new, count = f"{name} ({by})", 2
            while new in project["observations"]:
                new, count = f"{name} ({by} {count})", count + 1
            events = [event for each in shown for event in _events(each, predictions, classes, offset)]
            events.sort(key=lambda event: event[:3])
            project["observations"][new] = deepcopy(observation) | {"events": events}
            if by == TO_LABEL:
                project["observations"][new]["observation time interval"] = [0, 0]
            left -= {each.medium.name for each in shown if each.medium is not None}
    if left:
        raise ValueError(f"{table.file} has no observation of {', '.join(sorted(left))}: add one in BORIS first.")
    content = json.dumps(project).encode("ascii")
    replace_file(output, lambda path: path.write_bytes(gzip.compress(content) if output.suffix == ".gz" else content))


def _events(
    queued: Queued, predictions: Mapping[str, Any], classes: Mapping[str, Any], offset: float
) -> Iterator[list[Any]]:
    """The events of the segments of a video. Segments of a class that touch are one, as two events of one moment are
    not told apart by every version."""
    medium, begin, _ = queued
    if medium is None:
        return
    merged: dict[str, list[dict[str, Any]]] = {}
    for each in sorted(predictions[medium.name], key=lambda each: each["start"]):
        found, is_point = merged.setdefault(each["class"], []), _kind(classes[each["class"]]) == "point"
        if found and not is_point and each["start"] <= found[-1]["end"] + ROUNDING:
            found[-1]["end"] = max(found[-1]["end"], each["end"])
            found[-1]["score"] = max(found[-1].get("score", 0), each.get("score", 0))
        else:
            middle, end = (each["start"] + each["end"]) / 2, max(each["end"], each["start"] + 1 / medium.fps)
            found.append(dict(each) | ({"start": middle, "end": middle} if is_point else {"end": end}))
    for code, found in merged.items():
        modifiers = "|".join(["None"] * len(_sets(classes[code])))
        for each in found:
            comment = f"{each['score']:.4g}" if "score" in each else ""
            ends = [(each["start"], comment), (each["end"], "")][: 1 if _kind(classes[code]) == "point" else 2]
            for time, comment in ends:
                frame = math.floor(time * medium.fps + 1e-6)
                yield [round(time + begin + offset, 3), "", code, modifiers, comment, frame]
