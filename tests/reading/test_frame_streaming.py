"""Frames of a file one at a time are those of reading it at once."""

import gc

import av
import numpy as np
import pytest

from hf_video.reading import VideoReadError, read_video
from hf_video.reading.frame_streaming import stream_frames
from tests.testing.videos import cut_file, damage_frame, encode_video


@pytest.fixture(scope="module")
def video(tmp_path_factory):
    return encode_video(tmp_path_factory.mktemp("videos") / "video.mp4")


def test_all_frames_come_in_order_with_their_times(video):
    frames = list(stream_frames(video))
    expected, _ = read_video(video)
    assert [frame.number for frame in frames] == list(range(60))
    assert np.array_equal(np.stack([frame.image for frame in frames]), expected)
    assert [frame.seconds for frame in frames] == pytest.approx([number / 30 for number in range(60)], abs=1e-3)


@pytest.mark.parametrize(("fps", "expected"), [(1, [0, 30]), (10, range(0, 60, 3)), (7, None), (300, range(60))])
def test_a_rate_takes_the_first_frame_of_each_interval(video, fps, expected):
    if expected is None:
        expected = [int(np.ceil(k * 30 / 7 - 1e-6)) for k in range(14)]
    assert [frame.number for frame in stream_frames(video, fps=fps)] == list(expected)


def test_what_cannot_be_read_is_named(video, tmp_path):
    with pytest.raises(VideoReadError, match="does not exist"):
        stream_frames(tmp_path / "none.mp4")
    with pytest.raises(ValueError, match="fps=0 must be positive"):
        stream_frames(video, fps=0)
    with pytest.raises(VideoReadError, match="cut_video"):
        list(stream_frames(cut_file(video, 0.5)))
    with pytest.raises(VideoReadError, match="is damaged"):
        list(stream_frames(damage_frame(video, 25)))


def test_a_file_that_breaks_off_is_read_to_where_it_does_and_then_named(tmp_path):
    whole = encode_video(tmp_path / "front.mp4", container_options={"movflags": "faststart"})
    for keep in (0.5, 0.7, 0.9):
        frames = []
        with pytest.raises(VideoReadError, match="cut_front.mp4 is (cut off|damaged)"):
            for frame in stream_frames(cut_file(whole, keep)):
                frames.append(frame.number)
        assert frames == list(range(len(frames))) and frames


def test_converted_frames_are_freed_without_the_garbage_collector(video):
    gc.collect()
    gc.disable()
    try:
        for frame in stream_frames(video):
            frame.image  # noqa: B018
        del frame
        assert not [found for found in gc.get_objects() if type(found) is av.VideoFrame]
    finally:
        gc.enable()
