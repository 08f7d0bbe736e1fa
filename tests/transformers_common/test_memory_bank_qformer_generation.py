"""Transformers' common tests of models, run against MemoryBankQFormer with a language model."""

import unittest

import torch
from transformers.testing_utils import torch_device

from hf_video import MemoryBankQFormerForConditionalGeneration

from . import test_memory_bank_qformer
from .model_testing import VideoModelTestMixin, common


class GenerationModelTester(test_memory_bank_qformer.MemoryBankQFormerModelTester):
    config_kwargs = {
        **test_memory_bank_qformer.MemoryBankQFormerModelTester.config_kwargs,
        "text_config": {
            "model_type": "llama",
            "vocab_size": 70,
            "hidden_size": 24,
            "intermediate_size": 48,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "max_position_embeddings": 64,
            "pad_token_id": 0,
        },
        "video_token_id": 1,
    }
    vocab_size = 70
    seq_length, encoder_seq_length, key_length = 11, 11, 11
    hidden_size = 24

    def get_inputs(self) -> dict[str, torch.Tensor]:
        ids = torch.randint(2, 70, (self.batch_size, self.seq_length), device=torch_device)
        ids[:, :3] = 1
        return {**super().get_inputs(), "input_ids": ids, "attention_mask": torch.ones_like(ids)}


class MemoryBankQFormerGenerationTest(VideoModelTestMixin, unittest.TestCase):
    model_tester_class = GenerationModelTester
    all_model_classes = (MemoryBankQFormerForConditionalGeneration,)
    # `generate` returns what was generated alone, of a video that is read once: tested with the model.
    all_generative_model_classes = ()
    additional_model_inputs = ("input_ids", "qformer_input_ids")
    _is_composite = True
    # The mixin expects the vision tower's states; ours are the queries, as wide as the Q-Former.
    skip_test_video_features_output_shape = True
    test_model_get_set_embeddings = common.ModelTesterMixin.test_model_get_set_embeddings
    test_resize_tokens_embeddings = common.ModelTesterMixin.test_resize_tokens_embeddings
    test_resize_embeddings_untied = common.ModelTesterMixin.test_resize_embeddings_untied
    test_resize_embeddings_untied_no_reinit_on_post_init = (
        common.ModelTesterMixin.test_resize_embeddings_untied_no_reinit_on_post_init
    )

    def _prepare_for_class(self, inputs_dict, model_class, return_labels=False):
        """The mixin's, with places for the video in the texts that it has drawn."""
        inputs = super()._prepare_for_class(inputs_dict, model_class, return_labels)
        if "input_ids" in inputs:
            inputs["input_ids"] = inputs["input_ids"].masked_fill(inputs["input_ids"] == 1, 2)
            inputs["input_ids"][:, :3] = 1
        return inputs

    test_config = test_memory_bank_qformer.MemoryBankQFormerModelTest.test_config

    def _video_features_prepare_config_and_inputs(self):
        """The mixin's knows only `pixel_values_videos`. The text for the language model is no part of the video."""
        inputs = self.model_tester.get_inputs()
        return self.model_tester.get_config(), {
            name: tensor for name, tensor in inputs.items() if name not in ("input_ids", "attention_mask")
        }
