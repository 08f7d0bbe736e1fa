"""Classifiers, ours and those of Transformers, with the processors and the sizes that they are trained with."""

import json

import numpy as np
import pytest
import torch
import torchvision.transforms.v2.functional as TF
from PIL import Image
from safetensors.torch import load_file
from transformers import (
    AutoImageProcessor,
    AutoModelForVideoClassification,
    AutoVideoProcessor,
    VivitVideoProcessor,
)

from hf_video import VideoViTForVideoClassification
from hf_video.inference import predict_scores
from hf_video.loading.class_names import class_names_of
from hf_video.loading.clip_size import check_clips, check_views, clip_size, set_input_size
from hf_video.loading.heads import load_classifier, load_trained_classifier
from hf_video.loading.processors import load_processor
from hf_video.processing import VideoClipProcessor
from hf_video.training import VideoTrainer
from tests.testing.trainers import make_arguments, make_model
from tests.testing.transformers_families import FAMILIES, IMAGE_SIZE, NUM_FRAMES, save_family

NAMES = ["clap", "jump", "wave"]


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


def test_our_processor_scores_and_features_are_those_of_the_family(saved):
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
    pooled: list[torch.Tensor] = []
    watching = model.classifier.register_forward_pre_hook(lambda module, inputs: pooled.append(inputs[0]))
    with torch.inference_mode(), watching:
        logits = model(**{model.main_input_name: ours}).logits
        torch.testing.assert_close(model.classifier(pooled[0]), logits)
    assert pooled[0].shape == (1, model.classifier.in_features) and logits.shape == (1, len(NAMES))


def test_training_keeps_and_loads_the_best_weights_by_their_names(saved, tmp_path):
    _, folder = saved
    model = load_classifier(folder, NAMES)
    options = {"gradient_accumulation_steps": 2, "per_device_train_batch_size": 1}
    arguments = make_arguments(tmp_path / "run", metric_for_best_model="loss", **options)
    trainer = VideoTrainer(model=model, args=arguments, train_dataset=Clips(), eval_dataset=Clips(3))
    trainer.train()
    # As if the last epoch had been worse.
    trainer.state.best_model_checkpoint = str(min((tmp_path / "run").glob("checkpoint-*"), key=lambda path: path.name))
    trainer._load_best_model()
    best = load_file(trainer.state.best_model_checkpoint + "/model.safetensors")
    torch.testing.assert_close(dict(trainer.model.state_dict()), best, rtol=0, atol=0)
    loaded = load_trained_classifier(trainer.state.best_model_checkpoint)
    torch.testing.assert_close(dict(loaded.state_dict()), best, rtol=0, atol=0)


def test_frames_and_views_that_a_model_was_not_made_for_are_refused(saved):
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
    with pytest.raises(ValueError, match="takes one view of a video, not num_clips=5 x num_crops=3"):
        check_views(model, 5, 3)
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
    assert (f"lacks weights before the head ({part}." in caplog.text) == (part is not None)
    if part is None:
        load_classifier(tmp_path / "encoder", NAMES, is_frozen=True)
        return
    with pytest.raises(ValueError, match=rf"lacks weights of .*\({part}\..* random numbers: train the whole model"):
        load_classifier(tmp_path / "encoder", NAMES, is_frozen=True)
    with pytest.raises(ValueError, match=r"lacks weights of .*classifier\.bias"):
        load_trained_classifier(tmp_path / "encoder")


@pytest.fixture
def ours(tmp_path):
    """The folder of a classifier of our own, without a processor, and the classifier."""
    model = make_model(num_labels=3, id2label=dict(enumerate(NAMES)))
    model.save_pretrained(tmp_path / "model")
    return tmp_path / "model", model


def test_a_head_of_ones_own_is_not_left_out_silently(ours):
    class WithGate(VideoViTForVideoClassification):
        def __init__(self, config):
            super().__init__(config)
            self.gate = torch.nn.Linear(config.hidden_size, 1)
            self.post_init()

    folder, _ = ours
    assert type(load_trained_classifier(folder)) is VideoViTForVideoClassification
    WithGate.from_pretrained(folder).save_pretrained(folder)
    with pytest.raises(ValueError, match=r"saved as WithGate; .*gate\.weight.*WithGate\.from_pretrained"):
        load_trained_classifier(folder)


def test_a_head_is_kept_for_the_same_classes_alone(ours, caplog):
    folder, model = ours
    torch.testing.assert_close(load_classifier(folder, NAMES).state_dict(), model.state_dict(), rtol=0, atol=0)
    assert not [record for record in caplog.records if record.name == "hf_video.loading.heads"]
    for names in (["clap", "jump", "run"], ["clap", "run"]):
        loaded = load_classifier(folder, names, classifier_init_scale=0.001)
        assert class_names_of(loaded.config) == names
        assert loaded.config.label2id == {name: index for index, name in enumerate(names)}
        torch.testing.assert_close(loaded.videovit.state_dict(), model.videovit.state_dict(), rtol=0, atol=0)
        # The new head is drawn as the model draws it, and scaled.
        assert loaded.classifier.weight.shape == (len(names), 24) and not loaded.classifier.bias.any()
        assert 0 < loaded.classifier.weight.abs().max() < 1e-3
        message = caplog.records[-1].getMessage()
        assert f"knows 3 other classes (clap, jump, wave): the head starts afresh, for {len(names)} classes" in message


def test_options_of_a_processor_are_given_or_saved_or_follow_the_configuration(ours, caplog):
    folder, model = ours
    processor = load_processor(folder, model.config)
    assert processor.num_frames == 2 and dict(processor.crop_size) == {"height": 16, "width": 16}
    assert "has no processor file" in caplog.text
    VideoClipProcessor(num_frames=8, sampling_strategy="uniform", num_clips=2).save_pretrained(folder)
    processor = load_processor(folder, model.config, num_clips=3, num_crops=None)
    assert (processor.num_frames, processor.sampling_strategy) == (8, "uniform")
    assert (processor.num_clips, processor.num_crops) == (3, 1)


def test_the_input_size_is_baked_in(ours):
    _, model = ours
    set_input_size(model, image_size=48, num_frames=8)
    assert (model.config.image_size, model.config.num_frames) == (48, 8)
    assert model(torch.zeros(1, 8, 3, 48, 48)).logits.shape == (1, 3)
