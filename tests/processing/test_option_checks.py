import math

import numpy as np
import pytest

from hf_video.processing import CenterCropImageProcessor, VideoClipProcessor
from hf_video.processing.option_checks import check_statistics

VIDEO = np.full((8, 40, 40, 3), 51, dtype=np.uint8)
WRONG = [
    ({"image_std": 0}, "image_std=0 must be above 0"),
    ({"image_std": [0.5, 0.0, 0.5]}, "must be above 0"),
    ({"image_std": math.nan}, "image_std=nan must be a finite number"),
    ({"image_mean": [0.5, math.inf, 0.5]}, "must be a finite number, or one for each channel"),
    ({"image_mean": []}, "must be a finite number, or one for each channel"),
    ({"image_std": [0.5, 0.5]}, "must fit each other"),
]


@pytest.mark.parametrize("processor_class", [VideoClipProcessor, CenterCropImageProcessor])
@pytest.mark.parametrize(("options", "message"), WRONG)
def test_what_frames_cannot_be_normalised_by_is_refused_at_construction(processor_class, options, message):
    with pytest.raises(ValueError, match=message):
        processor_class(**options)
    processor_class(**options, do_normalize=False)


@pytest.mark.parametrize(
    ("options", "message"), [*WRONG, ({"rescale_factor": math.nan}, "rescale_factor=nan must be")]
)
def test_and_in_a_call(options, message):
    with pytest.raises(ValueError, match=message):
        VideoClipProcessor()(VIDEO, **options)


def test_one_number_stands_for_all_channels():
    values = VideoClipProcessor(image_mean=0.1, image_std=0.5)(VIDEO, return_tensors="np")["pixel_values"]
    np.testing.assert_allclose(values, (51 / 255 - 0.1) / 0.5, rtol=1e-6)


def test_as_many_numbers_as_the_frames_have_channels():
    grey = VideoClipProcessor(do_convert_rgb=False, image_mean=[0.1] * 3, image_std=[0.5] * 3)
    with pytest.raises(ValueError, match="must fit each other, and the 1 channels of the frames"):
        grey(VIDEO[..., :1])
    check_statistics([0.1], 0.5, num_channels=1)
