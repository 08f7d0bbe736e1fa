"""The video classifiers of Transformers with our processor, trainer and commands."""

import json

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import torchvision.transforms.v2.functional as TF
from PIL import Image
from safetensors.torch import load_file
from transformers import (
    AutoImageProcessor,
    AutoModelForVideoClassification,
    AutoVideoProcessor,
    VivitVideoProcessor,
    default_data_collator,
)

from hf_video.inference import predict_scores, watch_features
from hf_video.loading.classifiers import load_classifier, load_trained_classifier
from hf_video.loading.clip_size import check_clips, clip_size, set_input_size
from hf_video.loading.processors import load_processor
from hf_video.training import VideoTrainer
from tests.testing.trainers import make_arguments
from tests.testing.transformers_families import FAMILIES, IMAGE_SIZE, NUM_FRAMES, save_family

from .test_accumulation import gradients

NAMES = ["clap", "jump", "wave"]
SOFT_TARGETS = torch.tensor([[0.5, 0.5, 0], [0, 1, 0], [0.1, 0.2, 0.7], [1, 0, 0]])


@pytest.fixture(scope="module", params=FAMILIES)
def saved(request, tmp_path_factory):
    """The name of a family, and the folder of a tiny classifier with the processor of its family."""
    return request.param, save_family(request.param, tmp_path_factory.mktemp("families") / request.param, NAMES)


class Clips(torch.utils.data.Dataset):
    """Clips whose class shows in their brightness."""

    def __init__(self, length=6):
        self.length = length

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        clips = torch.randn(1, NUM_FRAMES, 3, IMAGE_SIZE, IMAGE_SIZE, generator=generator) + index % len(NAMES)
        return {"pixel_values": clips, "labels": index % len(NAMES)}


def own_inputs(family, folder, frames):
    """The input that the processor of the family itself makes of frames."""
    auto = AutoImageProcessor if (folder / "preprocessor_config.json").is_file() else AutoVideoProcessor
    processor = auto.from_pretrained(folder)
    assert type(processor) is type(FAMILIES[family].processor())
    videos = list(frames) if auto is AutoImageProcessor else [frames]
    (values,) = processor(videos, return_tensors="pt").values()
    return values


def pillow_difference(frames, shortest_edge):
    """How many of 255 levels torchvision's resizing is off from Pillow's, at most, on this machine."""
    ours = TF.resize(torch.from_numpy(frames).movedim(-1, -3), shortest_edge).movedim(-3, -1).numpy()
    size = (ours.shape[2], ours.shape[1])
    theirs = np.stack([Image.fromarray(frame).resize(size, Image.Resampling.BILINEAR) for frame in frames])
    return int(abs(ours.astype(int) - theirs).max())


def test_our_processor_and_scores_are_those_of_the_family(saved):
    family, folder = saved
    model = load_trained_classifier(folder).eval()
    processor = load_processor(folder, model.config)
    assert clip_size(model.config) == (NUM_FRAMES, IMAGE_SIZE) and processor.num_frames == NUM_FRAMES
    frames = np.random.default_rng(0).integers(0, 256, (NUM_FRAMES, 48, 64, 3), dtype=np.uint8)
    ours = processor(frames, do_sample_frames=False, return_tensors="pt")[model.main_input_name]
    theirs = own_inputs(family, folder, frames)

    atol = 1e-6
    if family == "vivit":
        # Its own processor resizes with Pillow. PyTorch has Pillow's arithmetic where it finds AVX2.
        atol += pillow_difference(frames, processor.size["shortest_edge"]) / 255 / min(processor.image_std)
    torch.testing.assert_close(ours, theirs, atol=atol, rtol=0)

    plain = AutoModelForVideoClassification.from_pretrained(folder).eval()
    for values in (theirs, ours):
        with torch.inference_mode():
            expected = plain(**{plain.main_input_name: values}).logits.reshape(1, len(NAMES)).softmax(-1)
        torch.testing.assert_close(predict_scores(model, values), expected, atol=1e-5, rtol=0)


def test_training_keeps_and_loads_the_best_weights_by_their_names(saved, tmp_path):
    _, folder = saved
    model = load_classifier(folder, NAMES)
    arguments = make_arguments(
        tmp_path / "run",
        gradient_accumulation_steps=2,
        per_device_train_batch_size=1,
        eval_strategy="epoch",
        save_strategy="epoch",
        load_best_model_at_end=True,
        metric_for_best_model="loss",
    )
    trainer = VideoTrainer(model=model, args=arguments, train_dataset=Clips(), eval_dataset=Clips(3))
    trainer.train()
    # As if the last epoch had been worse.
    trainer.state.best_model_checkpoint = str(min((tmp_path / "run").glob("checkpoint-*"), key=lambda path: path.name))
    trainer._load_best_model()
    best = load_file(trainer.state.best_model_checkpoint + "/model.safetensors")
    torch.testing.assert_close(dict(trainer.model.state_dict()), best, rtol=0, atol=0)
    loaded = load_trained_classifier(trainer.state.best_model_checkpoint)
    torch.testing.assert_close(dict(loaded.state_dict()), best, rtol=0, atol=0)


