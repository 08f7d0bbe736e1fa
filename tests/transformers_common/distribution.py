"""Fetches and imports the tests in the source distribution of the installed Transformers."""

import email
import functools
import importlib
import os
import subprocess
import sys
import tarfile
import tempfile
import warnings
from pathlib import Path
from types import ModuleType

import pytest
import transformers
from filelock import FileLock
from huggingface_hub import cached_assets_path

from . import stand_ins

PACKAGE = "transformers_distribution_tests"
LEFT_OUT = ("exporters/test_export.py", "generation/test_utils.py", "utils/test_configuration_utils.py")


class DistributionUnavailableError(RuntimeError):
    """The source distribution cannot be downloaded, or is not that of the version asked for."""


def load(name: str) -> ModuleType:
    """Imports one test module of the installed Transformers, by its base name such as `"test_modeling_common"`.

    Where the distribution cannot be had, the test file that calls this is skipped with a warning; in continuous
    integration (`CI=true`) `DistributionUnavailableError` is raised instead.
    """
    error = _import_package()
    if error is not None:
        if os.environ.get("CI", "").lower() == "true":
            raise error
        message = f"Transformers' common tests do not run: {error}"
        warnings.warn(message, stacklevel=2)
        pytest.skip(message, allow_module_level=True)
    return importlib.import_module(f"{PACKAGE}.{name}")


@functools.cache
def _import_package() -> DistributionUnavailableError | None:
    """Imports the folder of tests as a package under a name of its own, `tests` being ours.

    Returns an error instead of raising it, so that a session without network waits for the network once.
    """
    try:
        folder = fetch(transformers.__version__)
    except DistributionUnavailableError as error:
        return error
    for path in LEFT_OUT:
        if not (folder / path).exists():
            sys.modules[f"{PACKAGE}.{path.removesuffix('.py').replace('/', '.')}"] = stand_ins
    sys.modules[PACKAGE] = ModuleType(PACKAGE)
    sys.modules[PACKAGE].__path__ = [str(folder)]
    return None


def fetch(version: str) -> Path:
    """Returns the folder with the tests of one released version, downloaded by pip the first time.

    They are kept among the assets of huggingface_hub (`HF_ASSETS_CACHE`, by default
    `~/.cache/huggingface/assets/hf_video/transformers-tests/VERSION/tests`).

    Raises:
        DistributionUnavailableError: pip cannot download this version, or the archive declares another one.
    """
    cache = cached_assets_path("hf_video", "transformers-tests", version)
    folder = cache / "tests"
    with FileLock(cache / ".lock"), tempfile.TemporaryDirectory(dir=cache) as scratch:
        if not folder.is_dir():
            archive = _download(version, Path(scratch))
            # Renamed only when complete: an interrupted run leaves nothing that looks like a cached distribution.
            _extract_tests(archive, version, Path(scratch)).rename(folder)
    return folder


def _download(version: str, destination: Path) -> Path:
    """Downloads the archive as pip would: its mirrors, its proxies, its checksums.

    pip has no way not to ask an archive for its metadata. Without build isolation that needs setuptools, which torch
    requires anyway, and nothing from the network.
    """
    command = [sys.executable, "-m", "pip", "download", f"transformers=={version}", "--dest", str(destination)]
    command += ["--no-deps", "--no-binary", "transformers", "--no-build-isolation", "--retries", "1"]
    result = subprocess.run(command, capture_output=True, text=True)
    archive = destination / f"transformers-{version}.tar.gz"
    if result.returncode != 0 or not archive.is_file():
        last_line = result.stderr.strip().rpartition("\n")[2] or "no message"
        raise DistributionUnavailableError(
            f"pip could not download the source distribution of transformers {version} ({last_line}). It has to be "
            "a version released on PyPI, and the first run needs the network; later runs read the cache."
        )
    return archive


def _extract_tests(archive: Path, version: str, destination: Path) -> Path:
    root = f"transformers-{version}"
    with tarfile.open(archive) as tar:
        members = [member for member in tar if member.name.startswith((f"{root}/PKG-INFO", f"{root}/tests/"))]
        tar.extractall(destination, members, filter="data")
    found = email.message_from_bytes((destination / root / "PKG-INFO").read_bytes())["Version"]
    if found != version:
        raise DistributionUnavailableError(f"{archive.name} declares version {found}, expected {version}.")
    folder = destination / root / "tests"
    # Left out of the distribution, and executed by `test_configuration_common`.
    (folder / "__init__.py").touch()
    return folder
