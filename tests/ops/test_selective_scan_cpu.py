"""What the `cpu` backend promises beyond the grid of values and gradients: operators, threads, processes, fallback."""

import builtins
import functools
import logging
import multiprocessing
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from hf_video import VideoMambaForVideoClassification, selective_scan
from hf_video.ops import dispatch, numba_threads
from hf_video.ops.causal_conv1d import causal_conv1d
from hf_video.ops.selective_scan import BACKEND_VARIABLE
from hf_video.ops.selective_scan import cpu as selective_scan_cpu
from hf_video.ops.selective_scan.reference import ScanFacts
from tests.models.videomamba.videomamba_testing import make, random_clips

from .test_selective_scan import NAMES, Scan, compare_models, random_inputs, run_with_gradients


@pytest.fixture(autouse=True)
def chosen(monkeypatch):
    monkeypatch.setenv(BACKEND_VARIABLE, "cpu")


def scan_on(backend, reverse=False):
    return lambda **inputs: selective_scan(
        **inputs, delta_softplus=True, return_last_state=True, reverse=reverse, backend=backend
    )


def assert_same(sizes, reverse=False, **changes):
    inputs = {**random_inputs(*sizes), **changes}
    weights = torch.randn(inputs["u"].shape), torch.randn(inputs["initial_state"].shape)
    found, wanted = (
        run_with_gradients(scan_on(backend, reverse), inputs, weights) for backend in ("cpu", "reference")
    )
    torch.testing.assert_close(found[:2], wanted[:2], atol=1e-4, rtol=1e-4)
    for name in NAMES:
        scale = wanted[2][name].abs().max()
        torch.testing.assert_close(found[2][name] / scale, wanted[2][name] / scale, atol=1e-4, rtol=0, msg=name)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("sizes", [(64, 16, 1, 32, 1), (130, 5, 2, 80, 2), (70, 2, 3, 17, 1)], ids=str)
def test_full_blocks_and_padded_ones_agree_with_the_reference(sizes, reverse, two_threads):
    assert_same(sizes, reverse)


def test_groups_of_b_and_c_may_differ():
    assert_same((20, 4, 1, 12, 2), C=torch.randn(1, 3, 4, 20))


def test_time_steps_that_vanish_or_explode():
    """Softplus far from 0 on both sides, decays of 1 and of 0."""
    delta = torch.linspace(-60, 40, 2 * 4 * 50).view(2, 4, 50)
    assert_same((50, 4, 2, 4, 1), delta=delta)


def test_a_state_that_does_not_fade_does_not_drift():
    ones = torch.ones(1, 1, 20000)
    zeros = torch.zeros_like(ones)
    state = torch.full((1, 1, 2), 0.3)
    _, last = selective_scan(ones, zeros, -ones[0, :, :2], zeros.expand(1, 2, -1), zeros.expand(1, 2, -1),
                             initial_state=state, return_last_state=True)  # fmt: skip
    assert torch.equal(last, state)


def test_gradients_of_a_loss_times_1e_20_are_those_of_the_loss_times_1e_20():
    """Only what is far smaller is set to zero."""
    inputs = random_inputs(150, 4, 1, 20, 1)
    weights = [torch.randn(1, 20, size, generator=torch.Generator().manual_seed(size)) for size in (150, 4)]
    scan = functools.partial(selective_scan, delta_softplus=True, return_last_state=True, backend="cpu")
    *_, wanted = run_with_gradients(scan, inputs, weights)
    *_, found = run_with_gradients(scan, inputs, [weight * 1e-20 for weight in weights])
    for name, gradient in wanted.items():
        torch.testing.assert_close(found[name] * 1e20, gradient, atol=1e-5, rtol=1e-5, msg=name)


def test_number_of_threads_changes_no_value():
    inputs = random_inputs(100, 4, 3, 100, 1)
    weights = torch.randn(3, 100, 100), torch.randn(3, 100, 4)
    threads, results = torch.get_num_threads(), []
    for count in (1, 2, 5):
        torch.set_num_threads(count)
        results.append(run_with_gradients(scan_on("cpu"), inputs, weights))
    torch.set_num_threads(threads)
    for result in results[1:]:
        torch.testing.assert_close(result, results[0])


