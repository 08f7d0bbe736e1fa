"""
The adapter to the kernels of mamba-ssm and causal-conv1d, without these: stand-ins have the interfaces of the packages
and of the Hub's kernels, and compute by the reference. What stays untested here is the compiled code itself.
"""

import functools
import inspect
import re
import sys
import types
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from transformers.integrations import hub_kernels as transformers_kernels

from hf_video import VideoMambaForVideoClassification, selective_scan
from hf_video.ops import causal_conv1d, mamba_kernels
from hf_video.ops.causal_conv1d import choose_backend
from hf_video.ops.causal_conv1d.reference import causal_conv1d_reference
from hf_video.ops.mamba_kernels import HUB_KERNELS, HUB_VERSION
from hf_video.ops.registration import turn
from hf_video.ops.selective_scan import BACKENDS, mamba_ssm
from hf_video.ops.selective_scan.reference import ScanFacts, ScanInputs, selective_scan_reference
from tests.models.videomamba.videomamba_testing import make, random_clips

from .test_selective_scan import CONSTANTS, compare_models, random_inputs, specification, with_constants

NAMES = ("u", "delta", "A", "B", "C", "D", "z", "delta_bias")
ON_CUDA = ScanFacts("cuda", torch.float32, 16, False)
SCAN, CONVOLUTION = "SelectiveScanFn", "CausalConv1dFn"


def differentiate(run, context, grad):
    """Gradients of the saved tensors."""

    def in_thread():
        leaves = [None if x is None else x.detach().requires_grad_() for x in context.saved_tensors]
        inputs = [leaf for leaf in leaves if leaf is not None]
        gradients = iter(torch.autograd.grad(run(*leaves), inputs, grad))
        return [None if leaf is None else next(gradients) for leaf in leaves]

    # Autograd is switched off in this thread, inside an operator's kernel, but not in another one.
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(in_thread).result()


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
        def run(*leaves):
            return selective_scan_reference(ScanInputs(*leaves, *context.options))[0]

        return (*differentiate(run, context, grad), None, None)


class Convolution:
    """What all releases have in common; refuses what the kernels refuse."""

    @staticmethod
    def run(context, x, weight, bias, activation):
        if activation not in (None, "silu", "swish"):
            raise NotImplementedError("activation must be None, silu, or swish")
        if x.stride(2) != 1 and x.stride(1) != 1:
            x = x.contiguous()
        if not 2 <= weight.shape[1] <= 4 or (bias is not None and bias.dtype != weight.dtype):
            raise RuntimeError("expected 2 to 4 taps, and a bias in the dtype of the weight")
        if x.stride(2) != 1 and (x.shape[1] % 8 or x.stride(2) % 8 or x.stride(0) % 8):
            raise RuntimeError("expected strides that are multiples of 8")
        context.save_for_backward(x, weight, bias)
        return Convolution.compute(x, weight, bias)

    @staticmethod
    def compute(x, weight, bias):
        return causal_conv1d_reference(x.float(), weight[:, None], bias, False).to(x.dtype)


class Release10:
    """Interface of `CausalConv1dFn` in causal-conv1d 1.0."""

    @staticmethod
    def forward(ctx, x, weight, bias=None, activation=None):
        return Convolution.run(ctx, x, weight, bias, activation)

    @staticmethod
    def backward(ctx, dout):
        return (*differentiate(Convolution.compute, ctx, dout), None)


class Release17:
    """The same in 1.2 to 1.7."""

    @staticmethod
    def forward(
        ctx, x, weight, bias=None, seq_idx=None, initial_states=None, return_final_states=False, final_states_out=None,
        activation=None,
    ):  # fmt: skip
        ctx.return_final_states = return_final_states
        return Convolution.run(ctx, x, weight, bias, activation)

    @staticmethod
    def backward(ctx, dout, *args):
        assert not ctx.return_final_states
        return (*differentiate(Convolution.compute, ctx, dout), None, None, None, None, None)


def module(monkeypatch, name, **attributes):
    made = types.ModuleType(name)
    vars(made).update(attributes)
    monkeypatch.setitem(sys.modules, name, made)
    return made


