"""The notebook of the documentation runs from top to bottom, and shows what it shows in the repository."""

import nbformat
import pytest
from transformers.utils import logging

from docs.notebooks.execute import execute

from .blocks import ROOT

NOTEBOOK = ROOT / "docs" / "notebooks" / "first_steps.ipynb"


def texts(cell):
    return "".join(str(output.get("text", "")) for output in cell.outputs)


@pytest.fixture
def cells():
    return [cell for cell in nbformat.read(NOTEBOOK, as_version=4).cells if cell.cell_type == "code"]


def test_every_cell_is_a_program_and_shows_its_outputs(cells):
    for cell in cells:
        compile(cell.source, NOTEBOOK.name, "exec")
    assert all(cell.outputs for cell in cells[1:]), (
        "run `python -m docs.notebooks.execute docs/notebooks/first_steps.ipynb`"
    )


@pytest.mark.slow  # it trains, as the quick demo does
def test_the_cells_do_what_they_say(cells, tmp_path, monkeypatch, capsys):
    """In the process of the tests, which has imported everything."""
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "__main__"}
    said = []
    try:
        for number, cell in enumerate(cells):
            exec(compile(cell.source, f"cell {number}", "exec"), names)
            said.append(capsys.readouterr().out)
    finally:
        logging.enable_progress_bar()
    assert said[1] == texts(cells[1])
    assert "accuracy on held-out videos: 100%" in said[2] and "accuracy on held-out videos: 100%" in texts(cells[2])
    assert (tmp_path / "heat_map.png").stat().st_size > 10_000
    labels = [line.split()[-1] for line in said[5].splitlines()]
    assert labels == [line.split()[-1] for line in texts(cells[5]).splitlines()] == ["red", "green", "red", "blue"]
    assert {line.split()[-1] for line in texts(cells[6]).splitlines()[:25]} <= set(said[6].split())


@pytest.mark.slow
def test_the_notebook_runs_in_a_kernel(tmp_path):
    notebook = execute(NOTEBOOK, tmp_path)
    assert (
        sum("image/png" in output.get("data", {}) for cell in notebook.cells for output in cell.get("outputs", ()))
        == 1
    )
