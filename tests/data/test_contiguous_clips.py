"""The order of clips for training with carried states."""

import numpy as np
import pytest
from accelerate.data_loader import BatchSamplerShard
from torch.utils.data import BatchSampler

from hf_video.data.contiguous_clips import ContiguousSampler

from .frame_videos import blank_clips


def steps(sampler, batch_size, num_processes=1, process_index=0):
    batches = BatchSampler(sampler, batch_size, drop_last=False)
    return list(BatchSamplerShard(batches, num_processes, process_index))


def test_each_row_of_a_step_goes_on_with_the_row_of_the_step_before():
    # 5, 3 and 4 whole clips; the shorter ones behind them are left out.
    clips = blank_clips([20, 14, 17], num_frames=4)
    sampler = ContiguousSampler(clips, 3, seed=0)
    found = np.array(steps(sampler, 3))
    assert found.shape == (4, 3, 2) and len(sampler) == 12
    rows, first_rows = found[..., 0], found[..., 1]
    assert sorted(rows.flatten()) == [0, 1, 2, 3, 4, 5, 6, 7, 9, 10, 11, 12]
    goes_on = rows > first_rows
    assert goes_on[1:].any() and not goes_on[0].any()
    assert (rows[1:] == rows[:-1] + 1)[goes_on[1:]].all() and (first_rows[1:] == first_rows[:-1])[goes_on[1:]].all()
    # Where a row does not go on, another video begins with its first clip.
    begins = ~goes_on[1:]
    assert (rows[1:] == first_rows[1:])[begins].all() and {*rows[1:][begins].tolist()} <= {0, 5, 9}


def test_two_processes_share_the_rows():
    clips = blank_clips([40, 24, 33], num_frames=4)
    one = np.array(steps(ContiguousSampler(clips, 4, seed=0), 4))
    two = [np.array(steps(ContiguousSampler(clips, 4, seed=0), 2, 2, process)) for process in (0, 1)]
    np.testing.assert_array_equal(np.concatenate(two, axis=1), one)


def test_the_order_of_videos_depends_on_seed_and_epoch():
    clips = blank_clips([8] * 9, num_frames=4)
    first, again, other = (list(ContiguousSampler(clips, 1, seed=seed)) for seed in (0, 0, 1))
    clips.set_epoch(1)
    later = list(ContiguousSampler(clips, 1, seed=0))
    assert first == again and len({tuple(order) for order in (first, other, later)}) == 3
    assert [clip.row for clip in first] != sorted(clip.row for clip in first)


def test_other_clips_are_left_out_in_another_epoch():
    clips, seen = blank_clips([28], num_frames=4), set()
    for epoch in range(10):
        clips.set_epoch(epoch)
        rows = [clip.row for clip in ContiguousSampler(clips, 5, seed=0)]
        assert rows == list(range(rows[0], rows[0] + 5))
        seen |= {*rows}
    assert seen == {*range(7)}


def test_a_row_begins_anew_behind_a_clip_without_a_known_label():
    clips = blank_clips([24], num_frames=4, segments=[(0, 8), (12, 24)])
    assert sorted(ContiguousSampler(clips, 1, seed=0)) == [(0, 0), (1, 0), (2, 2), (3, 2), (4, 2)]


def test_clips_that_cannot_follow_each_other_are_refused():
    with pytest.raises(ValueError, match="overlap"):
        ContiguousSampler(blank_clips([16], num_frames=4, overlap=0.5), 1, seed=0)
    with pytest.raises(ValueError, match="3 whole clips of 4 frames do not fill a step of 4 rows"):
        ContiguousSampler(blank_clips([15], num_frames=4), 4, seed=0)
