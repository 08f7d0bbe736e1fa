"""Vectors for kernels on the CPU: bfloat16 as PyTorch rounds it, the error of rough powers of two, and flushing."""

import numpy as np
import pytest
import torch

from hf_video.ops.numba_threads import as_array
from hf_video.ops.numba_vectors import LANES, NEGLIGIBLE, compiled, exp2, flush, load, rough_exp2, store


@compiled
def copy_numbers(source, target):
    for i in range(0, len(source), LANES):
        store(target, (i,), load(source, (i,)))


@compiled
def powers(source, target, is_rough):
    for i in range(0, len(source), LANES):
        x = load(source, (i,))
        store(target, (i,), rough_exp2(x) if is_rough else exp2(x))


@compiled
def flush_numbers(source, target):
    for i in range(0, len(source), LANES):
        store(target, (i,), flush(load(source, (i,)), NEGLIGIBLE))


def test_bfloat16_is_rounded_as_pytorch_rounds_it():
    """All bit patterns near ties, infinities, zeros, subnormals and NaNs whose low bits alone are set."""
    upper = torch.arange(2**16, dtype=torch.int64)[:, None] << 16
    bits = (upper + torch.tensor([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF])).flatten()
    numbers = torch.where(bits < 2**31, bits, bits - 2**32).to(torch.int32).view(torch.float32)
    found, wanted = torch.empty(len(numbers), dtype=torch.bfloat16), numbers.bfloat16()
    copy_numbers(as_array(numbers), as_array(found))
    torch.testing.assert_close(found, wanted, atol=0, rtol=0, equal_nan=True)
    again = torch.empty(len(numbers))
    copy_numbers(as_array(found), as_array(again))
    torch.testing.assert_close(again, wanted.float(), atol=0, rtol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_memory_of_an_array_can_still_be_resized(dtype):
    """FSDP frees the memory of gathered weights so."""
    weight = torch.nn.Parameter(torch.zeros(4, dtype=dtype))
    assert as_array(weight).ctypes.data == weight.data_ptr()
    assert weight.untyped_storage().resizable()


@pytest.mark.parametrize(("is_rough", "error"), [(False, 2e-7), (True, 1.1e-4)])
def test_powers_of_two(is_rough, error):
    exponents = np.concatenate([-np.logspace(-8, 2, 2**14), np.linspace(-126, 0, 2**14)]).astype(np.float32)
    found = np.empty_like(exponents)
    powers(exponents, found, is_rough)
    assert np.abs(found / np.exp2(exponents.astype(np.float64)) - 1).max() < error
    assert found[exponents == 0] == 1


def test_rough_powers_drift_little_over_a_long_memory():
    """A product of 16,384 decays: time steps in bfloat16 may be off by 2^-9 each, which alone gives 2 %."""
    exponents = np.full(16 * 1024, -1e-3, np.float32)
    found = np.empty_like(exponents)
    powers(exponents, found, True)
    exact = np.exp2(exponents.astype(np.float64).sum())
    assert abs(np.prod(found.astype(np.float64)) / exact - 1) < 2**-8


def test_what_is_flushed_is_smaller_than_the_bound():
    tiny = float(np.finfo(np.float32).smallest_subnormal)
    numbers = np.array([0, 1, -1, NEGLIGIBLE, -NEGLIGIBLE, np.inf, -np.inf, np.nan] * 2, np.float32)
    numbers[LANES // 2 : LANES // 2 + 4] = [tiny, -tiny, NEGLIGIBLE / 2, -NEGLIGIBLE / 2]
    found, wanted = np.empty_like(numbers), numbers.copy()
    wanted[LANES // 2 : LANES // 2 + 4] = 0
    flush_numbers(numbers, found)
    np.testing.assert_array_equal(found, wanted)
