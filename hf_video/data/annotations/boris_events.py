"""Tables that BORIS exports: tabular events, a row for each start, stop and point; and aggregated events, a row for
each segment or point. Columns are found by their names, and the line of names by its content, as both changed."""

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from csv import reader

from .boris import BY_MODEL
from .table import Table, What, answers_of, number

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
        if table.is_read(name, BY_MODEL.search(name) is not None):
            _read_observation(table, name, of_one, sets, above)


def _read_observation(
    table: Table, name: str, rows: Sequence[dict[str, str]], sets: Sequence[str], above: Sequence[Sequence[str]]
) -> None:
    first = rows[0]
    players = _players(rows, above)
    if not players:
        table.report("no_media", source=name)
        return
    offset = number(first.get("Time offset (s)")) or number(_above(above, "Time offset (s)")) or 0.0
    rate = re.search(r"\d+([.,]\d+)?", first.get("FPS") or first.get("FPS (frame/s)") or "")
    told = [number(first.get("Media duration (s)"))] if len(players[0]) == 1 else ()
    queue = table.queue(players[0], name, [number(rate.group()) if rate else None] * len(players[0]), told)
    if all(medium is None for medium, *_ in queue):
        return
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


def _players(rows: Sequence[Mapping[str, str]], above: Sequence[Sequence[str]]) -> list[list[str]]:
    """The files of each player. Where no column has them, those of the events are what is known."""
    if source := rows[0].get("Source"):
        parts = re.split(r"\|?\s*player #\d+:", source, flags=re.IGNORECASE)[1:]
        return [[path.strip() for path in part.split(";") if path.strip()] for part in parts if part.strip("; ")]
    named = [row.get("Media file path") or row.get("Media file name") for row in rows]
    paths = dict.fromkeys(path.strip() for path in (*named, _above(above, "Media file path")) if path)
    found = [path for path in paths if path not in ("NA", "-", "LIVE", "Not found")]
    return [found] if found else []


def _above(lines: Sequence[Sequence[str]], name: str) -> str | None:
    """The value beside a name in the lines above the table."""
    return next((cells[1] for cells in lines if len(cells) > 1 and cells[0].rstrip(":") == name), None)
