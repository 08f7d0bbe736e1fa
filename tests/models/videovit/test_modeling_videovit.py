"""VideoViT beyond Transformers' common tests: options, sizes, losses, and what its errors say."""

import math

import pytest
import torch
import torch.nn.functional as F
from huggingface_hub.errors import StrictDataclassError
from transformers import AutoModel

from hf_video import (
    VideoViTBackbone,
    VideoViTForImageClassification,
    VideoViTForPreTraining,
    VideoViTForVideoClassification,
    VideoViTModel,
)

from .videovit_testing import VJEPA2_1, make, random_clips, tiny_config


@pytest.mark.parametrize(
    ("position_embedding_type", "use_class_token"),
    [("sinusoidal", False), ("learned", True), ("rope", False), ("none", True)],
)
def test_tokens_are_in_the_order_time_row_column(position_embedding_type, use_class_token):
    """Changing one patch changes that patch's embedding alone."""
    model = make(VideoViTModel, position_embedding_type=position_embedding_type, use_class_token=use_class_token)
    clips = random_clips(model.config, 1)
    changed = clips.clone()
    changed[:, 2:4, :, 8:16, 24:32] += 1
    difference = (model.embeddings(changed) - model.embeddings(clips)).abs().sum(-1)[0]
    (index,) = difference.nonzero(as_tuple=True)
    t, h, w = 1, 1, 3
    assert index.tolist() == [int(use_class_token) + (t * 4 + h) * 4 + w]


def test_weights_can_begin_as_those_of_videomae_pre_training():
    """Xavier's uniform distribution ends at sqrt(6 / (inputs + outputs)), PyTorch's own at 1 / sqrt(inputs), also for
    biases, and VideoMAE's token of masked patches at one standard deviation. The classifier keeps its own scale.
    VideoMAE draws queries, keys and values as one matrix."""
    model = make(VideoViTForPreTraining, weight_init="xavier_uniform")
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear):
            outputs = module.out_features * (3 if name.endswith(("query", "key", "value")) else 1)
            bound = math.sqrt(6 / (module.in_features + outputs))
            if name in ("videovit.embeddings.patch_embeddings.projection", "encoder_to_decoder"):
                bound = 1 / math.sqrt(module.in_features)
            if name.endswith("projection"):
                assert 0.8 * bound < module.bias.abs().max() <= bound
            assert 0.98 * bound < module.weight.abs().max() <= bound, name
            assert module.weight.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.05), name
    assert 0.015 < model.mask_token.abs().max() <= 0.02
    model = make(VideoViTForVideoClassification, weight_init="xavier_uniform", classifier_init_scale=0.001)
    assert model.classifier.weight.abs().max() < 1e-4


def test_sinusoidal_positions_survive_half_precision_loading(tmp_path):
    make(VideoViTModel).save_pretrained(tmp_path)
    table = AutoModel.from_pretrained(tmp_path, dtype=torch.bfloat16).embeddings.position_embeddings.weight
    assert table.dtype == torch.float32
    assert torch.equal(table, make(VideoViTModel).embeddings.position_embeddings.weight)


def test_without_labels_the_output_is_the_pooled_feature():
    model = make(VideoViTForVideoClassification, num_labels=0)
    clips = random_clips(model.config)
    tokens = model.videovit(clips).last_hidden_state
    torch.testing.assert_close(model(clips).logits, F.layer_norm(tokens.mean(1), (36,), eps=1e-6))


def test_single_label_multi_label_and_regression_losses():
    clips = random_clips(tiny_config(), 3)
    model = make(VideoViTForVideoClassification, problem_type="single_label_classification")
    labels = torch.tensor([0, 4, 2])
    torch.testing.assert_close(model(clips, labels=labels).loss, F.cross_entropy(model(clips).logits, labels))

    model = make(VideoViTForVideoClassification, problem_type="multi_label_classification")
    targets = torch.tensor([[1.0, 0, 1, 0, 0], [0, 0, 0, 0, 0], [1, 1, 1, 1, 1]])
    expected = F.binary_cross_entropy_with_logits(model(clips).logits, targets)
    torch.testing.assert_close(model(clips, labels=targets).loss, expected)

    model = make(VideoViTForVideoClassification, num_labels=1)
    values = torch.tensor([0.5, -1.0, 2.0])
    torch.testing.assert_close(model(clips, labels=values).loss, F.mse_loss(model(clips).logits[:, 0], values))


