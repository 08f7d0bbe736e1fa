"""Folders of converted image classifiers: their processor, their pipeline, and their card."""

import pytest
import torch
from huggingface_hub import ModelCard
from PIL import Image
from torchvision.transforms.functional import pil_to_tensor, to_pil_image
from transformers import (
    AutoImageProcessor,
    AutoModelForImageClassification,
    ViTConfig,
    ViTForImageClassification,
    ViTImageProcessor,
    pipeline,
)

from conversion import image_vit
from hf_video.hub import publish
from hf_video.processing import VideoClipProcessor
from tests.hub_server.fixtures import hub, unverified  # noqa: F401

LABELS = ["cat", "dog", "owl"]
STATISTICS = {"image_mean": [0.5, 0.4, 0.3], "image_std": [0.2, 0.3, 0.4]}


def save_image_vit(folder, **processor):
    """An image classifier of Transformers with its processor."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 36, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 48}
    config = ViTConfig(image_size=32, patch_size=8, id2label=dict(enumerate(LABELS)), **sizes)
    ViTForImageClassification(config).save_pretrained(folder)
    if processor:
        ViTImageProcessor(**processor).save_pretrained(folder)
    return folder


def convert_image_vit(folder, **processor):
    save_image_vit(folder / "source", **processor)
    sizes = ["--set", "num_frames=1", "--set", "tubelet_size=1"]
    image_vit.main([str(folder / "source"), str(folder / "model"), *sizes])
    return folder / "model"


def make_image():
    return to_pil_image(torch.randint(0, 256, (3, 50, 70), dtype=torch.uint8, generator=torch.manual_seed(0)))


@pytest.mark.parametrize(
    "settings", [{}, {"size": {"height": 32, "width": 32}, "resample": Image.Resampling.BICUBIC, **STATISTICS}]
)
def test_an_image_has_the_pixels_of_a_frame(tmp_path, settings):
    image = make_image()
    processor = AutoImageProcessor.from_pretrained(convert_image_vit(tmp_path, **settings))
    pixels = processor(image, return_tensors="pt")["pixel_values"]
    assert pixels.shape == (1, 3, 32, 32)
    image_vit.main([str(tmp_path / "source"), str(tmp_path / "video"), "--set", "num_frames=2"])
    frames = VideoClipProcessor.from_pretrained(tmp_path / "video", num_frames=1, antialias=True)
    clip = frames(pil_to_tensor(image)[None], return_tensors="pt")["pixel_values"]
    assert torch.equal(pixels, clip[:, 0])
    if settings:
        source = ViTImageProcessor.from_pretrained(tmp_path / "source")
        assert torch.equal(pixels, source(image, return_tensors="pt")["pixel_values"])


def test_the_pipeline_answers_and_the_card_says_so(hub, unverified, tmp_path):  # noqa: F811
    folder, image = convert_image_vit(tmp_path), make_image()
    model = AutoModelForImageClassification.from_pretrained(folder)
    with torch.no_grad():
        pixels = AutoImageProcessor.from_pretrained(folder)(image, return_tensors="pt")
        expected, ids = model(**pixels).logits.softmax(-1)[0].sort(descending=True)
    found = pipeline("image-classification", model=str(folder))(image, top_k=model.config.num_labels)
    assert [entry["label"] for entry in found] == [model.config.id2label[index] for index in ids.tolist()]
    torch.testing.assert_close(torch.tensor([entry["score"] for entry in found]), expected)
    labels = [f"class {index}" for index in range(model.config.num_labels)]
    publish(folder, "alice/images", labels=labels)
    text = ModelCard.load("alice/images").text
    assert 'pipeline("image-classification"' in text
    assert "frames" not in text and "video" not in text.partition("## Limits")[2]
