"""Models are named as folders, released models, and repositories of the Hub."""

import time

import pytest
from huggingface_hub import constants

from hf_video.cli.errors import explain
from hf_video.loading.models import require_model


def test_a_name_that_is_no_folder_is_said_to_be_none_where_the_hub_does_not_answer(tmp_path, monkeypatch):
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:1")
    require_model(str(tmp_path))
    begin = time.monotonic()
    with pytest.raises(OSError, match="--model nofolder: there is no folder of this name here") as caught:
        require_model("nofolder", "--model")
    # A download would be tried again for half a minute.
    assert time.monotonic() - begin < 5 and explain(caught.value) == str(caught.value)
