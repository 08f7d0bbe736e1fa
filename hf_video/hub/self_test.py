"""The self-test of a published model: small videos beside the weights, and what they became on the way through it.

`self_test/self_test.json` has the labels and the options of the processor, and for each video some of its pixels, some
of the values that the model takes, and the logits, or the features of a model without classes.
"""

import json
import logging
import platform
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import torch
from huggingface_hub import snapshot_download
from transformers import MODEL_FOR_VIDEO_CLASSIFICATION_MAPPING as FAMILIES
from transformers.utils import VIDEO_PROCESSOR_NAME, cached_file

from hf_video.io import read_object
from hf_video.loading.configurations import load_config
from hf_video.loading.heads import load_pretraining_model, load_trained_classifier
from hf_video.loading.models import choose_device, locate_model
from hf_video.loading.processors import load_processor
from hf_video.reading import read_video
from hf_video.texts import count
from hf_video.version import __version__

from .folder_checks import PROCESSORS, PUBLISHED, SELF_TEST, PublishError, read_part
from .loading_check import output_of, run_as_stranger

logger = logging.getLogger(__name__)

RECORD = f"{SELF_TEST}/self_test.json"
# One is wide and longer than most clips, the other one is upright and shorter. `benchmarks/self_test.py` drew them.
VIDEOS = Path(__file__).with_name("self_test_videos")
# The largest difference allowed, as a share of the largest value. `benchmarks/self_test.py` measures what occurs.
BOUNDS = {"frames": 0.01, "pixel_values": 0.02, "float32": 1e-4, "float16": 0.02, "bfloat16": 0.1}
# Values of pixels that differ by more were rounded to another of the 256 levels when a frame was resized.
SAME_INPUT = 1e-5
# Bytes of weights times views. The test of VideoViT-L with 15 views takes minutes on two cores.
MOST_WORK = 2e10
NUM_SAMPLES = 500
VERSIONS = ("torch", "torchvision", "transformers", "av")
# What loading and running a model raises that does not fit its files, its machine or its input.
RUN_ERRORS = (ImportError, OSError, RuntimeError, ValueError)

Measured = Literal["frames", "pixel_values", "logits", "features"]


@dataclass(frozen=True)
class Finding:
    """Whether a part of a model (`frames`, `processor`, `pixel_values`, `labels`, `logits` or `features`) is here as
    it was where it was published, None if it was not compared; what was compared, or the first thing that differs; and
    of numbers the largest difference as a share of the largest value."""

    part: str
    agrees: bool | None
    text: str
    difference: float | None = None


@dataclass(frozen=True)
class Verification:
    """What [`verify_model`] found of each part, in the order in which a video passes them; device, dtype, scan,
    versions and machine of this run; and versions and machine that the self-test was made with."""

    findings: list[Finding]
    here: str
    made_with: str

    @property
    def first_difference(self) -> Finding | None:
        """The first part that differs; None if the model is verified."""
        return next((finding for finding in self.findings if finding.agrees is False), None)


