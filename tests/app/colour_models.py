"""A classifier that names the colour of a square for certain, without training, and videos of such squares."""

import os

import numpy as np
import torch

from hf_video import VideoClipProcessor, VideoViTConfig, VideoViTForVideoClassification
from tests.testing.videos import encode_video

COLOURS = {"red": (230, 30, 30), "blue": (30, 30, 230)}
NUM_FRAMES, FPS = 8, 10
_MARGIN = 8.0


def colour_frames(colour: str, num_frames: int, seed: int = 0) -> np.ndarray:
    """(num_frames, 96, 128, 3) uint8: a square of the colour wanders over a noisy grey ground."""
    rng = np.random.default_rng(seed)
    ground = rng.integers(90, 130, (12, 16, 1), dtype=np.uint8).repeat(8, axis=0).repeat(8, axis=1)
    frames = np.broadcast_to(ground, (num_frames, 96, 128, 3)).copy()
    row, start = rng.integers(16, 48), rng.integers(0, 64)
    for index, frame in enumerate(frames):
        column = 16 + (start + 2 * index) % 64
        frame[row : row + 32, column : column + 32] = COLOURS[colour]
    return frames


def write_colours(path: str | os.PathLike, *colours: str, seconds: float = 2.0) -> str:
    """A video of a square that has one colour after another, each for `seconds`, ten frames a second."""
    clips = [colour_frames(colour, int(seconds * FPS), seed) for seed, colour in enumerate(colours)]
    return encode_video(path, np.concatenate(clips), fps=FPS)


def save_colour_model(folder: str | os.PathLike, **sizes: int) -> str:
    """A VideoViT with random layers, and its processor. Its head separates the features of both colours."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2} | sizes
    names = {"id2label": dict(enumerate(COLOURS)), "label2id": {name: i for i, name in enumerate(COLOURS)}}
    model = VideoViTForVideoClassification(
        VideoViTConfig(num_frames=NUM_FRAMES, image_size=48, patch_size=8, **names, **sizes)
    ).eval()
    side = {"height": 48, "width": 48}
    processor = VideoClipProcessor(num_frames=NUM_FRAMES, frame_sampling_rate=1, size=side, crop_size=side)
    features = {name: _features(model, processor, name) for name in COLOURS}
    _separate(model.classifier, features["red"], features["blue"])
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    return os.fspath(folder)


@torch.no_grad()
def _features(model: VideoViTForVideoClassification, processor: VideoClipProcessor, colour: str) -> torch.Tensor:
    """(8, hidden_size): what the head sees of clips of a colour."""
    seen = list[torch.Tensor]()
    hook = model.classifier.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    clips = [colour_frames(colour, NUM_FRAMES, seed) for seed in range(8)]
    model(**processor(clips, return_tensors="pt"))
    hook.remove()
    return seen[0]


@torch.no_grad()
def _separate(head: torch.nn.Linear, first: torch.Tensor, second: torch.Tensor) -> None:
    """Sets a head of two classes to the line between the means. The nearest clip has a logit of `_MARGIN` or more."""
    direction = first.mean(dim=0) - second.mean(dim=0)
    lowest, highest = (first @ direction).min(), (second @ direction).max()
    if lowest <= highest:
        raise ValueError("The features of the two colours cannot be told apart.")
    scale = 2 * _MARGIN / (lowest - highest)
    head.weight.copy_(torch.stack([direction, -direction]) * scale)
    bias = -scale * (lowest + highest) / 2
    head.bias.copy_(torch.stack([bias, -bias]))
