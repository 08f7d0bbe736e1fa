"""
Image ViTs of Transformers, inflated over time to VideoViT.

The video model takes clips of 16 frames in patches of two. `--set num_frames=N` and `--set tubelet_size=N` make
others, and an image model if both are 1.
"""

import argparse
from functools import partial
from typing import Any

import torch
from transformers import CLIPImageProcessor

from hf_video.models.videovit import VideoViTConfig, VideoViTForImageClassification, VideoViTForVideoClassification

from .helpers.checkpoint import read_model_folder, shape_of
from .helpers.command import Converted, labels_of_original, make_parser, new_head, run
from .helpers.fields import make_config
from .helpers.videovit import (
    PROCESSOR_OPTIONS,
    encoder_fields,
    make_processor,
    patch_embedding_rules,
    transformers_block_rules,
)
from .helpers.weight_rules import Rule, apply_rules, drop, inflate_patches, load_converted, rename

LAYERS = r"(?:vit\.)?(?:encoder\.layer|layers)"


def repeat_positions(positions: torch.Tensor, num_token_frames: int) -> torch.Tensor:
    """The positions of an image, `(1, 1 + h * w, hidden_size)`, with the patches' repeated for each token frame."""
    class_token, patches = positions.split([1, positions.shape[1] - 1], dim=1)
    return torch.cat([class_token, patches.repeat(1, num_token_frames, 1)], dim=1)


def make_rules(config: VideoViTConfig, inflation: str) -> tuple[Rule, ...]:
    """The table for a video model of a configuration."""
    inflate = partial(inflate_patches, tubelet_size=config.tubelet_size, inflation=inflation)
    repeat = partial(repeat_positions, num_token_frames=config.token_grid[0])
    embeddings, target = r"(?:vit\.)?embeddings\.", "videovit.embeddings."
    return (
        rename(embeddings + r"cls_token", target + "cls_token"),
        rename(embeddings + r"position_embeddings", target + "position_embeddings.weight", repeat),
        *patch_embedding_rules(embeddings + r"patch_embeddings\.projection", inflate),
        *transformers_block_rules(LAYERS, "videovit.layers"),
        rename(r"(?:vit\.)?layernorm\.(weight|bias)", r"videovit.layernorm.\1"),
        rename(r"classifier\.(weight|bias)", r"classifier.\1"),
        drop(r"(?:vit\.)?pooler\..*", "the tanh pooler of ViTModel, which no classifier uses"),
        drop(embeddings + "mask_token", "serves masked image modelling alone"),
    )


def convert(arguments: argparse.Namespace) -> Converted:
    """Model and processor for the folder or Hub id that the command line names."""
    original, weights, processor = read_model_folder(arguments.checkpoint, "vit")
    labels: dict[str, Any] = new_head(arguments)
    if "classifier.weight" in weights:
        labels = labels_of_original(original, shape_of(weights, "classifier.weight", 2)[0])
    fields = encoder_fields(original, weights, "qkv_bias") | labels
    fields |= {
        "num_frames": 16,
        "tubelet_size": 2,
        "use_class_token": True,
        "use_mean_pooling": False,
        "position_embedding_type": "learned",
    }
    config = make_config(VideoViTConfig, fields, arguments.set)
    frames: Any = make_processor(config, processor, sampling_strategy="uniform", frame_sampling_rate=1)
    is_image_model = config.num_frames == 1
    model = (VideoViTForImageClassification if is_image_model else VideoViTForVideoClassification)(config)
    keep_initial = [] if "classifier.weight" in weights else [r"classifier\..*"]
    load_converted(model, apply_rules(weights, make_rules(config, arguments.inflation)), keep_initial)
    if is_image_model:
        # It smooths while shrinking, as image models do.
        frames = CLIPImageProcessor(**{name: getattr(frames, name) for name in PROCESSOR_OPTIONS})
    return model, frames


def main(argv: list[str] | None = None, raises_errors: bool = False) -> None:
    parser = make_parser(__file__, __doc__, from_hub=True)
    parser.add_argument(
        "--inflation",
        choices=("centre", "mean"),
        default="centre",
        help="how patches grow over time (default: centre)",
    )
    run(parser, argv, convert, raises_errors)


if __name__ == "__main__":
    main()
