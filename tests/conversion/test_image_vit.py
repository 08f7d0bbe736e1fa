"""Image ViTs of Transformers turned into video models."""

import json
import re

import pytest
import torch
from transformers import (
    AutoConfig,
    AutoModelForImageClassification,
    AutoModelForVideoClassification,
    AutoVideoProcessor,
    ViTConfig,
    ViTForImageClassification,
)

from conversion.image_vit import main


@pytest.fixture(scope="module")
def image_model(tmp_path_factory):
    torch.manual_seed(0)
    config = ViTConfig(
        image_size=32,
        patch_size=8,
        hidden_size=36,
        num_hidden_layers=2,
        num_attention_heads=3,
        intermediate_size=48,
        id2label={0: "cat", 1: "dog", 2: "owl"},
    )
    model = ViTForImageClassification(config).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    folder = tmp_path_factory.mktemp("vit")
    model.save_pretrained(folder)
    return model, folder


def test_one_frame_is_the_image_model(image_model, tmp_path):
    model, folder = image_model
    main([str(folder), str(tmp_path / "out"), "--set", "num_frames=1", "--set", "tubelet_size=1"])
    converted = AutoModelForImageClassification.from_pretrained(tmp_path / "out")
    images = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        torch.testing.assert_close(converted(images).logits, model(images).logits, atol=1e-5, rtol=1e-4)
    assert converted.config.id2label == {0: "cat", 1: "dog", 2: "owl"}
    assert converted.num_parameters() == model.num_parameters()
    expected = {name: bias for name, bias in model.named_parameters() if re.search(r"(key|k_proj)\.bias", name)}
    found = {name: bias for name, bias in converted.named_parameters() if name.endswith("key.bias")}
    assert len(found) == len(expected) == 2
    assert all(torch.equal(*pair) for pair in zip(found.values(), expected.values(), strict=True))


@pytest.mark.parametrize("inflation", ["centre", "mean"])
def test_a_still_video_has_the_tokens_of_its_image(image_model, tmp_path, inflation):
    model, folder = image_model
    main([str(folder), str(tmp_path / "out"), "--set", "num_frames=4", "--inflation", inflation])
    converted = AutoModelForVideoClassification.from_pretrained(tmp_path / "out")
    images = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        tokens = converted.videovit.embeddings(images[:, None].expand(-1, 4, -1, -1, -1))
        expected = model.vit.embeddings(images)
    torch.testing.assert_close(tokens[:, :17], expected, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(tokens[:, 17:], expected[:, 1:], atol=1e-5, rtol=1e-4)


def test_centre_inflation_looks_at_the_middle_frame_alone(image_model, tmp_path):
    model, folder = image_model
    main([str(folder), str(tmp_path / "out"), "--set", "num_frames=3", "--set", "tubelet_size=3"])
    converted = AutoModelForVideoClassification.from_pretrained(tmp_path / "out")
    clips = torch.randn(2, 3, 3, 32, 32)
    with torch.no_grad():
        tokens = converted.videovit.embeddings(clips)
        torch.testing.assert_close(tokens, model.vit.embeddings(clips[:, 1]), atol=1e-5, rtol=1e-4)


def test_names_of_the_original_are_kept_or_replaced(image_model, tmp_path):
    main([str(image_model[1]), str(tmp_path / "kept")])
    assert AutoConfig.from_pretrained(tmp_path / "kept").label2id == {"cat": 0, "dog": 1, "owl": 2}
    (tmp_path / "names.json").write_text('["a", "b", "c"]')
    main([str(image_model[1]), str(tmp_path / "replaced"), "--labels", str(tmp_path / "names.json")])
    assert AutoConfig.from_pretrained(tmp_path / "replaced").id2label == {0: "a", 1: "b", 2: "c"}


def test_what_the_originals_processor_leaves_open_follows_the_model(image_model, tmp_path):
    folder = tmp_path / "vit"
    image_model[0].save_pretrained(folder)
    settings = {"size": None, "crop_size": None, "do_center_crop": None, "image_mean": [0.5, 0.5, 0.5]}
    (folder / "preprocessor_config.json").write_text(json.dumps(settings))
    main([str(folder), str(tmp_path / "out"), "--set", "num_frames=2"])
    processor = AutoVideoProcessor.from_pretrained(tmp_path / "out")
    assert dict(processor.size) == {"shortest_edge": 32} and processor.do_center_crop
    assert dict(processor.crop_size) == {"height": 32, "width": 32} and tuple(processor.image_mean) == (0.5, 0.5, 0.5)
