"""
The adapter to mamba-ssm, without its kernels: a stand-in has the package's interface and computes by the reference.
What stays untested here is the compiled code itself.
"""

import functools
import sys
import types
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from hf_video import selective_scan
from hf_video.ops.registration import turn
from hf_video.ops.selective_scan import mamba_ssm as adapter
from hf_video.ops.selective_scan.dispatch import BACKENDS, KERNELS_REPOSITORY, Situation
from hf_video.ops.selective_scan.reference import ScanInputs, selective_scan_reference

from .test_selective_scan import CONSTANTS, random_inputs, specification, with_constants

NAMES = ("u", "delta", "A", "B", "C", "D", "z", "delta_bias")


class SelectiveScanFn:
    """Interface of `SelectiveScanFn` in mamba-ssm; refuses the dtypes that its kernels refuse."""

    @staticmethod
    def forward(context, u, delta, A, B, C, D=None, z=None, delta_bias=None, delta_softplus=False):
        tensors = [tensor for tensor in (u, delta, A, B, C, D, z, delta_bias) if tensor is not None]
        # B and C are weights where they are the same at all times.
        sequences = {tensor.dtype for tensor in tensors if tensor.ndim > 2}
        weights = {tensor.dtype for tensor in tensors if tensor.ndim <= 2}
        u, delta, B, C, z = (x if x is None or x.stride(-1) == 1 else x.contiguous() for x in (u, delta, B, C, z))
        if sequences != {u.dtype} or weights != {torch.float32}:
            raise RuntimeError("expected sequences of one dtype and float32 weights")
        context.options = (delta_softplus, False, None)
        context.save_for_backward(u, delta, A, B, C, D, z, delta_bias)
        output = selective_scan_reference(ScanInputs(*context.saved_tensors, *context.options))[0]
        return torch.empty(u.shape, dtype=u.dtype).copy_(output)

    @staticmethod
    def backward(context, grad):
        def differentiate():
            leaves = [None if x is None else x.detach().requires_grad_() for x in context.saved_tensors]
            output = selective_scan_reference(ScanInputs(*leaves, *context.options))[0]
            gradients = iter(torch.autograd.grad(output, [leaf for leaf in leaves if leaf is not None], grad))
            return [None if leaf is None else next(gradients) for leaf in leaves]

        # Autograd is switched off in this thread, inside an operator's kernel, but not in another one.
        with ThreadPoolExecutor(1) as thread:
            return (*thread.submit(differentiate).result(), None, None)


