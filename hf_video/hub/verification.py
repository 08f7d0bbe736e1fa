"""Whether a model loads for a stranger: tried in a process of its own, with an empty cache."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import hf_video

from .checks import PublishError
from .connection import time_limit

PROGRAM = Path(__file__).with_name("loading_check.py")


def verify(
    source: str,
    *,
    revision: str | None = None,
    with_hf_video: bool = False,
    endpoint: str | None = None,
    token: str | None = None,
) -> dict[str, Any]:
    """Load a model and its processor where hf_video cannot be imported, trusting the code of the repository.

    Args:
        source: a folder or a Hub repository.
        revision: branch, tag or commit of a repository.
        with_hf_video: for a composite whose tower needs hf_video: import it, and run no code of the repository.
        endpoint: address of the Hub; that of huggingface_hub by default.
        token: of a user who may read the repository.

    Returns:
        The names of the classes that were loaded, under `model` and `processor`.

    Raises:
        PublishError: it does not load, or weights are missing, left over or of another shape.
    """
    mode = "with-hf-video" if with_hf_video else "alone"
    with tempfile.TemporaryDirectory() as home:
        environment = {**os.environ, "HF_HUB_CACHE": home, "HF_MODULES_CACHE": home, "HF_TOKEN": token or ""}
        if endpoint is not None:
            environment["HF_ENDPOINT"] = endpoint
        if with_hf_video:
            environment["PYTHONPATH"] = str(Path(hf_video.__file__).parents[1])
        # -P: modules beside the program must not hide others of the same name.
        process = subprocess.run(
            [sys.executable, "-P", str(PROGRAM), source, revision or "", mode, str(time_limit())],
            env=environment,
            cwd=home,
            capture_output=True,
            text=True,
        )
    if process.returncode:
        reason = (process.stderr.strip().splitlines() or [f"exit code {process.returncode}"])[-1]
        raise PublishError(f"{source} cannot be loaded: {reason}")
    loaded = json.loads(process.stdout.splitlines()[-1])
    if problems := loaded.pop("problems"):
        listed = "; ".join(f"{name.replace('_', ' ')}: {', '.join(keys[:3])}" for name, keys in problems.items())
        raise PublishError(f"The weights of {source} do not fit its configuration ({listed}).")
    return loaded
