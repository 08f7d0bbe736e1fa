"""VideoMamba frame by frame: chunks with a state against the whole, and the verbs of the state."""

import pytest
import torch

from hf_video import (
    VideoMambaConfig,
    VideoMambaForFrameClassification,
    VideoMambaForVideoClassification,
    VideoMambaState,
)
from hf_video.models.videomamba import modeling_videomamba
from hf_video.models.videomamba.selective_scan_videomamba import selective_scan

from .videomamba_testing import make, random_clips

CAUSAL = {"bidirectional": False, "use_temporal_position_embeddings": False, "num_frames": 6, "use_mean_pooling": True}


def causal(model_class=VideoMambaForFrameClassification, **settings):
    return lively(model_class, **CAUSAL | settings)


def lively(model_class, **settings):
    """A model whose weights are large enough for every frame to matter."""
    model = make(model_class, **settings)
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
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-5 * expected.detach().abs().max().item())


@pytest.mark.parametrize(
    ("backend", "sizes"),
    [
        *(("reference", [1, 3, 2]), ("cpu", [1] * 6), ("cpu", [2] * 3), ("cpu", [3, 3]), (None, [1, 3, 2])),
        *((None, [6]), ("without hf_video", [1, 3, 2])),
    ],
)
@torch.no_grad()
def test_chunks_of_any_size_give_what_the_whole_gives(sizes, backend, monkeypatch):
    if backend == "without hf_video":
        monkeypatch.setattr(modeling_videomamba, "causal_conv1d", None)
        monkeypatch.setattr(modeling_videomamba, "selective_scan", selective_scan)
    elif backend is not None:
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


@pytest.mark.slow
@torch.no_grad()
def test_a_compiled_model_goes_on(monkeypatch):
    monkeypatch.setenv("HF_VIDEO_SELECTIVE_SCAN", "cpu")
    model = causal(num_hidden_layers=1)
    clips = random_clips(model.config)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    assert_same(run_in_chunks(compiled, clips, 2)[0], model(clips).logits)


@pytest.mark.parametrize("use_mean_pooling", [True, False])
@torch.no_grad()
def test_the_first_chunk_of_a_bidirectional_model_is_a_clip_of_its_own(use_mean_pooling):
    """Later chunks remember, by their forward scans."""
    model = lively(VideoMambaForVideoClassification, use_mean_pooling=use_mean_pooling)
    first, second = random_clips(model.config, batch_size=2).split(1)
    outputs = model(first, state=VideoMambaState(model.config))
    assert_same(outputs.logits, model(first).logits)
    after = model(second, state=outputs.state).logits
    assert (after - model(second).logits).abs().max() > 1e-4
    # Positions count in the chunk: those of the first frames.
    part = model.videomamba(first[:, :2], state=VideoMambaState(model.config)).last_hidden_state
    assert_same(part, model.videomamba(first[:, :2], interpolate_pos_encoding="space").last_hidden_state)


def test_gradients_flow_through_a_state_until_it_is_detached():
    model = causal(num_hidden_layers=2, hidden_size=8, state_size=2, image_size=16, num_labels=2).double()
    first, second = random_clips(model.config, batch_size=1, num_frames=2).double().split(1, dim=1)
    fresh = VideoMambaState(model.config)

    def function(frame):
        return model(second, state=model(frame, state=fresh).state).logits

    assert torch.autograd.gradcheck(function, first.requires_grad_(), fast_mode=True)
    state = model(first, state=fresh).state
    assert state.scan_states.requires_grad and not state.detach().scan_states.requires_grad
    assert not fresh.scan_states.any() and fresh.is_new.all()


def test_training_carries_a_state_through_checkpointed_layers():
    model = causal().train()
    clips = random_clips(model.config)

    def gradients():
        model.zero_grad()
        run_in_chunks(model, clips, 3)[0].square().sum().backward()
        return [weight.grad.clone() for weight in model.parameters() if weight.grad is not None]

    expected = gradients()
    model.gradient_checkpointing_enable()
    for found, wanted in zip(gradients(), expected, strict=True):
        assert_same(found, wanted)


