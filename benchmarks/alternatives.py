"""
What Transformers alone and MMAction2 do with the jobs of this package, on this machine: which families they know, how
many frames they read of short clips, and whether they can be installed here. Their speed is compared by
`videovit.py` and `reading.py`.

Sixteen frames are asked of clips of five, which a processor repeats. pip is asked for a wheel of mmcv, the compiled
part that MMAction2 imports, and needs an index of packages. It takes about ten seconds. With `--smoke` pip is not
asked.

    python benchmarks/alternatives.py [--smoke]
"""

import subprocess
import sys
import tempfile
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
from helpers.measurement import make_parser, print_machine, require_agreement
from transformers import CONFIG_MAPPING
from transformers.video_utils import load_video

from hf_video import VideoClipProcessor

NUM_FRAMES, ASKED = 5, 16
CODECS = {"mp4": "libx264", "webm": "libvpx-vp9"}
# What a family is called in Transformers, and here.
FAMILIES = {
    "VideoMAE": ("videomae", "videovit"),
    "VideoMamba": ("videomamba", "videomamba"),
    "MA-LMM": ("malmm", "memory_bank_qformer"),
}


def comes_from(model_type: str, package: str) -> bool:
    """Whether the Auto classes know a type of model by a configuration of this package."""
    return model_type in CONFIG_MAPPING and CONFIG_MAPPING[model_type].__module__.startswith(f"{package}.")


def write_clip(path: Path, codec: str) -> None:
    with av.open(str(path), "w") as container:
        stream: Any = container.add_stream(codec, rate=10)
        stream.height = stream.width = 64
        stream.pix_fmt = "yuv420p"
        for number in range(NUM_FRAMES):
            image = np.full((64, 64, 3), 40 * number, np.uint8)
            frame = av.VideoFrame.from_ndarray(image, format="rgb24")
            frame.pts, frame.time_base = number, Fraction(1, 10)
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))


def read_alone(path: Path) -> np.ndarray:
    """Frames (T, H, W, 3) by Transformers with PyAV, its way where torchcodec and OpenCV are not installed."""

    def choose(metadata: Any, **_: Any) -> np.ndarray:
        return np.linspace(0, metadata.total_num_frames - 1, ASKED).round().astype(int)

    return load_video(str(path), backend="pyav", sample_indices_fn=choose)[0]


def read_ours(path: Path) -> np.ndarray:
    processor = VideoClipProcessor(num_frames=ASKED, do_resize=False, do_center_crop=False, do_normalize=False)
    return processor(str(path), return_tensors="np")["pixel_values"][0]


def count(read: Callable[[Path], np.ndarray], path: Path) -> str:
    try:
        return f"{len(read(path))} frames"
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def has_wheel(package: str) -> bool:
    """Whether pip finds a wheel of a package for this Python."""
    with tempfile.TemporaryDirectory() as folder:
        words = ["download", "--quiet", "--no-deps", "--only-binary=:all:", "--dest", folder, package]
        return subprocess.run([sys.executable, "-m", "pip", *words], capture_output=True).returncode == 0


def main() -> None:
    arguments = make_parser(__doc__).parse_args()
    print_machine("torch", "transformers", "av")
    for name, (theirs, ours) in FAMILIES.items():
        known = ["yes" if comes_from(*each) else "no" for each in ((theirs, "transformers"), (ours, "hf_video"))]
        print(f"{name}: Transformers alone {known[0]}, hf_video {known[1]}")
    with tempfile.TemporaryDirectory() as folder:
        for ending, codec in CODECS.items():
            path = Path(folder) / f"clip.{ending}"
            write_clip(path, codec)
            ours = read_ours(path)
            require_agreement("frames of hf_video", abs(len(ours) - ASKED), 0)
            print(
                f"{ASKED} frames of a clip of {NUM_FRAMES}, {ending}: Transformers alone {count(read_alone, path)}, "
                f"hf_video {len(ours)} frames"
            )
    if arguments.smoke:
        print("a wheel of mmcv for this Python: not asked")
    else:
        print(f"a wheel of mmcv for this Python: {'yes' if has_wheel('mmcv') else 'no'}")


if __name__ == "__main__":
    main()
