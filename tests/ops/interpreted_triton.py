"""
The kernels of the `triton` backend, scan and convolution, interpreted on the CPU, against the specification.

`test_selective_scan_triton.py` runs this file with `TRITON_INTERPRET=1`, in a process of its own: Triton looks at it
when it is imported.
"""

import numpy as np
import pytest
import torch
import triton
from triton.runtime import interpreter

from hf_video import VideoMambaForFrameClassification, VideoMambaState
from hf_video.ops.causal_conv1d import triton as causal_conv1d_triton
from hf_video.ops.causal_conv1d.reference import causal_conv1d_reference
from hf_video.ops.dispatch import Backend
from hf_video.ops.selective_scan import BACKEND_VARIABLE, BACKENDS
from hf_video.ops.selective_scan import triton as selective_scan_triton
from hf_video.ops.selective_scan.reference import ScanInputs, selective_scan_reference
from tests.models.videomamba.videomamba_testing import make, random_clips

from .test_selective_scan import (
    CONSTANTS,
    NAMES,
    Scan,
    compare,
    poisoned_memory,
    random_inputs,
    run_with_gradients,
    with_constants,
)

__all__ = ["poisoned_memory"]

# Blocks of channels that may be cut off, and chunks of 8 steps or more; length, state size,
# batch size, channels, groups of B and C.
SIZES = {"LANES": 8, "STEPS": 4, "BLOCK": 4, "SMALL_BLOCK": 2, "PROGRAMS": 3, "WARPS": 5}
GRID = [
    (1, 1, 1, 1, 1),
    (1, 3, 2, 4, 1),
    (7, 2, 2, 6, 2),
    (8, 1, 1, 11, 1),
    (17, 3, 1, 3, 3),
    (33, 2, 3, 5, 1),
    (70, 1, 1, 2, 1),
]
# The interpreter is slow: of each kernel, one case is quick.
slow = pytest.mark.slow


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    """The interpreter takes every lane of a scan by itself; and the backend is chosen on the CPU, too."""
    for name, value in SIZES.items():
        monkeypatch.setattr(selective_scan_triton, name, value)
    backend = Backend(selective_scan_triton.selective_scan_triton, lambda facts: None)
    monkeypatch.setitem(BACKENDS, "triton", backend)
    monkeypatch.setenv(BACKEND_VARIABLE, "triton")


@pytest.fixture(autouse=True)
def nearest_bfloat16(monkeypatch):
    """Float32 becomes the nearest bfloat16, as on GPUs: the interpreter of Triton 3.8 cuts the last bits off."""
    convert = interpreter._convert_float

    def rounded(values, source, target, mode):
        if (source, target) == (triton.language.float32, triton.language.bfloat16):
            return torch.from_numpy(np.ascontiguousarray(values)).bfloat16().view(torch.uint16).numpy()
        return convert(values, source, target, mode)

    monkeypatch.setattr(interpreter, "_convert_float", rounded)


def test_the_grid_has_every_plan():
    plans = (selective_scan_triton.plan(batch, dim, groups) for _, _, batch, dim, groups in GRID)
    assert {(sizes["BLOCK"], sizes["SPANS"]) for sizes in plans} == {(2, 8), (2, 16), (4, 2), (4, 4)}


@slow
def test_offsets_of_very_many_states_are_wide(monkeypatch, poisoned_memory):
    """Here from 300 elements on, which two chunks of the last states pass."""
    monkeypatch.setattr(selective_scan_triton, "WIDE", 300)
    compare(random_inputs(33, 5, 2, 6, 2), True, "triton", tolerance=2e-5)


@pytest.mark.parametrize("reverse", [pytest.param(False, marks=slow), True])
@pytest.mark.parametrize(
    "sizes", [sizes if sizes[0] == 17 else pytest.param(sizes, marks=slow) for sizes in GRID], ids=str
)
def test_values_and_gradients_equal_the_recurrence_in_float64(sizes, reverse, poisoned_memory):
    compare(random_inputs(*sizes), reverse, "triton", tolerance=2e-5)


@slow
@pytest.mark.parametrize("constants", CONSTANTS)
def test_b_and_c_may_be_the_same_at_all_times(constants, poisoned_memory):
    compare(with_constants(random_inputs(17, 3, 2, 4, 2), constants), True, "triton", tolerance=2e-5)


@slow
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_inputs_keep_a_float32_state(dtype, poisoned_memory):
    compare(random_inputs(19, 3, 1, 4, 2, dtype=dtype), True, "triton", tolerance=2**-7)


def call(run, tensors, softplus=True, reverse=False):
    """A backend, with tensors in the order of `NAMES`."""
    *others, initial_state, addend = tensors
    return run(ScanInputs(*others, softplus, reverse, initial_state, addend))


