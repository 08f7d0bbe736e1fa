"""Runs a notebook from top to bottom and keeps what its cells show: `python -m docs.notebooks.execute FILE`."""

import argparse
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient


def execute(path: Path, folder: Path) -> nbformat.NotebookNode:
    """The notebook with the outputs of a new kernel that works in a folder, without warnings and progress bars.

    Raises:
        nbclient.exceptions.CellExecutionError: a cell fails.
    """
    notebook = nbformat.read(path, as_version=4)
    NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(folder)}}).execute()
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
        if cell.cell_type == "code":
            cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
    return notebook


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        nbformat.write(execute(args.file, Path(folder)), args.file)


if __name__ == "__main__":
    main()
