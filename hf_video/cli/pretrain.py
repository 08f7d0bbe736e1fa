"""`hf-video pretrain`: masked pre-training on videos without labels."""

from __future__ import annotations

from pathlib import Path

from hf_video.training.settings import PretrainSettings

from .command import Command
from .train import RECIPES

DESCRIPTION = """\
Pre-train a VideoViT or a VideoMamba on your own videos, which need no labels. `hf-video train --model` fine-tunes the
result.

A VideoViT reconstructs the pixels of patches that a mask hides (VideoMAE; with decoder_mask_ratio VideoMAE V2). A
VideoMamba sees few patches and learns the features that --teacher, an image model, has for them.

DATA is one of these:
  a folder with videos at any depth; if it has train/, that alone
  a list of paths (CSV, .txt or JSON), a Parquet file or a data set, as for `hf-video train`; labels are not read
"""
EPILOG = f"""\
{RECIPES}
examples: hf-video pretrain my_videos --output-dir my_encoder --epochs 200
          hf-video pretrain my_videos --output-dir my_encoder --recipe pretraining/videomae_base_kinetics400
"""


def run(settings: PretrainSettings) -> int:
    """Pre-trains, and prints the loss and where the model and its report are."""
    from hf_video.training import pretrain

    trainer, losses = pretrain(settings)
    if trainer.is_world_process_zero():
        output_dir = trainer.args.output_dir
        print(f"loss {losses['first']:.4g} -> {losses['last']:.4g} on {losses['num_videos']} videos")
        print(f"model    {output_dir}\nreport   {Path(output_dir, 'report', 'report.md')}")
        if broken := losses.get("broken_videos"):
            print(f"{len(broken)} videos could not be read:", *broken, sep="\n  ")
        print(f"go on    hf-video train LABELLED_VIDEOS --model {output_dir} --output-dir DIR")
    return 0


COMMAND = Command(
    name="pretrain",
    settings=PretrainSettings,
    run=run,
    help="pre-train an encoder on videos without labels",
    usage="hf-video pretrain DATA --output-dir DIR [--recipe NAME_OR_FILE] [options]",
    description=DESCRIPTION,
    epilog=EPILOG,
    takes_several_processes=True,
)
