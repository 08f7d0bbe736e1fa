"""`causal_conv1d` against the sum over taps written out in float64, and the choice of its backend."""

import pytest
import torch

from hf_video.ops.causal_conv1d import BACKENDS, causal_conv1d, cpu

SIZES = [(1, 1, 1, 4), (2, 40, 70, 4), (3, 16, 9, 1)]


def specification(x, weight, bias, reverse):
    """One tap after the other, on tensors of any dtype."""
    taps, length = weight.shape[-1], x.shape[-1]
    outputs = torch.zeros_like(x) if bias is None else bias[:, None].expand_as(x).clone()
    for tap in range(taps):
        distance = taps - 1 - tap
        if distance < length:
            seen, own = x.narrow(-1, 0, length - distance), slice(distance, length)
            if reverse:
                seen, own = x.narrow(-1, distance, length - distance), slice(0, length - distance)
            outputs[..., own] += weight[:, 0, tap, None] * seen
    return outputs * torch.sigmoid(outputs)


@pytest.mark.parametrize(("reverse", "with_bias"), [(False, True), (True, False)])
@pytest.mark.parametrize("backend", ["reference", "cpu"])
@pytest.mark.parametrize(("batch_size", "dim", "length", "taps"), SIZES)
def test_values_and_gradients_equal_the_sum_in_float64(batch_size, dim, length, taps, backend, reverse, with_bias):
    x = torch.randn(batch_size, length, 2 * dim).mT[:, :dim]
    leaves = [x, torch.randn(dim, 1, taps)] + ([torch.randn(dim)] if with_bias else [])
    grad = torch.randn(batch_size, dim, length)
    results = []
    for dtype in (torch.float32, torch.float64):
        tensors = [leaf.detach().to(dtype).requires_grad_() for leaf in leaves]
        bias = tensors[2] if with_bias else None
        if dtype == torch.float32:
            output = causal_conv1d(*tensors[:2], bias, reverse=reverse, backend=backend)
        else:
            output = specification(*tensors[:2], bias, reverse)
        results.append([output, *torch.autograd.grad(output, tensors, grad.to(dtype))])
    for found, wanted in zip(*results, strict=True):
        torch.testing.assert_close(found.double(), wanted, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize(("backend", "reverse"), [("reference", False), ("cpu", True)])
@pytest.mark.parametrize(("first", "second"), [(5, 4), (1, 8), (3, 1)])
def test_a_sequence_goes_on_with_its_last_steps_and_gradients_flow(first, second, backend, reverse):
    """Also where a part is shorter than the convolution."""
    x, weight, bias = torch.randn(2, 6, first + second), torch.randn(6, 1, 4), torch.randn(6)
    x.requires_grad_()
    whole = causal_conv1d(x, weight, bias, reverse=reverse, backend=backend)
    earlier, later = x.split([first, second], dim=-1)
    if reverse:
        earlier, later, whole = later, earlier, whole[..., :first]
        state = torch.nn.functional.pad(earlier, (0, 3))[..., :3]
    else:
        state, whole = torch.nn.functional.pad(earlier, (3, 0))[..., -3:], whole[..., first:]
    part = causal_conv1d(later, weight, bias, reverse=reverse, initial_state=state, backend=backend)
    torch.testing.assert_close(part, whole)
    found, wanted = (torch.autograd.grad(y.square().sum(), x, retain_graph=True)[0] for y in (part, whole))
    torch.testing.assert_close(found, wanted)


def test_the_one_on_the_cpu_is_an_operator_that_torch_can_trace():
    leaves = [torch.randn(shape, requires_grad=True) for shape in ((2, 9, 16), (4, 16), (16,))]
    torch.library.opcheck(cpu.conv_forward, (*leaves, True))
    detached = [leaf.detach() for leaf in leaves]
    torch.library.opcheck(cpu.conv_backward, (torch.randn(2, 9, 16), *detached, False))


@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_half_precision_is_computed_in_float32(backend):
    x, weight, bias = torch.randn(2, 6, 9).bfloat16(), torch.randn(6, 1, 4), torch.randn(6)
    output = causal_conv1d(x, weight, bias, backend=backend)
    assert output.dtype == torch.bfloat16
    torch.testing.assert_close(output, causal_conv1d(x.float(), weight, bias, backend="reference").bfloat16())


def test_the_backend_is_that_of_the_scan(monkeypatch):
    ran = []
    for name in ("cpu", "reference"):
        backend = BACKENDS[name]._replace(run=lambda *arguments, name=name: ran.append(name))
        monkeypatch.setitem(BACKENDS, name, backend)
    causal_conv1d(torch.randn(1, 2, 5), torch.randn(2, 1, 4))
    causal_conv1d(torch.randn(1, 2, 5).double(), torch.randn(2, 1, 4).double())
    assert ran == ["cpu", "reference"]
    with pytest.raises(ValueError, match="no backend 'fastest' of causal_conv1d; choose one of .*reference"):
        causal_conv1d(torch.randn(1, 2, 5), torch.randn(2, 1, 4), backend="fastest")


def test_a_weight_of_two_axes_is_refused():
    with pytest.raises(ValueError, match=r"weight has the shape \(4, 3\); \(dim, 1, taps\) is expected"):
        causal_conv1d(torch.ones(1, 4, 5), torch.ones(4, 3))
