"""What is refused before anything is sent: by the folder that `publish` is given, and files of strangers."""

import json
import os
import pickle

import pytest
import torch
from huggingface_hub import ModelCard
from transformers import AutoModelForVideoClassification

import hf_video
from conversion.videomae import main as convert
from hf_video.cli.main import main
from hf_video.hub import publish, stage
from hf_video.hub.folder_checks import find_problems, select_files

from .conftest import edit

REPO = "alice/model"


@pytest.fixture
def refused(hub, folder):
    """Publishes the folder, which must fail before the first request; returns the message."""

    def run(**options):
        with pytest.raises(ValueError) as error:
            publish(folder, REPO, **options)
        assert hub.requests == []
        return str(error.value)

    return run


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("config.json", None, "There is no config.json"),
        ("config.json", "{", "config.json cannot be read"),
        ("config.json", '{"model_type": "videovit"}', "config.json has no architectures"),
        ("config.json", '{"model_type": {"a": 1}}', "config.json: `model_type`"),
        ("video_preprocessor_config.json", None, "There is no processor (video_preprocessor_config.json)"),
        ("video_preprocessor_config.json", '{"video_processor_type": [1]}', "`video_processor_type`"),
        ("training_facts.json", "[]", "training_facts.json must hold one JSON object"),
        ("README.md", "---\na: [\n---\n# A model\n", "README.md: its metadata are invalid"),
        ("README.md", "---\nmodel-index: 3\nmodel_name: x\n---\n", "README.md: its metadata are invalid"),
    ],
)
def test_what_is_missing_or_damaged_is_named(folder, refused, name, content, message):
    (folder / name).unlink(missing_ok=True)
    if content is not None:
        (folder / name).write_text(content)
    assert message in refused()


def test_a_regression_model_needs_no_labels(folder):
    assert find_problems(folder) == []
    edit(folder / "config.json", id2label={"0": "LABEL_0"}, problem_type="regression")
    assert find_problems(folder) == []


TOKENS = [
    *("hf_" + "a" * 34, "AKIA" + "A" * 16, "ghp_" + "a" * 36, "sk-" + "a" * 40, "glpat-" + "a" * 20),
    *("-----BEGIN RSA PRIVATE KEY-----", "https://me:secret@example.org/x"),
]


@pytest.mark.parametrize("token", TOKENS)
def test_a_token_in_a_text_is_refused_without_being_repeated(folder, refused, token):
    (folder / "README.md").write_text(f"# A model\nkey = {token}\n")
    message = refused()
    assert "README.md, line 2: this looks like a token" in message and token not in message
    assert "--allow-tokens" in message and "allow_tokens=True" in message


def test_a_token_in_a_licence_and_in_json_is_found(folder):
    for name in ("LICENSE", "generation_config.json"):
        (folder / name).write_text(json.dumps({"source": TOKENS[0]}))
    assert sorted(each.partition(",")[0] for each in find_problems(folder)) == ["LICENSE", "generation_config.json"]


@pytest.mark.parametrize("text", ["/data/videos", "shelf_" + "a" * 40, "https://host:8080/@user", "me@example.org"])
def test_what_is_no_token_passes(folder, text):
    (folder / "README.md").write_text(f"# A model\nsee {text}\n")
    assert find_problems(folder) == []


@pytest.mark.usefixtures("unverified")
def test_what_looks_like_a_token_is_published_when_the_author_says_so(folder, hub):
    (folder / "README.md").write_text(f"# A model\n{TOKENS[0]}\n")
    assert main(["publish", str(folder), REPO, "--allow-tokens"]) == 0
    assert TOKENS[0] in ModelCard.load(REPO).text


def test_training_leftovers_stay_behind(folder):
    leftovers = {"optimizer.pt", "train_options.json", "pytorch_model.bin", ".env", "evil.py", "credentials.json"}
    leftovers |= {"notes.txt", "checkpoint-2/config.json", "report/metrics.json", "report/worst_clips.png"}
    for name in leftovers:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("{}")
    chosen, left_out = select_files(folder)
    assert set(chosen) == {"config.json", "model.safetensors", "training_facts.json", "video_preprocessor_config.json"}
    assert leftovers <= set(left_out)


class Trap:
    """Runs a command when it is unpickled."""

    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return os.mkdir, (str(self.marker),)


def test_pickled_weights_are_neither_read_nor_published(folder, refused, tmp_path):
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Trap(tmp_path / "executed")))
    assert "There is no model.safetensors in the folder. Only safetensors are published" in refused()
    assert not (tmp_path / "executed").exists()


def test_a_malicious_checkpoint_is_not_converted(tmp_path, capsys):
    (tmp_path / "evil.pth").write_bytes(pickle.dumps({"model": Trap(tmp_path / "executed")}))
    torch.save({"model": Trap(tmp_path / "executed")}, tmp_path / "zipped.pth")
    for name in ("evil.pth", "zipped.pth"):
        with pytest.raises(SystemExit) as exit_request:
            convert([str(tmp_path / name), str(tmp_path / "out")])
        assert exit_request.value.code == 2 and "could run code" in capsys.readouterr().err
    assert not (tmp_path / "executed").exists() and not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["model.safetensors", "model.safetensors.index.json"])
def test_damaged_weights_and_those_outside_the_folder_are_refused(folder, refused, name):
    (folder / "model.safetensors").rename(folder.parent / "outside.safetensors")
    index = {"metadata": {}, "weight_map": {"weight": "../outside.safetensors"}}
    (folder / name).write_text(json.dumps(index))
    assert "The model cannot be loaded where hf_video is not installed: " in refused()


def test_an_auto_map_that_leaves_the_folder_is_neither_followed_nor_published(folder, staging, tmp_path):
    (tmp_path / "evil.py").write_text(f"import os\nos.mkdir({str(tmp_path / 'executed')!r})\nclass Model: pass\n")
    edit(folder / "config.json", auto_map={"AutoModelForVideoClassification": "../evil.Model"})
    for trust in (None, False, True):
        model = AutoModelForVideoClassification.from_pretrained(folder, trust_remote_code=trust)
        assert type(model) is hf_video.VideoViTForVideoClassification
    config = (stage(folder, staging, REPO).folder / "config.json").read_text()
    assert "evil" not in config and not (tmp_path / "executed").exists()


def test_the_code_of_others_is_not_published_as_ours(folder, refused):
    edit(folder / "config.json", model_type="other", auto_map={"AutoModel": "modeling_other.Model"})
    assert "The code of 'other' is not of hf_video" in refused()


def test_the_command_prints_all_problems_and_ends_with_2(folder, hub, capsys):
    (folder / "video_preprocessor_config.json").unlink()
    assert main(["publish", str(folder), REPO]) == 2
    message = capsys.readouterr().err
    assert "cannot be published as it is:\n  - There is no processor" in message and "Traceback" not in message
