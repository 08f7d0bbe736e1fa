"""The distance between frames in training is that of windows, and what is far from it is said."""

import logging

import numpy as np
import pytest

from hf_video import VideoClipProcessor
from hf_video.cli.main import main
from hf_video.data import ClipTask, VideoDataset, load_video_dataset
from hf_video.inference.windows import choose_windows, warn_if_sparse
from hf_video.reading import timed_samples
from hf_video.training import VideoTrainer
from tests.testing.trainers import make_arguments, make_model
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


def uniform(frame_interval=None):
    return VideoClipProcessor(
        num_frames=8,
        sampling_strategy="uniform",
        frame_interval=frame_interval,
        size={"shortest_edge": 16},
        crop_size=SIZE,
    )


def test_windows_take_frames_at_the_distance_of_training(tmp_path, said):
    """A video that consists of training videos: each window shows what the clip of its training video shows."""
    distance, fps, parts = 3, 25, np.split(make_frames(5 * 8 * 3), 5)
    for number, frames in enumerate(parts):
        folder = tmp_path / "data" / "ab"[number % 2]
        folder.mkdir(parents=True, exist_ok=True)
        encode_video(folder / f"{number}.mp4", frames, fps=fps)
    processor = uniform()
    clips = VideoDataset(load_video_dataset(tmp_path / "data")["train"], ClipTask(processor), training=True)
    options = {"max_steps": 1, "eval_strategy": "no", "save_strategy": "no", "load_best_model_at_end": False}
    arguments = make_arguments(tmp_path / "out", **options)
    VideoTrainer(make_model(num_frames=8), arguments, train_dataset=clips, processing_class=processor).train()
    assert processor.frame_interval == pytest.approx(distance / fps, abs=1e-6)

    # The same scene at the rate of training, and with every frame twice.
    for factor in (1, 2):
        joined = encode_video(tmp_path / f"{factor}.mp4", np.concatenate(parts).repeat(factor, 0), fps=fps * factor)
        rate = {name: choose_windows(processor)[name] for name in ("fps", "frame_sampling_rate")}
        taken = [sample.value.number for sample in timed_samples(joined, **rate)]
        assert taken == list(range(0, 5 * 8 * distance * factor, distance * factor))
    assert not said.records
