"""Links out of the model folder and other odd files are refused by name; the files that were checked go up."""

import os
import shutil
import socket

import pytest

from hf_video.hub import PublishError, publish, publishing, push, stage
from hf_video.hub.folder_checks import find_odd_files, select_files

REPO = "alice/model"


@pytest.fixture
def folder(trained_videovit, tmp_path, monkeypatch):
    """A copy of a trained model's folder; loading it in another process is tested elsewhere."""
    monkeypatch.setattr(publishing, "verify", lambda *arguments, **options: {})
    copy = shutil.copytree(trained_videovit, tmp_path / "folder")
    shutil.rmtree(copy / "checkpoint-1")
    return copy


@pytest.fixture
def refused(hub, folder):
    """Publishes the folder, which must fail before the first request; returns the message."""

    def run():
        with pytest.raises(PublishError) as error:
            publish(folder, REPO)
        assert hub.requests == []
        return str(error.value)

    return run


@pytest.mark.parametrize("name", ["LICENSE", "config.json", "model.safetensors", "report/curves.png"])
def test_a_link_out_of_the_folder_is_refused(folder, refused, tmp_path, name):
    (tmp_path / "secret").write_text("private words")
    (folder / "report").mkdir(exist_ok=True)
    (folder / name).unlink(missing_ok=True)
    for target in (tmp_path / "secret", os.path.relpath(tmp_path / "secret", (folder / name).parent)):
        (folder / name).symlink_to(target)
        message = refused()
        assert f"- {name} is a link out of the folder, to {tmp_path / 'secret'}; remove it" in message
        assert "private words" not in message
        (folder / name).unlink()


def test_a_link_by_way_of_another_is_refused(folder, refused, tmp_path):
    (tmp_path / "secret").write_text("private words")
    (folder / "step").symlink_to(tmp_path / "secret")
    (folder / "LICENSE").symlink_to("step")
    assert f"LICENSE is a link out of the folder, to {tmp_path / 'secret'}" in refused()


def test_facts_for_the_card_are_not_read_from_elsewhere(folder, refused, tmp_path):
    (tmp_path / "metrics.json").write_text('{"split": "test"}')
    (folder / "report").mkdir(exist_ok=True)
    (folder / "report" / "metrics.json").unlink(missing_ok=True)
    (folder / "report" / "metrics.json").symlink_to(tmp_path / "metrics.json")
    assert "report/metrics.json is a link out of the folder" in refused()


@pytest.mark.parametrize("name", ["report", "qformer_tokenizer"])
def test_a_linked_folder_is_refused(folder, refused, tmp_path, name):
    (tmp_path / "elsewhere").mkdir()
    shutil.rmtree(folder / name, ignore_errors=True)
    (folder / name).symlink_to(tmp_path / "elsewhere")
    assert f"{name} is a link out of the folder" in refused()


def test_loops_and_dangling_links_are_refused(folder, refused):
    (folder / "LICENSE").symlink_to("LICENSE.txt")
    (folder / "LICENSE.txt").symlink_to("LICENSE")
    (folder / "README.md").symlink_to("nowhere")
    message = refused()
    for name in ("LICENSE", "LICENSE.txt", "README.md"):
        assert f"- {name} is a link that leads nowhere; remove it, or put the file in its place." in message


@pytest.mark.timeout(120, func_only=True)
def test_pipes_sockets_devices_and_folders_are_refused(folder, refused):
    os.mkfifo(folder / "LICENSE")
    with socket.socket(socket.AF_UNIX) as bound:
        before = os.getcwd()
        os.chdir(folder)  # such names are short
        try:
            bound.bind("README.md")
        finally:
            os.chdir(before)
        (folder / "LICENSE.txt").symlink_to("/dev/zero")
        (folder / "vocab.txt").symlink_to("LICENSE")
        message = refused()
    for name in ("LICENSE", "README.md", "vocab.txt"):
        assert f"- {name} is neither a regular file nor a link to one" in message
    assert "- LICENSE.txt is a link out of the folder, to /dev/zero" in message


