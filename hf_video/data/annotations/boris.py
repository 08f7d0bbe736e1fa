"""Projects of BORIS (`.boris`, `.boris.gz`).

States have no start or stop in the file: they alternate for the same subject, class and modifiers. Times are those of
the files of player 1, one after the other, and the offset of the observation. Other players show the same moments.
"""

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from typing import Any

from hf_video.data.rows import TO_LABEL

from .table import ROUNDING, Found, Queued, Table, merged, new_name, row_of

# How the names of observations end that `render` makes.
BY_MODEL = re.compile(r" \(model( \d+)?\)$")
# In this order BORIS writes the keys of a class.
_NEW_CLASS: dict[str, Any] = dict.fromkeys(("type", "key", "code", "description", "color", "category"), "")
_NEW_CLASS |= {"modifiers": {}, "excluded": "", "coding map": ""}


def read(table: Table) -> None:
    """Fills the table with the rows of all observations."""
    classes = {each["code"]: each for each in table.json.get("behaviors_conf", {}).values()}
    table.found.classes = {code: _kind(each) for code, each in classes.items()}
    for name, observation in table.json["observations"].items():
        if table.is_read(name, BY_MODEL.search(name) is not None):
            _read_observation(table, name, observation, classes)


def _read_observation(table: Table, name: str, observation: Mapping[str, Any], classes: Mapping[str, Any]) -> None:
    queues, offset = _queues(table, name, observation)
    if not queues:
        return table.report("no_media", source=name)
    (_, queue), *others = queues.items()
    offsets = {"2": observation.get("time offset second player")} | _info(observation, "offset")
    for player, other in others:
        for number, (medium, begin, _) in enumerate(other):
            main = queue[min(number, len(queue) - 1)]
            later = round(main.begin - begin - float(offsets.get(player) or 0), 6) + 0.0
            table.other_view(medium, main.medium, later)
    start, end = observation.get("observation time interval") or (0, 0)
    for medium, begin, length in queue:
        since = max(start - begin, 0.0)
        table.observe(medium, name, *((since, max(since, min(end - begin, length))) if end > start else ()))

    def events() -> Iterator[tuple[float, Mapping[str, Any], str]]:
        for time, subject, code, modifiers, *_ in observation.get("events", ()):
            if time is not None and math.isfinite(time):
                known = classes.get(code)
                answers = answers_of(modifiers, [each.get("name", "") for each in _sets(known)])
                of = row_of(name, code, subject or "", answers)
                yield time - offset, of, _kind(known) if known else "undefined"

    return table.pair(queue, events())


def _queues(table: Table, name: str, observation: Mapping[str, Any]) -> tuple[dict[str, list[Queued]], float]:
    """The videos of each player that has any, and what times are more than those of the first one; nothing of an
    observation without videos."""
    files = (observation.get("file") or {}) if observation.get("type", "MEDIA") == "MEDIA" else {}
    players = sorted((player, paths) for player, paths in files.items() if paths)
    told = _info(observation, "fps"), _info(observation, "length")
    queues = {
        player: table.queue(paths, name, *([each.get(path) for path in paths] for each in told))
        for player, paths in players
    }
    created = _info(observation, "media_creation_time").get(players[0][1][0]) if players else None
    is_later = observation.get("media_creation_date_as_offset") and isinstance(created, int | float)
    return queues, float(observation.get("time offset") or 0) + (float(created or 0) if is_later else 0.0)


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


def answers_of(written: str, names: Sequence[str] = ()) -> dict[str, list[str]]:
    """The answers of modifiers, by the names of their sets or else #1, #2, ...: sets are joined by |, answers by a
    comma, and None is no answer."""
    found = {}
    for place, cell in enumerate(str(written or "").split("|")):
        if answers := [each.strip() for each in cell.split(",") if each.strip() not in ("", "None")]:
            found[(names[place] if place < len(names) else "") or f"#{place + 1}"] = answers
    return found


def render(table: Table, predictions: Found) -> str:
    """The project with a further observation of the model's segments for each that shows one of the videos."""
    project = deepcopy(table.json)
    observations, behaviours = project["observations"], project["behaviors_conf"]
    classes = {each["code"]: each for each in behaviours.values()}
    every = [each for found in predictions.values() for each in found]
    codes, states = {each["class"] for each in every}, {each["class"] for each in every if each["start"] < each["end"]}
    by = TO_LABEL if TO_LABEL in codes else "model"
    for code in sorted(codes.union(table.choices.get("classes", ())) - classes.keys()):
        kind = "Point event" if code in codes - states else "State event"
        new = _NEW_CLASS | {"type": kind, "code": code}
        classes[code] = behaviours[str(max(map(int, behaviours), default=-1) + 1)] = new
    left = set(predictions)
    for name, observation in [*observations.items()]:
        queues, offset = _queues(table, name, observation)
        queue = next(iter(queues.values()), [])
        if shown := [each for each in queue if each.medium is not None and each.medium.name in left]:
            events = [event for each in shown for event in _events(each, predictions, classes, offset)]
            new = deepcopy(observation) | {"events": sorted(events, key=lambda event: event[:3])}
            new |= {"observation time interval": [0, 0]} if by == TO_LABEL else {}
            observations[new_name(f"{name} ({by})", observations, f"{name} ({by} {{1}})")] = new
            left -= {each.medium.name for each in shown if each.medium is not None}
    if left:
        raise ValueError(f"{table.file} has no observation of {', '.join(sorted(left))}: add one in BORIS first.")
    return json.dumps(project)


def _events(queued: Queued, predictions: Found, classes: Mapping[str, Any], offset: float) -> Iterator[list[Any]]:
    """The events of the segments of a video. Segments of a class that touch are one, as two events of one moment are
    not told apart by every version."""
    medium, begin, _ = queued
    if medium is None:
        return
    for code, behaviour in classes.items():
        found = [dict(each) for each in predictions[medium.name] if each["class"] == code]
        is_point, modifiers = _kind(behaviour) == "point", "|".join(["None"] * len(_sets(behaviour)))
        if not is_point:
            frame = 1 / medium.fps
            found = merged((each | {"end": max(each["end"], each["start"] + frame)} for each in found), ROUNDING)
        for each in found:
            comment = f"{each['score']:.4g}" if "score" in each else ""
            times = [(each["start"] + each["end"]) / 2] if is_point else [each["start"], each["end"]]
            for time, text in zip(times, (comment, ""), strict=False):
                frame_index = math.floor(time * medium.fps + 1e-6)
                yield [round(time + begin + offset, 3), "", code, modifiers, text, frame_index]