def write_self_test(folder: Path) -> None:
    """Loads a whole repository as a stranger would, and adds its self-test, computed there on the CPU in float32. If
    the model takes no such video, the test has labels and options alone. Errors are those of `run_as_stranger`."""
    measured: dict[Measured, dict[str, torch.Tensor]] = {"frames": {}, "pixel_values": {}}
    (folder / SELF_TEST).mkdir()
    untested, problem = why_untested(folder), None
    if untested is None:
        shutil.copytree(VIDEOS, folder / SELF_TEST, dirs_exist_ok=True)
        try:
            measured = {part: measure(folder, part) for part in measured}
        except RUN_ERRORS as error:
            problem = str(error)
    found = run_as_stranger(folder, measured["pixel_values"])
    if found["difference"] > BOUNDS["pixel_values"]:
        raise PublishError("The processor gives other values where hf_video is not installed. Please report it.")
    if problem := problem or found["error"]:
        # The error may name folders of this machine, so it is not published.
        logger.warning(f"The model takes none of the videos of its self-test: {problem}")
        untested = "it could not be run where it was published"
        for file in (folder / SELF_TEST).iterdir():
            file.unlink()
    measured[_output(folder)] = {name: torch.tensor(values) for name, values in found["outputs"].items()}
    videos: dict[str, dict[str, Any]] = {}
    for part, tensors in measured.items() if untested is None else ():
        for name, tensor in tensors.items():
            sampled = sample(tensor, NUM_SAMPLES if part in ("frames", "pixel_values") else tensor.numel())
            values = [float(f"{value:.7g}") for value in sampled.tolist()]
            videos.setdefault(name, {})[part] = {"shape": list(tensor.shape), "values": values}
    content: dict[str, Any] = {"made_with": describe_machine(), "untested": untested, "bounds": BOUNDS}
    content |= {"saved": saved_values(folder), "videos": videos}
    (folder / RECORD).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def verify_model(
    model: str, *, revision: str | None = None, device: str = "auto", dtype: str = "float32"
) -> Verification:
    """Run the self-test of a published model: read its videos, prepare them, run the model, and compare each step with
    what it gave where the model was published. The labels and the options of the processor must be equal.

    Of a model that was not run there only these two are compared.

    Args:
        model: a folder, or a repository on the Hub.
        revision: branch, tag or commit of a repository.
        device: a device of PyTorch, or "auto" for an accelerator if there is one.
        dtype: "float32", "bfloat16" or "float16". The logits of the last two may differ more.

    Raises:
        OSError: there is no such model.
        ValueError: the model has no self-test, or the device does not exist.
    """
    target = choose_device(device)
    folder = Path(locate_model(model))
    if not folder.is_dir():
        # Of no such repository, the error of Transformers says more.
        cached_file(model, "config.json", revision=revision)
        folder = Path(snapshot_download(model, revision=revision, allow_patterns=[*PUBLISHED, f"{SELF_TEST}/*"]))
    if not (folder / RECORD).is_file():
        raise ValueError(f"{model} has no self-test ({RECORD}): publish it again, with `hf-video publish`.")
    test, saved, output = read_object(folder / RECORD), saved_values(folder), _output(folder)
    compared = {part: _compare_saved(part, test["saved"][part], found) for part, found in saved.items()}
    measured: tuple[Measured, ...] = ("frames", "pixel_values", output)
    for part in measured:
        if test["untested"]:
            compared[part] = Finding(part, None, f"not compared: {test['untested']}")
            continue
        bound = part if part in BOUNDS else _precision(target, dtype, compared["pixel_values"].difference)
        compared[part] = _compare_measured(folder, part, test, bound, device=str(target), dtype=dtype)
    findings = [compared[part] for part in ("frames", "processor", "pixel_values", "labels", output)]
    here = f"{target}, {dtype}{_scan(folder, target, dtype)}; {describe_machine()}"
    return Verification(findings, here, test["made_with"])


def why_untested(folder: Path) -> str | None:
    """Why a model is not run when it is published; None if it is."""
    config, families = read_part(folder, "config.json"), {each.model_type for each in FAMILIES}
    architecture = config["architectures"][0]
    if config["model_type"] not in families or architecture.endswith(("ImageClassification", "ConditionalGeneration")):
        return f"there is no self-test of a {architecture}"
    if config.get("quantization_config"):
        return "its weights are quantised"
    if not (folder / VIDEO_PROCESSOR_NAME).is_file():
        return f"it has no {VIDEO_PROCESSOR_NAME}"
    processor = read_part(folder, VIDEO_PROCESSOR_NAME)
    size = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    views = (processor.get("num_clips") or 1) * (processor.get("num_crops") or 1)
    return f"{size:,} bytes of weights are many for {views} views on a CPU" if size * views > MOST_WORK else None


def measure(folder: Path, part: Measured, device: str = "cpu", dtype: str = "float32") -> dict[str, torch.Tensor]:
    """What the videos of a self-test become here, by file, on the CPU: `frames` (num_frames, height, width, 3) uint8,
    `pixel_values` (1, ...) float32, and for `logits` and `features` see `output_of`. Raises `RUN_ERRORS`."""
    files = sorted((folder / SELF_TEST).glob("*.mp4"))
    if part == "frames":
        return {file.name: torch.from_numpy(read_video(file)[0]) for file in files}
    config = load_config(folder)
    processor = load_processor(folder, config)
    name = processor.model_input_names[0]
    clips = {file.name: processor(str(file), return_tensors="pt")[name] for file in files}
    if part == "pixel_values":
        return clips
    if config.architectures[0].endswith("ForPreTraining"):  # its encoder may have a norm that others do not have
        network = load_pretraining_model(folder, dtype=dtype)
    else:
        network = load_trained_classifier(folder, part="any classifier" if part == "logits" else "base", dtype=dtype)
    network = network.to(device).eval()
    return {file: output_of(network, clip) for file, clip in clips.items()}


