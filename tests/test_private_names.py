"""Tests, benchmarks, documents and examples know the public names of the package alone."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("hf_video", "conversion")
FOLDERS = ("tests", "benchmarks", "docs", "examples", "model_cards")


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.endswith("__")


def find_private_names(text: str) -> Iterator[str]:
    """Line and name of what a file imports, reads or replaces of the packages, where its name is private."""
    tree, ours = ast.parse(text), set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(PACKAGES) and not node.level:
            ours |= {alias.asname or alias.name for alias in node.names}
            yield from (f"{node.lineno}: {alias.name}" for alias in node.names if is_private(alias.name))
        elif isinstance(node, ast.Import):
            ours |= {alias.asname or alias.name for alias in node.names if alias.name.startswith(PACKAGES)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and is_private(node.attr) and ast.unparse(node.value) in ours:
            yield f"{node.lineno}: {node.attr}"
        elif isinstance(node, ast.Call) and ours & set(map(ast.unparse, node.args)):
            names = [arg.value for arg in node.args if isinstance(arg, ast.Constant) and isinstance(arg.value, str)]
            yield from (f"{node.lineno}: {name}" for name in names if is_private(name))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.startswith(PACKAGES):
            parts = node.value.split(".")
            yield from (f"{node.lineno}: {part}" for part in parts if part.isidentifier() and is_private(part))


def test_nothing_reaches_for_a_private_name():
    files = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")]
    found = [f"{path.relative_to(ROOT)}:{name}" for path in files for name in find_private_names(path.read_text())]
    assert len(files) > 300 and not found, "\n".join(found)


@pytest.mark.parametrize(
    "text",
    [
        "from hf_video.demo import _encode",
        "from hf_video import demo\ndemo._encode",
        "import hf_video.demo\nhf_video.demo._encode",
        "import hf_video.demo as videos\nvideos._encode",
        "from conversion import malmm\nmonkeypatch.setattr(malmm, '_convert', None)",
        "monkeypatch.setattr('hf_video.demo._encode', None)",
    ],
)
def test_each_way_to_reach_for_one_is_found(text):
    assert len(list(find_private_names(text))) == 1


def test_private_names_of_others_are_left_alone():
    text = "from hf_video import demo\nimport torch\nfrom tests import own\ntorch._C\nown._name\ndemo.__name__"
    assert not list(find_private_names(text))
