"""Sliding windows are those cut out of the whole decoded video."""

from itertools import pairwise, product

import numpy as np
import pytest
from PIL import Image

from hf_video.reading import Sample, VideoReadError, group_samples, read_video, sliding_windows, timed_samples
from hf_video.reading.frame_streaming import StreamedFrame
from hf_video.reading.pyav_streams import RgbConverter
from tests.testing.processes import launched, run_forked
from tests.testing.videos import cut_file, encode_video, make_frames


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


@pytest.mark.parametrize("integer", [int, np.int64])
def test_arrays_have_the_times_of_their_rate(integer):
    frames = make_frames(10)
    windows = list(sliding_windows(iter(frames), num_frames=integer(4), stride=integer(4), source_fps=5))
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
def test_windows_are_those_cut_out_of_the_whole_video(kind, tmp_path):
    source, frames, times, options = make_video(kind, tmp_path)
    *times, end = times
    assert len(times) == len(frames)
    for rates, sizes, last in product(
        [{}, {"frame_sampling_rate": 3}, {"fps": 7}, {"fps": 45}],
        [(8, 4), (5, 3), (2, 7), (200, 50)],
        ["pad", "drop", "shift"],
    ):
        numbers = cut_samples(np.array(times), end, rates.get("fps"), rates.get("frame_sampling_rate", 1))
        expected = cut_windows(len(numbers), *sizes, last)
        num_frames, stride = sizes
        windows = sliding_windows(source, num_frames=num_frames, stride=stride, last=last, **rates, **options)
        for window, (places, num_real) in zip(windows, expected, strict=True):
            assert np.array_equal(window.frames, frames[np.array(numbers)[places]])
            assert window.num_real == num_real
            starts = np.arange(len(numbers)) / rates["fps"] if "fps" in rates else np.array(times)[numbers]
            after = np.append(starts, end)[places[-1] + 1]
            assert (window.start, window.end) == pytest.approx((starts[places[0]], after), abs=2e-3)


def test_windows_that_are_kept_do_not_change():
    frames = make_frames(200)
    windows = list(sliding_windows(frames, num_frames=5, stride=2, source_fps=1))
    for i, window in enumerate(windows):
        assert np.array_equal(window.frames[: window.num_real], frames[2 * i : 2 * i + 5])
    # Parts of windows hold their memory as well.
    parts = [window.frames[2:4] for window in sliding_windows(frames, num_frames=5, stride=2, source_fps=1)]
    for i, part in enumerate(parts[:-1]):
        assert np.array_equal(part, frames[2 * i + 2 : 2 * i + 4])
    with pytest.raises(ValueError, match="read-only"):
        windows[0].frames[0] = 0


def test_memory_does_not_grow_with_the_video():
    """In a process of its own: tracemalloc would count what other threads of a test run allocate."""
    program = """if True:
        import tracemalloc
        import numpy as np
        from hf_video.reading import sliding_windows
        frames = (np.full((64, 64, 3), i % 256, dtype=np.uint8) for i in range(12_000))
        tracemalloc.start()
        for i, _ in enumerate(sliding_windows(frames, num_frames=8, stride=2, source_fps=30)):
            if i in (100, 5900):
                print(tracemalloc.get_traced_memory()[1])
                tracemalloc.reset_peak()
    """
    result = run_forked(*launched(["-c", program]))[0]
    assert result.returncode == 0, result.stderr
    peaks = [int(line) for line in result.stdout.split()]
    assert len(peaks) == 2 and max(peaks) < peaks[0] * 1.02 + 2e4
    # Two arrays of two windows, and the images in the ring and before it.
    assert max(peaks) < 48 * 64 * 64 * 3


