"""Masks and the masked autoencoder beyond the originals' numbers."""

import math

import pytest
import torch

from hf_video import VideoViTForPreTraining
from hf_video.models.videovit.masking_videovit import running_cell_mask, tube_mask

from .videovit_testing import random_clips, tiny_config


@pytest.mark.parametrize("ratio", [0.5, 0.75, 0.9])
def test_tube_masks_hide_an_exact_count_of_tubes(ratio):
    mask = tube_mask(64, (4, 14, 14), ratio, torch.Generator().manual_seed(0)).unflatten(1, (4, -1))
    assert mask.dtype == torch.bool
    assert (mask.sum(-1) == int(ratio * 196)).all()
    assert (mask == mask[:, :1]).all(), "the same patches in every frame"
    assert len({tuple(row.tolist()) for row in mask[:, 0]}) == 64, "a draw of its own for every clip"
    assert mask[:, 0].any(0).all(), "every patch is hidden in some clip"


@pytest.mark.parametrize("ratio", [0.25, 0.5, 0.75])
def test_running_cells_drop_a_share_of_every_square_and_visit_every_patch(ratio):
    mask = running_cell_mask(8, (4, 4, 6), ratio, torch.Generator().manual_seed(0)).reshape(8, 4, 2, 2, 3, 2)
    assert (mask.sum((3, 5)) == int(4 * ratio)).all()
    assert (mask.sum(1) == int(4 * ratio)).all(), "over four frames every patch is dropped equally often"


def test_without_a_mask_every_clip_has_its_own_draw_of_tubes():
    model = VideoViTForPreTraining(tiny_config(mask_ratio=0.8)).eval()
    clips = random_clips(model.config, 16)
    torch.manual_seed(0)
    outputs = model(clips)
    torch.manual_seed(0)
    mask = tube_mask(16, model.config.token_grid, 0.8)
    assert torch.equal(outputs.mask, mask.float())
    torch.testing.assert_close(outputs.loss, model(clips, bool_masked_pos=mask).loss)
    assert not torch.equal(model(clips).mask, outputs.mask)
    assert model(random_clips(model.config, image_size=(48, 16), num_frames=4)).mask.shape == (2, 2 * 6 * 2)
    with pytest.raises(ValueError, match="hides 0 of 1 patches"):
        model(random_clips(model.config, image_size=(8, 8)))


@pytest.mark.parametrize(
    ("tubelet_size", "position_embedding_type"), [(1, "sinusoidal"), (2, "learned"), (4, "rope"), (2, "none")]
)
def test_any_tubelet_and_any_positions_train(tubelet_size, position_embedding_type):
    torch.manual_seed(0)
    settings = {"tubelet_size": tubelet_size, "position_embedding_type": position_embedding_type}
    model = VideoViTForPreTraining(tiny_config(**settings, decoder_hidden_size=32))
    mask = tube_mask(2, model.config.token_grid, 0.75)
    outputs = model(random_clips(model.config), bool_masked_pos=mask)
    assert outputs.logits.shape == (2, int(mask[0].sum()), tubelet_size * 8 * 8 * 3)
    outputs.loss.backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_targets_are_standardised_patches_in_the_order_frame_row_column_channel():
    model = VideoViTForPreTraining(tiny_config())
    clips = random_clips(model.config, 1)
    mean, std = (torch.tensor(v)[:, None, None] for v in (model.config.image_mean, model.config.image_std))
    patch = (clips * std + mean)[0, 2:4, :, 8:16, 16:24].permute(0, 2, 3, 1).reshape(-1, 3)
    expected = (patch - patch.mean(0)) / (patch.std(0) + 1e-6)
    index = 1 * 16 + 1 * 4 + 2
    torch.testing.assert_close(model.reconstruction_targets(clips)[0, index], expected.flatten())


