"""
Chooses by a short measurement how the mixers of VideoMamba compute on this processor.

Which way is the quickest depends on the processor: one multiplies bfloat16 faster than float32, another one slower,
and no list of instruction sets tells which. So each way runs one layer of the model's own sizes for a moment. The
choice is kept in the user's cache folder, for each processor, build, number of threads and shape of layers. Each way
rounds otherwise: another one than the first has to be `NEEDED_GAIN` times as fast, so that noise decides nothing.

The environment variable `HF_VIDEO_CPU`, such as `products=float32,mixer=modules`, forces either or both.
"""

import contextlib
import dataclasses
import functools
import hashlib
import json
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from filelock import FileLock
from transformers.utils import logging

logger = logging.get_logger(__name__)

VARIABLE = "HF_VIDEO_CPU"
OPTIONS = {"products": ("float32", "bfloat16"), "mixer": ("fused", "modules")}
NEEDED_GAIN = 1.2
# Tokens of the first runs, and of the rounds that count.
FIRST_TOKENS, TOKENS = 64, 512
# A way of which the quickest of some first runs takes so many times as long as another's takes no part in the rounds.
FIRST_RUNS, HOPELESS = 3, 2.0
# Rounds that count, and the seconds after which none begins.
ROUNDS, LIMIT = 5, 0.3


class MixerShape(NamedTuple):
    """
    The layers that a choice is for.

    Attributes:
        dtype: in which their projections compute, `"float32"` or `"bfloat16"`.
    """

    hidden_size: int
    dim: int
    state_size: int
    rank: int
    taps: int
    num_directions: int
    dtype: str


@dataclasses.dataclass(frozen=True)
class CpuChoice:
    """
    How mixers compute.

    Attributes:
        products: the dtype of the matrix products in the fused mixer, if the projections are bfloat16.
        mixer: one operator (`mamba_mixer`), or modules one after the other.
    """

    products: Literal["float32", "bfloat16"] = "float32"
    mixer: Literal["fused", "modules"] = "fused"

    def __str__(self) -> str:
        return ",".join(f"{name}={value}" for name, value in dataclasses.asdict(self).items())


# What this process has chosen, by `key_of`, and what it has to keep to.
CHOSEN: dict[str, CpuChoice] = {}
HELD: dict[MixerShape, CpuChoice] = {}


def read_forced(text: str) -> dict[str, Any]:
    """
    The choices in a text such as `products=float32,mixer=modules`.

    Raises:
        ValueError: it names what is no choice.
    """
    forced = dict(word.strip().partition("=")[::2] for word in text.split(",") if word.strip())
    for name, value in forced.items():
        if value not in OPTIONS.get(name, ()):
            ways = " and ".join(f"{each}={' or '.join(values)}" for each, values in OPTIONS.items())
            raise ValueError(f"{name}={value} is no choice of how mixers compute on a CPU: give {ways}.")
    return forced


def force(text: str) -> None:
    """
    Force choices, as the environment variable does, in this process and those that it starts.

    Raises:
        ValueError: the text names what is no choice.
    """
    read_forced(text)
    os.environ[VARIABLE] = text


def hold(choices: Mapping[MixerShape, CpuChoice]) -> None:
    """Keep to choices that another process made, or an earlier run, in place of what would be measured here."""
    HELD.update(choices)


@torch.compiler.assume_constant_result
def choose(*shape: Any, with_backward: bool) -> CpuChoice:
    """
    The choice for layers of a shape, given as the fields of a [`MixerShape`]: forced, made before, or measured. A
    compiled graph keeps the choice that was made when it was compiled. With a backward, the mixer is fused unless
    modules are forced: it needs half the memory.

    Raises:
        ValueError: the environment variable names what is no choice.
    """
    from .mamba_mixer import has_whole_vectors

    forced = read_forced(os.environ.get(VARIABLE, ""))
    if MixerShape(*shape).dtype not in OPTIONS["products"] or not has_whole_vectors(MixerShape(*shape).dim):
        return CpuChoice(mixer="modules")  # the only way
    if MixerShape(*shape).dtype == "float32":
        forced |= {"products": "float32"}
    if forced.keys() >= OPTIONS.keys():
        return CpuChoice(**forced)
    if (choice := HELD.get(MixerShape(*shape))) is None:
        key = key_of(MixerShape(*shape))
        if key not in CHOSEN:
            CHOSEN[key] = _kept_or_measured(key, MixerShape(*shape))
            logger.info(f"{key}: {CHOSEN[key]}")
        choice = CHOSEN[key]
    return dataclasses.replace(choice, **({"mixer": "fused"} if with_backward else {}) | forced)


