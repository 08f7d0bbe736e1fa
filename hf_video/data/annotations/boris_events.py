"""Tables that BORIS exports: tabular events, a row for each start, stop and point; and aggregated events, a row for
each segment or point. Columns are found by their names, and the line of names by its content, as both changed."""

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from csv import reader

from .boris import BY_MODEL, answers_of
from .table import Table, number, row_of


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
    lines = [[cell.strip() for cell in cells] for cells in reader(table.text.splitlines(), delimiter=delimiter)]
    # What lines above the table say is of all rows.
    above = {cells[0].rstrip(":"): cells[1] for cells in reversed(lines[:place]) if len(cells) > 1}
    by_observation = defaultdict(list)
    for cells in lines[place + 1 :]:
        row = above | {name: cell for name, cell in zip(names, cells, strict=False) if cell}
        if any(cells):
            by_observation[row.get("Observation id", table.file.stem)].append(row)
    sets = [name for name in names if re.fullmatch(r"Modifier #?\d+", name)]
    for name, rows in by_observation.items():
        if table.is_read(name, BY_MODEL.search(name) is not None):
            _read_observation(table, name, rows, sets)


def _read_observation(table: Table, name: str, rows: Sequence[dict[str, str]], sets: Sequence[str]) -> None:
    first, players = rows[0], _players(rows)
    if not players:
        return table.report("no_media", source=name)
    rate = re.search(r"\d+([.,]\d+)?", first.get("FPS") or first.get("FPS (frame/s)") or "")
    told = [number(first.get("Media duration (s)"))] if len(players[0]) == 1 else ()
    queue = table.queue(players[0], name, [number(rate.group()) if rate else None] * len(players[0]), told)
    for others in players[1:]:
        for path, (main, *_) in zip(others, queue, strict=False):
            if main is not None:
                table.other_view(table.medium(path, name), main, None)  # the table does not say the offset
    offset, events = number(first.get("Time offset (s)")) or 0.0, []
    for row in rows:
        subject = row.get("Subject", "")
        written = "|".join(row.get(each, "") for each in sets) or row.get("Modifiers", "")
        subject = "" if subject.casefold() == "no focal subject" else subject
        of = row_of(name, row.get("Behavior", ""), subject, answers_of(written))
        kind = (row.get("Behavior type") or row.get("Status") or "").lower()
        start, end = number(row.get("Start (s)", row.get("Time"))), number(row.get("Stop (s)"))
        if start is None:
            continue
        if "Start (s)" not in row:
            events.append((start - offset, of, kind if kind in ("start", "stop", "point") else "state"))
        elif kind == "point" or end is None or end == start:
            events.append((start - offset, of, "point"))
        else:
            events += [(start - offset, of, "start"), (end - offset, of, "stop")]
    return table.pair(queue, events)


def _players(rows: Sequence[Mapping[str, str]]) -> list[list[str]]:
    """The files of each player. Where no column has them, those of the events are what is known."""
    if source := rows[0].get("Source"):
        parts = re.split(r"\|?\s*player #\d+:", source, flags=re.IGNORECASE)[1:]
        return [[path.strip() for path in part.split(";") if path.strip()] for part in parts if part.strip("; ")]
    named = dict.fromkeys(row.get("Media file path") or row.get("Media file name") for row in rows)
    found = [path for path in named if path and path not in ("NA", "-", "LIVE", "Not found")]
    return [found] if found else []
