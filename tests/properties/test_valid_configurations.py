"""Every valid configuration builds a model that runs, learns, is saved, and is the same when it is read again."""

import math
import tempfile
from collections import Counter

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from transformers import (
    AutoModel,
    AutoModelForImageClassification,
    AutoModelForPreTraining,
    AutoModelForVideoClassification,
)

from hf_video import VideoMambaConfig, VideoViTConfig

from .cases import Case, labels_for
from .memory_bank_qformer_cases import memory_bank_qformer_cases
from .videomamba_cases import videomamba_cases
from .videovit_cases import videovit_cases

CASES = {
    "videovit": videovit_cases(),
    "videomamba": videomamba_cases(),
    "memory_bank_qformer": memory_bank_qformer_cases(),
}
QUICK = settings(max_examples=12, derandomize=True, deadline=None, database=None, suppress_health_check=[*HealthCheck])
THOROUGH = settings(QUICK, max_examples=1000, derandomize=False)
AUTO_CLASSES = {
    "Model": AutoModel,
    "ForVideoClassification": AutoModelForVideoClassification,
    "ForImageClassification": AutoModelForImageClassification,
    "ForPreTraining": AutoModelForPreTraining,
}


def reader_of(model_class):
    """The Auto class of a model. `AutoBackbone` reads no folders: a backbone is read by its own class."""
    return next((each for ending, each in AUTO_CLASSES.items() if model_class.__name__.endswith(ending)), model_class)


def fields_of(config):
    """All fields but the place that a model was read from, and the dtype that Transformers notes in parts of it."""
    fields = {name: value for name, value in config.to_dict().items() if name != "_name_or_path"}
    for name in config.sub_configs:
        if fields[name] is not None:
            fields[name] = {key: value for key, value in fields[name].items() if key != "dtype"}
    return fields


def outputs_of(model, inputs):
    """The tensors of a forward pass without dropout, by name."""
    with torch.no_grad():
        outputs = model.eval()(**inputs)
    tensors = {}
    for name, value in outputs.items():
        for number, each in enumerate(value if isinstance(value, tuple) else [value]):
            if isinstance(each, torch.Tensor):
                tensors[f"{name}.{number}"] = each
    return tensors


def documented_shape(case: Case) -> tuple[str, tuple[int, ...]]:
    """The name of the main output, and the shape that its docstring gives."""
    config, name = case.config, case.model_class.__name__
    if name.endswith("Classification"):
        width = config.qformer_config.hidden_size if hasattr(config, "qformer_config") else config.hidden_size
        return "logits.0", (2, config.num_labels or width)
    if name == "MemoryBankQFormerModel":
        return "last_hidden_state.0", (2, config.num_query_tokens, config.qformer_config.hidden_size)
    grid = config.token_grid
    if name.endswith("Backbone"):
        return "feature_maps.0", (2, config.hidden_size, *grid)
    if name.endswith("PreTraining"):
        hidden = int(case.inputs["bool_masked_pos"][0].sum())
        if isinstance(config, VideoViTConfig):
            return "logits.0", (2, hidden, config.num_channels * math.prod(config.patch_shape))
        tokens = 1 + math.prod(grid) - hidden
        return "logits.0", (2, config.num_aligned_layers, tokens, config.projection_dim)
    leading = 1 if isinstance(config, VideoMambaConfig) else int(config.use_class_token)
    return "last_hidden_state.0", (2, leading + math.prod(grid), config.hidden_size)


def check(case: Case) -> None:
    torch.manual_seed(0)
    model = case.model_class(case.config)
    found = outputs_of(model, case.inputs)
    name, shape = documented_shape(case)
    assert found[name].shape == shape
    assert all(value.isfinite().all() for value in found.values() if value.is_floating_point())

    is_classifier = case.model_class.__name__.endswith("Classification") and case.config.num_labels > 0
    labels = {"labels": labels_for(case.config)} if is_classifier else {}
    outputs = model.train()(**case.inputs, **labels)
    loss = outputs.loss if labels else outputs.to_tuple()[0]
    loss = torch.stack([each.float().mean() for each in (loss if isinstance(loss, tuple) else [loss])]).sum()
    assert loss.isfinite()
    if loss.requires_grad:
        loss.backward()
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    assert all(gradient.isfinite().all() for gradient in gradients)

    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        loaded = reader_of(case.model_class).from_pretrained(folder)
    assert type(loaded) is case.model_class
    weights, read = model.state_dict(), loaded.state_dict()
    assert weights.keys() == read.keys() and all(torch.equal(weights[key], read[key]) for key in weights)
    # Read weights lie elsewhere in memory, and the alignment decides in which order a product is summed.
    torch.testing.assert_close(outputs_of(loaded, case.inputs), found)
    assert fields_of(loaded.config) == fields_of(model.config)


@pytest.mark.parametrize("family", CASES)
def test_every_valid_configuration_builds_runs_and_reloads(family):
    QUICK(given(CASES[family])(check))()


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("family", CASES)
def test_a_thousand_valid_configurations(family, capsys):
    counts: Counter[str] = Counter()

    def counted(case):
        check(case)
        counts[case.model_class.__name__] += 1

    THOROUGH(given(CASES[family])(counted))()
    with capsys.disabled():
        print(f"\n{counts.total()} configurations of {family}: {dict(counts)}")
    assert counts.total() >= 1000
