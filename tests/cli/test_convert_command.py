import sys
from types import SimpleNamespace

import pytest

from hf_video.cli import convert
from hf_video.cli.main import main


def test_the_words_after_the_source_are_handed_on(monkeypatch):
    calls = []
    monkeypatch.setattr(convert, "installed_sources", lambda: {"videomae": "VideoMAE"})
    monkeypatch.setitem(sys.modules, f"{convert.CONVERSION}.videomae", SimpleNamespace(main=calls.append))
    assert main(["convert", "videomae", "a.pth", "out", "--original-config", "a.json"]) == 0
    assert calls == [["a.pth", "out", "--original-config", "a.json"]]


def test_an_unknown_source_lists_those_there_are(monkeypatch, fails):
    monkeypatch.setattr(convert, "installed_sources", lambda: {"videomae": "VideoMAE"})
    assert "no source 'timm' to convert from; choose one of videomae" in fails("convert", "timm", "a.pth", "out")


def test_every_source_explains_itself(says):
    sources = convert.installed_sources()
    if not sources:
        pytest.skip("hf_video.conversion only exists where the package is installed")
    for name in sources:
        assert "OUTPUT_DIR" in says("convert", name, "--help")


def test_without_sources_the_way_to_them_is_said(monkeypatch, fails):
    monkeypatch.setattr(convert, "installed_sources", dict)
    message = fails("convert", "videomae", "a.pth", "out")
    assert "are not installed: install hf_video" in message and "choose one of" not in message


def test_an_error_begins_with_the_command_that_was_written(fails, tmp_path):
    message = fails("convert", "videomae", tmp_path / "missing.pth", tmp_path / "out")
    assert message.startswith("hf-video convert videomae: error: There is no file ")