def key_of(shape: MixerShape) -> str:
    """All that a choice depends on, as JSON."""
    facts = {**machine_and_build(), "threads": torch.get_num_threads(), "layer": shape._asdict()}
    return json.dumps(facts)


@functools.cache
def machine_and_build() -> dict[str, str]:
    """The processor, its instructions as far as PyTorch may use them, and what compiles or ships kernels."""
    import llvmlite.binding
    import numba

    features = llvmlite.binding.get_host_cpu_features().flatten()
    return {
        "processor": f"{llvmlite.binding.get_host_cpu_name()} {hashlib.sha256(features.encode()).hexdigest()[:8]}",
        "PyTorch's instructions": torch.backends.cpu.get_cpu_capability(),
        "oneDNN's instructions": os.environ.get("ONEDNN_MAX_CPU_ISA", "all"),
        "torch": torch.__version__,
        "numba": numba.__version__,
    }


def kept_choices() -> Iterator[tuple[dict[str, Any], CpuChoice]]:
    """The choices that the cache folder has for this processor and build: threads and layer, and the choice."""
    here = machine_and_build()
    for file in sorted(choices_folder().glob("*.json")):
        if (kept := _read(file)) is not None and kept[0].items() >= here.items():
            yield kept


def choices_folder() -> Path:
    from .numba_vectors import cache_folder

    return cache_folder() / "cpu_choices"


