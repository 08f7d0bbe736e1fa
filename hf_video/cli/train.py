"""`hf-video train`, `hf-video train-answers` and `hf-video pretrain`: train a model on labelled videos, captions,
persons, questions, or videos alone."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

from hf_video.settings import Settings
from hf_video.training.task import TASKS
from hf_video.training.task_settings import PretrainSettings, TrainAnswersSettings, TrainSettings

from .command import Command
from .printing import broken_lines

_EPILOG = """\
--help-all lists every setting; each field of transformers.TrainingArguments is one. A recipe is a YAML file with lines
`name: value`, or the name of a published one. A flag replaces the value in the recipe.

example: """


def run(settings: Any) -> int:
    """Trains, and prints what the result is worth and where it is."""
    from hf_video.training.task import row_of, train

    trainer, metrics = train(settings)
    if trainer.is_world_process_zero():
        task, folder = row_of(settings).load("task"), str(trainer.args.output_dir)
        places = [f"model    {folder}", f"report   {Path(folder, 'report', 'report.md')}", *broken_lines(metrics)]
        example = [f"try it   {task.try_it.format(model=shlex.quote(folder))}"] if task.try_it else []
        print(*task.summarize(metrics), *places, *example, sep="\n")
    return 0


def _training(name: str, settings: type[Settings], help: str, example: str, description: str, **texts: Any) -> Command:
    needed = f"DATA{' --model MODEL' if name == 'train-answers' else ''} --output-dir DIR"
    return Command(
        name=name,
        settings=settings,
        run=run,
        help=help,
        usage=f"hf-video {name} {needed} [--recipe NAME_OR_FILE] [options]",
        description=description,
        epilog=f"{_EPILOG}hf-video {name} {example}",
        takes_several_processes=True,
        **texts,
    )


TRAIN = _training(
    "train",
    TrainSettings,
    "train a video classifier on your videos",
    "my_videos --output-dir my_model --model MCG-NJU/videomae-base --epochs 10 --weight-decay 0.1",
    """\
Fine-tune a video classifier on your own labelled videos: the one that --model names, or the bundled model, a
small VideoViT that knows motion and shapes. With more than 1,000 clips, or a size such as --image-size, it is a
VideoViT with random weights; so it is with --model scratch. With --task frames it is a VideoMamba with random weights
if a size, --family or --causal is given.

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
    tasks=lambda: {name: row.settings for row in TASKS.values() if row.settings for name in (row.name, *row.aliases)},
)

TRAIN_ANSWERS = _training(
    "train-answers",
    TrainAnswersSettings,
    "train a model that answers about videos",
    "msvd --model instructblip_with_memory --output-dir msvd_qa --recipe malmm/msvd_qa",
    """\
Fine-tune a MemoryBankQFormer with a language model on questions and answers, or on captions.

DATA is one of these:
  a file .csv, .json or .jsonl of rows with `video` and `answer` (or `caption`); optional are `question`, and `start`
  and `end` in seconds
  a folder with such files named train, validation and test

The vision tower and the language model are frozen without --train-vision-tower, --train-language-model or --lora-rank.
""",
)

PRETRAIN = _training(
    "pretrain",
    PretrainSettings,
    "pre-train an encoder on videos without labels",
    "my_videos --output-dir my_encoder --recipe pretraining/videomae_base_kinetics400",
    """\
Pre-train a VideoViT or a VideoMamba on your own videos, which need no labels. `hf-video train --model` fine-tunes the
result.

A VideoViT reconstructs the pixels of patches that a mask hides (VideoMAE; with decoder_mask_ratio VideoMAE V2). A
VideoMamba sees few patches and learns the features that --teacher, an image model, has for them.

DATA is one of these:
  a folder with videos at any depth; if it has train/, only that
  a list of paths (CSV, .txt or JSON), a Parquet file or a data set, as for `hf-video train`; labels are not read
""",
)
