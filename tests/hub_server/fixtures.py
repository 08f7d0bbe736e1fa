"""The fixture `hub`, and processes that know nothing but it."""

import os
import subprocess
import tempfile
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from huggingface_hub import constants, hf_api
from transformers.utils import hub as transformers_hub

from hf_video.hub import self_test
from tests.testing.processes import Program, run_forked, run_fresh

from .server import HubServer, User

WRITE, READ, STRANGER = "hf_write", "hf_read", "hf_stranger"
NAMESPACES = ("google-bert", "hf-video", "MCG-NJU", "OpenGVLab")
TOKENS = {WRITE: User("alice", namespaces=NAMESPACES), READ: User("alice", role="read"), STRANGER: User("mallory")}
REPOSITORY_ROOT = Path(__file__).parents[2]
STRANGER_MODULE = f"{__package__}.stranger"
BEGIN = f"import sys; sys.modules[{STRANGER_MODULE!r}].begin()\n"


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    """A server that the clients in this process use, with the token of a user who may write."""
    with HubServer(tmp_path / "hub_server", TOKENS) as server:
        use_hub(server, WRITE, tmp_path / "cache", monkeypatch)
        yield server
        assert not server.errors, "\n".join(server.errors)


@pytest.fixture
def unverified(monkeypatch: pytest.MonkeyPatch) -> None:
    """For what goes wrong, or right, where the model is not loaded in another process."""
    nothing = {"outputs": {}, "error": None, "difference": 0.0}
    monkeypatch.setattr(self_test, "run_as_stranger", lambda folder, clips: nothing)


def use_hub(server: HubServer, token: str, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets the clients in this process use a server."""
    for name, value in client_environment(server, token).items():
        monkeypatch.setenv(name, value)
    # Read from the environment when huggingface_hub was imported.
    monkeypatch.setattr(constants, "ENDPOINT", server.endpoint)
    monkeypatch.setattr(hf_api.api, "endpoint", server.endpoint)
    # Transformers keeps a client of its own, for the server of its first use.
    monkeypatch.setattr(transformers_hub, "_hf_api", None)
    address = server.endpoint + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", address)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
    monkeypatch.setattr(constants, "HF_ASSETS_CACHE", str(cache.with_name("assets")))


def client_environment(server: HubServer, token: str | None) -> dict[str, str]:
    return {
        "HF_ENDPOINT": server.endpoint,
        "HF_TOKEN": token or "",
        "HF_HUB_DISABLE_XET": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        # Otherwise a repository without safetensors makes Transformers call a service outside.
        "DISABLE_SAFETENSORS_CONVERSION": "1",
        "NO_PROXY": "127.0.0.1",
    }


def run_in_fresh_process(
    server: HubServer, program: str, *, token: str | None = None, with_hf_video: bool = False, cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Runs a program with an empty cache, and unless asked otherwise where hf_video cannot be imported."""
    program = textwrap.dedent(program)
    with tempfile.TemporaryDirectory() as home:
        environment = {**os.environ, **client_environment(server, token), "HF_HOME": home, "OMP_NUM_THREADS": "1"}
        for name in ("HF_HUB_CACHE", "HF_MODULES_CACHE", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "PYTHONPATH"):
            environment.pop(name, None)
        if with_hf_video:
            environment["PYTHONPATH"] = str(REPOSITORY_ROOT)
            return run_fresh(Program(["-c", program], environment, str(cwd or home)))[0]
        return run_as_stranger(program, environment, str(cwd or home))


def run_as_stranger(program: str, env: Mapping[str, str], cwd: str) -> subprocess.CompletedProcess[str]:
    """Runs a program where hf_video cannot be imported, forked off the one process that knows nothing of it."""
    return run_forked(Program(["-c", BEGIN + program], env, cwd), timeout=240, imports=(STRANGER_MODULE,))[0]
