"""`ReadAheadLoader` gives the batches of a `DataLoader`, lets no model wait, and leaves no thread behind."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from datasets import Dataset
from torch.utils.data import DataLoader
from torch.utils.data import Dataset as TorchDataset

from hf_video.data import (
    ClipAugmentation,
    ClipMixing,
    ClipTask,
    MixingCollator,
    ReadAheadLoader,
    VideoDataset,
    collate_clips,
    loader,
)
from hf_video.processing import VideoClipProcessor
from hf_video.reading import VideoReadError
from tests.testing.videos import encode_video

AUGMENTATION = ClipAugmentation(
    crop_min_area=0.3, horizontal_flip=True, rand_augment_num_ops=2, color_jitter=0.3, erasing_prob=0.5
)
# Seconds after which a thread that is waited for is held to hang.
HANGS = 60


@pytest.fixture(scope="module")
def videos(tmp_path_factory):
    """Twelve videos of 8 frames, 40 x 32 pixels, each of other noise."""
    folder = tmp_path_factory.mktemp("videos")
    for number in range(12):
        frames = np.random.default_rng(number).integers(0, 256, (8, 32, 40), dtype=np.uint8)
        encode_video(folder / f"{number:02d}.mp4", frames, fps=8)
    return [str(path) for path in sorted(folder.iterdir())]


@pytest.fixture
def no_thread_is_left():
    before = set(threading.enumerate())
    yield
    # PyTorch does not wait for the threads that fed its workers.
    for thread in set(threading.enumerate()) - before:
        thread.join(HANGS)
    assert set(threading.enumerate()) <= before


def make_clips(videos: list[str], augmentation=None, **options) -> VideoDataset:
    processor = VideoClipProcessor(num_frames=4, sampling_strategy="uniform", size=28, crop_size=24)
    rows = Dataset.from_dict({"video": videos, "label": [number % 3 for number in range(len(videos))]})
    return VideoDataset(rows, ClipTask(processor, augmentation=augmentation), **{"training": False} | options)


class Clips(TorchDataset):
    """Items that are the numbers of rows. `seen` has those that began to be read, and changes are told to `changed`.
    Rows from `closed_from` on are not read before `opened` is set."""

    def __init__(self, length: int, closed_from: int | None = None, broken: int | None = None):
        self.length, self.broken = length, broken
        self.closed_from = length if closed_from is None else closed_from
        self.opened = threading.Event()
        self.changed = threading.Condition()
        self.seen: list[int] = []

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> int:
        with self.changed:
            self.seen.append(index)
            self.changed.notify_all()
        if index >= self.closed_from:
            assert self.opened.wait(HANGS)
        if index == self.broken:
            raise VideoReadError(f"video {index} is broken")
        return index

    def complete_batch(self, items: list[int], indices: list[int]) -> list[int]:
        assert items == indices
        return items

    def wait_for(self, number: int) -> None:
        """Returns when so many items have begun."""
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.seen) >= number, HANGS)


@pytest.mark.parametrize("training", [True, False])
def test_clips_are_the_same_bits_with_threads_and_with_workers(videos, no_thread_is_left, training):
    options = {"training": True, "augmentation": AUGMENTATION} if training else {}
    dataset = make_clips(videos, **options)
    mixing = MixingCollator(ClipMixing(mixup_alpha=0.8, cutmix_alpha=1.0), 3) if training else collate_clips

    def batches(**how) -> tuple[list[torch.Tensor], torch.Tensor]:
        torch.manual_seed(0)
        found = []
        for batch in ReadAheadLoader(dataset, 5, shuffle=training, collate_fn=mixing, **how):
            # As a model with dropout, which draws from the global generator meanwhile.
            found += [batch["pixel_values"], batch["labels"].float(), torch.rand(3)]
        return found, torch.random.get_rng_state()

    dataset.set_epoch(1)
    expected, state = batches(reading_threads=0)
    for how in ({"reading_threads": 1}, {"reading_threads": 4}, {}, {"num_workers": 1}):
        found, state_after = batches(**how)
        assert len(found) == len(expected) == 9
        assert all(map(torch.equal, found, expected)) and torch.equal(state, state_after), how


@pytest.mark.parametrize("reading_threads", [1, 3])
def test_two_batches_are_read_while_a_model_works_and_no_more(no_thread_is_left, reading_threads):
    dataset, taken = Clips(40), 0
    for batch in ReadAheadLoader(dataset, 4, collate_fn=list, reading_threads=reading_threads):
        taken += len(batch)
        # The loop has this batch, and the next two are read without being asked for.
        dataset.wait_for(min(taken + 8, 40))
        assert len(dataset.seen) == min(taken + 8, 40)
    assert taken == 40


def test_an_error_is_raised_in_its_turn_and_ends_the_threads(no_thread_is_left):
    dataset, found = Clips(4000, broken=6), []
    with pytest.raises(VideoReadError, match="video 6 is broken"):
        for batch in ReadAheadLoader(dataset, 4, collate_fn=list, reading_threads=2):
            found.append(batch)
    assert found == [[0, 1, 2, 3]] and len(dataset.seen) <= 16


@pytest.mark.parametrize("where", ["model", "joining"])
def test_after_an_interrupt_only_the_clips_that_were_begun_are_read(no_thread_is_left, where):
    # Two threads begin two clips of the second batch, and end when the loop has been interrupted.
    dataset = Clips(4000, closed_from=10)

    def interrupt(*args):
        dataset.wait_for(12)
        threading.Timer(0.1, dataset.opened.set).start()
        raise KeyboardInterrupt

    loader = ReadAheadLoader(dataset, 10, collate_fn=interrupt if where == "joining" else list, reading_threads=2)

    def run() -> None:
        for _ in loader:
            interrupt()

    with pytest.raises(KeyboardInterrupt):
        run()
    assert len(dataset.seen) < 30


def test_skipped_and_replaced_videos_are_those_of_a_data_loader(videos, tmp_path, no_thread_is_left):
    broken = tmp_path / "broken.mp4"
    broken.write_bytes(b"no video")
    listed = [str(broken), str(broken), *videos[:3]]
    for on_error in ("skip", "replace"):

        def read(kind, on_error=on_error, **how):
            dataset = make_clips(listed, training=True, on_error=on_error)
            return [batch["pixel_values"] for batch in kind(dataset, 2, collate_fn=collate_clips, **how)]

        expected, found = read(DataLoader), read(ReadAheadLoader, reading_threads=3)
        assert [len(batch) for batch in found] == ([1, 2, 1] if on_error == "skip" else [2, 2, 1])
        assert all(map(torch.equal, found, expected))
    with pytest.raises(VideoReadError, match="broken.mp4"):
        list(ReadAheadLoader(make_clips(listed), 2, collate_fn=collate_clips))


def test_other_data_sets_are_read_in_the_thread_of_the_loop():
    class Threads(TorchDataset):
        def __len__(self) -> int:
            return 3

        def __getitem__(self, index: int) -> str:
            return threading.current_thread().name

    found = [name for batch in ReadAheadLoader(Threads(), 2, collate_fn=list) for name in batch]
    assert found == [threading.current_thread().name] * 3


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="this system does not list the threads of a process")
def test_a_reading_thread_begins_one_thread_of_openmp_and_ends_it():
    def count() -> int:
        return len(list(Path("/proc/self/task").iterdir()))

    class Counting(Clips):
        def __getitem__(self, index: int) -> int:
            seen.append(count())
            return index

    # Threads that other tests began may end meanwhile.
    for _ in range(20):
        before, seen = count(), []
        list(ReadAheadLoader(Counting(1), 1, collate_fn=list, reading_threads=1))
        deadline = time.monotonic() + 5
        while count() > before and time.monotonic() < deadline:
            time.sleep(0.01)
        if (seen, count()) == ([before + 2], before):
            return
    pytest.fail(f"{before} threads, {seen} while a clip was read, {count()} afterwards")


def test_by_default_half_of_the_cores_read(monkeypatch):
    begun = []
    monkeypatch.setattr(
        loader,
        "ThreadPoolExecutor",
        lambda number, *given: begun.append(number) or ThreadPoolExecutor(number, *given),
    )
    for cores in (1, 8, 64):
        monkeypatch.setattr(loader, "available_cores", lambda cores=cores: cores)
        assert list(ReadAheadLoader(Clips(1), collate_fn=list)) == [[0]]
    # Those of a machine are shared out among its processes.
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "8")
    assert list(ReadAheadLoader(Clips(1), collate_fn=list)) == [[0]]
    assert begun == [1, 4, 16, 4]


def test_batches_of_a_task_are_joined_in_threads(videos):
    class Watched(ClipTask):
        def collate(self, items):
            joined.append(threading.current_thread().name.split("_")[0])
            return super().collate(items)

    joined: list[str] = []
    clips = make_clips(videos)
    task = Watched(clips.task.processor)
    list(ReadAheadLoader(VideoDataset(clips.rows, task, training=False), 5, collate_fn=task.collate))
    assert joined == ["reading"] * 3


def test_reading_threads_leave_pytorch_as_it_is():
    before = torch.get_num_threads()
    seen = []

    class Asking(Clips):
        def __getitem__(self, index: int) -> int:
            seen.append(torch.get_num_threads())
            return index

    list(ReadAheadLoader(Asking(4), 2, collate_fn=list, reading_threads=2))
    later = threading.Thread(target=lambda: seen.append(torch.get_num_threads()))
    later.start()
    later.join()
    assert seen == [1, 1, 1, 1, before] and torch.get_num_threads() == before
