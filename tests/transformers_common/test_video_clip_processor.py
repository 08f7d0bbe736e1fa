"""Transformers' common tests of video processors, run against `VideoClipProcessor`."""

import unittest
from typing import Any

from hf_video.processing import VideoClipProcessor

from .distribution import load

common = load("test_video_processing_common")


class VideoClipProcessorTester:
    batch_size = 2
    num_frames = 8
    num_channels = 3
    crop_size = 18

    def prepare_video_inputs(self, equal_resolution: bool = False, return_tensors: str = "pil") -> list[Any]:
        return common.prepare_video_inputs(
            self.batch_size, self.num_frames, self.num_channels, 30, 60, equal_resolution, return_tensors
        )

    def expected_output_video_shape(self, videos: list[Any]) -> tuple[int, int, int, int]:
        return self.num_frames, self.num_channels, self.crop_size, self.crop_size


class VideoClipProcessorTest(common.VideoProcessingTestMixin, unittest.TestCase):
    fast_video_processing_class = VideoClipProcessor
    input_name = "pixel_values"
    test_cast_dtype = True

    def setUp(self) -> None:
        super().setUp()
        self.video_processor_tester = VideoClipProcessorTester()
        self.video_processor_dict = {
            # Every frame unless a test asks for fewer, and an error when it asks for more than there are.
            "num_frames": None,
            "frame_sampling_rate": 1,
            "repeat_last_frame": False,
            "size": {"shortest_edge": 20},
            "crop_size": {"height": 18, "width": 18},
            "image_mean": [0.5, 0.5, 0.5],
            "image_std": [0.5, 0.5, 0.5],
        }

    def test_override_instance_attributes_does_not_affect_other_instances(self) -> None:
        """The mixin's skips processors whose sizes are no plain dictionaries, which those of Transformers are not."""
        first, second = VideoClipProcessor(), VideoClipProcessor()
        untouched = second.to_dict()
        first.size["shortest_edge"] = first.crop_size["height"] = -1
        self.assertEqual(second.to_dict(), untouched)
        self.assertEqual(VideoClipProcessor().to_dict(), untouched)
