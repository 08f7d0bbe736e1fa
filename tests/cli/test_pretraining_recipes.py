"""The recipes of masked pre-training have the originals' values, and train two steps of a tiny model.

ORIGINALS holds what the originals' scripts and argument defaults say, each value with its file and line or name.
"""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from transformers import CLIPVisionConfig, CLIPVisionModel

from hf_video.processing.clip_sampling import sample_clip_indices
from hf_video.training import PretrainSettings, train
from hf_video.training.recipes import published_recipes
from tests.cli.flags import check_settings_land, flags_of, read, settings_of

FOLDER = Path(__file__).parents[2] / "recipes" / "pretraining"
RECIPES = {path.stem: path for path in sorted(FOLDER.glob("*.yaml"))}

# MCG-NJU/VideoMAE. Lines of `run_mae_pretraining.py` are of its argument defaults; those of a script are the same for
# Kinetics-400 and Something-Something V2.
DEFAULTS = {
    "image_size": (224, "run_mae_pretraining.py:38"),
    "drop_path_rate": (0.0, "run_mae_pretraining.py:41"),
    "norm_pix_loss": (True, "run_mae_pretraining.py:44"),
    "adam_epsilon": (1e-8, "run_mae_pretraining.py:50"),
    "max_grad_norm": (0, "run_mae_pretraining.py:54, None: no clipping"),
    "weight_decay": (0.05, "run_mae_pretraining.py:58"),
    "base_learning_rate": (1.5e-4, "run_mae_pretraining.py:64"),
    "min_lr": (1e-5, "run_mae_pretraining.py:68"),
    "tubelet_size": (2, "modeling_pretrain.py, PretrainVisionTransformer"),
    "no_weight_decay": (["mask_token"], "modeling_pretrain.py, no_weight_decay; the positions are no parameters"),
    "fp16": (True, "engine_for_pretraining.py, autocast and GradScaler"),
    "multi_scale_crop": (True, "datasets.py:14"),
}
LOADER = {
    "dataloader_drop_last": (True, "the loader of run_mae_pretraining.py and run_videomamba_pretraining.py"),
    "kept_frames_gib": (0.0, "the data sets decode a video for each item"),
}
SCRIPT = {
    "mask_type": ("tube", "pretrain.sh:12"),
    "mask_ratio": (0.9, "pretrain.sh:13"),
    "decoder_num_hidden_layers": (4, "pretrain.sh:15"),
    "batch_size": (32, "pretrain.sh:16"),
    "num_frames": (16, "pretrain.sh:17"),
    "frame_sampling_rate": (4, "pretrain.sh:18"),
    "adam_beta1": (0.9, "pretrain.sh:20"),
    "adam_beta2": (0.95, "pretrain.sh:20"),
    "warmup_epochs": (40, "pretrain.sh:21"),
}


def vit(width, layers, heads, decoder_width, decoder_heads, patch_size=16, intermediate_size=None):
    """The sizes in `modeling_pretrain.py`, the functions `pretrain_videomae_*`."""
    sizes = {
        "hidden_size": width,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "intermediate_size": intermediate_size or 4 * width,
        "decoder_hidden_size": decoder_width,
        "decoder_num_attention_heads": decoder_heads,
        "patch_size": patch_size,
    }
    return {name: (value, "modeling_pretrain.py") for name, value in sizes.items()}


SMALL, BASE = vit(384, 12, 6, 192, 3), vit(768, 12, 12, 384, 6)
LARGE, HUGE = vit(1024, 24, 16, 512, 8), vit(1280, 32, 16, 640, 8)
# `pretrain_videomae_giant_patch14_224` of OpenGVLab/VideoMAEv2: mlp_ratio 48 / 11, rounded down.
GIANT = vit(1408, 40, 16, 512, 8, patch_size=14, intermediate_size=int(1408 * 48 / 11))
VIDEOMAE = DEFAULTS | SCRIPT | LOADER
EVERY_SECOND = {"frame_sampling_rate": (2, "pretrain.sh:18")}


def epochs(number):
    return {"epochs": (number, "pretrain.sh:23")}


