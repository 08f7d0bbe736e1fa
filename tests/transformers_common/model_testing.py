"""Fits Transformers' `ModelTesterMixin` to models of videos: `pixel_values` (batch, num_frames, channels, h, w)."""

import copy
import unittest
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar
from unittest.mock import patch

import torch
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.testing_utils import torch_device

from .distribution import load

common = load("test_modeling_common")
ConfigTester = load("test_configuration_common").ConfigTester

# The mixin knows what a class is for by looking its name up in the tables of Transformers' own models; a class in none
# of them runs fewer tests without a word. Classifiers of videos count as classifiers of images, which are tested more.
MIXIN_TABLES = {
    "Model": "MODEL_MAPPING_NAMES",
    "Backbone": "MODEL_FOR_BACKBONE_MAPPING_NAMES",
    "ForImageClassification": "MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES",
    "ForVideoClassification": "MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES",
    "ForFrameClassification": "MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES",
    "ForConditionalGeneration": "MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES",
}


def announce(model_class: type[PreTrainedModel]) -> None:
    """Enters a class into the mixin's copy of the table that its name's ending calls for."""
    for ending, table in MIXIN_TABLES.items():
        if model_class.__name__.endswith(ending):
            names = getattr(common, table)
            key = model_class.config_class.model_type
            setattr(common, table, {**names, key: (*names.get(key, ()), model_class.__name__)})


class VideoModelTester:
    """A tiny configuration of one family and random inputs for it: what the mixins call `model_tester`.

    Attributes:
        config_class: The family's configuration.
        config_kwargs: What makes it tiny. The mixins look for each as an attribute of the tester, and find it there.
        seq_length: Number of tokens that a layer sees, class token included.
    """

    config_class: ClassVar[type[PreTrainedConfig]]
    config_kwargs: ClassVar[dict[str, Any]]
    seq_length: ClassVar[int]
    batch_size = 2
    is_training = True

    def __init__(self) -> None:
        vars(self).update(self.config_kwargs)

    def get_config(self) -> PreTrainedConfig:
        return self.config_class(**self.config_kwargs)

    def get_inputs(self) -> dict[str, torch.Tensor]:
        sizes = (self.config_kwargs[name] for name in ("num_frames", "num_channels", "image_size", "image_size"))
        return {"pixel_values": torch.randn(self.batch_size, *sizes, device=torch_device)}

    def prepare_config_and_inputs_for_common(self) -> tuple[PreTrainedConfig, dict[str, torch.Tensor]]:
        return self.get_config(), self.get_inputs()


class VideoModelTestMixin(common.ModelTesterMixin):
    """`ModelTesterMixin` for models without a vocabulary. A subclass names its classes and its tester."""

    model_tester_class: ClassVar[type[VideoModelTester]]
    # The mixin reads the year in a file's copyright header and spares models without one.
    test_can_init_all_missing_weights_before_2023 = True

    @classmethod
    def setUpClass(cls) -> None:
        for model_class in cls.all_model_classes:
            announce(model_class)

    def _prepare_for_class(
        self, inputs_dict: dict[str, Any], model_class: type[PreTrainedModel], return_labels: bool = False
    ) -> dict[str, Any]:
        """The mixin's, with a label for each token frame instead of each token."""
        inputs = super()._prepare_for_class(inputs_dict, model_class, return_labels=return_labels)
        if return_labels and model_class.__name__.endswith("ForFrameClassification"):
            clips, config = inputs["pixel_values"], self.model_tester.get_config()
            inputs["labels"] = torch.zeros_like(clips[:, :: config.tubelet_size, 0, 0, 0], dtype=torch.long)
        return inputs

    @contextmanager
    def subTest(self, msg: object = None, **params: object) -> Iterator[None]:
        """Reports a part that fails or is skipped. The 7,000 that pass, one a weight, cost more than the tests."""
        try:
            yield
        except Exception:
            with super().subTest(msg, **params):
                raise

    def setUp(self) -> None:
        self.model_tester = self.model_tester_class()

    def test_config(self) -> None:
        tester = self.model_tester
        properties = ["hidden_size", "num_hidden_layers"] + ["num_attention_heads"] * self.has_attentions
        ConfigTester(self, tester.config_class, False, properties, **tester.config_kwargs).run_common_tests()

    def test_model_get_set_embeddings(self) -> None:
        """Pixels are projected, not looked up: an input layer exists, an output layer that could be tied does not."""
        for model_class in self.all_model_classes:
            model = model_class(self.model_tester.get_config())
            self.assertIsInstance(model.get_input_embeddings(), nn.Module)
            self.assertIsNone(model.get_output_embeddings())

    def test_enable_input_require_grads_with_gradient_checkpointing(self) -> None:
        """The mixin's needs an input layer with one `weight`. Here: blocks learn above frozen embeddings."""
        for model_class in self.all_model_classes:
            model = model_class(self.model_tester.get_config()).to(torch_device).train()
            blocks = [
                module for module in model.base_model.modules() if isinstance(module, GradientCheckpointingLayer)
            ]
            model.requires_grad_(False)
            for block in blocks:
                block.requires_grad_(True)
            # Re-entrant checkpoints pass gradients on only if their input asks for some.
            model.activation_checkpointing_enable(activation_checkpointing_kwargs={"use_reentrant": True})
            model.enable_input_require_grads()
            inputs = self._prepare_for_class(self.model_tester.get_inputs(), model_class, return_labels=True)
            first_output = model(**inputs).to_tuple()[0]
            first_output = first_output[0] if isinstance(first_output, tuple) else first_output
            # The plain sum is constant behind a layer norm, and its gradient rounding alone.
            (first_output * torch.rand_like(first_output)).sum().backward()
            for block in blocks:
                self.assertTrue(any(p.grad is not None and p.grad.any() for p in block.parameters()))

    def test_can_load_ignoring_mismatched_shapes(self) -> None:
        """The mixin's, which would take any field with "_std" in its name for a deviation of initial weights."""

        def with_narrow_init(config: PreTrainedConfig) -> PreTrainedConfig:
            config = copy.deepcopy(config)
            config.initializer_range = 1e-10
            return config

        with patch.object(common, "_config_zero_init", with_narrow_init):
            super().test_can_load_ignoring_mismatched_shapes()

    @unittest.skip("pixels have no vocabulary to resize")
    def test_resize_tokens_embeddings(self) -> None: ...

    @unittest.skip("pixels have no vocabulary to resize")
    def test_resize_embeddings_untied(self) -> None: ...

    @unittest.skip("pixels have no vocabulary to resize")
    def test_resize_embeddings_untied_no_reinit_on_post_init(self) -> None: ...

    @unittest.skip("position embeddings follow the input's size: tested with each model, not by this length in tokens")
    def test_resize_position_vector_embeddings(self) -> None: ...
