"""VideoTextDualEncoderModel: towers, vectors of a video, pairs, what is drawn, precision and storage."""

import pytest
import torch
import torch.nn.functional as F
from huggingface_hub.errors import StrictDataclassError
from transformers import AutoModel, CLIPVisionConfig, CLIPVisionModel

from hf_video import VideoTextDualEncoderConfig, VideoTextDualEncoderModel
from hf_video.models.video_text.losses_video_text import mask_tokens

from .video_text_testing import SIZES, TEXT, VISION, make, random_pairs

VIT = {"model_type": "videovit", "image_size": 16, "patch_size": 8, "num_frames": 4, "hidden_size": 32}
VIT |= {"num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 48}


def test_a_model_is_saved_and_loaded_by_its_auto_class(tmp_path):
    model, pairs = make(), random_pairs()
    model.save_pretrained(tmp_path)
    loaded, loading = AutoModel.from_pretrained(tmp_path, output_loading_info=True)
    assert type(loaded) is VideoTextDualEncoderModel and not any(loading.values())
    assert loaded.mlm_head.decoder.weight is loaded.text_model.embeddings.word_embeddings.weight
    with torch.no_grad():
        torch.testing.assert_close(loaded(**pairs).similarity, model(**pairs).similarity)


def test_similarity_is_the_mean_of_cosines_and_a_match_is_of_pairs():
    model, pairs = make(), random_pairs()
    with torch.no_grad():
        outputs = model(**pairs, output_match=True)
        videos = model.get_video_features(pairs["pixel_values"])
        texts = model.get_text_features(pairs["input_ids"], pairs["attention_mask"])
        kept = model.match(videos.last_hidden_state, texts.last_hidden_state, pairs["attention_mask"])
    cosines = F.cosine_similarity(videos.pooler_output[:, None], texts.pooler_output[None, :, None], dim=-1)
    torch.testing.assert_close(outputs.similarity, cosines.mean(dim=-1))
    torch.testing.assert_close(outputs.logits_per_text, outputs.similarity.T / 0.07)
    torch.testing.assert_close(outputs.match_logits, kept)
    with pytest.raises(ValueError, match="as many texts as videos"):
        model(pairs["pixel_values"][:2], pairs["input_ids"], output_match=True)


def test_padding_changes_nothing():
    model, pairs = make(), random_pairs(2)
    short = {name: pairs[name][1:, :5] for name in ("input_ids", "attention_mask")}
    with torch.no_grad():
        padded = model(**pairs, output_match=True)
        alone = model(pairs["pixel_values"][1:], **short, output_match=True)
    torch.testing.assert_close(alone.match_logits, padded.match_logits[1:], atol=1e-5, rtol=0)
    torch.testing.assert_close(alone.text_embeds, padded.text_embeds[1:], atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    ("pooling", "keep_temporal", "num_vectors"),
    [("cls+avg", True, 4), ("cls_cat_avg", True, 4), ("avg", True, 4), ("cls", True, 1)]
    + [("cls+avg", False, 1), ("cls_cat_avg", False, 2), ("avg", False, 1), ("cls", False, 1)],
)
def test_the_pooling_gives_the_vectors_of_a_video(pooling, keep_temporal, num_vectors):
    model, pairs = make(pooling=pooling, keep_temporal=keep_temporal), random_pairs()
    with torch.no_grad():
        tokens = model.vision_model(pairs["pixel_values"]).last_hidden_state
        features = model.get_video_features(pairs["pixel_values"])
    class_token, patches = tokens[:, :1], tokens[:, 1:].unflatten(1, (4 if keep_temporal else 1, -1)).mean(dim=2)
    expected = {
        "cls+avg": class_token + patches,
        "cls_cat_avg": class_token + patches if keep_temporal else torch.cat([class_token, patches], dim=1),
        "avg": patches,
        "cls": class_token,
    }[pooling]
    expected = model.video_projection(F.layer_norm(expected, [32]))
    assert features.pooler_output.shape == (4, num_vectors, 8)
    torch.testing.assert_close(features.pooler_output, expected)
    torch.testing.assert_close(features.last_hidden_state, tokens[:, 1:])


@pytest.mark.parametrize("masks", ["attention", "tube"])
def test_a_mask_leaves_one_vector_unless_it_is_the_same_for_all_frames(masks):
    model, pairs = make(video_mask_type=masks, image_mask_type=masks), random_pairs()
    mask = torch.tensor([True, False, False, True]).repeat(4, 4)
    with torch.no_grad():
        features = model.get_video_features(pairs["pixel_values"], bool_masked_pos=mask)
    assert features.last_hidden_state.shape == (4, 8, 32)
    assert features.pooler_output.shape == (4, 4 if masks == "tube" else 1, 8)


def test_a_clip_of_one_frame_has_no_position_in_time():
    model, pairs = make(VISION | {"use_single_frame_position": False}), random_pairs(num_frames=1)
    with torch.no_grad():
        expected = model(**pairs).similarity
        model.vision_model.embeddings.temporal_position_embeddings.add_(1)
        assert torch.equal(model(**pairs).similarity, expected)
        assert not torch.equal(model(**random_pairs()).similarity[0, 0], expected[0, 0])


@pytest.mark.parametrize("vision", [VIT, VIT | {"use_class_token": True}])
def test_any_video_encoder_serves_as_tower(vision):
    pooling = "cls+avg" if "use_class_token" in vision else "avg"
    model, pairs = make(vision, pooling=pooling), random_pairs()
    outputs = model(**pairs, return_loss=True, output_match=True)
    outputs.loss.backward()
    assert outputs.video_embeds.shape == (4, 2, 8)
    assert model.vision_model.embeddings.patch_embeddings.projection.weight.grad.abs().max() > 0


def test_what_is_not_given_is_drawn():
    model, pairs = make(), random_pairs()
    torch.manual_seed(0)
    first, second = (model(**pairs, return_loss=True) for _ in range(2))
    assert set(first.loss_dict) == {"loss_vtc", "loss_vtm", "loss_mlm", "loss_uta"}
    assert first.loss_dict["loss_vtc"] == second.loss_dict["loss_vtc"]
    assert first.loss_dict["loss_mlm"] != second.loss_dict["loss_mlm"]
    assert first.loss_dict["loss_uta"] == 0
    torch.testing.assert_close(first.loss, sum(first.loss_dict.values()))
    with pytest.raises(ValueError, match="at least two videos"):
        model(**pairs, return_loss=True, video_ids=torch.zeros(4, dtype=torch.long))
    with pytest.raises(ValueError, match="both `mlm_input_ids` and `mlm_labels`"):
        model(**pairs, return_loss=True, mlm_labels=pairs["input_ids"])


@pytest.mark.parametrize("mask_type", ["attention", "tube", "none"])
def test_a_teacher_draws_the_mask_and_is_learned_from(mask_type):
    alignment = {"use_alignment_heads": True, "video_mask_type": mask_type, "video_mask_ratio": 0.5}
    model, pairs = make(**alignment), random_pairs()
    size = {"hidden_size": 12, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    teacher = CLIPVisionModel(CLIPVisionConfig(image_size=16, patch_size=8, attn_implementation="eager", **size))
    model.vision_model.set_teacher(teacher)
    outputs = model(**pairs, return_loss=True)
    assert outputs.loss_dict["loss_uta"] > 0
    assert outputs.video_embeds.shape[1] == (4 if mask_type == "none" else 1)
    outputs.loss.backward()
    assert model.vision_model.decoder[0].head.weight.grad.abs().max() > 0
    assert not any("teacher" in name for name in model.state_dict())


def test_the_temperature_is_clamped_when_a_loss_is_computed():
    model, pairs = make().train(), random_pairs()
    with torch.no_grad():
        model.temperature.fill_(0.9)
        model(**pairs)
        assert model.temperature == torch.tensor(0.9)
    model(**pairs, return_loss=True).loss.backward()
    assert model.temperature == 0.5 and model.temperature.grad != 0


def test_half_precision_keeps_temperature_and_rates_in_float32(tmp_path):
    model, pairs = make(), random_pairs()
    model.save_pretrained(tmp_path)
    half = AutoModel.from_pretrained(tmp_path, dtype=torch.bfloat16)
    assert half.temperature.dtype == half.vision_model.layers[0].mixer.forward_scan.A_log.dtype == torch.float32
    outputs = half(**pairs, output_match=True, return_loss=True)
    outputs.loss.backward()
    assert outputs.match_logits.dtype == torch.bfloat16 and outputs.similarity.dtype == torch.float32
    with torch.no_grad():
        torch.testing.assert_close(outputs.similarity, model(**pairs).similarity, atol=0.03, rtol=0)


def test_masked_words_keep_class_token_and_padding():
    torch.manual_seed(0)
    input_ids = torch.randint(5, 60, (200, 50))
    input_ids[:, 0], input_ids[:, 40:] = 2, 0
    masked, labels = mask_tokens(input_ids, 0.5, 60, mask_token_id=4, never_masked=[2, 0])
    chosen = labels != -100
    assert not chosen[:, 0].any() and not chosen[:, 40:].any()
    assert torch.equal(labels[chosen], input_ids[chosen]) and torch.equal(masked[~chosen], input_ids[~chosen])
    assert chosen[:, 1:40].float().mean() == pytest.approx(0.5, abs=0.02)
    assert (masked[chosen] == 4).float().mean() == pytest.approx(0.8, abs=0.03)
    assert (masked[chosen] == input_ids[chosen]).float().mean() == pytest.approx(0.1, abs=0.03)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"fusion_layer": 3}, "`fusion_layer` must be below"),
        ({"temperature_bounds": [0.5, 0.1]}, "`temperature_bounds`"),
        ({"loss_weights": {"itm": 1.0}}, "`loss_weights` must name"),
        ({"loss_weights": {"uta": 1.0}}, "`use_alignment_heads=True`"),
        ({"use_mlm_head": False, "loss_weights": {"mlm": 1.0}}, "`use_mlm_head=True`"),
        ({"vision_config": VIT}, "needs a class token"),
    ],
)
def test_wrong_settings_are_named(settings, message):
    with pytest.raises(StrictDataclassError, match=message):
        VideoTextDualEncoderConfig(**{"vision_config": VISION, "text_config": TEXT} | SIZES | settings)
