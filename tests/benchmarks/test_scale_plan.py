"""The formulas of benchmarks/scale_plan.py, and its tables in docs/scale.md."""

import argparse
import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def script(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    return importlib.import_module("scale_plan")


@pytest.fixture
def given(script):
    parser = argparse.ArgumentParser()
    script.add_assumptions(parser)
    return parser.parse_args([])


def test_an_epoch_takes_what_its_clips_take(script, given):
    given.gpus, given.cores = 2, 8
    given.gpu_price, given.core_price, given.storage_price, given.request_price = 2.0, 0.1, 20.0, 0.5
    cost = script.ClipCost(stored_bytes=250_000, core_seconds=0.05, fetched_bytes=200_000, num_requests=3)
    plan = script.plan_epoch(3_600_000, cost, 100.0, given)
    assert plan == pytest.approx(
        {
            "cores_per_gpu": 5,  # of which the machine has 4
            "megabytes_per_second": 20,
            "core_hours": 50,
            "hours": 5,  # of two GPUs
            "terabytes": 0.9,
            "shards": 900,
            "dollars_a_month": 18,
            "dollars": 10 * (2 + 1 * 0.1) + 3 * 3.6 * 0.5,
        }
    )


def test_cores_of_the_machine_cost_nothing_beside_its_gpus(script, given):
    cost = script.ClipCost(stored_bytes=1, core_seconds=1e-6, fetched_bytes=1, num_requests=0)
    assert script.plan_epoch(360_000, cost, 100.0, given)["dollars"] == pytest.approx(given.gpu_price)


def test_a_stage_saturates_where_its_machine_does(script, given):
    given.cores, given.network, given.requests = 10, 8.0, 6000.0
    cost = script.ClipCost(stored_bytes=1, core_seconds=0.05, fetched_bytes=200_000, num_requests=3)
    assert script.saturation(cost, given) == pytest.approx((200, 5000, 2000))


def test_the_page_has_the_tables_of_the_script(script, given, capsys):
    cases = [
        (video, frames)
        for frames in ("dense", "uniform")
        for video in ("10 s, packed", "5 min, whole", "5 min, by ranges")
    ]
    script.print_plan(dict.fromkeys(cases, script.ClipCost(1, 1, 1, 1)), script.IndexCost(1, 1, 1, 1), given)

    def shape(line):
        return re.sub(r"\d[\d,.]*(?= \|)", "N", line)

    printed = [shape(line) for line in capsys.readouterr().out.splitlines() if line.startswith(("|", "**"))]
    page = [shape(line) for line in (ROOT / "docs" / "scale.md").read_text().splitlines()]
    first = page.index(printed[0])
    assert [line for line in page[first:] if line.startswith(("|", "**"))][: len(printed)] == printed
