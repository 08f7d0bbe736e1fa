"""The plain scan that travels with a published VideoMamba."""

import itertools
import os

import pytest
import torch

from hf_video import VideoMambaForVideoClassification
from hf_video.models.videomamba import modeling_videomamba, selective_scan_videomamba
from hf_video.models.videomamba.selective_scan_videomamba import CHUNK_LENGTH, selective_scan
from hf_video.ops.selective_scan.reference import ScanInputs, selective_scan_reference
from tests.testing.processes import Program, run_fresh

from .videomamba_testing import make, random_clips

BATCH_SIZE, DIM, STATE_SIZE = 2, 6, 4


def random_inputs(length, dtype):
    """u, delta, A, B, C, D, z, delta_bias and addend; weights stay float32."""
    sequence, projection = (BATCH_SIZE, DIM, length), (BATCH_SIZE, STATE_SIZE, length)
    u, delta, z, addend = (torch.randn(sequence).to(dtype) for _ in range(4))
    B, C = (torch.randn(projection).to(dtype) for _ in range(2))
    A = -torch.rand(DIM, STATE_SIZE) - 0.1
    return u, delta, A, B, C, torch.randn(DIM), z, torch.randn(DIM), addend


@pytest.mark.parametrize(
    ("length", "left_out", "softplus", "reverse"),
    [
        *itertools.product((2 * CHUNK_LENGTH + 3,), [(), ("z", "addend")], (True,), (False, True)),
        (2 * CHUNK_LENGTH + 3, ("z",), False, True),
        (2 * CHUNK_LENGTH + 3, ("addend",), False, False),
        (CHUNK_LENGTH, (), True, False),
        (1, (), True, True),
    ],
    ids=str,
)
def test_values_and_gradients_are_those_of_the_reference(length, left_out, softplus, reverse):
    *tensors, addend = random_inputs(length, torch.float32)
    tensors[6] = None if "z" in left_out else tensors[6]
    tensors.append(None if "addend" in left_out else addend)
    if not softplus:
        tensors[1] = tensors[1].abs() - tensors[7][:, None]
    results = []
    for run in (run_plain, run_reference):
        leaves = [None if x is None else x.clone().requires_grad_() for x in tensors]
        output = run(leaves, softplus, reverse)
        output.square().sum().backward()
        results.append([output, *(leaf.grad for leaf in leaves if leaf is not None)])
    for found, wanted in zip(*results, strict=True):
        assert (found - wanted).abs().max() <= 1e-5 * wanted.abs().max()


def run_plain(leaves, softplus, reverse):
    return selective_scan(*leaves[:8], softplus, reverse=reverse, addend=leaves[8])


def run_reference(leaves, softplus, reverse):
    u, delta, A, B, C, *others, addend = leaves
    inputs = ScanInputs(u, delta, A, B[:, None], C[:, None], *others, softplus, reverse, None, addend)
    return selective_scan_reference(inputs)[0]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_it_computes_in_float32_at_least(dtype):
    inputs = random_inputs(40, dtype)
    found, wanted = (run(inputs, True, True) for run in (run_plain, run_reference))
    assert found.dtype == dtype
    torch.testing.assert_close(found, wanted, atol=0.05 if dtype == torch.bfloat16 else 1e-7, rtol=1e-2)


def test_memory_for_the_backward_does_not_hold_every_state():
    u, delta, *others = (x.requires_grad_() for x in random_inputs(1024, torch.float32))
    saved = {}

    def count(tensor):
        saved[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
        run_plain([u, delta, *others], True, False)
    assert sum(saved.values()) < 4 * BATCH_SIZE * DIM * 1024 * 16


@pytest.mark.parametrize(
    "settings", [{}, {"bidirectional": False}, {"scan_order": "spatiotemporal"}, {"hidden_act": "gelu"}], ids=str
)
def test_a_model_without_hf_video_gives_the_same_logits_and_gradients(settings, monkeypatch):
    model = make(VideoMambaForVideoClassification, time_step_init_scheme="random", **settings)
    clips, results = random_clips(model.config), []
    for has_ops in (True, False):
        if not has_ops:
            monkeypatch.setattr(modeling_videomamba, "causal_conv1d", None)
            monkeypatch.setattr(modeling_videomamba, "selective_scan", selective_scan)
        logits = model(clips).logits
        results.append([logits, *torch.autograd.grad(logits.square().sum(), list(model.parameters()))])
    for found, wanted in zip(*results, strict=True):
        assert (found - wanted).abs().max() <= 1e-5 * max(wanted.abs().max(), 1)


def test_it_can_be_exported_strictly():
    class Scan(torch.nn.Module):
        def forward(self, *tensors):
            return run_plain(tensors, True, False)

    inputs = random_inputs(CHUNK_LENGTH + 3, torch.float32)
    exported = torch.export.export(Scan(), inputs, strict=True).module()
    torch.testing.assert_close(exported(*inputs), run_plain(inputs, True, False))


@pytest.mark.slow
def test_a_compiled_model_without_hf_video_has_the_gradients_of_one_that_is_not(monkeypatch):
    """On the compiler's own trace of the backward, in which every stride is fixed."""
    monkeypatch.setattr(modeling_videomamba, "causal_conv1d", None)
    monkeypatch.setattr(modeling_videomamba, "selective_scan", selective_scan)
    model = make(VideoMambaForVideoClassification, num_hidden_layers=1)
    clips = random_clips(model.config)
    gradients = []
    for run in (model, torch.compile(model, backend="aot_eager")):
        model.zero_grad()
        run(clips).logits.square().sum().backward()
        gradients.append({name: weight.grad for name, weight in model.named_parameters() if weight.grad is not None})
    torch.testing.assert_close(*gradients)


def test_on_a_gpu_it_takes_mamba_ssm(monkeypatch):
    """In the arguments that every release knows, with weights in float32."""
    calls = []

    def kernel(*arguments):
        calls.append(arguments)
        return arguments[0] * 2

    monkeypatch.setattr(selective_scan_videomamba, "selective_scan_fn", kernel)
    monkeypatch.setattr(torch.Tensor, "is_cuda", True)
    u, delta, A, B, C, D, z, delta_bias, addend = random_inputs(9, torch.bfloat16)
    output = selective_scan(u, delta.float(), A, B, C, D.bfloat16(), z, delta_bias, True, reverse=True, addend=addend)
    torch.testing.assert_close(output, (u * 2 + addend) * torch.nn.functional.silu(z))
    (found,) = calls
    assert [x.dtype for x in found[:5]] == [
        torch.bfloat16,
        torch.bfloat16,
        torch.float32,
        torch.bfloat16,
        torch.bfloat16,
    ]
    assert torch.equal(found[0], u.flip(-1)) and found[5].dtype == torch.float32 and found[6] is None


@pytest.mark.slow
def test_the_operations_are_found_if_they_are_imported_first():
    """They import Transformers, which imports the model: it must not find them half-loaded."""
    program = (
        "import hf_video.ops.causal_conv1d\n"
        "from hf_video.models.videomamba import modeling_videomamba\n"
        "print(modeling_videomamba.causal_conv1d is not None)"
    )
    result = run_fresh(Program(["-c", program], os.environ))[0]
    assert result.stdout.strip() == "True", result.stderr
    assert "pip install git+https://github.com/hf-video/hf-video" not in result.stderr
