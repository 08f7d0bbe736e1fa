"""
What exported models cost: ONNX Runtime beside PyTorch on the same clip, the size of the graph, the time of the export.

A VideoViT and a VideoMamba of a few layers, at two lengths of a clip. Outputs are compared first. It takes about five
minutes on 2 idle CPU cores.

    python benchmarks/exported.py [--threads 2] [--smoke]
"""

import sys
import tempfile
import time
from pathlib import Path

import onnxruntime
import torch
from helpers.measurement import fastest, make_parser, print_machine, print_ratio, require_agreement
from transformers import PreTrainedModel

from hf_video.inference.exporting import TOLERANCE, export_model
from hf_video.models.videomamba import VideoMambaConfig, VideoMambaForVideoClassification
from hf_video.models.videovit import VideoViTConfig, VideoViTForVideoClassification


def make_models(num_frames: int, image_size: int, num_layers: int) -> dict[str, PreTrainedModel]:
    """Layers of VideoViT-S and VideoMamba-Ti."""
    sizes = {"num_frames": num_frames, "image_size": image_size, "num_hidden_layers": num_layers, "num_labels": 400}
    width = {"hidden_size": 384, "num_attention_heads": 6, "intermediate_size": 1536}
    return {
        "VideoViT": VideoViTForVideoClassification(VideoViTConfig(**sizes, **width)).eval(),
        "VideoMamba": VideoMambaForVideoClassification(VideoMambaConfig.preset("tiny", **sizes)).eval(),
    }


def measure(name: str, model: PreTrainedModel, clip: torch.Tensor, threads: int, rounds: int, folder: Path) -> None:
    start = time.perf_counter()
    export = export_model(model, folder, tuple(clip.shape[1:]))
    seconds = time.perf_counter() - start
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = threads, 3
    session = onnxruntime.InferenceSession(export.file, options, providers=["CPUExecutionProvider"])

    def run_onnx() -> torch.Tensor:
        return torch.from_numpy(session.run(None, {"pixel_values": clip.numpy()})[0])

    @torch.no_grad()
    def run_torch() -> torch.Tensor:
        return model(clip).logits

    wanted = run_torch()
    difference = ((run_onnx() - wanted).abs().max() / wanted.abs().max()).item()
    require_agreement(f"{name} in ONNX Runtime and in PyTorch", difference, TOLERANCE)
    times = fastest({"onnx": run_onnx, "torch": run_torch}, rounds=rounds)
    size = export.file.stat().st_size - 4 * sum(parameter.numel() for parameter in model.parameters())
    print(
        f"{name:10} {clip.shape[1]:2} frames: ONNX Runtime {1000 * times['onnx']:.0f} ms, PyTorch "
        f"{1000 * times['torch']:.0f} ms, {times['onnx'] / times['torch']:.2f}x; graph {size / 1024:.0f} KiB, "
        f"export {seconds:.0f} s"
    )
    print_ratio(f"{name} in ONNX Runtime, {clip.shape[1]} frames", times["onnx"] / times["torch"], "PyTorch")


def main() -> int:
    parser = make_parser(__doc__)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    print_machine("torch", "onnxruntime", "onnxscript", threads=arguments.threads)
    lengths, image_size, num_layers, rounds = ((2,), 32, 1, 1) if arguments.smoke else ((8, 32), 224, 4, 3)
    torch.manual_seed(0)
    for num_frames in lengths:
        for name, model in make_models(num_frames, image_size, num_layers).items():
            with tempfile.TemporaryDirectory() as work:
                clip = torch.randn(1, num_frames, 3, image_size, image_size)
                measure(name, model, clip, arguments.threads, rounds, Path(work, "export"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
