"""Masks, teachers and the masked feature alignment beyond the originals' numbers."""

import pytest
import torch
import torch.nn.functional as F
from transformers import (
    AutoModelForPreTraining,
    CLIPConfig,
    CLIPModel,
    Dinov2Config,
    Dinov2Model,
    ResNetConfig,
    ResNetModel,
    ViTConfig,
    ViTModel,
)

from hf_video import VideoMambaForPreTraining
from hf_video.models.videomamba.modeling_videomamba_pretraining import VideoMambaTeacher, draw_mask

from .videomamba_testing import make, random_clips, tiny_config

VISION = {"hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 2, "image_size": 16, "patch_size": 4}
TEXT = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 9, "intermediate_size": 16}


def clip_teacher():
    torch.manual_seed(1)
    vision = {**VISION, "intermediate_size": 16}
    config = CLIPConfig(vision_config=vision, text_config=TEXT, projection_dim=12)
    config._attn_implementation = "eager"
    return CLIPModel(config)


def test_masks_hide_an_exact_count_of_every_frame_and_spare_important_patches():
    importance = torch.ones(64, 3, 16)
    importance[:, 1, :4] = 100
    mask = draw_mask(importance, 0.8, torch.Generator().manual_seed(0))
    assert mask.dtype == torch.bool and mask.shape == (64, 48)
    hidden = mask.unflatten(1, (3, 16))
    assert (hidden.sum(-1) == 12).all()
    assert hidden[:, 1, :4].float().mean() < 0.1 < hidden[:, 0, :4].float().mean()
    assert len({tuple(row.tolist()) for row in mask}) == 64, "a draw of its own for every clip"
    with pytest.raises(ValueError, match="hides 0 of 16"):
        draw_mask(importance, 0.01)
    with pytest.raises(ValueError, match="hides 16 of 16"):
        draw_mask(importance, 1.0)


@pytest.mark.parametrize("num_aligned_layers", [1, 2])
def test_targets_train_every_parameter(num_aligned_layers):
    model = make(VideoMambaForPreTraining, num_aligned_layers=num_aligned_layers, scan_order="spatiotemporal").train()
    clips, mask = random_clips(model.config), draw_mask(torch.ones(2, 4, 16), 0.5)
    labels = F.normalize(torch.randn(2, num_aligned_layers, 33, 12), dim=-1)
    outputs = model(clips, mask, labels)
    assert outputs.logits.shape == labels.shape
    torch.testing.assert_close(outputs.logits.norm(dim=-1), torch.ones(2, num_aligned_layers, 33))
    torch.testing.assert_close(outputs.loss, (outputs.logits - labels).square().sum(-1).mean())
    outputs.loss.backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(10):
        optimizer.step()
        optimizer.zero_grad()
        loss = model(clips, mask, labels).loss
        loss.backward()
    assert loss < 0.8 * outputs.loss


@pytest.mark.parametrize(
    ("loss", "of_difference"),
    [("mse", lambda d: d.square()), ("smooth_l1", lambda d: torch.where(d.abs() < 1, d.square() / 2, d.abs() - 0.5))],
)
def test_features_of_any_length_are_aligned_by_a_loss_between_numbers(loss, of_difference):
    model = make(VideoMambaForPreTraining, normalize_features=False, alignment_loss=loss)
    model.set_teacher(clip_teacher())
    clips, mask = random_clips(model.config), draw_mask(torch.ones(2, 4, 16), 0.5)
    outputs = model(clips, mask)
    features, _ = model.teacher(clips, model.config, 1)
    targets = features[:, 0][F.pad(~mask, (1, 0), value=True)].unflatten(0, (2, -1))[:, None]
    for lengths in (outputs.logits.norm(dim=-1), targets.norm(dim=-1)):
        assert (lengths - 1).abs().min() > 0.1
    difference = (outputs.logits - targets).double()
    torch.testing.assert_close(outputs.loss.double(), of_difference(difference).mean(), rtol=1e-5, atol=0)


def test_a_clip_teacher_gives_projected_tokens_and_its_attention():
    clip = clip_teacher()
    teacher, clips = VideoMambaTeacher(clip), torch.randn(2, 4, 3, 16, 16)
    features, attention = teacher(clips, tiny_config(image_size=16, patch_size=4, tubelet_size=2), num_layers=2)
    assert features.shape == (2, 2, 1 + 32, 12) and attention.shape == (2, 2, 16)
    # Tubelets of two frames: the teacher sees frames 1 and 3.
    seen = clips[:, 1::2].flatten(0, 1)
    outputs = clip.vision_model(seen, output_hidden_states=True, output_attentions=True)
    tokens = clip.visual_projection(outputs.hidden_states[-1]).unflatten(0, (2, 2))
    torch.testing.assert_close(features[:, 1, 1:], F.normalize(tokens[:, :, 1:].flatten(1, 2), dim=-1))
    torch.testing.assert_close(features[:, 1, 0], F.normalize(tokens[:, :, 0].mean(1), dim=-1))
    earlier = clip.visual_projection(outputs.hidden_states[-2]).unflatten(0, (2, 2))
    torch.testing.assert_close(features[:, 0, 1:], F.normalize(earlier[:, :, 1:].flatten(1, 2), dim=-1))
    torch.testing.assert_close(attention, outputs.attentions[-1].mean(1)[:, 0, 1:].unflatten(0, (2, 2)))