def test_odd_files_that_stay_behind_disturb_nobody(folder):
    os.mkfifo(folder / "pipe")
    (folder / "notes.txt").symlink_to("/etc/passwd")
    (folder / "loop").symlink_to("loop")
    chosen, left_out = select_files(folder)
    assert {"pipe", "notes.txt", "loop"} <= set(left_out) and find_odd_files(folder, chosen) == []


def test_links_within_the_folder_are_followed(folder, tmp_path, hub):
    (folder / "weights").mkdir()
    (folder / "model.safetensors").rename(folder / "weights" / "last.safetensors")
    (folder / "model.safetensors").symlink_to("weights/last.safetensors")
    (tmp_path / "latest").symlink_to(folder)
    publish(tmp_path / "latest", REPO, check_download=False)
    assert hub.repository(REPO) is not None


def to_cache(folder, cache):
    """The folder as huggingface_hub would have it in its cache: links to blobs."""
    snapshot, blobs = cache / "models--alice--model" / "snapshots" / "abc", cache / "models--alice--model" / "blobs"
    blobs.mkdir(parents=True)
    for path in [path for path in folder.rglob("*") if path.is_file()]:
        blob = shutil.copy(path, blobs / f"{len(os.listdir(blobs)):040x}")
        link = snapshot / path.relative_to(folder)
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(os.path.relpath(blob, link.parent))
    return snapshot


def test_a_snapshot_in_the_cache_of_the_hub_can_be_published(folder, tmp_path, hub):
    snapshot = to_cache(folder, tmp_path / "cache")
    publish(snapshot, REPO, check_download=False)
    assert hub.repository(REPO) is not None


def test_a_folder_made_up_as_a_cache_leads_nowhere_else(folder, tmp_path):
    snapshot = to_cache(folder, tmp_path / "cache")
    (tmp_path / "secret").write_text("private words")
    blob = snapshot.parents[1] / "blobs" / ("f" * 40)
    blob.symlink_to(tmp_path / "secret")
    (snapshot / "LICENSE").symlink_to(blob)
    other = tmp_path / "cache" / "models--bob--model" / "blobs" / "0"
    other.parent.mkdir(parents=True)
    other.write_text("of another model")
    (snapshot / "README.md").symlink_to(other)
    assert [problem.split()[0] for problem in find_odd_files(snapshot, ["LICENSE", "README.md"])] == [
        "LICENSE",
        "README.md",
    ]


def test_what_was_checked_goes_up_whatever_becomes_of_the_folder(folder, tmp_path, hub):
    (folder / "LICENSE").write_text("free")
    (tmp_path / "staging").mkdir()
    publication = stage(folder, tmp_path / "staging", REPO)
    before = {name: (publication.folder / name).read_bytes() for name in publication.files}
    shutil.rmtree(folder)
    assert {name: (publication.folder / name).read_bytes() for name in publication.files} == before
    push(publication, REPO, check_download=False)


@pytest.mark.parametrize("change", ["written over", "swapped for a link", "removed"])
def test_large_files_that_change_after_the_checks_do_not_go_up(folder, tmp_path, hub, monkeypatch, change):
    weights = folder / "model.safetensors"
    monkeypatch.setattr(publishing, "LINKED_FROM", weights.stat().st_size)
    (tmp_path / "staging").mkdir()
    publication = stage(folder, tmp_path / "staging", REPO)
    assert publication.hashes.keys() == {"model.safetensors"} and (publication.folder / weights.name).is_symlink()
    content = weights.read_bytes()
    (tmp_path / "secret").write_bytes(bytes(len(content)))
    weights.unlink()
    if change == "written over":
        weights.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    elif change == "swapped for a link":
        weights.symlink_to(tmp_path / "secret")
    with pytest.raises(
        PublishError, match="model.safetensors has changed since it was checked; nothing was published"
    ):
        push(publication, REPO, check_download=False)
    assert not [path for method, path, _ in hub.requests if method == "PUT" or "/commit/" in path]
    weights.unlink(missing_ok=True)
    weights.write_bytes(content)
    push(publication, REPO, check_download=False)