# OpenGVLab/VideoMAEv2. Its defaults are those above, by name in `run_mae_pretraining.py`.
V2_BASE = LOADER | {
    "mask_type": ("tube", "vit_b_hybrid_pt.sh:31"),
    "mask_ratio": (0.9, "vit_b_hybrid_pt.sh:32"),
    "decoder_mask_ratio": (0.5, "vit_b_hybrid_pt.sh:34"),
    "decoder_num_hidden_layers": (4, "vit_b_hybrid_pt.sh:36"),
    "batch_size": (32, "vit_b_hybrid_pt.sh:37"),
    "num_augmentations": (4, "vit_b_hybrid_pt.sh:38, num_sample"),
    "num_frames": (16, "vit_b_hybrid_pt.sh:39"),
    "frame_sampling_rate": (4, "vit_b_hybrid_pt.sh:40"),
    "base_learning_rate": (1e-3, "vit_b_hybrid_pt.sh:42"),
    "adam_beta1": (0.9, "vit_b_hybrid_pt.sh:44"),
    "adam_beta2": (0.95, "vit_b_hybrid_pt.sh:44"),
    "warmup_epochs": (20, "vit_b_hybrid_pt.sh:45"),
    "epochs": (200, "vit_b_hybrid_pt.sh:47"),
}
# As in `vit_b_hybrid_pt.sh`, but for these.
V2_GIANT = V2_BASE | {
    "activation_checkpointing": (True, "vit_g_hybrid_pt.sh:38, with_checkpoint"),
    "base_learning_rate": (6e-4, "vit_g_hybrid_pt.sh:44"),
    "max_grad_norm": (0.02, "vit_g_hybrid_pt.sh:45"),
    "warmup_epochs": (30, "vit_g_hybrid_pt.sh:47"),
    "epochs": (300, "vit_g_hybrid_pt.sh:49"),
}
# OpenGVLab/VideoMamba, `videomamba/video_sm`; the script of both data sets is the same but for their paths.
VIDEOMAMBA = LOADER | {
    "horizontal_flip": (True, "run_mask_pretrain.sh:26"),
    "mask_type": ("attention", "run_mask_pretrain.sh:27"),
    "mask_ratio": (0.8, "run_mask_pretrain.sh:28"),
    "teacher": ("openai/clip-vit-base-patch16", "run_mask_pretrain.sh:30, clip_b16"),
    "tubelet_size": (1, "run_mask_pretrain.sh:41"),
    "base_learning_rate": (1.5e-4, "run_mask_pretrain.sh:42"),
    "drop_path_rate": (0.4, "run_mask_pretrain.sh:43"),
    "batch_size": (64, "run_mask_pretrain.sh:44"),
    "num_frames": (8, "run_mask_pretrain.sh:46"),
    "adam_beta1": (0.9, "run_mask_pretrain.sh:50"),
    "adam_beta2": (0.95, "run_mask_pretrain.sh:50"),
    "warmup_epochs": (40, "run_mask_pretrain.sh:51"),
    "epochs": (801, "run_mask_pretrain.sh:53"),
    "bf16": (True, "run_mask_pretrain.sh:56"),
    "image_size": (224, "run_videomamba_pretraining.py, input_size"),
    "patch_size": (16, "videomamba_pretrain.py, videomamba_middle_pretrain"),
    "hidden_size": (576, "videomamba_pretrain.py, videomamba_middle_pretrain"),
    "num_hidden_layers": (32, "videomamba_pretrain.py, videomamba_middle_pretrain"),
    "last_aligned_feature": ("unmixed", "videomamba_pretrain.py, forward_features with fused_add_norm"),
    "adam_epsilon": (1e-8, "run_videomamba_pretraining.py, opt_eps"),
    "max_grad_norm": (0, "run_videomamba_pretraining.py, clip_grad, None: no clipping"),
    "weight_decay": (0.05, "run_videomamba_pretraining.py, weight_decay"),
    "min_lr": (1e-5, "run_videomamba_pretraining.py, min_lr"),
    "no_weight_decay": (
        ["cls_token", "position_embeddings", "temporal_position_embeddings"],
        "videomamba_pretrain.py, no_weight_decay",
    ),
    "multi_scale_crop": (True, "datasets/build.py, DataAugmentationForVideoMAE"),
}
ORIGINALS = {
    "videomae_small_kinetics400": VIDEOMAE | SMALL | epochs(1601),
    "videomae_base_kinetics400": VIDEOMAE | BASE | epochs(1601),
    "videomae_base_800e_kinetics400": VIDEOMAE | BASE | epochs(801),
    "videomae_large_kinetics400": VIDEOMAE
    | LARGE
    | epochs(1601)
    | {"decoder_num_hidden_layers": (12, "pretrain.sh:15"), "batch_size": (8, "pretrain.sh:16")},
    "videomae_huge_kinetics400": VIDEOMAE
    | HUGE
    | epochs(1601)
    | {"decoder_num_hidden_layers": (12, "pretrain.sh:15"), "batch_size": (16, "pretrain.sh:16")}
    | {"activation_checkpointing": (True, "pretrain.sh:26")},
    "videomae_small_ssv2": VIDEOMAE | SMALL | EVERY_SECOND | epochs(2401),
    "videomae_base_ssv2": VIDEOMAE | BASE | EVERY_SECOND | epochs(2401),
    "videomae_base_800e_ssv2": VIDEOMAE | BASE | EVERY_SECOND | epochs(801),
    # The script of UCF101 has a line more before them.
    "videomae_base_ucf101": VIDEOMAE
    | BASE
    | {"mask_ratio": (0.75, "pretrain.sh:13"), "base_learning_rate": (3e-4, "pretrain.sh:16")}
    | {"batch_size": (24, "pretrain.sh:17"), "epochs": (3201, "pretrain.sh:23")},
    "videomae_v2_base": DEFAULTS | BASE | V2_BASE,
    "videomae_v2_giant": DEFAULTS | GIANT | V2_GIANT,
    "videomamba_middle_kinetics400": VIDEOMAMBA,
    "videomamba_middle_ssv2": VIDEOMAMBA,
}
# Names of ours for what an original does without a number. Tests below compare the frames of "dense" and the schedule.
OURS = {"family", "sampling_strategy", "lr_scheduler_type", "lr_scheduler_kwargs"}


