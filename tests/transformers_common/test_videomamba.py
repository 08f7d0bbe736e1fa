"""Transformers' common tests of models, run against VideoMamba."""

import unittest

import pytest
import torch
from transformers.testing_utils import torch_device

from hf_video import (
    VideoMambaBackbone,
    VideoMambaConfig,
    VideoMambaForFrameClassification,
    VideoMambaForImageClassification,
    VideoMambaForPreTraining,
    VideoMambaForVideoClassification,
    VideoMambaModel,
)

from .distribution import load
from .model_testing import VideoModelTester, VideoModelTestMixin

BackboneTesterMixin = load("test_backbone_common").BackboneTesterMixin


class VideoMambaModelTester(VideoModelTester):
    config_class = VideoMambaConfig
    config_kwargs = {
        "num_frames": 4,
        "num_channels": 3,
        "image_size": 16,
        "tubelet_size": 2,
        "patch_size": 8,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "state_size": 4,
        "projection_dim": 16,
    }
    seq_length = 9
    num_masks = 4


class VideoMambaModelTest(VideoModelTestMixin, unittest.TestCase):
    model_tester_class = VideoMambaModelTester
    all_model_classes = (VideoMambaModel, VideoMambaForVideoClassification, VideoMambaBackbone)
    has_attentions = False


class VideoMambaBackboneTest(BackboneTesterMixin, unittest.TestCase):
    all_model_classes = (VideoMambaBackbone,)
    config_class = VideoMambaConfig
    has_attentions = False

    def setUp(self) -> None:
        self.model_tester = VideoMambaModelTester()


class VideoMambaForFrameClassificationTester(VideoMambaModelTester):
    """Adds the mask of token frames."""

    config_kwargs = VideoMambaModelTester.config_kwargs | {"tubelet_size": 1}
    seq_length = 17

    def get_inputs(self) -> dict[str, torch.Tensor]:
        mask = torch.ones(self.batch_size, self.num_frames, dtype=torch.long, device=torch_device)
        return super().get_inputs() | {"attention_mask": mask}


@pytest.mark.slow
class VideoMambaForFrameClassificationTest(VideoModelTestMixin, unittest.TestCase):
    model_tester_class = VideoMambaForFrameClassificationTester
    all_model_classes = (VideoMambaForFrameClassification,)
    has_attentions = False


class VideoMambaForImageClassificationTester(VideoModelTester):
    """Images, and the parts of the architecture that the defaults leave out."""

    config_class = VideoMambaConfig
    config_kwargs = VideoMambaModelTester.config_kwargs | {
        "num_frames": 1,
        "tubelet_size": 1,
        "patch_stride": 4,
        "norm_type": "layer_norm",
        "scan_order": "temporal_first",
        "time_step_init_scheme": "random",
        "use_bias": True,
        "use_conv_bias": False,
        "use_mean_pooling": True,
        "bidirectional": False,
    }
    seq_length = 10

    def get_inputs(self) -> dict[str, torch.Tensor]:
        return {"pixel_values": super().get_inputs()["pixel_values"].squeeze(1)}


@pytest.mark.slow
class VideoMambaForImageClassificationTest(VideoModelTestMixin, unittest.TestCase):
    model_tester_class = VideoMambaForImageClassificationTester
    all_model_classes = (VideoMambaForImageClassification,)
    has_attentions = False


class VideoMambaForPreTrainingTester(VideoMambaModelTester):
    """Adds mask and targets. The layers of the encoder see only the tokens that the mask leaves visible."""

    seq_length = 5
    mask_length = 8

    def get_inputs(self) -> dict[str, torch.Tensor]:
        masked = torch.arange(self.mask_length, device=torch_device) < self.num_masks
        targets = torch.randn(self.batch_size, 1, self.seq_length, self.projection_dim, device=torch_device)
        return super().get_inputs() | {"bool_masked_pos": masked.repeat(self.batch_size, 1), "labels": targets}


@pytest.mark.slow
class VideoMambaForPreTrainingTest(VideoModelTestMixin, unittest.TestCase):
    model_tester_class = VideoMambaForPreTrainingTester
    all_model_classes = (VideoMambaForPreTraining,)
    has_attentions = False
