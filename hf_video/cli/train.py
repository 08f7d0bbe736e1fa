"""`hf-video train`: from a folder of labelled videos to a model that `from_pretrained` loads."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_video.files import replace_file, replace_text, replacing_files

from .model_loading import choose_device, load_model
from .option_types import VIDEO_ROOT_HELP, fraction, non_negative_int, open_fraction, positive_float, positive_int
from .output_folder import (
    LOCK_FILE,
    OPTIONS_FILE,
    RunLock,
    clear_leftovers,
    is_leftover,
    last_checkpoint,
    move_aside,
    require_fresh,
    require_ours,
    saying_what_was_kept,
)
from .processes import check_processes
from .run_settings import (
    DEFAULTS,
    SCRATCH_DEFAULTS,
    merge_options,
    read_settings,
)
from .training_data import check_same_data, describe_data, load_data, readable_videos, training_splits

if TYPE_CHECKING:
    from datasets import Dataset

    from hf_video.data import ClipAugmentation, ClipMixing
    from hf_video.training import VideoTrainer, VideoTrainingArguments

# Those of hf_video.processing.clip_sampling and hf_video.data.clip_dataset, spelled out because help must not wait for
# their imports.
SAMPLING_STRATEGIES = ("dense", "strided", "uniform", "sparse", "linspace")
ON_ERROR = ("error", "skip", "replace")

DESCRIPTION = """\
Fine-tune a video classifier, or train a small VideoViT from scratch, on your own labelled videos.

DATA is a folder of class folders (DATA/<class>/<video>), such folders inside train/, validation/ and test/, or CSV
files with the columns path,label[,start,end], or path,labels with any number of classes a video (run;jump); or a data
set of the `datasets` library with a column of videos, by its folder or its name on the Hub (USER/NAME); or a recipe, a
YAML file of settings or the name of a published one, which says where the data are or leaves it to data=...
Checkpoints are chosen on the validation split; without one, videos are held out from the training split. A test split
is used once, at the end, for the report.
"""
EPILOG = """\
Any setting can be given by a word `name=value`: the options above, the fields of transformers.TrainingArguments, of
VideoTrainingArguments (layer_decay, ema_decay, lora_rank, linear_probe, freeze_layers, distillation_teacher ...), of
ClipAugmentation (rand_augment_num_ops, horizontal_flip ...) and of ClipMixing (mixup_alpha, cutmix_alpha ...), such
as report_to=tensorboard. A recipe has the same names, one line `name: value` each; words and options change its
settings.

examples: hf-video train my_videos --output-dir my_model --model MCG-NJU/videomae-base --epochs 10 weight_decay=0.1
          hf-video train recipes/videomae_base_kinetics400.yaml data=my_videos output_dir=my_model model=converted
