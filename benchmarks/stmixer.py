"""
Time and memory of STMixer's head beside those of its backbone, at the released size.

The clip has 16 frames of 256 x 352 pixels, the backbone is ViT-B, and the head has 100 queries and 6 decoder layers;
weights are random. `backbone` and `detector` are measured forward, and forward and backward, each in a process of its
own: the seconds of a first run, and the peak of memory on top of the weights: activations, and gradients of the
weights. `parts` times what the head consists of, after a run that is not counted: the lateral branches, and the
decoder layers, of which sampling and mixing are timed once more by themselves. All of it takes about five minutes.

    python benchmarks/stmixer.py [--measure backbone detector parts] [--threads 2] [--smoke]
"""

import time
from collections.abc import Callable, Sequence
from typing import Any

import psutil
import torch
from helpers.measurement import fastest, in_own_process, make_parser, peak_memory, print_machine

from hf_video import STMixerConfig, STMixerForActionDetection
from hf_video.models.stmixer.modeling_stmixer import find_samples, make_table, read_table

SIZES = (16, 3, 256, 352)
SMOKE_SIZES = (16, 3, 32, 64)
SMOKE_CONFIG: dict[str, Any] = {
    "backbone_config": {"model_type": "videovit", "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2},
    **{"num_queries": 5, "hidden_size": 16, "num_hidden_layers": 2, "num_groups": 2, "num_spatial_points": 4},
}
MEASURED = ("backbone", "detector", "parts")
OUTPUTS = ("logits", "action_logits", "pred_boxes")


def make_model(is_smoke: bool) -> STMixerForActionDetection:
    torch.manual_seed(0)
    return STMixerForActionDetection(STMixerConfig(**SMOKE_CONFIG if is_smoke else {}, num_labels=80))


def make_clip(is_smoke: bool) -> torch.Tensor:
    return torch.randn(1, *(SMOKE_SIZES if is_smoke else SIZES), generator=torch.Generator().manual_seed(0))


def measure(whole: bool, is_smoke: bool, with_backward: bool) -> tuple[float, float]:
    """Seconds of the backbone or the whole detector, and GiB at the peak on top of the weights."""
    model = make_model(is_smoke)
    before = psutil.Process().memory_info().rss / 2**30
    clip, start = make_clip(is_smoke), time.perf_counter()
    with torch.set_grad_enabled(with_backward):
        if whole:
            outputs = model(clip)
            found = [each[name] for each in (outputs, *outputs.auxiliary_outputs) for name in OUTPUTS]
        else:
            found = model.backbone(clip).feature_maps
    if with_backward:
        torch.stack([each.square().mean() for each in found]).sum().backward()
    return time.perf_counter() - start, peak_memory() - before


def time_parts(is_smoke: bool, rounds: int) -> dict[str, dict[str, float]]:
    """Least seconds of each part of the head, forward, and forward and backward."""
    model = make_model(is_smoke)
    config, layers = model.config, model.layers
    num_frames, _, height, width = SMOKE_SIZES if is_smoke else SIZES
    grid = (config.num_temporal_points, height // 16, width // 16)
    features = torch.randn(1, config.backbone_config.hidden_size, *grid, requires_grad=True)
    queries = torch.randn(1, config.num_queries, config.hidden_size, requires_grad=True)
    centers = torch.rand(1, config.num_queries, 2) * torch.tensor([width, height])
    xyzr = torch.cat([centers, torch.rand(1, config.num_queries, 2) * 3 + 4], dim=-1).requires_grad_()
    per_group = (1, config.num_queries, config.num_groups, config.num_spatial_points)
    points = torch.cat(
        [torch.rand(*per_group, 2) * torch.tensor([width, height]), torch.rand(*per_group, 1) * 6], dim=-1
    )
    points.requires_grad_()
    channels = config.hidden_size // config.num_groups
    sampled = [
        torch.randn(*per_group[:3], number, channels, requires_grad=True)
        for number in (config.num_spatial_points, config.num_temporal_points)
    ]
    with torch.no_grad():
        maps = [branch(features) for branch in model.lateral_branches]
    maps = [each.requires_grad_() for each in maps]
    sizes = [each.shape[-2:] for each in maps]

    def tables() -> tuple[torch.Tensor, torch.Tensor]:
        table = make_table(maps, config.num_groups, torch.float32)
        return table, table.mean(dim=1, keepdim=True)

    def laterals() -> Sequence[torch.Tensor]:
        return [branch(features) for branch in model.lateral_branches]

    def decoder() -> Sequence[torch.Tensor]:
        state, found = (xyzr, queries, queries), []
        table = tables()
        for layer in layers:
            *state, logits, actions = layer(*state, *table, sizes)
            found += [logits, actions]
        return [*found, *state]

    def sampling() -> Sequence[torch.Tensor]:
        table, mean_table = tables()
        found = []
        for _ in layers:
            rows, weights = find_samples(points, sizes, config.strides)
            found += [read_table(mean_table, rows, weights), read_table(table, rows.flatten(3), weights.flatten(3))]
        return found

    def mixing() -> Sequence[torch.Tensor]:
        return [
            branch.mixing(each, queries)
            for layer in layers
            for branch, each in zip((layer.spatial, layer.temporal), sampled, strict=True)
        ]

    def forward(part: Callable[[], Sequence[torch.Tensor]]) -> None:
        with torch.no_grad():
            part()

    def both(part: Callable[[], Sequence[torch.Tensor]]) -> None:
        torch.stack([each.square().mean() for each in part()]).sum().backward()

    parts = {"lateral branches": laterals, "decoder layers": decoder, "sampling": sampling, "mixing": mixing}
    found = {}
    for kind, call in {"forward": forward, "both": both}.items():
        runs = {name: lambda part=part, call=call: call(part) for name, part in parts.items()}
        found[kind] = fastest(runs, rounds=rounds)
    return {name: {kind: seconds[name] for kind, seconds in found.items()} for name in parts}


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--measure", nargs="+", choices=MEASURED, default=MEASURED, help="what to measure")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3, help="runs of each part, of which the fastest counts")
    arguments = parser.parse_args()
    print_machine("torch", threads=arguments.threads)
    for name in ("backbone", "detector"):
        if name in arguments.measure:
            forward, both = (
                in_own_process(arguments.threads, measure, name == "detector", arguments.smoke, with_backward)
                for with_backward in (False, True)
            )
            print(
                f"{name}: forward {forward[0]:.2f} s and {forward[1]:.2f} GiB, forward and backward {both[0]:.2f} s "
                f"and {both[1]:.2f} GiB",
                flush=True,
            )
    if "parts" in arguments.measure:
        parts = in_own_process(arguments.threads, time_parts, arguments.smoke, arguments.rounds)
        layers = parts["decoder layers"]
        for name, seconds in parts.items():
            shares = ""
            if name in ("sampling", "mixing"):
                forward, both = (100 * seconds[kind] / layers[kind] for kind in ("forward", "both"))
                shares = f"; {forward:.0f} % and {both:.0f} % of the decoder layers"
            print(f"{name}: forward {seconds['forward']:.2f} s, forward and backward {seconds['both']:.2f} s{shares}")


if __name__ == "__main__":
    main()
