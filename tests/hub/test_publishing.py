"""Staging and pushing a model, and the errors that a user reads if that fails."""

import json
import os
import shutil
import threading

import pytest
import torch
from huggingface_hub import HfApi, ModelCard
from huggingface_hub.utils import httpx
from safetensors.torch import load_file, save_file

import hf_video
from hf_video.hub import PublishError, publish, publishing, push, stage
from tests.hub_server.fixtures import READ, STRANGER, run_in_fresh_process
from tests.hub_server.handler import Refusal

REPO = "alice/model"


@pytest.fixture(scope="session")
def publication(trained_videovit, tmp_path_factory):
    return stage(trained_videovit, tmp_path_factory.mktemp("staging"), REPO)


@pytest.fixture
def folder(trained_videovit, tmp_path):
    """A copy of a trained model's folder, to be spoilt."""
    return shutil.copytree(trained_videovit, tmp_path / "folder")


@pytest.fixture
def unverified(monkeypatch):
    """For what goes wrong, or right, before the model is loaded in another process."""
    monkeypatch.setattr(publishing, "verify", lambda *arguments, **options: {})


def push_quickly(publication, **options):
    return push(publication, REPO, check_download=False, **options)


def edit(path, **changes):
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_every_class_is_in_the_auto_map_and_has_its_file(publication):
    config = json.loads((publication.folder / "config.json").read_text())
    processor = json.loads((publication.folder / "video_preprocessor_config.json").read_text())
    rows = [row for row in hf_video.auto.CLASSES if row.config_class == "VideoViTConfig"]
    assert config["auto_map"].keys() == {"AutoConfig", *(row.auto_class for row in rows)}
    assert processor["auto_map"] == {"AutoVideoProcessor": "video_processing_clip.VideoClipProcessor"}
    for reference in config["auto_map"].values():
        module, name = reference.split(".")
        assert f"class {name}(" in (publication.folder / f"{module}.py").read_text()


def test_only_what_belongs_to_the_model_goes_up(publication):
    others = {name for name in publication.files if not name.endswith(".py")}
    expected = {
        "README.md",
        "config.json",
        "model.safetensors",
        "self_test/self_test.json",
        "self_test/upright.mp4",
        "self_test/wide.mp4",
        "training_facts.json",
        "video_preprocessor_config.json",
    }
    assert others == expected
    assert {"training_args.bin", "trained_videos.json", "checkpoint-1/optimizer.pt"} <= set(publication.left_out)


def test_merged_adapters_go_up_without_a_path_of_this_machine(folder, tmp_path, unverified):
    (folder / "adapter").mkdir()
    (folder / "adapter" / "adapter_config.json").write_text(
        json.dumps({"base_model_name_or_path": "/data/base", "r": 2})
    )
    shutil.copy(folder / "model.safetensors", folder / "adapter" / "adapter_model.safetensors")
    (tmp_path / "staging").mkdir()
    published = stage(folder, tmp_path / "staging", REPO).folder / "adapter"
    assert json.loads((published / "adapter_config.json").read_text()) == {"base_model_name_or_path": "base", "r": 2}
    assert (published / "adapter_model.safetensors").is_file()


def test_the_users_folder_stays_as_it_is(folder, tmp_path, unverified):
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    (tmp_path / "staging").mkdir()
    stage(folder, tmp_path / "staging", REPO)
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def test_training_state_goes_up_when_asked_for(trained_videovit, tmp_path, unverified):
    files = stage(trained_videovit / "checkpoint-1", tmp_path, REPO, with_training_state=True).files
    assert {"optimizer.pt", "scheduler.pt", "trainer_state.json"} <= files.keys()
    assert "training_args.bin" not in files  # holds paths of this machine, and resuming does without


def test_one_commit_on_main_with_a_tag_that_must_be_free(hub, publication):
    commit = push_quickly(publication, tag="v1.0")
    api = HfApi(endpoint=hub.endpoint)
    assert set(api.list_repo_files(REPO)) == publication.files.keys()
    assert [reference.target_commit for reference in api.list_repo_refs(REPO).tags] == [commit.oid]
    with pytest.raises(PublishError, match="already has a tag 'v1.0'"):
        push_quickly(publication, tag="v1.0")
    assert [path for method, path, _ in hub.requests if "/commit/" in path] == [f"/api/models/{REPO}/commit/main"]
    assert api.model_info(REPO).sha == commit.oid


