"""What the originals' own files say about each recipe, with file and line.

`tests/fixtures/original_recipes.json` has the flags of the originals' scripts: for each script and flag the value, as
it is written there, and the number of its line; null where only the value is known. `defaults` has the flags that a
script leaves out. Nothing here is read from our recipes.

`python -m tests.training.original_recipes` prints a table: recipe, setting, value of the original, ours, source.
"""

import json
import re
import shlex
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from hf_video.training.recipes import published_recipe
from hf_video.training.values import choose_values, read_named, values_of
from tests.cli.flags import read

TABLE = json.loads((Path(__file__).parents[1] / "fixtures" / "original_recipes.json").read_text())
MAE, MAE2, MAMBA, MALMM = "MCG-NJU/VideoMAE", "OpenGVLab/VideoMAEv2", "OpenGVLab/VideoMamba", "boheumd/MA-LMM"
FINE_TUNING = {MAE: "", MAE2: "", MAMBA: "videomamba/video_sm/"}


class Original(NamedTuple):
    """A value of the original in our terms, and where it stands."""

    value: Any
    source: str


def _mae(data: str, size: str, pretraining: str) -> tuple[str, str]:
    return MAE, f"scripts/{data}/videomae_vit_{size}_patch16_224_tubemasking_ratio_{pretraining}/finetune.sh"


# The scripts of each recipe, and of each other setting that it describes.
SCRIPTS: dict[tuple[str, str], tuple[str, str]] = {
    ("videomae_v2_giant_kinetics710", ""): (MAE2, "ViT-g, Kinetics-710"),
    ("videomae_v2_giant_ucf101", ""): (MAE2, "ViT-g, Kinetics-710 to UCF101"),
    ("videomae_v2_giant_ucf101", "HMDB51 from the model of Kinetics-710"): (MAE2, "ViT-g, Kinetics-710 to HMDB51"),
    ("videomamba_tiny_lvu", ""): (MAMBA, "videomamba/video_sm/exp/lvu/run_class.sh"),
}
for _size in ("base", "small", "large", "huge"):
    SCRIPTS[f"videomae_{_size}_kinetics400", ""] = _mae("kinetics", _size, "0.9_epoch_1600")
SCRIPTS["videomae_base_800e_kinetics400", ""] = _mae("kinetics", "base", "0.9_epoch_800")
SCRIPTS["videomae_base_ssv2", ""] = _mae("ssv2", "base", "0.9_epoch_2400")
SCRIPTS["videomae_base_800e_ssv2", ""] = _mae("ssv2", "base", "0.9_epoch_800")
SCRIPTS["videomae_small_ssv2", ""] = _mae("ssv2", "small", "0.9_epoch_2400")
SCRIPTS["videomae_base_ucf101", ""] = _mae("ucf101", "base", "0.75_epoch_3200")
for _data in (400, 600):
    _what = f"Kinetics-{_data} from the model of Kinetics-710"
    SCRIPTS["videomae_v2_giant_kinetics400", _what] = (MAE2, "ViT-g, Kinetics-710 to 400")
for _size, _letter in {"base": "B", "large": "L", "huge": "H", "giant": "g"}.items():
    for _data, _title in {"kinetics400": "Kinetics-400", "ssv2": "SSV2"}.items():
        SCRIPTS[f"videomae_v2_{_size}_{_data}", ""] = (MAE2, f"ViT-{_letter}, {_title}")
_FRAMES = {"kinetics400": (8, 16, 32, 64), "ssv2": (8, 16), "breakfast": (32, 64), "coin": (32, 64)}
_LARGER = {"kinetics400": (64, 384), "ssv2": (16, 288)}
for _size in ("tiny", "small", "middle", "middle_masked"):
    for _data, _counts in _FRAMES.items():
        _folder = f"{_data.replace('kinetics400', 'k400')}/videomamba_{_size.removesuffix('ed')}"
        _scripts = {"" if number == _counts[0] else f"{number} frames": f"f{number}x224" for number in _counts}
        if _data in _LARGER:
            _count, _pixels = _LARGER[_data]
            _what = f"{_count} frames of {_pixels} pixels, from the model of {_count} frames"
            _scripts[_what] = f"f{_count}x224to{_pixels}"
        for _what, _name in _scripts.items():
            _script = f"videomamba/video_sm/exp/{_folder}/run_{_name}.sh"
            SCRIPTS[f"videomamba_{_size}_{_data}", _what] = (MAMBA, _script)
