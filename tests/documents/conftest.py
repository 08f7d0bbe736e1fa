import os
import subprocess
import sys

import pytest

from ..hub.conftest import forked_loading
from .blocks import ROOT

__all__ = ["forked_loading"]


@pytest.fixture(scope="session")
def site(tmp_path_factory):
    """The folder of the built documentation. A warning ends the build."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    built = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert (built.returncode, built.stderr) == (0, ""), built.stderr
    return folder