def test_branch_tag_and_commit_are_what_revision_names(hub, folder, tmp_path, unverified):
    commits = {}
    for number, revision in enumerate((None, "other")):
        weights = load_file(folder / "model.safetensors")
        weights["classifier.bias"] = torch.full((8,), float(number))
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
        commits[revision] = publish(folder, REPO, revision=revision, tag=f"v{number}", check_download=False)
    program = f"""
        import json
        from transformers import AutoModelForVideoClassification
        def bias(revision):
            model = AutoModelForVideoClassification.from_pretrained(
                {REPO!r}, revision=revision, trust_remote_code=True
            )
            return model.classifier.bias[0].item()
        print(json.dumps([bias(r) for r in ("main", "other", "v0", "v1", {commits[None].oid!r})]))
    """
    process = run_in_fresh_process(hub, program)
    assert json.loads(process.stdout.splitlines()[-1]) == [0, 1, 0, 1, 0], process.stderr
    with pytest.raises(PublishError, match="'v0' is a tag of alice/model; only a branch"):
        publish(folder, REPO, revision="v0", check_download=False)


def test_a_private_model_is_loaded_with_the_right_token_only(hub, publication):
    push_quickly(publication, private=True)
    # The right one is the last: what it fetches stays in the cache.
    program = f"""
        import json, os
        from transformers import AutoConfig
        said = []
        for token in ("", {STRANGER!r}, "hf_wrong", "hf_write"):
            os.environ["HF_TOKEN"] = token
            try:
                said.append(AutoConfig.from_pretrained({REPO!r}, trust_remote_code=True).model_type)
            except OSError as error:
                said.append(str(error))
        print(json.dumps(said))
    """
    process = run_in_fresh_process(hub, program)
    assert process.returncode == 0, process.stderr
    nobody, stranger, wrong, right = json.loads(process.stdout.splitlines()[-1])
    for said in (nobody, stranger):
        assert "is not a local folder and is not a valid model identifier" in said
    assert "Invalid credentials in Authorization header" in wrong and right == "videovit"


def test_private_is_not_promised_of_a_public_repository(hub, publication):
    push_quickly(publication)
    with pytest.raises(PublishError, match="exists and is public. Make it private in its settings"):
        push_quickly(publication, private=True)


@pytest.mark.parametrize(
    ("token", "repo_id", "message"),
    [
        (False, REPO, "does not accept your token. Log in with `hf auth login`"),
        (READ, REPO, "may not write to alice/model. Use a write token"),
        ("hf_write", "alice/a/b", "'alice/a/b' is not the name of a repository"),
    ],
)
def test_what_the_hub_refuses_is_explained(hub, publication, token, repo_id, message):
    api = HfApi(endpoint=hub.endpoint, token=token)
    with pytest.raises(PublishError, match=message):
        push(publication, repo_id, check_download=False, api=api)
    assert REPO not in hub.repositories


def test_an_interrupted_upload_goes_on_where_it_stopped(hub, publication):
    def break_before_the_commit(method, path):
        if "/commit/" in path:
            raise Refusal(400, "the connection broke")

    hub.fail = break_before_the_commit
    with pytest.raises(PublishError, match="the connection broke"):
        push_quickly(publication)
    assert HfApi().list_repo_files(REPO) == []
    hub.fail = lambda method, path: None
    push_quickly(publication)
    assert set(HfApi().list_repo_files(REPO)) == publication.files.keys()
    assert [method for method, _, _ in hub.requests].count("PUT") == 1


def test_a_commit_whose_answer_is_lost_is_not_denied(hub, publication, monkeypatch):
    create_commit = HfApi.create_commit

    def lose_the_answer(*words, **options):
        create_commit(*words, **options)
        raise httpx.ReadTimeout("The read operation timed out")

    monkeypatch.setattr(HfApi, "create_commit", lose_the_answer)
    with pytest.raises(PublishError, match=f"{REPO} has a new commit [0-9a-f]+; run the same command again"):
        push_quickly(publication)


def test_a_concurrent_commit_is_not_overwritten(hub, publication):
    push_quickly(publication)
    api, once = HfApi(endpoint=hub.endpoint), threading.Event()

    def commit_meanwhile(method, path):
        if "/preupload/" in path and not once.is_set():
            once.set()
            api.upload_file(path_or_fileobj=b"a note", path_in_repo="notes.txt", repo_id=REPO)

    (publication.folder / "extra.txt").write_text("more")
    try:
        hub.fail = commit_meanwhile
        with pytest.raises(PublishError, match="Somebody else committed to alice/model meanwhile"):
            push_quickly(publication)
        assert {"notes.txt"} <= set(api.list_repo_files(REPO)) and not api.file_exists(REPO, "extra.txt")
        push_quickly(publication)
        assert {"notes.txt", "extra.txt"} <= set(api.list_repo_files(REPO))
    finally:
        os.remove(publication.folder / "extra.txt")


