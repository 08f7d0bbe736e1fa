"""Print versions and hardware, ready to paste into a bug report."""

import os
import platform
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.metadata import PackageNotFoundError, version

from hf_video.settings import Settings
from hf_video.texts import count
from hf_video.version import __version__

from .command import command

PACKAGES = (
    *("torch", "torchvision", "transformers", "accelerate", "datasets", "huggingface_hub", "safetensors", "av"),
    *("torchcodec", "mamba-ssm", "triton", "numpy", "numba"),
)


@dataclass(kw_only=True)
class EnvSettings(Settings):
    """Settings of `hf-video env`, which has none."""


@command(help="describe this machine for a bug report", takes_several_processes=True)
def run(settings: EnvSettings) -> int:
    """Prints one line for each fact. A missing or broken package is a fact, not an error."""
    cpu, products = platform.processor() or platform.machine(), os.environ.get("HF_VIDEO_CPU_PRODUCTS", "not set")
    facts: dict[str, Callable[[], str]] = {
        "hf_video": lambda: __version__,
        "Python": platform.python_version,
        "OS": platform.platform,
        "CPU": lambda: f"{cpu}, {count(os.cpu_count() or 1, 'core')}",
        **{package: partial(version, package) for package in PACKAGES},
        "torchcodec usable": torchcodec_usable,
        "accelerator": _accelerator,
        "instructions and threads": _instructions,
        "compiled kernels": _compiled_kernels,
        "HF_VIDEO_CPU_PRODUCTS": lambda: products,
    }
    for name, ask in facts.items():
        try:
            fact = ask()
        except PackageNotFoundError:
            fact = "not installed"
        except Exception as error:
            fact = f"no ({type(error).__name__}: {(str(error) or 'no message').strip().splitlines()[0]})"
        print(f"- {name}: {fact}")
    return 0


def torchcodec_usable() -> str:
    from torchcodec.decoders import VideoDecoder  # noqa: F401

    return "yes"


def _accelerator() -> str:
    import torch

    device = torch.accelerator.current_accelerator(check_available=True)
    if device is None or device.type != "cuda":
        return "none" if device is None else device.type
    names = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    return f"CUDA {torch.version.cuda}, {', '.join(names)}"


def _instructions() -> str:
    """What decides about the last bits of a result, besides the versions."""
    import torch

    return f"{torch.backends.cpu.get_cpu_capability()}, {count(torch.get_num_threads(), 'thread')} of PyTorch"


def _compiled_kernels() -> str:
    from hf_video.ops.numba_vectors import exp2

    place = exp2.stats.cache_path
    return f"kept in {os.path.dirname(place)}" if place else "not kept: the cache folder cannot be written"
