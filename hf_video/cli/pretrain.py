"""`hf-video pretrain`: masked pre-training on videos without labels."""

from __future__ import annotations

import argparse
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_video.loading.models import locate_model

from .command_line import add_flags
from .model_loading import load_model, masked_kind
from .output_folder import RunLock
from .processes import failing_together
from .run_settings import make
from .run_start import RunStart, add_start_options, start_run
from .train import RECIPES
from .training_data import readable_videos

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from hf_video.training import PreTrainer

DESCRIPTION = """\
Pre-train a VideoViT or a VideoMamba on your own videos, which need no labels. `hf-video train --model` fine-tunes the
result.

A VideoViT reconstructs the pixels of patches that a mask hides (VideoMAE; with decoder_mask_ratio VideoMAE V2). A
VideoMamba sees few patches and learns the features that --teacher, an image model, has for them.

DATA is one of these:
  a folder with videos at any depth; if it has train/, that alone
  a list of paths (CSV, .txt or JSON), a manifest, a pack or a data set, as for `hf-video train`; labels are not read
"""
EPILOG = f"""\
{RECIPES}
examples: hf-video pretrain my_videos --output-dir my_encoder --epochs 200
          hf-video pretrain my_videos --output-dir my_encoder --recipe pretraining/videomae_base_kinetics400
"""


def add_parser(commands: argparse._SubParsersAction) -> argparse.ArgumentParser:
    """Declares the command."""
    parser = commands.add_parser(
        "pretrain",
        help="pre-train an encoder on videos without labels",
        usage="hf-video pretrain DATA --output-dir DIR [--recipe NAME_OR_FILE] [options]",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(takes_several_processes=True)
    return parser


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declares its options."""
    from .command_settings import PRETRAIN

    add_start_options(parser)
    add_flags(parser, PRETRAIN, positional="data")


def run(args: argparse.Namespace) -> int:
    """Pre-trains, and prints the loss and where the model and its report are."""
    trainer, losses = pretrain(args)
    if trainer.is_world_process_zero():
        output_dir = trainer.args.output_dir
        print(f"loss {losses['first']:.4g} -> {losses['last']:.4g} on {losses['num_videos']} videos")
        print(f"model    {output_dir}\nreport   {Path(output_dir, 'report', 'report.md')}")
        if broken := losses.get("broken_videos"):
            print(f"{len(broken)} videos could not be read:", *broken, sep="\n  ")
        print(f"go on    hf-video train LABELLED_VIDEOS --model {output_dir} --output-dir DIR")
    return 0


def pretrain(args: argparse.Namespace) -> tuple[PreTrainer, dict[str, Any]]:
    """Checks settings and data before anything is written, pre-trains, and writes model and report into the output
    folder. Gives the trainer and the contents of `losses.json`."""
    with RunLock() as lock:
        return _pretrain(args, lock)


def _pretrain(args: argparse.Namespace, lock: RunLock) -> tuple[PreTrainer, dict[str, Any]]:
    start = start_run(args, lock)
    values = start.values

    from transformers import set_seed

    from hf_video.data import ClipAugmentation, ClipDataset, load_unlabelled_videos
    from hf_video.training import PreTrainer, PreTrainingArguments
    from hf_video.training.arguments import check_optimization
    from hf_video.training.pretraining import check_masks

    from .settings import MaskedScratchSettings

    with failing_together():
        start.check_not_from_scratch(MaskedScratchSettings)
        arguments = make(PreTrainingArguments, values | start.of_this_machine())
        augmentation = make(ClipAugmentation, values)
        set_seed(arguments.seed)
        data = load_unlabelled_videos(start.source, video_root=values["video_root"])
        start.check_data(data)
        model, processor = _load(start)
        check_masks(model, arguments)
        check_optimization(arguments, model)
    data, broken = readable_videos(data, values["on_error"])
    with failing_together():
        start.begin_writing()
    trainer = PreTrainer(
        model=model,
        args=arguments,
        train_dataset=ClipDataset(
            data["train"],
            processor,
            training=True,
            seed=arguments.seed,
            augmentation=augmentation,
            on_error=values["on_error"],
        ),
        processing_class=processor,
    )
    with start.train(trainer):
        trainer.save_model()
        return trainer, _report(trainer, values, broken)


def _load(start: RunStart) -> tuple[PreTrainedModel, Any]:
    """The model with its teacher, and its processor."""
    from hf_video.models.videomamba.pretraining_videomamba import VideoMambaTeacher

    from .settings import MaskedScratchSettings

    values, teacher = start.values, _load_teacher(start.values["teacher"])
    if values["model"] is None and values["family"] == "videomamba":
        of_decoder = [each.name for each in fields(MaskedScratchSettings) if each.name.startswith("decoder_")]
        for name in ("num_attention_heads", "intermediate_size", *of_decoder):
            if start.given.value(name) is not None:
                raise ValueError(f"{name} is of a VideoViT, and a VideoMamba has none: leave it out.")
    channels = None if teacher is None else VideoMambaTeacher(teacher).num_features
    # Training takes one view of a video.
    kind = masked_kind(values, channels)
    model, processor = load_model(values | {"num_clips": 1, "num_crops": 1}, kind, start.checkpoint)
    network: Any = model
    if teacher is not None:
        if not hasattr(network, "set_teacher"):
            raise ValueError("A VideoViT learns from pixels, without a teacher: leave out --teacher.")
        network.set_teacher(teacher)
    return model, processor


def _load_teacher(name: str | None) -> PreTrainedModel | None:
    if name is None:
        return None
    from transformers import AutoModel

    from hf_video.loading.configurations import loading

    name = locate_model(name, "--teacher")
    # The masks are drawn by the attention, which only the eager implementation returns.
    with loading(name):
        return AutoModel.from_pretrained(name, attn_implementation="eager", dtype="float32")


def _report(trainer: PreTrainer, values: dict[str, Any], broken: list[str]) -> dict[str, Any]:
    from accelerate.utils import gather_object

    from hf_video.training.pretraining import write_pretraining_report

    broken = sorted({*broken, *gather_object(trainer.train_dataset.broken_videos())})
    if not trainer.is_world_process_zero():
        return {}
    processor = trainer.processing_class
    return write_pretraining_report(
        Path(trainer.args.output_dir, "report"),
        trainer,
        details={
            "model": values["model"] or f"{type(trainer.model).__name__} from scratch",
            "clip": f"{processor.num_frames} frames, {processor.sampling_strategy}",
            "epochs": trainer.args.num_train_epochs,
            "seed": trainer.args.seed,
            **({"broken_videos": broken} if broken else {}),
        },
    )
