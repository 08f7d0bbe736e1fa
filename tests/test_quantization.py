"""Weights that torchao quantised to int8: all families save and load them, and what they cannot do is refused."""

import itertools
import json
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.testing import assert_close
from torchao.quantization import Int8DynamicActivationInt8WeightConfig, Int8Tensor, Int8WeightOnlyConfig
from transformers import TorchAoConfig

from hf_video import (
    MemoryBankQFormerForConditionalGeneration,
    MemoryBankQFormerForVideoClassification,
    VideoClipProcessor,
    VideoMambaForVideoClassification,
    VideoViTConfig,
    VideoViTForPreTraining,
    VideoViTForVideoClassification,
)
from hf_video.cli.main import main
from hf_video.hub.model_card import write_card
from hf_video.inference.features import weights_digest
from hf_video.loading import heads as loading
from tests.models.memory_bank_qformer.memory_bank_qformer_testing import random_frames, random_text, tiny_model
from tests.models.memory_bank_qformer.test_generation import make_model, prompts, video_inputs
from tests.models.videomamba import videomamba_testing
from tests.models.videovit import videovit_testing
from tests.testing.videos import encode_video

SCHEMES = {"dynamic": Int8DynamicActivationInt8WeightConfig, "weights": Int8WeightOnlyConfig}
TOWER = {
    "model_type": "instructblip_vision_model",
    "hidden_size": 40,
    "intermediate_size": 48,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "image_size": 28,
    "patch_size": 14,
}


def make_videovit():
    torch.manual_seed(0)
    config = videovit_testing.tiny_config()
    return VideoViTForVideoClassification(config).eval(), {"pixel_values": videovit_testing.random_clips(config)}


def make_videomamba():
    model = videomamba_testing.make(VideoMambaForVideoClassification)
    return model, {"pixel_values": videomamba_testing.random_clips(model.config)}


def make_qformer():
    return tiny_model(), {"vision_embeds": random_frames(), **random_text()}


def make_qformer_classifier():
    model = tiny_model(MemoryBankQFormerForVideoClassification, vision_config=TOWER, num_labels=3)
    return model, {"pixel_values": torch.randn(2, 4, 3, 28, 28, generator=torch.Generator().manual_seed(0))}


def make_answering(kind):
    model = make_model(kind)
    labels = {"labels": torch.full((2, 2), 7)} if kind == "encoder-decoder" else {}
    return model, {**video_inputs(), **prompts(), **labels}


MAKERS = {
    "VideoViT": make_videovit,
    "VideoMamba": make_videomamba,
    "MemoryBankQFormer with a tower": make_qformer_classifier,
    "MemoryBankQFormer with a decoder": lambda: make_answering("decoder"),
    "MemoryBankQFormer with an encoder": lambda: make_answering("encoder-decoder"),
}


def quantize(model, folder, scheme="dynamic", **options):
    model.save_pretrained(folder)
    return type(model).from_pretrained(folder, quantization_config=TorchAoConfig(SCHEMES[scheme]()), **options)


@torch.no_grad()
def run(model, inputs):
    outputs = model(**inputs)
    return outputs.logits if "logits" in outputs else outputs.last_hidden_state


def replace_quantized_weights(model, original):
    """`original` with the values that the int8 weights of `model` stand for."""
    weights = {name: weight for name, weight in model.state_dict().items() if isinstance(weight, Int8Tensor)}
    original.load_state_dict({name: weight.dequantize() for name, weight in weights.items()}, strict=False)
    return len(weights)


@pytest.mark.parametrize(
    ("family", "scheme"),
    [
        pytest.param(*each, marks=pytest.mark.slow if each[1] == "dynamic" and each[0] != "VideoViT" else [])
        for each in itertools.product(MAKERS, SCHEMES)
    ],
)
def test_quantised_weights_are_saved_and_loaded(family, scheme, tmp_path):
    model, inputs = MAKERS[family]()
    quantized = quantize(model, tmp_path / "float", scheme)
    plain = [name for name, module in quantized.named_modules() if isinstance(module, nn.Linear)]
    plain = [name for name in plain if not isinstance(quantized.get_submodule(name).weight, Int8Tensor)]
    assert plain == (["language_model.lm_head"] if hasattr(model, "language_model") else [])

    expected = run(quantized, inputs)
    quantized.save_pretrained(tmp_path / "int8")
    loaded, report = type(model).from_pretrained(tmp_path / "int8", output_loading_info=True)
    assert not any(report.values())
    for (name, saved), read in zip(quantized.state_dict().items(), loaded.state_dict().values(), strict=True):
        assert torch.equal(*(each.dequantize() if isinstance(each, Int8Tensor) else each for each in (saved, read))), (
            name
        )
    assert_close(run(loaded, inputs), expected)
    size = {name: (tmp_path / name / "model.safetensors").stat().st_size for name in ("float", "int8")}
    assert size["int8"] < size["float"]

    if scheme == "weights":
        assert replace_quantized_weights(quantized, model) >= 14
        assert_close(expected, run(model, inputs), atol=1e-4, rtol=1e-4)


def test_a_quantised_model_answers_as_before_it_was_saved(tmp_path):
    model, inputs = make_answering("decoder")
    quantized = quantize(model, tmp_path / "float")
    quantized.save_pretrained(tmp_path / "int8")
    loaded = MemoryBankQFormerForConditionalGeneration.from_pretrained(tmp_path / "int8")
    options = {"max_new_tokens": 5, "do_sample": False}
    assert torch.equal(quantized.generate(**inputs, **options), loaded.generate(**inputs, **options))


