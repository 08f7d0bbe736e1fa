"""Transformers' common tests of models, run against VideoTextDualEncoder."""

import unittest

import torch
from transformers.testing_utils import torch_device

from hf_video import VideoTextDualEncoderConfig, VideoTextDualEncoderModel

from .model_testing import ConfigTester, VideoModelTester, VideoModelTestMixin, common


class VideoTextDualEncoderModelTester(VideoModelTester):
    config_class = VideoTextDualEncoderConfig
    config_kwargs = {
        "vision_config": {
            "model_type": "videomamba",
            "num_frames": 2,
            "image_size": 16,
            "patch_size": 8,
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "state_size": 4,
        },
        "text_config": {
            "vocab_size": 61,
            "hidden_size": 24,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "intermediate_size": 40,
            "max_position_embeddings": 16,
        },
        "fusion_layer": 1,
        "projection_dim": 12,
        "loss_weights": {"vtc": 1.0, "vtm": 1.0},
    }
    seq_length = 9
    text_length = 5

    def get_inputs(self) -> dict[str, torch.Tensor]:
        ids = torch.randint(1, 61, (self.batch_size, self.text_length), device=torch_device)
        return {
            "pixel_values": torch.randn(self.batch_size, 2, 3, 16, 16, device=torch_device),
            "input_ids": ids,
            "attention_mask": torch.ones_like(ids),
            "output_match": True,
        }


class VideoTextDualEncoderModelTest(VideoModelTestMixin, unittest.TestCase):
    model_tester_class = VideoTextDualEncoderModelTester
    all_model_classes = (VideoTextDualEncoderModel,)
    _is_composite = True
    has_attentions = False

    def test_config(self) -> None:
        """The mixin compares arguments as they were given; parts of a composite come back completed."""
        kwargs = {"fusion_layer": 2, "projection_dim": 12}
        ConfigTester(self, VideoTextDualEncoderConfig, False, list(kwargs), **kwargs).run_common_tests()

    def test_model_get_set_embeddings(self) -> None:
        """There is a vocabulary, so this is the mixin's own."""
        common.ModelTesterMixin.test_model_get_set_embeddings(self)

    def _video_features_prepare_config_and_inputs(self):
        """The mixin's knows only `pixel_values_videos`."""
        config, inputs = self.model_tester.prepare_config_and_inputs_for_common()
        return config, {"pixel_values": inputs["pixel_values"]}

    def _video_features_get_expected_num_attentions(self, model_tester=None) -> int:
        return self.model_tester.vision_config["num_hidden_layers"]

    def _text_features_get_expected_num_attentions(self, model_tester=None) -> int:
        return self.model_tester.fusion_layer

    @unittest.skip("the towers return hidden states, and are tested by themselves")
    def test_hidden_states_output(self) -> None: ...

    @unittest.skip("the towers return hidden states, and are tested by themselves")
    def test_retain_grad_hidden_states_attentions(self) -> None: ...

    @unittest.skip("the first output, the similarity, is not of the fusion layers")
    def test_enable_input_require_grads_with_gradient_checkpointing(self) -> None: ...
