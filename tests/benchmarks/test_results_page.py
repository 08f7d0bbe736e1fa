"""The pages of all benchmarks say what was measured, and give no figure of a run that failed."""

import dataclasses
import re
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"
sys.path.append(str(FOLDER))

from helpers import run_all  # noqa: E402
from helpers.measurement import GOAL_MISSED, SKIPPED  # noqa: E402
from helpers.results import Ratio, load_results  # noqa: E402
from helpers.results_page import GROUPS, render  # noqa: E402

PRINTS_RATIOS = """
import sys
sys.path.append(sys.argv[0].rsplit("/", 1)[0])
from helpers.measurement import print_ratio, require_agreement
print_ratio("forward", 0.5, "a peer")
print_ratio("forward", 1.25, "matrix products", is_limit=True)
print_ratio("forward", 2, "a peer", quantity="memory")
"""
ENDS = {
    "good": "print('a figure')",
    "goal": f"sys.exit({GOAL_MISSED})",
    "gpu": f"print('It needs a GPU.', file=sys.stderr); sys.exit({SKIPPED})",
    "wrong": "require_agreement('The logits', float('nan'), 1e-3)",
    "broken": "raise ValueError('a shape')",
}


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """What is loaded after scripts of every end ran and were saved."""
    folder = tmp_path_factory.mktemp("benchmarks")
    (folder / "helpers").symlink_to(FOLDER / "helpers")
    (folder / "torch.py").write_text("")  # `measurement` imports it, and nothing here computes
    for name, end in ENDS.items():
        script = folder / f"{name}.py"
        script.write_text(PRINTS_RATIOS + end)
        run_all.run(script, []).save(folder / "results")
    return {result.name: result for result in load_results(folder / "results")}


def test_a_result_keeps_what_was_printed(results):
    assert results["good"].output.endswith("a figure\n") and results["good"].state == "measured"
    assert results["good"].ratios == [
        Ratio("forward", "time", "a peer", False, 0.5),
        Ratio("forward", "time", "matrix products", True, 1.25),
        Ratio("forward", "memory", "a peer", False, 2.0),
    ]


def overview(results, *names):
    """The first page, for benchmarks in one group."""
    return render(results, {"group": ("Group", names)})["benchmarks.md"]


def test_the_summary_has_peers_beside_limits(results):
    page = overview(results.values(), *ENDS)
    good = "[good](benchmarks/group.md#good)"
    assert f"| {good} | forward | time | 0.50 (a peer), 1.25 (limit: matrix products) |\n" in page
    assert f"| {good} | forward | memory | 2.00 (a peer) |\n" in page


def test_each_group_has_a_page_with_what_its_scripts_printed(results):
    pages = render(results.values(), {"first": ("First", ["good", "later"]), "second": ("Second", ["goal"])})
    assert list(pages) == ["benchmarks.md", "benchmarks/first.md", "benchmarks/second.md"]
    assert "a figure\n```" not in pages["benchmarks.md"]
    assert "## good\n" in pages["benchmarks/first.md"] and "a figure\n```" in pages["benchmarks/first.md"]
    assert "## goal\n" in pages["benchmarks/second.md"] and "good" not in pages["benchmarks/second.md"]


@pytest.mark.parametrize(
    ("name", "state"),
    [
        ("gpu", "skipped: It needs a GPU."),
        ("wrong", "failed with exit code 1: The logits differ by nan, above 1e-03: no figure means anything."),
        ("broken", "failed with exit code 1: ValueError: a shape"),
    ],
)
def test_a_run_without_figures_stands_there_with_its_reason(results, name, state):
    pages = render([results[name]], {"group": ("Group", [name])})
    assert results[name].state == state and f"| {state} |" in pages["benchmarks.md"]
    assert f": {state.removesuffix('.')}.\n" in pages["benchmarks/group.md"]
    assert "0.50" not in str(pages) and results[name].ratios == []


def test_a_missed_goal_is_named_and_its_figures_stand(results):
    page = overview([results["goal"]], "goal")
    assert "| a goal is missed |" in page and "0.50 (a peer)" in page and results["goal"].is_bad


def test_a_benchmark_without_a_result_is_named():
    assert "| later |  | not run |" in overview([], "later")


def test_results_of_several_machines_stand_side_by_side(results, tmp_path):
    here = results["good"]
    machine = {"cpu": "Another(R) Processor", "cores": 8, "memory_gib": 8.0, "gpu": "none"}
    output = here.output.replace("0.500", "0.750")
    other = dataclasses.replace(here, machine=machine, output=output)
    newer = dataclasses.replace(other, machine=machine | {"generation": "family 6, model 7"})
    for result in (here, other, newer):
        result.save(tmp_path)
    assert (tmp_path / "another-8-cores" / "good.json").exists()
    assert (tmp_path / "another-family-6-model-7-8-cores" / "good.json").exists()
    pages = render(load_results(tmp_path), {"group": ("Group", ["good"])})
    assert "| Another (family 6, model 7), 8 cores | Another, 8 cores |" in pages["benchmarks.md"]
    assert "0.75 (a peer), 1.25 (limit: matrix products) | 0.75" in pages["benchmarks.md"]
    assert "- good: Another, 8 cores, 8 GiB, " in pages["benchmarks.md"]
    assert pages["benchmarks/group.md"].count("## good\n") == 1
    assert pages["benchmarks/group.md"].count("a figure\n```") == 3


def test_the_machine_of_a_result_has_what_tells_generations_apart(results):
    facts = Path("/proc/cpuinfo").read_text()
    for word in re.findall(r"^(?:cpu family|model)\s*: (\d+)$", facts, re.MULTILINE):
        assert word in results["good"].machine["generation"]


def test_unknown_benchmarks_are_refused(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["run_all.py", "videovti"])
    with pytest.raises(SystemExit):
        run_all.main()
    assert "no benchmark is called videovti" in capsys.readouterr().err


def test_scripts_have_the_options_that_they_are_called_with():
    for name, words in run_all.OPTIONS.items():
        script = (FOLDER / f"{name}.py").read_text()
        for option in words:
            assert not option.startswith("--") or f'add_argument("{option}"' in script, (name, option)


def test_every_benchmark_is_in_one_group():
    names = [name for _, names in GROUPS.values() for name in names]
    assert sorted(names) == sorted(script.stem for script in FOLDER.glob("*.py"))


def test_the_pages_are_those_of_the_results():
    pages = render(load_results(run_all.RESULTS))
    assert {path: (run_all.DOCS / path).read_text() for path in pages} == pages, (
        "`make bench ARGS=--page-only` writes them anew."
    )
    assert {path.name for path in (run_all.DOCS / "benchmarks").iterdir()} == {f"{page}.md" for page in GROUPS}