def _read(file: Path) -> tuple[dict[str, Any], CpuChoice] | None:
    """What a choice depends on, and the choice; `None` if there is no whole file."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        kept = json.loads(file.read_text())
        return kept["facts"], CpuChoice(**kept["choice"])
    return None


def _kept_or_measured(key: str, shape: MixerShape) -> CpuChoice:
    """Of several processes that begin at once, one measures, and the others wait for what it finds."""
    file = choices_folder() / f"{hashlib.sha256(key.encode()).hexdigest()[:16]}.json"
    with contextlib.ExitStack() as stack:
        # A folder that cannot be written costs the measurement at each start, not the result.
        with contextlib.suppress(OSError):
            file.parent.mkdir(parents=True, exist_ok=True)
            stack.enter_context(FileLock(file.with_suffix(".lock")))
        if (kept := _read(file)) is not None:
            return kept[1]
        start = time.perf_counter()
        with ThreadPoolExecutor(1) as pool:  # a thread without the modes of this one, such as those of a compiler
            seconds = pool.submit(lambda: measure(runs_of(shape))).result()
        choice = decide(seconds)
        times = ", ".join(f"{name} {1e3 * value:.1f} ms" for name, value in seconds.items())
        logger.warning(
            f"Layers of {shape.hidden_size} channels in {shape.dtype} compute with {choice} on this processor, by a "
            f"measurement of {time.perf_counter() - start:.1f} s ({times}); {VARIABLE} forces another way."
        )
        with contextlib.suppress(OSError):
            unfinished = file.with_suffix(".unfinished")
            found = {"facts": json.loads(key), "choice": dataclasses.asdict(choice), "seconds": seconds}
            unfinished.write_text(json.dumps(found, indent=1))
            unfinished.replace(file)
    return choice


def decide(seconds: Mapping[str, float]) -> CpuChoice:
    """
    The choice by the seconds of the fused mixer with products in `"float32"`, of that in `"bfloat16"`, and of
    `"modules"`. What is missing was too slow or cannot run.
    """
    wide, narrow, modules = (seconds.get(name, math.inf) for name in ("float32", "bfloat16", "modules"))
    takes_narrow = narrow < wide / NEEDED_GAIN
    is_fused = modules >= (narrow if takes_narrow else wide) / NEEDED_GAIN
    return CpuChoice("bfloat16" if takes_narrow else "float32", "fused" if is_fused else "modules")


def measure(
    runs: Mapping[str, Callable[[int], Any]], clock: Callable[[], float] = time.perf_counter
) -> dict[str, float]:
    """
    The least seconds of each run over all rounds.

    Args:
        runs: each computes for so many tokens.
        clock: gives seconds.
    """

    def time_of(run: Callable[[int], Any], num_tokens: int) -> float:
        begin = clock()
        run(num_tokens)
        return clock() - begin

    for run in runs.values():
        run(FIRST_TOKENS)  # compiles kernels and wakes threads
    start = clock()
    first = {name: min(time_of(run, FIRST_TOKENS) for _ in range(FIRST_RUNS)) for name, run in runs.items()}
    hopeful = [name for name, seconds in first.items() if seconds < HOPELESS * min(first.values())]
    rounds: list[dict[str, float]] = []
    while len(rounds) < ROUNDS and (not rounds or clock() - start < LIMIT):
        rounds.append({name: time_of(runs[name], TOKENS) for name in hopeful})
    return {name: min(seconds[name] for seconds in rounds) for name in hopeful}


def runs_of(shape: MixerShape) -> dict[str, Callable[[int], Any]]:
    """Each way to compute the first tokens of a clip by a layer of a shape, with random weights."""
    from .mamba_mixer import Direction, convolve_and_scan, mamba_mixer

    hidden_size, dim, state_size, rank, taps, num_directions, name = shape
    dtype = getattr(torch, name)
    generator = torch.Generator().manual_seed(0)

    def random(*sizes: int, dtype: torch.dtype = dtype) -> torch.Tensor:
        return (torch.randn(sizes, generator=generator) / sizes[-1] ** 0.5).to(dtype)

    hidden_states, norm = random(1, TOKENS, hidden_size), random(hidden_size)
    in_proj, out_proj = random(2 * dim, hidden_size), random(hidden_size, dim)
    directions = [
        Direction(
            conv_weight=random(dim, taps),
            conv_bias=random(dim),
            x_proj=random(rank + 2 * state_size, dim),
            dt_proj=random(dim, rank),
            dt_bias=random(dim, dtype=torch.float32),
            A=-torch.rand(dim, state_size, generator=generator),
            D=random(dim, dtype=torch.float32),
        )
        for _ in range(num_directions)
    ]

    def fused(products: torch.dtype, num_tokens: int) -> None:
        weights = (norm, 1e-5, in_proj, out_proj, directions)
        mamba_mixer(hidden_states[:, :num_tokens], *weights, dtype, products)

    def project(direction: Direction, u: torch.Tensor, _: None) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        time_steps, B, C = F.linear(u.mT, direction.x_proj).split([rank, state_size, state_size], dim=-1)
        return F.linear(time_steps, direction.dt_proj).mT, B.mT, C.mT

    def modules(num_tokens: int) -> None:
        normalized = F.rms_norm(hidden_states[:, :num_tokens], norm.shape, norm)
        x, gate = F.linear(normalized, in_proj).mT.chunk(2, dim=1)
        scanned: Any = None
        for number, direction in enumerate(directions):
            scanned = convolve_and_scan(
                *(x, direction.conv_weight[:, None], direction.conv_bias, functools.partial(project, direction)),
                *(direction.A, direction.D, gate if number == num_directions - 1 else None, direction.dt_bias),
                reverse=number == 1,
                addend=scanned,
            )
        F.linear(scanned.mT, out_proj)

    names = OPTIONS["products"] if name == "bfloat16" else ("float32",)
    runs = {products: functools.partial(fused, getattr(torch, products)) for products in names} | {"modules": modules}
    return {name: torch.no_grad()(run) for name, run in runs.items()}