# Configuration and script of MA-LMM's data sets.
MALMM_FILES = {
    **{name: (f"cls_{name}.yaml", f"{name}/train.sh") for name in ("breakfast", "coin", "lvu")},
    **{f"{name}_qa": (f"qa_{name}.yaml", f"{name}/train_qa.sh") for name in ("msrvtt", "msvd")},
    **{f"{name}_caption": (f"cap_{name}.yaml", f"{name}/train_cap.sh") for name in ("msrvtt", "msvd")},
    "activitynet_qa": ("qa_activitynet.yaml", "activitynet/train.sh"),
    "youcook2_caption": ("cap_youcook2.yaml", "youcook2/train.sh"),
}
# Where a script contradicts its own name and the model that it belongs to.
CORRECTED = {
    ("videomamba_tiny_ssv2", "16 frames of 288 pixels, from the model of 16 frames", "num_frames"): Original(
        16, "videomamba/video_sm/MODEL_ZOO.md, and the name of the script; in it 64"
    ),
}
# Settings in which a recipe differs from its original, on purpose. Each recipe says so.
DIFFERENCES = {
    (f"malmm/{name}", "metric_for_best_model"): "The original keeps the epoch with the largest sum of CIDEr"
    for name in ("msrvtt_caption", "msvd_caption", "youcook2_caption")
}


class Flags:
    """The flags of a script, or else their defaults. `[name]` is the text; `where(name, ...)` the file and line."""

    def __init__(self, repository: str, script: str):
        self.script, self.flags = script, TABLE["scripts"][repository][script]
        self.defaults = TABLE["defaults"].get(repository, {})
        self.default_file = f"{FINE_TUNING.get(repository, '')}run_class_finetuning.py"
        if repository == MAE2:
            self.script = f"scripts/finetune ({script})"

    def __contains__(self, name: str) -> bool:
        return name in self.flags

    def __getitem__(self, name: str) -> str:
        return (self.flags.get(name) or self.defaults[name])[0]

    def where(self, *names: str) -> str:
        places = []
        for name in names:
            file, flags = (self.script, self.flags) if name in self.flags else (self.default_file, self.defaults)
            places.append(f"{file}:{line}" if (line := flags[name][1]) else f"{file}, {name}")
        return " / ".join(dict.fromkeys(places))