def install(monkeypatch):
    """A package of that name; returns its interface, which can be exchanged."""
    interface = types.ModuleType(f"mamba_ssm.{adapter.INTERFACE}")
    interface.SelectiveScanFn = SelectiveScanFn
    for name in ("mamba_ssm", "mamba_ssm.ops"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setitem(sys.modules, interface.__name__, interface)
    return interface


@pytest.fixture
def installed(monkeypatch):
    interface = install(monkeypatch)
    caches = (adapter.load_interface, adapter.probe)
    for cache in caches:
        cache.cache_clear()
    yield interface
    for cache in caches:
        cache.cache_clear()


def arguments_of(left_out=(), dtype=torch.float32):
    inputs = random_inputs(70, 4, 2, 6, 2, dtype=dtype)
    return [None if name in left_out else inputs[name] for name in NAMES]


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("left_out", [(), ("z",), ("D", "delta_bias"), ("D", "z", "delta_bias")], ids=str)
@pytest.mark.parametrize("with_addend", [False, True])
def test_values_and_gradients_are_those_of_the_reference(installed, with_addend, reverse, left_out):
    results = []
    for run in (functools.partial(adapter.selective_scan_mamba_ssm, source="mamba_ssm"), selective_scan_reference):
        leaves = [None if x is None else x.clone().requires_grad_() for x in arguments_of(left_out)]
        addend = leaves[0] * 2 if with_addend else None
        output = run(ScanInputs(*leaves, True, reverse, None, addend))[0]
        output.square().sum().backward()
        results.append([output, *(leaf.grad for leaf in leaves if leaf is not None)])
    for found, wanted in zip(*results, strict=True):
        torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("constants", CONSTANTS, ids=str)
def test_b_and_c_may_be_the_same_at_all_times(installed, constants, reverse, monkeypatch):
    """The kernels take them as they are, without a copy for every step."""
    backend = BACKENDS["mamba_ssm"]._replace(why_not=lambda situation: None)
    monkeypatch.setitem(BACKENDS, "mamba_ssm", backend)
    inputs = with_constants(random_inputs(17, 3, 2, 4, 2), constants)
    inputs["initial_state"].zero_()
    leaves, doubles = (
        {name: x.detach().to(dtype).requires_grad_() for name, x in inputs.items()}
        for dtype in (torch.float32, torch.float64)
    )
    arguments = {name: x for name, x in leaves.items() if name != "initial_state"}
    found = selective_scan(**arguments, delta_softplus=True, reverse=reverse, backend="mamba_ssm")
    wanted, _ = specification(**doubles, reverse=reverse)
    torch.testing.assert_close(found.double(), wanted, atol=2e-5, rtol=1e-5)
    results = [
        torch.autograd.grad(y.square().sum(), [x[n] for n in arguments])
        for y, x in ((found, leaves), (wanted, doubles))
    ]
    for name, gradient, expected in zip(arguments, *results, strict=True):
        assert (gradient - expected).abs().max() < 2e-5 * expected.abs().max(), name


def test_mixed_dtypes_are_brought_to_what_the_kernels_take(installed):
    u, delta, A, B, C, D, z, delta_bias = arguments_of(dtype=torch.bfloat16)
    leaves = [x.requires_grad_() for x in (u, delta.float(), A, B.half(), C, D.bfloat16(), z.float(), delta_bias)]
    output, _ = adapter.selective_scan_mamba_ssm(ScanInputs(*leaves, True), "mamba_ssm")
    output.sum().backward()
    assert output.dtype == torch.bfloat16
    for leaf in leaves:
        assert leaf.grad.dtype == leaf.dtype and leaf.grad.any()


def test_the_operator_is_one_that_torch_can_trace(installed):
    arguments = [x.requires_grad_() for x in arguments_of()]
    torch.library.opcheck(adapter.scan_forward, (*arguments, True, True, "mamba_ssm"))

    def run(*tensors):
        return adapter.selective_scan_mamba_ssm(ScanInputs(*tensors, True, True), "mamba_ssm")[0]

    compiled = torch.compile(run, fullgraph=True, backend="aot_eager")(*arguments)
    torch.testing.assert_close(compiled, run(*arguments))
    found, wanted = (torch.autograd.grad(output.sum(), arguments) for output in (compiled, run(*arguments)))
    torch.testing.assert_close(found, wanted)


def test_a_turn_is_an_operator_that_torch_can_trace():
    x = torch.randn(2, 5, 3).mT.requires_grad_()
    torch.library.opcheck(turn, (x,))
    turned = turn(x)
    assert turned.is_contiguous() and torch.equal(turned, x.flip(-1))
    grad = torch.randn(2, 3, 5)
    assert torch.equal(torch.autograd.grad(turned, x, grad)[0], grad.flip(-1))


def test_a_package_whose_scan_does_not_answer_is_not_used(installed, monkeypatch):
    assert adapter.probe("mamba_ssm", "cpu") is None
    adapter.probe.cache_clear()

    class NotCompiled:
        @staticmethod
        def forward(context, *arguments):
            raise NotImplementedError("build with the option for Mamba-1")

    monkeypatch.setattr(installed, "SelectiveScanFn", NotCompiled)
    reason = adapter.probe("mamba_ssm", "cpu")
    assert "do not answer (NotImplementedError: build with the option for Mamba-1)" in reason
    for cache in (adapter.probe, adapter.load_interface):
        cache.cache_clear()
    monkeypatch.setitem(sys.modules, installed.__name__, None)
    assert "do not answer (ModuleNotFoundError" in adapter.probe("mamba_ssm", "cpu")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"device_type": "cpu"}, "runs on CUDA, not on cpu"),
        ({"carries_state": True}, "neither takes an initial state"),
        ({"dtype": torch.float64}, "does not know torch.float64"),
        ({"state_size": 300}, "limited to 256, here 300"),
    ],
)
def test_situations_beyond_the_kernels_are_named(change, reason):
    situation = Situation("cuda", torch.float32, 16, False)._replace(**change)
    assert reason in adapter.why_mamba_ssm_cannot(situation, "mamba_ssm")


def test_the_prebuilt_kernels_are_loaded_when_asked_for(installed, monkeypatch):
    """`kernels` gives a module of any name, under which the interface is found."""
    asked = []
    monkeypatch.setattr(adapter, "get_kernel", lambda *args, **kwargs: asked.append((args, kwargs)) or installed_as)
    installed_as = sys.modules["mamba_ssm"]
    output, _ = adapter.selective_scan_mamba_ssm(ScanInputs(*arguments_of(), True), KERNELS_REPOSITORY)
    assert output.isfinite().all()
    assert asked == [((KERNELS_REPOSITORY,), {"version": adapter.KERNELS_VERSION})]
    with pytest.raises(ValueError, match="'kernels-community/mamba-ssm' was asked for, but it runs on CUDA"):
        selective_scan(**random_inputs(3, 2, 1, 2, 1), backend=KERNELS_REPOSITORY)
