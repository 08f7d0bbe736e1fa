"""What `make` prints and leaves while it installs, with a stand-in for Python that installs nothing."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
# Makes an environment whose Python is the stand-in itself. LACKS names what it cannot do.
PYTHON = """#!/bin/sh
case "$*" in
  *version_info*) lack=version ;;
  *ensurepip*) lack=venv ;;
  "-m venv"*) mkdir -p .venv/bin; cp "$0" .venv/bin/python; cp "$0" .venv/bin/hf-video ;;
  *--editable*) echo "pip: $*"; lack=network ;;
  demo) echo "the demo" ;;
esac
[ "$LACKS" != "${lack-has all}" ]
"""


@pytest.fixture
def make(tmp_path):
    if not shutil.which("make"):
        pytest.skip("make is not installed")
    for name in ("Makefile", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    python = tmp_path / "a python"
    python.write_text(PYTHON)
    python.chmod(0o755)

    def run(*words: str, lacks: str = "") -> subprocess.CompletedProcess[str]:
        env = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
        return subprocess.run(
            ["make", "PYTHON=./a\\ python", *words],
            cwd=tmp_path,
            env=env | {"LACKS": lacks},
            capture_output=True,
            text=True,
            timeout=60,
        )

    return run


def test_it_says_what_it_installs_once(make):
    first, second = make("demo"), make("demo")
    assert first.stdout.startswith("Installing hf_video") and first.stdout.endswith("the demo\n")
    assert "--quiet" not in first.stdout and first.stderr == ""
    assert second.stdout == "the demo\n" and second.stderr == ""


def test_an_installation_that_failed_begins_again(make):
    failed, again = make("demo", lacks="network"), make("demo")
    assert failed.returncode and "the demo" not in failed.stdout
    assert again.returncode == 0 and again.stdout.startswith("Installing hf_video")


def test_a_changed_list_of_packages_is_installed_without_listing_the_others(make, tmp_path):
    make("demo")
    os.utime(tmp_path / ".venv" / ".installed", (0, 0))
    again = make("demo")
    assert again.stdout.startswith("Bringing .venv up to date") and "--quiet" in again.stdout


@pytest.mark.parametrize(
    "lacks, said", [("version", "needs Python 3.11 or later"), ("venv", "cannot make virtual environments")]
)
def test_a_python_that_cannot_do_it_is_refused(make, tmp_path, lacks, said):
    refused = make("demo", lacks=lacks)
    assert refused.returncode and said in refused.stderr and refused.stdout == ""
    assert not (tmp_path / ".venv").exists()