def sample(tensor: torch.Tensor, number: int = NUM_SAMPLES) -> torch.Tensor:
    """(min(number, numel),) float32. Multiples of the golden ratio spread the places over all axes alike."""
    flat = tensor.float().flatten()
    places = (torch.arange(number, dtype=torch.float64) * 0.6180339887498949 % 1 * len(flat)).long()
    return flat if len(flat) <= number else flat[places]


def saved_values(folder: Path) -> dict[str, dict[str, str]]:
    """What shows in no output of the model: `labels` by class id, and options of the `processor` as JSON by name."""
    processors = [read_part(folder, name) for name in PROCESSORS if (folder / name).is_file()]
    options = {name: json.dumps(value, sort_keys=True) for each in processors for name, value in each.items()}
    options.pop("auto_map", None)
    labels = read_part(folder, "config.json").get("id2label") or {}
    return {"labels": {key: str(name) for key, name in labels.items()}, "processor": options}


def describe_machine() -> str:
    """The versions of this package and of what computes, and what else decides about the last bits of a result."""
    versions = ", ".join([f"hf_video {__version__}", *(f"{name} {version(name)}" for name in VERSIONS)])
    instructions, threads = torch.backends.cpu.get_cpu_capability(), torch.get_num_threads()
    return f"{versions}; {platform.machine()}, {instructions}, {count(threads, 'thread')}"


def _output(folder: Path) -> Measured:
    architecture = read_part(folder, "config.json")["architectures"][0]
    return "logits" if architecture.endswith(("ForVideoClassification", "ForFrameClassification")) else "features"


def _compare_saved(part: str, expected: Mapping[str, str], found: Mapping[str, str]) -> Finding:
    names = [name for name in {**expected, **found} if expected.get(name) != found.get(name)]
    if not names:
        return Finding(part, True, f"{len(found)} are equal")
    more = f", and {len(names) - 1} more" if names[1:] else ""
    here, there = (each.get(names[0], "missing") for each in (found, expected))
    return Finding(part, False, f"{names[0]} is {here:.60}, published was {there:.60}{more}")


def _compare_measured(folder: Path, part: Measured, test: dict[str, Any], bounded_by: str, **where: str) -> Finding:
    try:
        found = measure(folder, part, **where)
    except RUN_ERRORS as error:
        return Finding(part, False, f"cannot be computed: {error}")
    difference = torch.zeros(())
    for name, published in test["videos"].items():
        if name not in found:
            return Finding(part, False, f"{SELF_TEST}/{name} is missing")
        wanted, shape = torch.tensor(published[part]["values"]), list(found[name].shape)
        if shape != published[part]["shape"]:
            return Finding(part, False, f"of {name} have the shape {shape}, published was {published[part]['shape']}")
        largest = (sample(found[name], len(wanted)) - wanted).abs().max() / wanted.abs().max().clamp(min=1e-12)
        difference = torch.maximum(difference, largest)  # keeps NaN
    bound = test["bounds"][bounded_by]
    text = f"largest difference {difference:.1e} of the largest value, {bound:g} is allowed"
    return Finding(part, bool(difference <= bound), text, float(difference))


def _precision(device: torch.device, dtype: str, input_difference: float | None) -> str:
    """The dtype whose bound the outputs must keep. That of float32 counts where a CPU gets the same input: with other
    instructions it resizes frames to values of pixels that are one level off, and accelerators may multiply float32 as
    TF32, with the digits of float16."""
    is_exact = device.type == "cpu" and input_difference is not None and input_difference <= SAME_INPUT
    return "float16" if dtype == "float32" and not is_exact else dtype


def _scan(folder: Path, device: torch.device, dtype: str) -> str:
    """What computes the scans of a VideoMamba."""
    config = read_part(folder, "config.json")
    if config["model_type"] != "videomamba":
        return ""
    from hf_video.ops.selective_scan import choose_backend

    backend = choose_backend(device.type, getattr(torch, dtype), config.get("state_size", 16), False, None)
    return f", selective scan {backend}"
