"""
The convolution of the package causal-conv1d, and what a mixer copies beside mamba-ssm's scan, without the kernels of
either: stand-ins have the packages' interfaces and compute by the reference. What stays untested here is the compiled
code itself.
"""

import functools
import sys
import types
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from hf_video import VideoMambaForVideoClassification
from hf_video.ops import causal_conv1d as operators
from hf_video.ops.causal_conv1d import causal_conv1d_reference, choose_backend
from hf_video.ops.selective_scan import dispatch as selective_scan
from hf_video.ops.selective_scan.mamba_ssm import load_interface
from tests.models.videomamba.videomamba_testing import make, random_clips

from .test_selective_scan import compare_models
from .test_selective_scan_mamba_ssm import install


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

    @staticmethod
    def differentiate(context, dout):
        def in_thread():
            leaves = [None if x is None else x.detach().requires_grad_() for x in context.saved_tensors]
            inputs = [leaf for leaf in leaves if leaf is not None]
            gradients = iter(torch.autograd.grad(Convolution.compute(*leaves), inputs, dout))
            return [None if leaf is None else next(gradients) for leaf in leaves]

        # Autograd is switched off in this thread, inside an operator's kernel, but not in another one.
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(in_thread).result()


class Release10:
    """Interface of `CausalConv1dFn` in causal-conv1d 1.0."""

    @staticmethod
    def forward(ctx, x, weight, bias=None, activation=None):
        return Convolution.run(ctx, x, weight, bias, activation)

    @staticmethod
    def backward(ctx, dout):
        return (*Convolution.differentiate(ctx, dout), None)


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
        return (*Convolution.differentiate(ctx, dout), None, None, None, None, None)


@pytest.fixture(params=[Release10, Release17])
def installed(request, monkeypatch):
    """The package in one of its releases, and a GPU that is the CPU."""
    interface = types.ModuleType(operators.PACKAGE_INTERFACE)
    interface.CausalConv1dFn = request.param
    monkeypatch.setitem(sys.modules, "causal_conv1d", types.ModuleType("causal_conv1d"))
    monkeypatch.setitem(sys.modules, operators.PACKAGE_INTERFACE, interface)
    yield from fresh_probes(monkeypatch)


@pytest.fixture
def missing(monkeypatch):
    for name in ("causal_conv1d", operators.PACKAGE_INTERFACE):
        monkeypatch.setitem(sys.modules, name, None)
    yield from fresh_probes(monkeypatch)


def fresh_probes(monkeypatch):
    probe = operators.probe_package
    monkeypatch.setattr(operators, "probe_package", functools.partial(probe, "cpu"))
    probe.cache_clear()
    yield
    probe.cache_clear()


@pytest.fixture
def scan_of_mamba_ssm(monkeypatch):
    """mamba-ssm, chosen on the CPU, too."""
    install(monkeypatch)
    backend = selective_scan.BACKENDS["mamba_ssm"]._replace(why_not=lambda situation: None)
    monkeypatch.setitem(selective_scan.BACKENDS, "mamba_ssm", backend)
    load_interface.cache_clear()
    yield
    load_interface.cache_clear()


@pytest.mark.parametrize(
    ("batch_size", "dim", "length", "taps", "dtype", "with_bias"),
    [
        (1, 1, 1, 4, torch.float32, True),
        (2, 40, 70, 4, torch.bfloat16, True),
        (3, 5, 9, 2, torch.float32, False),
    ],
)
def test_values_and_gradients(installed, batch_size, dim, length, taps, dtype, with_bias):
    x = torch.randn(batch_size, length, 2 * dim, dtype=dtype).mT[:, :dim]
    leaves = [x, torch.randn(dim, 1, taps)] + ([torch.randn(dim)] if with_bias else [])
    leaves = [leaf.requires_grad_() for leaf in leaves]
    bias, grad = leaves[2] if with_bias else None, torch.randn(batch_size, dim, length, dtype=dtype)
    found = operators.causal_conv1d_package(leaves[0], leaves[1], bias, False)
    wanted = causal_conv1d_reference(leaves[0].float(), leaves[1], bias, False).to(dtype)
    results = [(output, *torch.autograd.grad(output, leaves, grad)) for output in (found, wanted)]
    torch.testing.assert_close(*results, atol=2e-5, rtol=1e-4)
    assert found.is_contiguous() and found.dtype == dtype


def test_it_is_an_operator_that_torch_can_trace(installed):
    leaves = [torch.randn(shape, requires_grad=True) for shape in ((2, 5, 9), (5, 4), (5,))]
    torch.library.opcheck(operators.package_forward, leaves)
    torch.library.opcheck(operators.package_backward, (torch.randn(2, 5, 9), *(leaf.detach() for leaf in leaves)))


