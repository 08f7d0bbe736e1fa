"""The formulas of a plan: from the cost of a clip, and what is assumed of machines and prices, to hours and dollars.

`given` is the namespace of the options of `ASSUMPTIONS`.
"""

import math
from argparse import ArgumentParser, Namespace
from dataclasses import dataclass

SHARD_SIZE = 1e9
# (option, default, what it is, where the default comes from)
ASSUMPTIONS = (
    ("train-clips", 300.0, "clips/s that one GPU trains on", "assumed, not measured"),
    ("feature-clips", 1500.0, "clips/s of which one GPU computes features", "assumed, not measured"),
    ("feature-size", 768, "numbers in the features of a clip, of 4 bytes each", "hidden size of a ViT-B"),
    ("gpus", 8, "GPUs of a machine", "AWS p5.48xlarge (H100)"),
    ("cores", 192, "cores of a machine", "AWS p5.48xlarge; these are vCPUs, two to a core"),
    ("memory", 2048.0, "GiB of memory of a machine", "AWS p5.48xlarge"),
    ("network", 100.0, "Gbit/s between a machine and all others", "assumed"),
    ("driver-memory", 32.0, "GiB of memory of the driver of Ray", "the example in bulk.md"),
    ("requests", 5500.0, "requests/s that a prefix of the object store answers", "AWS S3, user guide, at least"),
    ("gpu-price", 4.92, "$ of a GPU hour", "AWS p5.48xlarge, capacity blocks, US East, end of 2024"),
    ("core-price", 0.0425, "$ of a core hour, for cores beside the GPUs", "AWS c5, on demand, US East"),
    ("storage-price", 23.0, "$ of a TB for a month", "AWS S3 Standard, first 50 TB, US East"),
    ("request-price", 0.4, "$ of a million requests", "AWS S3 Standard, GET, US East"),
)


def add_assumptions(parser: ArgumentParser) -> None:
    for name, default, what, source in ASSUMPTIONS:
        parser.add_argument(
            f"--{name}", type=type(default), default=default, help=f"{what} (default: {default}; {source})"
        )


@dataclass(frozen=True)
class ClipCost:
    """What one clip of 16 frames costs.

    Attributes:
        stored_bytes: bytes of its video.
        core_seconds: processor time to decode and prepare it.
        fetched_bytes, num_requests: what is asked of an object store.
        pixel_bytes: bytes of the prepared clip.
    """

    stored_bytes: float
    core_seconds: float
    fetched_bytes: float
    num_requests: float
    pixel_bytes: float


@dataclass(frozen=True)
class Speed:
    """Clips per second of a machine, how many of them other machines decode, and what keeps it from more."""

    clips: float
    rented_clips: float
    limit: str


def machine_speed(cost: ClipCost, rate: float, given: Namespace, *, rents: bool) -> Speed:
    """How fast a machine with GPUs that take `rate` clips per second each can be.

    Its cores decode what it fetches. If it rents, as extraction on Ray does, cores of other machines decode the rest,
    or everything where pixels are fewer bytes than videos; their clips come over its network as pixels.
    """
    wanted, network = given.gpus * rate, given.network * 1e9 / 8
    decoded, fetched = given.cores / cost.core_seconds, network / cost.fetched_bytes
    own = min(wanted, decoded, fetched)
    if not rents:
        return Speed(own, 0, "GPUs" if own == wanted else "decoding" if own == decoded else "network")
    if cost.pixel_bytes < cost.fetched_bytes and own < wanted:
        own = 0
    rented = min(wanted - own, (network - own * cost.fetched_bytes) / cost.pixel_bytes)
    return Speed(own + rented, rented, "GPUs" if rented == wanted - own else "network")


def plan_use(clips: int, cost: ClipCost, rate: float, given: Namespace, *, rents: bool) -> dict[str, float | str]:
    """What it takes to use every clip once, on one machine: what its GPUs ask for, and what they get."""
    speed = machine_speed(cost, rate, given, rents=rents)
    hours = clips / speed.clips / 3600
    rented_cores = speed.rented_clips * cost.core_seconds
    machines = hours * (given.gpus * given.gpu_price + rented_cores * given.core_price)
    return {
        "cores_per_gpu": rate * cost.core_seconds,
        "megabytes_per_second_per_gpu": rate * cost.fetched_bytes / 1e6,
        "clips_per_second": speed.clips,
        "limit": speed.limit,
        "rented_cores": rented_cores,
        "core_hours": clips * cost.core_seconds / 3600,
        "gpu_hours": hours * given.gpus,
        "hours": hours,
        "dollars": machines + clips * cost.num_requests / 1e6 * given.request_price,
    }


def plan_storage(clips: int, stored_bytes: float, row_bytes: float, pack_rate: float, given: Namespace) -> dict:
    """What videos of `stored_bytes` each take in a pack, which is written with `pack_rate` bytes per core second."""
    terabytes = clips * stored_bytes / 1e12
    return {
        "terabytes": terabytes,
        "shards": math.ceil(clips * stored_bytes / SHARD_SIZE),
        "index_gigabytes": clips * row_bytes / 1e9,
        "feature_gigabytes": clips * given.feature_size * 4 / 1e9,
        "pack_core_hours": clips * stored_bytes / pack_rate / 3600,
        "dollars_a_month": terabytes * given.storage_price,
    }


def stage_limits(cost: ClipCost, given: Namespace) -> dict[str, float]:
    """Clips per second at which a stage saturates: of a machine, and of a prefix for all machines together."""
    network = given.network * 1e9 / 8
    return {
        "decoding": given.cores / cost.core_seconds,
        "network": network / cost.fetched_bytes,
        "network_of_pixels": network / cost.pixel_bytes,
        "prefix": given.requests / cost.num_requests,
    }