def operator_arguments():
    """Of `scan_forward`, 32 channels in 2 groups."""
    inputs = random_inputs(70, 3, 2, 32, 2)
    inputs |= {name: inputs[name].mT for name in ("u", "delta", "A", "initial_state")}
    inputs |= {name: inputs[name].movedim(-1, 1) for name in ("B", "C")}
    names = ("u", "delta", "A", "B", "C", "D", "delta_bias", "initial_state")
    return [inputs[name].contiguous() for name in names]


def test_the_scan_is_an_operator_that_torch_can_trace():
    leaves = [x.requires_grad_() for x in operator_arguments()]
    torch.library.opcheck(selective_scan_cpu.scan_forward, (*leaves, True, True))
    arguments = operator_arguments()
    kept = selective_scan_cpu.scan_forward(*arguments, True, True)
    torch.library.opcheck(selective_scan_cpu.scan_backward, (*kept, *arguments, True, True))


def test_it_compiles_without_graph_breaks():
    inputs = random_inputs(20, 4, 2, 6, 2)
    weights = torch.randn(2, 6, 20), torch.randn(2, 6, 4)
    compiled = torch.compile(Scan(), fullgraph=True, backend="aot_eager")
    expected, actual = (run_with_gradients(function, inputs, weights) for function in (Scan(), compiled))
    torch.testing.assert_close(actual, expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_model_gives_what_it_gives_on_the_reference(monkeypatch, dtype):
    model = make(VideoMambaForVideoClassification, time_step_init_scheme="random").to(dtype)
    tolerance = 1e-4 if dtype == torch.float32 else 0.05
    compare_models(model, random_clips(model.config), "cpu", monkeypatch, tolerance)


def expected_and_inputs():
    inputs = random_inputs(200, 16, 1, 64, 1)
    return scan_on("reference")(**inputs)[0], inputs


def test_eight_threads_at_once():
    expected, inputs = expected_and_inputs()
    with ThreadPoolExecutor(8) as threads:
        for result in threads.map(lambda _: scan_on("cpu")(**inputs)[0], range(32)):
            torch.testing.assert_close(result, expected, atol=1e-4, rtol=1e-4)


@pytest.fixture
def two_threads():
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(threads)


def scan_in_child(connection, inputs, num_threads):
    torch.set_num_threads(num_threads)
    connection.send(scan_on("cpu")(**inputs)[0].numpy())


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no fork")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize("num_threads", [1, 2])
def test_a_forked_child_scans_as_well(num_threads, two_threads):
    expected, inputs = expected_and_inputs()
    scan_on("cpu")(**inputs)
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=scan_in_child, args=(sender, inputs, num_threads))
    child.start()
    assert receiver.poll(240), "the child hangs"
    torch.testing.assert_close(torch.from_numpy(receiver.recv()), expected, atol=1e-4, rtol=1e-4)
    child.join()
    assert child.exitcode == 0


class RecordedKernel:
    """A kernel without a compiler: tells which threads called it, and fails where it is told to."""

    __name__ = "kernel"

    def __init__(self, failing_unit=None):
        self.signatures, self.threads, self.failing_unit = ["types"], {}, failing_unit

    def __call__(self, unit):
        if unit == self.failing_unit:
            raise KeyboardInterrupt("in a unit")
        self.threads[unit] = threading.get_ident()
        # Long enough for the other threads to come.
        time.sleep(0.05)


@pytest.mark.parametrize("has_team", [True, False])
def test_units_run_on_all_threads_with_and_without_those_of_pytorch(has_team, two_threads, monkeypatch):
    if not has_team:
        monkeypatch.setattr(numba_threads, "openmp_team", lambda: None)
    elif numba_threads.openmp_team() is None:
        pytest.skip("PyTorch has another OpenMP than GNU's")
    kernel = RecordedKernel()
    numba_threads.run_units(kernel, (), [(unit,) for unit in range(6)])
    assert sorted(kernel.threads) == list(range(6))
    assert len(set(kernel.threads.values())) == 2 and threading.get_ident() in kernel.threads.values()


