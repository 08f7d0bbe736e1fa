"""Staging and pushing a model, and the errors that a user reads if that fails."""

import json
import os
import shutil
import threading

import pytest
import torch
from huggingface_hub import HfApi, ModelCard
from safetensors.torch import load_file, save_file

from hf_video.data import ClipTask, VideoDataset, load_video_dataset
from hf_video.hub import PublishError, publish, push, stage
from hf_video.training import VideoTrainer, VideoTrainingArguments
from tests.hub_server.fixtures import READ
from tests.hub_server.handler import Refusal

from .conftest import edit, make_model

REPO = "alice/model"


@pytest.fixture(scope="session")
def publication(trained_videovit, tmp_path_factory):
    return stage(trained_videovit, tmp_path_factory.mktemp("staging"), REPO)


def test_only_what_belongs_to_the_model_goes_up(publication):
    others = {name for name in publication.files if not name.endswith(".py")}
    expected = {
        "README.md",
        "config.json",
        "model.safetensors",
        "training_facts.json",
        "video_preprocessor_config.json",
    }
    expected |= {f"self_test/{name}" for name in ("self_test.json", "upright.mp4", "wide.mp4")}
    assert others == expected
    assert {"training_args.bin", "trained_videos.json", "checkpoint-1/optimizer.pt"} <= set(publication.left_out)


def test_merged_adapters_go_up_without_a_path_of_this_machine(folder, staging, unverified):
    (folder / "adapter").mkdir()
    (folder / "adapter" / "adapter_config.json").write_text(
        json.dumps({"base_model_name_or_path": "/data/base", "r": 2})
    )
    shutil.copy(folder / "model.safetensors", folder / "adapter" / "adapter_model.safetensors")
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    published = stage(folder, staging, REPO).folder / "adapter"
    assert json.loads((published / "adapter_config.json").read_text()) == {"base_model_name_or_path": "base", "r": 2}
    assert (published / "adapter_model.safetensors").is_file()
    # The user's folder stays as it is.
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def test_training_state_goes_up_when_asked_for(trained_videovit, tmp_path, unverified):
    files = stage(trained_videovit / "checkpoint-1", tmp_path, REPO, with_training_state=True).files
    assert {"optimizer.pt", "scheduler.pt", "trainer_state.json"} <= files.keys()
    assert "training_args.bin" not in files  # holds paths of this machine, and resuming does without


def test_one_commit_on_main_with_a_tag_that_must_be_free(hub, publication):
    commit = push(publication, REPO, tag="v1.0")
    api = HfApi(endpoint=hub.endpoint)
    assert set(api.list_repo_files(REPO)) == publication.files.keys()
    assert [reference.target_commit for reference in api.list_repo_refs(REPO).tags] == [commit.oid]
    with pytest.raises(PublishError, match="already has a tag 'v1.0'"):
        push(publication, REPO, tag="v1.0")
    assert [path for method, path, _ in hub.requests if "/commit/" in path] == [f"/api/models/{REPO}/commit/main"]
    assert api.model_info(REPO).sha == commit.oid


def test_private_is_not_promised_of_a_public_repository(hub, publication):
    push(publication, REPO)
    with pytest.raises(PublishError, match="exists and is public. Make it private"):
        push(publication, REPO, private=True)


@pytest.mark.parametrize(
    ("token", "repo_id", "message"),
    [
        (False, REPO, "does not accept your token. Log in with `hf auth login`"),
        (READ, REPO, "may not write to alice/model. Use a write token"),
        ("hf_write", "alice/a/b", "alice/a/b could not be published: Repo id must be"),
    ],
)
def test_what_the_hub_refuses_is_explained(hub, publication, token, repo_id, message):
    api = HfApi(endpoint=hub.endpoint, token=token)
    with pytest.raises(PublishError, match=message):
        push(publication, repo_id, api=api)
    assert REPO not in hub.repositories


@pytest.mark.parametrize("endpoint", ["http://127.0.0.1:1", "http://[::1"])
def test_a_hub_that_is_not_there_is_told(publication, endpoint):
    with pytest.raises(PublishError, match=f"{REPO} could not be published: .* Run the same command again"):
        push(publication, REPO, api=HfApi(endpoint=endpoint, token="hf_a"))


def test_an_interrupted_upload_goes_on_where_it_stopped(hub, publication):
    def break_before_the_commit(method, path):
        if "/commit/" in path:
            raise Refusal(400, "the connection broke")

    hub.fail = break_before_the_commit
    with pytest.raises(PublishError, match="the connection broke"):
        push(publication, REPO)
    assert HfApi().list_repo_files(REPO) == []
    hub.fail = lambda method, path: None
    push(publication, REPO)
    assert set(HfApi().list_repo_files(REPO)) == publication.files.keys()
    assert [method for method, _, _ in hub.requests].count("PUT") == 1


