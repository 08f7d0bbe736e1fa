"""The formulas of benchmarks/scale_plan.py, and its tables in docs/scale.md."""

import argparse
import importlib
import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CASES = [
    (video, frames)
    for frames in ("dense", "uniform")
    for video in ("10 s, packed", "5 min, whole", "5 min, by ranges")
]


@pytest.fixture(autouse=True)
def benchmarks(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")


@pytest.fixture
def plan():
    return importlib.import_module("helpers.clip_plan")


@pytest.fixture
def given(plan):
    """Machines with 2 GPUs, 10 cores, and 1 GB/s."""
    parser = argparse.ArgumentParser()
    plan.add_assumptions(parser)
    given = parser.parse_args([])
    given.gpus, given.cores, given.network, given.requests, given.feature_size = 2, 10, 8.0, 6000.0, 500
    given.gpu_price, given.core_price, given.storage_price, given.request_price = 2.0, 0.1, 20.0, 0.5
    return given


@pytest.fixture
def tables(given):
    module = importlib.import_module("helpers.plan_tables")
    cost = module.ClipCost(1, 1, 1, 1, 1)
    return module.make_tables(dict.fromkeys(CASES, cost), module.RowCost(1, 1, 1, 1, 1, 1), (1, 1), given)


def cost(plan, **changes):
    """50 ms of a core, 0.2 MB fetched, 4 MB of pixels."""
    facts = {
        "stored_bytes": 250_000,
        "core_seconds": 0.05,
        "fetched_bytes": 2e5,
        "num_requests": 3,
        "pixel_bytes": 4e6,
    }
    return plan.ClipCost(**facts | changes)


@pytest.mark.parametrize(
    ("rate", "changes", "clips", "limit"),
    [
        (50, {}, 100, "GPUs"),
        (300, {}, 200, "decoding"),  # 10 cores, 50 ms
        (300, {"fetched_bytes": 1e7}, 100, "network"),
    ],
)
def test_a_machine_that_trains_is_as_fast_as_its_slowest_stage(plan, given, rate, changes, clips, limit):
    speed = plan.machine_speed(cost(plan, **changes), rate, given, rents=False)
    assert speed == plan.Speed(pytest.approx(clips), 0, limit)


@pytest.mark.parametrize(
    ("rate", "changes", "clips", "rented", "limit"),
    [
        (50, {}, 100, 0, "GPUs"),
        (150, {}, 300, 100, "GPUs"),
        (300, {}, 440, 240, "network"),  # 200 clips as 40 MB of videos, the others as 960 MB of pixels
        (300, {"fetched_bytes": 1e7}, 250, 250, "network"),  # pixels are fewer bytes than videos
    ],
)
def test_extraction_rents_cores_until_pixels_fill_the_network(plan, given, rate, changes, clips, rented, limit):
    speed = plan.machine_speed(cost(plan, **changes), rate, given, rents=True)
    assert speed == plan.Speed(pytest.approx(clips), pytest.approx(rented), limit)


def test_a_use_costs_its_gpus_the_cores_beside_them_and_requests(plan, given):
    found = plan.plan_use(3_240_000, cost(plan), 150.0, given, rents=True)
    assert found == {
        "cores_per_gpu": pytest.approx(7.5),
        "megabytes_per_second_per_gpu": pytest.approx(30),
        "clips_per_second": pytest.approx(300),
        "limit": "GPUs",
        "rented_cores": pytest.approx(5),
        "core_hours": pytest.approx(45),
        "gpu_hours": pytest.approx(6),
        "hours": pytest.approx(3),
        "dollars": pytest.approx(3 * (2 * 2 + 5 * 0.1) + 3.24 * 3 * 0.5),
    }


def test_gpus_that_wait_cost_more(plan, given):
    fast = plan.plan_use(10**6, cost(plan), 100.0, given, rents=False)
    waiting = plan.plan_use(10**6, cost(plan, core_seconds=0.1), 100.0, given, rents=False)
    assert (fast["limit"], waiting["limit"]) == ("GPUs", "decoding")
    assert waiting["gpu_hours"] == pytest.approx(2 * fast["gpu_hours"])


def test_what_is_stored_follows_from_bytes(plan, given):
    assert plan.plan_storage(3_600_001, 250_000, 150, 5e7, given) == pytest.approx(
        {
            "terabytes": 0.9,
            "shards": 901,
            "index_gigabytes": 0.54,
            "feature_gigabytes": 7.2,
            "pack_core_hours": 5,
            "dollars_a_month": 18,
        },
        rel=1e-5,
    )


def test_a_stage_saturates_where_its_machine_does(plan, given):
    assert plan.stage_limits(cost(plan), given) == pytest.approx(
        {"decoding": 200, "network": 5000, "network_of_pixels": 250, "prefix": 2000}
    )


def test_json_has_the_rows_of_the_tables(tables, capsys):
    importlib.import_module("helpers.plan_tables").print_json(tables)
    found = json.loads(capsys.readouterr().out)
    assert [table["title"] for table in found] == [table.title for table in tables]
    assert found[0]["rows"][0] == {
        **dict.fromkeys(tables[0].columns, pytest.approx(1, abs=1)),
        "video": "10 s, packed",
        "frames": "dense",
        "core ms": 1000,
    }


def test_the_page_has_the_tables_of_the_script(tables, capsys):
    def shape(line):
        line = re.sub(r"\| (GPUs|decoding|network)(?= \|)", "| LIMIT", line)
        return re.sub(r"(?<![\w-])\d[\d,.]*", "N", line)

    for table in tables:
        importlib.import_module("helpers.plan_tables").print_table(table)
    printed = [shape(line) for line in capsys.readouterr().out.splitlines() if line.startswith(("|", "**"))]
    page = [shape(line) for line in (ROOT / "docs" / "scale.md").read_text().splitlines()]
    first = page.index(printed[0])
    assert [line for line in page[first:] if line.startswith(("|", "**"))][: len(printed)] == printed


def test_the_page_has_what_the_script_assumes(plan):
    page = (ROOT / "docs" / "scale.md").read_text()
    for name, default, what, source in plan.ASSUMPTIONS:
        assert f"| `--{name}` | {default:g} | {what} | {source} |" in page
