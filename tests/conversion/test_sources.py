"""Each module of `conversion/` is a source: a command of its own, which shares only the helpers with the others."""

import ast
import importlib
import pkgutil
import sys

import pytest

import conversion
from hf_video.cli import convert

SOURCES = [module.name for module in pkgutil.iter_modules(conversion.__path__) if not module.ispkg]


@pytest.mark.parametrize("name", SOURCES)
def test_a_source_is_a_command_and_imports_no_other_source(name, capsys):
    source = importlib.import_module(f"conversion.{name}")
    source.main(["--help"])
    assert capsys.readouterr().out.split()[:4] == ["usage:", "python", "-m", f"conversion.{name}"]
    imports = [node for node in ast.walk(ast.parse(open(source.__file__).read())) if isinstance(node, ast.ImportFrom)]
    own = [node.module for node in imports if node.level]
    assert own and all(module.startswith("helpers.") for module in own)


def test_the_list_of_sources_is_that_of_the_folder(monkeypatch):
    monkeypatch.setattr(convert, "CONVERSION", "conversion")
    for name in SOURCES:
        monkeypatch.delitem(sys.modules, f"conversion.{name}", raising=False)
    listed = convert.installed_sources()
    assert sorted(listed) == sorted(SOURCES) and all(listed.values())
    assert not any(f"conversion.{name}" in sys.modules for name in SOURCES)
