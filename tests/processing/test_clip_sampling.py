import json

import numpy as np
import pytest

from hf_video.processing.clip_sampling import SAMPLING_STRATEGIES, sample_clip_indices
from tests.testing.goldens import FIXTURES, load_golden

ROWS = json.loads((FIXTURES / "clip_sampling.json").read_text())["rows"]
NUMBERS = {"total_num_frames": 10, "num_frames": 4, "frame_sampling_rate": 1, "num_clips": 1}
WITH_TEXT = load_golden("video_text", "text_frames_preprocess").config["frames"]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row['strategy']}-{row['total_num_frames']}")
def test_matches_the_original_samplers(row):
    row = dict(row)
    expected = row.pop("indices")
    indices = sample_clip_indices(row.pop("strategy"), **row)
    assert indices.tolist() == expected
    assert indices.dtype == np.int64


@pytest.mark.parametrize("row", WITH_TEXT, ids=lambda row: f"{row['sample']}-{row['length']}")
def test_middle_clips_are_those_of_videomamba_with_text(row):
    def draw(num_clips, generator=None):
        return sample_clip_indices(
            "middle", row["length"], row["num_frames"], num_clips=num_clips, generator=generator
        )

    if row["sample"] == "middle" and "fix_start_ignored" not in row:
        assert draw(1).tolist() == [row["indices"]]
        assert draw(3)[1].tolist() == row["indices"]
    elif row["sample"] == "rand":
        drawn = draw(4000, np.random.default_rng(0))
        assert (drawn.min(axis=0).tolist(), drawn.max(axis=0).tolist()) == (row["lowest"], row["highest"])


def test_strided_clips_share_the_grid_of_the_sampling_rate_and_tsn_clips_of_evaluation_are_uniform():
    # VideoMAE: starts int(i * (75 - 16) / 4) in the list of every fourth frame of 300.
    indices = sample_clip_indices("strided", 300, 16, 4, 5)
    assert indices[:, 0].tolist() == [4 * start for start in (0, 14, 29, 44, 59)]
    assert (np.diff(indices) == 4).all()
    for num_clips in (1, 2):
        tsn, uniform = (sample_clip_indices(name, 50, 8, num_clips=num_clips) for name in ("tsn", "uniform"))
        assert np.array_equal(tsn, uniform)


@pytest.mark.parametrize("strategy", SAMPLING_STRATEGIES)
@pytest.mark.parametrize("random", [False, True])
def test_indices_rise_inside_the_video(strategy, random):
    generator = np.random.default_rng(0) if random else None
    for total_num_frames in (1, 2, 7, 64, 301):
        for num_frames in (1, 4, 16):
            for rate in (1, 4, 1.7):
                for num_clips in (1, 2, 5):
                    layout = total_num_frames, num_frames, rate, num_clips
                    indices = sample_clip_indices(strategy, *layout, generator=generator)
                    assert indices.shape == (num_clips, num_frames)
                    assert 0 <= indices.min() and indices.max() < total_num_frames
                    assert (np.diff(indices) >= 0).all()


@pytest.mark.parametrize("rate", [2, 3, 4])
@pytest.mark.parametrize("num_frames", [5, 7, 16])
def test_random_strided_clips_are_those_of_the_original(num_frames, rate):
    """`loadvideo_decord` of VideoMAE's `kinetics.py` in training, which VideoMamba shares."""
    length = num_frames * rate
    for total in (1, rate, rate + 1, length - 1, length, length + 1, length + 20):
        if total <= length:
            kept = total // rate
            clip = [*np.linspace(0, total, kept), *[total] * (num_frames - kept)]
            expected = {tuple(int(min(frame, total - 1)) for frame in clip)}
        else:
            clips = [np.linspace(end - length, end, num_frames) for end in range(length, total)]
            expected = {tuple(int(min(frame, clip[-1] - 1)) for frame in clip) for clip in clips}
        generator = np.random.default_rng(0)
        drawn = sample_clip_indices("strided", total, num_frames, rate, 500, generator=generator)
        assert {tuple(clip) for clip in drawn.tolist()} == expected


