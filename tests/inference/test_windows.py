"""Sliding windows are those cut out of the whole decoded video."""

from itertools import pairwise

import numpy as np
import pytest

from hf_video.inference import Sample, group_samples, sliding_windows, timed_samples
from hf_video.processing import VideoReadError, read_video

from ..video_files import encode_video, make_frames


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


def test_windows_of_a_file_are_those_of_the_whole_video(video):
    frames, _ = read_video(video)
    windows = list(sliding_windows(video, num_frames=16, stride=8))
    expected = cut_windows(60, 16, 8, "pad")
    assert [window.num_real for window in windows] == [num_real for _, num_real in expected]
    for window, (numbers, _) in zip(windows, expected, strict=True):
        assert np.array_equal(window.frames, frames[numbers])
        assert window.start == pytest.approx(numbers[0] / 30) and window.end == pytest.approx((numbers[-1] + 1) / 30)


@pytest.mark.parametrize("fps", [7, 15, 25, 30, 100])
def test_a_rate_takes_the_frame_that_is_shown(video, fps):
    samples = list(timed_samples(video, fps=fps))
    assert [sample.value.number for sample in samples] == [j * 30 // fps for j in range(2 * fps)]
    assert [sample.start for sample in samples] == pytest.approx([j / fps for j in range(2 * fps)])
    assert all(sample.end == after.start for sample, after in pairwise(samples))
    assert samples[-1].end == pytest.approx(2)


def test_frames_between_the_samples_are_left_out(video):
    samples = list(timed_samples(video, frame_sampling_rate=4))
    assert [sample.value.number for sample in samples] == list(range(0, 60, 4))
    assert samples[-1].start == pytest.approx(56 / 30) and samples[-1].end == pytest.approx(2)


def test_arrays_have_the_times_of_their_rate():
    frames = make_frames(10)
    windows = list(sliding_windows(iter(frames), num_frames=4, stride=4, source_fps=5))
    assert [(window.start, window.end, window.num_real) for window in windows] == [
        (0, 0.8, 4),
        (0.8, 1.6, 4),
        (1.6, 2, 2),
    ]
    assert np.array_equal(windows[1].frames, frames[4:8])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"fps": 0}, "fps=0 must be positive"),
        ({"fps": float("nan")}, "fps=nan must be positive"),
        ({"fps": -1}, "fps=-1 must be positive"),
        ({"fps": float("inf")}, "fps=inf must be positive"),
        ({"frame_sampling_rate": 0}, "frame_sampling_rate=0 must be positive"),
        ({"fps": 1, "frame_sampling_rate": 2}, "fps=1 and frame_sampling_rate=2 both set"),
        ({"stride": 0}, "stride=0 must be an integer of at least 1"),
        ({"num_frames": 1.5}, "num_frames=1.5 must be an integer"),
        ({"last": "none"}, "last='none' is unknown; choose from pad, drop, shift"),
        ({"source_fps": 5}, "has times of its own"),
    ],
)
def test_wrong_options_are_named_at_the_call(video, options, message):
    with pytest.raises(ValueError, match=message):
        sliding_windows(video, **options)


def test_what_is_no_source_is_named(tmp_path):
    with pytest.raises(VideoReadError, match="does not exist"):
        sliding_windows(tmp_path / "none.mp4")
    with pytest.raises(TypeError, match="not int"):
        sliding_windows(3)
