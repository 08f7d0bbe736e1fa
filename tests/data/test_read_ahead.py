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
    ClipDataset,
    ClipMixing,
    MixingCollator,
    ReadAheadLoader,
    collate_clips,
    read_ahead,
)
from hf_video.processing import VideoClipProcessor
from hf_video.reading import VideoReadError

from ..video_files import encode_video

AUGMENTATION = ClipAugmentation(
    crop_min_area=0.3, horizontal_flip=True, rand_augment_num_ops=2, color_jitter=0.3, erasing_prob=0.5
)


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
    deadline = time.monotonic() + 10
    while set(threading.enumerate()) - before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert set(threading.enumerate()) <= before


def make_clips(videos: list[str], **options) -> ClipDataset:
    processor = VideoClipProcessor(num_frames=4, sampling_strategy="uniform", size=28, crop_size=24)
    rows = Dataset.from_dict({"video": videos, "label": [number % 3 for number in range(len(videos))]})
    return ClipDataset(rows, processor, **({"training": False} | options))


class SlowClips(TorchDataset):
    """Items that take `seconds` to read, and are counted."""

    def __init__(self, length: int, seconds: float = 0.0, broken: int | None = None):
        self.length, self.seconds, self.broken = length, seconds, broken
        self.read = 0
        self.lock = threading.Lock()

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> int:
        time.sleep(self.seconds)
        if index == self.broken:
            raise VideoReadError(f"video {index} is broken")
        with self.lock:
            self.read += 1
        return index

    def complete_batch(self, items: list[int], indices: list[int]) -> list[int]:
        assert items == indices
        return items


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_clips_are_the_same_bits_with_threads_and_with_workers(videos, no_thread_is_left, training, workers):
    options = {"training": True, "augmentation": AUGMENTATION} if training else {}
    dataset = make_clips(videos, **options)
    mixing = MixingCollator(ClipMixing(mixup_alpha=0.8, cutmix_alpha=1.0), 3) if training else collate_clips

    def batches(**how) -> tuple[list[torch.Tensor], torch.Tensor]:
        torch.manual_seed(0)
        found = []
        for batch in ReadAheadLoader(dataset, 5, shuffle=training, collate_fn=mixing, **how):
            # As a model with dropout, which draws from the global generator meanwhile.
            found += [batch["pixel_values"], batch["labels"].float(), torch.rand(3)]
            time.sleep(0.01)
        return found, torch.random.get_rng_state()

    dataset.set_epoch(1)
    expected, state = batches(reading_threads=0)
    for how in ({"reading_threads": 1}, {"reading_threads": 4}, {}, {"num_workers": workers}):
        found, state_after = batches(**how)
        assert len(found) == len(expected) == 9
        assert all(map(torch.equal, found, expected)) and torch.equal(state, state_after), how


def test_a_slow_reader_and_a_slow_model_work_at_the_same_time(no_thread_is_left):
    def seconds(reading_threads: int) -> tuple[float, float]:
        waited, begin = 0.0, time.perf_counter()
        batches = iter(ReadAheadLoader(SlowClips(16, 0.02), 2, collate_fn=list, reading_threads=reading_threads))
        while True:
            asked = time.perf_counter()
            batch = next(batches, None)
            waited += time.perf_counter() - asked
            if batch is None:
                return time.perf_counter() - begin, waited
            time.sleep(0.05)

    # Reading takes 16 * 0.02 s in one thread, the model 8 * 0.05 s; only the first batch has to be waited for. Sleeps
    # never end early. A busy machine makes them longer, so the least of some rounds counts.
    total, waited = seconds(0)
    assert total >= 0.72 and waited >= 0.32
    for _ in range(10):
        total, waited = seconds(1)
        if total < 0.62 and waited < 0.2:
            break
    assert total < 0.62 and waited < 0.2


def test_at_most_two_batches_are_read_ahead(no_thread_is_left):
    dataset, taken = SlowClips(40), 0
    for batch in ReadAheadLoader(dataset, 4, collate_fn=list, reading_threads=3):
        taken += len(batch)
        expected, deadline = min(taken + 8, 40), time.monotonic() + 60
        while dataset.read < expected and time.monotonic() < deadline:
            time.sleep(0.001)
        time.sleep(0.01)
        assert dataset.read == expected
    assert taken == 40


def test_an_error_is_raised_in_its_turn_and_ends_the_threads(no_thread_is_left):
    dataset, found = SlowClips(4000, 0.001, broken=6), []
    with pytest.raises(VideoReadError, match="video 6 is broken"):
        for batch in ReadAheadLoader(dataset, 4, collate_fn=list, reading_threads=2):
            found.append(batch)
    assert found == [[0, 1, 2, 3]] and dataset.read < 40


@pytest.mark.parametrize("where", ["model", "joining"])
def test_an_interrupt_ends_the_threads_at_once(no_thread_is_left, where):
    dataset = SlowClips(4000, 0.1)
    read = []

    def interrupt(*args):
        read.append(dataset.read)
        raise KeyboardInterrupt

    collate = interrupt if where == "joining" else list
    loader = ReadAheadLoader(dataset, 10, collate_fn=collate, reading_threads=2)

    def run() -> None:
        for _ in loader:
            interrupt()

    with pytest.raises(KeyboardInterrupt):
        run()
    # Three batches were to be read, of which a slow machine has read two at most. After the interrupt only the clips
    # are read that were begun, and those that begin before the threads hear of it.
    assert read[0] <= 20 and dataset.read <= read[0] + 8


def test_leaving_the_loop_early_ends_the_threads(no_thread_is_left):
    for batch in ReadAheadLoader(SlowClips(400, 0.001), 4, collate_fn=list, reading_threads=2):
        assert batch == [0, 1, 2, 3]
        break


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

    class Clips(SlowClips):
        def __getitem__(self, index: int) -> int:
            seen.append(count())
            return index

    # Threads that other tests began may end meanwhile.
    for _ in range(20):
        before, seen = count(), []
        list(ReadAheadLoader(Clips(1), 1, collate_fn=list, reading_threads=1))
        deadline = time.monotonic() + 5
        while count() > before and time.monotonic() < deadline:
            time.sleep(0.01)
        if (seen, count()) == ([before + 2], before):
            return
    pytest.fail(f"{before} threads, {seen} while a clip was read, {count()} afterwards")


@pytest.mark.parametrize(("cores", "num_threads"), [(1, 1), (2, 1), (8, 4), (64, 16)])
def test_by_default_half_of_the_cores_read(monkeypatch, cores, num_threads):
    monkeypatch.setattr(read_ahead, "available_cores", lambda: cores)
    begun = []
    monkeypatch.setattr(
        read_ahead,
        "ThreadPoolExecutor",
        lambda number, *given: begun.append(number) or ThreadPoolExecutor(number, *given),
    )
    assert list(ReadAheadLoader(SlowClips(1), collate_fn=list)) == [[0]] and begun == [num_threads]


def test_reading_threads_leave_pytorch_as_it_is():
    before = torch.get_num_threads()
    seen = []

    class Clips(SlowClips):
        def __getitem__(self, index: int) -> int:
            seen.append(torch.get_num_threads())
            return index

    list(ReadAheadLoader(Clips(4), 2, collate_fn=list, reading_threads=2))
    later = threading.Thread(target=lambda: seen.append(torch.get_num_threads()))
    later.start()
    later.join()
    assert seen == [1, 1, 1, 1, before] and torch.get_num_threads() == before
