"""Masks that follow the sample keys, and steps of the trainer against steps by hand."""

import copy

import pytest
import torch
from transformers import CLIPVisionConfig, CLIPVisionModel, set_seed

from hf_video.models.videomamba import VideoMambaConfig, VideoMambaForPreTraining
from hf_video.models.videovit import VideoViTConfig, VideoViTForPreTraining
from hf_video.training import PreTrainer, PreTrainingArguments
from hf_video.training.pretraining import check_masks, collate_for_masks, draw_masks, reconstruct
from tests.testing.trainers import RandomClips, make_model

SIZES = {"image_size": 16, "patch_size": 4, "num_frames": 2, "hidden_size": 24, "num_hidden_layers": 1}


def make_videovit(**options):
    set_seed(0)
    decoder = {"decoder_hidden_size": 12, "decoder_num_attention_heads": 2, "decoder_num_hidden_layers": 1}
    sizes = SIZES | decoder | {"num_attention_heads": 2, "intermediate_size": 32, "decoder_intermediate_size": 16}
    return VideoViTForPreTraining(VideoViTConfig(**sizes, weight_init="xavier_uniform", mask_ratio=0.5, **options))


def make_videomamba():
    set_seed(0)
    model = VideoMambaForPreTraining(VideoMambaConfig(**SIZES, projection_dim=16, mask_ratio=0.5))
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
    config = CLIPVisionConfig(image_size=16, patch_size=4, **sizes)
    config._attn_implementation = "eager"
    model.set_teacher(CLIPVisionModel(config))
    return model


MAKERS = {"videovit": make_videovit, "videomamba": make_videomamba}


def make_arguments(folder, **options):
    defaults = {"max_steps": 1, "per_device_train_batch_size": 4, "use_cpu": True, "disable_tqdm": True}
    defaults |= {"learning_rate": 1e-2, "save_strategy": "no", "logging_steps": 1, "warmup_steps": 0}
    return PreTrainingArguments(output_dir=str(folder), **defaults | options)


def test_seeds_depend_on_the_sample_and_its_view_alone():
    clips = RandomClips(num_views=2, training=True)
    whole = collate_for_masks([clips[index] for index in range(4)])
    assert whole.keys() == {"pixel_values", "mask_seeds"}
    assert whole["pixel_values"].shape == (8, 2, 3, 16, 16)
    assert len(set(whole["mask_seeds"].tolist())) == 8 and (whole["mask_seeds"] >= 0).all()
    part = collate_for_masks([clips[3], None, clips[1]])
    assert part["mask_seeds"].tolist() == whole["mask_seeds"][[6, 7, 2, 3]].tolist()
    clips.set_epoch(1)
    assert not set(collate_for_masks([clips[0]])["mask_seeds"].tolist()) & set(whole["mask_seeds"].tolist())
    assert "mask_seeds" not in collate_for_masks([RandomClips()[0]])