def compare_with_reference(inputs, softplus=True, reverse=False, losses=(0, 1)):
    results = []
    for run in (selective_scan_triton.selective_scan_triton, selective_scan_reference):
        leaves = {name: value.detach().clone().requires_grad_() for name, value in inputs.items()}
        tensors = [leaves.get(name) for name in NAMES]
        outputs = call(run, tensors, softplus, reverse)
        loss = sum((torch.linspace(-1, 2, x.numel()) * x.flatten()).sum() for x in (outputs[i] for i in losses))
        gradients = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True, materialize_grads=True)
        results.append([*outputs, *gradients])
        for tensor, gradient in zip(leaves.values(), gradients, strict=True):
            assert gradient.dtype == tensor.dtype
    for found, wanted in zip(*results, strict=True):
        assert found.dtype == wanted.dtype
        torch.testing.assert_close(found, wanted, atol=1e-4, rtol=1e-2 if found.dtype == torch.bfloat16 else 1e-4)


@slow
@pytest.mark.parametrize(
    "missing", [("z",), ("addend",), ("D", "delta_bias"), ("D", "z", "delta_bias", "initial_state", "addend")]
)
def test_what_is_optional_can_be_left_out(missing):
    inputs = random_inputs(9, 2, 1, 3, 1)
    inputs["delta"] = inputs["delta"].abs()
    present = {name: value for name, value in inputs.items() if name not in missing}
    compare_with_reference(present, softplus="delta_bias" not in missing)


@slow
def test_groups_of_b_and_c_may_differ():
    compare_with_reference(random_inputs(9, 1, 1, 6, 2) | {"C": torch.randn(1, 3, 1, 9)})


@slow
def test_mixed_dtypes_and_any_memory_layout():
    inputs = random_inputs(9, 2, 2, 4, 1)
    inputs["u"] = inputs["u"].mT.contiguous().mT
    inputs["delta"] = inputs["delta"].bfloat16()
    inputs["z"] = torch.randn(2, 8, 9)[:, ::2].bfloat16()
    inputs["B"] = torch.randn(2, 1, 9, 5).mT[:, :, 1:3]
    inputs["addend"] = torch.randn(2, 4, 18)[:, :, ::2].half()
    compare_with_reference(inputs)


@slow
def test_an_addend_of_another_dtype_without_a_gate():
    inputs = random_inputs(9, 2, 2, 4, 1, dtype=torch.bfloat16)
    inputs |= {"z": None, "addend": inputs["addend"].float()}
    arguments = [inputs[name] for name in NAMES]
    runs = selective_scan_triton.selective_scan_triton, selective_scan_reference
    found, wanted = (call(run, arguments)[0] for run in runs)
    assert found.dtype == wanted.dtype == torch.bfloat16
    assert (found - wanted).abs().max() < 2**-7 * wanted.abs().max()


def test_more_elements_than_32_bits_count_are_refused():
    one = torch.ones(1, 1, 1)
    arguments = one.expand(1, 2**16, 2**15), one, one[0], one[None], one[None]
    with pytest.raises(ValueError, match="got 32768 steps of 65536 channels: scan them in parts"):
        selective_scan_triton.selective_scan_triton(ScanInputs(*arguments))


@slow
def test_time_steps_that_vanish_or_explode():
    """Softplus far from 0 on both sides, decays of 1 and of 0."""
    compare_with_reference(random_inputs(20, 2, 1, 2, 1) | {"delta": torch.linspace(-60, 40, 40).view(1, 2, 20)})


@slow
def test_without_gradients_no_states_are_kept():
    inputs = random_inputs(70, 2, 1, 3, 1)
    arguments = [inputs[name] for name in NAMES]
    expected = call(selective_scan_reference, arguments)
    saved = []

    def run():
        return call(selective_scan_triton.selective_scan_triton, arguments)

    with torch.autograd.graph.saved_tensors_hooks(lambda x: saved.append(x) or x, lambda x: x):
        torch.testing.assert_close(run(), expected)
        assert not saved
        inputs["u"].requires_grad_()
        torch.testing.assert_close(run(), expected)
    borders = [x for x in saved if x.ndim == 4 and x.shape[1] > 1]
    assert [x.shape for x in borders] == [(1, 1 + 2, 2, 3)], "70 steps in chunks of 64"


def operator_arguments():
    """Of `scan_forward`, without its options."""
    inputs = random_inputs(9, 2, 1, 4, 2)
    for name in ("u", "delta", "A", "z", "initial_state", "addend"):
        inputs[name] = inputs[name].mT.contiguous()
    names = ("u", "delta", "A", "B", "C", "D", "delta_bias", "z", "initial_state", "addend")
    return [inputs[name] for name in names]


