"""`hf-video train`: trains a video classifier on labelled videos."""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_video.io import replacing_files

from .command_line import add_flags
from .model_loading import classifier_kind, load_model
from .output_folder import RunLock
from .processes import failing_together, is_first_process
from .run_settings import make
from .run_start import add_start_options, start_run
from .training_data import load_data, readable_videos, training_splits

if TYPE_CHECKING:
    from datasets import Dataset

    from hf_video.training import VideoTrainer, VideoTrainingArguments

DESCRIPTION = """\
Fine-tune a video classifier, or train a small VideoViT from scratch, on your own labelled videos.

DATA is one of these:
  a folder of class folders (DATA/<class>/<video>), or such folders inside train/, validation/ and test/
  CSV files with the columns path,label[,start,end], or path,labels with any number of classes a video (run;jump)
  a data set of the `datasets` library with a column of videos: its folder, or its name on the Hub (USER/NAME)
  a manifest of `hf-video inspect --output`: no video is opened before the first step (with --quick, a hundred at most)

Checkpoints are chosen on the validation split. If there is none, videos are held out from the training split. A test
split is used once, at the end, for the report.
"""
RECIPES = """\
--help-all lists every setting; each field of transformers.TrainingArguments is one. A recipe is a YAML file with lines
`name: value`, or the name of a published one. A flag replaces the value in the recipe.
"""
EPILOG = f"""\
{RECIPES}
examples: hf-video train my_videos --output-dir my_model --model MCG-NJU/videomae-base --epochs 10 --weight-decay 0.1
          hf-video train my_videos --output-dir my_model --model converted --recipe videomae_base_kinetics400
"""


