"""
The `triton` backend: its kernels interpreted on the CPU, compiled for GPUs that are not there, and, with one at hand,
run at full size.
"""

import copy
import importlib
import itertools
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from conversion.helpers.weight_rules import apply_rules
from hf_video import VideoMambaForVideoClassification, selective_scan
from hf_video.ops.causal_conv1d import triton as causal_conv1d_triton
from hf_video.ops.dispatch import probing
from hf_video.ops.selective_scan import BACKEND_VARIABLE
from hf_video.ops.selective_scan import triton as selective_scan_triton
from hf_video.ops.selective_scan.reference import ScanFacts
from tests.conversion.test_videomamba import RULES, converted
from tests.models.videomamba.videomamba_testing import make, random_clips
from tests.testing.goldens import assert_float32_close, assert_gradients_close
from tests.testing.processes import Program, run_fresh

from .compiling import compile_kernel
from .test_selective_scan import GRID, Scan, compare, poisoned_memory, random_inputs, run_with_gradients

__all__ = ["converted", "poisoned_memory"]

REPOSITORY = Path(__file__).parents[2]
SEQUENCES = ("u", "delta", "z", "B", "C", "addend", "y", "mixed", "dy", "du", "ddelta", "dz", "dmixed")
STRIDES = ("x_clip_stride", "x_stride", "z_clip_stride", "z_stride")
INTEGERS = ("length", "dim", "num_states", "num_groups", *STRIDES)
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def on_gpu(test):
    return pytest.mark.gpu(needs_gpu(test))


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("which", ["not slow", pytest.param("slow", marks=pytest.mark.slow)])
def test_the_kernels_interpreted_on_the_cpu(which):
    pytest.importorskip("triton", reason="this PyTorch comes without Triton")
    file = Path(__file__).with_name("interpreted_triton.py")
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", which, str(file)]
    result = subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, timeout=1180)
    assert result.returncode == 0 and " passed" in result.stdout, result.stdout[-5000:] + result.stderr[-2000:]


def compile_named(module, name, settings, capability, dtype, **constants):
    """The kernel of a name from a module of `hf_video.ops`."""
    pytest.importorskip("triton", reason="this PyTorch comes without Triton")
    kernel = getattr(importlib.import_module("hf_video.ops." + module), name)
    names = [name for name in kernel.arg_names if name not in constants | settings]
    kinds = (
        dict.fromkeys(names, "*fp32:16") | dict.fromkeys(SEQUENCES, f"*{dtype}:16") | dict.fromkeys(INTEGERS, "i32")
    )
    return compile_kernel(kernel, [kinds[name] for name in names], settings | constants, capability)


@pytest.mark.parametrize("capability", [pytest.param(80, marks=pytest.mark.slow), 90])
@pytest.mark.parametrize("kernel", ["scan_forward_kernel", "scan_backward_kernel"])
def test_scans_compile_without_a_gpu_and_threads_keep_their_steps(kernel, capability):
    """In every plan: a layout that spread steps over threads would cost many exchanges between them."""
    sizes = itertools.product((1, 2, 8, 16, 64), (384, 1152))
    plans = {tuple(selective_scan_triton.plan(batch_size, dim, 1).items()) for batch_size, dim in sizes}
    assert len(plans) == 4
    for number, plan in enumerate(sorted(plans)):
        constants = {"use_softplus": number % 2 == 0, "reverse": number % 2 == 1, "has_gate": number % 3 == 0}
        constants["is_wide"] = number == 0
        if kernel == "scan_forward_kernel":
            constants |= {"keeps_borders": number % 2 == 0, "has_addend": constants["has_gate"]}
        dtype = ("bf16", "fp16", "fp32")[number % 3]
        options = selective_scan_triton.options(dict(plan), backward=kernel == "scan_backward_kernel")
        settings = dict(plan) | options
        compiled = compile_named("selective_scan.triton_kernels", kernel, settings, capability, dtype, **constants)
        assert compiled.asm["cubin"]
        graph = compiled.asm["ttgir"]
        exponential = re.search(r"math\.exp2 .* tensor<\d+x\d+xf32, (#\w+)>", graph)
        layout = re.search(rf"^{exponential[1]} = #ttg\.blocked<(.*)>$", graph, re.MULTILINE)[1]
        steps_of = {name: int(value) for name, value in re.findall(r"(\w+) = \[(\d+), \d+\]", layout)}
        assert steps_of["threadsPerWarp"] == steps_of["warpsPerCTA"] == 1, layout
        # If there are very many states, their offsets, which move pointers to scalars, have 64 bits.
        narrow = re.findall(r"tt\.addptr .* : !tt\.ptr<\w+>, i32", compiled.asm["ttir"])
        assert not narrow if constants["is_wide"] else narrow
        # Those of the sums over channels, and a few between spans.
        assert compiled.asm["ptx"].count("shfl.sync") < 8 * selective_scan_triton.STEPS


