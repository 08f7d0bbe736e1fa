"""The documentation as a site, and its notebook."""

import importlib
import io
import os
import re
import subprocess
import sys

import nbformat
import pytest
from mkdocstrings import Inventory

import hf_video
from docs.notebooks.execute import execute

from .blocks import ROOT

NOTEBOOK = ROOT / "docs" / "notebooks" / "first_steps.ipynb"
PACKAGES = tuple("bulk data drawing evaluation hub inference processing training ops.selective_scan".split())


@pytest.mark.slow
def test_the_site_is_whole(tmp_path):
    """A warning ends its build. Each public name has its place, and no page loads anything from elsewhere."""
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    built = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    # torch warns of torchao's enumerations when they are imported.
    said = [line for line in built.stderr.splitlines() if "torch/utils/_pytree.py" not in line]
    assert (built.returncode, said) == (0, []), built.stderr
    inventory = Inventory.parse_sphinx(io.BytesIO((tmp_path / "objects.inv").read_bytes()), domain_filter=("py",))
    expected = {f"hf_video.{name}" for name in hf_video.__all__ if name != "__version__"}
    for name in PACKAGES:
        expected |= {f"hf_video.{name}.{each}" for each in importlib.import_module(f"hf_video.{name}").__all__}
    assert expected <= inventory.keys(), expected - inventory.keys()
    assert "weight_decay" in (tmp_path / "settings" / "train" / "index.html").read_text()
    for page in tmp_path.rglob("*.html"):
        loaded = re.findall(r'<(?:script|img|iframe)[^>]* src="?(https?:[^" >]+)', page.read_text(encoding="utf-8"))
        assert not loaded, page


@pytest.mark.slow
def test_the_notebook_runs_and_shows_what_it_shows_in_the_repository(tmp_path):
    def shown(notebook):
        outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
        return sum("image/png" in output.get("data", {}) for output in outputs), [
            line
            for output in outputs
            for line in str(output.get("text", "")).splitlines()
            if line.startswith("accuracy")
        ]

    pictures, accuracies = shown(execute(NOTEBOOK, tmp_path))
    assert pictures == 1 and accuracies == shown(nbformat.read(NOTEBOOK, as_version=4))[1]
