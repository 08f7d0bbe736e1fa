"""
VideoViT-B on 16 x 224 x 224 against Transformers' VideoMAE with SDPA: same weights, same clip, same run.

Beside both stands the floor: the matrix products and SDPA calls alone, on tensors of the same shapes. A figure is
printed only when the two models' outputs agree. Peak memory comes from a process of its own for each model.

    python benchmarks/videovit.py [--rounds 5] [--threads 2]
"""

import argparse
import datetime
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from hf_video.conversion.hf_videomae import main as convert
from transformers import AutoModelForVideoClassification, VideoMAEConfig, VideoMAEForVideoClassification

BATCH, FRAMES, SIZE = 1, 16, 224
TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 5e-2}


def make_models(folder: Path, dtype: torch.dtype) -> dict[str, torch.nn.Module]:
    """Random VideoMAE-B weights in both implementations."""
    if not folder.joinpath("videomae").exists():
        torch.manual_seed(0)
        VideoMAEForVideoClassification(VideoMAEConfig(num_labels=400)).save_pretrained(folder / "videomae")
        convert([str(folder / "videomae"), str(folder / "videovit")])
    load = AutoModelForVideoClassification.from_pretrained
    return {name: load(folder / name, dtype=dtype, attn_implementation="sdpa") for name in ("videovit", "videomae")}


def make_floor(config, dtype: torch.dtype) -> Callable[[bool], None]:
    """The matrix products and attention calls of one pass, forward or forward and backward, and nothing else."""
    tokens, width, hidden = (FRAMES // 2) * (SIZE // 16) ** 2, config.hidden_size, config.intermediate_size
    heads = config.num_attention_heads
    shapes = [(3 * width, width), (width, width), (hidden, width), (width, hidden)]
    weights = [torch.randn(shape, dtype=dtype, requires_grad=True) for shape in shapes]
    biases = [torch.randn(shape[0], dtype=dtype, requires_grad=True) for shape in shapes]
    inputs = [torch.randn(BATCH, tokens, shape[1], dtype=dtype, requires_grad=True) for shape in shapes]
    qkv = [torch.randn(BATCH, heads, tokens, width // heads, dtype=dtype, requires_grad=True) for _ in range(3)]
    patches = torch.randn(BATCH, tokens, 1536, dtype=dtype)
    embedding = torch.randn(width, 1536, dtype=dtype, requires_grad=True)

    def run(backward: bool) -> None:
        outputs = [F.linear(patches, embedding)]
        for _ in range(config.num_hidden_layers):
            outputs = [F.linear(x, w, b) for x, w, b in zip(inputs, weights, biases, strict=True)]
            outputs.append(F.scaled_dot_product_attention(*qkv))
            if backward:
                torch.autograd.backward(outputs, [output.detach() for output in outputs])

    return run


def run_model(model: torch.nn.Module, clip: torch.Tensor) -> Callable[[bool], None]:
    labels = torch.zeros(BATCH, dtype=torch.long)

    def run(backward: bool) -> None:
        loss = model(pixel_values=clip, labels=labels).loss
        if backward:
            loss.backward()

    return run


def measure(runs: dict[str, Callable[[bool], None]], backward: bool, rounds: int) -> dict[str, float]:
    """Least seconds of each, taken in turn: whatever else the machine does only adds to them."""
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    with torch.set_grad_enabled(backward):
        for round_number in range(rounds + 1):
            for name, run in runs.items():
                start = time.perf_counter()
                run(backward)
                if round_number:
                    seconds[name].append(time.perf_counter() - start)
    return {name: min(values) for name, values in seconds.items()}


def peak_memory(folder: Path, name: str, dtype: str, backward: bool, threads: int) -> float:
    """Peak resident memory in GiB of a process that loads one model and runs it twice."""
    arguments = [
        sys.executable,
        __file__,
        "--threads",
        str(threads),
        "--child",
        str(folder),
        name,
        dtype,
        str(int(backward)),
    ]
    return float(subprocess.run(arguments, check=True, capture_output=True, text=True).stdout.split()[-1])


def child(folder: str, name: str, dtype: str, backward: str) -> None:
    model = AutoModelForVideoClassification.from_pretrained(Path(folder, name), dtype=getattr(torch, dtype))
    clip = torch.randn(BATCH, FRAMES, 3, SIZE, SIZE, dtype=getattr(torch, dtype))
    measure({name: run_model(model, clip)}, backward == "1", rounds=1)
    # Not `getrusage`, whose maximum is inherited from the parent process.
    status = Path("/proc/self/status").read_text()
    print(int(status.split("VmHWM:")[1].split()[0]) / 2**20)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--child", nargs=4, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    if arguments.child:
        return child(*arguments.child)

    print(f"{datetime.date.today()}, torch {torch.__version__}, {arguments.threads} threads, batch {BATCH}")
    print(
        "dtype     pass              VideoViT  VideoMAE     floor  ours/VideoMAE  ours/floor  VideoMAE/floor  peak GiB"
    )
    with tempfile.TemporaryDirectory() as folder:
        for dtype in (torch.float32, torch.bfloat16):
            models = make_models(Path(folder), dtype)
            clip = torch.randn(BATCH, FRAMES, 3, SIZE, SIZE, dtype=dtype)
            with torch.no_grad():
                ours, theirs = (model(clip).logits.float() for model in models.values())
            if (ours - theirs).abs().max() > TOLERANCE[dtype] * theirs.abs().max():
                sys.exit(
                    f"{dtype}: the outputs differ by {(ours - theirs).abs().max():.1e}, so no figure means anything."
                )
            runs = {name: run_model(model, clip) for name, model in models.items()}
            runs["floor"] = make_floor(models["videovit"].config, dtype)
            for backward in (False, True):
                seconds = measure(runs, backward, arguments.rounds)
                name = str(dtype).removeprefix("torch.")
                memory = [peak_memory(Path(folder), each, name, backward, arguments.threads) for each in models]
                ours_s, theirs_s, floor = seconds["videovit"], seconds["videomae"], seconds["floor"]
                print(
                    f"{name:9} {'forward+backward' if backward else 'forward':16} {ours_s:8.2f}s {theirs_s:8.2f}s "
                    f"{floor:8.2f}s {ours_s / theirs_s:13.2f}x {ours_s / floor:10.2f}x {theirs_s / floor:14.2f}x  "
                    f"{memory[0]:.2f} vs {memory[1]:.2f}"
                )


if __name__ == "__main__":
    main()
