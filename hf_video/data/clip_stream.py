"""A PyTorch stream of training clips, of videos that are read one after the other and never all kept."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

import datasets
import numpy as np
from datasets import ClassLabel, List, Video
from datasets.distributed import split_dataset_by_node
from torch.utils.data import IterableDataset
from transformers import BaseVideoProcessor, BatchFeature

from hf_video.reading import VideoReadError

from .augmentation import ClipAugmentation
from .clip_making import ClipMaker, Transform
from .folders import listed
from .read_ahead import iterate_ahead
from .rows import BYTES, stored_sha256

SHUFFLE_BUFFER_SIZE = 256


class StreamedClip(NamedTuple):
    """A clip that is not read yet.

    Attributes:
        row: `video`, `bytes` if the stream has them, `label` or `labels`, `start` and `end`, as of
            `load_video_dataset`.
        key: what its draws depend on.
        state: the state of the stream after it, see `ClipStream.state_dict`.
        block: the rows that were shuffled together with it.
    """

    row: dict[str, Any]
    key: tuple[int, ...]
    state: dict[str, Any]
    block: list[dict[str, Any]]


class ClipStream(ClipMaker, IterableDataset):
    """Reads and prepares training clips of a stream of the `datasets` library, epoch after epoch without end.

    Items are those of a `ClipDataset` with `training=True`. In every epoch the shards come in another order; rows are
    shuffled in blocks of `shuffle_buffer_size`. At most two blocks of encoded videos are in memory. The order depends
    on (seed, epoch, number of the block), the draws of a clip on (seed, epoch, the video) alone: not on
    the process, nor on whether the run was interrupted.

    Processes share the rows by `split_by_process`. Where their number divides that of the shards each reads its own
    shards, otherwise each reads all and takes its part. Shares differ in length, so one process may begin an epoch
    before another.

    `state_dict` says where the stream is; with it, a stream goes on with the very next clip. Read it with
    `ReadAheadLoader` or a `DataLoader` without worker processes: processes keep their places to themselves.

    Args:
        stream: From `load_video_stream`.
        processor: A `VideoClipProcessor`. Its options decide everything that is not random.
        class_names: The classes by id; by default those that the stream declares.
        seed: Seed of the order and of all draws.
        shuffle_buffer_size: Number of rows that are shuffled together.
        augmentation, transform: As for `ClipDataset`.
        on_error: What happens to a video that cannot be read: "error" raises, "skip" leaves it out, "replace" takes
            another one of its block. A batch that would be empty gets one replacement also with "skip".

    Raises:
        ValueError: An option is unknown, the stream has no column `video` that is read undecoded, or its labels have
            no names.
        VideoReadError: In the turn of a video that cannot be read, if `on_error` is "error", or no other of its block
            can be read.
    """

    def __init__(
        self,
        stream: datasets.IterableDataset,
        processor: BaseVideoProcessor,
        *,
        class_names: Sequence[str] | None = None,
        seed: int = 0,
        shuffle_buffer_size: int = SHUFFLE_BUFFER_SIZE,
        augmentation: ClipAugmentation | None = None,
        transform: Transform | None = None,
        on_error: str = "error",
    ):
        features = stream.features or {}
        if not isinstance(features.get("video"), Video) or features["video"].decode:
            raise ValueError(
                f"The stream has the columns {', '.join(features) or 'none'}, but not 'video' with "
                "Video(decode=False): make it with load_video_stream."
            )
        if shuffle_buffer_size < 1:
            raise ValueError(f"shuffle_buffer_size={shuffle_buffer_size}: at least 1 row is expected.")
        super().__init__(
            processor,
            training=True,
            seed=seed,
            augmentation=augmentation,
            transform=transform,
            on_error=on_error,
        )
        self.stream = stream
        self.shuffle_buffer_size = shuffle_buffer_size
        self._label = next((name for name in ("labels", "label") if name in features), None)
        names = declared_names(stream) if class_names is None else class_names
        self.class_names = require_names(names) if self._label else None
        self._ids = {name: index for index, name in enumerate(self.class_names or ())}
        self._broken: set[str] = set()
        self._num_processes = 1
        self._place: dict[str, Any] = {"epoch": 0, "block": 0, "position": 0, "source": None}

    def split_by_process(self, process: int, num_processes: int) -> None:
        """Keep the rows of one of several processes. Call it once, before the stream is read."""
        if num_processes > 1:
            self.stream = split_dataset_by_node(self.stream, process, num_processes)
        self._num_processes = num_processes

    def state_dict(self) -> dict[str, Any]:
        """Where the stream is after the clips that were handed out, for JSON: `epoch`, `block`, the `position` in the
        permuted block, `source`, the state of the rows where the block begins, and what the order depends on."""
        return self._place | {"made_for": self._made_for}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where `state_dict` was.

        Raises:
            ValueError: The state is of a stream with another seed, size of the buffer or number of processes.
        """
        for name, value in self._made_for.items():
            if state["made_for"][name] != value:
                raise ValueError(
                    f"The stream stopped with {name}={state['made_for'][name]}, and here it has {name}={value}: its "
                    "order would be another. Go on with the same, or begin anew."
                )
        self._place = {name: state[name] for name in self._place}

    @property
    def _made_for(self) -> dict[str, int]:
        return {
            "seed": self.seed,
            "shuffle_buffer_size": self.shuffle_buffer_size,
            "num_processes": self._num_processes,
        }

    def broken_videos(self) -> list[str]:
        """Names of the videos that this process could not read so far."""
        return sorted(self._broken)

    def __iter__(self) -> Iterator[BatchFeature]:
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
                key = (self.seed, place["epoch"], _number(row))
                yield StreamedClip(row, key, place | {"position": position + 1}, rows)
            start = 0

    def _blocks(self) -> Iterator[tuple[dict[str, Any], list[dict[str, Any]]]]:
        """The blocks of rows from the current one on, each with its place."""
        epoch, block, source = (self._place[name] for name in ("epoch", "block", "source"))
        while True:
            # The library shuffles its shards by the number of the epoch; in epoch 0 it does not.
            self.stream.set_epoch(1 + int(np.random.SeedSequence((self.seed, epoch)).generate_state(1)[0]))
            self.stream.load_state_dict(source)
            rows, begin, is_empty = iter(self.stream), source, block == 0
            while found := [self._plain(row) for row in islice(rows, self.shuffle_buffer_size)]:
                yield {"epoch": epoch, "block": block, "source": begin}, found
                begin, block, is_empty = self.stream.state_dict(), block + 1, False
            if is_empty:
                raise ValueError(
                    f"The stream has no row for each of {self._num_processes} processes: start fewer processes."
                )
            epoch, block, source = epoch + 1, 0, None

    def _plain(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """A row as of `load_video_dataset`."""
        found: dict[str, Any] = {name: row[name] for name in ("start", "end") if name in row}
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
        feature = self.stream.features[self._label]
        feature = feature.feature if isinstance(feature, List) else feature
        if isinstance(feature, ClassLabel) and value is not None and value >= 0:
            value = feature.int2str(value)
        if str(value) not in self._ids:
            raise ValueError(
                f"{video} has the label {value!r}, which is not among the {len(self._ids)} classes: "
                f"{listed(map(repr, self._ids))}."
            )
        return self._ids[str(value)]

    def __getitem__(self, clip: StreamedClip) -> BatchFeature | None:
        """The item of a clip; None for a video that cannot be read, if `on_error` is "skip"."""
        try:
            return self.make_clip(clip.row, clip.key, self.class_names)
        except VideoReadError:
            self._broken.add(clip.row["video"])
            if self.on_error == "error":
                raise
        return self._replacement(clip) if self.on_error == "replace" else None

    def complete_batch(
        self, items: list[BatchFeature | None], clips: Sequence[StreamedClip]
    ) -> list[BatchFeature | None]:
        """The items of a batch, at least one of which is not None; see `ReadAheadLoader`."""
        if all(item is None for item in items):
            items[0] = self._replacement(clips[0])
        return items

    def mark_used(self, clips: Sequence[StreamedClip]) -> None:
        """Let `state_dict` be the state after these clips."""
        self._place = clips[-1].state

    def _replacement(self, clip: StreamedClip) -> BatchFeature:
        reason = ""
        for index in np.random.default_rng(np.random.SeedSequence(clip.key)).permutation(len(clip.block)).tolist():
            try:
                return self.make_clip(clip.block[index], clip.key, self.class_names)
            except VideoReadError as error:
                self._broken.add(clip.block[index]["video"])
                reason = str(error)
        raise VideoReadError(f"None of {len(clip.block)} videos next to each other can be read. Of one: {reason}")


def declared_names(stream: datasets.IterableDataset) -> list[str] | None:
    """The class names that the labels of a stream declare, by id; None for labels without names, or no labels."""
    features = stream.features or {}
    feature = features.get("labels", features.get("label"))
    return getattr(feature.feature if isinstance(feature, List) else feature, "names", None)


def require_names(names: Sequence[str] | None) -> list[str]:
    """The names of classes. None is a `ValueError`."""
    if names is None:
        raise ValueError(
            "The labels of the stream have no names, and a stream is not read to find them: declare them as a "
            "ClassLabel, such as in dataset_info of the README.md of the data set, train a model that knows them, or "
            "in Python pass them as labels of load_video_stream and class_names of ClipStream."
        )
    return list(names)


def _number(row: Mapping[str, Any]) -> int:
    """A number of a clip that depends on its video and segment alone."""
    text = repr((stored_sha256(row) or row["video"], row.get("start"), row.get("end")))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8])
