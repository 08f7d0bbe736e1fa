"""The page of conformance says what is collected here."""

import datetime
import re

import pytest
import transformers

from . import conformance
from .conformance import Outcome

CLASSES = list(conformance.test_classes())


def _rows() -> dict[str, list[str]]:
    table = conformance.PAGE.read_text().partition("## Why")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines() if line[:1] == "|"]
    return {re.sub(r"[`*]", "", row[0]): row[1:] for row in rows[2:]}


def test_the_page_counts_the_tests_that_are_collected():
    """Another version of Transformers than the page's has other tests; then the sums alone are compared."""
    rows, is_of_this_version = _rows(), f"transformers {transformers.__version__}," in conformance.PAGE.read_text()
    total = rows.pop("all")
    assert list(rows) == [each.__name__ for each in CLASSES]
    for each in CLASSES:
        names, run, *outcomes = rows[each.__name__]
        assert names == ", ".join(f"`{name}`" for name in conformance.tested_classes(each))
        assert int(run) == sum(map(int, outcomes)), each.__name__
        assert not is_of_this_version or int(run) == len(conformance.names_of_tests(each)), each.__name__
    assert [int(count) for count in total[1:]] == [sum(int(row[i]) for row in rows.values()) for i in range(1, 5)]
    assert total[-1] == "0"


def test_the_page_names_every_test_that_is_another_one_here():
    own = conformance.PAGE.read_text().partition("## Tests that are other ones")[2]
    expected = {(name, why) for each in CLASSES for name, why in conformance.own_tests(each)}
    assert expected == set(re.findall(r"^\| `(\w+)` \| \d+ \| (.*) \|$", own, flags=re.MULTILINE))


def test_a_skip_without_an_explanation_is_an_error():
    skip = Outcome("test_videovit.py", "VideoViTModelTest", "test_save_load", "skipped", "it fails here")
    with pytest.raises(ValueError, match="'it fails here'.*no explanation"):
        conformance.page([skip], datetime.date(2026, 1, 1))


def test_a_replaced_test_that_does_not_say_why_is_an_error():
    class Silent(CLASSES[0]):
        def test_save_load(self) -> None: ...

    with pytest.raises(ValueError, match="Silent.test_save_load replaces .* does not say why"):
        list(conformance.own_tests(Silent))


def _report(outcome: str) -> pytest.TestReport:
    where = (__file__, 1, "Skipped: why") if outcome == "skipped" else None
    return pytest.TestReport("test_x.py::X::test_y", ("", 0, ""), {}, outcome, where, "call")


@pytest.mark.parametrize("outcome", ["passed", "failed", "skipped"])
def test_the_worst_outcome_of_a_test_and_its_parts_counts(outcome):
    collector = conformance.Collector()
    for each in _report("passed"), _report(outcome), _report("passed"):
        collector.pytest_runtest_logreport(each)
    assert [each.outcome for each in collector.outcomes.values()] == [outcome]


@pytest.mark.slow
def test_the_page_is_what_a_run_gives():
    written = conformance.PAGE.read_text()
    day = datetime.date.fromisoformat(re.search(r"written on ([\d-]+)", written)[1])
    assert conformance.page(conformance.run(), day) == written
