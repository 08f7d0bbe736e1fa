"""The tables of a plan, as Markdown or JSON."""

import json
from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from .clip_plan import ASSUMPTIONS, ClipCost, plan_storage, plan_use, stage_limits

SCALES = (1_000_000, 100_000_000)


@dataclass(frozen=True)
class RowCost:
    """What a row of an index costs, in bytes and seconds.

    Attributes:
        file_bytes: in the file.
        memory_bytes, seconds: to list it for a training.
        order_bytes: its place in the shuffled order of an epoch.
        driver_bytes, driver_seconds: to list it for extraction, and to hand it to Ray in a part.
    """

    file_bytes: float
    memory_bytes: float
    seconds: float
    order_bytes: float
    driver_bytes: float
    driver_seconds: float


class Table(NamedTuple):
    """A title, the format of each column by its heading, and the rows."""

    title: str
    columns: Mapping[str, str]
    rows: list[tuple[Any, ...]]


def make_tables(
    costs: Mapping[tuple[str, str], ClipCost], row: RowCost, packing: tuple[float, float], given: Namespace
) -> list[Table]:
    case = {"video": "", "frames": ""}
    clip = {"core ms": ".0f", "MB stored": ".2f", "MB fetched": ".2f", "requests": ".1f", "MB of pixels": ".1f"}
    tables = [
        Table(
            "**A clip of 16 frames**, measured",
            case | clip,
            [
                (
                    *of,
                    cost.core_seconds * 1e3,
                    *(part / 1e6 for part in (cost.stored_bytes, cost.fetched_bytes)),
                    cost.num_requests,
                    cost.pixel_bytes / 1e6,
                )
                for of, cost in costs.items()
            ],
        ),
        Table(
            "**A row of an index, and packing**, measured",
            {"what": "", "value": ",.0f", "unit": ""},
            [
                ("a row in the file", row.file_bytes, "bytes"),
                ("a row in the memory of a training", row.memory_bytes, "bytes"),
                ("its place in the order of an epoch", row.order_bytes, "bytes"),
                ("rows that a training lists", 1 / row.seconds, "a core second"),
                ("a row in the memory of the driver of Ray", row.driver_bytes, "bytes"),
                ("rows that the driver lists and hands out", 1 / row.driver_seconds, "a core second"),
                ("packing, with reading back", packing[0] / 1e6, "MB a core second"),
                ("SHA-256 of a video that is read", packing[1] / 1e6, "MB a core second"),
            ],
        ),
        Table(
            "**Assumed**",
            {"option": "", "value": "g", "what it is": "", "source": ""},
            [
                (f"`--{name}`", getattr(given, name.replace("-", "_")), what, source)
                for name, _, what, source in ASSUMPTIONS
            ],
        ),
    ]
    columns = {"clips": ",", "video": "", "TB": ",.1f", "shards": ",.0f", "GB of index": ",.1f"}
    columns |= {"GB of features": ",.1f", "core hours to pack": ",.0f", "$ a month": ",.0f"}
    stored = {kind.split(",")[0]: cost.stored_bytes for (kind, _), cost in costs.items()}
    tables.append(
        Table(
            "**Stored**, one clip of each video",
            columns,
            [
                (clips, kind, *plan_storage(clips, size, row.file_bytes, packing[0], given).values())
                for clips in SCALES
                for kind, size in stored.items()
            ],
        )
    )
    columns = {"cores a GPU": ",.0f", "MB/s a GPU": ",.0f", "clips/s": ",.0f", "limit": "", "rented cores": ",.0f"}
    columns |= {"core hours": ",.0f", "GPU hours": ",.1f", "hours": ",.1f", "$": ",.0f"}
    uses = {"an epoch of training": (given.train_clips, False), "features once": (given.feature_clips, True)}
    for use, (rate, rents) in uses.items():
        tables += [
            Table(
                f"**{clips:,} clips, {use}**, one machine, {given.gpus} GPUs of {rate:g} clips/s",
                case | columns,
                [(*of, *plan_use(clips, cost, rate, given, rents=rents).values()) for of, cost in costs.items()],
            )
            for clips in SCALES
        ]
    stages = ("decoding, a machine", "network, a machine", "pixels, a machine", "object store, a prefix")
    tables.append(
        Table(
            f"**Where a stage saturates**, in clips/s; the GPUs of a machine train on "
            f"{given.gpus * given.train_clips:,.0f} and take {given.gpus * given.feature_clips:,.0f} for features",
            case | dict.fromkeys(stages, ",.0f"),
            [(*of, *stage_limits(cost, given).values()) for of, cost in costs.items()],
        )
    )
    process_bytes = given.memory * 2**30 / given.gpus
    tables.append(
        Table(
            "**Where lists saturate**",
            {"what": "", "rows": ",.0f"},
            [
                (
                    "fill a machine that trains, a process for each GPU",
                    process_bytes / (row.memory_bytes + row.order_bytes),
                ),
                ("are listed by a training in a minute", 60 / row.seconds),
                ("fill the driver of Ray", given.driver_memory * 2**30 / row.driver_bytes),
                ("are listed and handed out by the driver in a minute", 60 / row.driver_seconds),
            ],
        )
    )
    return tables


def print_table(table: Table) -> None:
    """Prints Markdown."""
    print(f"\n{table.title}\n\n| {' | '.join(table.columns)} |\n|{'---|' * len(table.columns)}")
    for row in table.rows:
        cells = (format(value, spec) for value, spec in zip(row, table.columns.values(), strict=True))
        print(f"| {' | '.join(cells)} |")


def print_json(tables: Sequence[Table]) -> None:
    """Prints a list of tables, each with its title and its rows by column, with all digits."""
    found = [
        {"title": table.title, "rows": [dict(zip(table.columns, row, strict=True)) for row in table.rows]}
        for table in tables
    ]
    print(json.dumps(found, indent=1))
