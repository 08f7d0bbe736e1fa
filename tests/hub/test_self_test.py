"""The self-test that is published with a model, and what verifying finds."""

import re
import shutil

import pytest
import torch
from huggingface_hub import ModelCard, lfs
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel
from transformers.utils import VIDEO_PROCESSOR_NAME

import hf_video
from hf_video.hub import PublishError, publish, self_test, stage, verify_model
from hf_video.hub.custom_code import add_code
from hf_video.hub.self_test import write_self_test
from tests.hub_server.fixtures import run_in_fresh_process

from .conftest import TINY_CLASSIFIERS, edit, make_model, make_processor

REPO = "alice/model"
PARTS = ["frames", "processor", "pixel_values", "labels", "logits"]


@pytest.fixture(scope="session")
def published(tmp_path_factory):
    """The folder of a tiny VideoViT with its self-test."""
    return save(make_model("VideoViT", ["clap", "jump"]), tmp_path_factory.mktemp("published") / "model")


@pytest.fixture
def folder(published, tmp_path):
    """A copy of it, to be spoilt."""
    return shutil.copytree(published, tmp_path / "folder")


def save(parts, folder):
    for part in parts:
        part.save_pretrained(folder)
    add_code(folder)
    write_self_test(folder)
    return folder


def differing(folder, **options):
    found = verify_model(str(folder), device="cpu", **options)
    return [finding.part for finding in found.findings if finding.agrees is False]


@pytest.mark.parametrize(
    ("family", "dtype", "scan"),
    [
        ("VideoViT", "float32", ""),
        ("VideoMamba", "bfloat16", ", selective scan"),
        ("MemoryBankQFormer", "float32", ""),
    ],
)
def test_a_model_gives_its_own_numbers_again(family, dtype, scan, tmp_path):
    """A stranger without hf_video computed them."""
    found = verify_model(
        str(save(make_model(family, ["clap", "jump"]), tmp_path / "model")), device="cpu", dtype=dtype
    )
    assert [finding.part for finding in found.findings] == PARTS
    assert found.first_difference is None and all(finding.agrees for finding in found.findings)
    assert found.here.startswith(f"cpu, {dtype}{scan}")
    assert f"torch {torch.__version__.partition('+')[0]}" in found.made_with


@pytest.mark.parametrize("head", ["Model", "ForPreTraining", "Backbone"])
def test_features_stand_for_the_logits_of_a_model_without_classes(head, tmp_path):
    config = hf_video.VideoViTConfig(**TINY_CLASSIFIERS["VideoViT"])
    folder = save((getattr(hf_video, f"VideoViT{head}")(config), make_processor()), tmp_path / "model")
    assert verify_model(str(folder), device="cpu").findings[-1].part == "features" and differing(folder) == []
    edit(folder / "config.json", hidden_act="relu")
    assert differing(folder) == ["features"]


def test_of_what_is_too_large_to_run_labels_and_processor_are_compared(tmp_path, monkeypatch):
    monkeypatch.setattr(self_test, "MOST_WORK", 1000)
    folder = save(make_model("VideoViT", ["clap", "jump"]), tmp_path / "model")
    assert not list(folder.rglob("*.mp4"))
    found = verify_model(str(folder), device="cpu")
    assert found.first_difference is None
    assert [finding.part for finding in found.findings if finding.agrees] == ["processor", "labels"]
    assert found.findings[-1].agrees is None and "bytes of weights are many for 1 views" in found.findings[-1].text
    edit(folder / "config.json", id2label={"0": "jump", "1": "clap"})
    assert differing(folder) == ["labels"]


@pytest.mark.parametrize(
    "changes",
    [{"num_frames": 2}, {"antialias": True}, {"sampling_strategy": "dense"}, {"size": {"shortest_edge": 36}}],
    ids=lambda value: next(iter(value)),
)
def test_another_preprocessing_is_found(folder, changes):
    edit(folder / VIDEO_PROCESSOR_NAME, **changes)
    assert differing(folder) == ["processor", "pixel_values", "logits"]


@pytest.mark.parametrize("change", [lambda weight: weight.mul_(1.01), lambda weight: weight.copy_(weight.bfloat16())])
def test_other_weights_show_in_the_logits(folder, change):
    weights = load_file(folder / "model.safetensors")
    for name, weight in weights.items():
        if "layers.0" in name or name == "classifier.weight":
            change(weight)
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    assert differing(folder) == ["logits"]


def test_what_cannot_be_computed_is_a_finding(folder):
    (folder / "self_test" / "wide.mp4").write_bytes(b"no video")
    edit(folder / "config.json", num_hidden_layers=2, out_features=["stage9"])
    found = verify_model(str(folder), device="cpu")
    assert found.first_difference.part == "frames" and "cannot be computed: " in found.first_difference.text
    assert "cannot be computed: " in found.findings[-1].text
    (folder / "self_test" / "wide.mp4").unlink()
    assert verify_model(str(folder), device="cpu").first_difference.text.startswith("self_test/wide.mp4 is missing")


def test_a_model_that_takes_no_such_video_is_not_run(tmp_path):
    model, processor = make_model("VideoViT", ["clap", "jump"])
    processor.crop_size = {"height": 8, "width": 8}  # smaller than a patch
    folder = save((model, processor), tmp_path / "model")
    assert not list(folder.rglob("*.mp4"))
    logits = verify_model(str(folder), device="cpu").findings[-1]
    assert logits.agrees is None and "it could not be run where it was published" in logits.text


def test_a_published_model_is_verified_by_anyone(hub, published):
    publish(published, REPO, tag="v1")
    found = verify_model(REPO, revision="v1", device="cpu")
    assert found.first_difference is None and all(finding.agrees for finding in found.findings)
    (code,) = re.findall(r"## Self-test.*?```python\n(.*?)```", ModelCard.load(REPO).text, re.DOTALL)
    process = run_in_fresh_process(hub, code)
    assert process.returncode == 0, process.stderr
    printed = re.findall(r"^(\w+\.mp4): largest difference (\S+) of the largest logit$", process.stdout, re.MULTILINE)
    assert [name for name, _ in printed] == ["upright.mp4", "wide.mp4"]
    assert all(float(difference) < 1e-5 for _, difference in printed)


def test_a_model_is_loaded_once_and_its_weights_are_hashed_once(hub, published, monkeypatch):
    loaded, hashed = [], []
    run, digest = self_test.run_as_stranger, lfs.sha_fileobj
    monkeypatch.setattr(self_test, "run_as_stranger", lambda *words: [loaded.append(1), run(*words)][1])
    monkeypatch.setattr(PreTrainedModel, "from_pretrained", lambda *words, **options: pytest.fail("loaded here"))
    monkeypatch.setattr(lfs, "sha_fileobj", lambda file: [hashed.append(file.name), digest(file)][1])
    monkeypatch.setattr("hashlib.file_digest", lambda *words: pytest.fail("hashed here"))
    publish(published, REPO)
    assert len(loaded) == 1 and len([name for name in hashed if name.endswith(".safetensors")]) == 1


def test_a_processor_that_is_another_one_without_hf_video_is_told(published, tmp_path, monkeypatch):
    measure = self_test.measure
    monkeypatch.setattr(
        self_test, "measure", lambda *words: {name: 1.1 * each for name, each in measure(*words).items()}
    )
    with pytest.raises(PublishError, match="The processor gives other values where hf_video is not installed"):
        stage(published, tmp_path, REPO)
