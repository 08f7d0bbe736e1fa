"""
Compares the features of overlapping windows from `extract_window_features` with the obvious loop: for each window,
read its frames with `read_video`, process them, and call the model.

The videos are H.264, 640 x 360, 30 frames per second, encoded on the spot: one with a key frame every 250 frames, as
x264 writes by default, and one with a key frame every second. Windows have 16 frames and overlap by half. The model is
a small VideoViT with random weights. The features of both must be equal, otherwise no figure is printed. Both take
turns, and the least times are compared: those that pass, and processor time, which says more on a busy machine.

Before that, a tiny model watches a video of 10,000 windows: late ones must take as long as early ones, and memory must
not grow. It takes about two and a half minutes on 2 CPU cores.

    python benchmarks/extract.py [--threads 2] [--rounds 3] [--smoke]
"""

import os
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from helpers.measurement import make_parser, print_machine, print_ratio, require_agreement
from helpers.scene_video import FPS, encode_scene
from transformers import PreTrainedModel

from hf_video import VideoClipProcessor, VideoViTConfig, VideoViTForVideoClassification
from hf_video.data.loader import iterate_ahead
from hf_video.inference import extract_window_features, window_batches
from hf_video.inference.features import choose_features, encode_clips
from hf_video.reading import probe_video, read_video

NUM_FRAMES, STRIDE, SECONDS = 16, 8, 20
KEY_FRAMES = {"every 250 frames": 250, "every second": 30}


def make_model(
    image_size: int, hidden_size: int, num_hidden_layers: int
) -> tuple[PreTrainedModel, VideoClipProcessor]:
    torch.manual_seed(0)
    sizes = {"num_attention_heads": 3, "intermediate_size": 4 * hidden_size, "num_frames": NUM_FRAMES, "num_labels": 2}
    config = VideoViTConfig(
        image_size=image_size, hidden_size=hidden_size, num_hidden_layers=num_hidden_layers, **sizes
    )
    size = {"size": {"shortest_edge": image_size}, "crop_size": {"height": image_size, "width": image_size}}
    return VideoViTForVideoClassification(config).eval(), VideoClipProcessor(
        num_frames=NUM_FRAMES, frame_sampling_rate=1, **size
    )


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


def follow_long_video(model: PreTrainedModel, processor: VideoClipProcessor, path: Path) -> list[tuple[float, float]]:
    """Processor seconds and MiB of resident memory after each batch of ten windows."""
    settings = choose_features(model)
    windows = {"num_frames": NUM_FRAMES, "stride": STRIDE, "last": "drop", "batch_size": 10}
    measured = []
    for batch in iterate_ahead(window_batches(processor, path, **windows)):
        encode_clips(model, batch.pixel_values, settings)
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        measured.append((time.process_time(), pages * os.sysconf("SC_PAGE_SIZE") / 2**20))
    return measured


def print_long_video(num_windows: int, folder: Path) -> None:
    """How time and memory of late windows compare with those of early ones."""
    tenth = num_windows // 100
    model, processor = make_model(image_size=32, hidden_size=48, num_hidden_layers=1)
    num_frames = NUM_FRAMES + STRIDE * (num_windows - 1)
    encode_scene(folder / "long.mp4", num_frames, 250, height=48, width=64)
    measured = follow_long_video(model, processor, folder / "long.mp4")
    (begin, early), (middle, _) = measured[tenth // 10], measured[tenth // 10 + tenth]
    (late, _), (end, last) = measured[-tenth - 1], measured[-1]
    print(
        f"{len(measured) * 10} windows: the last {10 * tenth} took {(end - late) / (middle - begin):.3f} of the "
        f"processor time of {10 * tenth} after the first {tenth}; resident memory {early:.0f} MiB, then {last:.0f} MiB"
    )


def compare(name: str, path: Path, rounds: int) -> None:
    """Speeds of both for a video, by the time that passes and by processor time, if their features are equal."""
    model, processor = make_model(image_size=112, hidden_size=192, num_hidden_layers=2)
    features, expected = (extract(model, processor, path) for extract in (ours, one_by_one))
    if features.shape != expected.shape:
        raise SystemExit(f"{features.shape} features instead of {expected.shape}: no figure means anything.")
    require_agreement("the features", float(np.abs(features - expected).max()), 1e-5)
    least = {ours: np.full(2, np.inf), one_by_one: np.full(2, np.inf)}
    for _ in range(rounds):
        for run in least:
            started = np.array([time.perf_counter(), time.process_time()])
            run(model, processor, path)
            least[run] = np.minimum(least[run], np.array([time.perf_counter(), time.process_time()]) - started)
    ratio = least[one_by_one] / least[ours]
    milliseconds = {run: 1000 * seconds / len(features) for run, seconds in least.items()}
    print(f"key frame {name}, milliseconds a window:")
    print(f"{'':28}{'time':>8}{'processor time':>18}")
    for run, label in ((ours, "extract_window_features"), (one_by_one, "one by one")):
        print(f"  {label:26}{milliseconds[run][0]:8.1f}{milliseconds[run][1]:18.1f}")
    print(f"  {'faster':26}{ratio[0]:7.2f}x{ratio[1]:17.2f}x")
    for quantity, times in zip(("time", "processor time"), ratio, strict=True):
        print_ratio(f"windows, key frame {name}", 1 / times, "one by one", quantity=quantity)


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--threads", type=int, default=2, help="threads of PyTorch (default: 2)")
    parser.add_argument("--rounds", type=int, default=3, help="times that each extracts (default: 3)")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    rounds, seconds = (1, 1) if arguments.smoke else (arguments.rounds, SECONDS)
    print_machine("av", "torch", threads=arguments.threads)
    with tempfile.TemporaryDirectory() as folder:
        print_long_video(200 if arguments.smoke else 10_000, Path(folder))
        for name, key_frame_every in KEY_FRAMES.items():
            path = Path(folder, f"{key_frame_every}.mp4")
            encode_scene(path, FPS * seconds, key_frame_every)
            compare(name, path, rounds)


if __name__ == "__main__":
    main()
