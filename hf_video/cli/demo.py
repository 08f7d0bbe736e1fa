"""`hf-video demo`: writes videos, trains, evaluates, saves and reloads, in a few minutes on a CPU."""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from . import train
from .command_line import add_flags, parse

if TYPE_CHECKING:
    pass

TRAIN_OPTIONS = ["--validation-fraction", "0.05", "--device", "cpu", "--num-workers", "1"]
VIDEOVIT_OPTIONS = ["--num-frames", "8", "--image-size", "48", "--patch-size", "8", "--hidden-size", "128"]
VIDEOVIT_OPTIONS += ["--num-hidden-layers", "4", "--num-attention-heads", "4", "--batch-size", "16"]
VIDEOVIT_OPTIONS += ["--learning-rate", "1e-3"]
VIDEOMAMBA_OPTIONS = ["--batch-size", "32", "--learning-rate", "4e-3"]
VIDEOMAMBA_SIZES = {"num_frames": 8, "image_size": 24, "patch_size": 8, "tubelet_size": 2, "hidden_size": 64}
VIDEOMAMBA_SIZES |= {"num_hidden_layers": 4, "state_size": 8}
HELD_OUT_GOALS = {"videovit": 0.98, "videomamba": 0.95}
SHUFFLED_LIMIT = 0.225


def add_parser(commands: argparse._SubParsersAction) -> argparse.ArgumentParser:
    """Declares the command."""
    return commands.add_parser(
        "demo",
        help="see it work: write videos, train, evaluate, save and reload, in a few minutes on a CPU",
        description="Write videos of moving handwritten digits, train a small model on them, measure it on "
        "held-out digits and on shuffled frames, and check that a new process loads back exactly the same model.",
    )


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declares its options."""
    from .command_settings import DEMO

    add_flags(parser, DEMO, positional="folder")


def run(args: argparse.Namespace) -> int:
    """Prints what it does, step by step. The exit code is 1 if a check fails."""
    from hf_video.demo import compare, describe, describe_elsewhere, shuffled_accuracy, write_moving_digits

    begin = time.monotonic()
    folder = Path(args.folder)
    digits, model_dir = folder / "digits", folder / "model"

    print("1. Videos: digits move around a square, and only the order of the frames tells the class.")
    write_moving_digits(digits, **({"train_per_class": 4, "test_per_class": 2} if args.fast else {}))

    words = ["train", str(digits), "--output-dir", str(model_dir), *TRAIN_OPTIONS]
    words += VIDEOVIT_OPTIONS if args.model == "videovit" else _start_from_videomamba(folder / "untrained", digits)
    words += ["--epochs", "1" if args.fast else "16"]
    words += ["--overwrite-output-dir"] if model_dir.exists() else []
    # An environment need not be activated.
    program = "hf-video" if shutil.which("hf-video") else f"{sys.executable} -m hf_video.cli"
    print(f"\n2. Training: {program} {' '.join(words)}")
    try:
        trainer, report = train.train(parse(words, {"train": train}))
    except KeyboardInterrupt as interrupt:
        # A training speaks of --resume, which this command does not have.
        raise type(interrupt)("Run the same command again: it starts from the beginning.") from None

    print("\n3. The same model on clips with shuffled frames.")
    shuffled = shuffled_accuracy(trainer, digits)

    print("\n4. A new process loads the model with AutoModelForVideoClassification.from_pretrained.")
    trained = describe(trainer.model, trainer.processing_class, digits)
    checks = compare(trained, describe_elsewhere(model_dir, digits))
    if not args.fast:
        accuracy, goal = report["top1_accuracy"], HELD_OUT_GOALS[args.model]
        checks[f"held-out digits: {accuracy:.1%}, the goal is {goal:.0%}"] = accuracy >= goal
        checks[f"shuffled frames: {shuffled:.1%}, where guessing gives 12.5%"] = shuffled <= SHUFFLED_LIMIT
    for text, passed in checks.items():
        print(f"   {'ok    ' if passed else 'FAILED'}  {text}")

    print(f"""
Done in {time.monotonic() - begin:.0f} s.
   videos  {digits}
   model   {model_dir}
   report  {model_dir / "report" / "report.md"}

Ask the model for the class of a video:
   {program} predict {trained["video"]} --model {model_dir}

Your own videos, one folder a class:
   {program} train my_videos --output-dir my_model
   {program} evaluate my_videos --model my_model
   {program} predict a_video.mp4 --model my_model""")
    return 0 if all(checks.values()) else 1


def _start_from_videomamba(folder: Path, digits: Path) -> list[str]:
    """Saves a small VideoMamba with random weights and the classes of the digits. Returns the words that train it."""
    from transformers import set_seed

    from hf_video import VideoClipProcessor, VideoMambaConfig, VideoMambaForVideoClassification
    from hf_video.data import load_video_dataset
    from hf_video.loading.clip_size import input_size

    set_seed(0)
    names = load_video_dataset(digits)["train"].features["label"].names
    config = VideoMambaConfig(
        **VIDEOMAMBA_SIZES,
        id2label=dict(enumerate(names)),
        label2id={name: index for index, name in enumerate(names)},
    )
    VideoMambaForVideoClassification(config).save_pretrained(folder)
    processor = VideoClipProcessor(
        num_frames=config.num_frames, sampling_strategy="uniform", **input_size(config.image_shape)
    )
    processor.save_pretrained(folder)
    return ["--model", str(folder), *VIDEOMAMBA_OPTIONS]
