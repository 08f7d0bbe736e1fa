"""Samples and windows are those cut out of the whole decoded video."""

from itertools import pairwise

import numpy as np
import pytest
from PIL import Image

from hf_video.reading import Sample, VideoReadError, group_samples, read_video, timed_samples
from hf_video.reading.frame_streaming import StreamedFrame
from tests.testing.videos import encode_video, make_frames


def cut_windows(num_samples, num_frames, stride, last):
    """The sample numbers of each window and how many are real, out of all samples at once."""
    windows, start = [], 0
    while start + num_frames <= num_samples:
        windows.append((list(range(start, start + num_frames)), num_frames))
        start += stride
    reached = windows[-1][0][-1] + 1 if windows else 0
    if last == "drop" or start >= num_samples or reached >= num_samples:
        return windows
    if last == "shift":
        start = max(num_samples - num_frames, 0)
    real = list(range(start, num_samples))
    return [*windows, (real + real[-1:] * (num_frames - len(real)), len(real))]


@pytest.fixture(scope="module")
def video(tmp_path_factory):
    return encode_video(tmp_path_factory.mktemp("videos") / "video.mp4")


@pytest.mark.parametrize("last", ["pad", "drop", "shift"])
@pytest.mark.parametrize(("num_frames", "stride"), [(4, 2), (4, 3), (4, 4), (3, 5), (1, 1), (2, 7), (16, 1)])
def test_groups_are_the_windows_of_the_whole_sequence(num_frames, stride, last):
    for num_samples in range(1, 30):
        samples = (Sample(j / 2, (j + 1) / 2, j) for j in range(num_samples))
        groups = list(group_samples(samples, num_frames, stride, last))
        expected = cut_windows(num_samples, num_frames, stride, last)
        assert [(group.values, group.num_real) for group in groups] == expected
        assert [group.start for group in groups] == [numbers[0] / 2 for numbers, _ in expected]
        assert [group.end for group in groups] == [(numbers[-1] + 1) / 2 for numbers, _ in expected]


def test_a_value_is_transformed_once_and_only_if_a_window_holds_it():
    seen = []

    def transform(values):
        seen.append(values)
        return [value * 10 for value in values]

    samples = [Sample(j, j + 1, j) for j in range(9)]
    groups = list(group_samples(samples, 4, 2, transform=transform))
    assert seen == [[0, 1, 2, 3], [4, 5], [6, 7], [8]]
    assert [group.values for group in groups][-2:] == [[40, 50, 60, 70], [60, 70, 80, 80]]
    seen.clear()
    list(group_samples(samples, 2, 4, transform=transform))
    assert seen == [[0, 1], [4, 5], [8]]


@pytest.mark.parametrize("integer", [int, np.int64])
def test_arrays_have_the_times_of_their_rate(integer):
    samples = timed_samples(iter(make_frames(10)), source_fps=5)
    groups = list(group_samples(samples, integer(4), integer(4)))
    assert [(group.start, group.end, group.num_real) for group in groups] == [(0, 0.8, 4), (0.8, 1.6, 4), (1.6, 2, 2)]


@pytest.mark.parametrize(
    "options",
    [
        {"fps": 0},
        {"fps": float("nan")},
        {"fps": float("inf")},
        {"frame_sampling_rate": 0},
        {"fps": 1, "frame_sampling_rate": 2},
        {"source_fps": 5},
    ],
)
def test_wrong_options_of_samples_are_named_at_the_call(video, options):
    name, value = next(iter(options.items()))
    with pytest.raises(ValueError, match=f"{name}={value}"):
        timed_samples(video, **options)


def test_an_unknown_end_of_windows_is_named_at_the_call():
    with pytest.raises(ValueError, match="last='none' is unknown; choose from pad, drop, shift"):
        group_samples([], 2, 1, "none")


def cut_samples(times, end, fps, rate):
    """The frame of each sample by the definition: the last frame at or before it, or every `rate`-th."""
    if fps is None:
        return list(range(0, len(times), rate))
    count = int(np.ceil(end * fps - 1e-2))
    return [int(np.flatnonzero(times <= j / fps + 6e-4)[-1]) for j in range(count)]


