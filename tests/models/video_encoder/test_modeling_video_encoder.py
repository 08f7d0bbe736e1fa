"""Classes of frames by the encoders of Transformers: which token belongs to which frame, short clips, and layers."""

import pytest
import torch
from huggingface_hub.errors import StrictDataclassError

from hf_video import VideoEncoderConfig, VideoEncoderForFrameClassification
from tests.testing.transformers_families import FAMILIES, IMAGE_SIZE, NUM_FRAMES

TOKEN_FRAMES = {"videomae": 2, "timesformer": 4, "vivit": 2, "vjepa2": 2, "videoprism": 4}
NO_LAYERS = {"videoprism": {"num_spatial_layers": 0, "num_temporal_layers": 0}}


def make(name, encoder=None, **settings):
    torch.manual_seed(0)
    config = FAMILIES[name].configuration()
    config.update(encoder or {})
    settings = {"encoder_config": config, "num_labels": 3, **settings}
    model = VideoEncoderForFrameClassification(VideoEncoderConfig(**settings)).eval()
    for weight in model.parameters():
        torch.nn.init.normal_(weight, std=0.2)
    return model


def random_clips(num_frames=NUM_FRAMES, batch_size=2):
    return torch.randn(batch_size, num_frames, 3, IMAGE_SIZE, IMAGE_SIZE)


@pytest.mark.parametrize("pooling", ["mean", "last"])
@pytest.mark.parametrize("name", FAMILIES)
def test_each_row_of_logits_is_of_its_own_frames(name, pooling):
    """Without layers no token sees another one."""
    model, clips = make(name, NO_LAYERS.get(name, {"num_hidden_layers": 0}), frame_pooling=pooling), random_clips()
    logits, num_tokens = model(clips).logits, TOKEN_FRAMES[name]
    assert logits.shape == (2, num_tokens, 3)
    for frame in range(NUM_FRAMES):
        changed = clips.clone()
        changed[:, frame, :, IMAGE_SIZE // 2 :, IMAGE_SIZE // 2 :] += 1  # the last patch
        differs = (model(changed).logits != logits).any(dim=(0, 2))
        assert differs.nonzero().flatten().tolist() == [frame * num_tokens // NUM_FRAMES]


@pytest.mark.parametrize("name", FAMILIES)
def test_a_short_clip_goes_on_with_its_last_frame(name):
    """Alone, and padded in a batch, whatever pixels the padding has."""
    model, clips, num_tokens = make(name), random_clips(), TOKEN_FRAMES[name]
    filled = torch.cat([clips[1:, :2], clips[1:, 1:2], clips[1:, 1:2]], dim=1)
    expected = model(filled).logits[:, : num_tokens // 2]
    mask = torch.ones(2, num_tokens, dtype=torch.int64)
    mask[1, num_tokens // 2 :] = 0
    padded = model(clips, attention_mask=mask).logits
    for found, wanted in (
        (model(clips[1:, :2]).logits, expected),
        (padded[1:, : num_tokens // 2], expected),
        (padded[:1], model(clips[:1]).logits),
    ):
        torch.testing.assert_close(found, wanted, rtol=0, atol=1e-5)
    with pytest.raises(ValueError, match=r"4 frames of 32 x 32 pixels, got 6 of 32 x 32"):
        model(random_clips(6))
    with pytest.raises(ValueError, match=r"got 4 of 48 x 32"):
        model(torch.zeros(1, 4, 3, 48, 32))


@pytest.mark.parametrize("name", FAMILIES)
def test_all_weights_are_trained_and_belong_to_a_layer(name):
    """Parts of the encoder for other heads are left out, and checkpointing changes no gradient."""
    model = make(name).train()
    labels = torch.zeros(2, TOKEN_FRAMES[name], dtype=torch.int64)
    clips, gradients = random_clips(), []
    for is_checkpointed in (False, True):
        if is_checkpointed:
            model.activation_checkpointing_enable()
            assert model.is_activation_checkpointing
        model.zero_grad()
        torch.manual_seed(1)
        model(clips, labels=labels).loss.backward()
        gradients.append([weight.grad for weight in model.parameters()])
    assert all(gradient is not None for gradient in gradients[0])
    torch.testing.assert_close(*gradients)
    embeddings, *layers = model.layer_groups()
    assert len(layers) == 2
    grouped = sum(weight.numel() for group in (embeddings, *layers) for weight in group.parameters())
    assert 0.9 < grouped / sum(weight.numel() for weight in model.base_model.parameters()) <= 1


def test_another_encoder_is_refused():
    with pytest.raises(StrictDataclassError, match=r"`encoder_config` must be that of videomae, .*, got 'videovit'"):
        VideoEncoderConfig(encoder_config={"model_type": "videovit"})
