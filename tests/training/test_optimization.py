"""Learning rates and weight decay by parameter, as literals for each family."""

import pytest
import torch
from transformers import Trainer, TrainingArguments

import hf_video
from hf_video.models.videomamba import VideoMambaConfig, VideoMambaForVideoClassification
from hf_video.models.videovit import VideoViTConfig, VideoViTForPreTraining, VideoViTForVideoClassification
from hf_video.training import VideoTrainer, VideoTrainingArguments, parameter_groups, parameter_settings
from hf_video.training.optimization import NO_WEIGHT_DECAY
from tests.hub.conftest import TINY_CLASSIFIERS

SIZES = {"image_size": 16, "patch_size": 8, "num_frames": 2, "hidden_size": 24, "num_labels": 2}


def videovit(**options):
    sizes = {"num_attention_heads": 2, "intermediate_size": 32, "num_hidden_layers": 3}
    return VideoViTForVideoClassification(VideoViTConfig(**SIZES, **sizes | options))


def videomamba(**options):
    return VideoMambaForVideoClassification(VideoMambaConfig(**SIZES, num_hidden_layers=2, **options))


def test_videovit_has_the_settings_of_videomae():
    # The original's values for depth 3: `optim_factory.py` of VideoMAE with layer_decay 0.75.
    model = videovit(layer_scale_init_value=0.1, position_embedding_type="learned")
    settings = parameter_settings(model, weight_decay=0.05, layer_decay=0.75, no_weight_decay=NO_WEIGHT_DECAY)
    expected = {
        "videovit.embeddings.position_embeddings.weight": (0.31640625, 0.0),
        "videovit.embeddings.patch_embeddings.projection.weight": (0.31640625, 0.05),
        "videovit.embeddings.patch_embeddings.projection.bias": (0.31640625, 0.0),
        "fc_norm.weight": (1.0, 0.0),
        "fc_norm.bias": (1.0, 0.0),
        "classifier.weight": (1.0, 0.05),
        "classifier.bias": (1.0, 0.0),
    }
    for layer, scale in enumerate((0.421875, 0.5625, 0.75)):
        expected |= {
            f"videovit.layers.{layer}.{name}": (scale, weight_decay)
            for names, weight_decay in (
                (("attention.qkv.weight", "attention.o_proj.weight", "mlp.fc1.weight", "mlp.fc2.weight"), 0.05),
                (("attention.qv_bias", "attention.o_proj.bias", "mlp.fc1.bias", "mlp.fc2.bias"), 0.0),
                (("layer_scale1", "layer_scale2", "layernorm_before.weight", "layernorm_before.bias"), 0.0),
                (("layernorm_after.weight", "layernorm_after.bias"), 0.0),
            )
            for name in names
        }
    assert settings == expected


def test_videomamba_with_the_layer_decay_that_its_paper_meant():
    settings = parameter_settings(videomamba(), weight_decay=0.1, layer_decay=0.5, no_weight_decay=NO_WEIGHT_DECAY)
    chosen = {
        "videomamba.embeddings.cls_token": (0.125, 0.0),
        "videomamba.embeddings.temporal_position_embeddings": (0.125, 0.0),
        "videomamba.embeddings.patch_embeddings.projection.weight": (0.125, 0.1),
        "videomamba.layers.0.mixer.forward_scan.A_log": (0.25, 0.0),
        "videomamba.layers.0.mixer.backward_scan.D": (0.25, 0.0),
        "videomamba.layers.0.mixer.forward_scan.dt_proj.bias": (0.25, 0.0),
        "videomamba.layers.1.mixer.in_proj.weight": (0.5, 0.1),
        "videomamba.norm_f.weight": (1.0, 0.0),
        "classifier.weight": (1.0, 0.1),
    }
    assert {name: settings[name] for name in chosen} == chosen