@pytest.mark.parametrize("capability", [pytest.param(80, marks=pytest.mark.slow), 90])
@pytest.mark.parametrize("kernel", ["conv_forward_kernel", "conv_backward_kernel"])
def test_convolutions_compile_without_a_gpu(kernel, capability):
    for reverse, dtype in ((False, "bf16"), (True, "fp32")):
        settings = causal_conv1d_triton.settings(taps=4)
        compiled = compile_named("causal_conv1d.triton_kernels", kernel, settings, capability, dtype, reverse=reverse)
        assert compiled.asm["cubin"]


def test_small_batches_get_more_threads_along_time():
    plans = [selective_scan_triton.plan(batch_size, 1152, 1) for batch_size in (1, 4, 8, 32)]
    assert [(plan["BLOCK"], plan["SPANS"]) for plan in plans] == [(8, 16), (16, 8), (16, 4), (16, 2)]
    assert [selective_scan_triton.options(plan, backward=True)["num_warps"] for plan in plans] == [4, 4, 2, 1]


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("CUDA"), RuntimeError("CUDA error: out of memory")])
def test_a_passing_lack_of_memory_does_not_rule_kernels_out(error):
    failures = [error]

    @probing
    def probe():
        if failures:
            raise failures.pop()
        return torch.ones(1)

    with pytest.raises(type(error)):
        probe()
    assert probe() is None


def test_model_and_operators_import_without_the_kernels_and_what_reads_videos():
    """So that kernels can be tried on a bare GPU machine."""
    program = (
        "import sys\n"
        "sys.modules |= dict.fromkeys(['av', 'datasets', 'torchcodec'])\n"
        "import hf_video\n"
        "hf_video.selective_scan, hf_video.VideoMambaForVideoClassification, hf_video.VideoViTForVideoClassification\n"
        "print(*(name for name in sys.modules if name.endswith('triton_kernels')))"
    )
    result = run_fresh(Program(["-c", program], os.environ))[0]
    assert (result.returncode, result.stdout.strip()) == (0, ""), result.stderr


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"device_type": "cpu"}, "runs on CUDA, not on cpu"),
        ({"dtype": torch.float64}, "in float32, not in float64"),
    ],
)
def test_situations_beyond_the_kernels_are_named(change, reason):
    facts = ScanFacts("cuda", torch.float32, 16, False)._replace(**change)
    assert reason in selective_scan_triton.unsupported(facts)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_kernels_that_do_not_answer_are_not_used():
    selective_scan_triton.probe.cache_clear()
    reason = selective_scan_triton.unsupported(ScanFacts("cuda", torch.float32, 16, False))
    selective_scan_triton.probe.cache_clear()
    assert reason.startswith("its kernels do not answer (")
    reason = causal_conv1d_triton.probe.__wrapped__()
    assert reason.startswith("its kernels do not answer (")


def to_gpu(inputs):
    return {name: value.cuda() for name, value in inputs.items()}


@on_gpu
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("sizes", [*GRID, (1569, 16, 1, 1152, 1), (300, 16, 32, 384, 2)], ids=str)
def test_on_the_gpu_values_and_gradients_equal_the_recurrence_in_float64(sizes, reverse, poisoned_memory):
    compare(to_gpu(random_inputs(*sizes)), reverse, "triton", tolerance=2e-5)