"""


def add_parser(commands: argparse._SubParsersAction) -> argparse.ArgumentParser:
    """Declares the command. Options that are not given stay out of the namespace: `--resume` fills them otherwise."""
    parser = commands.add_parser(
        "train",
        help="train a video classifier on your videos",
        usage="hf-video train DATA|RECIPE.yaml --output-dir DIR [options] [name=value ...]",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        argument_default=argparse.SUPPRESS,
    )
    parser.set_defaults(takes_words=True, takes_several_processes=True)
    parser.add_argument("data", metavar="DATA", help="labelled videos, or a recipe")
    parser.add_argument("--output-dir", metavar="DIR", help="for the model, checkpoints and report")
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
    for name, rate_type, text in (
        ("drop-path-rate", fraction, "largest rate of stochastic depth"),
        ("classifier-dropout", fraction, "dropout before the head"),
        ("classifier-init-scale", positive_float, "factor on the first weights of a fresh head"),
    ):
        model.add_argument(f"--{name}", type=rate_type, metavar="X", help=f"{text}; default: the model's")
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
        help=f"videos a step on each process; default {DEFAULTS['batch_size']}",
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
    training.add_argument("--video-root", metavar="DIR", help=VIDEO_ROOT_HELP)
    training.add_argument(
        "--on-error",
        choices=ON_ERROR,
        help="a video that cannot be read: stop, leave it out, or train on another one in its place; default error",
    )
    for name, text in (("num-clips", "clips of a video"), ("num-crops", "crops of a clip")):
        training.add_argument(
            f"--{name}", type=positive_int, metavar="N", help=f"{text} in the report and wherever the model is used"
        )
    return parser


def run(args: argparse.Namespace) -> int:
    """Trains, and says where the model and its report are."""
    from hf_video.metrics import measured_in

    trainer, metrics = train(args)
    if trainer.is_world_process_zero():
        output_dir = trainer.args.output_dir
        metric, value = measured_in(metrics)[0]
        print(f"{metric.title} {metric.text(value, digits=1)} on {metrics['num_videos']} {metrics['split']} videos")
        print(f"model    {output_dir}\nreport   {Path(output_dir, 'report', 'report.md')}")
        if broken := metrics.get("broken_videos"):
            print(f"{len(broken)} videos could not be read:", *broken, sep="\n  ")
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
    with RunLock() as lock:
        return _train(args, lock)


def _train(args: argparse.Namespace, lock: RunLock) -> tuple[VideoTrainer, dict[str, Any]]:
    args = read_settings(args)
    given = vars(args)
    resume, overwrite = given.get("resume", False), given.get("overwrite_output_dir", False)
    output_dir = Path(args.output_dir).expanduser().absolute()
    if resume and overwrite:
        raise ValueError("--resume continues a run, --overwrite-output-dir starts one afresh: choose one of them.")
    if overwrite:
        _check_none_inside([args.data], output_dir)
    if (overwrite and output_dir.is_dir()) or (output_dir / LOCK_FILE).exists():
        lock.take(output_dir)
    checkpoint = last_checkpoint(output_dir) if resume else None
    if checkpoint is not None:
        from hf_video.training.checkpoints import require_resumable

        lock.take(output_dir)
        require_resumable(checkpoint)
        require_ours(output_dir)
    elif not overwrite:
        require_fresh(output_dir, is_leftover)
    options, words = merge_options(given, output_dir / OPTIONS_FILE if resume else None)
    saved_data = options.pop("data", None)

    from transformers import ProgressCallback, set_seed
    from transformers.utils.logging import disable_progress_bar

    from hf_video.data import ClipDataset, MixingCollator, collate_clips, is_multi_label
    from hf_video.data.labels import label_ids
    from hf_video.training import VideoTrainer, parameter_settings
    from hf_video.training.bounds import check_optimization
    from hf_video.training.callbacks import EpochLineCallback
    from hf_video.training.checkpoints import is_secret
    from hf_video.training.distillation import make_distillation

    device = choose_device(options["device"])
    arguments, augmentation, mixing = _read_fields(options, words, output_dir, on_cpu=device.type == "cpu")
    set_seed(arguments.seed)
    check_processes(arguments.world_size)
    if arguments.lora_rank and options["model"] is None:
        raise ValueError("lora_rank adapts a trained model: say which with --model.")
    # Checkpoints of adapters have no model in them; the trainer loads them into the one that they began with.
    saved_model = None if arguments.lora_rank else checkpoint
    data, class_names = load_data(args.data, saved_model or options["model"], options["video_root"])
    described = describe_data(args.data, data, class_names)
    check_same_data(described, saved_data)
    if overwrite:
        files = (split["video"] for split in data.values() if "bytes" not in split.column_names)
        _check_none_inside(chain(*files), output_dir)
    problem_type = "multi_label_classification" if is_multi_label(data["train"]) else "single_label_classification"
    arguments.check_problem_type(problem_type)
    arguments.check_metric(problem_type, len(class_names))
    model, processor = load_model(options, class_names, problem_type, saved_model)
    model = _choose_weights(model, arguments)
    # For its errors: the optimizer is made when the folder is written.
    parameter_settings(
        model,
        layer_decay=arguments.layer_decay,
        layer_decay_only=arguments.layer_decay_only,
        no_weight_decay=arguments.no_weight_decay,
    )
    check_optimization(arguments, model)
    distillation = make_distillation(arguments, model, processor)
    data, broken = readable_videos(data, options["on_error"])
    train_split, validation_split = training_splits(data, options)
    for name, split in {**data, "validation": validation_split}.items():
        if not any(label_ids(split)):
            raise ValueError(f"No video of the {name} split has a class, so nothing can be measured on it.")
    # A batch counts clips, of which evaluation takes several from each video.
    eval_clips = arguments.per_device_eval_batch_size
    _set_eval_batch_size(arguments, processor, eval_clips)
    if arguments.process_index == 0:
        if overwrite:
            lock.release()
            move_aside(output_dir)
        output_dir.mkdir(parents=True, exist_ok=True)
        lock.take(output_dir)
        if checkpoint is None:
            require_fresh(output_dir, is_leftover)
            clear_leftovers(output_dir)
        kept_words = [word for word in words if not is_secret(word.partition("=")[0])]
        saved = json.dumps({**options, "words": kept_words, "data": described}, indent=2) + "\n"
        replace_text(output_dir / OPTIONS_FILE, saved)

    on_error = options["on_error"]
    trainer = VideoTrainer(
        model=model,
        args=arguments,
        train_dataset=ClipDataset(
            train_split, processor, training=True, seed=arguments.seed, augmentation=augmentation, on_error=on_error
        ),
        eval_dataset=ClipDataset(
            validation_split, processor, training=False, on_error=_without_replacement(on_error)
        ).drop_broken(),
        data_collator=MixingCollator(mixing, len(class_names), arguments.label_smoothing_factor)
        if mixing.is_on
        else collate_clips,
        processing_class=processor,
        distillation=distillation,
    )
    if not arguments.disable_tqdm:
        trainer.remove_callback(ProgressCallback)
        trainer.add_callback(EpochLineCallback())
    if checkpoint is not None:
        if trainer.is_world_process_zero():
            _find_best_checkpoint(checkpoint, output_dir)
        trainer.accelerator.wait_for_everyone()
    disable_progress_bar()  # that of writing each checkpoint; the trainer has its own
    with saying_what_was_kept(output_dir):
        trainer.train(resume_from_checkpoint=checkpoint and str(checkpoint))
        _finish_model(trainer, options, eval_clips)
        trainer.save_model()
        return trainer, _report(trainer, options, data.get("test"), broken)


def _read_fields(
    options: dict[str, Any], words: list[str], output_dir: Path, on_cpu: bool
) -> tuple[VideoTrainingArguments, ClipAugmentation, ClipMixing]:
    from hf_video.training.arguments import parse_arguments
    from hf_video.training.recipes import FIELD_KINDS

    arguments, augmentation, mixing = parse_arguments(
        words,
        FIELD_KINDS,
        output_dir=str(output_dir),
        num_train_epochs=options["epochs"],
        per_device_train_batch_size=options["batch_size"],
        per_device_eval_batch_size=options["batch_size"],
        learning_rate=options["learning_rate"],
        seed=options["seed"],
        use_cpu=on_cpu,
        dataloader_num_workers=options["num_workers"],
        dataloader_pin_memory=not on_cpu,
    )
    return arguments, augmentation, mixing


def _choose_weights(model: Any, arguments: VideoTrainingArguments) -> Any:
    """The model with what is not to be trained frozen, and adapters or a probe where they are asked for."""
    from hf_video.training import add_lora, freeze_layers, make_linear_probe

    freeze_layers(model, arguments.freeze_layers)
    if arguments.linear_probe:
        make_linear_probe(model)
    return add_lora(model, arguments.lora_rank, arguments.lora_alpha) if arguments.lora_rank else model


def _check_none_inside(paths: Iterable[str], output_dir: Path) -> None:
    for path in paths:
        if Path(path).expanduser().resolve().is_relative_to(output_dir.resolve()):
            raise ValueError(f"{path}, to train on, lies inside --output-dir ({output_dir}), which would be renamed.")


def _set_eval_batch_size(arguments: VideoTrainingArguments, processor: Any, clips: int) -> None:
    """Makes batches of as many videos as have so many clips, at least one."""
    arguments.per_device_eval_batch_size = max(1, clips // (processor.num_clips * processor.num_crops))


def _find_best_checkpoint(checkpoint: Path, output_dir: Path) -> None:
    """Lets a state name the best checkpoint where it is, although the folder was moved since the state was saved."""
    from transformers import TrainerState

    file = checkpoint / "trainer_state.json"
    state = TrainerState.load_from_json(str(file))
    moved = output_dir / Path(state.best_model_checkpoint or "").name
    if state.best_model_checkpoint not in (None, str(moved)) and moved.is_dir():
        state.best_model_checkpoint = str(moved)
        replace_file(file, lambda path: state.save_to_json(str(path)))


def _finish_model(trainer: VideoTrainer, options: dict[str, Any], eval_clips: int) -> None:
    """Makes the model one that `from_pretrained` loads, with the views of its final evaluation."""
    from hf_video.training import to_plain_model

    if trainer.args.lora_rank and trainer.is_world_process_zero():
        with replacing_files(Path(trainer.args.output_dir, "adapter")) as folder:
            trainer.model.save_pretrained(folder)
    trainer.model = trainer.model_wrapped = to_plain_model(trainer.accelerator.unwrap_model(trainer.model))
    processor = trainer.processing_class
    for name in ("num_clips", "num_crops"):
        if options[name] is not None:
            setattr(processor, name, options[name])
    _set_eval_batch_size(trainer.args, processor, eval_clips)


def _without_replacement(on_error: str) -> str:
    return "skip" if on_error == "replace" else on_error


def _report(
    trainer: VideoTrainer, options: dict[str, Any], test_split: Dataset | None, broken: list[str]
) -> dict[str, Any]:
    from accelerate.utils import gather_object

    from hf_video.data import ClipDataset
    from hf_video.training import write_report
    from hf_video.training.loading import class_names_of
    from hf_video.training.report import clip_reader

    processor, dataset, split = trainer.processing_class, trainer.eval_dataset, "validation"
    if test_split is not None:
        dataset = ClipDataset(test_split, processor, training=False, on_error=trainer.eval_dataset.on_error)
        dataset, split = dataset.drop_broken(), "test"
    prediction = trainer.predict(dataset)
    datasets = (trainer.train_dataset, trainer.eval_dataset, dataset)
    broken = sorted({*broken, *gather_object([path for used in datasets for path in used.broken_videos()])})
    if not trainer.is_world_process_zero():
        return {}
    return write_report(
        Path(trainer.args.output_dir, "report"),
        scores=prediction.predictions,
        labels=prediction.label_ids,
        class_names=class_names_of(trainer.model.config),
        log_history=trainer.state.log_history,
        split=split,
        clip_of=clip_reader(dataset, len(prediction.label_ids), broken),
        details={
            "model": options["model"] or "VideoViT from scratch",
            "training_videos": len(trainer.train_dataset),
            "clip": f"{processor.num_frames} frames, {processor.sampling_strategy}",
            "epochs": trainer.args.num_train_epochs,
            "seed": trainer.args.seed,
            **({"broken_videos": broken} if broken else {}),
        },
    )