def test_videomamba_with_the_layer_decay_that_its_released_models_had():
    # Blocks, norm_f, head and temporal positions at full rate; A_log decayed.
    settings = parameter_settings(
        videomamba(),
        weight_decay=0.1,
        layer_decay=0.5,
        layer_decay_only=["patch_embeddings", "cls_token", "position_embeddings"],
        no_weight_decay=["cls_token", "position_embeddings", "temporal_position_embeddings"],
    )
    slow = {name for name, setting in settings.items() if setting.lr_scale == 0.125}
    assert slow == {
        "videomamba.embeddings.cls_token",
        "videomamba.embeddings.position_embeddings",
        "videomamba.embeddings.patch_embeddings.projection.weight",
        "videomamba.embeddings.patch_embeddings.projection.bias",
    }
    assert {setting.lr_scale for setting in settings.values()} == {0.125, 1.0}
    assert settings["videomamba.layers.0.mixer.forward_scan.A_log"].weight_decay == 0.1
    assert settings["videomamba.embeddings.temporal_position_embeddings"] == (1.0, 0.0)


@pytest.mark.parametrize(
    "model",
    [videovit(), videomamba(), VideoViTForPreTraining(videovit().config)],
    ids=["videovit", "videomamba", "pretraining"],
)
def test_every_trainable_parameter_is_in_one_group_and_the_head_leads(model):
    frozen = next(model.parameters()).requires_grad_(False)
    settings = parameter_settings(model, weight_decay=0.05, layer_decay=0.8)
    groups = parameter_groups(model, settings, learning_rate=1e-3)
    grouped = [id(parameter) for group in groups for parameter in group["params"]]
    assert len(grouped) == len(set(grouped))
    assert set(grouped) == {id(parameter) for parameter in model.parameters()} - {id(frozen)}
    assert groups[0]["lr"] == 1e-3 == max(group["lr"] for group in groups)
    torch.optim.AdamW(groups)


@pytest.mark.parametrize(
    ("family", "options", "spared"),
    [
        (
            "VideoViT",
            {"layer_scale_init_value": 0.1, "position_embedding_type": "learned", "use_class_token": True},
            4,
        ),
        ("VideoMamba", {}, 8),
        ("MemoryBankQFormer", {}, 4),
    ],
)
def test_what_has_a_place_or_a_scale_of_its_own_is_not_decayed(family, options, spared, tmp_path):
    """By `VideoTrainer`, and by a plain `Trainer` with the optimizer made for it, which does it otherwise."""
    config = getattr(hf_video, f"{family}Config")(**TINY_CLASSIFIERS[family], **options)
    model = getattr(hf_video, f"{family}ForVideoClassification")(config)
    marks = ("token", "position_embedding", "layer_scale", "A_log", ".D", "norm_f")
    own = {name for name, _ in model.named_parameters() if any(mark in name for mark in marks)}
    assert len(own) == spared
    ours = VideoTrainingArguments(str(tmp_path), use_cpu=True, eval_strategy="no", load_best_model_at_end=False)
    settings = parameter_settings(model, weight_decay=0.1, no_weight_decay=NO_WEIGHT_DECAY)
    optimizer = torch.optim.AdamW(parameter_groups(model, settings, learning_rate=1e-3))
    plain = TrainingArguments(str(tmp_path), use_cpu=True, weight_decay=0.1)
    assert own & set(Trainer(model, plain).get_decay_parameter_names(model))
    for trainer in (VideoTrainer(model, ours), Trainer(model, plain, optimizers=(optimizer, None))):
        groups = trainer.create_optimizer().param_groups
        decayed = {id(parameter) for group in groups if group["weight_decay"] for parameter in group["params"]}
        assert decayed and not {name for name, p in model.named_parameters() if id(p) in decayed} & own


def test_errors():
    with pytest.raises(ValueError, match="layer_decay is 1.5; a factor above 0, up to 1"):
        parameter_settings(videovit(), layer_decay=1.5)
    with pytest.raises(ValueError, match="Linear has no `layer_groups`, so layer_decay=0.5 is impossible"):
        parameter_settings(torch.nn.Linear(2, 2), layer_decay=0.5)
    with pytest.raises(ValueError, match=r"no_weight_decay names \['pos_embed'\], which no parameter"):
        parameter_settings(videovit(), no_weight_decay=["pos_embed", "cls_token"])
    with pytest.raises(ValueError, match=r"layer_decay_only names \['pos_embed'\], which no parameter"):
        parameter_settings(videovit(), layer_decay=0.5, layer_decay_only=["pos_embed"])