def test_a_package_whose_convolution_does_not_answer_is_not_used(installed, monkeypatch):
    assert operators.why_package_cannot(4) is None
    assert operators.why_package_cannot(5) == "it convolves over 2 to 4 tokens, not 5"
    operators.probe_package.func.cache_clear()

    def incompatible(*arguments, **options):
        raise TypeError("causal_conv1d_fwd(): incompatible function arguments")

    monkeypatch.setattr(operators.load_function(), "forward", incompatible)
    assert "do not answer (TypeError: causal_conv1d_fwd(): incompatible" in operators.why_package_cannot(4)


def test_a_missing_package_is_named(missing):
    assert "do not answer (ModuleNotFoundError" in operators.why_package_cannot(4)


@pytest.mark.parametrize("bidirectional", [True, False])
def test_a_model_gives_what_it_gives_on_the_reference(installed, scan_of_mamba_ssm, monkeypatch, bidirectional):
    settings = {"time_step_init_scheme": "random", "bidirectional": bidirectional, "use_mean_pooling": True}
    model = make(VideoMambaForVideoClassification, **settings)
    compare_models(model, random_clips(model.config), "mamba_ssm", monkeypatch)


def test_other_orders_of_the_scan_are_those_of_the_reference(installed, scan_of_mamba_ssm, monkeypatch):
    model = make(VideoMambaForVideoClassification, time_step_init_scheme="random", scan_order="spatiotemporal")
    compare_models(model, random_clips(model.config), "mamba_ssm", monkeypatch)


def triton_on_the_cpu(calls):
    """In place of Triton's convolution: channels last in memory as there, and both directions."""

    def convolve(hidden_states, weight, bias, reverse):
        calls.append(reverse)
        return causal_conv1d_reference(hidden_states, weight, bias, reverse).mT.contiguous().mT

    return convolve


@pytest.mark.parametrize("conv_kernel", [4, 6])
def test_tritons_convolution_runs_where_the_package_cannot(missing, scan_of_mamba_ssm, monkeypatch, conv_kernel):
    calls = []
    monkeypatch.setattr(operators, "why_triton_cannot", lambda: None)
    monkeypatch.setitem(operators.BACKENDS, "triton", triton_on_the_cpu(calls))
    model = make(VideoMambaForVideoClassification, time_step_init_scheme="random", conv_kernel=conv_kernel)
    compare_models(model, random_clips(model.config), "mamba_ssm", monkeypatch)
    assert calls == [False, True] * 3


def test_too_many_taps_for_the_package_are_tritons(installed, monkeypatch):
    monkeypatch.setattr(operators, "why_triton_cannot", lambda: None)
    assert choose_backend("mamba_ssm", 4) == "causal_conv1d"
    assert choose_backend("mamba_ssm", 5) == "triton"
    monkeypatch.setattr(operators, "why_triton_cannot", lambda: "no compiler")
    assert choose_backend("mamba_ssm", 6) == "reference"
    assert choose_backend("triton", 4) == "triton" and choose_backend("reference", 4) == "reference"


class Copies:
    """Counts copies of tensors of some size, of whichever kind, `contiguous` where it is not one already."""

    def __init__(self, monkeypatch, numel):
        self.counts = dict.fromkeys(("flip", "index_select", "clone", "contiguous"), 0)
        for name in self.counts:
            method = getattr(torch.Tensor, name)
            monkeypatch.setattr(torch.Tensor, name, self.counting(name, method, numel))

    def counting(self, name, method, numel):
        @functools.wraps(method)
        def counted(tensor, *args, **kwargs):
            copies = name != "contiguous" or not tensor.is_contiguous()
            self.counts[name] += copies and tensor.numel() >= numel
            return method(tensor, *args, **kwargs)

        return counted


def mix_counting_copies(monkeypatch):
    monkeypatch.setenv(selective_scan.BACKEND_VARIABLE, "mamba_ssm")
    model = make(VideoMambaForVideoClassification)
    mixer, tokens = model.videomamba.layers[0].mixer, torch.randn(2, 65, 32)
    with torch.no_grad():
        mixer(tokens)
        copies = Copies(monkeypatch, numel=2 * 65 * 64)
        mixer(tokens)
    monkeypatch.undo()
    return copies.counts


def test_a_mixer_turns_round_what_enters_and_leaves_the_backward_direction(installed, scan_of_mamba_ssm, monkeypatch):
    """Besides, each direction's time steps, and what enters the forward one, are put into the kernels' layout once."""
    with monkeypatch.context() as patch:
        assert mix_counting_copies(patch) == {"flip": 0, "index_select": 2, "clone": 1, "contiguous": 2}


def test_beside_tritons_convolution_only_the_scan_turns_its_inputs_round(missing, scan_of_mamba_ssm, monkeypatch):
    """Inputs and time steps, which had to be copied into the kernels' layout, and the output."""
    with monkeypatch.context() as patch:
        patch.setattr(operators, "why_triton_cannot", lambda: None)
        patch.setitem(operators.BACKENDS, "triton", lambda x, weight, bias, reverse: x)
        assert mix_counting_copies(patch) == {"flip": 0, "index_select": 3, "clone": 0, "contiguous": 2}
