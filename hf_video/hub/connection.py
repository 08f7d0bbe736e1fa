"""Turns errors of the Hub's client into sentences."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from huggingface_hub.errors import HfHubHTTPError, HFValidationError, OfflineModeIsEnabled
from huggingface_hub.utils import httpx

_REFUSALS = {
    401: "The Hub does not accept your token. Log in with `hf auth login`, or set HF_TOKEN to a write token.",
    403: "Your token may not write to {}. Use a write token of its owner, or a name of your own.",
    412: "Somebody else committed to {} meanwhile, or the answer to your own commit was lost. Look at what changed, "
    "and publish again.",
}
AGAIN = "run the same command again: what has been sent is not sent twice."


class PublishError(ValueError):
    """A folder cannot be published, or the Hub refuses it. The message says why and the way out."""


@contextmanager
def explained(repo_id: str, describe_outcome: Callable[[], str] = lambda: "Nothing was published") -> Iterator[None]:
    """Turns errors of the Hub's client within the context into sentences; others pass.

    Args:
        repo_id: the repository that the requests are about.
        describe_outcome: called after the connection broke; returns a sentence on the state of the repository.

    Raises:
        PublishError: the Hub refused, or the connection broke.
        KeyboardInterrupt: Ctrl-C was pressed; the message says how to go on.
    """
    try:
        yield
    except (HFValidationError, HfHubHTTPError) as error:
        raise PublishError(_explain_refusal(repo_id, error)) from error
    except (RuntimeError, httpx.HTTPError, httpx.InvalidURL, OfflineModeIsEnabled) as error:
        # huggingface_hub wraps what broke the upload of a large file.
        cause = error.__cause__ if isinstance(error, RuntimeError) else error
        if not isinstance(cause, httpx.HTTPError | httpx.InvalidURL | OfflineModeIsEnabled):
            raise
        reason = str(cause) or type(cause).__name__
        raise PublishError(
            f"The upload to {repo_id} was interrupted ({reason}). {describe_outcome()}; {AGAIN}"
        ) from error
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"To go on with the upload to {repo_id}, {AGAIN}") from None


def _explain_refusal(repo_id: str, error: Exception) -> str:
    if isinstance(error, HFValidationError):
        return f"{repo_id!r} is not the name of a repository: {error}"
    status = getattr(getattr(error, "response", None), "status_code", None)
    if status in _REFUSALS:
        return _REFUSALS[status].format(repo_id)
    message = getattr(error, "server_message", None) or str(error).strip().splitlines()[0]
    return f"The Hub refused to publish {repo_id}: {message}"
