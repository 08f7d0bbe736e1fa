"""Chooses what a training without `--model` begins with: the start that ships, or random weights."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import fields
from typing import Any

from hf_video.data.video_settings import dataset_options
from hf_video.loading.start import SHIPPED
from hf_video.settings import settings_of

from .run import ModelChoice
from .settings import MAX_CLIPS_FOR_START, ScratchSettings, TrainSettings

# The settings that make a model of another size.
SIZES = ("num_frames", "image_size", *(each.name for each in fields(ScratchSettings)))


def choose_model(named: Collection[str], chosen: Any) -> ModelChoice:
    """The start that ships, if it suits: no size of another model is given, and DATA has at most
    `MAX_CLIPS_FOR_START` training clips. Videos of any size, length, rate and colour suit, and classes of either kind.
    Otherwise a VideoViT from random weights.

    Args:
        named: the settings that the user named, and model is none of them.
        chosen: a value for each setting.

    Raises:
        ValueError, OSError: there are no such data.
    """
    if chosen.recipe is not None:
        return ModelChoice(None)  # it needs a model of its own
    if sizes := [name for name in SIZES if name in named]:
        return _scratch(f"{settings_of(TrainSettings)[sizes[0]].flag} is given")
    if chosen.streaming:
        return _scratch("the number of training clips in a stream is not known")
    from hf_video.data import load_video_dataset

    options = dataset_options(chosen)
    number = len(load_video_dataset(chosen.data, video_root=chosen.video_root, **options).get("train", ()))
    if number > MAX_CLIPS_FOR_START:
        return _scratch(f"there are {number:,} training clips, more than {MAX_CLIPS_FOR_START:,}")
    return ModelChoice(
        SHIPPED,
        f"Model: the start that ships, because there are {number:,} training clips, at most {MAX_CLIPS_FOR_START:,}. "
        "It knows motion and simple shapes, and no objects; --model scratch trains from random weights.",
    )


def _scratch(reason: str) -> ModelChoice:
    return ModelChoice(
        None, f"Model: a VideoViT from random weights, because {reason}; --model start fine-tunes the one that ships."
    )
