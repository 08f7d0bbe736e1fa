"""`hf-video train`, `hf-video train-answers` and `hf-video pretrain`: train a model on labelled videos, captions,
persons, questions, or videos alone."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

from hf_video.training.task import TASKS
from hf_video.training.task_settings import PretrainSettings, TrainAnswersSettings, TrainSettings

from .command import Command

RECIPES = """\
--help-all lists every setting; each field of transformers.TrainingArguments is one. A recipe is a YAML file with lines
`name: value`, or the name of a published one. A flag replaces the value in the recipe.
"""


def run(settings: Any) -> int:
    """Trains, and prints what the result is worth and where it is."""
    from hf_video.training.task import row_of, train

    trainer, metrics = train(settings)
    if trainer.is_world_process_zero():
        task, folder = row_of(settings).load("task"), str(trainer.args.output_dir)
        print(*task.summarize(metrics), sep="\n")
        print(f"model    {folder}\nreport   {Path(folder, 'report', 'report.md')}")
        if broken := metrics.get("broken_videos"):
            print(f"{len(broken)} videos could not be read:", *broken, sep="\n  ")
        if task.try_it:
            print(f"try it   {task.try_it.format(model=shlex.quote(folder))}")
    return 0


TRAIN = Command(
    name="train",
    settings=TrainSettings,
    tasks=lambda: {name: row.settings for row in TASKS.values() if row.settings for name in (row.name, *row.aliases)},
    run=run,
    help="train a video classifier on your videos",
    usage="hf-video train DATA --output-dir DIR [--recipe NAME_OR_FILE] [options]",
    description="""\
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
""",
    epilog=f"""\
{RECIPES}
examples: hf-video train my_videos --output-dir my_model --model MCG-NJU/videomae-base --epochs 10 --weight-decay 0.1
          hf-video train my_videos --output-dir my_model --model converted --recipe videomae_base_kinetics400
""",
    takes_several_processes=True,
)

TRAIN_ANSWERS = Command(
    name="train-answers",
    settings=TrainAnswersSettings,
    run=run,
    help="train a model that answers about videos",
    usage="hf-video train-answers DATA --model MODEL --output-dir DIR [--recipe NAME_OR_FILE] [options]",
    description="""\
Fine-tune a MemoryBankQFormer with a language model on questions and answers, or on captions.

DATA is one of these:
  a file .csv, .json or .jsonl of rows with `video` and `answer` (or `caption`); optional are `question`, and `start`
  and `end` in seconds
  a folder with such files named train, validation and test

The vision tower and the language model are frozen without --train-vision-tower, --train-language-model or --lora-rank.
""",
    epilog=f"""\
{RECIPES}
example: hf-video train-answers msvd --model instructblip_with_memory --output-dir msvd_qa --recipe malmm/msvd_qa
""",
    takes_several_processes=True,
)

PRETRAIN = Command(
    name="pretrain",
    settings=PretrainSettings,
    run=run,
    help="pre-train an encoder on videos without labels",
    usage="hf-video pretrain DATA --output-dir DIR [--recipe NAME_OR_FILE] [options]",
    description="""\
Pre-train a VideoViT or a VideoMamba on your own videos, which need no labels. `hf-video train --model` fine-tunes the
result.

A VideoViT reconstructs the pixels of patches that a mask hides (VideoMAE; with decoder_mask_ratio VideoMAE V2). A
VideoMamba sees few patches and learns the features that --teacher, an image model, has for them.

DATA is one of these:
  a folder with videos at any depth; if it has train/, that alone
  a list of paths (CSV, .txt or JSON), a Parquet file or a data set, as for `hf-video train`; labels are not read
""",
    epilog=f"""\
{RECIPES}
examples: hf-video pretrain my_videos --output-dir my_encoder --epochs 200
          hf-video pretrain my_videos --output-dir my_encoder --recipe pretraining/videomae_base_kinetics400
""",
    takes_several_processes=True,
)
