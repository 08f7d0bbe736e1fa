"""Transformers' common tests of models, run against STMixer."""

import unittest

import torch
from transformers.testing_utils import torch_device

from hf_video import STMixerConfig, STMixerForActionDetection

from .model_testing import ConfigTester, VideoModelTester, VideoModelTestMixin


class STMixerModelTester(VideoModelTester):
    config_class = STMixerConfig
    config_kwargs = {
        "backbone_config": {
            "model_type": "videovit",
            "num_frames": 4,
            "image_size": 16,
            "patch_size": 8,
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "intermediate_size": 64,
        },
        "num_queries": 4,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 40,
        "num_spatial_points": 3,
        "num_temporal_points": 2,
        "num_groups": 2,
        "num_labels": 3,
    }
    seq_length = 8

    def get_inputs(self) -> dict[str, torch.Tensor]:
        return {"pixel_values": torch.randn(self.batch_size, 4, 3, 16, 16, device=torch_device)}


class STMixerModelTest(VideoModelTestMixin, unittest.TestCase):
    model_tester_class = STMixerModelTester
    all_model_classes = (STMixerForActionDetection,)
    _is_composite = True

    def _prepare_for_class(self, inputs_dict, model_class, return_labels=False):
        """Labels are a list of persons for each clip."""
        inputs = super()._prepare_for_class(inputs_dict, model_class)
        if return_labels:
            boxes = torch.tensor([[1.0, 2.0, 9.0, 12.0]], device=torch_device)
            label = {"boxes": boxes, "class_labels": torch.ones(1, 3, device=torch_device)}
            inputs["labels"] = [label] * len(inputs["pixel_values"])
        return inputs

    def test_config(self) -> None:
        """The mixin compares arguments as they were given; parts of a composite come back completed."""
        kwargs = {"num_queries": 4, "hidden_size": 32}
        ConfigTester(self, STMixerConfig, False, list(kwargs), **kwargs).run_common_tests()
