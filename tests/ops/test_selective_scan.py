"""`selective_scan` against the recurrence written out in float64: values, all gradients, both directions, errors."""

import logging

import pytest
import torch
import torch.nn.functional as F

from hf_video import selective_scan
from hf_video.ops.dispatch import logger
from hf_video.ops.selective_scan import BACKEND_VARIABLE, choose_backend

BACKENDS = ("reference", "cpu")
NAMES = ("u", "delta", "A", "B", "C", "D", "z", "delta_bias", "initial_state", "addend")
# Length, state size, batch size, channels, groups.
GRID = [
    (1, 1, 1, 1, 1),
    (15, 16, 2, 4, 1),
    (16, 1, 1, 5, 1),
    (17, 64, 1, 3, 3),
    (129, 4, 8, 6, 2),
    (1000, 16, 1, 2, 1),
]


def specification(u, delta, A, B, C, D, z, delta_bias, initial_state, addend, reverse):
    """One step after the other, on tensors of any dtype."""
    delta = F.softplus(delta + delta_bias[:, None])
    B, C = (x[None, ..., None].expand(*u.shape[:1], -1, -1, u.shape[2]) if x.ndim == 2 else x for x in (B, C))
    B, C = (x.repeat_interleave(A.shape[0] // x.shape[1], dim=1) for x in (B, C))
    state, outputs = initial_state, {}
    steps = range(u.shape[2])
    for t in reversed(steps) if reverse else steps:
        step = delta[:, :, t, None]
        state = torch.exp(step * A) * state + step * B[..., t] * u[:, :, t, None]
        outputs[t] = (C[..., t] * state).sum(-1) + D * u[:, :, t]
    return (torch.stack([outputs[t] for t in steps], dim=-1) + addend) * F.silu(z), state


def random_inputs(length, state_size, batch_size, channels, groups, dtype=torch.float32):
    generator = torch.Generator().manual_seed(length + 7 * state_size)

    def randn(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    inputs = {
        "u": randn(batch_size, channels, length),
        "delta": randn(batch_size, channels, length),
        "A": -torch.rand(channels, state_size, generator=generator, dtype=torch.float64) - 0.1,
        "B": randn(batch_size, groups, state_size, length),
        "C": randn(batch_size, groups, state_size, length),
        "D": randn(channels),
        "z": randn(batch_size, channels, length),
        "delta_bias": randn(channels),
        "initial_state": randn(batch_size, channels, state_size),
        "addend": randn(batch_size, channels, length) / 2,
    }
    # Weights and states stay float32 under every dtype of the inputs.
    kept = ("A", "D", "delta_bias", "initial_state")
    return {name: value.to(torch.float32 if name in kept else dtype) for name, value in inputs.items()}


# What may be the same at all times.
CONSTANTS = [("B",), ("C",), ("B", "C")]


def with_constants(inputs, constants):
    """Inputs in which some of B and C are the same at all times."""
    generator = torch.Generator().manual_seed(3)
    return inputs | {name: torch.randn(inputs["A"].shape, generator=generator) for name in constants}


def run_with_gradients(function, inputs, weights):
    leaves = {name: value.detach().clone().requires_grad_() for name, value in inputs.items()}
    outputs, last_state = function(**leaves)
    loss = (outputs * weights[0].to(outputs)).sum() + (last_state * weights[1].to(last_state)).sum()
    gradients = torch.autograd.grad(loss, [leaves[name] for name in NAMES])
    return outputs.detach(), last_state.detach(), dict(zip(NAMES, gradients, strict=True))


def compare(inputs, reverse, backend, tolerance):
    """Values and gradients within a tolerance relative to the largest entry of each."""
    doubles = {name: value.double() for name, value in inputs.items()}
    generator = torch.Generator().manual_seed(0)
    weights = tuple(
        torch.randn(doubles[name].shape, generator=generator).to(inputs["u"].dtype).double()
        for name in ("u", "initial_state")
    )

    def ours(**leaves):
        return selective_scan(**leaves, delta_softplus=True, return_last_state=True, reverse=reverse, backend=backend)

    expected = run_with_gradients(lambda **leaves: specification(**leaves, reverse=reverse), doubles, weights)
    actual = run_with_gradients(ours, inputs, weights)
    assert actual[0].dtype == inputs["u"].dtype and actual[1].dtype == torch.float32
    pairs = {"output": (actual[0], expected[0]), "last state": (actual[1], expected[1])}
    pairs |= {f"gradient of {name}": (actual[2][name], expected[2][name]) for name in NAMES}
    for name, (found, wanted) in pairs.items():
        assert found.shape == wanted.shape
        error = (found.double() - wanted).abs().max() / wanted.abs().max()
        assert error < tolerance, f"{name}: off by {error:.1e} of its largest entry"


def compare_models(model, clips, backend, monkeypatch, tolerance=1e-4):
    """Logits and gradients of a model on a backend and on the reference, relative to the largest entry of each."""
    results = []
    for name in (backend, "reference"):
        monkeypatch.setenv(BACKEND_VARIABLE, name)
        logits = model(clips).logits
        gradients = torch.autograd.grad(logits.float().square().sum(), list(model.parameters()))
        results.append((logits.detach(), *gradients))
    for found, wanted in zip(*results, strict=True):
        assert found.dtype == wanted.dtype
        assert (found - wanted).abs().max() <= tolerance * max(wanted.abs().max(), 0.01)


@pytest.fixture
def poisoned_memory():
    """Freshly allocated memory is NaN, so that a result which is never written shows."""
    torch.use_deterministic_algorithms(True)
    assert torch.empty(3).isnan().all()
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("sizes", GRID, ids=str)
def test_values_and_gradients_equal_the_recurrence_in_float64(sizes, reverse, backend, poisoned_memory):
    compare(random_inputs(*sizes), reverse, backend, tolerance=2e-5)


@pytest.mark.parametrize("backend", BACKENDS)
def test_bfloat16_inputs_keep_a_float32_state(backend, poisoned_memory):
    """Only the rounding of outputs and gradients to bfloat16 remains."""
    compare(random_inputs(65, 16, 2, 4, 2, dtype=torch.bfloat16), True, backend, tolerance=2**-7)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("sizes", "constants"),
    [
        ((17, 5, 2, 6, 2), ("B",)),
        ((17, 5, 2, 6, 2), ("C",)),
        ((1, 3, 2, 4, 1), ("B",)),
        ((70, 4, 1, 20, 1), NAMES[3:5]),
    ],
    ids=str,
)
def test_b_and_c_may_be_the_same_at_all_times(sizes, constants, backend, poisoned_memory):
    compare(with_constants(random_inputs(*sizes), constants), True, backend, tolerance=2e-5)


@pytest.mark.parametrize("backend", BACKENDS)
def test_constants_stay_float32_beside_bfloat16(backend):
    inputs = with_constants(random_inputs(65, 4, 2, 4, 1, dtype=torch.bfloat16), ("B",))
    compare(inputs, True, backend, tolerance=2**-7)


@pytest.mark.parametrize("reverse", [False, True])
def test_float64_stays_float64_and_passes_gradcheck(reverse):
    inputs = {name: value.double() for name, value in random_inputs(5, 2, 2, 4, 2).items()}

    def run(*tensors):
        arguments = dict(zip(NAMES, tensors, strict=True))
        return selective_scan(**arguments, delta_softplus=True, return_last_state=True, reverse=reverse)

    leaves = tuple(inputs[name].requires_grad_() for name in NAMES)
    assert torch.autograd.gradcheck(run, leaves)


def test_reverse_is_the_scan_of_the_flipped_sequence():
    inputs = random_inputs(70, 4, 2, 3, 1)
    flipped = {
        name: value.flip(-1) if name in ("u", "delta", "B", "C", "z", "addend") else value
        for name, value in inputs.items()
    }
    outputs, state = selective_scan(**inputs, return_last_state=True, reverse=True)
    expected, expected_state = selective_scan(**flipped, return_last_state=True)
    torch.testing.assert_close(outputs, expected.flip(-1))
    torch.testing.assert_close(state, expected_state)


@pytest.mark.parametrize("reverse", [False, True])
def test_a_sequence_can_be_scanned_in_parts(reverse):
    inputs = random_inputs(100, 4, 2, 3, 1)
    inputs.pop("initial_state")
    sequences = ("u", "delta", "B", "C", "z", "addend")
    parts = [
        {n: v[..., cut] if n in sequences else v for n, v in inputs.items()} for cut in (slice(37), slice(37, 100))
    ]
    state, outputs = None, []
    for part in reversed(parts) if reverse else parts:
        output, state = selective_scan(**part, return_last_state=True, initial_state=state, reverse=reverse)
        outputs.append(output)
    expected, expected_state = selective_scan(**inputs, return_last_state=True, reverse=reverse)
    torch.testing.assert_close(torch.cat(outputs[::-1] if reverse else outputs, dim=-1), expected)
    torch.testing.assert_close(state, expected_state)


def test_optional_arguments_default_to_doing_nothing():
    full = random_inputs(9, 4, 2, 3, 1)
    inputs = {name: full[name] for name in ("u", "delta", "A")} | {name: full[name][:, 0] for name in ("B", "C")}
    zeros = {"D": torch.zeros(3), "delta_bias": torch.zeros(3), "initial_state": torch.zeros(2, 3, 4)}
    torch.testing.assert_close(selective_scan(**inputs), selective_scan(**inputs, **zeros))


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_addend_needs_no_gate(backend):
    inputs = random_inputs(9, 4, 2, 3, 1)
    gate, addend = inputs.pop("z"), inputs.pop("addend")
    sums = selective_scan(**inputs, addend=addend, backend=backend)
    torch.testing.assert_close(sums, selective_scan(**inputs, backend=backend) + addend)
    gated = selective_scan(**inputs, addend=addend, z=gate, backend=backend)
    torch.testing.assert_close(gated, sums * F.silu(gate))


@pytest.mark.parametrize("backend", BACKENDS)
def test_memory_for_the_backward_does_not_hold_every_state(backend):
    """Counted as the bytes that autograd saves: less than the states of all steps would take."""
    inputs = random_inputs(1024, 16, 1, 8, 1)
    saved = {}

    def count(tensor):
        saved[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
        outputs = selective_scan(**{name: value.requires_grad_() for name, value in inputs.items()}, backend=backend)
    assert outputs.requires_grad
    assert sum(saved.values()) < 1024 * 16 * 8 * 4


class Scan(torch.nn.Module):
    def forward(self, u, delta, A, B, C, D, z, delta_bias, initial_state, addend):
        options = {"initial_state": initial_state, "addend": addend}
        both = [
            selective_scan(u, delta, A, B, C, D, z, delta_bias, True, True, reverse=r, **options)
            for r in (False, True)
        ]
        return both[0][0] + both[1][0], both[0][1] + both[1][1]


@pytest.mark.slow
def test_an_exported_graph_does_not_grow_with_the_length():
    counts = []
    for length in (5, 50):
        inputs = random_inputs(length, 4, 2, 6, 2)
        arguments = tuple(inputs[name] for name in NAMES)
        program = torch.export.export(Scan(), arguments)
        counts.append(len(program.graph.nodes))
        for found, wanted in zip(program.module()(*arguments), Scan()(*arguments), strict=True):
            torch.testing.assert_close(found, wanted)
    assert counts[0] == counts[1]


def test_an_exported_program_takes_as_many_clips_as_there_are_channels():
    def arguments(batch_size):
        inputs = random_inputs(5, 4, batch_size, 6, 2)
        return tuple(inputs[name] for name in NAMES)

    exported = arguments(2)
    per_clip = [name for name in NAMES if name not in ("A", "D", "delta_bias")]
    sizes = {name: {0: torch.export.Dim.DYNAMIC} if name in per_clip else None for name in NAMES}
    program = torch.export.export(Scan(), exported, dynamic_shapes=sizes)
    wanted = arguments(6)
    torch.testing.assert_close(program.module()(*wanted), Scan()(*wanted))


def test_compiled_values_and_gradients_are_the_eager_ones():
    inputs = random_inputs(20, 4, 2, 6, 2)
    weights = torch.randn(2, 6, 20), torch.randn(2, 6, 4)
    compiled = torch.compile(Scan(), fullgraph=True, backend="aot_eager")
    expected, actual = (run_with_gradients(function, inputs, weights) for function in (Scan(), compiled))
    torch.testing.assert_close(actual[:2], expected[:2])
    for name in NAMES:
        torch.testing.assert_close(actual[2][name], expected[2][name], atol=1e-4, rtol=1e-4, msg=name)


def test_the_choice_is_automatic_logged_once_and_forceable(monkeypatch, caplog):
    monkeypatch.delenv(BACKEND_VARIABLE, raising=False)
    monkeypatch.setattr(logger, "propagate", True)
    logger.info_once.cache_clear()
    inputs = random_inputs(3, 2, 1, 2, 1)
    with caplog.at_level(logging.INFO, logger=logger.name):
        for _ in range(2):
            selective_scan(**inputs)
    assert len(caplog.records) == 1
    assert "'cpu' (not 'mamba_ssm': it runs on CUDA, not on cpu; not 'kernels-community" in caplog.text
    with pytest.raises(
        ValueError, match="'mamba_ssm' of selective_scan was asked for, but it runs on CUDA, not on cpu"
    ):
        selective_scan(**inputs, backend="mamba_ssm")
    monkeypatch.setenv(BACKEND_VARIABLE, "fastest")
    with pytest.raises(ValueError, match="no backend 'fastest' of selective_scan; choose one of .*reference"):
        selective_scan(**inputs)
    assert choose_backend("cpu", torch.float32, 2, False, "reference") == "reference", "the argument comes first"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"u": torch.ones(2, 3)}, "`u` must be"),
        ({"u": torch.ones(2, 3, 0)}, "length of at least 1"),
        ({"A": torch.ones(3, 2, dtype=torch.complex64)}, "`A` must be of real floating numbers on cpu"),
        ({"A": torch.ones(3, 2, dtype=torch.complex64)}, "`selective_scan_fn` of the package mamba-ssm has complex"),
        ({"B": torch.ones(2, 2, 10)}, "`B` must be (batch_size=2, state_size=2, length=5)"),
        ({"u": torch.ones(2, 3, 5, dtype=torch.long)}, "where `u` is, got torch.int64"),
        ({"A": torch.ones(3, 2, device="meta")}, "`A` must be of real floating numbers on cpu, where `u` is, got"),
        ({"A": torch.ones(4, 2)}, "`A` must have the shape (3, 2), got (4, 2)"),
        ({"delta": torch.ones(2, 3, 6)}, "`delta` must have the shape (2, 3, 5)"),
        ({"z": torch.ones(2, 5, 3)}, "`z` must have the shape (2, 3, 5)"),
        ({"addend": torch.ones(2, 3, 1)}, "`addend` must have the shape (2, 3, 5)"),
        ({"D": torch.ones(2)}, "`D` must have the shape (3,)"),
        ({"initial_state": torch.ones(3, 2)}, "`initial_state` must have the shape (2, 3, 2)"),
        ({"B": torch.ones(2, 3)}, "or be (dim=3, state_size=2) where it is the same at all times, got (2, 3)"),
        ({"C": torch.ones(2, 2, 2, 5)}, "groups that divide 3 channels"),
        ({"C": torch.ones(2, 4, 5)}, "`C` must be (batch_size=2, state_size=2, length=5)"),
    ],
)
def test_what_does_not_fit_is_refused(change, message):
    with pytest.raises(ValueError) as error:
        selective_scan(**{**random_inputs(5, 2, 2, 3, 1), **change})
    assert message in str(error.value)
