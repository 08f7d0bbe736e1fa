"""Errors of the Hub's client become sentences; those of others stay what they are."""

import pytest
from huggingface_hub import HfApi
from huggingface_hub.utils import httpx

from hf_video.hub import PublishError
from hf_video.hub.connection import explained

REPO = "alice/model"


@pytest.mark.parametrize(
    "error", [KeyError("id2label"), FileNotFoundError("model.safetensors"), RuntimeError("out of memory")]
)
def test_an_error_of_our_own_is_not_blamed_on_the_hub(error):
    with pytest.raises(type(error)) as caught, explained(REPO):
        raise error
    assert caught.value is error


@pytest.mark.parametrize("wrap", [False, True])
def test_a_connection_that_breaks_is_told_with_what_became_of_it(wrap):
    broken = httpx.ReadTimeout("The read operation timed out")
    with pytest.raises(PublishError, match=f"{REPO} was interrupted .*timed out.* Half of it is there; run the same"):
        with explained(REPO, lambda: "Half of it is there"):
            if wrap:  # what huggingface_hub does with the upload of a large file
                raise RuntimeError("Error while uploading 'model.safetensors' to the Hub.") from broken
            raise broken


@pytest.mark.parametrize("endpoint", ["http://127.0.0.1:1", "http://[::1"])
def test_a_hub_that_is_not_there_is_told(endpoint):
    with pytest.raises(PublishError, match=f"{REPO} was interrupted .* Nothing was published"), explained(REPO):
        HfApi(endpoint=endpoint, token="hf_a").whoami()


def test_after_ctrl_c_the_way_on_is_told():
    with pytest.raises(KeyboardInterrupt, match=f"{REPO}, run the same command again"), explained(REPO):
        raise KeyboardInterrupt
