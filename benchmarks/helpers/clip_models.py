"""Models of both families and clips of their size, as `videomamba_cpu.py` and `videomamba_lengths.py` measure them."""

import tempfile
from collections.abc import Callable

import torch
from helpers.measurement import fastest

from hf_video import (
    VideoMambaConfig,
    VideoMambaForVideoClassification,
    VideoViTConfig,
    VideoViTForVideoClassification,
)

# Settings of both families that `--smoke` changes.
SMALL = {"image_size": 32, "hidden_size": 32, "num_hidden_layers": 2}
sizes: dict[str, int] = {}


def make_model(family: str, num_frames: int) -> torch.nn.Module:
    if family == "videomamba-bfloat16":
        return in_bfloat16(make_model("videomamba", num_frames))
    torch.manual_seed(0)
    if family == "videomamba":
        return VideoMambaForVideoClassification(
            VideoMambaConfig.preset(
                "middle", num_frames=num_frames, num_labels=400, time_step_init_scheme="random", **sizes
            )
        )
    heads = {"num_attention_heads": 2} if sizes else {}
    return VideoViTForVideoClassification(VideoViTConfig(num_frames=num_frames, num_labels=400, **heads, **sizes))


def in_bfloat16(model: VideoMambaForVideoClassification) -> VideoMambaForVideoClassification:
    """As the model loads in bfloat16: some weights stay in float32."""
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        return type(model).from_pretrained(folder, dtype=torch.bfloat16).eval()


def make_clip(num_frames: int) -> torch.Tensor:
    size = sizes.get("image_size", 224)
    return torch.randn(1, num_frames, 3, size, size, generator=torch.Generator().manual_seed(0))


def run_model(model: torch.nn.Module, clip: torch.Tensor) -> Callable[[bool], None]:
    def run(backward: bool) -> None:
        loss = model(clip, labels=torch.zeros(1, dtype=torch.long)).loss
        if backward:
            loss.backward()

    return run


def measure(runs: dict[str, Callable[[bool], None]], backward: bool, rounds: int) -> dict[str, float]:
    """Least seconds of each, with or without a backward."""
    with torch.set_grad_enabled(backward):
        return fastest(runs, backward, rounds=rounds)
