"""What Transformers' common tests import from its repository and the source distribution leaves out.

The mixins are empty: what they test upstream (export, generation) is not tested through this package.
"""


class ExportTesterMixin:
    """Base of `ModelTesterMixin`."""


class GenerationTesterMixin:
    """Only asked by `ModelTesterMixin` whether a test class inherits from it; a generative model's must."""


# One value other than the default for every field that all configurations share: `ConfigTester` passes them to the
# configuration under test and expects to read each of them back.
config_common_kwargs = {
    "architectures": ["TinyModel"],
    "chunk_size_feed_forward": 4,
    "dtype": "float16",
    "id2label": {0: "left", 1: "right", 2: "neither"},
    "is_encoder_decoder": True,
    "label2id": {"left": 0, "right": 1, "neither": 2},
    "output_attentions": True,
    "output_hidden_states": True,
    "problem_type": "multi_label_classification",
    "return_dict": False,
}
