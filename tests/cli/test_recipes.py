"""Every recipe trains two steps of a tiny model, and each of its settings is where it takes effect."""

import json
import shutil
from pathlib import Path

import pytest
from transformers import AutoModelForVideoClassification

from hf_video.cli.main import main
from hf_video.data import ClipAugmentation, ClipMixing
from hf_video.models.videomamba import VideoMambaConfig, VideoMambaForVideoClassification
from hf_video.models.videovit import VideoViTConfig, VideoViTForVideoClassification
from hf_video.processing import VideoClipProcessor
from hf_video.settings import find_setting, read_value
from hf_video.training import (
    AnswerTrainingArguments,
    PreTrainingArguments,
    PretrainSettings,
    TrainAnswersSettings,
    TrainSettings,
    VideoTrainingArguments,
    train,
)
from hf_video.training.recipes import is_recipe, published_recipe, read_recipe
from hf_video.training.values import choose_values, make, read_named, values_of
from tests.cli.flags import check_settings_land, flags_of, read, settings_of

# One recipe a family trains, and all are read.
TRAINED = ("videomae_base_kinetics400", "videomamba_tiny_ssv2")
FOLDER = Path(__file__).parents[2] / "recipes"
RECIPES = [FOLDER / f"{name}.yaml" for name in TRAINED]
# A tiny model on a CPU: smaller frames, few videos a step, no half precision.
CHANGED = {"image_size": 32, "batch_size": 2, "fp16": False}


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Folders of tiny models by the prefix of the recipes for them."""
    folder = tmp_path_factory.mktemp("models")
    sizes = {"image_size": 16, "patch_size": 16, "num_frames": 2, "hidden_size": 24, "num_hidden_layers": 2}
    videovit = VideoViTConfig(**sizes, num_attention_heads=2, intermediate_size=32)
    VideoViTForVideoClassification(videovit).save_pretrained(folder / "videomae")
    VideoMambaForVideoClassification(VideoMambaConfig(**sizes)).save_pretrained(folder / "videomamba")
    return folder


@pytest.fixture(scope="module")
def videos(digits, tmp_path_factory):
    """Two classes of three videos to train on and one to test with."""
    folder = tmp_path_factory.mktemp("videos")
    for split in ("train", "test"):
        for name in ("left-up", "up-left"):
            shutil.copytree(digits / split / name, folder / split / name)
    return folder


# By the folder of recipes: the command, its settings, and what takes their values.
KINDS: dict[str, tuple[str, type, tuple[type, ...]]] = {
    ".": ("train", TrainSettings, (VideoTrainingArguments, ClipAugmentation, ClipMixing)),
    "pretraining": ("pretrain", PretrainSettings, (PreTrainingArguments, ClipAugmentation)),
    "malmm": ("train-answers", TrainAnswersSettings, (AnswerTrainingArguments, ClipAugmentation)),
}
EVERY = [(folder, name) for folder in KINDS for name in sorted(path.stem for path in (FOLDER / folder).glob("*.yaml"))]


@pytest.mark.parametrize(("folder", "name"), EVERY)
def test_the_settings_of_a_recipe_are_read(folder, name, tmp_path):
    (command, kind, holders), recipe = KINDS[folder], FOLDER / folder / f"{name}.yaml"
    settings = read([command, "--recipe", str(recipe), "d", "--output-dir=o", "--model=m", "--no-fp16", "--no-bf16"])
    assert len(read_named(settings).recipe) == len(settings_of(recipe))
    chosen = choose_values(settings)
    here = {"output_dir": str(tmp_path), "use_cpu": True, "per_device_eval_batch_size": 8}
    found = values_of(chosen)
    for holder in holders:
        found |= vars(make(holder, chosen, **here))
    for setting, value in settings_of(recipe).items():
        if setting not in ("fp16", "bf16"):
            is_here = found[find_setting(kind, setting).name]
            assert is_here == (float(value) if isinstance(is_here, float) else value), setting


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_a_recipe_trains_and_every_setting_lands(recipe, models, videos, tmp_path):
    model = models / recipe.stem.partition("_")[0]
    words = [str(videos), f"--output-dir={tmp_path / 'out'}", f"--model={model}", "--max-steps=2", "--device=cpu"]
    words += flags_of(CHANGED)
    trainer, _ = train(read(["train", "--recipe", str(recipe), *words, "--num-crops=1", "--num-clips=1"]))
    assert trainer.state.global_step == 2
    settings = settings_of(recipe) | CHANGED | {"num_clips": 1, "num_crops": 1}
    # See tests/data/test_clip_duration.py and test_kept_frames.py.
    assert settings.pop("clip_duration") == settings.pop("kept_frames_gib") == 0
    check_settings_land(trainer, settings, TrainSettings)
    processor = VideoClipProcessor.from_pretrained(tmp_path / "out")
    assert processor.num_frames == settings["num_frames"]
    assert trainer.args.learning_rate == pytest.approx(settings["base_learning_rate"] * 2 / 256)
    # Layer decay reaches the optimizer: the embeddings of a model with two blocks are three factors below the head.
    rates = [group["initial_lr"] for group in trainer.optimizer.param_groups]
    assert min(rates) == pytest.approx(max(rates) * settings["layer_decay"] ** 3)
    has_middle = len(set(rates)) > 2
    assert has_middle is (not settings.get("layer_decay_only"))


def test_the_protocol_of_the_recipe_is_saved_with_the_model(models, videos, tmp_path):
    recipe = write_recipe(tmp_path, "num_frames: 4", "num_clips: 2", "num_crops: 3", "max_steps: 1")
    words = [str(videos), f"--output-dir={tmp_path / 'out'}", "--image-size=32", "--device=cpu"]
    assert main(["train", "--recipe", str(recipe), *words, "--model", str(models / "videomae")]) == 0
    processor = VideoClipProcessor.from_pretrained(tmp_path / "out")
    assert (processor.num_clips, processor.num_crops) == (2, 3)
    checkpoint = VideoClipProcessor.from_pretrained(tmp_path / "out" / "checkpoint-1")
    assert (checkpoint.num_clips, checkpoint.num_crops) == (1, 1)


def test_a_published_recipe_is_known_by_its_name_unless_there_is_such_a_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert published_recipe("videomae_base_ssv2").samefile(FOLDER / "videomae_base_ssv2.yaml")
    assert read_recipe("videomae_base_ssv2") == read_recipe(published_recipe("videomae_base_ssv2"))
    assert is_recipe("videomae_base_ssv2") and not is_recipe("videomae_base") and not is_recipe("accelerate/fsdp2")
    assert is_recipe("malmm/msvd_qa") and not is_recipe("malmm") and not is_recipe("../recipes/videomae_base_ssv2")
    (tmp_path / "videomae_base_ssv2").mkdir()
    assert not is_recipe("videomae_base_ssv2")


def test_flags_go_before_the_recipe(models, videos, tmp_path):
    lines = ("epochs: 3", "learning_rate: 0.5", "weight_decay: 0.5", "base_learning_rate: 0.7", "max_steps: 1")
    recipe = write_recipe(tmp_path, *lines, f"data: {videos}", f"output_dir: {tmp_path / 'out'}", "image_size: 32")
    options = ["--epochs", "2", "--model", str(models / "videomae"), "--learning-rate=0.25", "--weight-decay=0.125"]
    trainer, _ = train(read(["train", "--recipe", str(recipe), *options, "--device=cpu"]))
    assert (trainer.args.num_train_epochs, trainer.args.learning_rate, trainer.args.weight_decay) == (2, 0.25, 0.125)


def test_a_run_from_a_recipe_is_resumed_with_its_settings(models, videos, tmp_path):
    lines = ("num_frames: 2", "image_size: 32", "epochs: 2", "mixup_alpha: 0.8", "ema_decay: 0.9", "batch_size: 4")
    recipe = write_recipe(tmp_path, *lines, f"data: {videos}")
    words = ["--recipe", str(recipe), "--model", str(models / "videomae"), "--device=cpu"]
    assert main(["train", *words, f"--output-dir={tmp_path / 'whole'}"]) == 0
    command = ["train", *words, f"--output-dir={tmp_path / 'parts'}"]
    trainer, _ = train(read([*command]))
    (tmp_path / "parts" / "model.safetensors").unlink()
    resumed, _ = train(read(["train", "--recipe", str(recipe), f"--output-dir={tmp_path / 'parts'}", "--resume"]))
    assert resumed.args.ema_decay == 0.9 and resumed.data_collator.mixing.mixup_alpha == 0.8
    weights = [AutoModelForVideoClassification.from_pretrained(tmp_path / name) for name in ("whole", "parts")]
    first, second = (model.state_dict() for model in weights)
    assert all((first[name] == second[name]).all() for name in first)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["mixup_alfa: 0.8"], "'mixup_alfa' is not a setting. Did you mean mixup_alpha?"),
        (["epochs: 3", "num_train_epochs: 4"], "num_train_epochs is given twice, once as num_train_epochs"),
        (["use_cpu: true"], "use_cpu is set by the option --device"),
        (["epochs: many"], "recipe.yaml: epochs is 'many'; a number above 0 is expected"),
        (["epochs: [3"], "cannot be read as YAML"),
        (["seed: 1", "seed: 2"], "recipe.yaml cannot be read as YAML: 'seed' is given twice"),
        (["extends: videomae_base_ssv3"], "Did you mean videomae_base_ssv2?"),
        (["extends: videomae_base_ssv2"], "which extends videomae_base_kinetics400 itself; one level is read"),
        (["- epochs"], "holds no settings"),
        (["epochs: 3"], "fine-tunes a model: say which with --model"),
    ],
)
def test_wrong_recipes_are_named_and_nothing_is_written(lines, message, digits, tmp_path, fails):
    recipe = write_recipe(tmp_path, *lines)
    model = [] if lines == ["epochs: 3"] else ["--model", tmp_path]
    assert message in fails("train", "--recipe", recipe, *model, str(digits), f"--output-dir={tmp_path / 'out'}")
    assert not (tmp_path / "out").exists()


def test_what_is_missing_is_named(tmp_path, fails):
    recipe = write_recipe(tmp_path, "epochs: 3")
    message = fails("train", "--recipe", "videomae_base_ssv3", "videos", "--output-dir", tmp_path / "out")
    assert "There is no recipe videomae_base_ssv3. Did you mean videomae_base_ssv2?" in message
    assert "The videos are missing: give DATA." in fails("train", "--recipe", recipe, "--output-dir", tmp_path / "out")
    assert "The output folder is missing: give --output-dir" in fails("train", "videos", "--recipe", recipe)


def write_recipe(folder, *lines):
    path = folder / "recipe.yaml"
    path.write_text("\n".join(lines))
    return path


def test_a_recipe_extends_another_one(tmp_path):
    (tmp_path / "base.yaml").write_text("epochs: 3\nseed: 1\nweight_decay: 0.1")
    recipe = write_recipe(tmp_path, "extends: base.yaml", "seed: 2", "weight_decay: null")
    assert read_recipe(recipe) == {"epochs": "3", "seed": "2"}
    recipe = write_recipe(tmp_path, "extends: videomae_base_kinetics400", "epochs: 3")
    assert read_recipe(recipe) == read_recipe("videomae_base_kinetics400") | {"epochs": "3"}


def test_mappings_and_empty_lists_are_read(tmp_path):
    recipe = write_recipe(
        tmp_path,
        "fsdp_config: {min_num_params: 2e3, limit_all_gathers: true, transformer_layer_cls_to_wrap: [A, {b: 1}]}",
        "layer_decay_only: []",
    )
    words = read_recipe(recipe)
    expected = {"min_num_params": 2000, "limit_all_gathers": True, "transformer_layer_cls_to_wrap": ["A", {"b": 1}]}
    assert json.loads(words["fsdp_config"]) == expected
    hint = find_setting(TrainSettings, "layer_decay_only").type
    assert read_value(hint, words["layer_decay_only"], "layer_decay_only") == []
