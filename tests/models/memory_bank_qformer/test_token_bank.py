"""One bank by itself: compression against the original, and what each policy keeps."""

import pytest
import torch

from hf_video.models.memory_bank_qformer.token_bank import TokenBank
from tests.testing.goldens import load_golden

COMPRESS = load_golden("memory_bank_qformer", "compress")
CASES = ("c0", "c1", "c2", "c3", "c4", "c5")


def fill(bank, num_frames, seed=0):
    generator = torch.Generator().manual_seed(seed)
    frames = torch.randn(len(bank.num_entries), num_frames, *bank.size, generator=generator)
    for frame in frames.unbind(1):
        bank.append(frame)
    return frames


def bank_of(states, counts):
    """A bank with the given entries."""
    return TokenBank.of_entries(states, counts, states.shape[1], "merge")


def empty_bank(*sizes, length, policy="merge", dtype=torch.float32):
    states = torch.zeros(sizes[0], 0, *sizes[1:], dtype=dtype)
    return TokenBank.of_entries(states, states[..., 0], length, policy)


@pytest.mark.parametrize("case", CASES)
def test_one_compression_equals_the_original(case):
    states, counts = (COMPRESS.inputs[f"{case}.{name}"] for name in ("bank", "size"))
    before = states.clone()
    bank = bank_of(states, counts)
    bank.compress()
    torch.testing.assert_close(bank.states, COMPRESS.expected[f"{case}.bank"], atol=1e-6, rtol=0)
    assert torch.equal(bank.counts, COMPRESS.expected[f"{case}.size"])
    assert torch.equal(states, before)


def test_of_equal_pairs_the_oldest_merges():
    bank = bank_of(torch.ones(1, 4, 2, 8), torch.ones(1, 4, 2))
    bank.compress()
    assert bank.counts[0, :, 0].tolist() == [2, 1, 1]


def test_fifo_is_a_window():
    bank = empty_bank(2, 5, 8, length=4, policy="fifo")
    frames = fill(bank, 11)
    assert torch.equal(bank.states, frames[:, -4:])
    assert (bank.counts == 1).all()


def test_uniform_keeps_frames_spread_over_the_video():
    bank = empty_bank(1, 1, 8, length=5, policy="uniform")
    frames = fill(bank, 200)
    kept = [int((frames[0, :, 0] == state).all(-1).nonzero()) for state in bank.states[0, :, 0]]
    assert kept == [0, *torch.cumsum(bank.counts[0, :, 0], 0)[:-1].int().tolist()]
    gaps = torch.tensor([*kept, 200]).diff()
    assert gaps.max() <= 3 * gaps.min()


def test_a_bank_of_one_is_the_mean():
    bank = empty_bank(1, 3, 8, length=1)
    frames = fill(bank, 50)
    torch.testing.assert_close(bank.states[:, 0], frames.mean(1))


def test_a_mean_over_many_half_precision_frames_stays_exact():
    bank = empty_bank(1, 3, 8, length=1, dtype=torch.bfloat16)
    frames = fill(bank, 2000).bfloat16()
    assert bank.states.dtype == torch.float32
    torch.testing.assert_close(bank.states[:, 0], frames.float().mean(1), atol=1e-2, rtol=0)


def test_shortening_one_by_one_equals_shortening_at_once():
    at_once, one_by_one = (empty_bank(2, 5, 8, length=8) for _ in range(2))
    fill(at_once, 20), fill(one_by_one, 20)
    expected = at_once.resized(3)
    for length in range(7, 2, -1):
        one_by_one = one_by_one.resized(length)
    torch.testing.assert_close(one_by_one.states, expected.states)
    assert torch.equal(one_by_one.counts, expected.counts)