def make_video(kind, folder):
    """A source, its frames all at once, their times, and its options."""
    if kind == "gif":
        path = folder / "video.gif"
        images = [Image.fromarray(frame) for frame in make_frames(21)]
        images[0].save(path, save_all=True, append_images=images[1:], duration=[100, 40, 250] * 7)
        return path, read_video(path)[0], np.cumsum([0, *([0.1, 0.04, 0.25] * 7)]), {}
    if kind == "folder":
        for number, frame in enumerate(make_frames(21)):
            Image.fromarray(frame).save(folder / f"frame{number}.png")
        return folder, make_frames(21), np.arange(22) / 10, {"source_fps": 10}
    ticks = np.cumsum([0, *([1, 1, 4, 1, 1, 1, 9, 1, 1, 2] * 2)]) if kind == "uneven" else np.arange(37)
    options = {"rotation": 90} if kind == "rotated" else {}
    name = {"matroska": "video.mkv", "mpegts": "video.ts"}.get(kind, "video.mp4")
    path = encode_video(folder / name, make_frames(len(ticks)), times=ticks.tolist(), **options)
    frames, metadata = read_video(path)
    return path, frames, np.append(ticks / 30, metadata.duration), {}


@pytest.mark.parametrize("kind", ["b-frames", "uneven", "rotated", "matroska", "mpegts", "gif", "folder"])
@pytest.mark.parametrize("rates", [{}, {"frame_sampling_rate": 3}, {"fps": 7}, {"fps": 30}, {"fps": 45}])
def test_samples_are_those_of_the_whole_video(kind, rates, tmp_path):
    source, frames, times, options = make_video(kind, tmp_path)
    *times, end = times
    assert len(times) == len(frames)
    numbers = cut_samples(np.array(times), end, rates.get("fps"), rates.get("frame_sampling_rate", 1))
    starts = np.arange(len(numbers)) / rates["fps"] if "fps" in rates else np.array(times)[numbers]
    samples = list(timed_samples(source, **rates, **options))
    assert np.array_equal([sample.value.image for sample in samples], frames[numbers])
    assert [sample.start for sample in samples] == pytest.approx(starts.tolist(), abs=2e-3)
    assert [sample.end for sample in samples] == pytest.approx([*starts[1:], end], abs=2e-3)
    assert all(sample.end == after.start for sample, after in pairwise(samples))


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_an_error_of_the_iterable_comes_after_its_samples_and_an_interrupt_at_once(error):
    def frames():
        yield from make_frames(4)
        raise error

    found = []
    with pytest.raises(error):
        for sample in timed_samples(frames(), source_fps=1):
            found.append(sample.end)
    assert found == ([1, 2, 3, 4] if error is RuntimeError else [1, 2])


@pytest.mark.parametrize(
    ("frames", "options", "error", "message"),
    [
        ([], {"source_fps": 1}, VideoReadError, "The list gave no frame"),
        (make_frames(2), {}, ValueError, "give source_fps"),
        (make_frames(2)[..., 0], {"source_fps": 1}, ValueError, r"Frame 0 of the iterable is uint8 \(48, 64\)"),
        (make_frames(2) / 255, {"source_fps": 1}, ValueError, "Frame 0 of the iterable is float64"),
        (["picture"], {"source_fps": 1}, ValueError, "Frame 0 of the iterable is str"),
        ([StreamedFrame(0, 1, make_frames(1)[0])] * 2, {}, ValueError, "Frame 0 at 1 s comes after one at 1 s"),
    ],
)
def test_frames_that_are_none_are_named(frames, options, error, message):
    with pytest.raises(error, match=message):
        list(timed_samples(frames, **options))


def test_frames_with_their_own_times_may_begin_at_any():
    frames = [StreamedFrame(i, 100 + i / 4, image) for i, image in enumerate(make_frames(8))]
    samples = list(timed_samples(frames, fps=2))
    assert [(sample.start, sample.value.number) for sample in samples] == [(100, 0), (100.5, 2), (101, 4), (101.5, 6)]
