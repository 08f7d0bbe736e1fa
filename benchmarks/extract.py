"""
Compares the features of overlapping windows from `extract_window_features` with the obvious loop: for each window,
read its frames with `read_video`, process them, and call the model.

The videos are H.264, 640 x 360, 30 frames per second, encoded on the spot: one with a key frame every 250 frames, as
x264 writes by default, and one with a key frame every second. Windows have 16 frames and overlap by half. The model is
a small VideoViT with random weights. The features of both must be equal, otherwise no figure is printed. Both take
turns, and the least times are compared. It takes about three minutes on 2 CPU cores.

    python benchmarks/extract.py [--threads 2] [--rounds 3] [--smoke]
"""

import tempfile
from functools import partial
from pathlib import Path

import numpy as np
import torch
from helpers.measurement import fastest, make_parser, print_machine, require_agreement
from helpers.scene_video import encode_scene
from transformers import PreTrainedModel

from hf_video import VideoClipProcessor, VideoViTConfig, VideoViTForVideoClassification
from hf_video.inference import extract_window_features
from hf_video.processing import probe_video, read_video

NUM_FRAMES, STRIDE, SECONDS = 16, 8, 20
KEY_FRAMES = {"every 250 frames": 250, "every second": 30}


def make_model(smoke: bool) -> tuple[PreTrainedModel, VideoClipProcessor]:
    torch.manual_seed(0)
    sizes = {"hidden_size": 192, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 768}
    sizes |= {"num_hidden_layers": 1} if smoke else {}
    config = VideoViTConfig(image_size=112, num_frames=NUM_FRAMES, num_labels=2, **sizes)
    size = {"size": {"shortest_edge": 112}, "crop_size": {"height": 112, "width": 112}}
    return VideoViTForVideoClassification(config).eval(), VideoClipProcessor(num_frames=NUM_FRAMES, **size)


def ours(model: PreTrainedModel, processor: VideoClipProcessor, path: Path) -> np.ndarray:
    windows = {"num_frames": NUM_FRAMES, "stride": STRIDE, "last": "drop"}
    return extract_window_features(model, processor, path, **windows).features


@torch.inference_mode()
def one_by_one(model: PreTrainedModel, processor: VideoClipProcessor, path: Path) -> np.ndarray:
    found: list[torch.Tensor] = []
    handle = model.classifier.register_forward_pre_hook(lambda module, inputs: found.append(inputs[0]))
    for start in range(0, probe_video(path).total_num_frames - NUM_FRAMES + 1, STRIDE):
        frames, _ = read_video(path, lambda metadata, start=start: np.arange(start, start + NUM_FRAMES))
        model(**processor(frames, do_sample_frames=False, return_tensors="pt"))
    handle.remove()
    return torch.cat(found).numpy()


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--threads", type=int, default=2, help="threads of PyTorch (default: 2)")
    parser.add_argument("--rounds", type=int, default=3, help="times that each extracts (default: 3)")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    rounds, seconds = (1, 2) if arguments.smoke else (arguments.rounds, SECONDS)
    model, processor = make_model(arguments.smoke)
    print_machine("av", "torch", threads=arguments.threads)
    with tempfile.TemporaryDirectory() as folder:
        for name, key_frame_every in KEY_FRAMES.items():
            path = Path(folder, f"{key_frame_every}.mp4")
            encode_scene(path, seconds, key_frame_every)
            features, expected = (extract(model, processor, path) for extract in (ours, one_by_one))
            if features.shape != expected.shape:
                raise SystemExit(f"{features.shape} features instead of {expected.shape}: no figure means anything.")
            require_agreement("the features", float(np.abs(features - expected).max()), 1e-5)
            runs = {run.__name__: partial(run, model, processor) for run in (ours, one_by_one)}
            least = fastest(runs, path, rounds=rounds)
            speed = {run: len(features) / seconds for run, seconds in least.items()}
            print(
                f"key frame {name}: extract_window_features {speed['ours']:.1f} windows/s, one by one "
                f"{speed['one_by_one']:.1f} windows/s, {speed['ours'] / speed['one_by_one']:.2f}x"
            )


if __name__ == "__main__":
    main()
