"""The self-test of a published model: small videos beside the weights, and what they became on the way through it.

`self_test/self_test.json` has the labels and the options of the processor, and for each video some of its pixels, some
of the values that the model takes, and the logits, or the features of a model without classes.
"""

import json
import logging
import platform
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import psutil
import torch
from pydantic import BaseModel
from safetensors import safe_open
from transformers import MODEL_FOR_VIDEO_CLASSIFICATION_MAPPING
from transformers.utils import VIDEO_PROCESSOR_NAME

import hf_video
from hf_video.inference.features import choose_features, encode_clips
from hf_video.loading.configurations import GIB, load_config
from hf_video.loading.models import load_trained_model
from hf_video.loading.processors import load_processor
from hf_video.reading import read_video

from .folder_checks import PROCESSORS, SELF_TEST, read_part
from .self_test_videos import SELF_TEST_VIDEOS, encode

logger = logging.getLogger(__name__)

RECORD = f"{SELF_TEST}/self_test.json"
# The largest difference allowed, as a share of the largest value. `benchmarks/self_test.py` measures what occurs.
BOUNDS = {"frames": 0.01, "pixel_values": 0.02, "float32": 1e-4, "float16": 0.02, "bfloat16": 0.1}
# Values of pixels that differ by more were rounded to another of the 256 levels when a frame was resized.
SAME_INPUT = 1e-5
# Parameters times views. The test of VideoViT-L with 15 views takes minutes on two cores.
MOST_PRODUCTS = 5e9
NUM_SAMPLES = 500
VERSIONS = ("torch", "torchvision", "transformers", "av")
# What loading and running a model raises that does not fit its files, its machine or its input.
RUN_ERRORS = (ImportError, OSError, RuntimeError, ValueError)

Measured = Literal["frames", "pixel_values", "logits", "features"]


class Values(BaseModel):
    """A tensor: its shape, and all of its values or those that `sample` takes."""

    shape: list[int]
    values: list[float]


class SelfTest(BaseModel):
    """The content of `self_test.json`.

    Attributes:
        made_with: versions and machine.
        untested: why there are labels and options alone; None if there are videos.
        bounds: the largest differences allowed, as shares of the largest value, by what is compared or by dtype.
        saved: what the files of the model say, see `saved_values`.
        videos: what was measured, by file: `frames`, `pixel_values`, and `logits` or `features`.
    """

    made_with: str
    untested: str | None = None
    bounds: dict[str, float]
    saved: dict[str, dict[str, str]]
    videos: dict[str, dict[str, Values]]


def write_self_test(folder: Path) -> None:
    """Adds the self-test to a complete model folder. It is computed on the CPU in float32; if that fails, it has
    labels and options alone, and the log says why."""
    (folder / SELF_TEST).mkdir()
    untested, videos = why_untested(folder), {}
    if untested is None:
        for video in SELF_TEST_VIDEOS:
            (folder / SELF_TEST / video.file).write_bytes(encode(video))
        try:
            videos = _describe_videos(folder)
        except RUN_ERRORS as error:
            # The error may name folders of this machine, so it is not published.
            untested = "it could not be run where it was published"
            logger.warning(f"The model takes none of the videos of its self-test: {error}")
            for video in SELF_TEST_VIDEOS:
                (folder / SELF_TEST / video.file).unlink()
    content = {
        "made_with": f"{describe_software()}; {describe_cpu()}",
        "untested": untested,
        "bounds": BOUNDS,
        "saved": saved_values(folder),
        "videos": videos,
    }
    (folder / RECORD).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def why_untested(folder: Path) -> str | None:
    """Why a model is not run on this machine; None if it can be."""
    config = read_part(folder, "config.json")
    architecture = config["architectures"][0]
    if architecture.endswith(("ForImageClassification", "ForConditionalGeneration")):
        return f"a {architecture} does not take a video alone"
    if not (folder / VIDEO_PROCESSOR_NAME).is_file():
        return f"it has no {VIDEO_PROCESSOR_NAME}"
    if config.get("quantization_config"):
        return "its weights are quantised"
    if config["model_type"] not in {kind.model_type for kind in MODEL_FOR_VIDEO_CLASSIFICATION_MAPPING}:
        return f"there is no self-test of a {architecture}"
    processor = read_part(folder, VIDEO_PROCESSOR_NAME)
    parameters = sum(torch.Size(shape).numel() for shape in _shapes(folder))
    views = (processor.get("num_clips") or 1) * (processor.get("num_crops") or 1)
    if parameters * views > MOST_PRODUCTS:
        return f"{parameters:,} parameters are many for {views} views on a CPU"
    if 4 * parameters > psutil.virtual_memory().available / 2:
        return f"its weights take {4 * parameters / GIB:.1f} GiB, more than half of the memory that is free"
    return None


