"""A Hub that falls silent, is not there, or is left with Ctrl-C while a model is published."""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import pytest
from huggingface_hub import HfApi, constants, get_session
from huggingface_hub.utils import _http, close_session, httpx

from hf_video.hub import PublishError, connection, publishing, push, stage
from tests.hub_server.fixtures import WRITE, client_environment
from tests.hub_server.handler import Handler, Refusal

from .conftest import make_model

REPO = "alice/model"
LIMIT = 0.2
TRIES = 6  # of huggingface_hub


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model with weights in two files, which are uploaded by threads."""
    folder = tmp_path_factory.mktemp("models") / "model"
    model, processor = make_model("VideoViT", list("abcdefgh"))
    model.save_pretrained(folder, max_shard_size=sum(p.numel() for p in model.parameters()) * 3)
    processor.save_pretrained(folder)
    assert len(list(folder.glob("*.safetensors"))) == 2
    return folder


@pytest.fixture
def publication(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(publishing, "verify", lambda *arguments, **options: {})
    (tmp_path / "staging").mkdir()
    return stage(folder, tmp_path / "staging", REPO)


@pytest.fixture
def limited(monkeypatch):
    """Short limits, and no pause between the tries of huggingface_hub."""
    monkeypatch.setattr(connection, "SHORTEST_LIMIT", LIMIT)
    monkeypatch.setattr(constants, "HF_HUB_DOWNLOAD_TIMEOUT", LIMIT / 2)
    monkeypatch.setattr(_http, "time", SimpleNamespace(sleep=lambda seconds: None))


@pytest.fixture
def stalling(hub):
    """Makes the server silent from a request on."""
    ended = threading.Event()

    def stall(pattern):
        def fail(method, path):
            if re.search(pattern, f"{method} {path}"):
                ended.wait()
                raise Refusal(400, "nobody waits any more")

        hub.fail = fail

    yield stall
    hub.fail = lambda method, path: None
    ended.set()


@pytest.mark.parametrize(
    "request_",
    [
        "POST /api/repos/create",
        "GET /api/models",
        "/refs",
        "validate-yaml",
        "/preupload/",
        "/batch",
        "PUT ",
        "/commit/",
    ],
)
def test_a_hub_that_falls_silent_is_left(publication, limited, stalling, request_):
    stalling(request_)
    start = time.monotonic()
    with pytest.raises(PublishError) as error:
        push(publication, REPO)
    assert LIMIT <= time.monotonic() - start < 2 * TRIES * LIMIT + 2
    message = str(error.value)
    assert re.search(f"at (GET|POST|PUT) /[^ ]+ the Hub was silent for {LIMIT} s", message)
    method, _, path = request_.rpartition(" ") if " " in request_ else ("", "", request_)
    assert f"at {method}" in message and path in message
    assert f"the Hub was silent for {LIMIT} s; HF_HUB_DOWNLOAD_TIMEOUT=SECONDS waits longer" in message
    assert "Nothing was published; run the same command again" in message and "\n" not in message


def test_a_client_that_is_made_after_a_broken_connection_has_the_limit(
    hub, publication, limited, stalling, monkeypatch
):
    stalling("/commit/")

    def commit(*args, **kwargs):
        # What huggingface_hub does after a broken connection, see `http_backoff`.
        close_session()
        return create_commit(*args, **kwargs)

    create_commit = HfApi.create_commit
    monkeypatch.setattr(HfApi, "create_commit", commit)
    start = time.monotonic()
    with pytest.raises(PublishError, match=f"at POST /api/models/{REPO}/commit/main the Hub was silent"):
        push(publication, REPO)
    assert time.monotonic() - start < 2 * TRIES * LIMIT + 2
    # Where no limit was asked for, there is none.
    assert get_session().timeout == httpx.Timeout(None) and len(get_session().event_hooks["request"]) == 1


def test_a_longer_limit_is_that_of_huggingface_hub(monkeypatch):
    for seconds in (1, 600):
        monkeypatch.setattr(constants, "HF_HUB_DOWNLOAD_TIMEOUT", seconds)
        assert connection.time_limit() == max(seconds, connection.SHORTEST_LIMIT)


def test_other_requests_wait_as_before(hub, stalling, limited):
    hooks = list(get_session().event_hooks["request"])
    with pytest.raises(PublishError), connection.explained(REPO):
        assert len(get_session().event_hooks["request"]) == len(hooks) + 1
        raise OSError("broken")
    assert get_session().event_hooks["request"] == hooks
    stalling("/refs")
    start = time.monotonic()
    with pytest.raises(PublishError), connection.explained(REPO):
        # A limit of its own is kept.
        get_session().get(f"{hub.endpoint}/refs", timeout=4 * LIMIT)
    assert time.monotonic() - start >= 4 * LIMIT


def test_what_was_sent_before_the_silence_is_not_sent_twice(hub, publication, limited, stalling):
    stalling("/commit/")
    with pytest.raises(PublishError, match="what has been sent is not sent twice"):
        push(publication, REPO)
    hub.fail = lambda method, path: None
    push(publication, REPO)
    assert set(HfApi().list_repo_files(REPO)) == publication.files.keys()
    assert [method for method, _, status in hub.requests if status == 200].count("PUT") == 2


def test_a_commit_whose_answer_is_lost_is_not_denied(hub, publication, limited, monkeypatch):
    answer, ended = Handler.send, threading.Event()

    def lose(self, *arguments, **options):
        if "/commit/" in self.path:
            return ended.wait()
        return answer(self, *arguments, **options)

    monkeypatch.setattr(Handler, "send", lose)
    try:
        with pytest.raises(PublishError, match=f"{REPO} has a new commit [0-9a-f]+; run the same command again"):
            push(publication, REPO)
        head = HfApi().model_info(REPO).sha
        assert set(HfApi().list_repo_files(REPO)) == publication.files.keys()
        assert push(publication, REPO).oid == head
    finally:
        ended.set()


def test_a_hub_that_is_not_there_is_named(publication, limited, hub):
    for endpoint in ("http://127.0.0.1:1", "http://nosuchhost.invalid", "http://[::1"):
        with pytest.raises(PublishError, match=f"The upload to {REPO} was interrupted .*Nothing was published"):
            push(publication, REPO, api=HfApi(endpoint=endpoint))
        with pytest.raises(PublishError, match="was interrupted"):
            stage(publication.folder, publication.folder, "model", api=HfApi(endpoint=endpoint))


@pytest.mark.parametrize(
    "request_", [*(pytest.param(name, marks=pytest.mark.slow) for name in ("/preupload/", "PUT ")), "/commit/"]
)
def test_ctrl_c_ends_a_silent_upload_with_one_sentence(hub, folder, stalling, request_):
    stalling(request_)
    reached, fail = threading.Event(), hub.fail

    def tell(method, path):
        if re.search(request_, f"{method} {path}"):
            reached.set()
        fail(method, path)

    hub.fail = tell
    program = f"""
import signal
import sys
from hf_video.cli.main import main
from hf_video.hub import publishing
publishing.verify = lambda *arguments, **options: {{}}
# A shell lets what it runs in the background ignore Ctrl-C.
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.exit(main(["publish", {str(folder)!r}, {REPO!r}]))
"""
    environment = {**os.environ, **client_environment(hub, WRITE), "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [sys.executable, "-c", program], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert reached.wait(200)
        process.send_signal(signal.SIGINT)
        # Whoever waits for the Hub waits longer.
        _, message = process.communicate(timeout=0.9 * connection.SHORTEST_LIMIT)
    finally:
        process.kill()
    assert process.returncode == 130
    expected = f"hf-video: interrupted. To go on with the upload to {REPO}, run the same command again: "
    assert message.strip().splitlines()[-1].startswith(expected) and "Traceback" not in message


def test_a_conflict_that_is_no_repository_of_that_name_is_said(publication, hub):
    def fail(method, path):
        if path == "/api/repos/create":
            raise Refusal(409, "This name is reserved")

    hub.fail = fail
    with pytest.raises(PublishError, match="an answer about alice/model that cannot be understood .*'url'"):
        push(publication, REPO)