PROBE = mamba_kernels.probe


def clear_caches():
    for cached in (mamba_kernels.load, PROBE, mamba_kernels.hub_kernels):
        cached.cache_clear()


@pytest.fixture
def gpu(monkeypatch):
    """A GPU that is the CPU, with none of the packages."""
    for where in (mamba_kernels, mamba_ssm):
        monkeypatch.setattr(where, "probe", lambda *arguments: PROBE(*(*arguments, False)[:3], "cpu"))
    for name in ("mamba_ssm", "causal_conv1d", "kernels"):
        monkeypatch.setitem(sys.modules, name, None)
    clear_caches()
    yield
    clear_caches()


@pytest.fixture
def installed(gpu, monkeypatch):
    """The package mamba-ssm, chosen on the CPU, too."""
    module(monkeypatch, "mamba_ssm"), module(monkeypatch, "mamba_ssm.ops")
    backend = BACKENDS["mamba_ssm"]._replace(unsupported=lambda facts: None)
    monkeypatch.setitem(BACKENDS, "mamba_ssm", backend)
    return module(monkeypatch, "mamba_ssm.ops.selective_scan_interface", SelectiveScanFn=SelectiveScanFn)


@pytest.fixture(params=[Release10, Release17])
def convolution(request, gpu, monkeypatch):
    """The package causal-conv1d in one of its releases."""
    module(monkeypatch, "causal_conv1d")
    return module(monkeypatch, "causal_conv1d.causal_conv1d_interface", CausalConv1dFn=request.param)


class Hub:
    """Of the package `kernels`, what is called, on a Hub that has the kernels of mamba-ssm."""

    def __init__(self, monkeypatch, is_cached):
        self.is_cached, self.calls, self.monkeypatch = is_cached, [], monkeypatch
        module(monkeypatch, "kernels", install_kernel=self.install_kernel, get_local_kernel=self.get_local_kernel)

    def install_kernel(self, repository, version, local_files_only=False):
        self.calls.append("cache" if local_files_only else "network")
        assert (repository, version) == (HUB_KERNELS, HUB_VERSION)
        if local_files_only and not self.is_cached:
            raise ValueError("Version 5 of 'kernels-community/mamba-ssm' is not available in the local cache")
        self.is_cached = True
        return "variant"

    def get_local_kernel(self, path):
        assert path == "variant"
        name = "mamba_ssm_0f3c"
        for part in ("", ".ops", "._causal_conv1d"):
            module(self.monkeypatch, name + part, __path__=[])
        module(self.monkeypatch, f"{name}.ops.selective_scan_interface", SelectiveScanFn=SelectiveScanFn)
        module(self.monkeypatch, f"{name}._causal_conv1d.causal_conv1d_interface", CausalConv1dFn=Release17)
        return sys.modules[name]


def test_kernels_of_the_hub_are_chosen_where_they_are_in_the_cache(gpu, monkeypatch):
    hub = Hub(monkeypatch, is_cached=True)
    assert BACKENDS[HUB_KERNELS].unsupported(ON_CUDA) is None and set(hub.calls) == {"cache"}
    assert choose_backend(HUB_KERNELS, 4) == HUB_KERNELS
    inputs = random_inputs(7, 2, 1, 4, 1)
    arguments = [inputs[name].requires_grad_() for name in NAMES]
    found = BACKENDS[HUB_KERNELS].run(ScanInputs(*arguments, True, True))[0]
    torch.testing.assert_close(found, selective_scan_reference(ScanInputs(*arguments, True, True))[0])
    weight = torch.randn(4, 1, 4)
    found = causal_conv1d.causal_conv1d(inputs["u"], weight, reverse=True, backend=HUB_KERNELS)
    torch.testing.assert_close(found, causal_conv1d_reference(inputs["u"], weight, None, True))
    monkeypatch.setenv("USE_HUB_KERNELS", "NO")
    assert BACKENDS[HUB_KERNELS].unsupported(ON_CUDA) == "USE_HUB_KERNELS is off"


