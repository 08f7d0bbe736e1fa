"""What is refused before anything is sent: by the folder that `publish` is given, and files of strangers."""

import json
import os
import pickle
import shutil
import struct

import pytest
import torch
from huggingface_hub import ModelCard
from transformers import AutoModelForVideoClassification

import hf_video
from conversion.videomae import main as convert
from hf_video.cli.main import main
from hf_video.hub import PublishError, publish, publishing
from hf_video.hub.folder_checks import find_problems, select_files

REPO = "alice/model"


@pytest.fixture
def folder(trained_videovit, tmp_path, monkeypatch):
    """A copy of a trained model's folder, to be spoilt; loading it in another process is tested elsewhere."""
    monkeypatch.setattr(publishing, "verify", lambda *arguments, **options: {})
    copy = shutil.copytree(trained_videovit, tmp_path / "folder")
    shutil.rmtree(copy / "checkpoint-1")
    return copy


@pytest.fixture
def refused(hub, folder):
    """Publishes the folder, which must fail before the first request; returns the message."""

    def run(**options):
        with pytest.raises(PublishError) as error:
            publish(folder, REPO, **options)
        assert hub.requests == []
        return str(error.value)

    return run


def edit(path, **changes):
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_a_folder_that_is_in_order_has_no_problems(folder):
    assert find_problems(folder) == []


def test_a_missing_folder_is_named(tmp_path):
    with pytest.raises(PublishError, match="There is no folder .*nowhere"):
        publish(tmp_path / "nowhere", REPO)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "no config.json"),
        ("{", "config.json cannot be read"),
        ('{"model_type": "videovit"}', "no architectures"),
        ('{"model_type": {"a": 1}}', "`model_type`"),
        ('{"model_type": "videovit", "architectures": 3}', "`architectures`"),
    ],
)
def test_an_incomplete_configuration_is_refused(folder, refused, content, message):
    (folder / "config.json").unlink()
    if content is not None:
        (folder / "config.json").write_text(content)
    assert message in refused()


@pytest.mark.parametrize(
    ("name", "content", "field"),
    [
        ("video_preprocessor_config.json", {"video_processor_type": [1]}, "`video_processor_type`"),
        ("training_facts.json", {"data": [1]}, "`data`"),
        ("training_facts.json", {"source": {}}, "`source.name`"),
        ("report/metrics.json", {"split": "test", "num_videos": 2, "top1_accuracy": "high"}, "`top1_accuracy`"),
        ("report/metrics.json", [], "a list"),
    ],
)
def test_a_field_of_another_type_is_named_with_its_file(folder, refused, name, content, field):
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_text(json.dumps(content))
    message = refused()
    assert name in message and field in message


def test_a_missing_processor_is_refused(folder, refused):
    (folder / "video_preprocessor_config.json").unlink()
    assert "There is no processor (video_preprocessor_config.json)" in refused()


def test_a_regression_model_needs_no_labels(folder):
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


def lying_header(size, **entry):
    header = json.dumps({"weight": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]} | entry}).encode()
    return struct.pack("<Q", len(header) if size is None else size) + header + b"\0" * 16


@pytest.mark.parametrize("content", [lying_header(2**62), lying_header(None, data_offsets=[0, 2**40]), b"\x08"])
def test_a_safetensors_file_with_a_lying_header_is_refused(folder, refused, content):
    (folder / "model.safetensors").write_bytes(content)
    assert "model.safetensors is damaged or not what its header says" in refused()


def test_an_index_cannot_name_files_outside_the_folder(folder, refused):
    (folder / "model.safetensors").rename(folder.parent / "outside.safetensors")
    index = {"metadata": {}, "weight_map": {"weight": "../outside.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    assert "There is no ../outside.safetensors in the folder" in refused()


@pytest.mark.parametrize("reference", ["../evil.Model", "/tmp/evil.Model", "evil", 3])
def test_an_auto_map_that_leaves_the_folder_is_refused(folder, refused, reference, tmp_path):
    (tmp_path / "evil.py").write_text(f"import os\nos.mkdir({str(tmp_path / 'executed')!r})\nclass Model: pass\n")
    edit(folder / "config.json", auto_map={"AutoModelForVideoClassification": reference})
    assert f"{reference!r} in auto_map is not of the form module.Class" in refused()
    assert not (tmp_path / "executed").exists()


def test_installed_classes_load_a_folder_whatever_its_auto_map_says(folder, tmp_path):
    (tmp_path / "evil.py").write_text(f"import os\nos.mkdir({str(tmp_path / 'executed')!r})\nclass Model: pass\n")
    edit(folder / "config.json", auto_map={"AutoModelForVideoClassification": "../evil.Model"})
    for trust in (None, False, True):
        model = AutoModelForVideoClassification.from_pretrained(folder, trust_remote_code=trust)
        assert type(model) is hf_video.VideoViTForVideoClassification
    assert not (tmp_path / "executed").exists()


def test_the_code_of_others_is_not_published_as_ours(folder, refused):
    edit(folder / "config.json", model_type="other", auto_map={"AutoModel": "modeling_other.Model"})
    assert "The code of 'other' is not of hf_video" in refused()


@pytest.mark.parametrize("metadata", ["a: [", "model-index: 3\nmodel_name: x"])
def test_a_card_with_invalid_metadata_is_refused(folder, refused, metadata):
    (folder / "README.md").write_text(f"---\n{metadata}\n---\n# A model\n")
    assert "README.md: its metadata are invalid" in refused()


def test_the_command_prints_all_problems_and_ends_with_2(folder, hub, capsys):
    (folder / "video_preprocessor_config.json").unlink()
    assert main(["publish", str(folder), REPO]) == 2
    message = capsys.readouterr().err
    assert "cannot be published as it is:\n  - There is no processor" in message and "Traceback" not in message
