import pytest
from huggingface_hub import HfApi, constants
from huggingface_hub.utils import _http

from hf_video.cli.main import main
from tests.hub_server.fixtures import hub, unverified  # noqa: F401

REPO = "alice/model"


def test_a_dry_run_shows_everything_and_sends_nothing(trained, hub, unverified, says):  # noqa: F811
    out = says("publish", trained, REPO, "--dry-run")
    size = (trained / "model.safetensors").stat().st_size
    assert f"{size:,}  model.safetensors\n" in out and "  README.md\n" in out and "  modeling_videovit.py\n" in out
    listed = listing(out)
    files = {name.partition("/")[0] for name in map(str, (path.relative_to(trained) for path in trained.rglob("*")))}
    assert files <= {name.partition("/")[0] for name in listed}
    assert listed["training_args.bin"].startswith("left out") and "run code" in listed["training_args.bin"]
    assert listed["train_options.json"].endswith("it may be private")
    # One line a folder.
    checkpoints = {name: line for name, line in listed.items() if name.startswith("checkpoint-")}
    assert len(checkpoints) == 2 and all(
        line.endswith("a checkpoint of the training") for line in checkpoints.values()
    )
    assert "\npipeline_tag: video-classification\n" in out and "\n## Training data\n" in out  # the card
    assert {method for method, *_ in hub.requests} <= {"GET", "HEAD"}


def listing(out):
    """The lines about files, by the name of the file or folder."""
    lines = [line.strip() for line in out.partition("\nREADME.md:\n")[0].splitlines()]
    return {line.split("  ")[1].partition(":")[0].partition(" (")[0]: line for line in lines if "  " in line}


def test_a_dry_run_lists_what_the_command_then_does(trained, hub, unverified, says):  # noqa: F811
    api = HfApi()
    api.create_repo(REPO)
    for name in ("README.md", "model-00001-of-00002.safetensors"):
        api.upload_file(path_or_fileobj=b"theirs", path_in_repo=name, repo_id=REPO)
    words = ["publish", str(trained), REPO, "--revision", "other"]
    out = says(*words, "--dry-run")
    listed = listing(out)
    assert listed["README.md"].startswith("left out") and "has a card" in listed["README.md"]
    assert listed["model-00001-of-00002.safetensors"].startswith("deleted") and "pipeline_tag" not in out
    assert main(words) == 0
    sent = {name for name, line in listed.items() if line[0].isdigit()}
    assert set(api.list_repo_files(REPO, revision="other")) == sent | {"README.md"}


@pytest.mark.parametrize("is_offline", [True, False])
def test_a_dry_run_works_without_the_hub(trained, unverified, says, monkeypatch, is_offline):  # noqa: F811
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", is_offline)
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.setattr(_http.time, "sleep", lambda seconds: pytest.fail("a request is tried again"))
    assert "The Hub cannot be reached" in says("publish", trained, REPO, "--dry-run")


def test_a_folder_takes_what_would_go_up_without_the_hub(trained, unverified, says, monkeypatch, tmp_path):  # noqa: F811
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:1")
    folder = tmp_path / "for_ben"
    listed = listing(says("publish", trained, "--output-dir", folder))
    written = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}
    assert written.keys() == {name for name, line in listed.items() if line[0].isdigit()}
    weights = written["model.safetensors"]
    assert not weights.is_symlink() and weights.read_bytes() == (trained / "model.safetensors").read_bytes()
    (usual := tmp_path / "usual").touch()
    assert {path.stat().st_mode for path in written.values()} == {usual.stat().st_mode}
    card = written["README.md"].read_text(encoding="utf-8")
    assert 'model_id = "./for_ben"' in card and "snapshot_download" not in card
    says("publish", trained, REPO, "--output-dir", tmp_path / "named")
    assert f'model_id = "{REPO}"' in (tmp_path / "named" / "README.md").read_text(encoding="utf-8")
    assert main(["publish", str(trained), "--output-dir", str(folder)]) == 2
    assert main(["publish", str(trained)]) == 2
    assert main(["publish", str(trained), REPO, "--output-dir", str(tmp_path / "new"), "--private"]) == 2
    assert not (tmp_path / "new").exists()


# `tests/hub` loads what was published in another process.
@pytest.mark.parametrize("verified", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_trained_model_is_published_in_one_command(trained, hub, capsys, request, verified):  # noqa: F811
    if not verified:
        request.getfixturevalue("unverified")
    words = ["--private", "--tag", "v1.0", "--revision", "release"]
    assert main(["publish", str(trained), REPO, *words]) == 0
    api = HfApi()
    info = api.model_info(REPO, revision="v1.0")
    assert info.private and info.sha == api.model_info(REPO, revision="release").sha
    assert info.pipeline_tag == "video-classification"
    assert f"published  {hub.endpoint}/{REPO}/commit/{info.sha}\n" in capsys.readouterr().out