def test_kernels_of_the_hub_are_downloaded_only_when_they_are_forced(gpu, monkeypatch):
    assert "do not answer (ModuleNotFoundError" in BACKENDS[HUB_KERNELS].unsupported(ON_CUDA), "without `kernels`"
    clear_caches()
    hub = Hub(monkeypatch, is_cached=False)
    assert "is not available in the local cache" in BACKENDS[HUB_KERNELS].unsupported(ON_CUDA)
    assert set(hub.calls) == {"cache"}
    assert BACKENDS[HUB_KERNELS].unsupported(ON_CUDA._replace(forced=True)) is None
    assert hub.calls.count("network") == 1
    with pytest.raises(ValueError, match="'kernels-community/mamba-ssm' of selective_scan was asked for, but it runs"):
        selective_scan(**random_inputs(3, 2, 1, 2, 1), backend=HUB_KERNELS)


def test_their_version_is_that_of_transformers():
    source = inspect.getsource(transformers_kernels)
    pinned = re.findall(rf'repo_id="{HUB_KERNELS}",\s+layer_name="selective_scan_fn",\s+version=(\d+)', source)
    assert set(pinned) == {str(HUB_VERSION)}


def arguments_of(left_out=(), dtype=torch.float32):
    inputs = random_inputs(70, 4, 2, 6, 2, dtype=dtype)
    return [None if name in left_out else inputs[name] for name in NAMES]


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("left_out", [(), ("z",), ("D", "delta_bias"), ("D", "z", "delta_bias")], ids=str)
@pytest.mark.parametrize("with_addend", [False, True])
def test_values_and_gradients_are_those_of_the_reference(installed, with_addend, reverse, left_out):
    results = []
    for run in (functools.partial(mamba_ssm.selective_scan_mamba_ssm, source="mamba_ssm"), selective_scan_reference):
        leaves = [None if x is None else x.clone().requires_grad_() for x in arguments_of(left_out)]
        addend = leaves[0] * 2 if with_addend else None
        output = run(ScanInputs(*leaves, True, reverse, None, addend))[0]
        output.square().sum().backward()
        results.append([output, *(leaf.grad for leaf in leaves if leaf is not None)])
    for found, wanted in zip(*results, strict=True):
        torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("constants", CONSTANTS, ids=str)
def test_b_and_c_may_be_the_same_at_all_times(installed, constants, reverse):
    """The kernels take them as they are, without a copy for every step."""
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
    output, _ = mamba_ssm.selective_scan_mamba_ssm(ScanInputs(*leaves, True), "mamba_ssm")
    output.sum().backward()
    assert output.dtype == torch.bfloat16
    for leaf in leaves:
        assert leaf.grad.dtype == leaf.dtype and leaf.grad.any()


def test_the_operator_is_one_that_torch_can_trace(installed):
    arguments = [x.requires_grad_() for x in arguments_of()]
    torch.library.opcheck(mamba_kernels.run_forward, (arguments, list(range(8)), "mamba_ssm", SCAN, True, True))

    def run(*tensors):
        return mamba_ssm.selective_scan_mamba_ssm(ScanInputs(*tensors, True, True), "mamba_ssm")[0]

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
    assert mamba_kernels.probe("mamba_ssm", SCAN) is None

    def not_compiled(context, *arguments, **options):
        raise NotImplementedError("build with the option for Mamba-1")

    monkeypatch.setattr(installed, SCAN, types.SimpleNamespace(forward=not_compiled))
    clear_caches()
    reason = mamba_kernels.probe("mamba_ssm", SCAN)
    assert "do not answer (NotImplementedError: build with the option for Mamba-1)" in reason


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
    assert reason in mamba_ssm.unsupported(ON_CUDA._replace(**change), "mamba_ssm")