def add_parser(commands: argparse._SubParsersAction) -> argparse.ArgumentParser:
    """Declares the command."""
    parser = commands.add_parser(
        "train",
        help="train a video classifier on your videos",
        usage="hf-video train DATA --output-dir DIR [--recipe NAME_OR_FILE] [options]",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(takes_several_processes=True)
    return parser


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declares its options."""
    from .command_settings import TRAIN

    add_start_options(parser)
    add_flags(parser, TRAIN, positional="data")


def run(args: argparse.Namespace) -> int:
    """Trains, and prints where the model and its report are."""
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
    """Checks settings and data before anything is written, trains, and writes model and report into the output folder.
    Gives the trainer, with the best model, and the contents of `metrics.json`."""
    with RunLock() as lock:
        return _train(args, lock)


def _train(args: argparse.Namespace, lock: RunLock) -> tuple[VideoTrainer, dict[str, Any]]:
    start = start_run(args, lock)
    values, checkpoint = start.values, start.checkpoint

    from transformers import set_seed

    from hf_video.data import ClipAugmentation, ClipDataset, ClipMixing, MixingCollator, collate_clips, is_multi_label
    from hf_video.data.columns import label_ids
    from hf_video.training import VideoTrainer, VideoTrainingArguments, parameter_settings
    from hf_video.training.arguments import check_optimization
    from hf_video.training.losses import make_distillation

    from .settings import ScratchSettings

    with failing_together():
        if start.given.recipe and args.resume != "must" and values["model"] is None:
            raise ValueError("A recipe fine-tunes a model: say which with --model, a folder or a name on the Hub.")
        start.check_not_from_scratch(ScratchSettings)
        values["per_device_eval_batch_size"] = (
            values["per_device_eval_batch_size"] or values["per_device_train_batch_size"]
        )
        arguments = make(VideoTrainingArguments, values | start.of_this_machine())
        augmentation, mixing = make(ClipAugmentation, values), make(ClipMixing, values)
        set_seed(arguments.seed)
        if arguments.lora_rank and values["model"] is None:
            raise ValueError("lora_rank adapts a trained model: say which with --model.")
        # A checkpoint of adapters holds no model. The trainer loads the adapters into the model that they were made
        # for.
        saved_model = None if arguments.lora_rank else checkpoint
        data, class_names = load_data(start.source, saved_model or values["model"], values["video_root"])
        start.check_data(data, class_names)
        problem_type = "multi_label_classification" if is_multi_label(data["train"]) else "single_label_classification"
        arguments.check_problem_type(problem_type)
        arguments.check_metric(problem_type, len(class_names))
        kind = classifier_kind(values, class_names, problem_type)
        model, processor = load_model(values, kind, saved_model, partial(_check_memory, arguments))
        model = _choose_weights(model, arguments)
        # This call is for its errors alone: the optimizer is made after the folder is begun.
        parameter_settings(
            model,
            layer_decay=arguments.layer_decay,
            layer_decay_only=arguments.layer_decay_only,
            no_weight_decay=arguments.no_weight_decay,
        )
        check_optimization(arguments, model)
        distillation = make_distillation(arguments, model, processor)
    data, broken = readable_videos(data, values["on_error"])
    with failing_together():
        train_split, validation_split = training_splits(data, values)
        for name, split in {**data, "validation": validation_split}.items():
            if not any(label_ids(split)):
                raise ValueError(f"No video of the {name} split has a class, so nothing can be measured on it.")
        # The batch size counts clips. Evaluation may take several clips from each video.
        eval_clips = arguments.per_device_eval_batch_size
        _set_eval_batch_size(arguments, processor, eval_clips)
        start.begin_writing()

    on_error = values["on_error"]
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
    with start.train(trainer):
        _finish_model(trainer, values, eval_clips)
        trainer.save_model()
        return trainer, _report(trainer, values, data.get("test"), broken)


def _check_memory(arguments: VideoTrainingArguments, config: Any, processor: Any) -> None:
    """Says what a clip and the training take, and refuses what is far beyond the memory. The share of a process in
    sharded weights is unknown."""
    from hf_video.training.training_memory import check_memory, estimate_memory

    if arguments.fsdp or arguments.deepspeed:
        return
    needed = estimate_memory(config, processor, arguments, partial(_choose_weights, arguments=arguments))
    if needed is not None:
        sentence = check_memory(needed, arguments.device)
        if is_first_process():
            print(sentence, flush=True)


def _choose_weights(model: Any, arguments: VideoTrainingArguments) -> Any:
    """The model with frozen layers, and with a linear probe or adapters, as the arguments say."""
    from hf_video.training import add_lora, freeze_layers, make_linear_probe

    freeze_layers(model, arguments.freeze_layers)
    if arguments.linear_probe:
        make_linear_probe(model)
    return add_lora(model, arguments.lora_rank, arguments.lora_alpha) if arguments.lora_rank else model


def _set_eval_batch_size(arguments: VideoTrainingArguments, processor: Any, clips: int) -> None:
    """Sets the evaluation batch size to the number of videos that have `clips` clips, at least one."""
    arguments.per_device_eval_batch_size = max(1, clips // (processor.num_clips * processor.num_crops))


def _finish_model(trainer: VideoTrainer, values: dict[str, Any], eval_clips: int) -> None:
    """Merges adapters or a probe into a plain model, and sets the views of its final evaluation. A sharded model has
    neither, and its weights stay where they are until it is saved."""
    from hf_video.training import to_plain_model

    if trainer.args.lora_rank and trainer.is_world_process_zero():
        with replacing_files(Path(trainer.args.output_dir, "adapter")) as folder:
            trainer.model.save_pretrained(folder)
    if not trainer.is_sharded:
        trainer.model = trainer.model_wrapped = to_plain_model(trainer.accelerator.unwrap_model(trainer.model))
    processor = trainer.processing_class
    for name in ("num_clips", "num_crops"):
        if values[name] is not None:
            setattr(processor, name, values[name])
    _set_eval_batch_size(trainer.args, processor, eval_clips)


def _without_replacement(on_error: str) -> str:
    return "skip" if on_error == "replace" else on_error


def _report(
    trainer: VideoTrainer, values: dict[str, Any], test_split: Dataset | None, broken: list[str]
) -> dict[str, Any]:
    from accelerate.utils import gather_object

    from hf_video.data import ClipDataset
    from hf_video.loading.class_names import class_names_of
    from hf_video.training import write_report
    from hf_video.training.evaluation import clip_reader

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
            "model": values["model"] or "VideoViT from scratch",
            "training_videos": len(trainer.train_dataset),
            "clip": f"{processor.num_frames} frames, {processor.sampling_strategy}",
            "epochs": trainer.args.num_train_epochs,
            "seed": trainer.args.seed,
            **({"broken_videos": broken} if broken else {}),
        },
    )