@pytest.mark.parametrize(("family", "mask_type"), [("videovit", None), ("videovit", "random"), ("videomamba", None)])
def test_the_mask_of_a_clip_does_not_depend_on_the_others(tmp_path, family, mask_type):
    model, arguments = MAKERS[family](), make_arguments(tmp_path, mask_type=mask_type)
    clips = torch.randn(3, 2, 3, 16, 16)
    drawn = draw_masks(model, arguments, clips, [7, 8, 9])
    alone = draw_masks(model, arguments, clips[1:2], [8])
    assert drawn.keys() == alone.keys()
    for name, value in alone.items():
        if isinstance(value, int):
            assert drawn[name] == value
            continue
        torch.testing.assert_close(drawn[name][1:2], value, rtol=0, atol=1e-6)
    mask = drawn["bool_masked_pos"].unflatten(1, (model.config.token_grid[0], -1))
    assert (mask.flatten(1).sum(1) == mask[0].numel() // 2).all()
    assert not torch.equal(mask[0], mask[1])
    if mask_type is None and family == "videovit":
        assert (mask == mask[:, :1]).all()
    elif mask_type is None:
        assert (mask.sum(2) == 8).all() and not (mask == mask[:, :1]).all()


@pytest.mark.parametrize("family", MAKERS)
def test_a_step_is_that_of_adamw_on_the_loss_for_the_same_masks(tmp_path, family):
    model = MAKERS[family]()
    arguments = make_arguments(tmp_path, weight_decay=0.0, max_grad_norm=0.0, optim="adamw_torch")
    clips = RandomClips(length=4, training=True)
    batch = collate_for_masks([clips[index] for index in range(4)])
    by_hand = copy.deepcopy(model).train()
    inputs = draw_masks(by_hand, arguments, batch["pixel_values"], batch["mask_seeds"].tolist())
    loss = by_hand(batch["pixel_values"], **inputs).loss
    loss.backward()
    if family == "videovit":
        mask, targets = inputs["bool_masked_pos"], []
        for clip, hidden in zip(batch["pixel_values"], mask, strict=True):
            pixels = clip * torch.tensor([0.229, 0.224, 0.225])[:, None, None]
            pixels += torch.tensor([0.485, 0.456, 0.406])[:, None, None]
            for patch in hidden.nonzero().flatten().tolist():
                row, column = divmod(patch, 4)
                cube = pixels[:, :, 4 * row : 4 * row + 4, 4 * column : 4 * column + 4].movedim(1, -1).reshape(-1, 3)
                targets.append(((cube - cube.mean(0)) / (cube.std(0) + 1e-6)).flatten())
        logits = by_hand(batch["pixel_values"], **inputs).logits.flatten(0, 1)
        torch.testing.assert_close((logits - torch.stack(targets)).square().mean(), loss, rtol=1e-5, atol=1e-6)
    optimizer = torch.optim.AdamW(by_hand.parameters(), lr=1e-2, betas=(0.9, 0.95), weight_decay=0.0)
    optimizer.step()
    trainer = PreTrainer(model, arguments, train_dataset=clips)
    trainer.train()
    assert trainer.state.log_history[0]["loss"] == pytest.approx(loss.item(), abs=1e-5)
    # The order of the batch differs, and AdamW's first step is the sign of a gradient that may be near zero.
    expected, found = by_hand.state_dict(), model.state_dict()
    for name, before in MAKERS[family]().state_dict().items():
        moved = by_hand.get_parameter(name).grad if name in dict(by_hand.named_parameters()) else None
        if moved is None:
            continue
        clear = moved.abs() > 1e-5
        torch.testing.assert_close(found[name][clear], expected[name][clear], rtol=0, atol=1e-4, msg=name)
        assert not clear.any() or not torch.equal(found[name], before)


def test_dual_masking_reaches_the_decoder_and_clips_without_keys_are_trained_on(tmp_path):
    model, arguments = make_videovit(), make_arguments(tmp_path, decoder_mask_ratio=0.75)
    inputs = draw_masks(model, arguments, torch.zeros(1, 2, 3, 16, 16), [0])
    assert inputs["bool_decoder_masked_pos"].sum() == 12
    assert PreTrainer(model, arguments, train_dataset=RandomClips()).train().training_loss > 0


def test_a_model_without_masks_is_refused(tmp_path):
    with pytest.raises(ValueError, match="VideoViTForVideoClassification draws no masks"):
        PreTrainer(make_model(), make_arguments(tmp_path), train_dataset=RandomClips())
    model = make_videomamba()
    model.teacher = None
    with pytest.raises(ValueError, match="learns from a teacher"):
        check_masks(model, make_arguments(tmp_path))


@pytest.mark.parametrize("norm_pix_loss", [True, False])
def test_a_perfect_output_reconstructs_the_clip(norm_pix_loss, monkeypatch):
    model = make_videovit(norm_pix_loss=norm_pix_loss, image_mean=[0.0] * 3, image_std=[1.0] * 3)
    clip, mask = torch.rand(1, 2, 3, 18, 16), torch.zeros(1, 16, dtype=torch.bool)
    mask[:, ::3] = True
    targets = model.reconstruction_targets(clip)[mask][None]
    whole = model.forward

    def perfect(*args, **kwargs):
        outputs = whole(*args, **kwargs)
        outputs.logits = targets
        return outputs

    monkeypatch.setattr(model, "forward", perfect)
    true, seen, output = reconstruct(model, clip, mask)
    torch.testing.assert_close(torch.from_numpy(true), clip[0, :, :, :16].movedim(1, -1))
    torch.testing.assert_close(torch.from_numpy(output), torch.from_numpy(true), rtol=0, atol=1e-5)
    assert (seen[:, :4, :4] == 0.5).all() and (seen[:, :4, 4:8] == true[:, :4, 4:8]).all()