def test_there_is_a_recipe_for_each_original():
    assert RECIPES.keys() == ORIGINALS.keys()
    assert {f"pretraining/{name}" for name in RECIPES} <= set(published_recipes())


@pytest.mark.parametrize("name", ORIGINALS)
def test_a_recipe_has_the_values_of_the_original(name):
    settings = settings_of(RECIPES[name])
    expected = {setting: value for setting, (value, _) in ORIGINALS[name].items()}
    min_lr = expected.pop("min_lr")
    found = {setting: value for setting, value in settings.items() if setting not in OURS}
    found["adam_epsilon"] = float(found["adam_epsilon"])  # 1e-8 is a text in YAML
    assert found == expected
    rate = settings["lr_scheduler_kwargs"]["min_lr_rate"]
    assert rate * settings["base_learning_rate"] == pytest.approx(min_lr, rel=1e-6)
    assert settings["lr_scheduler_type"] == "cosine_with_min_lr"


def test_dense_clips_begin_anywhere_as_in_the_original():
    """`VideoMAE._sample_train_indices` of `kinetics.py`: a start out of n - 64 + 1, and every fourth frame from it."""
    generator = np.random.default_rng(0)
    clips = np.stack([sample_clip_indices("dense", 70, 16, 4, generator=generator)[0] for _ in range(200)])
    assert set(clips[:, 0]) == set(range(70 - 64 + 1))
    assert (np.diff(clips) == 4).all()


def test_the_schedule_is_the_originals(tmp_path):
    """`cosine_scheduler` of `utils.py`: linear from 0, then a cosine to the smallest rate."""
    import torch
    from transformers import get_scheduler

    settings = settings_of(RECIPES["videomae_base_kinetics400"])
    steps, warmup, rate = 100 * 16, 40, settings["base_learning_rate"]
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=rate)
    schedule = get_scheduler(
        settings["lr_scheduler_type"],
        optimizer,
        num_warmup_steps=warmup,
        num_training_steps=steps,
        scheduler_specific_kwargs=settings["lr_scheduler_kwargs"],
    )
    for step in range(steps):
        if step >= warmup:
            share = (1 + math.cos(math.pi * (step - warmup) / (steps - warmup))) / 2
            assert schedule.get_last_lr()[0] == pytest.approx(1e-5 + (rate - 1e-5) * share, rel=1e-5)
        optimizer.step()
        schedule.step()


# One recipe a family trains.
@pytest.mark.parametrize("name", ["videomae_v2_base", "videomamba_middle_ssv2"])
def test_a_recipe_trains_and_every_setting_lands(name, digits, tmp_path):
    sizes = {"image_size": 32, "patch_size": 8, "hidden_size": 24, "num_hidden_layers": 2, "batch_size": 2}
    sizes |= {"fp16": False, "bf16": False, "num_frames": 4, "device": "cpu", "max_steps": 2, "epochs": 3}
    if name.startswith("videomamba"):
        vision = CLIPVisionConfig(
            hidden_size=16,
            num_hidden_layers=2,
            num_attention_heads=2,
            image_size=16,
            patch_size=4,
            intermediate_size=16,
        )
        CLIPVisionModel(vision).save_pretrained(tmp_path / "teacher")
        sizes |= {"teacher": str(tmp_path / "teacher")}
    else:
        sizes |= {"num_attention_heads": 2, "intermediate_size": 32, "decoder_hidden_size": 12}
        sizes |= {"decoder_num_hidden_layers": 1, "decoder_num_attention_heads": 2}
    words = [str(digits), f"--output-dir={tmp_path / 'out'}", *flags_of(sizes)]
    trainer, losses = train(read(["pretrain", "--recipe", str(RECIPES[name]), *words]))
    assert trainer.state.global_step == 2 and math.isfinite(losses["last"])
    args = trainer.args
    assert json.loads((tmp_path / "out" / "config.json").read_text())["architectures"][0].endswith("ForPreTraining")
    elsewhere = ("family", "device", "teacher", "kept_frames_gib")
    settings = {name: value for name, value in (settings_of(RECIPES[name]) | sizes).items() if name not in elsewhere}
    check_settings_land(trainer, settings, PretrainSettings)
    assert args.learning_rate == pytest.approx(settings_of(RECIPES[name])["base_learning_rate"] * 2 / 256)
    decayed = {id(p) for group in trainer.optimizer.param_groups if group["weight_decay"] for p in group["params"]}
    for parameter_name, parameter in trainer.model.named_parameters():
        is_plain = parameter.ndim > 1 and not set(parameter_name.split(".")) & set(args.no_weight_decay)
        assert (id(parameter) in decayed) is is_plain, parameter_name
