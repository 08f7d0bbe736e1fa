"""The engine of bulk use that works in processes of Ray, on one machine or on a cluster.

Ray Data hands the parts to a pool of decoders, actors that read the videos of a part and write its rows. The pool
grows and shrinks between two bounds. Decoders send batches to models, actors of their own, which may have a GPU. A
decoder has a fixed number of batches under way, and waits for the oldest one: so memory stays flat however long a
video is and however slow the models are. A model or decoder that dies is started again, and what it was doing is done
again.
"""

import logging
import os
import pickle
import secrets
import warnings
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import ray
import torch
from ray.data import ActorPoolStrategy, DataContext
from transformers import PreTrainedModel

from hf_video.data.read_ahead import available_cores, iterate_ahead
from hf_video.data.video_column import BYTES, open_video
from hf_video.data.video_listing import ListedVideo

from .bulk_batches import Batch, BulkVideo, Encoded, encode_batch, is_of_machine
from .bulk_parts import Part, PartFolder
from .bulk_run import Engine, PartResult, do_part
from .bulk_tasks import BulkTask

# Batches that a decoder has under way: one that a model computes with, and one that waits for it.
_LEAST_UNDER_WAY = 2
# Times that a part is begun anew after its decoder died: a video may kill whoever reads it.
_RETRIES = 5
# Seconds between two words about what a cluster lacks.
_PATIENCE = 30

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class RaySettings:
    """How much of which cluster is used.

    Attributes:
        address: the address of a cluster, "auto" for the one that this machine belongs to; None starts Ray on this
            machine.
        min_decoders, max_decoders: bounds of the pool of decoders, each with a core. By default the pool may have
            every core that the models leave.
        models: actors with a model; by default one for each GPU, or without GPUs one for every two cores.
        num_gpus: GPUs of each model; by default 1 if the cluster has any, unless `device` is a CPU.
        device: "auto", or the device of each model.
    """

    address: str | None = None
    min_decoders: int = 1
    max_decoders: int | None = None
    models: int | None = None
    num_gpus: float | None = None
    device: str = "auto"


class ModelActor:
    """Encodes batches with a model, which comes with the driver's weights."""

    def __init__(self, task: BulkTask, model: PreTrainedModel, device: str):
        # Arrays from other processes are read-only, and nothing writes to them here.
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")
        if device == "auto":
            chosen = torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")
        else:
            chosen = torch.device(device)
        self._task, self._model = task, model.to(chosen).eval()

    def ready(self) -> None:
        """Returns when the model is there."""

    def encode(self, pixel_values: np.ndarray) -> Encoded:
        return encode_batch(self._task, self._model, pixel_values)


class Decoder:
    """Does a part: reads its videos, has them encoded by models, and writes its rows."""

    def __init__(self, task: BulkTask, folder: PartFolder, models: Sequence[Any], under_way: int, batch_size: int):
        if folder.read_key() is None:
            raise ValueError(
                f"{folder.place} is not there on every machine of the cluster: choose an --output on a disk that all "
                "of them share, or the URL of an object store."
            )
        self._task, self._folder, self._models = task, folder, models
        self._under_way, self._batch_size = under_way, batch_size

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        try:
            result = do_part(self._task, pickle.loads(row["part"]), self._folder, self._encode, self._batch_size)
        except Exception as error:
            # Ray would log it, and wrap it in an error of its own.
            return {"result": pickle.dumps(_without_ray(error))}
        return {"result": pickle.dumps(result)}

    def _encode(self, batches: Iterator[Batch]) -> Iterator[tuple[Batch, Encoded]]:
        waiting: deque[tuple[Batch, int, Any]] = deque()
        load = [0] * len(self._models)
        # Decoders begin with different models.
        turn = os.getpid()

        def oldest() -> tuple[Batch, Encoded]:
            batch, model, reference = waiting.popleft()
            encoded = ray.get(reference)
            load[model] -= 1
            return batch, encoded

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


def ray_engine(
    task: BulkTask, model: PreTrainedModel, folder: PartFolder, batch_size: int, settings: RaySettings
) -> Engine:
    """Does parts in processes of Ray.

    Args:
        task: what is computed.
        model: on the CPU; its copies go to the actors.
        folder: where the parts are written, which every machine of the cluster sees.
        batch_size: pieces in a batch.
        settings: how much of which cluster is used.
    """

    def engine(parts: Sequence[Part]) -> Iterator[PartResult]:
        with _connected(settings):
            models = _start_models(task, model, settings)
            yield from _run(task, folder, parts, models, batch_size, settings)

    return engine


