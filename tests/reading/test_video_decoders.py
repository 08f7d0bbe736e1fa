"""`VideoDecoder` objects of torchcodec, whose package need not be there: a stand-in has the same interface."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from datasets import ClassLabel, Dataset, Features, Video

from hf_video import VideoClipProcessor
from hf_video.data import ClipTask, VideoDataset, load_video_dataset
from hf_video.reading import VideoReadError, probe_video, read_video
from tests.testing.videos import encode_video


class VideoDecoder:
    """What `torchcodec.decoders.VideoDecoder` has, of a file that PyAV reads."""

    def __init__(self, source, dimension_order="NCHW"):
        frames, metadata = read_video(source)
        self.frames = torch.from_numpy(frames)
        self.dimension_order = dimension_order
        self.metadata = SimpleNamespace(
            num_frames=len(frames),
            average_fps=metadata.fps,
            duration_seconds=metadata.duration,
            height=metadata.height,
            width=metadata.width,
            path=None,
        )

    def __len__(self):
        return len(self.frames)

    def get_frames_at(self, indices):
        if max(indices) >= 20:
            raise RuntimeError("Could not decode")
        frames = self.frames[indices]
        return SimpleNamespace(data=frames.permute(0, 3, 1, 2) if self.dimension_order == "NCHW" else frames)


@pytest.fixture(scope="module")
def ramp(tmp_path_factory):
    """Two seconds of 24 frames, 48 x 32 pixels, the n-th of brightness 10 * n."""
    path = tmp_path_factory.mktemp("videos") / "ramp.mp4"
    encode_video(path, np.tile(np.arange(0, 240, 10, dtype=np.uint8)[:, None, None], (1, 32, 48)), fps=12)
    return str(path)


@pytest.mark.parametrize("order", ["NCHW", "NHWC"])
def test_frames_and_segments(ramp, order):
    decoder = VideoDecoder(ramp, order)
    for times in ({"end": 1.5}, {"start": 0.5, "end": 1.5}):
        (frames, metadata), (expected, known) = (read_video(each, **times) for each in (decoder, ramp))
        assert np.array_equal(frames, expected)
        assert (metadata.fps, metadata.duration) == pytest.approx((known.fps, known.duration))
        assert metadata.video_backend == "torchcodec"
    assert probe_video(decoder).total_num_frames == 24
    with pytest.raises(VideoReadError, match="The VideoDecoder cannot be decoded: Could not decode"):
        read_video(decoder)


def test_a_decoder_may_resize_its_frames(ramp):
    decoder = VideoDecoder(ramp)
    decoder.frames = decoder.frames[:, ::2, ::2]
    frames, _ = read_video(decoder, end=1.0)
    assert np.array_equal(frames, read_video(ramp, end=1.0)[0][:, ::2, ::2])


def test_the_processor_takes_decoders(ramp):
    processor = VideoClipProcessor(num_frames=2, sampling_strategy="uniform", size=32, crop_size=24)
    decoders = [VideoDecoder(ramp), VideoDecoder(ramp)]
    found, expected = (processor(videos, return_tensors="pt")["pixel_values"] for videos in (decoders, [ramp, ramp]))
    assert torch.equal(found, expected)


def test_a_data_set_that_decodes_is_read_without_torchcodec(ramp):
    features = Features({"clip": Video(), "label": ClassLabel(names=["a", "b"])})
    dataset = Dataset.from_dict({"clip": [ramp, ramp], "label": [0, 1]}, features=features)
    assert dataset.features["clip"].decode
    processor = VideoClipProcessor(num_frames=2, sampling_strategy="uniform", size=20, crop_size=16)
    item = VideoDataset(load_video_dataset(dataset)["train"], ClipTask(processor), training=False)[1]
    assert item["labels"] == 1
    assert torch.equal(item["pixel_values"], processor(ramp, return_tensors="pt")["pixel_values"])
