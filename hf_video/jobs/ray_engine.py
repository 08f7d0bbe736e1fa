"""The engine that works in processes of Ray, on one machine or on a cluster.

Ray Data hands the parts to a pool of decoders, actors that read the videos of a part and write its rows. The pool
grows and shrinks between two bounds. Decoders send batches to models, actors of their own, which may have a GPU. A
decoder has a fixed number of batches under way, and waits for the oldest one: so memory stays flat however long a
video is and however slow the models are. A model or decoder that dies is started again, and what it was doing is done
again.
"""

from __future__ import annotations

import copyreg
import logging
import os
import pickle
import secrets
import sys
import warnings
from collections import Counter, deque
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import ray
import torch
from ray.exceptions import RayError
from transformers.utils.output_capturing import CompileableContextVar

from hf_video.data.loader import available_cores, iterate_ahead

from .batches import Batch, encode_batch, pieces_of, portable_error, portable_videos
from .runner import Encoded, Part, PartResult, Sink, do_part
from .tasks import Task

if TYPE_CHECKING:
    from transformers import PreTrainedModel

# Batches that a decoder has under way: one that a model computes with, and one that waits for it.
_LEAST_UNDER_WAY = 2
# Times that a part is begun, as its decoder may die: a video may end whoever reads it.
_ATTEMPTS = 4

# The hooks of Transformers that keep hidden states, which a backbone has from the start, use this variable of their
# module. A pickled model names it, as it cannot be pickled.
copyreg.pickle(CompileableContextVar, lambda collector: "_active_collector")

logger = logging.getLogger(__name__)


