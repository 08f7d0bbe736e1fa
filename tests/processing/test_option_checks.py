import math

import numpy as np
import pytest

from hf_video.processing import CenterCropImageProcessor, VideoClipProcessor

VIDEO = np.full((8, 40, 40, 3), 51, dtype=np.uint8)
STATISTICS = [
    ({"image_std": 0}, "image_std=0 must be above 0"),
    ({"image_std": [0.5, 0.0, 0.5]}, "must be above 0"),
    ({"image_std": math.nan}, "image_std=nan must be a finite number"),
    ({"image_mean": [0.5, math.inf, 0.5]}, "must be a finite number, or one for each channel"),
    ({"image_mean": []}, "must be a finite number, or one for each channel"),
    ({"image_std": [0.5, 0.5]}, "must fit each other"),
]
WRONG = [
    *STATISTICS,
    ({"sampling_strategy": "densely"}, "sampling_strategy='densely' must be one of.*uniform"),
    ({"num_frames": 0}, "num_frames=0 must be"),
    ({"num_frames": 1.5}, "num_frames=1.5 must be"),
    ({"num_crops": 0}, "num_crops=0 must be"),
    ({"frame_sampling_rate": math.nan}, "frame_sampling_rate=nan must be positive"),
    ({"fps": -1}, "fps=-1 must be positive"),
    ({"crop_size": {"height": 16.5, "width": 16}}, "crop_size.*16.5"),
    ({"crop_size": {"shortest_edge": 16}}, "crop_size.*height and width"),
    ({"size": 0}, "size=.*0"),
    ({"rescale_factor": 0}, "rescale_factor=0"),
    ({"rescale_factor": math.nan}, "rescale_factor=nan must be"),
    ({"fps": 5, "frame_sampling_rate": 2}, "fps=5 and frame_sampling_rate=2"),
    ({"fps": 5, "sampling_strategy": "uniform"}, "fps=5 must be None.*'uniform'"),
    ({"num_crops": 3, "do_center_crop": False}, "num_crops=3 must be 1 without do_center_crop"),
]


@pytest.mark.parametrize(("options", "message"), WRONG)
def test_wrong_options_are_refused_at_construction_and_in_a_call(options, message):
    with pytest.raises(ValueError, match=message):
        VideoClipProcessor(**options)
    with pytest.raises(ValueError, match=message):
        # The file does not exist either: options are looked at before any work is done.
        VideoClipProcessor()("missing.mp4", **options)


@pytest.mark.parametrize(("options", "message"), STATISTICS)
def test_what_images_cannot_be_normalised_by_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        CenterCropImageProcessor(**options)
    for processor_class in (VideoClipProcessor, CenterCropImageProcessor):
        processor_class(**options, do_normalize=False)


def test_as_many_numbers_as_the_frames_have_channels_or_one_for_all():
    values = VideoClipProcessor(image_mean=0.1, image_std=0.5)(VIDEO, return_tensors="np")["pixel_values"]
    np.testing.assert_allclose(values, (51 / 255 - 0.1) / 0.5, rtol=1e-6)
    grey = VideoClipProcessor(do_convert_rgb=False, image_mean=[0.1] * 3, image_std=[0.5] * 3)
    with pytest.raises(ValueError, match="must fit each other, and the 1 channels of the frames"):
        grey(VIDEO[..., :1])
    assert grey(VIDEO[..., :1], image_mean=[0.1], image_std=0.5)["pixel_values"][0].shape == (16, 1, 224, 224)
