"""VideoMamba frame by frame: chunks with a state against the whole, and the verbs of the state."""

import pytest
import torch

from hf_video import (
    VideoMambaForFrameClassification,
    VideoMambaForVideoClassification,
    VideoMambaModel,
    VideoMambaState,
)

from .videomamba_testing import make, random_clips, tiny_config

CAUSAL = {"bidirectional": False, "use_temporal_position_embeddings": False, "num_frames": 6, "use_mean_pooling": True}


def causal(model_class=VideoMambaForFrameClassification, **settings):
    """A causal model whose weights are large enough for every frame to matter."""
    model = make(model_class, **CAUSAL | settings)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn(weight.shape, generator=torch.Generator().manual_seed(1)), alpha=0.1)
    return model


def run_in_chunks(model, clips, sizes):
    """The logits of chunks of so many frames, one after another, and the last state."""
    state, logits = VideoMambaState(model.config, batch_size=len(clips)), []
    for chunk in clips.split(sizes, dim=1):
        outputs = model(chunk, state=state)
        logits.append(outputs.logits)
        state = outputs.state
    return torch.cat(logits, dim=1), state


def assert_same(actual, expected):
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-5 * float(expected.abs().max()))


@pytest.mark.parametrize("backend", ["reference", "cpu", None])
@pytest.mark.parametrize("sizes", [[1] * 6, [2] * 3, [3, 3], [1, 3, 2], [6]])
@torch.no_grad()
def test_chunks_of_any_size_give_what_the_whole_gives(sizes, backend, monkeypatch):
    if backend is not None:
        monkeypatch.setenv("HF_VIDEO_SELECTIVE_SCAN", backend)
    model = causal()
    clips = random_clips(model.config)
    whole = model(clips).logits
    assert_same(run_in_chunks(model, clips, sizes)[0], whole)
    assert (whole[:, 0] - whole[:, 5]).abs().max() > 1e-3


@pytest.mark.parametrize(
    "settings",
    [
        {"conv_kernel": 7},
        {"conv_kernel": 1},
        {"hidden_act": "gelu", "norm_type": "layer_norm", "use_conv_bias": False, "use_bias": True},
        {"frame_pooling": "last", "tubelet_size": 2},
    ],
)
@torch.no_grad()
def test_chunks_shorter_than_the_convolution_and_other_architectures(settings):
    model = causal(image_size=16, patch_size=8 if "conv_kernel" not in settings else 16, **settings)
    clips = random_clips(model.config)
    assert_same(run_in_chunks(model, clips, 2)[0], model(clips).logits)