@dataclass
class RayEngine:
    """Does parts in processes of Ray.

    Attributes:
        model: on the CPU; its copies go to the actors.
        batch_size: pieces in a batch.
        address: the address of a cluster, "auto" for the one that this machine belongs to; None starts Ray on this
            machine.
        min_decoders, max_decoders: bounds of the pool of decoders, each with a core. By default the pool may have
            every core that the models leave.
        models: actors with a model; by default one for each GPU, or without GPUs one for every two cores.
        num_gpus: GPUs of each model; by default 1 if the cluster has any, unless `device` is a CPU.
        device: "auto", or the device of each model.
    """

    model: PreTrainedModel
    batch_size: int = 8
    address: str | None = None
    min_decoders: int = 1
    max_decoders: int | None = None
    models: int | None = None
    num_gpus: float | None = None
    device: str = "auto"

    def __call__(self, task: Task, parts: Sequence[Part], sink: Sink) -> Generator[PartResult]:
        if parts:
            with _connected(self.address):
                yield from self._run(task, parts, sink)

    def _run(self, task: Task, parts: Sequence[Part], sink: Sink) -> Iterator[PartResult]:
        # Only the driver needs it.
        from ray.data import ActorPoolStrategy, DataContext, from_arrow

        context = DataContext.get_current()
        context.enable_progress_bars = False
        context.print_on_execution_start = False
        logging.getLogger("ray.data").setLevel(logging.CRITICAL)
        num_models, num_gpus, decoders = self._divide(ray.cluster_resources())
        actor = ray.remote(num_cpus=1, num_gpus=num_gpus, max_restarts=-1, max_task_retries=-1)(ModelActor)
        # Pickled, a reference holds its object as long as Ray runs: actors that start again need it.
        weights = ray.cloudpickle.dumps(ray.put(self.model))
        models = [actor.remote(task, weights, self.device) for _ in range(num_models)]
        under_way = max(_LEAST_UNDER_WAY, -(-2 * num_models // decoders[1]))
        # A block for each part, so that each is a task of its own.
        blocks = [
            pa.table({"part": [pickle.dumps(part._replace(videos=portable_videos(part.videos)))]}) for part in parts
        ]
        results = from_arrow(blocks).map(
            Decoder,
            fn_constructor_args=(task, sink, models, under_way, self.batch_size),
            compute=ActorPoolStrategy(min_size=decoders[0], max_size=decoders[1]),
            num_cpus=1,
        )
        try:
            for row in results.iter_rows():
                result = pickle.loads(row["result"])
                if isinstance(result, Exception):
                    raise result
                if result is not None:
                    yield result
        except RayError as error:  # an actor cannot start
            raise _without_ray(error) from error

    def _divide(self, resources: dict[str, float]) -> tuple[int, float, tuple[int, int]]:
        """The number of models, the GPUs of each, and the bounds of the pool of decoders, for a cluster as it is. It
        may grow."""
        cores, gpus = int(resources.get("CPU", 0)), resources.get("GPU", 0.0)
        num_gpus = float(gpus > 0 and self.device != "cpu") if self.num_gpus is None else self.num_gpus
        models = self.models or max(int(gpus / num_gpus) if num_gpus else cores // 2, 1)
        most = self.max_decoders or max(cores - models, self.min_decoders)
        least = min(self.min_decoders, most)
        if cores < models + least or gpus < models * num_gpus:
            logger.warning(
                f"{models} models with a core and {num_gpus:g} GPUs each, and {least} decoders with a core each, are "
                f"more than the {cores} cores and {gpus:g} GPUs of the cluster: some wait until it grows."
            )
        return models, num_gpus, (least, most)


class ModelActor:
    """Encodes batches with a model.

    Args:
        task: encodes.
        model: the pickled reference to the driver's model.
        device: "auto", or where to compute.
    """

    def __init__(self, task: Task, model: bytes, device: str):
        # Arrays from other processes are read-only, and nothing writes to them here.
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")
        if device == "auto":
            chosen = torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")
        else:
            chosen = torch.device(device)
        self._begun: Counter[str] = Counter()
        self._task, self._model = task, ray.get(pickle.loads(model)).to(chosen).eval()

    def begin(self, part: str) -> int:
        """How many times a part was begun. Decoders that die do not know."""
        self._begun[part] += 1
        return self._begun[part]

    def encode(self, pixel_values: np.ndarray) -> list[np.ndarray | Exception]:
        outputs = encode_batch(self._task, self._model, pixel_values)
        return [portable_error(each) if isinstance(each, Exception) else each for each in outputs]


class Decoder:
    """Does a part: reads its videos, has them encoded by models, and writes their outputs."""

    def __init__(self, task: Task, sink: Sink, models: Sequence[Any], under_way: int, batch_size: int):
        if not sink.is_claimed():
            raise ValueError(
                f"{sink.place} is not there on every machine of the cluster: choose an --output on a disk that all "
                "of them share, or the URL of an object store."
            )
        self._task, self._sink, self._models = task, sink, models
        self._under_way, self._batch_size = under_way, batch_size

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        part: Part = pickle.loads(row["part"])
        result: PartResult | Exception | None = None
        try:
            if ray.get(self._models[0].begin.remote(part.name)) <= _ATTEMPTS:
                readings = (pieces_of(self._task, video) for video in part.videos)
                result = do_part(self._task, part, self._sink, self._encode, self._batch_size, readings)
        except Exception as error:
            # Ray would log it, and wrap it in an error of its own.
            result = _without_ray(error)
        return {"result": pickle.dumps(result)}

    def _encode(self, batches: Iterator[Batch]) -> Encoded:
        waiting: deque[tuple[Batch, int, Any]] = deque()
        load = [0] * len(self._models)
        # Decoders begin with different models.
        turn = os.getpid()

        def oldest() -> tuple[Batch, list[np.ndarray | Exception]]:
            batch, model, reference = waiting.popleft()
            outputs = ray.get(reference)
            load[model] -= 1
            return batch, outputs

        for batch in iterate_ahead(batches):
            if len(waiting) == self._under_way:
                yield oldest()
            model = min(range(len(load)), key=lambda place: (load[place], (place + turn) % len(load)))
            reference = self._models[model].encode.remote(batch.pixel_values)
            load[model] += 1
            waiting.append((batch._replace(pixel_values=batch.pixel_values[:0].copy()), model, reference))
            del batch
        while waiting:
            yield oldest()


@contextmanager
def _connected(address: str | None) -> Iterator[None]:
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    # Ray warns of its own actors in Ray Data; what matters to a user comes as an error.
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
    if address is None:
        # Whoever reaches a cluster can run programs on it. This one is for this process alone. Without a token in the
        # environment, Ray would write one into the home of the user.
        os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        # A model and a decoder need a core each.
        cores = max(available_cores(), 2)
        where: dict[str, Any] = {"num_cpus": cores, "include_dashboard": False, "_node_ip_address": "127.0.0.1"}
    else:
        where = {"address": address}
    with _silent():
        ray.init(**where, **quiet)
    # A thread of Ray prints what becomes of each actor.
    with open(os.devnull, "w") as nothing, redirect_stdout(nothing):
        try:
            yield
        finally:
            ray.shutdown()


@contextmanager
def _silent() -> Iterator[None]:
    """Drops what the block prints, libraries in C++ included: Ray says there which log level it has."""
    sys.stdout.flush()
    sys.stderr.flush()
    kept, nothing = (os.dup(1), os.dup(2)), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nothing, 1)
        os.dup2(nothing, 2)
        yield
    finally:
        for number, descriptor in enumerate(kept, start=1):
            os.dup2(descriptor, number)
            os.close(descriptor)
        os.close(nothing)


def _without_ray(error: Exception) -> Exception:
    """The error without what Ray puts around that of another process; one that can be pickled."""
    cause = getattr(error, "cause", None)
    inner = cause if isinstance(cause, Exception) else error
    if isinstance(inner, RayError):
        *_, reason = str(inner).rstrip().splitlines()
        return ChildProcessError(
            f"A process of Ray could not go on: {reason} Every machine of a cluster needs the same hf-video and "
            "Python, and has to see --output."
        )
    return portable_error(inner)
