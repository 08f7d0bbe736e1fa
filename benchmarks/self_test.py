"""
What `hf-video verify` finds: the differences between honest runs, and 20 faults put into published models.

Small models of each family, with random weights, and the bundled model, which is trained, get a self-test. Then
each is verified in processes with other instructions (`ATEN_CPU_CAPABILITY` and oneDNN's), with other numbers of
threads and in each dtype, a VideoMamba also on its plain scan: no run may report a difference. The largest ones are
printed beside what is allowed. Each fault is put into a copy of a model, and the parts that tell it are printed.

The script fails if fewer than 19 of 20 faults are found, or if an honest run reports one. It takes several minutes.

    python benchmarks/self_test.py [--seeds 2] [--smoke]
"""

import io
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import av
import numpy as np
import torch
from helpers.measurement import GOAL_MISSED, make_parser, print_machine
from safetensors.torch import load_file, save_file
from transformers.utils import VIDEO_PROCESSOR_NAME

import hf_video
from hf_video.hub import verify_model
from hf_video.hub.custom_code import add_code
from hf_video.hub.self_test import BOUNDS, SAME_INPUT, SELF_TEST, VIDEOS, write_self_test
from hf_video.loading.released import SHIPPED, model_path

SIZES = {"image_size": 96, "num_frames": 8, "hidden_size": 64, "num_hidden_layers": 3, "patch_size": 16}
ENCODER = {"image_size": 96, "patch_size": 16, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
OPTIONS: dict[str, dict[str, Any]] = {
    "VideoViT": {**SIZES, "num_attention_heads": 4, "intermediate_size": 128},
    "VideoMamba": SIZES,
    "MemoryBankQFormer": {
        "vision_config": {"model_type": "instructblip_vision_model", **ENCODER, "num_attention_heads": 2},
        "qformer_config": {
            **{"vocab_size": 8, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2},
            **{"intermediate_size": 64, "max_position_embeddings": 8},
        },
        "num_query_tokens": 4,
        "memory_bank_length": 4,
        "max_num_frames": 8,
    },
}
CAPABILITIES = ("default", "avx2")
DTYPES = ("float32", "bfloat16", "float16")
GOAL = 0.95


class SelfTestVideo(NamedTuple):
    """The file beside a self-test, and what its frames are like."""

    file: str
    height: int
    width: int
    num_frames: int
    fps: int


# One is wide and longer than most clips, the other one is upright and shorter.
SELF_TEST_VIDEOS = (SelfTestVideo("wide.mp4", 240, 320, 80, 25), SelfTestVideo("upright.mp4", 288, 240, 30, 12))
_STRIPES = 80


def encode(video: SelfTestVideo) -> bytes:
    """The video as an MP4 file, H.264. The versions of the libraries determine every byte."""
    file = io.BytesIO()
    # One thread and bit-exact muxing make the bytes repeatable.
    with av.open(file, "w", format="mp4", container_options={"fflags": "+bitexact"}) as container:
        options = {"crf": "32", "preset": "veryfast", "threads": "1"}
        stream = container.add_stream("libx264", rate=video.fps, options=options)
        stream.pix_fmt, stream.height, stream.width = "yuv420p", video.height, video.width
        for frame in draw(video):
            container.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
        container.mux(stream.encode())
    return file.getvalue()


def draw(video: SelfTestVideo) -> np.ndarray:
    """The frames (num_frames, height, width, 3) uint8 RGB: waves that drift at another speed in each channel, a square
    of stripes on its way through the picture, and light that changes with time."""
    times = np.arange(video.num_frames, dtype=np.float32)[:, None, None]
    drift = 2 * np.pi * times / np.array((40, 56, 72), np.float32)
    down, across = (2 * np.pi * np.arange(size, dtype=np.float32)[None, :, None] for size in video[1:3])
    rows = 40 * np.sin(down / np.array((64, 40, 88), np.float32) - drift) + 25 * np.sin(times / 7)
    columns = 40 * np.sin(across / np.array((48, 72, 96), np.float32) + drift)
    frames = (120 + rows[:, :, None] + columns[:, None]).clip(0, 255).astype(np.uint8)
    lines = np.arange(_STRIPES)
    stripes = (np.add.outer(lines // 6, lines // 4) % 2)[..., None] * np.array([255, 200, 80], np.uint8)
    for number, frame in enumerate(frames):
        top, left = 3 * number % (video.height - _STRIPES), 5 * number % (video.width - _STRIPES)
        frame[top : top + _STRIPES, left : left + _STRIPES] = stripes
    return frames


def publish_small(family: str, seed: int, folder: Path) -> Path:
    """A folder with a small model and its self-test."""
    if family == "start":
        shutil.copytree(model_path(SHIPPED), folder)
    else:
        torch.manual_seed(seed)
        names = [f"class {index}" for index in range(8)]
        labels = {"id2label": dict(enumerate(names)), "label2id": {name: index for index, name in enumerate(names)}}
        config = getattr(hf_video, f"{family}Config")(**OPTIONS[family], **labels)
        model = getattr(hf_video, f"{family}ForVideoClassification")(config)
        torch.nn.init.normal_(model.classifier.bias, std=0.02)
        model.save_pretrained(folder)
        sizes = {"size": {"shortest_edge": 96}, "crop_size": {"height": 96, "width": 96}}
        hf_video.VideoClipProcessor(num_frames=8, frame_sampling_rate=4, **sizes).save_pretrained(folder)
    add_code(folder)
    write_self_test(folder)
    return folder


def differences(folder: str, is_smoke: bool) -> list[dict[str, Any]]:
    """What is found in this process with each number of threads, dtype and scan."""
    runs = []
    for threads in (1,) if is_smoke else (1, 2):
        torch.set_num_threads(threads)
        for dtype in DTYPES:
            for scan in ("", "reference") if "VideoMamba" in folder else ("",):
                os.environ["HF_VIDEO_SELECTIVE_SCAN"] = scan
                found = verify_model(folder, device="cpu", dtype=dtype)
                first = found.first_difference
                shares = {each.part: each.difference for each in found.findings if each.difference is not None}
                runs.append({"dtype": dtype, "reported": first and first.text, "shares": shares})
    return runs


def run_elsewhere(capability: str, folders: list[Path], is_smoke: bool) -> list[dict[str, Any]]:
    words = [sys.executable, __file__, "--run", *map(str, folders), *(["--smoke"] if is_smoke else [])]
    # PyTorch's own instructions, and those of oneDNN, which would else take the machine's best.
    environment = os.environ | {"ATEN_CPU_CAPABILITY": capability, "ONEDNN_MAX_CPU_ISA": "AVX2"}
    child = subprocess.run(words, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(child.stdout.splitlines()[-1])


def measure_honest_runs(folders: list[Path], is_smoke: bool) -> int:
    """Prints the largest differences, and gives the number of runs that reported one."""
    runs = [run for capability in CAPABILITIES for run in run_elsewhere(capability, folders, is_smoke)]
    largest: dict[tuple[str, str], float] = defaultdict(float)
    for run in runs:
        for part, share in run["shares"].items():
            name = bound = run["dtype"] if part == "logits" else part
            if name == "float32" and run["shares"]["pixel_values"] > SAME_INPUT:
                name, bound = "float32, resized otherwise", "float16"
            largest[name, bound] = max(largest[name, bound], share)
    print("largest differences of honest runs, as shares of the largest value; allowed")
    for (name, bound), share in largest.items():
        print(f"  {name:26} {share:.1e}  {BOUNDS[bound]:.0e}")
    reported = [run["reported"] for run in runs if run["reported"]]
    print(f"{len(runs)} honest runs, {len(reported)} of them reported{''.join(f'; {text}' for text in reported)}")
    return len(reported)


def edit(name: str, **changes: Any) -> Callable[[Path], None]:
    """A fault: fields of a JSON file have other values."""

    def put(folder: Path) -> None:
        content = json.loads((folder / name).read_text())
        (folder / name).write_text(json.dumps(content | changes))

    return put


def process(**changes: Any) -> Callable[[Path], None]:
    return edit(VIDEO_PROCESSOR_NAME, **changes)


def reweigh(change: Callable[[dict[str, torch.Tensor]], Any]) -> Callable[[Path], None]:
    """A fault: tensors have other values."""

    def put(folder: Path) -> None:
        weights = load_file(folder / "model.safetensors")
        change(weights)
        save_file(
            {name: each.contiguous() for name, each in weights.items()}, folder / "model.safetensors", {"format": "pt"}
        )

    return put


def swap_labels(folder: Path) -> None:
    labels = json.loads((folder / "config.json").read_text())["id2label"]
    edit("config.json", id2label=labels | {"0": labels["1"], "1": labels["0"]})(folder)


def swap_layers(weights: dict[str, torch.Tensor]) -> None:
    for name in [name for name in weights if ".layers.0." in name]:
        other = name.replace(".layers.0.", ".layers.1.")
        weights[name], weights[other] = weights[other], weights[name]


def swap_channels(weights: dict[str, torch.Tensor]) -> None:
    name = next(name for name in weights if name.endswith("patch_embeddings.projection.weight"))
    weights[name] = weights[name].unflatten(1, (3, -1)).flip(1).flatten(1)


def scale_tensor(weights: dict[str, torch.Tensor]) -> None:
    name = next(name for name in weights if ".layers.1." in name and weights[name].ndim == 2)
    weights[name] = weights[name] * 1.01


def halve_precision(weights: dict[str, torch.Tensor]) -> None:
    # The start is kept in bfloat16 already.
    halved = torch.bfloat16 if weights["classifier.weight"].dtype == torch.float32 else torch.float8_e4m3fn
    weights.update({name: each.to(halved).to(each.dtype) for name, each in weights.items()})


def drop_first_frame(folder: Path) -> None:
    """What a decoder does that begins with the second frame."""
    video = SELF_TEST_VIDEOS[0]
    shorter = encode(video._replace(num_frames=video.num_frames - 1))
    (folder / SELF_TEST / video.file).write_bytes(shorter)


def make_faults(folder: Path) -> dict[str, Callable[[Path], None]]:
    config = json.loads((folder / "config.json").read_text())
    options = json.loads((folder / VIDEO_PROCESSOR_NAME).read_text())
    edge, frames = options["size"]["shortest_edge"], options["num_frames"]
    is_dense = options["sampling_strategy"] == "dense"
    smaller = {"height": edge - 16, "width": edge - 16}
    return {
        "other stride": process(frame_sampling_rate=2, sampling_strategy="dense"),
        "other sampling": process(sampling_strategy="uniform" if is_dense else "dense"),
        "other number of frames": process(num_frames=frames // 2),
        "two clips of a video": process(num_clips=2),
        "other resize": process(size={"shortest_edge": edge + 16}),
        "other crop": process(crop_size=smaller),
        "bicubic resize": process(resample=3),
        "antialias flipped": process(antialias=not options["antialias"]),
        "other mean and std": process(image_mean=[0.5] * 3, image_std=[0.5] * 3),
        "other rescale factor": process(rescale_factor=1 / 256),
        "one frame fewer is read": drop_first_frame,
        "swapped labels": swap_labels,
        "a tensor off by 1 %": reweigh(scale_tensor),
        "channels in other order": reweigh(swap_channels),
        "bias of the head is zero": reweigh(lambda weights: weights["classifier.bias"].zero_()),
        "two layers swapped": reweigh(swap_layers),
        "less precise weights": reweigh(halve_precision),
        "a layer fewer": edit("config.json", num_hidden_layers=config["num_hidden_layers"] - 1),
        "other activation": edit("config.json", hidden_act="relu"),
        "other epsilon of norms": edit("config.json", layer_norm_eps=1e-3),
    }


def find_faults(folder: Path) -> float:
    """Prints what tells each fault, and gives the share of those that are found."""
    print(f"faults in {folder.name}, and what tells them")
    faults, found = make_faults(folder), 0
    for name, put in faults.items():
        with tempfile.TemporaryDirectory() as copies:
            copy = shutil.copytree(folder, Path(copies, "copy"))
            put(copy)
            verification = verify_model(str(copy), device="cpu")
        parts = [finding.part for finding in verification.findings if finding.agrees is False]
        found += bool(parts)
        print(f"  {name:26} {', '.join(parts) or 'nothing'}")
    print(f"{folder.name}: {found} of {len(faults)} faults are found")
    return found / len(faults)


def main() -> int:
    parser = make_parser(__doc__)
    parser.add_argument("--seeds", type=int, default=2, help="models of each family")
    parser.add_argument("--draw", action="store_true", help="draw the videos of the package again, and stop")
    parser.add_argument("--run", nargs="+", metavar="DIR", help="verify these folders in this process")
    arguments = parser.parse_args()
    if arguments.draw:
        for video in SELF_TEST_VIDEOS:
            (VIDEOS / video.file).write_bytes(encode(video))
        return 0
    if arguments.run:
        print(json.dumps([run for folder in arguments.run for run in differences(folder, arguments.smoke)]))
        return 0
    print_machine("torch", "torchvision", "transformers", "av")
    with tempfile.TemporaryDirectory() as name:
        seeds = range(1 if arguments.smoke else arguments.seeds)
        made = [(family, seed) for family in OPTIONS for seed in seeds] + [("start", 0)]
        folders = {each: publish_small(*each, Path(name, f"{each[0]}-{each[1]}")) for each in made}
        reported = measure_honest_runs(list(folders.values()), arguments.smoke)
        shares = [find_faults(folders["VideoViT", 0])]
        if not arguments.smoke:
            shares.append(find_faults(folders["start", 0]))
    return 0 if not reported and min(shares) >= GOAL else GOAL_MISSED


if __name__ == "__main__":
    sys.exit(main())
