"""
VideoMamba on the CPU as a short measurement chooses to compute, beside every forced way: 8 x 224 x 224, batch 1.

Each way runs in turn in one process, with and without a backward, in float32 and with weights in bfloat16. Figures are
printed only if all ways agree with float32. The chosen way should be the fastest or within 3 %; another way than the
first is only chosen for a gain of 1.2 times, and with a backward the fused mixer is taken for its memory. It takes
about three minutes on 2 CPU cores.

    python benchmarks/cpu_choices.py [--layers 8] [--rounds 4] [--threads 2] [--smoke]
"""

import functools
import os
from collections.abc import Callable

import torch
from helpers.clip_models import SMALL, in_bfloat16, make_clip, make_model, measure, run_model, sizes
from helpers.measurement import in_own_process, make_parser, print_machine, print_ratio, require_agreement

from hf_video.ops.cpu_choices import VARIABLE, choose, kept_choices

WAYS = {
    "float32": ["products=float32,mixer=fused", "products=float32,mixer=modules"],
    "bfloat16": ["products=float32,mixer=fused", "products=bfloat16,mixer=fused", "products=float32,mixer=modules"],
}
TOLERANCE = {"float32": 1e-4, "bfloat16": 0.05}


def forced(way: str, run: Callable[[bool], None]) -> Callable[[bool], None]:
    """The run with the variable set while it runs; an empty one leaves the choice to the measurement."""

    def call(backward: bool) -> None:
        os.environ[VARIABLE] = way
        run(backward)

    return call


def compare(dtype: str, rounds: int) -> None:
    model, clip = make_model("videomamba", 8).eval(), make_clip(8)
    os.environ[VARIABLE] = WAYS["float32"][0]
    with torch.no_grad():
        exact = model(clip).logits
    model = model if dtype == "float32" else in_bfloat16(model)
    ways = {"as chosen": "", **{way: way for way in WAYS[dtype]}}
    for name, way in ways.items():
        os.environ[VARIABLE] = way
        with torch.no_grad():
            error = (model(clip).logits.float() - exact).norm() / exact.norm()
        require_agreement(f"The logits in float32 and in {dtype}, {name},", error.item(), TOLERANCE[dtype])
    runs = {name: forced(way, run_model(model, clip)) for name, way in ways.items()}
    for backward, passes in ((False, "forward"), (True, "forward+backward")):
        seconds = measure(runs, backward, rounds)
        os.environ[VARIABLE] = ""
        choice = choose(*model.base_model.layers[0].mixer_shape(), with_backward=backward)
        for name, value in seconds.items():
            words = f"{name}: {choice}" if name == "as chosen" else name
            print(f"{dtype:8}  {passes:16}  {words:42} {value:6.2f} s")
        fastest = min(seconds[way] for way in WAYS[dtype])
        print_ratio(f"{passes}, {dtype}, as chosen", seconds["as chosen"] / fastest, "the fastest forced way")


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    sizes["num_hidden_layers"] = arguments.layers
    if arguments.smoke:
        sizes.update(SMALL)
        arguments.rounds = 1
    print_machine("torch", "numba", threads=arguments.threads)
    for dtype in WAYS:
        in_own_process(arguments.threads, functools.partial(compare, dtype, arguments.rounds))
    for facts, choice in kept_choices():
        print(f"kept for {facts['layer']['hidden_size']} channels in {facts['layer']['dtype']}: {choice}")


if __name__ == "__main__":
    main()