def test_drop_path_is_linear_over_depth_and_keeps_the_expectation():
    model = make(VideoViTForVideoClassification, drop_path_rate=0.5)
    assert [layer.drop_path.drop_prob for layer in model.videovit.layers] == [0.0, 0.25, 0.5]
    drop_path = model.videovit.layers[2].drop_path
    branch = torch.ones(4000, 2, 3)
    assert torch.equal(drop_path(branch), branch)
    dropped = drop_path.train()(branch)
    assert set(dropped.unique().tolist()) == {0.0, 2.0}
    assert (dropped == dropped[:, :1, :1]).all(), "a branch is dropped for whole clips"
    assert abs(dropped.mean() - 1) < 0.1


@pytest.mark.parametrize("position_embedding_type", ["sinusoidal", "learned", "rope", "none"])
def test_an_input_of_another_size_gives_what_set_input_size_bakes_in(tmp_path, position_embedding_type):
    model = make(VideoViTModel, position_embedding_type=position_embedding_type, use_class_token=True)
    clips = random_clips(model.config, image_size=(24, 40), num_frames=12)
    expected = model(clips).last_hidden_state
    assert expected.shape == (2, 1 + 6 * 3 * 5, 36)
    model.set_input_size(image_size=(24, 40), num_frames=12)
    torch.testing.assert_close(model(clips, interpolate_pos_encoding=False).last_hidden_state, expected)
    model.save_pretrained(tmp_path)
    loaded = AutoModel.from_pretrained(tmp_path)
    assert loaded.config.token_grid == (6, 3, 5)
    torch.testing.assert_close(loaded(clips).last_hidden_state, expected)


def test_positions_are_resized_per_slice_and_then_over_time():
    model = make(VideoViTModel, position_embedding_type="learned", use_class_token=True)
    module = model.embeddings.position_embeddings
    table = module((7, 6, 3))
    slices = module.weight[:, 1:].reshape(4, 4, 4, 36).permute(0, 3, 1, 2)
    spatial = F.interpolate(slices, (6, 3), mode="bicubic", align_corners=False)
    both = F.interpolate(spatial.permute(1, 2, 3, 0).reshape(1, -1, 4), 7, mode="linear", align_corners=False)
    expected = both.reshape(36, 6, 3, 7).permute(3, 1, 2, 0).reshape(1, -1, 36)
    torch.testing.assert_close(table[:, 1:], expected)
    assert torch.equal(table[:, :1], module.weight[:, :1]), "the class token's position stays"


@pytest.mark.parametrize("settings", [{"position_embedding_type": "rope"}, VJEPA2_1])
def test_rope_depends_on_relative_positions_alone(settings):
    """Attention scores of two tokens stay when both move by the same step in time, row and column."""
    rotary = make(VideoViTModel, **settings).rotary_embedding
    angles = rotary((4, 5, 6), torch.device("cpu")).reshape(4, 5, 6, -1)
    difference = angles[1, 2, 3] - angles[0, 1, 1]
    torch.testing.assert_close(difference, angles[3, 4, 5] - angles[2, 3, 3])
    # Both channels of a pair have the same angle.
    torch.testing.assert_close(*angles.chunk(2, dim=-1))
    assert angles.shape[-1] == 12 and len(set(angles[1, 2, 3].tolist())) > 3


def test_frames_and_pixels_that_fill_no_patch_are_dropped():
    model = make(VideoViTBackbone)
    clips = random_clips(model.config, image_size=(37, 34), num_frames=9)
    cut = clips[:, :8, :, :32, :32]
    torch.testing.assert_close(model(clips).feature_maps[0], model(cut).feature_maps[0])


def test_backbone_maps_have_the_token_grid_and_the_final_norm():
    model = make(VideoViTBackbone, out_features=["stage1", "stage3"])
    outputs = model(random_clips(model.config, image_size=(40, 24)))
    assert [tuple(feature_map.shape) for feature_map in outputs.feature_maps] == [(2, 36, 4, 5, 3)] * 2
    bare = VideoViTModel(tiny_config(use_final_norm=True))
    bare.load_state_dict(model.videovit.state_dict())
    tokens = bare.eval()(random_clips(model.config, image_size=(40, 24))).last_hidden_state
    torch.testing.assert_close(outputs.feature_maps[-1].flatten(2).mT, tokens)


