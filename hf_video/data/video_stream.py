"""Streams of the `datasets` library: opening them, and training on their videos while none are kept."""

import os
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

import datasets
import numpy as np
from datasets import ClassLabel, Dataset, DatasetDict, Features, List, Video
from torch.utils.data import IterableDataset

from hf_video.reading import VideoReadError

from .dataset import TaskItems
from .folders import listed
from .loader import iterate_ahead
from .rows import BYTES, declared_names, item_of, number_of_clip, stored_sha256
from .tables import column_of, find_dataset, known_splits
from .tasks import Task
from .video_dataset import load_video_dataset

SHUFFLE_BUFFER_SIZE = 256
# Shards that are read at the same time, so that shards that are sorted by class do not give batches of one class.
NUM_OPEN_SHARDS = 8


class StreamedClip(NamedTuple):
    """A clip that is not read yet: its row, the key of its draws, the state of the stream after it, and the rows that
    were shuffled together with it."""

    row: dict[str, Any]
    key: tuple[int, ...]
    state: dict[str, Any]
    block: list[dict[str, Any]]


class VideoStream(TaskItems, IterableDataset):
    """The training items that a task makes of a stream of the `datasets` library, epoch after epoch without end.

    In every epoch the shards come in another order. Eight are read at a time, a row of each in turn, and rows are
    shuffled in blocks of `shuffle_buffer_size`, of which at most three are in memory. The order depends on (seed,
    epoch, number of the block), the draws of a clip on (seed, epoch, the video) alone: not on the process, nor on
    whether the run was interrupted. Processes share the rows by `split_by_process`, in shares of different lengths.

    `state_dict` says where the stream is; with it, a stream goes on with the very next clip. Read it with
    `ReadAheadLoader` or a `DataLoader` without worker processes: processes keep their places to themselves.

    Args:
        rows: from `load_video_stream`.
        task: what an item is, as for [`VideoDataset`].
        seed: seed of the order and of all draws.
        shuffle_buffer_size: number of rows that are shuffled together.
        on_error: what happens to a video that cannot be read: "error" raises, "skip" leaves it out, "replace" takes
            another one of its block. A batch that would be empty gets one replacement also with "skip".

    Raises:
        ValueError: `on_error` is unknown, the stream lacks a column or has no `video` that is read undecoded, or its
            labels have no names.
        VideoReadError: in the turn of a video that cannot be read, if nothing stands in for it.
    """

    training = True

    def __init__(
        self,
        rows: datasets.IterableDataset,
        task: Task,
        *,
        seed: int = 0,
        shuffle_buffer_size: int = SHUFFLE_BUFFER_SIZE,
        on_error: str = "error",
    ):
        features = rows.features or {}
        is_read = isinstance(features.get("video"), Video) and not features["video"].decode
        super().__init__(rows, task, seed, on_error, "" if is_read else "Video(decode=False)")
        self.shuffle_buffer_size = shuffle_buffer_size
        self._label = next((name for name in ("labels", "label") if name in features), None)
        names = require_names(getattr(self.task, "class_names", None)) if self._label else []
        self._ids = {name: index for index, name in enumerate(names)}
        self._broken: set[str] = set()
        self._process, self._num_processes = 0, 1
        self._place: dict[str, Any] = {"epoch": 0, "block": 0, "position": 0, "source": None}

    def split_by_process(self, process: int, num_processes: int) -> None:
        """Keep the rows of one of several processes. Call it once, before the stream is read."""
        self._process, self._num_processes = process, num_processes

    def state_dict(self) -> dict[str, Any]:
        """Where the stream is after the clips that were handed out, for JSON."""
        return self._place | {"made_for": self._made_for}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where `state_dict` was. The state of a stream with another seed, size of the buffer or number of
        processes is a `ValueError`."""
        for name, value in self._made_for.items():
            if state["made_for"][name] != value:
                before = state["made_for"][name]
                raise ValueError(f"The stream stopped with {name}={before}, and here has another {name}={value}.")
        self._place = {name: state[name] for name in self._place}

    @property
    def _made_for(self) -> dict[str, int]:
        size = self.shuffle_buffer_size
        return {"seed": self.seed, "shuffle_buffer_size": size, "num_processes": self._num_processes}

    def broken_videos(self) -> list[str]:
        """Names of the videos that this process could not read so far."""
        return sorted(self._broken)

    def __iter__(self) -> Iterator[Mapping[str, Any]]:
        for clip in self.draw_clips():
            item = self[clip]
            if item is not None:
                self.mark_used([clip])
                yield item

    def draw_batches(self, size: int) -> Iterator[list[StreamedClip]]:
        """The next clips in lists of a size, without reading them, for `ReadAheadLoader`."""
        clips = self.draw_clips()
        while batch := list(islice(clips, size)):
            yield batch

    def draw_clips(self) -> Iterator[StreamedClip]:
        """The next clips, without reading them."""
        start = self._place["position"]
        for place, rows in iterate_ahead(self._blocks()):
            draws = np.random.default_rng(np.random.SeedSequence((self.seed, place["epoch"], place["block"])))
            order = draws.permutation(len(rows)).tolist()
            for position in range(start, len(rows)):
                row = rows[order[position]]
                key = (self.seed, place["epoch"], number_of_clip(stored_sha256(row) or row["video"], row))
                yield StreamedClip(row, key, place | {"position": position + 1}, rows)
            start = 0

    def _blocks(self) -> Iterator[tuple[dict[str, Any], list[dict[str, Any]]]]:
        """The blocks of rows from the current one on, each with its place."""
        epoch, block, source = (self._place[name] for name in ("epoch", "block", "source"))
        while True:
            rows, begin, is_empty = self._rows_of(epoch, source), source, block == 0
            while found := [*islice(rows, self.shuffle_buffer_size)]:
                place = {"epoch": epoch, "block": block, "source": begin}
                begin, block, is_empty = found[-1][1], block + 1, False
                yield place, [self._plain(row) for row, _ in found]
            if is_empty:
                raise ValueError(f"The stream has no row for each of {self._num_processes} processes.")
            epoch, block, source = epoch + 1, 0, None

    def _rows_of(
        self, epoch: int, source: Mapping[str, Any] | None
    ) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
        """The rows of an epoch that belong to this process, from a state on, and the state after each."""
        order = np.random.default_rng(np.random.SeedSequence((self.seed, epoch))).permutation(self.rows.num_shards)
        process, num = self._process, self._num_processes
        if len(order) % num == 0:
            order, process, num = order[process::num], 0, 1
        return _read_shards(self.rows, order.tolist(), source, process, num)

    def _plain(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """A row as of `load_video_dataset`."""
        found: dict[str, Any] = {name: value for name, value in row.items() if name not in ("video", self._label)}
        video = row["video"] or {}
        content, path = video.get("bytes"), video.get("path")
        if content is None and path is None:
            raise ValueError(f"A row of the stream has no video. Leave such rows out: stream.filter(...). It is {row}")
        found["video"] = path or f"a video of {len(content or b'')} bytes"
        if content is not None:
            found[BYTES] = content
        if self._label:
            found[self._label] = self._ids_of(row[self._label], found["video"])
        return found

    def _ids_of(self, value: Any, video: str) -> Any:
        if isinstance(value, list):
            return [self._ids_of(each, video) for each in value]
        feature = item_of(self.rows.features[self._label])
        if isinstance(feature, ClassLabel) and value is not None and value >= 0:
            value = feature.int2str(value)
        if str(value) not in self._ids:
            raise ValueError(f"{video} has the label {value!r}; the classes are {listed(map(repr, self._ids))}.")
        return self._ids[str(value)]

    def _find(self, clip: StreamedClip) -> tuple[dict[str, Any], tuple[int, ...], list[dict[str, Any]]]:
        return clip.row, clip.key, clip.block

    def _read(self, row: dict[str, Any], key: tuple[int, ...]) -> Mapping[str, Any]:
        try:
            return self.task.make(row, key, True)
        except VideoReadError:
            self._broken.add(row["video"])
            raise

    def mark_used(self, clips: Sequence[StreamedClip]) -> None:
        """Let `state_dict` be the state after these clips."""
        self._place = clips[-1].state


def _read_shards(
    source: datasets.IterableDataset, order: Sequence[int], state: Mapping[str, Any] | None, process: int, num: int
) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """The rows of shards in an order, and the state after each, for JSON. `NUM_OPEN_SHARDS` are read at a time, of
    which each gives a row in turn. Of `num` processes each takes its part of the rows."""

    def begin(place: int, state: dict[str, Any] | None = None) -> tuple[list[Any], Any, Iterator[dict[str, Any]]]:
        rows = source if source.num_shards == 1 else source.shard(source.num_shards, order[place])
        rows.load_state_dict(state)
        return [place, state], rows, iter(rows)

    state = state or {"num_begun": 0, "turn": 0, "num_rows": 0, "open": []}
    turn, num_rows = state["turn"], state["num_rows"]
    # Of each its place in the order and the state up to which it is read, itself, and its rows.
    shards = [begin(*each) for each in state["open"]]
    waiting = deque(range(state["num_begun"], len(order)))
    while len(shards) < NUM_OPEN_SHARDS and waiting:
        shards.append(begin(waiting.popleft()))
    while shards:
        turn %= len(shards)
        place, shard, rows = shards[turn]
        row = next(rows, None)
        # The library has no state of a shard of which nothing was read.
        place[1] = shard.state_dict()
        if row is None:
            shards[turn : turn + 1] = [begin(waiting.popleft())] if waiting else []
            continue
        turn, num_rows = turn + 1, num_rows + 1
        if (num_rows - 1) % num == process:
            places = [[*place] for place, _, _ in shards]
            yield row, {"num_begun": len(order) - len(waiting), "turn": turn, "num_rows": num_rows, "open": places}


def require_names(names: Sequence[str] | None) -> list[str]:
    if names is None:
        raise ValueError(
            "The labels of the stream have no names, and a stream is not read to find them: declare them as a "
            "ClassLabel, such as in dataset_info of the README.md of the data set, or pass them as labels."
        )
    return list(names)


def load_video_stream(
    data: str | os.PathLike | Mapping[str, datasets.IterableDataset],
    *,
    labels: Sequence[str] | None = None,
    order: Sequence[str] | None = None,
    video_root: str | os.PathLike | None = None,
    train_split: str | None = None,
    validation_split: str | None = None,
    **version: str | None,
) -> tuple[datasets.IterableDataset, DatasetDict]:
    """Open the training split of a data set with a column of the feature `Video` as a stream for `VideoStream`.

    Args:
        data: The name of a data set on the Hub, a folder of Parquet files or tars, or streams by the names of their
            splits.
        labels: The class names by id, such as those of a trained model; by default those that the data set declares.
        order: Class names whose order the ids have if the data set declares the same ones, or none, as those of a
            model to train.
        video_root: The folder that relative paths of the other splits count from.
        train_split, validation_split, version: The last are `config` and `revision`; see `load_video_dataset`.

    Returns:
        The stream, with the columns `video` (`Video(decode=False)`), `label` or `labels`, `start` and `end`; and the
        other splits, as of `load_video_dataset`. These are read whole and kept in memory.

    Raises:
        FileNotFoundError: There are no such data.
        ValueError: They cannot be a stream, or a split, a clear column or the names of labels are missing.
    """
    found: object = data
    if isinstance(data, str | os.PathLike):
        found, _ = find_dataset(data, streaming=True, **version)
    if not isinstance(found, dict) or not all(isinstance(split, datasets.IterableDataset) for split in found.values()):
        raise ValueError(f"{data} cannot be a stream: only data sets on the Hub and Parquet files or tars can.")
    known = known_splits(found, train_split, validation_split)
    if "train" not in known:
        raise ValueError(f"{data} has no training split, only {', '.join(known)}: name one with train_split.")
    splits = {name: _with_plain_columns(split) for name, split in known.items()}
    stream = splits.pop("train")
    declared = declared_names(stream)
    if labels is None:
        is_same = order is not None and (declared is None or sorted(order) == sorted(declared))
        labels = order if is_same else declared
    names = require_names(labels)
    if not splits:
        return stream, DatasetDict()
    held = {name: Dataset.from_list([*split], features=split.features) for name, split in splits.items()}
    return stream, load_video_dataset(DatasetDict(held), labels=names, video_root=video_root)


def _with_plain_columns(stream: datasets.IterableDataset) -> datasets.IterableDataset:
    """A stream with the columns that `VideoStream` reads, and videos that are not decoded."""
    features = stream.features or Features()
    video, label = (column_of("The stream", features, what) for what in ("video", "label"))
    # First of all, because the other steps, and the threads of the library for remote files, would decode.
    stream = stream.decode(False)
    if BYTES in features:
        joined = {name: kind for name, kind in features.items() if name != BYTES} | {video: Video(decode=False)}
        join = lambda row: {video: {"path": row[video], "bytes": row[BYTES]}}  # noqa: E731
        stream = stream.map(join, remove_columns=BYTES, features=Features(joined))
    stream = stream.select_columns([video, label, *(name for name in ("start", "end") if name in features)])
    if not isinstance(features[video], Video):
        stream = stream.cast_column(video, Video(decode=False))
    names = {video: "video", label: "labels" if isinstance(features[label], List) else "label"}
    return stream.rename_columns({old: new for old, new in names.items() if old != new})
