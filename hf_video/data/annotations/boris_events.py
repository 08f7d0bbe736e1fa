"""Tables that BORIS exports: tabular events, a row for each start, stop and point; and aggregated events, a row for
each segment or point. Columns are found by their names, and the line of names by its content, as both changed."""

import re
from collections import defaultdict
from collections.abc import Sequence
from csv import reader
from itertools import accumulate
from typing import Any

from .table import Queued, Table, What, answers_of, number

_NO_SUBJECT = "No focal subject"


def find_header(text: str) -> tuple[int, list[str], str] | None:
    """The number of the line with the names of the columns, these, and what separates them; None if the text is no
    table of events."""
    for place, line in enumerate(text.splitlines()[:200]):
        for delimiter in "\t", ",", ";":
            names = [name.strip() for name in next(reader([line], delimiter=delimiter), [])]
            if {"Subject", "Behavior"} <= {*names} and {"Time", "Start (s)"} & {*names}:
                return place, names, delimiter
    return None


def read(table: Table) -> None:
    """Fills the table with the rows of all observations."""
    header = find_header(table.text)
    if header is None:
        raise ValueError(f"{table.file} has no line with the columns Subject, Behavior and Time or Start (s).")
    place, names, delimiter = header
    lines = table.text.splitlines()
    above = [[cell.strip() for cell in cells] for cells in reader(lines[:place], delimiter=delimiter) if cells]
    rows = [
        dict(zip(names, cells, strict=False))
        for cells in reader(lines[place + 1 :], delimiter=delimiter)
        if any(cells)
    ]
    sets = [name for name in names if re.fullmatch(r"Modifier #?\d+", name)]
    by_observation = defaultdict(list)
    for row in rows:
        by_observation[row.get("Observation id") or _above(above, "Observation id") or table.file.stem].append(row)
    for name, of_one in by_observation.items():
        _read_observation(table, name, of_one, sets, above)


def _read_observation(
    table: Table, name: str, rows: Sequence[dict[str, str]], sets: Sequence[str], above: Sequence[Sequence[str]]
) -> None:
    first = rows[0]
    players = _players(first, above)
    if not players:
        table.report("no_media", source=name)
        return
    offset = number(first.get("Time offset (s)")) or number(_above(above, "Time offset (s)")) or 0.0
    rate = re.search(r"\d+([.,]\d+)?", first.get("FPS") or first.get("FPS (frame/s)") or "")
    media = [table.medium(path, name, number(rate.group()) if rate else None) for path in players[0]]
    if all(medium is None for medium in media):
        return
    told = number(first.get("Media duration (s)")) or 0.0
    rest = max(0.0, told - sum(medium.duration for medium in media if medium is not None))
    lengths = [rest if medium is None else medium.duration for medium in media]
    queue = [Queued(*each) for each in zip(media, accumulate(lengths, initial=0.0), lengths, strict=False)]
    for others in players[1:]:
        for path, (main, *_) in zip(others, queue, strict=False):
            if main is not None and (other := table.medium(path, name)) is not None:
                table.report("other_view", media=other.name, of=main.name, offset=None)  # the table does not say it
    events = []
    for row in rows:
        subject = row["Subject"].strip()
        written = "|".join(row.get(each) or "" for each in sets) or row.get("Modifiers")
        subject = "" if subject.casefold() == _NO_SUBJECT.casefold() else subject
        what = What(name, subject, row["Behavior"].strip(), answers_of(written or ""))
        kind = (row.get("Behavior type") or row.get("Status") or "").strip().lower()
        start, end = number(row.get("Start (s)", row.get("Time"))), number(row.get("Stop (s)"))
        if start is None:
            continue
        if "Start (s)" not in row:
            events.append((start - offset, what, kind if kind in ("start", "stop", "point") else "state"))
        elif kind == "point" or end is None or end == start:
            table.add_to_queue(queue, what, start - offset)
        else:
            table.add_to_queue(queue, what, start - offset, end - offset)
    table.pair(queue, events)


def _players(row: dict[str, Any], above: Sequence[Sequence[str]]) -> list[list[str]]:
    """The files of each player."""
    source = row.get("Source") or ""
    if not source:
        path = row.get("Media file path") or row.get("Media file name") or _above(above, "Media file path")
        return [[path.strip()]] if path and path.strip() not in ("NA", "-", "LIVE") else []
    parts = re.split(r"\|?\s*player #\d+:", source, flags=re.IGNORECASE)[1:]
    return [[path.strip() for path in part.split(";") if path.strip()] for part in parts if part.strip("; ")]


def _above(lines: Sequence[Sequence[str]], name: str) -> str | None:
    """The value beside a name in the lines above the table."""
    return next((cells[1] for cells in lines if len(cells) > 1 and cells[0].rstrip(":") == name), None)
