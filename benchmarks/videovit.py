"""
VideoViT-B on 16 x 224 x 224 against Transformers' VideoMAE with SDPA: same weights, same clip, same run.

Beside both stands the floor: the matrix products and SDPA calls alone, on tensors of the same shapes. A figure is
printed only when the two models' outputs agree. Each dtype has a process of its own, and so has each peak of memory.
It takes about eight minutes on 2 CPU cores.

    python benchmarks/videovit.py [--dtypes float32] [--rounds 5] [--threads 2] [--smoke]
"""

import functools
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from helpers.measurement import (
    fastest,
    in_own_process,
    make_parser,
    peak_memory,
    print_machine,
    print_ratio,
    require_agreement,
)
from hf_video.conversion.hf_videomae import main as convert
from transformers import AutoModelForVideoClassification, VideoMAEConfig, VideoMAEForVideoClassification

TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 5e-2}
PASSES = {False: "forward", True: "forward+backward"}
SMALL = {"image_size": 32, "num_frames": 4, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
SMALL |= {"num_attention_heads": 2}


def write_models(folder: Path, sizes: dict[str, int]) -> None:
    """Random VideoMAE weights in both implementations."""
    torch.manual_seed(0)
    VideoMAEForVideoClassification(VideoMAEConfig(num_labels=400, **sizes)).save_pretrained(folder / "videomae")
    convert([str(folder / "videomae"), str(folder / "videovit")])


def load_model(path: Path, dtype: torch.dtype) -> torch.nn.Module:
    return AutoModelForVideoClassification.from_pretrained(path, dtype=dtype, attn_implementation="sdpa")


def make_clip(model: torch.nn.Module) -> torch.Tensor:
    config, generator = model.config, torch.Generator().manual_seed(0)
    size = (1, config.num_frames, 3, config.image_size, config.image_size)
    return torch.randn(size, generator=generator).to(model.dtype)


def make_floor(config, dtype: torch.dtype) -> Callable[[bool], None]:
    """The matrix products and attention calls of one pass, forward or forward and backward, and nothing else."""
    width, hidden, heads = config.hidden_size, config.intermediate_size, config.num_attention_heads
    tokens = config.num_frames // 2 * (config.image_size // 16) ** 2

    def randn(*shape: int) -> torch.Tensor:
        return torch.randn(shape, dtype=dtype, requires_grad=True)

    shapes = [(3 * width, width), (width, width), (hidden, width), (width, hidden)]
    products = [(randn(1, tokens, shape[1]), randn(*shape), randn(shape[0])) for shape in shapes]
    qkv = [randn(1, heads, tokens, width // heads) for _ in range(3)]
    patches, embedding = randn(1, tokens, 1536).detach(), randn(width, 1536)

    def run(backward: bool) -> None:
        outputs = [F.linear(patches, embedding)]
        for _ in range(config.num_hidden_layers):
            outputs = [F.linear(*tensors) for tensors in products]
            outputs.append(F.scaled_dot_product_attention(*qkv))
            if backward:
                torch.autograd.backward(outputs, [output.detach() for output in outputs])

    return run


def run_model(model: torch.nn.Module, clip: torch.Tensor) -> Callable[[bool], None]:
    def run(backward: bool) -> None:
        loss = model(pixel_values=clip, labels=torch.zeros(1, dtype=torch.long)).loss
        if backward:
            loss.backward()

    return run


def measure_seconds(folder: Path, dtype: torch.dtype, rounds: int) -> dict[bool, dict[str, float]]:
    """Seconds of both models and of the floor, for both passes."""
    models = {name: load_model(folder / name, dtype) for name in ("videovit", "videomae")}
    clip = make_clip(models["videovit"])
    with torch.no_grad():
        ours, theirs = (model(clip).logits.float() for model in models.values())
    difference = (ours - theirs).abs().max() / theirs.abs().max()
    require_agreement(f"Logits of VideoViT and VideoMAE in {dtype}", difference.item(), TOLERANCE[dtype])
    runs = {name: run_model(model, clip) for name, model in models.items()}
    runs["floor"] = make_floor(models["videovit"].config, dtype)
    seconds = {}
    for backward in PASSES:
        with torch.set_grad_enabled(backward):
            seconds[backward] = fastest(runs, backward, rounds=rounds)
    return seconds


def measure_memory(path: Path, dtype: torch.dtype, backward: bool) -> float:
    """Peak resident memory in GiB of a process that loads one model and runs it twice."""
    model = load_model(path, dtype)
    with torch.set_grad_enabled(backward):
        fastest({"": run_model(model, make_clip(model))}, backward, rounds=1)
    return peak_memory()


def main() -> None:
    parser = make_parser(__doc__)
    names = [str(dtype).removeprefix("torch.") for dtype in TOLERANCE]
    parser.add_argument("--dtypes", nargs="+", choices=names, default=names, help="which to measure (default: all)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    run_apart = functools.partial(in_own_process, arguments.threads)
    print_machine("torch", "transformers", threads=arguments.threads)
    print(
        "dtype     pass              VideoViT  VideoMAE     floor  ours/VideoMAE  ours/floor  VideoMAE/floor  peak GiB"
    )
    rounds, sizes = (1, SMALL) if arguments.smoke else (arguments.rounds, {"num_frames": 16})
    with tempfile.TemporaryDirectory() as path:
        folder = Path(path)
        run_apart(write_models, folder, sizes)
        for dtype_name in arguments.dtypes:
            dtype = getattr(torch, dtype_name)
            seconds = run_apart(measure_seconds, folder, dtype, rounds)
            for backward, name in PASSES.items():
                ours, theirs, floor = seconds[backward].values()
                peaks = [
                    run_apart(measure_memory, folder / each, dtype, backward) for each in ("videovit", "videomae")
                ]
                print(
                    f"{dtype_name:9} {name:16} {ours:8.2f}s {theirs:8.2f}s {floor:8.2f}s "
                    f"{ours / theirs:13.2f}x {ours / floor:10.2f}x {theirs / floor:14.2f}x  "
                    f"{peaks[0]:.2f} vs {peaks[1]:.2f}"
                )
                case = f"{name}, {dtype_name}"
                print_ratio(case, ours / theirs, "VideoMAE")
                print_ratio(case, ours / floor, "matrix products and attention", is_limit=True)
                print_ratio(case, peaks[0] / peaks[1], "VideoMAE", quantity="memory")


if __name__ == "__main__":
    main()
