"""`None` stands for the default in every call of a processor; the constructor keeps it as a value."""

import pytest
import torch
from transformers.image_utils import PILImageResampling

from hf_video.processing import CenterCropImageProcessor, VideoClipProcessor
from tests.testing.videos import make_frames

OPTIONS = list(VideoClipProcessor.valid_kwargs.__annotations__)
METADATA = [{"total_num_frames": 30, "fps": 30, "width": 64, "height": 48, "duration": 1.0}]
VIDEO = make_frames(30)
PROCESSORS = {
    # No option that has an effect has the value of the class.
    "by rate": {
        "num_frames": 3,
        "frame_sampling_rate": 2,
        "sampling_strategy": "strided",
        "num_clips": 2,
        "num_crops": 2,
        "size": {"shortest_edge": 40},
        "crop_size": {"height": 32, "width": 36},
        "resample": PILImageResampling.BICUBIC,
        "antialias": True,
        "rescale_factor": 1 / 128,
        "image_mean": [0.1, 0.2, 0.3],
        "image_std": [0.4, 0.5, 0.6],
        "return_metadata": True,
    },
    "by fps": {"num_frames": 3, "fps": 10, "size": 40, "crop_size": 32},
    "unchanged": {"num_frames": 3, "do_center_crop": False, "do_rescale": False, "do_normalize": False},
}


@pytest.fixture(params=PROCESSORS)
def processor(request):
    return VideoClipProcessor(**PROCESSORS[request.param])


def views(inputs):
    return torch.stack(list(inputs["pixel_values"]))


def test_of_a_call(processor):
    metadata = None if processor.fps is None else METADATA
    expected = processor(VIDEO, video_metadata=metadata)
    for options in [*([name] for name in OPTIONS), OPTIONS]:
        for call in (processor, processor.preprocess):
            found = call(VIDEO, **dict.fromkeys(options) | {"video_metadata": metadata})
            assert torch.equal(views(found), views(expected)), options
            assert found.keys() == expected.keys(), options


def test_of_sampling():
    processor = VideoClipProcessor(**PROCESSORS["by rate"])
    metadata = processor(VIDEO)["video_metadata"][0]
    expected = processor.sample_frames(metadata)
    for options in [*([name] for name in OPTIONS), OPTIONS]:
        assert processor.sample_frames(metadata, **dict.fromkeys(options)).tolist() == expected.tolist(), options


def test_unknown_options_are_refused_all_the_same():
    with pytest.raises(TypeError, match="crop_sise"):
        VideoClipProcessor()(VIDEO, crop_sise=None)


def test_of_a_call_with_images():
    options = {
        "size": {"shortest_edge": 40},
        "crop_size": 32,
        "image_mean": [0.1, 0.2, 0.3],
        "rescale_factor": 1 / 128,
    }
    processor = CenterCropImageProcessor(**options)
    expected = processor(VIDEO[0], return_tensors="pt")["pixel_values"]
    for name in CenterCropImageProcessor.valid_kwargs.__annotations__:
        for call in (processor, processor.preprocess):
            found = call(VIDEO[0], **{"return_tensors": "pt", name: None})
            assert torch.equal(torch.as_tensor(found["pixel_values"][0]), expected[0]), name
    with pytest.raises(TypeError, match="crop_sise"):
        processor(VIDEO[0], crop_sise=None)