@pytest.mark.parametrize(
    ("batch_size", "dim", "length", "taps", "dtype", "with_bias"),
    [
        (1, 1, 1, 4, torch.float32, True),
        (2, 40, 70, 4, torch.bfloat16, True),
        (3, 5, 9, 2, torch.float32, False),
    ],
)
def test_values_and_gradients_of_the_convolution(convolution, batch_size, dim, length, taps, dtype, with_bias):
    x = torch.randn(batch_size, length, 2 * dim, dtype=dtype).mT[:, :dim]
    leaves = [x, torch.randn(dim, 1, taps)] + ([torch.randn(dim)] if with_bias else [])
    leaves = [leaf.requires_grad_() for leaf in leaves]
    bias, grad = leaves[2] if with_bias else None, torch.randn(batch_size, dim, length, dtype=dtype)
    found = causal_conv1d.causal_conv1d(leaves[0], leaves[1], bias, backend="causal_conv1d")
    wanted = causal_conv1d_reference(leaves[0].float(), leaves[1], bias, False).to(dtype)
    results = [(output, *torch.autograd.grad(output, leaves, grad)) for output in (found, wanted)]
    torch.testing.assert_close(*results, atol=2e-5, rtol=1e-4)
    assert found.is_contiguous() and found.dtype == dtype


def test_the_convolution_is_an_operator_that_torch_can_trace(convolution):
    leaves = [torch.randn(shape, requires_grad=True) for shape in ((2, 5, 9), (5, 4), (5,))]
    arguments = ([0, 1, 2], "causal_conv1d", CONVOLUTION, False, False)
    torch.library.opcheck(mamba_kernels.run_forward, (leaves, *arguments))
    detached = [leaf.detach() for leaf in leaves]
    torch.library.opcheck(mamba_kernels.run_backward, (torch.randn(2, 5, 9), detached, *arguments))


@pytest.mark.parametrize("taps", [4, 5])
def test_the_convolution_of_the_package_or_else_of_triton_runs_beside_the_scan(convolution, monkeypatch, taps):
    monkeypatch.setattr(causal_conv1d.triton, "probe", lambda: None)
    assert choose_backend("mamba_ssm", taps) == ("causal_conv1d" if taps == 4 else "triton")
    monkeypatch.setitem(sys.modules, convolution.__name__, None)
    clear_caches()
    assert choose_backend("mamba_ssm", taps) == "triton"
    monkeypatch.setattr(causal_conv1d.triton, "probe", lambda: "no compiler")
    assert choose_backend("mamba_ssm", taps) == "reference"
    assert choose_backend("triton", taps) == "triton" and choose_backend("reference", taps) == "reference"


@pytest.mark.parametrize("bidirectional", [True, False])
def test_a_model_gives_what_it_gives_on_the_reference(convolution, installed, monkeypatch, bidirectional):
    settings = {"time_step_init_scheme": "random", "bidirectional": bidirectional, "use_mean_pooling": True}
    model = make(VideoMambaForVideoClassification, **settings)
    compare_models(model, random_clips(model.config), "mamba_ssm", monkeypatch)


def test_other_orders_of_the_scan_are_those_of_the_reference(convolution, installed, monkeypatch):
    model = make(VideoMambaForVideoClassification, time_step_init_scheme="random", scan_order="spatiotemporal")
    compare_models(model, random_clips(model.config), "mamba_ssm", monkeypatch)


def triton_on_the_cpu(calls):
    """In place of Triton's convolution: channels last in memory as there, and both directions."""

    def convolve(hidden_states, weight, bias, reverse):
        calls.append(reverse)
        return causal_conv1d_reference(hidden_states, weight, bias, reverse).mT.contiguous().mT

    return convolve


def set_triton(patch, run):
    patch.setitem(causal_conv1d.BACKENDS, "triton", causal_conv1d.BACKENDS["triton"]._replace(run=run))


@pytest.mark.parametrize("conv_kernel", [4, 6])
def test_tritons_convolution_runs_where_the_package_cannot(installed, monkeypatch, conv_kernel):
    calls = []
    monkeypatch.setattr(causal_conv1d.triton, "probe", lambda: None)
    set_triton(monkeypatch, triton_on_the_cpu(calls))
    model = make(VideoMambaForVideoClassification, time_step_init_scheme="random", conv_kernel=conv_kernel)
    compare_models(model, random_clips(model.config), "mamba_ssm", monkeypatch)
    assert calls == [False, True] * 3
