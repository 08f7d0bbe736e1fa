"""Limits the time of requests to the Hub while publishing, and turns their errors into sentences."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from huggingface_hub import constants, set_client_factory
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, RepositoryNotFoundError, RevisionNotFoundError
from huggingface_hub.utils import _http, httpx

# Seconds. The Hub is silent for longer while it makes a large commit than while it sends a file.
SHORTEST_LIMIT = 60.0
_REFUSALS = {
    401: "The Hub does not accept your token. Log in with `hf auth login`, or set HF_TOKEN to a write token.",
    403: "Your token may not write to {}. Use a write token of its owner, or a name of your own.",
    412: "Somebody else committed to {} meanwhile, or the answer to your own commit was lost. Look at what changed, "
    "and publish again.",
}
AGAIN = "run the same command again: what has been sent is not sent twice."


class PublishError(ValueError):
    """A folder cannot be published, or the Hub refuses it. The message says why and the way out."""


def time_limit() -> float:
    """Seconds that the Hub may be silent. `HF_HUB_DOWNLOAD_TIMEOUT` of huggingface_hub can make it longer."""
    return max(SHORTEST_LIMIT, constants.HF_HUB_DOWNLOAD_TIMEOUT)


@contextmanager
def explained(repo_id: str, describe_outcome: Callable[[], str] = lambda: "Nothing was published") -> Iterator[None]:
    """Limits how long requests within the context wait, and turns errors of the Hub's client into sentences.

    Args:
        repo_id: the repository that the requests are about.
        describe_outcome: called after the connection broke; returns a sentence on the state of the repository.

    Raises:
        PublishError: the Hub refused, was silent for too long, or the connection broke.
        KeyboardInterrupt: Ctrl-C was pressed; the message says how to go on.
    """
    try:
        with _limited_waiting():
            yield
    except (HFValidationError, RepositoryNotFoundError, RevisionNotFoundError, HfHubHTTPError) as error:
        raise PublishError(_explain_refusal(repo_id, error)) from error
    # The connection broke; which of these is raised depends on the layer that noticed it.
    except (RuntimeError, OSError, httpx.HTTPError, httpx.InvalidURL) as error:
        cause = error.__cause__ if isinstance(error, RuntimeError) and error.__cause__ else error
        reason = str(cause) or type(cause).__name__
        if isinstance(cause, httpx.TimeoutException):
            reason = f"at {cause.request.method} {cause.request.url.path} the Hub was silent for {time_limit():g} s"
            reason += "; HF_HUB_DOWNLOAD_TIMEOUT=SECONDS waits longer"
        raise PublishError(
            f"The upload to {repo_id} was interrupted ({reason}). {describe_outcome()}; {AGAIN}"
        ) from error
    # huggingface_hub takes what it needs from an answer unseen; a proxy may have given another one.
    except (KeyError, json.JSONDecodeError) as error:
        raise PublishError(
            f"The Hub gave an answer about {repo_id} that cannot be understood ({type(error).__name__}: {error}): its "
            f"name may be in use for something else, or HF_ENDPOINT is not a Hub. {describe_outcome()}."
        ) from error
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"To go on with the upload to {repo_id}, {AGAIN}") from None


@contextmanager
def _limited_waiting() -> Iterator[None]:
    """Adds a limit of time to requests. huggingface_hub waits for most answers without end, for some on purpose. After
    a connection broke, it makes another client, which has the limit, too."""
    make_client = _http._GLOBAL_CLIENT_FACTORY

    def limit(request: httpx.Request) -> None:
        wanted = request.extensions.get("timeout", {})
        limits = httpx.Timeout(time_limit()).as_dict()
        request.extensions["timeout"] = limits | {name: wait for name, wait in wanted.items() if wait is not None}

    def make_limited() -> httpx.Client:
        client = make_client()
        client.event_hooks["request"].append(limit)
        return client

    set_client_factory(make_limited)
    try:
        yield
    finally:
        set_client_factory(make_client)


def _explain_refusal(repo_id: str, error: Exception) -> str:
    if isinstance(error, HFValidationError):
        return f"{repo_id!r} is not the name of a repository: {error}"
    status = getattr(getattr(error, "response", None), "status_code", None)
    if status in _REFUSALS:
        return _REFUSALS[status].format(repo_id)
    message = getattr(error, "server_message", None) or str(error).strip().splitlines()[0]
    return f"The Hub refused to publish {repo_id}: {message}"
