"""Behaviour binary tables that BORIS exports, one a subject: `time`, and for each class whether it goes on then, or
how many points lie between this row and the next. The name of the file is that of the observation and the subject."""

from csv import reader

import numpy as np

from hf_video.data.lists import find_delimiter

from .table import Medium, Table, number, row_of, runs


def is_table(text: str) -> bool:
    """Whether the first lines are of such a table."""
    names, *rows = _cells(text[: text.rfind("\n")])[:1000] or [[]]
    counts = [row[1:] for row in rows]
    is_count = all(cell.isdecimal() for row in counts for cell in row) and {len(row) for row in rows} == {len(names)}
    return (
        [name.casefold() for name in names[:1]] == ["time"]
        and len(names) > 1
        and is_count
        and None not in map(number, next(zip(*rows, strict=True)))
    )


def read(table: Table) -> None:
    """Fills the table with the runs of each class. What counts to more than one are points, in the middle of their
    share of the time to the next row."""
    (_, *names), *rows = _cells(table.text)
    medium, subject = _video(table)
    shown = np.array([[number(cell) or 0 for cell in row] for row in rows])
    is_point = (shown[:, 1:].max(axis=0) > 1).tolist()
    table.found.classes = {name: "point" if point else "state" for name, point in zip(names, is_point, strict=True)}
    if medium is None:
        return
    times = shown[:, 0]
    step = float(np.median(np.diff(times))) if len(times) > 1 else medium.duration
    # The last row is that of the end of the observation.
    borders = np.append(times, max(min(times[-1] + step, medium.duration), times[-1]))
    table.observe(medium, table.file.stem, borders[0], borders[-1])
    for name, counts, point in zip(names, shown[:, 1:].T, is_point, strict=True):
        of = row_of(name, name, subject)
        for start, end in () if point else runs(borders, counts > 0):
            table.add(medium, of, start, end)
        for place in np.flatnonzero(counts) if point else ():
            for share in np.arange(0.5, counts[place]) / counts[place]:
                table.add(medium, of, borders[place] + share * (borders[place + 1] - borders[place]))


def _cells(text: str) -> list[list[str]]:
    delimiter = find_delimiter(text.partition("\n")[0]) or ","
    return [[cell.strip() for cell in row] for row in reader(text.splitlines(), delimiter=delimiter) if any(row)]


def _video(table: Table) -> tuple[Medium | None, str]:
    """The video that the name of the file begins with, and the subject behind it."""
    stem = table.file.stem
    ends = [len(stem), *(place for place in range(len(stem) - 1, 0, -1) if stem[place] == "_")]
    end = next((end for end in ends if table.has_video(stem[:end])), len(stem))
    subject = stem[end + 1 :]
    return table.medium(stem[:end], table.file.name), "" if subject.casefold() == "no focal subject" else subject