def classifier_originals(recipe: str, what: str) -> dict[str, Original]:
    """The settings of `hf-video train` that a script of VideoMAE, VideoMAE V2 or VideoMamba describes."""
    repository, script = SCRIPTS[recipe, what]
    flags, is_mamba = Flags(repository, script), repository == MAMBA
    found: dict[str, Original] = {}

    def take(name: str, *names: str, convert: Any = float) -> None:
        found[name] = Original(convert(*(flags[each] for each in names)), flags.where(*names))

    def fixed(name: str, value: Any, source: str) -> None:
        found[name] = Original(value, source)

    whole = {"num_frames": "num_frames", "image_size": "input_size", "num_augmentations": "num_sample"}
    whole |= {
        "num_clips": "test_num_segment",
        "num_crops": "test_num_crop",
        "per_device_train_batch_size": "batch_size",
    }
    whole |= {"gradient_accumulation_steps": "update_freq"} if "update_freq" in flags else {}
    for name, flag in whole.items():
        take(name, flag, convert=int)
    numbers = {"drop_path_rate": "drop_path", "num_train_epochs": "epochs", "warmup_epochs": "warmup_epochs"}
    numbers |= {"erasing_prob": "reprob", "mixup_alpha": "mixup", "cutmix_alpha": "cutmix"}
    numbers |= {"cutmix_prob": "mixup_switch_prob", "label_smoothing_factor": "smoothing"}
    numbers |= {"layer_decay": "layer_decay", "weight_decay": "weight_decay", "adam_epsilon": "opt_eps"}
    for name, flag in numbers.items():
        take(name, flag)
    is_ssv2 = flags["data_set"] == "SSV2"
    sparse = "sparse" if is_mamba else "strided"
    of_ssv2 = "padded_tsn" if repository == MAE2 else "tsn"
    take("sampling_strategy", "data_set", convert=lambda name: of_ssv2 if name == "SSV2" else sparse)
    take("horizontal_flip", "data_set", convert=lambda name: name != "SSV2")
    if not is_mamba and not is_ssv2:
        take("frame_sampling_rate", "sampling_rate", convert=int)

    if not is_mamba:
        take("classifier_dropout", "head_drop_rate" if repository == MAE2 else "fc_drop_rate")
        if repository == MAE:
            take("classifier_init_scale", "init_scale")
        else:
            fixed("classifier_init_scale", 0.001, "run_class_finetuning.py, --init_scale")

    fixed("clip_duration", 0.0, "kinetics.py, ssv2.py and lvu.py, __getitem__: a row is a sample")
    fixed("kept_frames_gib", 0.0, "every item decodes its video")
    fixed("dataloader_drop_last", True, "run_class_finetuning.py, data_loader_train")
    if is_mamba:
        # run_class_finetuning.py multiplies the rate by the augmented samples of a video.
        take("base_learning_rate", "lr", "num_sample", convert=lambda rate, samples: float(rate) * int(samples))
        fixed("lr_scheduler_type", "cosine_warmup_with_min_lr", "utils.py, cosine_scheduler with start_warmup_value")
        names = ("warmup_lr", "min_lr", "lr")
    else:
        take("base_learning_rate", "lr")
        fixed("lr_scheduler_type", "cosine_with_min_lr", "utils.py, cosine_scheduler without start_warmup_value")
        names = ("min_lr", "lr")
    shares = {f"{name}_rate": float(flags[name]) / float(flags["lr"]) for name in names[:-1]}
    found["lr_scheduler_kwargs"] = Original(shares, flags.where(*names))

    if is_mamba:
        reached = ["patch_embeddings", "cls_token", "position_embeddings"]
        fixed("layer_decay_only", reached, "optim_factory.py, get_num_layer_for_vit finds no layers.N")
        spared = ["cls_token", "position_embeddings", "temporal_position_embeddings"]
        fixed("no_weight_decay", spared, "models/videomamba.py, no_weight_decay")
    else:
        fixed("no_weight_decay", ["position_embeddings", "cls_token"], "modeling_finetune.py, no_weight_decay")
    take("adam_beta1", "opt_betas", convert=lambda betas: float(betas.split()[0]))
    take("adam_beta2", "opt_betas", convert=lambda betas: float(betas.split()[1]))
    take("max_grad_norm", "clip_grad", convert=lambda norm: 0.0 if norm == "none" else float(norm))
    if is_mamba:
        take("bf16", "bf16", convert=lambda _: True)
        take("load_best_model_at_end", "test_best", convert=lambda _: True)
        fixed("metric_for_best_model", "top1_accuracy", "run_class_finetuning.py, max_accuracy")
    else:
        take("fp16", "enable_deepspeed", convert=lambda _: True)
        fixed("load_best_model_at_end", False, "run_class_finetuning.py, final_test after the last epoch")
    if "use_checkpoint" in flags:
        take("activation_checkpointing", "use_checkpoint", convert=lambda _: True)

    fixed("crop_min_area", 0.08, "kinetics.py and ssv2.py, _aug_frame")
    for name, letter in {"num_ops": "n", "magnitude": "m", "magnitude_std": "mstd"}.items():
        pattern = rf"(?:^|-){letter}([\d.]+)(?:-|$)"
        take(f"rand_augment_{name}", "aa", convert=lambda text, form=pattern: float(re.search(form, text)[1]))
    return found | {name: value for (*key, name), value in CORRECTED.items() if key == [recipe, what]}