def test_the_loss_counts_kept_and_hidden_patches_over_the_whole_batch():
    model = VideoViTForPreTraining(tiny_config()).eval()
    clips, grid = random_clips(model.config), model.config.token_grid
    hidden = tube_mask(2, grid, 0.5, torch.Generator().manual_seed(1))
    dropped = torch.zeros_like(hidden)
    dropped[0, :20], dropped[1, 30:50] = True, True
    outputs = model(clips, bool_masked_pos=hidden, bool_decoder_masked_pos=dropped)
    targets = model.reconstruction_targets(clips)
    errors = [
        (outputs.logits[i] - targets[i][~dropped[i]]).square().mean(-1)[hidden[i][~dropped[i]]] for i in range(2)
    ]
    assert len(errors[0]) != len(errors[1])
    torch.testing.assert_close(outputs.loss, torch.cat(errors).mean())


def test_another_input_size_reaches_the_decoder_too(tmp_path):
    model = VideoViTForPreTraining(tiny_config()).eval()
    clips = random_clips(model.config, image_size=(40, 24), num_frames=12)
    mask = tube_mask(2, (6, 5, 3), 0.5)
    expected = model(clips, bool_masked_pos=mask).logits
    model.set_input_size(image_size=(40, 24), num_frames=12)
    torch.testing.assert_close(model(clips, bool_masked_pos=mask).logits, expected)
    model.save_pretrained(tmp_path)
    reloaded = VideoViTForPreTraining.from_pretrained(tmp_path)
    torch.testing.assert_close(reloaded(clips, bool_masked_pos=mask).logits, expected)


def test_the_loss_is_float32_under_autocast_and_in_half_precision():
    model = VideoViTForPreTraining(tiny_config()).eval()
    clips, mask = random_clips(model.config), tube_mask(2, model.config.token_grid, 0.5)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert model(clips, bool_masked_pos=mask).loss.dtype == torch.float32
    assert model.bfloat16()(clips.bfloat16(), bool_masked_pos=mask).loss.dtype == torch.float32


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"bool_masked_pos": torch.zeros(2, 64, dtype=torch.long)}, "must be a bool tensor"),
        ({"bool_masked_pos": torch.zeros(2, 63, dtype=torch.bool)}, "(2, 64)"),
        ({"bool_masked_pos": torch.arange(128).reshape(2, 64) < 40}, "as many true entries"),
        ({"bool_masked_pos": torch.ones(2, 64, dtype=torch.bool)}, "at least one to encode"),
        ({"bool_masked_pos": torch.zeros(2, 64, dtype=torch.bool)}, "no hidden patch to predict"),
        ({"bool_decoder_masked_pos": torch.arange(128).reshape(2, 64) < 40}, "`bool_decoder_masked_pos`"),
        ({"bool_decoder_masked_pos": torch.ones(2, 64, dtype=torch.bool)}, "no hidden patch to predict"),
    ],
)
def test_wrong_masks_are_refused(change, message):
    model = VideoViTForPreTraining(tiny_config())
    mask = torch.arange(64).repeat(2, 1) < 48
    with pytest.raises(ValueError) as error:
        model(random_clips(model.config), **{"bool_masked_pos": mask, **change})
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("draw", "arguments", "message"),
    [
        (tube_mask, (2, (2, 4, 4), 0.01), "hides 0 of 16"),
        (tube_mask, (2, (2, 4, 4), 1.0), "hides 16 of 16"),
        (running_cell_mask, (2, (2, 4, 4), 0.9), "0.25, 0.5 or 0.75"),
        (running_cell_mask, (2, (2, 3, 4), 0.5), "even grid"),
    ],
)
def test_masks_that_cannot_be_are_refused(draw, arguments, message):
    with pytest.raises(ValueError, match=message):
        draw(*arguments)


@pytest.mark.parametrize("image_std", [[0.5, math.nan, 0.5], [0.5, -0.5, 0.5], [0.5]])
def test_a_normalisation_that_cannot_be_undone_is_refused(image_std):
    with pytest.raises(ValueError, match="`image_std` .* must have one finite value for each of `num_channels`=3"):
        VideoViTForPreTraining(tiny_config(image_std=image_std))
