"""Heat maps: the formula, the places of all families, and that the model is left as it was; and the clip that a model
sees, with times and places, and the shares of its frames."""

from contextlib import nullcontext

import numpy as np
import peft
import pytest
import torch
from PIL import Image
from transformers import AutoModelForVideoClassification

from hf_video import (
    MemoryBankQFormerForVideoClassification,
    VideoClipProcessor,
    VideoMambaConfig,
    VideoMambaForFrameClassification,
    VideoMambaForVideoClassification,
    VideoViTConfig,
    VideoViTForVideoClassification,
)
from hf_video.inference import explain, frame_shares, read_clip, top_frames
from hf_video.inference.explanation import find_patch_shape, integrate_gradients, roll_out_attention
from hf_video.inference.features import weights_digest
from hf_video.reading import VideoReadError
from tests.models.memory_bank_qformer.memory_bank_qformer_testing import tiny_config
from tests.testing.transformers_families import FAMILIES
from tests.testing.videos import encode_video, make_frames

SIZES = {"image_size": 32, "patch_size": 16, "num_frames": 4, "num_labels": 8}
WIDTHS = {"hidden_size": 24, "num_attention_heads": 2, "intermediate_size": 32, "num_hidden_layers": 2}


def make_videovit(**options):
    torch.manual_seed(0)
    return VideoViTForVideoClassification(VideoViTConfig(**{**SIZES, **WIDTHS, "initializer_range": 0.2, **options}))


def make_videomamba(kind=VideoMambaForVideoClassification, **options):
    torch.manual_seed(0)
    return kind(VideoMambaConfig(**{**SIZES, "hidden_size": 24, "num_hidden_layers": 2, "tubelet_size": 2, **options}))


def make_family(name):
    torch.manual_seed(0)
    return AutoModelForVideoClassification.from_config(FAMILIES[name].configuration(num_labels=8))


MODELS = {
    "videovit": lambda: make_videovit(position_embedding_type="none"),
    "videovit with a class token": lambda: make_videovit(
        position_embedding_type="rope", use_class_token=True, use_mean_pooling=False
    ),
    "videomamba": make_videomamba,
    "videomamba, scans over time first": lambda: make_videomamba(scan_order="temporal_first"),
    **{name: lambda name=name: make_family(name) for name in FAMILIES},
}
# The first of two layers of the models whose attention is rolled out.
FIRST_LAYERS = {
    "videovit": "videovit.layers.0",
    "videovit with a class token": "videovit.layers.0",
    "videomae": "videomae.encoder.layer.0",
    "vivit": "vivit.layers.0",
    "vjepa2": "vjepa2.encoder.layer.0",
}