def answer_originals(recipe: str) -> dict[str, Original]:
    """The settings of `hf-video train-answers` that the files of MA-LMM for a data set describe."""
    yaml, script = MALMM_FILES[recipe]
    config, flags = Flags(MALMM, f"lavis/projects/malmm/{yaml}"), Flags(MALMM, f"run_scripts/{script}")
    kind, model = yaml.partition("_")[0], "lavis/models/blip2_models/blip2_vicuna_instruct.py"
    found = {
        "sampling_strategy": Original("linspace", "lavis/datasets/datasets, __getitem__"),
        "lr_by_epoch": Original(True, f"{config.where('lr_sched')} / lavis/common/optims.py"),
        "lr_scheduler_type": Original("cosine_warmup_with_min_lr", config.where("lr_sched")),
        "adam_beta1": Original(0.9, "lavis/runners/runner_base.py:126"),
        "adam_beta2": Original(0.999, "lavis/runners/runner_base.py:121"),
        "kept_frames_gib": Original(0.0, "lavis/datasets/datasets: every item decodes its video"),
        "dataloader_drop_last": Original(True, "lavis/runners/runner_base.py, create_loaders"),
        "max_grad_norm": Original(0.0, "lavis/tasks/base_task.py, _train_inner_loop clips nothing"),
        "max_target_length": Original(256, f"{model}:37"),
        "max_length": Original(128, f"{model}:36"),
        "length_penalty": Original(0.0 if kind == "qa" else 1.0, f"{model}, predict_answers and generate"),
        "repetition_penalty": Original(1.5, f"{model}, generate"),
        "crop_min_area": Original(0.5, "lavis/processors/blip_processors.py, Blip2VideoTrainProcessor"),
        "horizontal_flip": Original(True, "lavis/processors/blip_processors.py, Blip2VideoTrainProcessor"),
        "load_best_model_at_end": Original(True, "lavis/runners/runner_base.py, evaluate"),
    }
    if kind == "cap":
        found["metric_for_best_model"] = Original(
            "CIDEr + BLEU-4 + METEOR + ROUGE-L", "lavis/tasks/captioning.py, _report_metrics_video_caption"
        )
    else:
        task = "classification.py, _report_metrics_cls" if kind == "cls" else "vqa.py, _report_metrics_vqa"
        found["predict_with_generate"] = Original(True, f"lavis/tasks/{task}")
        found["metric_for_best_model"] = Original("top1", f"lavis/tasks/{task}")
        found["num_return_sequences"] = Original(int(flags["num_beams"]), flags.where("num_beams"))
    if recipe in ("msrvtt_qa", "msvd_qa"):
        found["first_words"] = Original(True, "lavis/tasks/vqa.py, _report_metrics_vqa")
    prompts = {
        "breakfast": Original("what type of breakfast is shown in the video?", "breakfast_cls_datasets.py:72"),
        "coin": Original("what is the activity in the video?", "coin_cls_datasets.py:75"),
        "lvu": Original("what is the {} of the movie?", "lvu_cls_datasets.py:78"),
    }
    found["prompt"] = prompts[recipe] if kind == "cls" else Original(config["prompt"], config.where("prompt"))
    if kind == "cls":
        found["max_length"] = Original(int(config["max_txt_len"]), config.where("max_txt_len"))

    def take(name: str, source: Flags, flag: str, convert: Any = float) -> None:
        found[name] = Original(convert(source[flag]), source.where(flag))

    for name in ("num_frames", "memory_bank_length", "seed", "num_beams"):
        take(name, flags, name, int)
    take("num_train_epochs", flags, "max_epoch")
    take("per_device_train_batch_size", flags, "batch_size_train", int)
    take("gradient_accumulation_steps", flags, "accum_grad_iters", int)
    take("learning_rate", flags, "init_lr")
    for name in ("warmup_steps", "weight_decay"):
        take(name, config, name)
    take("fp16", config, "amp", lambda text: text == "True")
    # The original counts the first token of the text.
    take("max_new_tokens", config, "max_len", lambda text: int(text) - 1)
    take("min_new_tokens", config, "min_len", lambda text: int(text) - 1)
    peak = float(flags["init_lr"])
    shares = {"warmup_lr_rate": float(config["warmup_lr"]) / peak, "min_lr_rate": float(config["min_lr"]) / peak}
    where = f"{config.where('warmup_lr', 'min_lr')} / {flags.where('init_lr')}"
    return found | {"lr_scheduler_kwargs": Original(shares, where)}


def originals(recipe: str, what: str = "") -> dict[str, Original]:
    """What the original has for each setting of a recipe, or of another setting that its comments describe."""
    if recipe.startswith("malmm/"):
        return answer_originals(recipe.removeprefix("malmm/"))
    return classifier_originals(recipe, what)


def described(recipe: str) -> dict[str, list[str]]:
    """The other settings that the comments of a recipe describe, and the words for each."""
    lines = re.findall(r"^#   (.*): [\d.]+%, (--.*)$", published_recipe(recipe).read_text(), re.MULTILINE)
    return {what: shlex.split(words) for what, words in lines}


def ours(recipe: str, words: list[str] = ()) -> tuple[dict[str, Any], set[str]]:
    """The values of a run with a recipe, and the names that the recipe and the words give."""
    command = "train-answers" if recipe.startswith("malmm/") else "train"
    with tempfile.TemporaryDirectory() as folder:
        settings = read([command, "--recipe", recipe, "d", "--model=m", f"--output-dir={folder}/out", *words])
    names = read_named(settings).values.keys() - {"data", "model", "output_dir"}
    values = values_of(choose_values(settings))
    return values | {"lr_scheduler_kwargs": json.loads(values["lr_scheduler_kwargs"])}, names


def main() -> None:
    keys = [*SCRIPTS, *((f"malmm/{name}", "") for name in MALMM_FILES)]
    print("| recipe | setting | original | ours | source |\n| --- | --- | --- | --- | --- |")
    for recipe, what in sorted(keys):
        values, _ = ours(recipe, described(recipe)[what] if what else [])
        for name, original in originals(recipe, what).items():
            title = f"{recipe}: {what}" if what else recipe
            print(f"| {title} | {name} | {original.value} | {values[name]} | {original.source} |")


if __name__ == "__main__":
    main()
