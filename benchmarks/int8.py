"""
int8 on the CPU: layers of VideoViT-B (16 x 224 x 224) and VideoMamba-M (8 x 224 x 224), batch 1, with weights that
torchao quantised, against the same layers in float32 and bfloat16. Each runs as it is, and compiled layer by layer.

`dynamic` has int8 weights and quantises activations at each call, so that products are of integers. `weights` has int8
weights and multiplies them as floats. VideoMamba's small projections `x_proj` and `dt_proj` stay floats, except in
`dynamic all`. Times are printed only if the logits of all variants are close to those of float32. With `--smoke`
small models are traced, not compiled. On 2 cores it takes about a minute.

    python benchmarks/int8.py [--families videovit videomamba] [--layers 4] [--rounds 5] [--threads 2] [--smoke]
"""

import sys
import tempfile
import time

import torch
from helpers.measurement import make_parser, print_machine, print_ratio
from torchao.quantization import Int8DynamicActivationInt8WeightConfig, Int8WeightOnlyConfig
from transformers import AutoModelForVideoClassification, PreTrainedModel, TorchAoConfig

from hf_video import (
    VideoMambaConfig,
    VideoMambaForVideoClassification,
    VideoViTConfig,
    VideoViTForVideoClassification,
)

TOLERANCE = 0.05
SMALL_PROJECTIONS = ["x_proj", "dt_proj"]
SMALL = {"image_size": 32, "patch_size": 8, "num_frames": 4, "hidden_size": 64}


def make_model(family: str, num_layers: int, is_small: bool) -> PreTrainedModel:
    torch.manual_seed(0)
    sizes = {"num_hidden_layers": num_layers, "num_labels": 400}
    if family == "videomamba":
        options = sizes | (SMALL if is_small else {"num_frames": 8}) | {"time_step_init_scheme": "random"}
        return VideoMambaForVideoClassification(VideoMambaConfig.preset("middle", **options))
    small = {**SMALL, "intermediate_size": 128, "num_attention_heads": 4}
    return VideoViTForVideoClassification(VideoViTConfig(**sizes, **(small if is_small else {"num_frames": 16})))


def make_variants(folder: str, family: str, backend: str) -> dict[str, PreTrainedModel]:
    """The model of a folder in each variant, as it is and compiled."""
    skipped = SMALL_PROJECTIONS if family == "videomamba" else None
    dynamic, weights = Int8DynamicActivationInt8WeightConfig(), Int8WeightOnlyConfig()
    options: dict[str, dict] = {
        "float32": {},
        "bfloat16": {"dtype": "bfloat16"},
        "dynamic": {"quantization_config": TorchAoConfig(dynamic, modules_to_not_convert=skipped)},
        "weights": {"quantization_config": TorchAoConfig(weights, modules_to_not_convert=skipped)},
    }
    if skipped:
        options["dynamic all"] = {"quantization_config": TorchAoConfig(dynamic)}
    variants = {}
    for name, option in options.items():
        for suffix in ("", ", compiled"):
            model = AutoModelForVideoClassification.from_pretrained(folder, **option).eval()
            if suffix:
                for layer in model.base_model.layers:
                    layer.compile(backend=backend)
            variants[name + suffix] = model
    return variants


@torch.no_grad()
def compare_family(family: str, num_layers: int, rounds: int, is_small: bool) -> None:
    model = make_model(family, num_layers, is_small)
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        variants = make_variants(folder, family, "eager" if is_small else "inductor")
    size = (1, model.config.num_frames, 3, *model.config.image_shape)
    clip = torch.randn(size, generator=torch.Generator().manual_seed(0))
    expected = model.eval()(clip).logits
    errors = {name: relative_error(variant(clip).logits, expected) for name, variant in variants.items()}
    if wrong := [f"{name} {error:.1e}" for name, error in errors.items() if not error <= TOLERANCE]:
        sys.exit(f"{family}: logits differ too much from float32 ({', '.join(wrong)}), so no time means anything.")
    seconds: dict[str, list[float]] = {name: [] for name in variants}
    for _ in range(rounds):
        for name, variant in variants.items():
            start = time.perf_counter()
            variant(clip)
            seconds[name].append(time.perf_counter() - start)
    fastest = {name: min(values) for name, values in seconds.items()}
    print(f"{family}, {num_layers} layers: milliseconds, times as fast as float32 and bfloat16, error of the logits")
    for name, best in fastest.items():
        ratios = f"{fastest['float32'] / best:5.2f}x {fastest['bfloat16'] / best:5.2f}x"
        print(f"  {name:22} {1e3 * best:8.1f}  {ratios}  {errors[name]:.1e}")
    for name in ("float32, compiled", "bfloat16, compiled"):
        print_ratio(f"{family}, dynamic, compiled", fastest["dynamic, compiled"] / fastest[name], name)


def relative_error(values: torch.Tensor, expected: torch.Tensor) -> float:
    return ((values.float() - expected).norm() / expected.norm()).item()


def main() -> None:
    parser = make_parser(__doc__)
    families = ["videovit", "videomamba"]
    parser.add_argument("--families", nargs="+", choices=families, default=families)
    parser.add_argument("--layers", type=int, default=4, help="layers of a model; all of them are alike")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    print_machine("torch", "torchao", threads=arguments.threads)
    for family in arguments.families:
        rounds, layers = (1, 1) if arguments.smoke else (arguments.rounds, arguments.layers)
        compare_family(family, layers, rounds, arguments.smoke)


if __name__ == "__main__":
    main()