def test_a_concurrent_commit_is_not_overwritten(hub, publication):
    push(publication, REPO)
    api, once = HfApi(endpoint=hub.endpoint), threading.Event()

    def commit_meanwhile(method, path):
        if "/preupload/" in path and not once.is_set():
            once.set()
            api.upload_file(path_or_fileobj=b"a note", path_in_repo="notes.txt", repo_id=REPO)

    (publication.folder / "extra.txt").write_text("more")
    try:
        hub.fail = commit_meanwhile
        with pytest.raises(PublishError, match="Somebody else committed to alice/model meanwhile"):
            push(publication, REPO)
        assert {"notes.txt"} <= set(api.list_repo_files(REPO)) and not api.file_exists(REPO, "extra.txt")
        push(publication, REPO)
        assert {"notes.txt", "extra.txt"} <= set(api.list_repo_files(REPO))
    finally:
        os.remove(publication.folder / "extra.txt")


def test_a_card_that_was_edited_on_the_hub_is_kept(hub, publication):
    push(publication, REPO)
    HfApi().upload_file(path_or_fileobj=b"---\nlicense: mit\n---\nMine.", path_in_repo="README.md", repo_id=REPO)
    push(publication, REPO)
    assert ModelCard.load(REPO).text == "Mine."


def test_weights_that_do_not_fit_the_configuration_are_refused(folder, tmp_path):
    weights = load_file(folder / "model.safetensors")
    del weights["classifier.bias"]
    save_file(weights | {"extra": torch.zeros(1)}, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(PublishError, match="missing keys: classifier.bias.*unexpected keys: extra"):
        publish(folder, REPO)


def test_labels_are_set_from_a_list_and_must_fit(folder, hub, unverified):
    edit(folder / "config.json", id2label={str(i): f"LABEL_{i}" for i in range(8)})
    with pytest.raises(PublishError, match="The classes have no names"):
        publish(folder, REPO)
    for labels, number in ((["a", "b"], 2), (["a"] * 8, 1)):
        with pytest.raises(PublishError, match=f"There are {number} different labels, but the model has 8 classes"):
            publish(folder, REPO, labels=labels)
    assert hub.requests == []
    publish(folder, REPO, labels=list("abcdefgh"))
    with open(HfApi().hf_hub_download(REPO, "config.json")) as file:
        assert json.load(file)["id2label"]["3"] == "d"


def test_texts_that_were_checked_go_up_whatever_becomes_of_the_folder(folder, staging, hub, unverified):
    publication = stage(folder, staging, REPO)
    for text in folder.glob("*.json"):
        text.write_text("{}")
    push(publication, REPO)
    with open(HfApi().hf_hub_download(REPO, "config.json")) as file:
        assert json.load(file)["model_type"] == "videovit"


def test_a_snapshot_in_the_cache_of_the_hub_can_be_published(folder, tmp_path, hub, unverified):
    """Its files are links to blobs."""
    for name in ("config.json", "model.safetensors"):
        blob = shutil.move(folder / name, tmp_path / f"blob of {name}")
        (folder / name).symlink_to(blob)
    publish(folder, REPO)
    assert {"config.json", "model.safetensors"} <= set(HfApi().list_repo_files(REPO))


@pytest.mark.parametrize("options", [{"hub_model_id": "alice/run", "hub_private_repo": True}, {}])
def test_a_trainer_publishes(hub, digits, tmp_path, unverified, options):
    data = load_video_dataset(digits)
    model, processor = make_model("VideoViT", data["train"].features["label"].names)
    arguments = VideoTrainingArguments(
        str(tmp_path / "model"), use_cpu=True, disable_tqdm=True, max_steps=1, **options
    )
    rows = VideoDataset(data["train"], ClipTask(processor), training=True)
    trainer = VideoTrainer(model, arguments, train_dataset=rows, eval_dataset=rows, processing_class=processor)
    trainer.train()
    api, name = HfApi(), options.get("hub_model_id", REPO)
    is_private = name != REPO
    commit = trainer.push_to_hub() if is_private else trainer.push_to_hub(blocking=False, revision="dev").result()
    info = api.model_info(name, revision=None if is_private else "dev")
    files = {file.rfilename for file in info.siblings}
    assert info.sha == commit.oid and info.private == is_private
    assert {"modeling_videovit.py", "video_processing_clip.py", "model.safetensors"} <= files
    assert not [file for file in files if file.endswith((".pt", ".bin"))]
    card = ModelCard.load(api.hf_hub_download(name, "README.md", revision=info.sha)).text
    assert "| learning rate |" in card and f'model_id = "{name}"' in card