def test_a_card_that_was_edited_on_the_hub_is_kept(hub, publication):
    push_quickly(publication)
    HfApi().upload_file(path_or_fileobj=b"---\nlicense: mit\n---\nMine.", path_in_repo="README.md", repo_id=REPO)
    push_quickly(publication)
    assert ModelCard.load(REPO).text == "Mine."


def test_weights_of_an_earlier_upload_cannot_be_mistaken_for_these(hub, publication):
    push_quickly(publication)
    HfApi().upload_file(path_or_fileobj=b"old", path_in_repo="model-00001-of-00002.safetensors", repo_id=REPO)
    HfApi().upload_file(path_or_fileobj=b"{}", path_in_repo="model.safetensors.index.json", repo_id=REPO)
    push_quickly(publication)
    assert set(HfApi().list_repo_files(REPO)) == publication.files.keys()


def test_what_is_uploaded_is_loaded_back_and_a_failure_names_the_commit(hub, publication, monkeypatch):
    checked = []

    def verify(source, **options):
        checked.append((source, options["revision"]))
        raise PublishError("it does not load")

    monkeypatch.setattr(publishing, "verify", verify)
    with pytest.raises(PublishError, match="alice/model was uploaded as commit .*, but: it does not load"):
        push(publication, REPO, tag="v1")
    assert checked == [(REPO, HfApi().model_info(REPO).sha)]
    assert HfApi().list_repo_refs(REPO).tags == []


def test_weights_that_do_not_fit_the_configuration_are_refused(folder, tmp_path):
    weights = load_file(folder / "model.safetensors")
    del weights["classifier.bias"]
    save_file(weights | {"extra": torch.zeros(1)}, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(PublishError, match="missing keys: classifier.bias.*unexpected keys: extra"):
        publish(folder, REPO)


def test_labels_are_set_from_a_list_and_must_fit(folder, hub, unverified):
    edit(folder / "config.json", id2label={str(i): f"LABEL_{i}" for i in range(8)})
    with pytest.raises(PublishError, match="The classes have no names"):
        publish(folder, REPO, check_download=False)
    with pytest.raises(PublishError, match="There are 2 labels, but the model has 8 classes"):
        publish(folder, REPO, labels=["a", "b"], check_download=False)
    with pytest.raises(PublishError, match="Two labels are the same"):
        publish(folder, REPO, labels=["a"] * 8, check_download=False)
    assert hub.requests == []
    publish(folder, REPO, labels=list("abcdefgh"), check_download=False)
    with open(HfApi().hf_hub_download(REPO, "config.json")) as file:
        assert json.load(file)["id2label"]["3"] == "d"


def test_what_was_checked_goes_up_whatever_becomes_of_the_folder(folder, tmp_path, hub, unverified):
    (tmp_path / "staging").mkdir()
    publication = stage(folder, tmp_path / "staging", REPO)
    before = {name: (publication.folder / name).read_bytes() for name in publication.files}
    shutil.rmtree(folder)
    assert {name: (publication.folder / name).read_bytes() for name in publication.files} == before
    push_quickly(publication)


@pytest.mark.parametrize("change", ["written over", "removed"])
def test_large_files_that_change_after_the_checks_do_not_go_up(folder, tmp_path, hub, unverified, monkeypatch, change):
    weights = folder / "model.safetensors"
    monkeypatch.setattr(publishing, "LINKED_FROM", weights.stat().st_size)
    (tmp_path / "staging").mkdir()
    publication = stage(folder, tmp_path / "staging", REPO)
    assert publication.hashes.keys() == {weights.name} and (publication.folder / weights.name).is_symlink()
    content = weights.read_bytes()
    weights.unlink()
    if change == "written over":
        weights.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(PublishError, match=f"{weights.name} has changed since it was checked"):
        push_quickly(publication)
    assert not [path for method, path, _ in hub.requests if method == "PUT" or "/commit/" in path]


def test_a_snapshot_in_the_cache_of_the_hub_can_be_published(folder, tmp_path, hub, unverified):
    """Its files are links to blobs."""
    for name in ("config.json", "model.safetensors"):
        blob = shutil.move(folder / name, tmp_path / f"blob of {name}")
        (folder / name).symlink_to(blob)
    publish(folder, REPO, check_download=False)
    assert {"config.json", "model.safetensors"} <= set(HfApi().list_repo_files(REPO))
