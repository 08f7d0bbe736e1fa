import json

import pytest
from huggingface_hub import HfApi

from hf_video.cli.main import main
from hf_video.hub import publishing
from tests.hub_server.fixtures import hub  # noqa: F401

REPO = "alice/model"


@pytest.fixture
def unverified(monkeypatch):
    """Loading the model in another process is tested with the library."""
    monkeypatch.setattr(publishing, "verify", lambda *arguments, **options: {})


def test_a_dry_run_shows_everything_and_sends_nothing(trained, hub, unverified, capsys):  # noqa: F811
    assert main(["publish", str(trained), REPO, "--dry-run"]) == 0
    out = capsys.readouterr().out
    size = (trained / "model.safetensors").stat().st_size
    assert f"{size:,}  model.safetensors\n" in out and "  README.md\n" in out and "  modeling_videovit.py\n" in out
    left_out = next(line for line in out.splitlines() if line.startswith("left out: "))
    assert {"train_options.json", "training_args.bin"} <= set(left_out.removeprefix("left out: ").split(", "))
    assert left_out.count("checkpoint-") == 2  # one word a folder
    assert hub.requests == []


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


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", None, "cannot be read: "),
        ("a.txt", "\n", "expected one name a line, or a JSON list of names"),
        ("a.json", "[", "cannot be read: "),
        ("a.json", "[1]", "expected one name a line, or a JSON list of names"),
    ],
)
def test_wrong_labels_are_explained(tmp_path, fails, name, content, message):
    if content is not None:
        (tmp_path / name).write_text(content)
    assert message in fails("publish", tmp_path, REPO, "--labels", tmp_path / name)


def test_labels_of_a_file_reach_the_hub(trained, hub, unverified, tmp_path):  # noqa: F811
    labels = [f"direction {index}" for index in range(8)]
    (tmp_path / "labels.txt").write_text("\n".join(labels))
    publishing_options = ["--labels", str(tmp_path / "labels.txt")]
    assert main(["publish", str(trained), REPO, *publishing_options]) == 0
    with open(HfApi().hf_hub_download(REPO, "config.json")) as file:
        assert list(json.load(file)["id2label"].values()) == labels