def test_each_frame_is_converted_once_and_only_if_a_window_holds_it(video, monkeypatch):
    converted = []
    view = RgbConverter.view
    monkeypatch.setattr(RgbConverter, "view", lambda self, frame: converted.append(frame.pts) or view(self, frame))
    list(sliding_windows(video, num_frames=16, stride=3))
    assert len(converted) == len(set(converted)) == 60
    converted.clear()
    list(sliding_windows(video, num_frames=2, stride=20))
    assert len(converted) == 6
    converted.clear()
    list(sliding_windows(video, num_frames=8, stride=4, fps=300))
    assert len(converted) == 60


def test_windows_before_damage_are_given_and_then_it_is_named(tmp_path):
    whole = encode_video(tmp_path / "front.mp4", container_options={"movflags": "faststart"})
    num_whole = len(list(sliding_windows(whole, num_frames=8, stride=8)))
    windows = sliding_windows(cut_file(whole, 0.6), num_frames=8, stride=8)
    found = []
    with pytest.raises(VideoReadError, match="cut_front.mp4 is (cut off|damaged)"):
        for window in windows:
            found.append(window)
    assert 0 < len(found) < num_whole and all(window.num_real == 8 for window in found)


def test_an_error_of_the_iterable_comes_after_its_windows():
    def frames():
        yield from make_frames(8)
        raise RuntimeError("the camera fell down")

    found = []
    with pytest.raises(RuntimeError, match="the camera fell down"):
        for window in sliding_windows(frames(), num_frames=4, stride=4, source_fps=1):
            found.append(window.end)
    assert found == [4, 8]


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_comes_at_once(error):
    def frames():
        yield from make_frames(4)
        raise error

    with pytest.raises(error):
        for _ in sliding_windows(frames(), num_frames=4, stride=4, source_fps=1):
            raise AssertionError("The window waits for the sample after it.")


@pytest.mark.parametrize(
    ("frames", "options", "error", "message"),
    [
        ([], {"source_fps": 1}, VideoReadError, "The list gave no frame"),
        (make_frames(2), {}, ValueError, "has no times: give source_fps"),
        (make_frames(2)[..., 0], {"source_fps": 1}, ValueError, r"Frame 0 of the iterable is uint8 \(48, 64\)"),
        (make_frames(2) / 255, {"source_fps": 1}, ValueError, "Frame 0 of the iterable is float64"),
        (["picture"], {"source_fps": 1}, ValueError, "Frame 0 of the iterable is str"),
        ([*make_frames(2), *make_frames(1, 32)], {"source_fps": 1}, VideoReadError, r"frame 2 is \(32, 64\)"),
        ([*make_frames(4), *make_frames(2, 32)], {"source_fps": 1}, VideoReadError, r"frame 4 is \(32, 64\)"),
        ([StreamedFrame(0, 1, make_frames(1)[0])] * 2, {}, ValueError, "Frame 0 at 1 s comes after one at 1 s"),
    ],
)
def test_frames_that_are_none_are_named(frames, options, error, message):
    with pytest.raises(error, match=message):
        list(sliding_windows(frames, num_frames=2, stride=1, **options))


def test_files_that_are_no_videos_are_named(tmp_path):
    (tmp_path / "text.mp4").write_text("no video\n" * 1000)
    with pytest.raises(VideoReadError, match="text.mp4 cannot be opened as a video"):
        list(sliding_windows(tmp_path / "text.mp4"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(VideoReadError, match="holds no frames"):
        sliding_windows(tmp_path / "empty", source_fps=5)
    Image.fromarray(make_frames(1)[0]).save(tmp_path / "empty" / "frame.png")
    with pytest.raises(ValueError, match="is a folder of frames, which has no times: give source_fps"):
        sliding_windows(tmp_path / "empty")


def test_frames_with_their_own_times_may_begin_at_any():
    frames = [StreamedFrame(i, 100 + i / 4, image) for i, image in enumerate(make_frames(8))]
    windows = list(sliding_windows(frames, num_frames=2, stride=2, fps=2))
    assert [(window.start, window.end) for window in windows] == [(100, 101), (101, 102)]
    assert np.array_equal(windows[1].frames, make_frames(8)[[4, 6]])