@on_gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("sizes", [(1, 16, 2, 4, 1), (65, 16, 2, 4, 2), (1569, 16, 8, 384, 1)], ids=str)
def test_on_the_gpu_half_precision_inputs_keep_a_float32_state(sizes, dtype, poisoned_memory):
    compare(to_gpu(random_inputs(*sizes, dtype=dtype)), True, "triton", tolerance=2**-7)


@pytest.fixture
def chosen(monkeypatch):
    monkeypatch.setenv(BACKEND_VARIABLE, "triton")


@on_gpu
def test_on_the_gpu_it_compiles_without_graph_breaks(chosen):
    inputs = to_gpu(random_inputs(300, 16, 2, 64, 2))
    weights = torch.randn(2, 64, 300), torch.randn(2, 64, 16)
    compiled = torch.compile(Scan(), fullgraph=True)
    expected, actual = (run_with_gradients(function, inputs, weights) for function in (Scan(), compiled))
    torch.testing.assert_close(actual, expected, atol=1e-4, rtol=1e-4)


@on_gpu
def test_on_the_gpu_two_runs_give_the_same_bits(chosen):
    inputs = to_gpu(random_inputs(1569, 16, 4, 384, 1, dtype=torch.bfloat16))
    weights = torch.randn(4, 384, 1569), torch.randn(4, 384, 16)
    first, second = (run_with_gradients(Scan(), inputs, weights) for _ in range(2))
    torch.testing.assert_close(first, second, atol=0, rtol=0)


@on_gpu
def test_on_the_gpu_it_can_be_captured_in_a_cuda_graph(chosen):
    inputs = to_gpu(random_inputs(300, 16, 2, 64, 1))
    leaves = {name: value.requires_grad_() for name, value in inputs.items()}

    def step():
        outputs = selective_scan(**leaves, delta_softplus=True)
        return outputs, *torch.autograd.grad(outputs.square().sum(), list(leaves.values()))

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step()
    for name, value in to_gpu(random_inputs(300, 16, 2, 64, 1)).items():
        leaves[name].data.copy_(value * 0.9)
    graph.replay()
    torch.testing.assert_close(captured, step(), atol=1e-4, rtol=1e-4)


@on_gpu
def test_on_the_gpu_the_originals_outputs_and_gradients_are_met(chosen, converted, monkeypatch):  # noqa: F811
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    golden, model, pixel_values = converted
    model = copy.deepcopy(model).cuda()
    outputs = model(pixel_values.cuda(), labels=golden.inputs["labels"].cuda())
    outputs.loss.backward()
    assert_float32_close(outputs.logits.cpu(), golden.expected["logits"])
    expected = apply_rules(golden.expected_under("grad."), RULES)
    found = {name: parameter.grad.cpu() for name, parameter in model.named_parameters() if name in expected}
    assert_gradients_close(found, expected)


@on_gpu
def test_on_the_gpu_200_steps_in_bfloat16_follow_the_reference(monkeypatch):
    losses = {}
    for backend in ("reference", "triton"):
        monkeypatch.setenv(BACKEND_VARIABLE, backend)
        model = make(VideoMambaForVideoClassification, time_step_init_scheme="random").cuda().train()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        clips = random_clips(model.config, batch_size=16).cuda()
        labels = torch.arange(16, device="cuda") % model.config.num_labels
        losses[backend] = []
        for _ in range(200):
            with torch.autocast("cuda", torch.bfloat16):
                loss = model(clips, labels=labels).loss
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses[backend].append(loss.detach())
    wanted, found = (torch.stack(curve).cpu() for curve in losses.values())
    assert wanted[-1] < 0.2 * wanted[0], "the clips can be learned by heart"
    # Rounding to bfloat16 lets two trainings drift apart a little, at first in no way.
    torch.testing.assert_close(found[:10], wanted[:10], atol=0.02, rtol=0.02)
    smooth = torch.ones(1, 1, 20) / 20
    found, wanted = (torch.conv1d(curve.view(1, 1, -1), smooth) for curve in (found, wanted))
    torch.testing.assert_close(found, wanted, atol=0.1, rtol=0.1)