@slow
@pytest.mark.parametrize("keeps_borders", [False, True])
def test_the_scan_is_an_operator_that_torch_can_trace(keeps_borders):
    arguments = [x.requires_grad_(keeps_borders) for x in operator_arguments()]
    torch.library.opcheck(selective_scan_triton.scan_forward, (*arguments, True, True, keeps_borders))


@slow
def test_its_backward_is_an_operator_that_torch_can_trace():
    arguments = operator_arguments()
    y, last_state, *kept = selective_scan_triton.scan_forward(*arguments, True, True, True)
    torch.library.opcheck(
        selective_scan_triton.scan_backward, (y, last_state, *kept, *arguments[:-2], True, True, True)
    )


def test_what_is_kept_for_the_backward_has_the_dtype_of_the_inputs():
    """B, C and the output before the gate; and two runs give the same bits."""
    results = []
    for _ in range(2):
        inputs = random_inputs(17, 3, 2, 6, 2, dtype=torch.bfloat16)
        leaves = {name: value.requires_grad_() for name, value in inputs.items()}
        saved = []
        with torch.autograd.graph.saved_tensors_hooks(lambda x, saved=saved: saved.append(x) or x, lambda x: x):
            output, _ = call(selective_scan_triton.selective_scan_triton, [leaves[name] for name in NAMES])
        results.append([output, *torch.autograd.grad(output.float().sum(), list(leaves.values()), allow_unused=True)])
    assert {x.dtype for x in saved if x.shape in ((2, 17, 6), (2, 2, 3, 17))} == {torch.bfloat16}
    torch.testing.assert_close(*results, atol=0, rtol=0)


@slow
def test_it_compiles_without_graph_breaks():
    inputs = random_inputs(9, 2, 1, 4, 2)
    weights = torch.randn(1, 4, 9), torch.randn(1, 4, 2)
    compiled = torch.compile(Scan(), fullgraph=True, backend="aot_eager")
    expected, actual = (run_with_gradients(function, inputs, weights) for function in (Scan(), compiled))
    torch.testing.assert_close(actual, expected)


@slow
def test_the_kernels_answer():
    assert selective_scan_triton.probe.__wrapped__("cpu") is None
    assert causal_conv1d_triton.probe.__wrapped__("cpu") is None


@pytest.mark.parametrize(
    ("batch_size", "dim", "length", "taps", "reverse", "with_bias"),
    [
        (2, 70, 40, 4, True, True),
        pytest.param(1, 1, 1, 4, False, False, marks=slow),
        pytest.param(3, 16, 9, 1, False, True, marks=slow),
    ],
)
def test_convolution_values_and_gradients(batch_size, dim, length, taps, reverse, with_bias, poisoned_memory):
    """Of one half of the channels of a linear layer, as in a mixer."""
    x = torch.randn(batch_size, length, 2 * dim).mT[:, :dim]
    leaves = [x, torch.randn(dim, 1, taps)] + ([torch.randn(dim)] if with_bias else [])
    leaves = [leaf.requires_grad_() for leaf in leaves]
    grad = torch.randn(batch_size, dim, length)
    results = []
    for function in (causal_conv1d_triton.causal_conv1d_triton, causal_conv1d_reference):
        output = function(leaves[0], leaves[1], leaves[2] if with_bias else None, reverse)
        results.append((output, *torch.autograd.grad(output, leaves, grad)))
    torch.testing.assert_close(*results, atol=2e-5, rtol=1e-4)


@slow
def test_the_convolution_is_an_operator_that_torch_can_trace():
    leaves = [torch.randn(shape, requires_grad=True) for shape in ((2, 9, 5), (4, 5), (5,))]
    torch.library.opcheck(causal_conv1d_triton.conv_forward, (*leaves, True))
    detached = [leaf.detach() for leaf in leaves]
    torch.library.opcheck(causal_conv1d_triton.conv_backward, (torch.randn(2, 9, 5), *detached, False))


@slow
@torch.no_grad()
def test_chunks_of_a_causal_model_give_what_the_whole_gives():
    sizes = {"image_size": 16, "num_frames": 3, "hidden_size": 4, "num_hidden_layers": 1, "state_size": 2}
    causal = {"bidirectional": False, "use_temporal_position_embeddings": False}
    model = make(VideoMambaForFrameClassification, time_step_init_scheme="random", **sizes, **causal)
    clips = random_clips(model.config, batch_size=1)
    whole, state = model(clips).logits, VideoMambaState(model.config)
    for frames, expected in zip(clips.split([1, 2], dim=1), whole.split([1, 2], dim=1), strict=True):
        outputs = model(frames, state=state)
        state = outputs.state
        assert (outputs.logits - expected).abs().max() <= 1e-5 * whole.abs().max()
