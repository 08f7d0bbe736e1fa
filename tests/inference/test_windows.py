"""The distance between frames in training is that of windows, and what is far from it is said."""

import logging

import numpy as np
import pytest

from hf_video import VideoClipProcessor
from hf_video.cli.main import main
from hf_video.inference.windows import choose_windows, warn_if_sparse, window_batches
from tests.testing.trainers import make_model
from tests.testing.videos import encode_video, make_frames

SIZE = {"height": 16, "width": 16}


@pytest.mark.parametrize(
    ("options", "is_said"),
    [
        ({"sampling_strategy": "uniform", "frame_interval": 0.1}, True),
        ({"sampling_strategy": "uniform", "frame_interval": 0.1, "num_clips": 2}, True),
        # Videos of one data set differ in length.
        ({"sampling_strategy": "uniform", "frame_interval": 0.4}, False),
        ({"sampling_strategy": "uniform"}, False),
        ({"frame_sampling_rate": 1, "frame_interval": 0.1}, False),
        ({"fps": 5}, False),
    ],
)
def test_frames_that_lie_much_further_apart_than_in_training_are_said(options, is_said, tmp_path, caplog):
    video = encode_video(tmp_path / "long.mp4", np.zeros((100, 16, 16, 3), np.uint8), fps=10)
    processor = VideoClipProcessor(num_frames=8, size=SIZE, crop_size=SIZE, **options)
    (metadata,) = processor(video, return_metadata=True)["video_metadata"]
    said = warn_if_sparse(processor, metadata, "long.mp4")
    assert (said is not None) == is_said == bool(caplog.records)
    if is_said:
        assert said in caplog.text and "8 frames, 1.2 s apart" in said and "hf-video timeline" in said


def test_predict_says_it_of_each_video(tmp_path, caplog, capsys):
    videos = [encode_video(tmp_path / f"{length}.mp4", np.zeros((length, 16, 16, 3), np.uint8)) for length in (8, 90)]
    make_model(num_frames=8).save_pretrained(tmp_path)
    options = {"sampling_strategy": "uniform", "frame_interval": 1 / 30}
    VideoClipProcessor(num_frames=8, size=SIZE, crop_size=SIZE, **options).save_pretrained(tmp_path)
    assert main(["predict", *videos, "--model", str(tmp_path), "--device", "cpu"]) == 0
    assert f"{videos[1]}: the model sees 8 frames, 0.38 s apart" in caplog.text and f"{videos[0]}:" not in caplog.text


@pytest.fixture(scope="module")
def video(tmp_path_factory):
    return encode_video(tmp_path_factory.mktemp("video") / "video.mp4", make_frames(23))


def test_windows_are_as_the_processor_takes_clips():
    of_sizes = {"num_frames": 6, "stride": 3, "fps": None, "frame_sampling_rate": 4}
    assert choose_windows(VideoClipProcessor(num_frames=6)) == of_sizes
    assert choose_windows(VideoClipProcessor(num_frames=6, fps=5)) == of_sizes | {"fps": 5, "frame_sampling_rate": 1}
    uniform = VideoClipProcessor(num_frames=6, sampling_strategy="uniform")
    assert choose_windows(uniform) == of_sizes | {"frame_sampling_rate": 1}
    given = {"num_frames": 4, "stride": 1, "fps": None, "frame_sampling_rate": 2}
    assert choose_windows(VideoClipProcessor(num_frames=6, fps=5), **given) == given
    for options in ({"fps": 5}, {"sampling_strategy": "uniform"}, {"frame_sampling_rate": 2}):
        learned = VideoClipProcessor(num_frames=6, frame_interval=0.125, **options)
        assert choose_windows(learned) == of_sizes | {"fps": 8, "frame_sampling_rate": 1}
        assert choose_windows(learned, **given) == given


@pytest.fixture
def said(caplog):
    """The lines of the log, which says each sentence once in a process."""
    logging.Logger.warning_once.cache_clear()
    return caplog


def test_windows_of_another_length_than_in_training_are_told(video, said):
    for num_frames in (None, 6):
        assert "clips in training" not in said.text
        list(window_batches(uniform(), video, num_frames=num_frames))
    assert "The windows have 6 frames, the clips in training had 8" in said.text


def uniform(frame_interval=None):
    return VideoClipProcessor(
        num_frames=8,
        sampling_strategy="uniform",
        frame_interval=frame_interval,
        size={"shortest_edge": 16},
        crop_size=SIZE,
    )
