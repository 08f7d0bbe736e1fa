"""The kernels that Triton compiles for GPUs, executed without one: values, gradients, and no race between warps."""

import pytest
import torch

from hf_video import VideoMambaForVideoClassification
from hf_video.ops import causal_conv1d
from hf_video.ops.selective_scan import dispatch as selective_scan
from hf_video.ops.selective_scan import triton as selective_scan_triton
from hf_video.ops.selective_scan.triton import Plan
from tests.models.videomamba.videomamba_testing import make, random_clips

from . import ptx
from .compiling import compile_kernel
from .test_selective_scan import compare, compare_models, poisoned_memory, random_inputs

__all__ = ["poisoned_memory"]

PLANS = [Plan(16, 32), Plan(16, 64), Plan(16, 128), Plan(8, 256)]
# The newest one of which every instruction is known.
KNOWN_TRITON = (3, 9)
DTYPES = {torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16"}


def type_of(parameter, argument):
    """As Triton sees an argument: 16 divides most addresses, and many sizes."""
    if torch.is_tensor(argument):
        kind, number = f"*{DTYPES[argument.dtype]}", argument.data_ptr()
    else:
        kind, number = "i32", argument
    return kind + ":16" * (number % 16 == 0 and not parameter.do_not_specialize)


class Emulated:
    """In the place of a kernel: compiles it at every launch, and executes what comes out."""

    def __init__(self, kernel, capability):
        self.kernel, self.capability = kernel, capability

    def __getitem__(self, grid):
        def run(*arguments, **settings):
            import triton

            parameters = [each for each in self.kernel.params if each.name not in settings]
            types = [type_of(*pair) for pair in zip(parameters, arguments, strict=True)]
            compiled = compile_kernel(self.kernel, types, settings, self.capability)
            try:
                ptx.launch(compiled.asm["ptx"], compiled.metadata.shared, grid, list(arguments))
            except ptx.Unknown as unknown:
                if tuple(map(int, triton.__version__.split(".")[:2])) <= KNOWN_TRITON:
                    raise
                pytest.skip(
                    f"Triton {triton.__version__} uses an instruction that the emulator does not know: {unknown}"
                )

        return run


@pytest.fixture(params=[pytest.param(80, marks=pytest.mark.slow), 90])
def emulated(request, monkeypatch):
    pytest.importorskip("triton", reason="this PyTorch comes without Triton")
    from hf_video.ops import causal_conv1d_triton_kernels
    from hf_video.ops.selective_scan import triton_kernels as selective_scan_triton_kernels

    for module in (causal_conv1d_triton_kernels, selective_scan_triton_kernels):
        for name in [name for name in vars(module) if name.endswith("_kernel")]:
            monkeypatch.setattr(module, name, Emulated(getattr(module, name), request.param))
    backend = selective_scan.Backend(selective_scan_triton.selective_scan_triton, lambda situation: None)
    monkeypatch.setitem(selective_scan.BACKENDS, "triton", backend)


# Those between are plans like them, of other sizes.
@pytest.mark.parametrize(
    "plan", [pytest.param(each, marks=pytest.mark.slow if each in PLANS[1:3] else [], id=str(each)) for each in PLANS]
)
def test_scan_values_and_gradients_equal_the_recurrence_in_float64(plan, emulated, monkeypatch, poisoned_memory):
    """Two chunks, of which the second is cut off, and two blocks of channels, likewise."""
    monkeypatch.setattr(selective_scan_triton, "plan", lambda *sizes: plan)
    reverse = PLANS.index(plan) % 2 == 1
    sizes = plan.chunk_length + 21, 2, 1, plan.channels + 3, 1
    compare(random_inputs(*sizes), reverse, "triton", tolerance=2e-5)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_scan_of_groups_of_channels_in_half_precision(dtype, emulated, poisoned_memory):
    compare(random_inputs(37, 3, 2, 12, 2, dtype=dtype), True, "triton", tolerance=2**-7)


def test_a_model_gives_what_it_gives_on_the_reference(emulated, monkeypatch):
    """Its gate is half of what a linear layer gives."""
    sizes = {"image_size": 16, "num_frames": 2, "hidden_size": 4, "num_hidden_layers": 1, "state_size": 2}
    model = make(VideoMambaForVideoClassification, time_step_init_scheme="random", **sizes)
    compare_models(model, random_clips(model.config, batch_size=2), "triton", monkeypatch)


def test_scan_without_gradients(emulated, poisoned_memory):
    inputs = random_inputs(300, 2, 1, 8, 1)
    arguments = {"delta_softplus": True, "return_last_state": True}
    expected = selective_scan.selective_scan(**inputs, **arguments, backend="reference")
    found = selective_scan.selective_scan(**inputs, **arguments, backend="triton")
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("reverse", [False, True])
def test_convolution_values_and_gradients(reverse, emulated, poisoned_memory):
    x = torch.randn(2, 40, 2 * 70).mT[:, :70].requires_grad_()
    leaves = [x, torch.randn(70, 1, 4, requires_grad=True), torch.randn(70, requires_grad=True)]
    grad = torch.randn(2, 70, 40)
    results = []
    for function in (causal_conv1d.causal_conv1d_triton, causal_conv1d.causal_conv1d_reference):
        output = function(*leaves, reverse)
        results.append((output, *torch.autograd.grad(output, leaves, grad)))
    torch.testing.assert_close(*results, atol=2e-5, rtol=1e-4)


def test_a_race_between_warps_is_seen():
    """What another warp has written is read without a barrier in between."""
    triton = pytest.importorskip("triton", reason="this PyTorch comes without Triton")
    tl = triton.language

    @triton.jit
    def swap_kernel(x, has_barrier: tl.constexpr):
        thread = tl.arange(0, 64)
        tl.store(x + thread, thread.to(tl.float32))
        if has_barrier:
            tl.debug_barrier()
        tl.store(x + 64 + thread, tl.load(x + (thread ^ 32)))

    kernel = Emulated(swap_kernel, 90)
    x = torch.zeros(128)
    kernel[(1,)](x, has_barrier=True, num_warps=2)
    assert x[64:].tolist() == [*range(32, 64), *range(32)]
    with pytest.raises(RuntimeError, match="a race"):
        kernel[(1,)](x, has_barrier=False, num_warps=2)


def test_access_outside_of_an_array_is_seen():
    triton = pytest.importorskip("triton", reason="this PyTorch comes without Triton")
    tl = triton.language

    @triton.jit
    def read_kernel(x, y):
        thread = tl.arange(0, 32)
        tl.store(y + thread, tl.load(x + thread))

    with pytest.raises(IndexError, match="outside of an array"):
        Emulated(read_kernel, 90)[(1,)](torch.zeros(31), torch.zeros(32), num_warps=1)