@pytest.mark.parametrize("make", [make_qformer, lambda: (VideoViTForPreTraining(videovit_testing.tiny_config()), {})])
def test_what_torchao_cannot_read_back_is_not_saved(make, tmp_path):
    model, inputs = make()
    quantized = quantize(model, tmp_path / "float")
    if inputs:
        assert_close(run(quantized, inputs), run(model, inputs), atol=0.5, rtol=0.5)
    with pytest.raises(ValueError, match=r"torchao cannot read back \w+_tokens?, .*pass `quantization_config`"):
        quantized.save_pretrained(tmp_path / "int8")
    assert not (tmp_path / "int8").exists()


def bright_quarters(num_clips, seed):
    """Clips (num_clips, 4, 3, 32, 32) of noise in which one quarter of all frames is brighter, and which it is."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(4, (num_clips,), generator=generator)
    clips = torch.randn(num_clips, 4, 3, 32, 32, generator=generator)
    for clip, label in zip(clips, labels.tolist(), strict=True):
        row, column = 16 * (label // 2), 16 * (label % 2)
        clip[..., row : row + 16, column : column + 16] += 2
    return clips, labels


def test_a_trained_classifier_keeps_its_answers(tmp_path):
    torch.manual_seed(0)
    sizes = {"image_size": 32, "patch_size": 8, "num_frames": 4, "hidden_size": 64, "intermediate_size": 128}
    model = VideoViTForVideoClassification(
        VideoViTConfig(**sizes, num_hidden_layers=2, num_attention_heads=2, num_labels=4)
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(100):
        clips, labels = bright_quarters(32, seed=step)
        cross_entropy(model(clips).logits, labels).backward()
        optimizer.step()
        optimizer.zero_grad()
    clips, labels = bright_quarters(400, seed=1000)
    expected = run(model.eval(), {"pixel_values": clips}).argmax(dim=-1)
    assert (expected == labels).float().mean() >= 0.6  # chance: 0.25
    for scheme in SCHEMES:
        answers = run(quantize(model, tmp_path, scheme), {"pixel_values": clips}).argmax(dim=-1)
        assert (answers == expected).float().mean() >= 0.99


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A quantised classifier that was saved."""
    root = tmp_path_factory.mktemp("quantized")
    quantize(make_videovit()[0], root / "float").save_pretrained(root / "int8")
    return root / "int8"


@pytest.mark.slow
def test_a_folder_made_by_the_readme_can_be_published(tmp_path, monkeypatch):
    section = (Path(__file__).parents[1] / "docs" / "speed.md").read_text().split("## int8")[1]
    snippet = section.split("```python\n")[1].split("```")[0]
    monkeypatch.chdir(tmp_path)
    model, _ = make_videovit()
    model.config.id2label = {index: f"class {index}" for index in range(model.config.num_labels)}
    model.save_pretrained("my_model")
    size = {"height": model.config.image_size, "width": model.config.image_size}
    processor = VideoClipProcessor(num_frames=model.config.num_frames, size=size, crop_size=size, image_mean=[0.4] * 3)
    processor.save_pretrained("my_model")
    assert snippet.startswith("import hf_video ")
    exec(snippet, {})
    assert VideoClipProcessor.from_pretrained("my_model_int8").image_mean == (0.4, 0.4, 0.4)
    assert main(["publish", "my_model_int8", "user/model", "--dry-run"]) == 0


def test_it_is_loaded_to_be_used_and_not_to_be_trained(folder):
    assert isinstance(loading.load_trained_classifier(folder, dtype="float32").classifier.weight, Int8Tensor)
    with pytest.raises(
        ValueError, match="int8 is quantised .torchao., and quantised weights .*train the model that it"
    ):
        loading.load_classifier(folder, ["clap", "jump"])


def test_the_command_classifies_with_it(folder, tmp_path, capsys):
    scores = {}
    video = encode_video(tmp_path / "video.mp4")
    for model in (folder, folder.with_name("float")):
        assert main(["predict", video, "--model", str(model), "--json", "--top-k", "5"]) == 0
        found = json.loads(capsys.readouterr().out.splitlines()[-1])["predictions"]
        scores[model.name] = {each["label"]: each["score"] for each in found}
    assert scores["int8"] != scores["float"]
    assert scores["int8"] == pytest.approx(scores["float"], abs=0.01)


@pytest.mark.parametrize("dtype", [None, "auto", "float32", torch.float32])
def test_it_is_loaded_in_the_dtype_that_it_was_quantised_in(folder, dtype):
    assert loading.load_trained_classifier(folder, dtype=dtype).dtype == torch.float32


@pytest.mark.parametrize("dtype", ["bfloat16", torch.bfloat16])
def test_it_is_loaded_in_no_other_dtype(folder, dtype):
    with pytest.raises(ValueError, match="int8 was quantised in float32, .* in bfloat16: set dtype to float32"):
        loading.load_trained_classifier(folder, dtype=dtype)


def test_without_torchao_an_error_says_how_to_install_it(folder, monkeypatch):
    monkeypatch.setattr("transformers.quantizers.quantizer_torchao.is_torchao_available", lambda: False)
    with pytest.raises(ImportError, match="requires torchao library .`pip install torchao`"):
        loading.load_trained_classifier(folder)


def test_the_digest_of_quantised_weights_tells_them_apart(folder):
    weights = VideoViTForVideoClassification.from_pretrained(folder).state_dict()
    again = VideoViTForVideoClassification.from_pretrained(folder).state_dict()
    assert weights_digest(weights) == weights_digest(again)
    again["classifier.weight"].scale.mul_(2)
    assert weights_digest(weights) != weights_digest(again)


def test_the_card_says_what_it_needs(folder):
    write_card(folder, "user/model", facts={})
    assert "only loads where torchao is installed" in (folder / "README.md").read_text()