@torch.no_grad()
def test_streams_are_taken_put_back_reset_and_reordered():
    model = causal()
    clips = random_clips(model.config, batch_size=3)
    whole = model(clips).logits
    _, state = run_in_chunks(model, clips[:, :2], 1)
    rows = torch.tensor([2, 0])
    outputs = model(clips[rows, 2:4], state=state.take(rows))
    assert_same(outputs.logits, whole[rows, 2:4])
    state.put(rows, outputs.state)
    assert_same(model(clips[1:2, 2:], state=state.take(torch.tensor([1]))).logits, whole[1:2, 2:])
    assert_same(model(clips[rows, 4:], state=state.take(rows)).logits, whole[rows, 4:])
    state.reset(torch.tensor([False, True, False]))
    assert state.is_new.tolist() == [False, True, False]
    frames = torch.stack([clips[0, 4:], clips[1, :2], clips[2, 4:]])
    expected = torch.stack([whole[0, 4:], whole[1, :2], whole[2, 4:]])
    assert_same(model(frames, state=state).logits, expected)
    state.batch_select_indices(torch.tensor([1, 1, 2]))
    assert state.is_new.tolist() == [True, True, False]
    copy = state.clone()
    copy.reset()
    assert copy.is_new.all() and not copy.scan_states.any() and state.scan_states.any()


@torch.no_grad()
def test_a_state_is_saved_and_has_the_size_of_the_formula(tmp_path):
    model = causal()
    clips = random_clips(model.config)
    _, state = run_in_chunks(model, clips[:, :3], 3)
    config = model.config
    assert state.nbytes == 4 * 3 * 2 * config.intermediate_size * (config.state_size + config.conv_kernel - 1)
    state.save(tmp_path / "state.safetensors")
    loaded = VideoMambaState.load(tmp_path / "state.safetensors")
    torch.testing.assert_close(model(clips[:, 3:], state=loaded).logits, model(clips[:, 3:], state=state).logits)
    assert VideoMambaState(VideoMambaConfig.preset("middle")).nbytes == 32 * 1152 * (16 + 3) * 4
    (tmp_path / "other").write_bytes(b"other")
    with pytest.raises(ValueError, match="is not a file that"):
        VideoMambaState.load(tmp_path / "other")


@pytest.mark.parametrize(
    ("settings", "frames", "message"),
    [
        ({"scan_order": "temporal_first"}, {}, "temporal_first"),
        ({"scan_order": "spatiotemporal"}, {}, "spatiotemporal"),
        ({}, {"num_frames": 5}, "5 token frames, but there are positions for 4"),
        ({"tubelet_size": 2}, {"num_frames": 3}, "3 frames are no whole tubelets of 2"),
        ({}, {"batch_size": 3}, "begin with"),
    ],
)
def test_what_cannot_be_continued_is_refused_by_name(settings, frames, message):
    model = make(VideoMambaForFrameClassification, **settings)
    clips = random_clips(model.config, **{"batch_size": 2} | frames)
    with pytest.raises(ValueError, match=message):
        model(clips, state=VideoMambaState(model.config, batch_size=2))


def test_masks_the_class_token_of_a_causal_model_and_mamba_ssm_are_refused(monkeypatch):
    model = causal(VideoMambaForVideoClassification, use_mean_pooling=False)
    clips, state = random_clips(model.config, batch_size=1), VideoMambaState(model.config)
    with pytest.raises(ValueError, match="use_mean_pooling=True"):
        model(clips, state=state)
    with pytest.raises(ValueError, match="cannot be given with a mask"):
        model.videomamba(clips, state=state, frame_mask=torch.ones(1, 6))
    monkeypatch.setenv("HF_VIDEO_SELECTIVE_SCAN", "mamba_ssm")
    with pytest.raises(ValueError, match="'mamba_ssm' of selective_scan was asked for, but"):
        model.videomamba(clips, state=state)