@pytest.mark.parametrize("has_team", [True, False])
def test_what_a_unit_raises_reaches_the_caller(has_team, two_threads, monkeypatch):
    if not has_team:
        monkeypatch.setattr(numba_threads, "openmp_team", lambda: None)
    with pytest.raises(KeyboardInterrupt, match="in a unit"):
        numba_threads.run_units(RecordedKernel(failing_unit=2), (), [(unit,) for unit in range(4)])


def test_a_signal_that_comes_before_the_first_line_is_not_lost(two_threads, monkeypatch):
    monkeypatch.setattr(numba_threads, "openmp_team", lambda: lambda *arguments: None)
    with pytest.raises(KeyboardInterrupt, match="while threads were started"):
        numba_threads.run_units(RecordedKernel(), (), [(unit,) for unit in range(4)])


def test_forward_mode_takes_the_reference(monkeypatch):
    monkeypatch.delenv(BACKEND_VARIABLE)
    inputs = random_inputs(9, 2, 1, 16, 1)
    direction = torch.randn_like(inputs["u"])

    def scan(u, backend=None):
        return selective_scan(**{**inputs, "u": u}, delta_softplus=True, backend=backend)

    found = torch.func.jvp(scan, (inputs["u"],), (direction,))[1]
    expected = torch.func.jvp(lambda u: scan(u, "reference"), (inputs["u"],), (direction,))[1]
    assert found.abs().sum() > 0
    torch.testing.assert_close(found, expected)


def test_an_empty_batch_scans_to_nothing():
    inputs = random_inputs(5, 3, 0, 16, 1)
    inputs["u"].requires_grad_()
    output, state = scan_on("cpu")(**inputs)
    output.sum().backward()
    assert output.shape == (0, 16, 5) and state.shape == (0, 16, 3) and inputs["A"].grad is None
    assert causal_conv1d(inputs["u"], torch.ones(16, 1, 4), backend="cpu").shape[0] == 0


def test_compilation_is_shown_once(monkeypatch, caplog):
    class Kernel:
        """What `run_units` reads of a dispatcher of numba."""

        __name__ = "kernel"

        def __init__(self):
            self.signatures, self.calls = [], []
            self.stats = type("Stats", (), {"cache_misses": {"types": 1}, "cache_path": "folder"})

        def __call__(self, number, unit):
            self.signatures.append("types")
            self.calls.append((number, unit))

    monkeypatch.setattr(numba_threads.logger, "propagate", True)
    numba_threads.logger.warning_once.cache_clear()
    kernel = Kernel()
    for each in (kernel, kernel, Kernel()):
        numba_threads.run_units(each, (7,), [(1,), (2,), (3,)])
    assert sorted(kernel.calls) == [(7, unit) for unit in (1, 1, 2, 2, 3, 3)]
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "Compiling CPU kernels, once for this machine" in caplog.text


def test_without_numba_the_reference_takes_over_and_says_so(monkeypatch, caplog):
    monkeypatch.delenv(BACKEND_VARIABLE)
    monkeypatch.setattr(dispatch.logger, "propagate", True)
    monkeypatch.delitem(sys.modules, f"{numba_threads.__package__}.numba_vectors", raising=False)
    monkeypatch.delattr(sys.modules[numba_threads.__package__], "numba_vectors", raising=False)
    import_module = builtins.__import__

    def without_numba(name, *args, **kwargs):
        if name.split(".")[0] == "numba":
            raise ImportError("No module named 'numba'")
        return import_module(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without_numba)
    dispatch.logger.warning_once.cache_clear()
    with caplog.at_level(logging.WARNING, logger=dispatch.logger.name):
        outputs = [selective_scan(**random_inputs(9, 2, 1, 2, 1)) for _ in range(2)]
    assert len(caplog.records) == 1 and "pip install numba" in caplog.text and "'reference'" in caplog.text
    assert outputs[0].isfinite().all()


def test_what_it_cannot_do_is_refused_with_the_reason():
    with pytest.raises(
        ValueError, match="'cpu' of selective_scan was asked for, but it computes in float32, not in float64"
    ):
        selective_scan(**random_inputs(3, 2, 1, 2, 1, dtype=torch.float64), backend="cpu")
    facts = ScanFacts("cuda", torch.float32, 16, False)
    assert selective_scan_cpu.unsupported(facts) == "it runs on the CPU, not on cuda"
