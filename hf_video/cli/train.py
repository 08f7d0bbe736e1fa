"""`hf-video train`: from a folder of labelled videos to a model that `from_pretrained` loads."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .option_types import non_negative_int, open_fraction, positive_float, positive_int
from .output_folder import last_checkpoint, move_aside, require_fresh
from .trained_model import choose_device, locate_model

if TYPE_CHECKING:
    from datasets import Dataset, DatasetDict
    from transformers import PreTrainedModel

    from hf_video.processing import VideoClipProcessor
    from hf_video.training import VideoTrainer, VideoTrainingArguments

# Those of hf_video.processing.clip_sampling, spelled out because help must not wait for its imports.
SAMPLING_STRATEGIES = ("dense", "strided", "uniform", "sparse", "linspace")

OPTIONS_FILE = "train_options.json"

DEFAULTS: dict[str, Any] = {
    "model": None,
    "num_frames": None,
    "frame_sampling_rate": None,
    "sampling_strategy": None,
    "image_size": None,
    "patch_size": 16,
    "tubelet_size": 2,
    "hidden_size": 192,
    "num_hidden_layers": 6,
    "num_attention_heads": 3,
    "epochs": 20,
    "batch_size": 8,
    "learning_rate": None,
    "seed": 42,
    "device": "auto",
    "num_workers": 0,
    "validation_fraction": 0.2,
}
# What a model from scratch gets where nothing is said; with --model these follow the model.
SCRATCH_DEFAULTS = {"num_frames": 16, "frame_sampling_rate": 4, "sampling_strategy": "uniform", "image_size": 112}
SCRATCH_ONLY = ("patch_size", "tubelet_size", "hidden_size", "num_hidden_layers", "num_attention_heads")
# A resumed run with another value of these would be another run, or would validate on videos it was trained on.
FIXED_ON_RESUME = ("model", *SCRATCH_DEFAULTS, *SCRATCH_ONLY, "seed", "validation_fraction")
# Fields that more than the trainer depends on.
WORDS_WITH_OPTIONS = {
    "output_dir": "--output-dir",
    "resume_from_checkpoint": "--resume",
    "seed": "--seed",
    "use_cpu": "--device",
}

DESCRIPTION = """\
Fine-tune a video classifier, or train a small VideoViT from scratch, on your own labelled videos.

DATA is a folder of class folders (DATA/<class>/<video>), such folders inside train/, validation/ and test/, or CSV
files with the columns path,label[,start,end]. Checkpoints are chosen on the validation split; without one, videos are
held out from the training split. A test split is used once, at the end, for the report.
"""
EPILOG = """\
Any other field of transformers.TrainingArguments is set by a word `name=value`, such as weight_decay=0.1 bf16=true
gradient_accumulation_steps=4.

