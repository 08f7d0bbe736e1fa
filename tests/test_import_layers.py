"""import-linter holds the layers that pyproject.toml states; `make lint` runs it on the code as it is."""

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
FORBIDDEN = {
    "data/columns.py": "from hf_video.training import losses",
    "io.py": "import conversion",
    "hub/connection.py": "from hf_video.models import videovit",
    "inference/features.py": "from hf_video.models import videovit",
    "models/videomamba/configuration_videomamba.py": "from hf_video.models.videovit import VideoViTConfig",
    "models/videovit/configuration_videovit.py": "from hf_video.io import replace_file",
    "processing/clip_sampling.py": "import hf_video",
    "processing/option_checks.py": "from hf_video import ops",
}
CYCLE = {"data/augmentation.py": "from hf_video.data import batches"}


def test_imports_against_the_layers_are_found(tmp_path):
    package = tmp_path / "hf_video"
    for name in ("hf_video", "conversion"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    (package / "file_without_layer.py").touch()
    for name, line in {**FORBIDDEN, **CYCLE}.items():
        (package / name).write_text((package / name).read_text() + f"\n{line}\n")
    program = "from importlinter.cli import lint_imports_command; lint_imports_command()"
    command = [sys.executable, "-c", program, "--no-cache"]
    process = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert process.returncode == 1 and "0 kept" in process.stdout
    for name in FORBIDDEN:
        assert f"hf_video.{name.removesuffix('.py').replace('/', '.')} -> " in process.stdout
    assert "hf_video.file_without_layer" in process.stdout
    assert "No cycles are allowed in hf_video.data" in process.stdout
