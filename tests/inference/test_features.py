"""Features of windows are those of clips one by one, at any depth, and each frame is processed once."""

import numpy as np
import pytest
import torch
from transformers import VideoMAEConfig, VideoMAEForVideoClassification

from hf_video import (
    MemoryBankQFormerForVideoClassification,
    VideoClipProcessor,
    VideoMambaConfig,
    VideoMambaForVideoClassification,
)
from hf_video.inference import extract_window_features, window_batches
from hf_video.reading import read_video
from tests.models.memory_bank_qformer.memory_bank_qformer_testing import tiny_model
from tests.testing.trainers import make_model
from tests.testing.videos import encode_video, make_frames

SIZE = {"height": 16, "width": 16}
VIDEOMAE = {"image_size": 16, "patch_size": 8, "num_frames": 4}


def make_videomamba():
    torch.manual_seed(0)
    sizes = {"image_size": 16, "patch_size": 8, "hidden_size": 24, "num_hidden_layers": 2, "num_labels": 2}
    return VideoMambaForVideoClassification(VideoMambaConfig(num_frames=4, **sizes))


MODELS = {
    "videovit": lambda: make_model(num_frames=4, num_hidden_layers=2),
    "videomamba": make_videomamba,
    "videomae": lambda: VideoMAEForVideoClassification(
        VideoMAEConfig(**VIDEOMAE, hidden_size=24, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32)
    ),
}


@pytest.fixture(scope="module")
def processor():
    return VideoClipProcessor(num_frames=4, frame_sampling_rate=1, size={"shortest_edge": 16}, crop_size=SIZE)


@pytest.fixture(scope="module")
def video(tmp_path_factory):
    return encode_video(tmp_path_factory.mktemp("video") / "video.mp4", make_frames(23))


def windows_of(video, starts, num_frames=4):
    """The frames of windows that are read one by one; the last frame fills a short one."""
    total = len(read_video(video)[0])
    return [
        read_video(video, lambda metadata, start=start: np.arange(start, start + num_frames).clip(max=total - 1))[0]
        for start in starts
    ]


def process(processor, frames):
    return processor(frames, do_sample_frames=False, return_tensors="pt")["pixel_values"]


@pytest.mark.parametrize(("stride", "batch_size"), [(2, 3), (7, 2)])
def test_batches_are_the_windows_one_by_one(processor, video, stride, batch_size):
    batches = list(window_batches(processor, video, num_frames=4, stride=stride, batch_size=batch_size, last="drop"))
    starts = range(0, 23 - 3, stride)
    assert [start for batch in batches for start in batch.starts] == pytest.approx([start / 30 for start in starts])
    assert [end for batch in batches for end in batch.ends] == pytest.approx([(start + 4) / 30 for start in starts])
    assert [len(batch.starts) for batch in batches[:-1]] == [batch_size] * (len(batches) - 1)
    expected = torch.cat([process(processor, frames) for frames in windows_of(video, starts)])
    torch.testing.assert_close(torch.cat([batch.pixel_values for batch in batches]), expected, rtol=0, atol=1e-5)


def test_each_frame_is_processed_once(processor, video, monkeypatch):
    sizes = []
    original = VideoClipProcessor.preprocess
    monkeypatch.setattr(
        VideoClipProcessor,
        "preprocess",
        lambda self, videos, **kwargs: sizes.append(len(videos)) or original(self, videos, **kwargs),
    )
    assert len(list(window_batches(processor, video, num_frames=4, stride=1))) == 20
    assert sum(sizes) == 23
    sizes.clear()
    assert len(list(window_batches(processor, video, num_frames=4, stride=8))) == 3
    assert sum(sizes) == 4 + 4 + 4


@pytest.mark.parametrize("name", MODELS)
def test_features_are_those_of_windows_one_by_one(processor, video, name):
    model = MODELS[name]().eval()
    found = extract_window_features(model, processor, video, num_frames=4, stride=2, batch_size=3)
    seen = []
    hook = model.classifier.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
    with torch.no_grad():
        states = [
            model(process(processor, frames), output_hidden_states=True).hidden_states
            for frames in windows_of(video, range(0, 21, 2))
        ]
    hook.remove()
    assert found.features.dtype == np.float32 and found.starts[-1] == pytest.approx(20 / 30)
    np.testing.assert_allclose(found.features, torch.cat(seen).numpy(), rtol=0, atol=1e-5)
    for layer in (0, 1, -1):
        tokens = torch.cat([state[layer] for state in states])
        for pooling, expected in {"mean": tokens.mean(1), "cls": tokens[:, 0], "none": tokens}.items():
            options = {"num_frames": 4, "stride": 2, "layer": layer, "pooling": pooling}
            features = extract_window_features(model, processor, video, **options).features
            np.testing.assert_allclose(features, expected.numpy(), rtol=0, atol=1e-5)


def test_a_memory_begins_anew_with_every_window(video):
    sizes = {"size": {"shortest_edge": 14}, "crop_size": {"height": 14, "width": 14}}
    processor = VideoClipProcessor(num_frames=4, frame_sampling_rate=1, **sizes)
    vision = {"hidden_size": 40, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 4}
    vision |= {"model_type": "instructblip_vision_model", "image_size": 14, "patch_size": 7}
    model = tiny_model(
        MemoryBankQFormerForVideoClassification, use_qformer_text_input=False, vision_config=vision
    ).eval()
    found = extract_window_features(model, processor, video, num_frames=4, stride=2, batch_size=3).features
    with torch.no_grad():
        clips = torch.cat([process(processor, frames) for frames in windows_of(video, range(0, 21, 2))])
        expected = torch.cat([model.memory_bank_qformer(clip[None]).last_hidden_state.mean(1) for clip in clips])
    np.testing.assert_allclose(found, expected.numpy(), rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"layer": 3}, "layer=3 is out of range: VideoViTModel has 3 hidden states"),
        ({"layer": 0, "pooling": "head"}, "no pooling 'head' of layer 0: choose from mean, cls, none"),
        ({"pooling": "max"}, "no pooling 'max' of VideoViT.*: choose from head, mean, cls, none"),
        ({"stride": 0}, "stride=0 must be"),
        ({"batch_size": 0}, "batch_size=0 must be"),
        ({"num_frames": 6}, "The model cannot encode windows of .6, 3, 16, 16."),
    ],
)
def test_options_that_the_model_does_not_take(processor, video, options, message):
    with pytest.raises(ValueError, match=message):
        model = MODELS["videomae" if "num_frames" in options else "videovit"]()
        extract_window_features(model, processor, video, **{"num_frames": 4} | options)
