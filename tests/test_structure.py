"""The figures of `benchmarks/structure.py` on a small checkout."""

import runpy
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "structure.py"
FILES = {
    "hf_video/__init__.py": "",
    "hf_video/files.py": "",
    "hf_video/cli/run.py": (
        "from hf_video.training.loop import train\nfrom ..data import clips\nDEFAULTS = {'seed': 1}\n"
        "def add(parser):\n    parser.add_argument('--num-frames')\n    parser.add_argument('--seed')\n"
    ),
    "hf_video/training/loop.py": "import hf_video.cli.run\n",
    "hf_video/data/clips.py": (
        "from hf_video import files\n"
        "@dataclass(frozen=True)\nclass Settings:\n    num_frames: int = 4\n    path: str\n"
    ),
    "hf_video/models/one/__init__.py": "",
    "hf_video/models/one/modeling_one.py": (
        "try:\n    from hf_video.ops import scan\nexcept ImportError:\n    from .plain import scan\n"
    ),
    "hf_video/models/one/plain.py": '"""Plain.\n\nText.\n"""\n# why\nscan = [\n    1,\n]\n',
    "hf_video/ops/__init__.py": "",
    "hf_video/processing/__init__.py": "",
    "hf_video/processing/video_processing_clip.py": (
        'from pathlib import Path\nfrom .reader import read\n\n\nclass VideoClipProcessor:\n    """It."""\n'
    ),
    "hf_video/processing/reader.py": "\n" * 60,
    "tests/test_run.py": "\n\n",
}


@pytest.fixture
def structure(monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    return runpy.run_path(str(SCRIPT))


def test_the_figures_of_a_small_checkout(structure, tmp_path):
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    figures = structure["describe"](tmp_path)
    assert figures["tests"] == "1 files, 2 lines"
    assert figures["  hf_video/cli"] == "1 files, 6 lines"
    assert figures["package"] == "12 files, 90 lines, 22 of them code"
    assert figures["modules of less than 60 lines"] == "11"
    assert figures["travels with its processor"] == "2 files, 66 lines"
    assert figures["layers"] == "3"
    assert figures["  layer 3"] == "cli <-> training"
    assert figures["  layer 2"] == "data | models"
    assert figures["arrows between folders"] == "5 (5 imports)"
    assert figures["arrows within rings"] == "2"
    assert figures["  models >"] == "ops 1 (guarded)"
    assert figures["  cli >"] == "data 1, training 1"
    assert figures["settings"] == "2"
    assert figures["settings declared twice"] == "2 num_frames seed"
    assert figures["longest modeling file"] == "4 (hf_video/models/one/modeling_one.py)"


def test_a_folder_without_the_package_is_refused(structure, tmp_path):
    with pytest.raises(SystemExit, match="has no folder hf_video"):
        structure["describe"](tmp_path)