example: hf-video train my_videos --output-dir my_model --model MCG-NJU/videomae-base --epochs 10 weight_decay=0.1
"""


def add_parser(commands: argparse._SubParsersAction) -> argparse.ArgumentParser:
    """Declares the command. Options that are not given stay out of the namespace: `--resume` fills them otherwise."""
    parser = commands.add_parser(
        "train",
        help="train a video classifier on your videos",
        usage="hf-video train DATA --output-dir DIR [options] [name=value ...]",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        argument_default=argparse.SUPPRESS,
    )
    parser.set_defaults(takes_words=True)
    parser.add_argument("data", metavar="DATA", help="folder or CSV file of labelled videos")
    parser.add_argument("--output-dir", required=True, metavar="DIR", help="for the model, checkpoints and report")
    parser.add_argument("--resume", action="store_true", help="continue an interrupted run, with the options it had")
    parser.add_argument(
        "--overwrite-output-dir",
        action="store_true",
        help="start afresh although DIR has files; it is renamed to DIR.backup-1 (-2, ...), nothing is deleted",
    )

    model = parser.add_argument_group("model")
    model.add_argument("--model", help="model folder or Hub name to fine-tune; default: a small VideoViT from scratch")
    for name, type_, text in (
        ("num-frames", positive_int, "frames in a clip"),
        ("frame-sampling-rate", positive_int, "distance between two frames of a dense or strided clip"),
        ("image-size", positive_int, "height and width of a clip in pixels"),
    ):
        default = SCRATCH_DEFAULTS[name.replace("-", "_")]
        model.add_argument(f"--{name}", type=type_, metavar="N", help=f"{text}; default: the model's, or {default}")
    model.add_argument(
        "--sampling-strategy",
        choices=SAMPLING_STRATEGIES,
        help="how frames are chosen: dense and strided keep a distance, the others cover the whole video; "
        f"default: the model's, or {SCRATCH_DEFAULTS['sampling_strategy']}",
    )
    for name, text in (
        ("patch-size", "pixels on a side of a patch"),
        ("tubelet-size", "frames in a patch"),
        ("hidden-size", "width of a token"),
        ("num-hidden-layers", "number of layers"),
        ("num-attention-heads", "attention heads of a layer"),
    ):
        default = DEFAULTS[name.replace("-", "_")]
        model.add_argument(
            f"--{name}", type=positive_int, metavar="N", help=f"from scratch only: {text}; default {default}"
        )

    training = parser.add_argument_group("training")
    training.add_argument("--epochs", type=positive_float, metavar="N", help=f"default {DEFAULTS['epochs']}")
    training.add_argument(
        "--batch-size",
        type=positive_int,
        metavar="N",
        help=f"videos a step; default {DEFAULTS['batch_size']}",
    )
    training.add_argument(
        "--learning-rate", type=positive_float, metavar="X", help="peak; default 1e-4, or 1e-3 from scratch"
    )
    training.add_argument("--seed", type=non_negative_int, metavar="N", help=f"default {DEFAULTS['seed']}")
    training.add_argument(
        "--device", choices=("auto", "cpu", "cuda", "mps"), help="default auto: an accelerator if there is one"
    )
    training.add_argument(
        "--num-workers", type=non_negative_int, metavar="N", help="processes that read videos; default 0: the main one"
    )
    training.add_argument(
        "--validation-fraction",
        type=open_fraction,
        metavar="X",
        help="share of each class held out where DATA has no validation split; "
        f"default {DEFAULTS['validation_fraction']}",
    )
    return parser


def run(args: argparse.Namespace) -> int:
    """Trains, and says where the model and its report are."""
    trainer, metrics = train(args)
    if trainer.is_world_process_zero():
        output_dir = trainer.args.output_dir
        print(f"top-1 accuracy {metrics['top1_accuracy']:.1%} on {metrics['num_videos']} {metrics['split']} videos")
        print(f"model    {output_dir}\nreport   {Path(output_dir, 'report', 'report.md')}")
        print(f"try it   hf-video predict VIDEO --model {output_dir}")
    return 0


def train(args: argparse.Namespace) -> tuple[VideoTrainer, dict[str, Any]]:
    """Checks everything that can be wrong, trains, and writes model and report into the output folder.

    Args:
        args: parsed options of the command.

    Returns:
        The trainer, with the best model, and the contents of the report's `metrics.json`.

    Raises:
        ValueError, OSError: the data, the model, the output folder or an option is wrong; nothing was written.
        KeyboardInterrupt: on Ctrl-C, with a message that says which checkpoint is kept.
    """
    given = vars(args)
    resume, overwrite = given.get("resume", False), given.get("overwrite_output_dir", False)
    output_dir = Path(args.output_dir).expanduser().absolute()
    if resume and overwrite:
        raise ValueError("--resume continues a run, --overwrite-output-dir starts one afresh: choose one of them.")
    if overwrite and Path(args.data).expanduser().absolute().is_relative_to(output_dir):
        raise ValueError(f"DATA ({args.data}) lies inside --output-dir ({output_dir}), which would be renamed.")
    checkpoint = last_checkpoint(output_dir) if resume else None
    if not resume and not overwrite:
        require_fresh(output_dir, expected=(OPTIONS_FILE,))
    options, words = _merge_options(given, output_dir / OPTIONS_FILE if resume else None)

    from transformers import ProgressCallback, set_seed
    from transformers.utils.logging import disable_progress_bar

    from hf_video.data import ClipDataset
    from hf_video.training import VideoTrainer
    from hf_video.training.callbacks import EpochLineCallback
    from hf_video.training.report import replace_file

    device = choose_device(options["device"])
    set_seed(options["seed"])
    arguments = _training_arguments(options, words, output_dir, pin_memory=device.type != "cpu")
    data, class_names = _load_data(args.data, checkpoint or options["model"])
    train_split, validation_split = _training_splits(data, options)
    model, processor = _load_model(options, class_names, checkpoint)
    if arguments.process_index == 0:
        if not resume:
            _check_videos(data)
        if overwrite:
            move_aside(output_dir)
        output_dir.mkdir(parents=True, exist_ok=True)
        saved = json.dumps({**options, "words": words}, indent=2) + "\n"
        replace_file(output_dir / OPTIONS_FILE, lambda path: path.write_text(saved, encoding="utf-8"))

    trainer = VideoTrainer(
        model=model,
        args=arguments,
        train_dataset=ClipDataset(train_split, processor, training=True, seed=arguments.seed),
        eval_dataset=ClipDataset(validation_split, processor, training=False),
        processing_class=processor,
    )
    if not arguments.disable_tqdm:
        trainer.remove_callback(ProgressCallback)
        trainer.add_callback(EpochLineCallback())
    disable_progress_bar()  # that of writing each checkpoint; the trainer has its own
    try:
        trainer.train(resume_from_checkpoint=checkpoint and str(checkpoint))
        trainer.save_model()
        return trainer, _report(trainer, options, data.get("test"))
    except KeyboardInterrupt:
        raise KeyboardInterrupt(_what_was_kept(output_dir)) from None


def _merge_options(given: dict[str, Any], saved_file: Path | None) -> tuple[dict[str, Any], list[str]]:
    """Defaults, below the options of the run being resumed, below those given; and the `name=value` words."""
    options = {name: given[name] for name in DEFAULTS if name in given}
    words = given["words"]
    if "model" in options:
        options["model"] = locate_model(options["model"])
    if saved_file is not None:
        saved = json.loads(saved_file.read_text(encoding="utf-8"))
        words = list({word.partition("=")[0]: word for word in (*saved.pop("words"), *words)}.values())
        for name in FIXED_ON_RESUME:
            if name in options and options[name] != saved[name]:
                raise ValueError(
                    f"--{name.replace('_', '-')} {options[name]} differs from the run being resumed ({saved[name]}). "
                    "Leave it out, or train into another folder."
                )
        return saved | options, words
    if "model" in options:
        wrong = [name for name in SCRATCH_ONLY if name in options]
        if wrong:
            raise ValueError(f"--{wrong[0].replace('_', '-')} is for a model from scratch, not for --model.")
        return DEFAULTS | {"learning_rate": 1e-4} | options, words
    return DEFAULTS | SCRATCH_DEFAULTS | {"learning_rate": 1e-3} | options, words


def _training_arguments(
    options: dict[str, Any], words: list[str], output_dir: Path, pin_memory: bool
) -> VideoTrainingArguments:
    from hf_video.training.arguments import parse_training_arguments

    for name, option in WORDS_WITH_OPTIONS.items():
        if any(word.startswith(f"{name}=") for word in words):
            raise ValueError(f"{name}=... is set by the option {option}.")
    return parse_training_arguments(
        words,
        output_dir=str(output_dir),
        num_train_epochs=options["epochs"],
        per_device_train_batch_size=options["batch_size"],
        per_device_eval_batch_size=options["batch_size"],
        learning_rate=options["learning_rate"],
        seed=options["seed"],
        use_cpu=options["device"] == "cpu",
        dataloader_num_workers=options["num_workers"],
        dataloader_pin_memory=pin_memory,
    )


def _load_data(data: str, model: str | Path | None) -> tuple[DatasetDict, list[str]]:
    """The splits and the class names by id: those of the model if it knows the same classes, else sorted."""
    from hf_video.data import load_video_dataset

    splits = load_video_dataset(data)
    if "train" not in splits:
        raise ValueError(f"{data} has no training split, only {', '.join(splits)}. Add train/ or train.csv.")
    names = splits["train"].features["label"].names
    if model is not None:
        from transformers import AutoConfig

        from hf_video.training.loading import class_names_of

        known = class_names_of(AutoConfig.from_pretrained(model))
        if sorted(known) == sorted(names):
            return load_video_dataset(data, labels=known), known
    return splits, names


def _training_splits(data: DatasetDict, options: dict[str, Any]) -> tuple[Dataset, Dataset]:
    from hf_video.data import hold_out

    if "validation" in data:
        return data["train"], data["validation"]
    return hold_out(data["train"], options["validation_fraction"], options["seed"])


def _load_model(
    options: dict[str, Any], class_names: list[str], checkpoint: Path | None
) -> tuple[PreTrainedModel, VideoClipProcessor]:
    from hf_video.processing import VideoClipProcessor
    from hf_video.training.loading import input_size, load_classifier, load_processor, set_input_size

    if checkpoint is not None:
        model = load_classifier(checkpoint, class_names, dtype="float32")
        return model, load_processor(checkpoint, model.config)

    sampling = {name: options[name] for name in ("num_frames", "frame_sampling_rate", "sampling_strategy")}
    if options["model"] is not None:
        model = load_classifier(options["model"], class_names, dtype="float32")
        set_input_size(model, image_size=options["image_size"], num_frames=options["num_frames"])
        size = {} if options["image_size"] is None else input_size(options["image_size"])
        return model, load_processor(options["model"], model.config, **sampling, **size)

    from huggingface_hub.errors import StrictDataclassError

    from hf_video.models.videovit import VideoViTConfig, VideoViTForVideoClassification

    try:
        config = VideoViTConfig(
            **{name: options[name] for name in ("num_frames", "image_size", *SCRATCH_ONLY)},
            intermediate_size=4 * options["hidden_size"],
            id2label=dict(enumerate(class_names)),
            label2id={name: index for index, name in enumerate(class_names)},
        )
    except StrictDataclassError as error:
        raise ValueError(f"These sizes make no model: {error.__cause__ or error}") from error
    processor = VideoClipProcessor(**sampling, **input_size(options["image_size"]))
    return VideoViTForVideoClassification(config), processor


def _check_videos(data: DatasetDict) -> None:
    """Opens every video, so that a broken one is found before training, not in the middle of it."""
    from tqdm.auto import tqdm

    from hf_video.processing import VideoReadError, probe_video

    broken = []
    starts: dict[str, float] = {}
    for split in data.values():
        for row in split:
            starts[row["video"]] = max(starts.get(row["video"], 0.0), row["start"] or 0.0)
    for video, start in tqdm(starts.items(), desc="Checking videos"):
        try:
            duration = probe_video(video).duration
        except VideoReadError as error:
            broken.append(str(error))
            continue
        if duration and start >= duration:
            broken.append(f"{video}: a segment starts at {start:g} s, the video ends at {duration:g} s")
    if broken:
        listed = "\n  ".join(broken[:5] + (["..."] if len(broken) > 5 else []))
        raise ValueError(f"{len(broken)} videos cannot be read; repair them or take them out of the data:\n  {listed}")


def _report(trainer: VideoTrainer, options: dict[str, Any], test_split: Dataset | None) -> dict[str, Any]:
    from hf_video.data import ClipDataset
    from hf_video.training import write_report
    from hf_video.training.loading import class_names_of

    processor, dataset, split = trainer.processing_class, trainer.eval_dataset, "validation"
    if test_split is not None:
        dataset, split = ClipDataset(test_split, processor, training=False), "test"
    prediction = trainer.predict(dataset)
    if not trainer.is_world_process_zero():
        return {}
    return write_report(
        Path(trainer.args.output_dir, "report"),
        scores=prediction.predictions,
        labels=prediction.label_ids,
        class_names=class_names_of(trainer.model.config),
        log_history=trainer.state.log_history,
        split=split,
        details={
            "model": options["model"] or "VideoViT from scratch",
            "training_videos": len(trainer.train_dataset),
            "clip": f"{processor.num_frames} frames, {processor.sampling_strategy}",
            "epochs": trainer.args.num_train_epochs,
            "seed": trainer.args.seed,
        },
    )


def _what_was_kept(output_dir: Path) -> str:
    try:
        kept = last_checkpoint(output_dir)
    except ValueError:
        return "There was no checkpoint yet, so nothing of the training is kept."
    return f"{kept} is kept; run the same command with --resume to continue from it."