@pytest.mark.parametrize("total", [1, 7, 8, 15, 16, 17, 37])
def test_random_tsn_clips_are_those_of_the_original(total):
    """`loadvideo_decord` of `ssv2.py` of VideoMAE and VideoMamba in training."""
    segment = total // 8
    drawn = sample_clip_indices("tsn", total, 8, num_clips=500, generator=np.random.default_rng(0))
    for k, frames in enumerate(drawn.T):
        assert set(frames.tolist()) == (set(range(k * segment, (k + 1) * segment)) if segment else {0})


@pytest.mark.parametrize("total", [1, 2, 7, 8, 9, 17])
def test_random_padded_tsn_clips_are_those_of_the_original(total):
    """`load_frame` of `RawFrameClsDataset` of VideoMAE V2 in training."""
    drawn, tsn = (
        sample_clip_indices(name, total, 8, num_clips=50, generator=np.random.default_rng(0))
        for name in ("padded_tsn", "tsn")
    )
    assert np.array_equal(drawn, tsn if total >= 8 else [[0] * (8 - total) + list(range(total))] * 50)


@pytest.mark.parametrize("name", ["tsn", "padded_tsn"])
@pytest.mark.parametrize("num_clips", [1, 2])
def test_tsn_clips_of_evaluation_are_uniform(num_clips, name):
    for total in (5, 50):
        tsn, uniform = (sample_clip_indices(each, total, 8, num_clips=num_clips) for each in (name, "uniform"))
        assert np.array_equal(tsn, uniform)


@pytest.mark.parametrize(
    "borders",
    [
        [0, 0, 1, 1, 2, 3, 3, 4, 4, 5, 6, 6, 7, 7, 8, 9, 9, 10, 10, 11, 12],
        [0, 2, 5, 8, 11, 14, 17, 19, 22, 25, 28, 31, 34, 37, 39, 42, 45, 48, 51, 54, 57],
    ],
)
@pytest.mark.parametrize("strategy", ["linspace", "uniform"])
def test_random_spread_clips_take_one_frame_of_each_segment(strategy, borders):
    indices = sample_clip_indices(strategy, borders[-1], 20, num_clips=500, generator=np.random.default_rng(0))
    for k, drawn in enumerate(indices.T):
        assert set(drawn.tolist()) == set(range(borders[k], borders[k + 1])) or set(drawn.tolist()) == {borders[k]}


def test_random_sparse_clips_reach_the_rounded_borders():
    indices = sample_clip_indices("sparse", 37, 8, num_clips=1000, generator=np.random.default_rng(0))
    borders = np.rint(4.5 * np.arange(9)).astype(int).tolist()
    for k, drawn in enumerate(indices.T):
        assert set(drawn.tolist()) == set(range(borders[k], borders[k + 1] + 1))


@pytest.mark.parametrize("strategy, shortest", [("dense", 29), ("strided", 29), ("uniform", 8), ("linspace", 8)])
def test_short_videos_repeat_frames_only_when_allowed(strategy, shortest):
    sample_clip_indices(strategy, shortest, 8, 4, repeat_last_frame=False)
    assert sample_clip_indices(strategy, shortest - 1, 8, 4).shape == (1, 8)
    with pytest.raises(ValueError, match=f"only {shortest - 1}.*repeat_last_frame=True"):
        sample_clip_indices(strategy, shortest - 1, 8, 4, repeat_last_frame=False)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        *(({name: 0}, f"{name}=0 must be positive") for name in NUMBERS),
        ({"sampling_strategy": "densely"}, "'densely'.*uniform"),
    ],
)
def test_wrong_layouts_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        sample_clip_indices(**{"sampling_strategy": "dense"} | NUMBERS | options)


@pytest.mark.parametrize("total_num_frames", [1, 2, 5, 40, 60, 61, 62, 63, 64])
def test_dense_training_clips_of_short_videos_are_those_of_videomae(total_num_frames):
    """`_get_frame_id_list` of VideoMAE's pre-training counts from 1, and goes on while a step ends before the last."""
    place, expected = 1, []
    for _ in range(16):
        expected.append(place - 1)
        place += 4 if place + 4 < total_num_frames else 0
    numbers = {"num_frames": 16, "frame_sampling_rate": 4, "generator": np.random.default_rng(0)}
    assert sample_clip_indices("dense", total_num_frames, **numbers)[0].tolist() == expected
