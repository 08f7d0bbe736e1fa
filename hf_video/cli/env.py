"""`hf-video env`: prints the facts about a machine that a bug report needs."""

import importlib.metadata
import os
import platform
from collections.abc import Callable
from dataclasses import dataclass

import hf_video
from hf_video.settings import Settings

from .command import Command

PACKAGES = (
    "torch",
    "torchvision",
    "transformers",
    "accelerate",
    "datasets",
    "huggingface_hub",
    "safetensors",
    "av",
    "torchcodec",
    "mamba-ssm",
    "triton",
    "numpy",
    "numba",
)


@dataclass(kw_only=True)
class EnvSettings(Settings):
    """Settings of `hf-video env`, which has none."""


def run(settings: EnvSettings) -> int:
    """Prints one line for each fact. A missing or broken package is a fact, not an error."""
    facts = {
        "hf_video": hf_video.__version__,
        "Python": platform.python_version(),
        "OS": platform.platform(),
        "CPU": f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores",
        **{package: _version(package) for package in PACKAGES},
        "torchcodec usable": _ask(torchcodec_usable),
        "accelerator": _ask(_accelerator),
        "instructions and threads": _ask(_instructions),
        "compiled kernels": _ask(_compiled_kernels),
        "HF_VIDEO_CPU_PRODUCTS": os.environ.get("HF_VIDEO_CPU_PRODUCTS", "not set"),
    }
    for name, fact in facts.items():
        print(f"- {name}: {fact}")
    return 0


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _ask(question: Callable[[], str]) -> str:
    """The answer to a question, or why there is none: this command must work in a broken installation."""
    try:
        return question()
    except Exception as error:
        return f"no ({type(error).__name__}: {(str(error) or 'no message').strip().splitlines()[0]})"


def torchcodec_usable() -> str:
    from torchcodec.decoders import VideoDecoder  # noqa: F401

    return "yes"


def _accelerator() -> str:
    import torch

    device = torch.accelerator.current_accelerator(check_available=True)
    if device is None:
        return "none"
    if device.type != "cuda":
        return device.type
    names = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    return f"CUDA {torch.version.cuda}, {', '.join(names)}"


def _instructions() -> str:
    """What decides about the last bits of a result, besides the versions."""
    import torch

    return f"{torch.backends.cpu.get_cpu_capability()}, {torch.get_num_threads()} threads of PyTorch"


def _compiled_kernels() -> str:
    from hf_video.ops.numba_vectors import exp2

    place = exp2.stats.cache_path
    return f"kept in {os.path.dirname(place)}" if place else "not kept: the cache folder cannot be written"


COMMAND = Command(
    name="env",
    settings=EnvSettings,
    run=run,
    help="describe this machine for a bug report",
    description="Print versions and hardware, ready to paste into a bug report.",
    takes_several_processes=True,
)
