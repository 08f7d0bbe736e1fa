"""`hf-video train-answers`: trains a model that answers questions about videos, or captions them."""

from __future__ import annotations

from hf_video.training.settings import TrainAnswersSettings

from .command import Command
from .train import RECIPES

DESCRIPTION = """\
Fine-tune a MemoryBankQFormer with a language model on questions and answers, or on captions.

DATA is one of these:
  a file .csv, .json or .jsonl of rows with `video` and `answer` (or `caption`); optional are `question`, and `start`
  and `end` in seconds
  a folder with such files named train, validation and test

The vision tower and the language model are frozen without --train-vision-tower, --train-language-model or --lora-rank.
"""
EPILOG = f"""\
{RECIPES}
example: hf-video train-answers msvd --model instructblip_with_memory --output-dir msvd_qa --recipe malmm/msvd_qa
"""


def run(settings: TrainAnswersSettings) -> int:
    """Trains, and prints the share of right answers and where the model is."""
    from hf_video.training import train_answers

    trainer, metrics = train_answers(settings)
    if not trainer.is_world_process_zero():
        return 0
    if metrics:
        print(f"right answers {metrics['top1']:.1%} of {metrics['num_videos']} {metrics['split']} videos")
    print(f"model    {trainer.args.output_dir}")
    print(f"try it   hf-video watch VIDEO --model {trainer.args.output_dir} --question TEXT")
    return 0


COMMAND = Command(
    name="train-answers",
    settings=TrainAnswersSettings,
    run=run,
    help="train a model that answers about videos",
    usage="hf-video train-answers DATA --model MODEL --output-dir DIR [--recipe NAME_OR_FILE] [options]",
    description=DESCRIPTION,
    epilog=EPILOG,
    takes_several_processes=True,
)
