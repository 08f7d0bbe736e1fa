"""The rows of many videos on Ray, on one machine or on a cluster: Ray Data reads, computes and writes.

Backpressure, retries and lost nodes are Ray's. What it could not do is done by the next try, as the rows say it.
"""

from __future__ import annotations

import logging
import math
import os
import pickle
import secrets
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Any

import pyarrow as pa
import ray
from ray.data import ActorPoolStrategy, DataContext, from_items
from ray.data.datasource import FilenameProvider
from ray.data.exceptions import SystemException
from ray.exceptions import RayError

from hf_video.data.loader import available_cores

from .rows import RowFolder, table_of
from .run import Row, Todo, batches, encode, read_rows, reason_of
from .tasks import Task

logger = logging.getLogger(__name__)


class Reader:
    """Reads the pieces of videos."""

    def __init__(self, task: Task):
        self.task = task

    def __call__(self, item: dict[str, Any]) -> Iterator[dict[str, Any]]:
        for row in read_rows(self.task, pickle.loads(item["todo"])):
            # What a decoder raises may not travel.
            error = None if row.error is None else RuntimeError(reason_of(row.error))
            yield {"row": pickle.dumps(row._replace(error=error))}


class Model:
    """Makes rows of pieces with a model that it loads."""

    def __init__(self, folder: RowFolder, load: Callable[[], Sequence[Any]]):
        if not folder.is_claimed():
            raise ValueError(
                f"{folder} is not there on every machine of the cluster: choose an --output on a disk that all of "
                "them share, or the URL of an object store."
            )
        self.task, self.model = folder.task, load()[0].eval()

    def __call__(self, table: pa.Table) -> Iterator[pa.Table]:
        rows: list[Row] = [pickle.loads(row.as_buffer()) for row in table["row"]]
        found = (encode(self.task, self.model, batch) for batch in batches(rows, len(rows)))
        yield table_of(self.task, list(chain.from_iterable(found)))


class PartNames(FilenameProvider):
    """Names the files as those of the other engine."""

    def get_filename_for_task(self, write_uuid: str, task_index: int) -> str:
        return f"part-{write_uuid}-{task_index:06}.parquet"


def run_on_ray(
    folder: RowFolder,
    todo: list[Todo],
    load: Callable[[], Sequence[Any]],
    left: Callable[[], list[Todo]],
    settings: Any,
) -> None:
    """Writes rows as far as they can be had. `load` loads the model, in each process that computes, as the first of
    what it gives; `left` gives the videos whose rows are not all there."""
    if not todo:
        return
    # What ends a run is raised, and what is tried again is said.
    logging.getLogger("ray.data").setLevel(logging.CRITICAL)
    where: dict[str, Any] = {"address": settings.ray_address}
    added = dict[str, str]()
    if settings.ray_address is None:
        # Whoever reaches a cluster can run programs on it. Without a token in the environment, Ray would write one
        # into the home of the user.
        added = {"RAY_AUTH_TOKEN": secrets.token_hex(32), "RAY_USAGE_STATS_ENABLED": "0"}
        added = {name: value for name, value in added.items() if name not in os.environ}
        # A model and a decoder need a core each.
        where = {"num_cpus": max(available_cores(), 2), "include_dashboard": False, "_node_ip_address": "127.0.0.1"}
    os.environ |= added
    try:
        ray.init(**where, log_to_driver=False, logging_level=logging.ERROR)
        # What a node took with it is done by the second try. The last one leaves out what ends its process each time.
        for is_final in (False, False, True):
            try:
                _write_rows(folder, todo, load, settings, is_final)
            except RayError as error:
                if (cause := _cause_of(error)) is not None:
                    raise cause from None
                logger.warning(f"What processes of Ray did not do is tried again: {error}")
            if not (todo := left()):
                return
    finally:
        ray.shutdown()
        for name in added:
            del os.environ[name]


def _write_rows(
    folder: RowFolder, todo: list[Todo], load: Callable[[], Sequence[Any]], settings: Any, is_final: bool
) -> None:
    context = DataContext.get_current()
    context.enable_progress_bars = context.print_on_execution_start = False
    context.max_errored_blocks = -1 if is_final else 0
    resources = ray.cluster_resources()
    cores, gpus = int(resources.get("CPU", 0)), resources.get("GPU", 0.0)
    num_gpus = float(gpus > 0 and settings.device != "cpu") if settings.num_gpus is None else settings.num_gpus
    models = settings.models or max(int(gpus / num_gpus) if num_gpus else cores // 2, 1)
    most = settings.max_decoders or max(cores - models, settings.min_decoders)
    # Enough blocks for all decoders.
    num_blocks = len(todo) if is_final else max(math.ceil(len(todo) / settings.part_size), min(len(todo), 2 * most))
    system, root = folder.stored.find()
    items = [{"todo": pickle.dumps(each)} for each in todo]
    # Without a limit of retries Ray would read a video that ends its process for ever.
    options: dict[str, Any] = {"num_cpus": 1, "max_task_retries": 3}
    pieces = from_items(items, override_num_blocks=num_blocks).flat_map(
        Reader,
        fn_constructor_args=(folder.task,),
        compute=ActorPoolStrategy(min_size=min(settings.min_decoders, most), max_size=most),
        **options,
    )
    rows = pieces.map_batches(
        Model,
        fn_constructor_args=(folder, load),
        # One is enough where a node took the others with it.
        compute=ActorPoolStrategy(min_size=1, max_size=models),
        batch_size=settings.batch_size,
        batch_format="pyarrow",
        num_gpus=num_gpus,
        **options,
    )
    rows.write_parquet(
        root, filesystem=system, filename_provider=PartNames(), try_create_dir=False, ray_remote_args={"num_cpus": 0}
    )


def _cause_of(error: Any) -> BaseException | None:
    """What a process of Ray raised; None if it died."""
    while isinstance(error, (RayError, SystemException)):
        error = getattr(error, "cause", None) or error.__cause__
    return error