@torch.no_grad()
def see_only_what_is_not_zero(model, name):
    """Gives tokens of black patches the value 0 up to the layer where evidence is taken."""
    for key, parameter in model.named_parameters():
        if key.endswith("bias") or "position_embedding" in key or key.startswith(FIRST_LAYERS.get(name, "no layer")):
            parameter.zero_()
        elif parameter.ndim > 1 and "conv" not in key and "A_log" not in key:
            parameter.normal_(std=0.3)
    if name == "videomae":
        model.videomae.embeddings.position_embeddings.zero_()


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if "over time" in name else name for name in MODELS]
)
def test_what_stands_in_one_place_lights_up_there_alone(name):
    model = MODELS[name]()
    see_only_what_is_not_zero(model, name)
    clip = torch.zeros(1, 4, 3, 32, 32)
    clip[0, 2, :, :16, 16:] = torch.randn(3, 16, 16, generator=torch.Generator().manual_seed(0))
    maps = torch.cat([explain(model, clip, target) for target in range(model.config.num_labels)])
    # At the centres of patches, where a pixel has the value of its patch: (frame, row, column).
    found = {tuple(place) for place in maps[:, :, 7::16, 7::16].gt(0.5).any(0).nonzero().tolist()}
    tubelet = find_patch_shape(model)[0]
    assert found == {(frame, 0, 1) for frame in range(4) if frame // tubelet == 2 // tubelet}


@pytest.mark.parametrize("pooling", ["mean", "class token"])
def test_the_roll_out_is_that_of_the_paper(pooling):
    options = {"use_class_token": True, "use_mean_pooling": False} if pooling == "class token" else {}
    model = make_videovit(**options).double().eval()
    model.set_attn_implementation("eager")
    clip = torch.randn(1, 4, 3, 32, 32, dtype=torch.float64)
    found = roll_out_attention(model, (2, 2, 2), clip, 5)
    outputs = model(pixel_values=clip, output_attentions=True)
    gradients = torch.autograd.grad(outputs.logits[0, 5], outputs.attentions)
    relevance = torch.eye(outputs.attentions[0].shape[-1], dtype=torch.float64)
    for attention, gradient in zip(outputs.attentions, gradients, strict=True):
        heads = [(a * g).clamp(min=0) for a, g in zip(attention[0], gradient[0], strict=True)]
        relevance = relevance + sum(heads) / len(heads) @ relevance
    relevance = relevance - torch.eye(len(relevance), dtype=torch.float64)
    expected = relevance[0, 1:] if pooling == "class token" else relevance.mean(0)
    torch.testing.assert_close(found.flatten(), expected)
    assert found.max() > 0


def test_evidence_adds_up_along_the_way_from_a_blank_clip():
    model, clip = make_videomamba(use_mean_pooling=True).eval(), torch.randn(1, 4, 3, 32, 32)
    blank = clip.transpose(1, 2).flatten(2).median(-1).values[:, None, :, None, None].expand_as(clip)
    products = integrate_gradients(model, clip, 1)
    with torch.no_grad():
        rise = (model(pixel_values=clip).logits - model(pixel_values=blank).logits)[0, 1]
    torch.testing.assert_close(products.sum(), rise, rtol=0.1, atol=0)
    of_patches = products.sum(2).unflatten(1, (2, 2)).unflatten(3, (2, 16)).unflatten(5, (2, 16)).sum((2, 4, 6))
    found = explain(model, clip, 1)[:, ::2, 7::16, 7::16]
    at_centres = torch.nn.functional.interpolate(of_patches.clamp(min=0), scale_factor=16, mode="bilinear")
    at_centres = (at_centres / at_centres.max())[..., 7::16, 7::16]
    torch.testing.assert_close(found, at_centres, rtol=1e-4, atol=1e-6)


def state_of(model):
    modules = [(each.training, len(each._forward_hooks), len(each._backward_hooks)) for each in model.modules()]
    parameters = [(each.requires_grad, each.grad) for each in model.parameters()]
    config = model.config
    return weights_digest(model.state_dict()), modules, parameters, config.to_dict(), config._attn_implementation


@pytest.mark.parametrize(("name", "fails"), [("videovit", False), ("videomamba", True)])
def test_the_model_is_left_as_it_was(name, fails, monkeypatch):
    model = MODELS[name]().train()
    next(model.modules()).eval()
    next(model.parameters()).requires_grad_(False)
    clip = torch.randn(1, 4, 3, 32, 32)
    # The hooks that record attention are Transformers' own, and stay after the first call of a model.
    explain(model, clip, 0)
    before = state_of(model)
    if fails:
        monkeypatch.setattr(torch.autograd, "grad", lambda *args, **kwargs: 1 / 0)
    with pytest.raises(ZeroDivisionError) if fails else nullcontext():
        explain(model, clip, 0)
    assert state_of(model) == before


def test_nothing_of_the_surroundings_changes_the_map():
    model = make_videovit(hidden_dropout_prob=0.5).eval()
    clips = torch.randn(2, 4, 3, 32, 32)
    expected = explain(model, clips, torch.tensor([1, 2]))
    assert expected.dtype == torch.float32 and not expected.requires_grad
    torch.testing.assert_close(expected.amax((1, 2, 3)), torch.ones(2))
    torch.testing.assert_close(explain(model, clips[1:], 2), expected[1:])
    torch.testing.assert_close(explain(model, {"pixel_values": clips, "labels": None}, torch.tensor([1, 2])), expected)
    with torch.inference_mode():
        torch.testing.assert_close(explain(model, clips.clone(), torch.tensor([1, 2])), expected)
    model.train().gradient_checkpointing_enable()
    torch.testing.assert_close(explain(model, clips, torch.tensor([1, 2])), expected)


def test_an_adapter_counts_and_a_compiled_model_is_explained():
    model, clip = MODELS["videovit"](), torch.randn(1, 4, 3, 32, 32)
    expected = explain(model, clip, 0)
    torch.testing.assert_close(explain(torch.compile(model), clip, 0), expected)
    adapted = peft.get_peft_model(model, peft.LoraConfig(target_modules="all-linear"))
    torch.testing.assert_close(explain(adapted, clip, 0), expected)
    for key, parameter in adapted.named_parameters():
        if "lora_B" in key:
            torch.nn.init.normal_(parameter)
    assert not torch.allclose(explain(adapted, clip, 0), expected, atol=0.01)


def test_pixels_and_frames_that_fill_no_patch_have_no_evidence():
    maps = explain(make_videovit(tubelet_size=2), torch.randn(1, 5, 3, 40, 33), 0)
    assert maps.shape == (1, 5, 40, 33)
    assert maps[:, 4].max() == maps[:, :, 32:].max() == maps[..., 32:].max() == 0 < maps.max()
    assert torch.equal(maps[:, 0], maps[:, 1])


def make_rounding():
    model = MODELS["videovit"]()
    model.classifier.register_forward_hook(lambda module, inputs, output: output.round().detach())
    return model


CLIP = torch.zeros(1, 4, 3, 32, 32)


@pytest.mark.parametrize(
    ("make", "inputs", "target", "message"),
    [
        (make_videovit, CLIP[:, None], None, "of several views of a video, explain one"),
        (make_videovit, {"pixels": CLIP}, None, r"`pixel_values` .*, got \['pixels'\]"),
        (make_videovit, CLIP[..., :8, :], None, "hold no patch"),
        (make_videovit, CLIP, 8, "is 8; the id of a class, .* from 0 to 7"),
        (make_videovit, CLIP, torch.tensor([0, 1]), "or one for each of 1 videos"),
        (make_videovit, CLIP * torch.nan, 0, "class 0 are not finite"),
        (make_rounding, CLIP, 0, "gives no gradients"),
        (lambda: make_videovit().videovit, CLIP, 0, "VideoViTModel is not a classifier"),
        (lambda: make_videomamba(VideoMambaForFrameClassification), CLIP, 0, "gives classes of frames, and none of a"),
        (lambda: MemoryBankQFormerForVideoClassification(tiny_config()), CLIP, 0, "through its memory"),
    ],
)
def test_what_cannot_be_explained(make, inputs, target, message):
    with pytest.raises(ValueError, match=f"(?i){message}"):
        explain(make(), inputs, target)


def test_shares_sum_to_one_and_nothing_has_none():
    heat_maps = np.stack([np.full((8, 8), value) for value in (0.0, 0.25, 0.5, 0.25)])
    np.testing.assert_allclose(frame_shares(heat_maps), [0, 0.25, 0.5, 0.25])
    assert top_frames(frame_shares(heat_maps)) == [2, 1, 3] and top_frames(frame_shares(heat_maps), 1) == [2]
    # Less than an even share is not what counted most.
    assert top_frames(np.array([0.1, 0.5, 0.2, 0.2])) == [1]
    # Frames of a tubelet have one value.
    assert top_frames(np.array([0.05, 0.05, 0.3, 0.3, 0.15, 0.15])) == [2] and top_frames(np.full(7, 1 / 7)) == [0]
    nothing = frame_shares(np.zeros((3, 8, 8)))
    assert nothing.tolist() == [0, 0, 0] and top_frames(nothing) == []


def test_a_clip_has_the_images_that_the_model_sees_and_their_times(tmp_path):
    size = {"height": 24, "width": 24}
    processor = VideoClipProcessor(num_frames=6, frame_sampling_rate=2, size={"shortest_edge": 32}, crop_size=size)
    processor.num_clips, processor.num_crops = 4, 3
    # A frame is left out, so the rate varies.
    times = [number for number in range(31) if number != 10]
    video = encode_video(tmp_path / "a.mp4", make_frames(30, 48, 96), times=times)
    clip = read_clip(processor, video)
    expected = processor(video, num_clips=1, num_crops=1, return_tensors="pt")["pixel_values"]
    assert clip.pixel_values.equal(expected) and clip.images.shape == (6, 24, 24, 3)
    seen = (expected[0].movedim(1, -1).numpy() * processor.image_std + processor.image_mean) * 255
    np.testing.assert_allclose(clip.images, seen, atol=1e-3)
    np.testing.assert_allclose(clip.times, np.array([9, 12, 14, 16, 18, 20]) / 30, atol=1e-4)
    assert clip.end == pytest.approx((20 + 11 / 5) / 30, abs=1e-4) and clip.video_size == (48, 96)
    # 48 x 96 becomes 32 x 64; the crop begins at row 4 and column 20, and a pixel stands for 1.5 of the video.
    np.testing.assert_allclose(clip.places[0, 0], [20.5 * 1.5 - 0.5, 4.5 * 1.5 - 0.5], atol=0.01)
    np.testing.assert_allclose(clip.places[23, 23], [43.5 * 1.5 - 0.5, 27.5 * 1.5 - 0.5], atol=0.01)


def test_a_part_of_a_video_keeps_the_times_of_the_video(tmp_path):
    processor = VideoClipProcessor(num_frames=4, sampling_strategy="linspace", crop_size={"height": 24, "width": 24})
    video = encode_video(tmp_path / "a.mp4")
    clip = read_clip(processor, video, start=1.0, end=1.5)
    np.testing.assert_allclose(clip.times, np.array([30, 35, 39, 44]) / 30, atol=1e-4)
    assert clip.end == pytest.approx(1.5, abs=1e-4)
    with pytest.raises(VideoReadError, match="start=7"):
        read_clip(processor, video, start=7.0)


def test_a_folder_of_frames_needs_a_rate(tmp_path):
    for number, frame in enumerate(make_frames(5)):
        Image.fromarray(frame).save(tmp_path / f"{number}.png")
    processor = VideoClipProcessor(num_frames=8, frame_sampling_rate=1, crop_size={"height": 24, "width": 24})
    with pytest.raises(ValueError, match="no times.*source_fps"):
        read_clip(processor, tmp_path)
    clip = read_clip(processor, tmp_path, source_fps=10)
    np.testing.assert_allclose(clip.times, [0, 0.1, 0.2, 0.3, 0.4, 0.4, 0.4, 0.4])
    assert clip.end == pytest.approx(0.4 + 0.4 / 7)
