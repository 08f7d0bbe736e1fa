"""Transformers' common tests of models, run against MemoryBankQFormer."""

import unittest

import torch
from transformers.testing_utils import torch_device

from hf_video import MemoryBankQFormerConfig, MemoryBankQFormerForVideoClassification, MemoryBankQFormerModel

from .model_testing import ConfigTester, VideoModelTester, VideoModelTestMixin


class MemoryBankQFormerModelTester(VideoModelTester):
    config_class = MemoryBankQFormerConfig
    config_kwargs = {
        "vision_config": {
            "model_type": "instructblip_vision_model",
            "hidden_size": 40,
            "intermediate_size": 48,
            "num_hidden_layers": 1,
            "num_attention_heads": 4,
            "image_size": 14,
            "patch_size": 7,
            "initializer_range": 0.02,
        },
        "qformer_config": {
            "vocab_size": 61,
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "intermediate_size": 64,
            "max_position_embeddings": 24,
        },
        "num_query_tokens": 3,
        "memory_bank_length": 2,
        "max_num_frames": 8,
        "projection_dim": 24,
    }
    num_frames, text_length = 4, 5
    # Queries and text; keys are those of the bank and of the last frame.
    seq_length = 8
    key_length = 24
    hidden_size, num_hidden_layers, num_attention_heads = 32, 2, 4

    def get_inputs(self) -> dict[str, torch.Tensor]:
        sizes = (self.num_frames, 3, 14, 14)
        ids = torch.randint(1, 61, (self.batch_size, self.text_length), device=torch_device)
        return {
            "pixel_values": torch.randn(self.batch_size, *sizes, device=torch_device),
            "qformer_input_ids": ids,
            "qformer_attention_mask": torch.ones_like(ids),
        }


class MemoryBankQFormerModelTest(VideoModelTestMixin, unittest.TestCase):
    model_tester_class = MemoryBankQFormerModelTester
    all_model_classes = (MemoryBankQFormerModel, MemoryBankQFormerForVideoClassification)
    _is_composite = True
    # The mixin expects the vision tower's states; ours are the queries, as wide as the Q-Former.
    skip_test_video_features_output_shape = True

    def test_config(self) -> None:
        """The mixin compares arguments as they were given; parts of a composite come back completed."""
        kwargs = {name: value for name, value in self.model_tester.config_kwargs.items() if type(value) is not dict}
        ConfigTester(self, MemoryBankQFormerConfig, False, list(kwargs), **kwargs).run_common_tests()

    def _video_features_prepare_config_and_inputs(self):
        """The mixin's knows only `pixel_values_videos`."""
        return self.model_tester.prepare_config_and_inputs_for_common()