def test_an_accumulated_batch_has_the_gradients_of_its_loss(saved, tmp_path):
    _, folder = saved
    model = load_classifier(folder, NAMES)
    clips = torch.randn(4, NUM_FRAMES, 3, IMAGE_SIZE, IMAGE_SIZE, generator=torch.Generator().manual_seed(0))
    items = [{"pixel_values": clip, "labels": label} for clip, label in zip(clips, SOFT_TARGETS, strict=True)]
    logits = model.train()(**{model.main_input_name: clips}).logits
    F.cross_entropy(logits, SOFT_TARGETS).backward()
    expected = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    assert max(gradient.abs().max() for gradient in expected.values()) > 1e-3
    model.zero_grad()
    for batch_size in (4, 1):
        found = gradients(model, items, tmp_path, batch_size, VideoTrainer, data_collator=default_data_collator)
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


def test_the_input_of_the_head_gives_the_logits(saved):
    _, folder = saved
    model = load_trained_classifier(folder).eval()
    clips = torch.randn(2, NUM_FRAMES, 3, IMAGE_SIZE, IMAGE_SIZE, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode(), watch_features(model) as pooled:
        logits = model(**{model.main_input_name: clips}).logits
        torch.testing.assert_close(model.classifier(pooled[0]), logits)
    assert pooled[0].shape == (2, model.classifier.in_features) and logits.shape == (2, len(NAMES))


def test_frames_that_a_model_was_not_made_for_are_refused(saved):
    family, folder = saved
    model = load_trained_classifier(folder)
    check_clips(model, load_processor(folder, model.config))
    refusal = "groups of 2; num_frames=7" if family == "vjepa2" else f"clips of {NUM_FRAMES} frames, .* gives 7"
    with pytest.raises(ValueError, match=refusal):
        check_clips(model, load_processor(folder, model.config, num_frames=7))
    for size in ({"height": 48, "width": 48}, {"height": 32, "width": 48}):
        with pytest.raises(ValueError, match=f"takes frames of 32 x 32 pixels, .* of {size['height']} x 48"):
            check_clips(model, load_processor(folder, model.config, do_center_crop=True, crop_size=size))
    uncropped = load_processor(folder, model.config, do_center_crop=False, size={"shortest_edge": 32})
    with pytest.raises(ValueError, match="gives frames of no fixed size"):
        check_clips(model, uncropped)
    with pytest.raises(ValueError, match="only takes the input size it was made for: image_size=32"):
        set_input_size(model, image_size=48)


def test_vjepa2_takes_another_number_of_frames(tmp_path):
    model = load_trained_classifier(save_family("vjepa2", tmp_path, NAMES))
    set_input_size(model, num_frames=8)
    assert clip_size(model.config).num_frames == 8
    assert predict_scores(model, torch.zeros(1, 8, 3, IMAGE_SIZE, IMAGE_SIZE)).shape == (1, len(NAMES))
    with pytest.raises(ValueError, match="groups of 2; num_frames=5 is not a multiple"):
        set_input_size(model, num_frames=5)


def test_pixels_between_minus_one_and_one(tmp_path):
    """The two processors of ViViT, whose files say differently that they subtract one; and without normalisation."""
    folder = save_family("vivit", tmp_path, NAMES)
    config = load_trained_classifier(folder).config
    frames = np.random.default_rng(0).integers(0, 256, (NUM_FRAMES, 32, 32, 3), dtype=np.uint8)
    for do_normalize in (True, False):
        size = {"size": {"shortest_edge": 32}, "crop_size": {"height": 32, "width": 32}}
        VivitVideoProcessor(**size, do_normalize=do_normalize, image_mean=[0.1, 0.2, 0.3]).save_pretrained(folder)
        ours = load_processor(folder, config)(frames, do_sample_frames=False, return_tensors="pt")["pixel_values"]
        theirs = VivitVideoProcessor.from_pretrained(folder)(frames, return_tensors="pt")["pixel_values"]
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=0)
        assert ours.min() < -0.9


def test_a_file_of_2022_has_the_options_of_its_class(tmp_path):
    folder = save_family("videomae", tmp_path, NAMES)
    old = {"feature_extractor_type": "VideoMAEFeatureExtractor", "size": 32, "crop_size": 32, "image_std": [0.2] * 3}
    (folder / "preprocessor_config.json").write_text(json.dumps(old))
    processor = load_processor(folder, load_trained_classifier(folder).config)
    assert (processor.size.shortest_edge, processor.crop_size.height, processor.num_frames) == (32, 32, NUM_FRAMES)
    assert list(processor.image_mean) == [0.5] * 3 and list(processor.image_std) == [0.2] * 3


@pytest.mark.parametrize(("family", "part"), [("vjepa2", "pooler"), ("videoprism", "head"), ("videomae", None)])
def test_an_encoder_alone_is_trained_whole_but_not_frozen_under_random_weights(family, part, tmp_path, caplog):
    classifier = load_trained_classifier(save_family(family, tmp_path / "whole", NAMES))
    classifier.base_model.save_pretrained(tmp_path / "encoder")
    loaded = load_classifier(tmp_path / "encoder", NAMES)
    torch.testing.assert_close(loaded.base_model.state_dict(), classifier.base_model.state_dict(), rtol=0, atol=0)
    if part is None:
        load_classifier(tmp_path / "encoder", NAMES, is_frozen=True)
        return
    with pytest.raises(ValueError, match=rf"lacks weights before the head .*\({part}\..* would stay random numbers"):
        load_classifier(tmp_path / "encoder", NAMES, is_frozen=True)
    with pytest.raises(ValueError, match=r"lacks weights of .*classifier\.bias"):
        load_trained_classifier(tmp_path / "encoder")
