"""`hf-video train`: trains a video classifier on labelled videos, a video-text model on captions, or a detector of
persons and their actions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hf_video.training.settings import (
    TrainDetectionSettings,
    TrainFrameSettings,
    TrainRetrievalSettings,
    TrainSettings,
)

from .command import Command

DESCRIPTION = """\
Fine-tune a video classifier on your own labelled videos: the one that --model names, or the start, a small VideoViT
that ships. A size, or more clips than the start suits, makes a VideoViT with random weights; so does --model scratch.

DATA is one of these:
  a folder of class folders (DATA/<class>/<video>), or such folders inside train/, validation/ and test/
  CSV files with the columns path,label[,start,end], or path,labels with any number of classes a video (run;jump)
  Parquet files or WebDataset tars with paths or whole videos, or a data set of the Hub (USER/NAME)
  the Parquet file of `hf-video inspect --output`: no video is opened before the first step
  with --task retrieval: rows of video,caption (.csv, .json, .jsonl, a folder of such files, a data set), and --model
  with --task frames: rows of path,label,start,end, segments of long videos
  with --task detection: rows of video,second,x1,y1,x2,y2,action,person (.csv, folder, data set), and --model

Checkpoints are chosen on the validation split, or else on held-out videos. A test split is used once, for the report.
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


TASKS = {
    "classification": TrainSettings,
    "frames": TrainFrameSettings,
    "detection": TrainDetectionSettings,
    "retrieval": TrainRetrievalSettings,
}


def run(settings: Any) -> int:
    """Trains, and prints where the model and its report are."""
    from hf_video.training import assess, train

    if isinstance(settings, TrainRetrievalSettings):
        return _run_retrieval(settings)
    if isinstance(settings, TrainDetectionSettings):
        return _run_detection(settings)
    if isinstance(settings, TrainFrameSettings):
        return _run_frames(settings)
    trainer, metrics = train(settings)
    if trainer.is_world_process_zero():
        output_dir = trainer.args.output_dir
        print(*assess(metrics), sep="\n")
        print(f"model    {output_dir}\nreport   {Path(output_dir, 'report', 'report.md')}")
        if broken := metrics.get("broken_videos"):
            print(f"{len(broken)} videos could not be read:", *broken, sep="\n  ")
        print(f"try it   hf-video predict VIDEO --model {output_dir}")
    return 0


def _run_retrieval(settings: TrainRetrievalSettings) -> int:
    """Trains on captions, and prints the recalls and where the model is."""
    from hf_video.training import train_retrieval

    trainer, metrics = train_retrieval(settings)
    if not trainer.is_world_process_zero():
        return 0
    recalls = "  ".join(f"R@{k} {metrics[f'text_to_video_r{k}']:.1f}" for k in (1, 5, 10))
    print(f"text to video  {recalls}  among the {metrics['split']} videos")
    print(f"model    {trainer.args.output_dir}")
    return 0


def _run_detection(settings: TrainDetectionSettings) -> int:
    """Trains on persons, and prints their mean average precision and where the model is."""
    from hf_video.training import train_detection

    trainer, metrics = train_detection(settings)
    if not trainer.is_world_process_zero():
        return 0
    output_dir = trainer.args.output_dir
    if metrics:
        print(f"mAP      {metrics['mean_ap']:.1%} at {metrics['num_key_frames']} {metrics['split']} key frames")
        print(f"report   {Path(output_dir, 'report', 'detection.json')}")
    print(f"model    {output_dir}\ntry it   hf-video detect VIDEO --model {output_dir} --output FILE")
    return 0


def _run_frames(settings: TrainFrameSettings) -> int:
    """Trains on segments, and prints how well frames and segments are found and where the model is."""
    from hf_video.training import train_frames

    trainer, metrics = train_frames(settings)
    if not trainer.is_world_process_zero():
        return 0
    output_dir = trainer.args.output_dir
    shares = "  ".join(
        f"F1@{tiou * 100:.0f} {f1:.1%}" for tiou, f1 in zip(metrics["tious"], metrics["f1"], strict=True)
    )
    of_split = f"{metrics['num_frames']} frames of {metrics['split']}"
    print(f"frames   {metrics['frame_accuracy']:.1%} right of {of_split}  {shares}")
    print(f"model    {output_dir}\nreport   {Path(output_dir, 'report', 'frames.json')}")
    print(f"try it   hf-video timeline VIDEO --model {output_dir}")
    return 0


COMMAND = Command(
    name="train",
    settings=TrainSettings,
    tasks=TASKS | {"frame-classification": TrainFrameSettings, "action-detection": TrainDetectionSettings},
    run=run,
    help="train a video classifier on your videos",
    usage="hf-video train DATA --output-dir DIR [--recipe NAME_OR_FILE] [options]",
    description=DESCRIPTION,
    epilog=EPILOG,
    takes_several_processes=True,
)
