"""`still_patches`, and classifiers that see the other patches alone."""

import pytest
import torch
from transformers import set_seed

from hf_video import VideoMambaForVideoClassification, VideoViTForVideoClassification
from hf_video.models.videovit.masking_videovit import still_patches
from tests.models.videomamba.videomamba_testing import make as make_videomamba
from tests.models.videomamba.videomamba_testing import random_clips as random_videomamba_clips

from .videovit_testing import random_clips, tiny_config


def make_videovit(**settings):
    set_seed(0)
    return VideoViTForVideoClassification(tiny_config(**settings)).eval()


@pytest.mark.parametrize("tubelet_size", [1, 2, 3])
def test_a_patch_is_compared_with_the_one_before_it(tubelet_size):
    """The first frame of the one, the last frame of the other; pixels that fill no patch do not count."""
    generator = torch.Generator().manual_seed(0)
    clips = torch.rand(2, 4 * tubelet_size, 3, 9, 17, generator=generator)
    changes = torch.full((2, 4, 2, 2), torch.inf)
    for clip, time, row, column in torch.cartesian_prod(*(torch.arange(size) for size in (2, 4, 2, 2))).tolist():
        patch = clips[clip, :, :, 4 * row : 4 * row + 4, 8 * column : 8 * column + 8]
        if time:
            difference = patch[(time + 1) * tubelet_size - 1] - patch[(time - 1) * tubelet_size]
            changes[clip, time, row, column] = difference.abs().mean()
    for threshold in (0.0, 0.3, 0.36, 2.0):
        mask = still_patches(clips, (tubelet_size, 4, 8), threshold=threshold)
        assert torch.equal(mask, (changes <= threshold).flatten(1))
    mask = still_patches(clips, (tubelet_size, 4, 8), num_kept=7)
    for changes_of_clip, mask_of_clip in zip(changes.flatten(1), mask, strict=True):
        assert mask_of_clip.tolist() == (changes_of_clip < changes_of_clip.sort().values[-7]).tolist()


@pytest.mark.parametrize("dtype", [torch.uint8, torch.bfloat16])
def test_a_difference_is_taken_in_float32(dtype):
    """In uint8, 1 - 255 would be 2; in bfloat16, 256 - 0.75 would be 256."""
    clip = torch.zeros(1, 4, 3, 8, 8)
    clip[:, 0], clip[:, 3] = (255, 1) if dtype == torch.uint8 else (0.75, 256)
    clip, difference = clip.to(dtype), 254 if dtype == torch.uint8 else 255.25
    assert still_patches(clip, (2, 8, 8), threshold=difference).tolist() == [[False, True]]
    assert not still_patches(clip, (2, 8, 8), threshold=difference - 0.1).any()


@pytest.mark.parametrize("settings", [{}, {"use_class_token": True, "position_embedding_type": "rope"}])
def test_a_classifier_sees_the_kept_patches_alone(settings):
    model = make_videovit(**settings)
    clips = random_clips(model.config)
    clips[:, 2:, :, :16] = clips[:, :1, :, :16]
    mask = still_patches(clips, model.config.patch_shape, threshold=0.0)
    assert mask.sum(dim=1).tolist() == [3 * 8] * 2
    logits = model(clips, bool_masked_pos=mask).logits
    changed = clips.clone()
    changed[:, 4:, :, :16] += 1
    assert torch.equal(model(changed, bool_masked_pos=mask).logits, logits)
    changed[:, 4:, :, 16:] += 1
    assert not torch.equal(model(changed, bool_masked_pos=mask).logits, logits)


@pytest.mark.parametrize("name", ["videovit", "videomamba"])
def test_all_patches_kept_give_the_answer_without_a_mask(name):
    if name == "videovit":
        model = make_videovit(use_class_token=True)
        clips = random_clips(model.config)
    else:
        model = make_videomamba(VideoMambaForVideoClassification)
        clips = random_videomamba_clips(model.config)
    t, h, w = model.config.token_grid
    mask = still_patches(clips, model.config.patch_shape, num_kept=t * h * w)
    assert not mask.any()
    torch.testing.assert_close(model(clips, bool_masked_pos=mask).logits, model(clips).logits)


def test_one_frame_has_no_still_patches():
    assert not still_patches(torch.zeros(2, 1, 3, 8, 8), (1, 4, 4), threshold=1.0).any()


@pytest.mark.parametrize("words", [{}, {"threshold": 0.1, "num_kept": 4}, {"num_kept": 3}, {"num_kept": 9}])
def test_what_cannot_be_chosen(words):
    with pytest.raises(ValueError, match="threshold|num_kept"):
        still_patches(torch.zeros(1, 4, 3, 8, 8), (2, 4, 4), **words)