@contextmanager
def _connected(settings: RaySettings) -> Iterator[None]:
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    if settings.address is None:
        # Whoever reaches a cluster can run programs on it. This one is for this process alone, and its token is not
        # written into the user's home.
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        if "RAY_AUTH_MODE" not in os.environ:
            os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
        # A model and a decoder need a core each.
        ray.init(num_cpus=max(available_cores(), 2), include_dashboard=False, _node_ip_address="127.0.0.1", **quiet)
    else:
        ray.init(address=settings.address, **quiet)
    try:
        yield
    finally:
        ray.shutdown()


def _start_models(task: BulkTask, model: PreTrainedModel, settings: RaySettings) -> list[Any]:
    resources = ray.cluster_resources()
    has_gpus = bool(resources.get("GPU")) and settings.device != "cpu"
    num_gpus = float(has_gpus) if settings.num_gpus is None else settings.num_gpus
    by_gpus, by_cores = int(resources.get("GPU", 0) / (num_gpus or 1)), int(resources.get("CPU", 1) // 2)
    count = settings.models or max(by_gpus if num_gpus else by_cores, 1)
    actor = ray.remote(num_cpus=1, num_gpus=num_gpus, max_restarts=-1, max_task_retries=-1)(ModelActor)
    copies = ray.put(model)
    models = [actor.remote(task, copies, settings.device) for _ in range(count)]
    left = [each.ready.remote() for each in models]
    while left:
        _, left = ray.wait(left, num_returns=len(left), timeout=_PATIENCE)
        if left:
            logger.warning(
                f"Waiting for Ray to start {len(left)} of {count} models, each with a core and {num_gpus:g} GPUs. The "
                f"cluster has {resources.get('CPU', 0):g} cores and {resources.get('GPU', 0):g} GPUs."
            )
    return models


def _run(
    task: BulkTask,
    folder: PartFolder,
    parts: Sequence[Part],
    models: Sequence[Any],
    batch_size: int,
    settings: RaySettings,
) -> Iterator[PartResult]:
    context = DataContext.get_current()
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    cores = int(ray.cluster_resources().get("CPU", 2))
    most = settings.max_decoders or max(cores - len(models), settings.min_decoders)
    under_way = max(_LEAST_UNDER_WAY, -(-2 * len(models) // most))
    pool = ActorPoolStrategy(min_size=min(settings.min_decoders, most), max_size=most)
    # A block for each part, so that each is a task of its own.
    blocks = [pa.table({"part": [pickle.dumps(_portable(part))]}) for part in parts]
    results = ray.data.from_arrow(blocks).map(
        Decoder,
        fn_constructor_args=(task, folder, models, under_way, batch_size),
        compute=pool,
        num_cpus=1,
        max_restarts=-1,
        max_task_retries=_RETRIES,
    )
    for row in results.iter_rows():
        result = pickle.loads(row["result"])
        if isinstance(result, Exception):
            raise result
        yield result


@dataclass(frozen=True)
class _PortableVideo:
    """A video that another process can open, without the data set that lists it."""

    id: str
    source: str
    row: dict[str, Any] | None

    def open(self) -> Any:
        return self.source if self.row is None else open_video(self.row)


def _portable(part: Part) -> Part:
    return part._replace(videos=[_portable_video(video) for video in part.videos])


def _portable_video(video: BulkVideo) -> BulkVideo:
    if not isinstance(video, ListedVideo) or video.rows is None:
        return video
    if BYTES in video.rows.column_names:
        raise ValueError(
            f"{video.source} is stored inside a data set, which would pass through the memory of Ray: use --engine "
            "local, or pack the videos with `hf-video pack`."
        )
    return _PortableVideo(video.id, video.source, video.rows[video.row])


def _without_ray(error: Exception) -> Exception:
    """The error that an actor raised, without what Ray put around it."""
    cause = getattr(error, "cause", None)
    return cause if isinstance(cause, Exception) and is_of_machine(cause) else error
