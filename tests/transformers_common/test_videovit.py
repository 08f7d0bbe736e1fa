"""Transformers' common tests of models, run against VideoViT."""

import unittest

import pytest
import torch
from transformers.testing_utils import torch_device

from hf_video import (
    VideoViTBackbone,
    VideoViTConfig,
    VideoViTForFrameClassification,
    VideoViTForImageClassification,
    VideoViTForPreTraining,
    VideoViTForVideoClassification,
    VideoViTModel,
)

from .distribution import load
from .model_testing import VideoModelTester, VideoModelTestMixin

BackboneTesterMixin = load("test_backbone_common").BackboneTesterMixin


class VideoViTModelTester(VideoModelTester):
    config_class = VideoViTConfig
    config_kwargs = {
        "num_frames": 4,
        "num_channels": 3,
        "image_size": 16,
        "tubelet_size": 2,
        "patch_size": 8,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 64,
        "decoder_hidden_size": 16,
        "decoder_num_hidden_layers": 1,
        "decoder_num_attention_heads": 2,
        "decoder_intermediate_size": 32,
    }
    seq_length = 8
    num_masks = 4


class VideoViTModelTest(VideoModelTestMixin, unittest.TestCase):
    model_tester_class = VideoViTModelTester
    all_model_classes = (VideoViTModel, VideoViTForVideoClassification, VideoViTBackbone)


class VideoViTBackboneTest(BackboneTesterMixin, unittest.TestCase):
    all_model_classes = (VideoViTBackbone,)
    config_class = VideoViTConfig

    def setUp(self) -> None:
        self.model_tester = VideoViTModelTester()


class VideoViTForFrameClassificationTester(VideoViTModelTester):
    """Adds the mask of token frames."""

    config_kwargs = VideoViTModelTester.config_kwargs | {"tubelet_size": 1}
    seq_length = 16

    def get_inputs(self) -> dict[str, torch.Tensor]:
        mask = torch.ones(self.batch_size, self.num_frames, dtype=torch.long, device=torch_device)
        return super().get_inputs() | {"attention_mask": mask}


@pytest.mark.slow
class VideoViTForFrameClassificationTest(VideoModelTestMixin, unittest.TestCase):
    model_tester_class = VideoViTForFrameClassificationTester
    all_model_classes = (VideoViTForFrameClassification,)


class VideoViTForImageClassificationTester(VideoModelTester):
    """Images, and the parts of the architecture that the defaults leave out."""

    config_class = VideoViTConfig
    config_kwargs = VideoViTModelTester.config_kwargs | {
        "num_frames": 1,
        "tubelet_size": 1,
        "use_class_token": True,
        "use_qk_norm": True,
        "key_bias": True,
        "use_cosine_attention": True,
        "layer_scale_init_value": 0.1,
        "norm_type": "rms_norm",
        "position_embedding_type": "learned",
    }
    seq_length = 5

    def get_inputs(self) -> dict[str, torch.Tensor]:
        return {"pixel_values": super().get_inputs()["pixel_values"].squeeze(1)}


@pytest.mark.slow
class VideoViTForImageClassificationTest(VideoModelTestMixin, unittest.TestCase):
    model_tester_class = VideoViTForImageClassificationTester
    all_model_classes = (VideoViTForImageClassification,)


class AttentiveClassifierTester(VideoViTModelTester):
    """V-JEPA 2."""

    config_kwargs = VideoViTModelTester.config_kwargs | {
        "position_embedding_type": "rope",
        "rope_layout": "vjepa2",
        "key_bias": True,
        "use_mean_pooling": False,
        "pooler_type": "attentive",
        "pooler_num_hidden_layers": 1,
        "pooler_num_attention_heads": 4,
    }


@pytest.mark.slow
class AttentiveClassifierTest(VideoModelTestMixin, unittest.TestCase):
    model_tester_class = AttentiveClassifierTester
    all_model_classes = (VideoViTForVideoClassification, VideoViTBackbone)


class VideoViTForPreTrainingTester(VideoViTModelTester):
    """Adds the mask. The layers of the encoder see only the tokens that it leaves visible."""

    seq_length = 4
    mask_length = 8

    def get_inputs(self) -> dict[str, torch.Tensor]:
        masked = torch.arange(self.mask_length, device=torch_device) < self.num_masks
        return super().get_inputs() | {"bool_masked_pos": masked.repeat(self.batch_size, 1)}


@pytest.mark.slow
class VideoViTForPreTrainingTest(VideoModelTestMixin, unittest.TestCase):
    model_tester_class = VideoViTForPreTrainingTester
    all_model_classes = (VideoViTForPreTraining,)