def parts_of(folder: Path) -> tuple[Measured, Measured, Measured]:
    """What is measured of a model, in this order: the last one is its output."""
    architecture = read_part(folder, "config.json")["architectures"][0]
    is_classifier = architecture.endswith(("ForVideoClassification", "ForFrameClassification"))
    return "frames", "pixel_values", "logits" if is_classifier else "features"


def measure(folder: Path, part: Measured, device: str = "cpu", dtype: str = "float32") -> dict[str, torch.Tensor]:
    """What the videos of a self-test become on this machine, by file, on the CPU.

    Args:
        folder: the folder of a model with the videos.
        part: `frames` (num_frames, height, width, 3) uint8; `pixel_values` float32, see `VideoClipProcessor`; `logits`
            (1, num_classes) float32, of frames (1, token frames, num_classes); or `features` (1, hidden_size) float32,
            the mean over the tokens.
        device, dtype: where and in which type the model computes.

    Raises:
        ImportError, OSError, RuntimeError, ValueError: a video cannot be read, or the model not be loaded or run.
    """
    files = sorted((folder / SELF_TEST).glob("*.mp4"))
    if part == "frames":
        return {file.name: torch.from_numpy(read_video(file)[0]) for file in files}
    if part == "pixel_values":
        processor = load_processor(folder, load_config(folder))
        return {file.name: _clip(processor, file) for file in files}
    trained: Any = "any classifier" if part == "logits" else "base"
    network, processor = load_trained_model(str(folder), device=device, dtype=dtype, part=trained)
    outputs = {}
    for file in files:
        clip = _clip(processor, file)
        if part == "features":
            outputs[file.name] = encode_clips(network, clip, choose_features(network, "mean"))
            continue
        with torch.inference_mode():
            inputs = {network.main_input_name: clip.to(network.device, network.dtype)}
            outputs[file.name] = network(**inputs).logits.float().cpu()
    return outputs


def sample(tensor: torch.Tensor, number: int | None = NUM_SAMPLES) -> torch.Tensor:
    """(min(number, numel),) float32 of a tensor; None takes all. Multiples of the golden ratio spread the places over
    rows, columns, channels and frames alike."""
    flat = tensor.float().flatten()
    if number is None or len(flat) <= number:
        return flat
    return flat[(torch.arange(number, dtype=torch.float64) * 0.6180339887498949 % 1 * len(flat)).long()]


def saved_values(folder: Path) -> dict[str, dict[str, str]]:
    """What shows in no output of the model: under `labels` names by class id, and under `processor` values as JSON by
    the name of an option."""
    config = read_part(folder, "config.json")
    processors = [read_part(folder, name) for name in PROCESSORS if (folder / name).is_file()]
    options = {name: value for each in processors for name, value in each.items() if name != "auto_map"}
    return {
        "labels": {key: str(name) for key, name in (config.get("id2label") or {}).items()},
        "processor": {name: json.dumps(value, sort_keys=True) for name, value in options.items()},
    }


def describe_software() -> str:
    """The versions of this package and of what computes."""
    return ", ".join([f"hf_video {hf_video.__version__}", *(f"{name} {version(name)}" for name in VERSIONS)])


def describe_cpu() -> str:
    """What decides about the last bits of a result on a CPU, besides the versions."""
    instructions = torch.backends.cpu.get_cpu_capability()
    return f"{platform.machine()}, {instructions}, {torch.get_num_threads()} threads"


def _describe_videos(folder: Path) -> dict[str, dict[str, Any]]:
    """The field `videos` of a `SelfTest`."""
    videos: dict[str, dict[str, Any]] = {}
    for part in parts_of(folder):
        for file, tensor in measure(folder, part).items():
            sampled = sample(tensor, NUM_SAMPLES if part in ("frames", "pixel_values") else None)
            values = [float(f"{value:.7g}") for value in sampled.tolist()]
            videos.setdefault(file, {})[part] = {"shape": list(tensor.shape), "values": values}
    return videos


def _clip(processor: Any, file: Path) -> torch.Tensor:
    return processor(str(file), return_tensors="pt")[processor.model_input_names[0]]


def _shapes(folder: Path) -> list[list[int]]:
    """The shapes of all tensors."""
    shapes = []
    for file in folder.glob("*.safetensors"):
        with safe_open(file, framework="pt") as tensors:
            shapes += [tensors.get_slice(name).get_shape() for name in tensors.keys()]
    return shapes