@pytest.mark.parametrize(("num_frames", "tubelet_size", "seen"), [(11, 4, [2, 6]), (7, 2, [1, 3, 5])])
def test_a_teacher_sees_the_middle_frame_of_every_whole_tubelet(num_frames, tubelet_size, seen):
    teacher, clips = VideoMambaTeacher(clip_teacher()), torch.randn(1, num_frames, 3, 16, 16)
    student = tiny_config(image_size=16, patch_size=4, num_frames=num_frames, tubelet_size=tubelet_size)
    features, _ = teacher(clips, student, 1)
    images = tiny_config(image_size=16, patch_size=4, num_frames=len(seen))
    torch.testing.assert_close(features, teacher(clips[:, seen], images, 1)[0])


@pytest.mark.parametrize(
    ("size", "settings", "seen"),
    [
        ((18, 23), {}, (slice(0, 16), slice(0, 20))),
        ((18, 16), {"patch_size": 6, "patch_stride": 4}, (slice(1, 17), slice(1, 13))),
        ((18, 16), {"patch_size": 2, "patch_stride": 4}, (slice(0, 18), slice(0, 16))),
    ],
)
def test_a_teachers_patches_have_the_centres_of_the_students(size, settings, seen):
    """Pixels that fill no patch of the student, or none of the teacher around its centre, are not seen."""
    teacher, clips = VideoMambaTeacher(clip_teacher()), torch.randn(1, 1, 3, *size)
    student = tiny_config(image_size=16, num_frames=1, **{"patch_size": 4, **settings})
    covered = clips[..., seen[0], seen[1]]
    _, h, w = student.token_grid_of(1, *size)
    resized = F.interpolate(covered[0], size=(4 * h, 4 * w), mode="bicubic", align_corners=False)[None]
    wanted, _ = teacher(resized, tiny_config(image_size=16, patch_size=4, num_frames=1), 1)
    torch.testing.assert_close(teacher(clips, student, 1)[0], wanted)


def test_a_teacher_stands_in_for_labels_and_is_neither_trained_nor_saved(tmp_path):
    clip_teacher().save_pretrained(tmp_path / "teacher")
    model = make(VideoMambaForPreTraining)
    model.set_teacher(str(tmp_path / "teacher"))
    clips = random_clips(model.config)
    outputs = model(clips)
    visible = F.pad(outputs.mask == 0, (1, 0), value=True)
    targets, _ = model.teacher(clips, model.config, 1)
    labels = targets[:, 0][visible].unflatten(0, (2, -1))[:, None]
    again = model(clips, outputs.mask.bool(), labels)
    torch.testing.assert_close(outputs.loss, again.loss)
    torch.testing.assert_close(model(clips, outputs.mask.bool()).loss, again.loss)
    outputs.loss.backward()
    for module in (model.teacher.vision_model, model.teacher.projection):
        assert not any(parameter.grad is not None for parameter in module.parameters())
    model.save_pretrained(tmp_path / "student")
    loaded = AutoModelForPreTraining.from_pretrained(tmp_path / "student")
    assert loaded.state_dict().keys() == model.state_dict().keys()


def test_other_vision_transformers_teach_as_well():
    teacher = Dinov2Model._from_config(Dinov2Config(**VISION), attn_implementation="eager")
    model = make(VideoMambaForPreTraining, projection_dim=16, num_aligned_layers=2)
    model.set_teacher(teacher)
    outputs = model(random_clips(model.config))
    assert outputs.logits.shape == (2, 2, 17, 16) and 0 < outputs.loss < 4


def test_unfit_teachers_are_refused():
    model = make(VideoMambaForPreTraining, projection_dim=16)
    with pytest.raises(ValueError, match="have 12 channels, `config.projection_dim` is 16"):
        model.set_teacher(clip_teacher())
    model.set_teacher(ViTModel(ViTConfig(**VISION), add_pooling_layer=False).eval())
    model.teacher.vision_model.set_attn_implementation("sdpa")
    with pytest.raises(ValueError, match='attn_implementation="eager"'):
        model(random_clips(model.config))
    with pytest.raises(ValueError, match="must be a vision transformer of Transformers"):
        model.set_teacher(ResNetModel(ResNetConfig(hidden_sizes=[8, 16], depths=[1, 1], embedding_size=8)))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"bool_masked_pos": torch.zeros(2, 64, dtype=torch.long)}, "must be a bool tensor"),
        ({"bool_masked_pos": torch.zeros(2, 65, dtype=torch.bool)}, "(2, 64), without the class token"),
        ({"bool_masked_pos": torch.arange(128).reshape(2, 64) < 40}, "as many true entries"),
        ({"bool_masked_pos": torch.ones(2, 64, dtype=torch.bool)}, "at least one to encode"),
        ({"labels": torch.ones(1, 2, 17, 12)}, "(2, 1, 17, 12), got (1, 2, 17, 12)"),
    ],
)
def test_wrong_masks_and_labels_are_refused(change, message):
    model = make(VideoMambaForPreTraining)
    mask = torch.arange(64).repeat(2, 1) < 48
    with pytest.raises(ValueError) as error:
        model(random_clips(model.config), **{"bool_masked_pos": mask, **change})
    assert message in str(error.value)
