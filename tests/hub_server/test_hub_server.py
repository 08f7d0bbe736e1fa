"""The server against the real huggingface_hub: what it keeps, and that it refuses what the Hub refuses."""

import hashlib
import json
import os

import pytest
from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi, get_session
from huggingface_hub.errors import (
    EntryNotFoundError,
    HfHubHTTPError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from .fixtures import READ, STRANGER, WRITE

REPO = "alice/model"


@pytest.fixture
def api(hub):
    return HfApi(endpoint=hub.endpoint, token=WRITE)


@pytest.fixture
def repository(api):
    api.create_repo(REPO)
    return REPO


def upload(api, content, path="notes.txt", **options):
    return api.upload_file(path_or_fileobj=content, path_in_repo=path, repo_id=REPO, **options)


def read(api, path, tmp_path, **options):
    with open(api.hf_hub_download(REPO, path, cache_dir=tmp_path / "downloads", **options), "rb") as file:
        return file.read()


def refusal(call, *arguments, **options):
    """The status that a call is refused with."""
    with pytest.raises(HfHubHTTPError) as error:
        call(*arguments, **options)
    return error.value.response.status_code


def test_files_come_back_as_they_were(api, repository, tmp_path):
    contents = {
        "notes.txt": b"text",
        "model.safetensors": os.urandom(1000),
        "sub/deep.txt": b"",
        "big.txt": b"x" * 2**21,
    }
    for path, content in contents.items():
        upload(api, content, path)
    assert set(api.list_repo_files(REPO)) == set(contents)
    assert {path: read(api, path, tmp_path) for path in contents} == contents
    large = {file.path: file.lfs.sha256 for file in api.list_repo_tree(REPO) if getattr(file, "lfs", None)}
    assert large == {"model.safetensors": hashlib.sha256(contents["model.safetensors"]).hexdigest()}


def test_an_unchanged_large_file_is_not_sent_again(hub, api, repository):
    content = os.urandom(1000)
    upload(api, content, "model.safetensors")
    upload(api, content, "copy.safetensors")
    assert [method for method, _, _ in hub.requests].count("PUT") == 1


def test_branches_tags_and_commits_name_states(api, repository, tmp_path):
    first = upload(api, b"first").oid
    api.create_tag(REPO, tag="v1")
    api.create_branch(REPO, branch="other")
    upload(api, b"second")
    upload(api, b"third", revision="other")
    for revision, content in ((first, b"first"), ("v1", b"first"), (None, b"second"), ("other", b"third")):
        assert read(api, "notes.txt", tmp_path, revision=revision) == content
    references = api.list_repo_refs(REPO)
    assert ({ref.name for ref in references.branches}, [ref.name for ref in references.tags]) == (
        {"main", "other"},
        ["v1"],
    )


def test_401_without_a_token_and_with_a_wrong_one(hub, repository):
    assert refusal(HfApi(endpoint=hub.endpoint, token=False).create_repo, "alice/other") == 401
    assert get_session().get(f"{hub.endpoint}/api/whoami-v2").status_code == 401
    wrong = HfApi(endpoint=hub.endpoint, token="hf_wrong")
    assert {refusal(wrong.whoami), refusal(wrong.model_info, REPO), refusal(upload, wrong, b"")} == {401}


def test_403_with_a_token_that_may_not_write_there(hub, repository):
    for token in (READ, STRANGER):
        api = HfApi(endpoint=hub.endpoint, token=token)
        assert refusal(api.create_repo, "alice/other") == 403
        assert refusal(upload, api, b"") == 403
        assert refusal(api.create_branch, REPO, branch="other") == 403
        assert refusal(api.create_tag, REPO, tag="v1") == 403


def test_a_private_repository_does_not_exist_for_others(hub, api):
    api.create_repo("alice/private", private=True)
    assert api.model_info("alice/private").private
    for token, status in ((False, 401), (STRANGER, 404)):
        with pytest.raises(RepositoryNotFoundError) as error:
            HfApi(endpoint=hub.endpoint, token=token).model_info("alice/private")
        assert error.value.response.status_code == status


def test_404_names_what_is_missing(hub, api, repository, tmp_path):
    with pytest.raises(RepositoryNotFoundError):
        api.model_info("alice/none")
    with pytest.raises(RevisionNotFoundError):
        api.model_info(REPO, revision="none")
    with pytest.raises(RevisionNotFoundError):
        upload(api, b"", revision="none")
    with pytest.raises(EntryNotFoundError):
        read(api, "none.txt", tmp_path)
    assert get_session().get(f"{hub.endpoint}/api/unknown").status_code == 404
    delete = CommitOperationDelete("none.txt", is_folder=False)
    assert refusal(api.create_commit, REPO, operations=[delete], commit_message="delete") == 404


def test_only_a_branch_can_be_committed_to(hub, api, repository):
    api.create_tag(REPO, tag="v1")
    head = api.model_info(REPO).sha
    for revision in ("v1", head):
        assert commit_by_hand(hub, "file", revision, path="a.txt", content="").status_code == 404
    assert api.list_repo_files(REPO, revision="v1") == []


def test_409_for_a_name_that_is_taken(api, repository):
    api.create_tag(REPO, tag="v1")
    assert refusal(api.create_repo, REPO) == 409
    assert refusal(api.create_branch, REPO, branch="main") == 409
    assert refusal(api.create_tag, REPO, tag="v1") == 409


def test_412_for_a_commit_on_an_outdated_parent(api, repository, tmp_path):
    parent = upload(api, b"first").oid
    upload(api, b"second")
    assert refusal(upload, api, b"third", parent_commit=parent) == 412
    assert read(api, "notes.txt", tmp_path) == b"second"


def test_invalid_metadata_of_a_card_is_refused(api, repository):
    for metadata, message in (
        ("pipeline_tag: [1]", "pipeline_tag"),
        ("tags: {a: 1}", "tags"),
        ("a: [", "YAML"),
        ("- a list", "metadata must be a mapping"),
        ("model-index: [{name: a}]", "model-index"),
    ):
        with pytest.raises(ValueError, match=message):
            upload(api, f"---\n{metadata}\n---\n".encode(), "README.md")
    assert "README.md" not in api.list_repo_files(REPO)


def commit_by_hand(hub, kind, revision="main", **value):
    lines = ({"key": "header", "value": {"summary": "by hand"}}, {"key": kind, "value": value})
    body = "\n".join(map(json.dumps, lines))
    headers = {"Authorization": f"Bearer {WRITE}"}
    return get_session().post(f"{hub.endpoint}/api/models/{REPO}/commit/{revision}", content=body, headers=headers)


def test_a_path_that_leaves_the_repository_is_refused(hub, api, repository):
    for path in ("../outside", "a/../../outside", "/outside", ".git/config", "a//b"):
        assert commit_by_hand(hub, "file", path=path, content="").status_code == 400
    assert api.list_repo_files(REPO) == []


def test_a_large_file_needs_its_content_a_signature_and_no_token(hub, api, repository):
    sha256 = hashlib.sha256(b"content").hexdigest()
    assert commit_by_hand(hub, "lfsFile", path="a.bin", oid=sha256, algo="sha256", size=7).status_code == 400
    session = get_session()
    assert session.put(f"{hub.storage_endpoint}/{sha256}", content=b"content").status_code == 403
    assert session.put(hub.signed_link(sha256), content=b"other").status_code == 400
    assert not hub.large_file_path(sha256).exists()
    session.put(hub.signed_link(sha256), content=b"content", headers={"Authorization": f"Bearer {WRITE}"})
    assert hub.errors == ["A token was sent to the storage of large files: PUT"]
    hub.errors.clear()


def test_several_files_are_one_commit(api, repository):
    operations = [CommitOperationAdd(f"{name}.txt", name.encode()) for name in "ab"]
    oid = api.create_commit(REPO, operations=operations, commit_message="two").oid
    assert api.model_info(REPO).sha == oid and api.list_repo_files(REPO) == ["a.txt", "b.txt"]
