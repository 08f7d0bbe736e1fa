"""The server against the real huggingface_hub."""

import hashlib
import os

import pytest
from huggingface_hub import HfApi, get_session
from huggingface_hub.errors import HfHubHTTPError

from .fixtures import READ, STRANGER, WRITE

REPO = "alice/model"


@pytest.fixture
def api(hub):
    api = HfApi(endpoint=hub.endpoint, token=WRITE)
    api.create_repo(REPO, private=True)
    return api


def test_files_come_back_as_they_were_at_each_revision(hub, api, tmp_path):
    contents = {"notes.txt": b"text", "model.safetensors": os.urandom(1000), "sub/deep.txt": b""}
    for path, content in contents.items():
        commit = api.upload_file(path_or_fileobj=content, path_in_repo=path, repo_id=REPO)
    api.create_tag(REPO, tag="v1")
    api.upload_file(path_or_fileobj=b"later", path_in_repo="notes.txt", repo_id=REPO)
    assert set(api.list_repo_files(REPO)) == set(contents)
    for revision in ("v1", commit.oid):
        for path, content in contents.items():
            with open(api.hf_hub_download(REPO, path, revision=revision, cache_dir=tmp_path / revision), "rb") as file:
                assert file.read() == content
    assert [method for method, _, _ in hub.requests].count("PUT") == 1


@pytest.mark.parametrize(("token", "seen", "made"), [(False, 401, 401), (READ, 0, 403), (STRANGER, 404, 403)])
def test_who_may_not_see_or_write_is_refused(hub, api, token, seen, made):
    other = HfApi(endpoint=hub.endpoint, token=token)
    for call, words, status in ((other.model_info, (REPO,), seen), (other.create_repo, ("alice/other",), made)):
        if not status:
            call(*words)
            continue
        with pytest.raises(HfHubHTTPError) as error:
            call(*words)
        assert error.value.response.status_code == status


def test_a_token_that_reaches_the_storage_is_an_error(hub):
    link = hub.signed_link(hashlib.sha256(b"content").hexdigest())
    assert get_session().put(link.partition("?")[0], content=b"content").status_code == 403
    get_session().put(link, content=b"content", headers={"Authorization": f"Bearer {WRITE}"})
    assert hub.errors == ["A token was sent to the storage of large files: PUT"]
    hub.errors.clear()
