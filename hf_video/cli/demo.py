"""`hf-video demo`: writes videos, trains, evaluates, saves and reloads, in a few minutes on a CPU."""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import train
from .command_line import add_flags, parse

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from hf_video.processing import VideoClipProcessor
    from hf_video.training import VideoTrainer

TRAIN_OPTIONS = ["--validation-fraction", "0.05", "--device", "cpu", "--num-workers", "1"]
VIDEOVIT_OPTIONS = ["--num-frames", "8", "--image-size", "48", "--patch-size", "8", "--hidden-size", "128"]
VIDEOVIT_OPTIONS += ["--num-hidden-layers", "4", "--num-attention-heads", "4", "--batch-size", "16"]
VIDEOVIT_OPTIONS += ["--learning-rate", "1e-3"]
VIDEOMAMBA_OPTIONS = ["--batch-size", "32", "--learning-rate", "4e-3"]
VIDEOMAMBA_SIZES = {"num_frames": 8, "image_size": 24, "patch_size": 8, "tubelet_size": 2, "hidden_size": 64}
VIDEOMAMBA_SIZES |= {"num_hidden_layers": 4, "state_size": 8}
HELD_OUT_GOALS = {"videovit": 0.98, "videomamba": 0.95}
SHUFFLED_LIMIT = 0.225
# Memory is aligned differently in each process, which changes the order of sums in a matrix product.
LOGITS_TOLERANCE = 1e-6
NUM_COMPARED_VIDEOS = 4


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
    from hf_video.data import write_moving_digits

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
    shuffled = _shuffled_accuracy(trainer, digits)

    print("\n4. A new process loads the model with AutoModelForVideoClassification.from_pretrained.")
    trained = describe(trainer.model, trainer.processing_class, digits)
    checks = _compare(trained, _describe_elsewhere(model_dir, digits))
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


def _shuffled_accuracy(trainer: VideoTrainer, digits: Path) -> float:
    """The top-1 accuracy on the held-out digits if the frames of every clip are in random order."""
    import numpy as np
    from torch.utils.data import Dataset

    from hf_video.data import ClipDataset, load_video_dataset
    from hf_video.metrics import top_k_accuracy
    from hf_video.training import evaluate_dataset

    class ShuffledFrames(Dataset):
        def __init__(self, clips: ClipDataset) -> None:
            self.clips = clips

        def __len__(self) -> int:
            return len(self.clips)

        def __getitem__(self, index: int) -> dict[str, Any]:
            item = self.clips[index]
            order = np.random.default_rng(index).permutation(item["pixel_values"].shape[1])
            return {**item, "pixel_values": item["pixel_values"][:, order]}

    clips = ClipDataset(load_video_dataset(digits)["test"], trainer.processing_class, training=False)
    return top_k_accuracy(*evaluate_dataset(trainer.model, ShuffledFrames(clips), batch_size=32))


def _describe_elsewhere(model_dir: Path, digits: Path) -> dict[str, Any]:
    command = [sys.executable, "-m", "hf_video.cli.demo", str(model_dir), str(digits)]
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode:
        raise OSError(f"A new process could not load the model:\n{result.stderr}")
    return json.loads(result.stdout.splitlines()[-1])


def _compare(trained: dict[str, Any], loaded: dict[str, Any]) -> dict[str, bool]:
    """Whether each comparison holds, by a text that describes it."""
    import numpy as np

    logits = np.array(trained["logits"])
    difference = np.abs(logits - loaded["logits"]).max() / max(1, np.abs(logits).max())
    best = max(trained["scores"])
    return {
        "the loaded weights are the trained ones, bit by bit": loaded["weights"] == trained["weights"],
        "the accuracy is the same": loaded["top1_accuracy"] == trained["top1_accuracy"],
        f"logits differ by {difference:.0e} at most": difference <= LOGITS_TOLERANCE,
        'pipeline("video-classification") gives the same score': abs(loaded["pipeline"]["score"] - best) <= 1e-5,
    }


def describe(model: PreTrainedModel, processor: VideoClipProcessor, digits: str | Path) -> dict[str, Any]:
    """Accuracy on the held-out digits, logits of some of them, and a digest of all weights, as plain values."""
    import torch

    from hf_video.data import ClipDataset, collate_clips, load_video_dataset
    from hf_video.inference.feature_key import weights_digest
    from hf_video.loading.classifiers import class_names_of
    from hf_video.metrics import top_k_accuracy
    from hf_video.training import evaluate_dataset

    split = load_video_dataset(digits, labels=class_names_of(model.config))["test"]
    dataset = ClipDataset(split, processor, training=False)
    scores, labels = evaluate_dataset(model, dataset, batch_size=32, progress=False)
    clips = collate_clips([dataset[index] for index in range(NUM_COMPARED_VIDEOS)])["pixel_values"]
    with torch.inference_mode():
        logits = model(clips).logits
    return {
        "top1_accuracy": top_k_accuracy(scores, labels),
        "logits": logits.tolist(),
        "scores": scores[0].tolist(),
        "video": split[0]["video"],
        "weights": weights_digest(model.state_dict()),
    }


def main(model_dir: str, digits: str) -> None:
    """Loads a model as any user of Transformers would, and prints what `describe` and the pipeline return."""
    from transformers import AutoModelForVideoClassification, AutoVideoProcessor, pipeline

    model = AutoModelForVideoClassification.from_pretrained(model_dir)
    description = describe(model, AutoVideoProcessor.from_pretrained(model_dir), digits)
    classify = pipeline("video-classification", model=model_dir, device="cpu")
    description["pipeline"] = classify(description["video"], top_k=1)[0]
    print(json.dumps(description))


if __name__ == "__main__":
    main(*sys.argv[1:])
