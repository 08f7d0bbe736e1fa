"""Vectors for kernels on the CPU: the error of powers of two, and flushing."""

import numpy as np
import torch

from hf_video.ops.numba_threads import as_array
from hf_video.ops.numba_vectors import LANES, NEGLIGIBLE, compiled, exp2, flush, load, store


@compiled
def powers(source, target):
    for i in range(0, len(source), LANES):
        store(target, (i,), exp2(load(source, (i,))))


@compiled
def flush_numbers(source, target):
    for i in range(0, len(source), LANES):
        store(target, (i,), flush(load(source, (i,)), NEGLIGIBLE))


def test_the_memory_of_an_array_can_still_be_resized():
    """FSDP frees the memory of gathered weights so."""
    weight = torch.nn.Parameter(torch.zeros(4))
    assert as_array(weight).ctypes.data == weight.data_ptr()
    assert weight.untyped_storage().resizable()


def test_powers_of_two():
    exponents = np.concatenate([-np.logspace(-8, 2, 2**14), np.linspace(-126, 0, 2**14)]).astype(np.float32)
    found = np.empty_like(exponents)
    powers(exponents, found)
    assert np.abs(found / np.exp2(exponents.astype(np.float64)) - 1).max() < 2e-7
    assert found[exponents == 0] == 1


def test_what_is_flushed_is_smaller_than_the_bound():
    tiny = float(np.finfo(np.float32).smallest_subnormal)
    numbers = np.array([0, 1, -1, NEGLIGIBLE, -NEGLIGIBLE, np.inf, -np.inf, np.nan] * 2, np.float32)
    numbers[LANES // 2 : LANES // 2 + 4] = [tiny, -tiny, NEGLIGIBLE / 2, -NEGLIGIBLE / 2]
    found, wanted = np.empty_like(numbers), numbers.copy()
    wanted[LANES // 2 : LANES // 2 + 4] = 0
    flush_numbers(numbers, found)
    np.testing.assert_array_equal(found, wanted)
