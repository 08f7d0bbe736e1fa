"""Every format against files in the structure that its tool writes, and the rows that they hold."""

import json
import shutil
from pathlib import Path

import pytest

from hf_video.data import read_annotations
from tests.testing.videos import encode_video, make_frames

CASES = Path(__file__).parents[2] / "fixtures" / "annotation_formats"
NAMES = sorted(each.parent.name for each in CASES.glob("*/expected.json"))


def place(name, folder):
    """The file of a case in a folder, with its videos, and what it must give."""
    expected = json.loads((CASES / name / "expected.json").read_text())
    shutil.copytree(CASES / name, folder / name)
    for media in expected["media"].values():
        path = folder / name / media["place"]
        path.parent.mkdir(parents=True, exist_ok=True)
        if media["exists"]:
            codec = {"codec": "mpeg4", "codec_options": {}} if path.suffix == ".avi" else {}
            encode_video(path, make_frames(media["frames"], 16, 16), fps=media["fps"], **codec)
    return folder / name / expected["file"], expected


def same(found, expected):
    """Whether two lists of objects hold the same, in any order, with times within a millisecond."""

    def is_same(one, other):
        if isinstance(one, dict) and isinstance(other, dict):
            return one.keys() == other.keys() and all(is_same(one[key], other[key]) for key in one)
        if isinstance(one, float) or isinstance(other, float):
            return one == pytest.approx(other, abs=1e-3)
        return one == other

    left = list(expected)
    for each in found:
        if (match := next((other for other in left if is_same(each, other)), None)) is None:
            return False
        left.remove(match)
    return not left


@pytest.mark.parametrize("name", NAMES)
def test_format(name, tmp_path):
    file, expected = place(name, tmp_path)
    found = read_annotations(file, choices=expected.get("choices"))
    for key in ("rows", "unknown", "reports"):
        assert same(getattr(found, key), expected[key]), (key, getattr(found, key))
    assert found.classes == expected.get("classes", {})
    assert found.splits == expected.get("splits", {})
    assert found.background == expected.get("background")