def test_image_classifier_takes_images():
    settings = {"num_frames": 1, "tubelet_size": 1, "use_class_token": True, "position_embedding_type": "learned"}
    model = make(VideoViTForImageClassification, **settings, use_mean_pooling=False)
    images = torch.randn(2, 3, 32, 32)
    logits = model(images, labels=torch.tensor([0, 1])).logits
    tokens = model.videovit(images[:, None]).last_hidden_state
    torch.testing.assert_close(logits, model.classifier(tokens[:, 0]))


@pytest.mark.parametrize(
    ("attention", "stance"),
    [
        ("eager", "default"),
        ("sdpa", "default"),
        # What Transformers compiles for it takes a quarter of a minute, and says the same without.
        ("flex_attention", "force_eager"),
        pytest.param("flex_attention", "default", marks=pytest.mark.slow),
    ],
)
def test_attention_implementations_agree(attention, stance):
    model = make(VideoViTForVideoClassification, hidden_size=48, num_attention_heads=3, position_embedding_type="rope")
    clips = random_clips(model.config)
    with torch.no_grad(), torch.compiler.set_stance(stance):
        expected = model(clips).logits
        model.set_attn_implementation(attention)
        torch.testing.assert_close(model(clips).logits, expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"hidden_size": 37}, "`hidden_size` (37) must be a multiple of `num_attention_heads` (3)"),
        ({"num_frames": 1}, "hold no patch"),
        ({"image_size": 4}, "hold no patch"),
        ({"patch_size": [8, 8, 8]}, "`patch_size` must be one positive number or (height, width)"),
        ({"norm_type": "batch_norm"}, "norm_type"),
        ({"drop_path_rate": 1.5}, "`drop_path_rate` must be in [0, 1)"),
        ({"qk_scale": 0.1, "use_cosine_attention": True}, "leave one of them out"),
        ({"position_embedding_type": "rope", "head_dim": 7}, "even `head_dim`"),
        ({"position_embedding_type": "learned", "position_embedding_resize": "rebuild"}, "cannot be rebuilt"),
        ({"mask_ratio": 1.0}, "`mask_ratio` must be between 0 and 1"),
        ({"hidden_act": "nope"}, "`hidden_act` 'nope' is unknown"),
        ({"position_embedding_grid": [0, 4, 4]}, "`position_embedding_grid` must be (t, h, w)"),
    ],
)
def test_wrong_configurations_are_refused(settings, message):
    with pytest.raises((ValueError, StrictDataclassError)) as error:
        tiny_config(**settings)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((2, 3, 8, 32, 32), "num_channels=3"),
        ((8, 3, 32, 32), "must be (batch_size, num_frames, num_channels=3"),
        ((2, 1, 3, 32, 32), "hold no patch"),
        ((2, 8, 3, 4, 32), "hold no patch"),
    ],
)
def test_wrong_inputs_are_refused(shape, message):
    model = make(VideoViTForVideoClassification)
    with pytest.raises(ValueError) as error:
        model(torch.zeros(shape))
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("model_class", "inputs"),
    [
        (VideoViTModel, {}),
        (VideoViTForVideoClassification, {"labels": torch.tensor([0, 1])}),
        (VideoViTForImageClassification, {"labels": torch.tensor([0, 1])}),
        (VideoViTForPreTraining, {"bool_masked_pos": torch.arange(60).repeat(2, 1) < 40}),
    ],
)
def test_every_class_resizes_positions_unless_told_otherwise(model_class, inputs):
    takes_images = model_class is VideoViTForImageClassification
    model = make(model_class, **({"num_frames": 1, "tubelet_size": 1} if takes_images else {}))
    clips = random_clips(model.config, image_size=(40, 24))
    inputs = {"pixel_values": clips[:, 0] if takes_images else clips, **inputs}
    resized = model(**inputs)
    with pytest.raises(ValueError, match="set_input_size"):
        model(**inputs, interpolate_pos_encoding=False)
    model.set_input_size(image_size=(40, 24))
    baked_in = model(**inputs, interpolate_pos_encoding=False)
    torch.testing.assert_close(baked_in.to_tuple()[0], resized.to_tuple()[0])


def test_another_size_is_refused_where_positions_may_not_or_cannot_follow():
    clips = random_clips(tiny_config(), num_frames=6)
    with pytest.raises(ValueError, match="set_input_size"):
        make(VideoViTModel)(clips, interpolate_pos_encoding=False)
    with pytest.raises(ValueError, match="3 token frames, expected 4"):
        make(VideoViTModel, position_embedding_resize="token_count")(clips)
    with pytest.raises(ValueError, match="tubelet_size=1"):
        make(VideoViTForImageClassification)
