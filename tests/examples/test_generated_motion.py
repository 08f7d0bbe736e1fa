"""Generated clips follow from their seed, and their targets say what their frames show."""

import importlib
import math
from pathlib import Path

import pytest
import torch

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def generated(monkeypatch):
    monkeypatch.syspath_prepend(EXAMPLES)
    return importlib.import_module("generated_motion")


def make_scene(generated, *, ground=(0.0, 0.0, 0.0, 0.0), main=(0.0, 0.0, 0.0, 0.0), contrast=1.0):
    """One clip of a noisy ground with a square object of 24 pixels, and with the given rates in every step."""
    generator = torch.Generator().manual_seed(0)
    texture = torch.rand((1, 3, generated.GROUND_SIZE, generated.GROUND_SIZE), generator=generator)
    square = torch.rand((1, 3, generated.OBJECT_SIZE, generated.OBJECT_SIZE), generator=generator)
    opaque = torch.ones(1, 1, generated.OBJECT_SIZE, generated.OBJECT_SIZE)
    poses = []
    for rates in (ground, main):
        steps = torch.tensor(rates).expand(1, generated.STEPS, 4)
        poses.append(generated.Motion(steps, torch.zeros(1, 3, dtype=torch.long)).poses(torch.zeros(1, 4)))
    return generated.Scene(
        ground=texture,
        contrast=torch.tensor([contrast]),
        objects=[torch.cat([square, opaque], dim=1)],
        poses=poses,
        # One pixel is a texel of the object.
        extents=[torch.tensor([generated.GROUND_EXTENT]), torch.tensor([generated.OBJECT_SIZE / 2.0])],
    )


def test_the_seed_decides_every_bit(generated):
    torch.manual_seed(1)
    first = generated.draw_clips(3, seed=7)
    torch.manual_seed(2)
    again, other = generated.draw_clips(3, seed=7), generated.draw_clips(3, seed=8)
    for name, value in vars(first).items():
        assert torch.equal(value.nan_to_num(9), vars(again)[name].nan_to_num(9)), name
    assert not torch.equal(first.frames, other.frames)


def test_shapes_and_ranges(generated):
    clips = generated.draw_clips(64, seed=0)
    assert clips.frames.shape == (64, 8, 3, 64, 64) and clips.frames.min() >= 0 and clips.frames.max() <= 1
    assert clips.flow.shape == (64, 256, 2) and clips.is_object.shape == (64, 256)
    limits = torch.tensor(list(generated.VALUES.values()))
    assert (clips.values.nan_to_num(0).abs() <= limits).all()
    assert torch.equal(clips.shape == generated.UNKNOWN, clips.values[:, 0].isnan())
    assert 0.05 < clips.is_object.mean() < 0.6


def test_an_object_that_moves_right_by_two_pixels(generated):
    frames, flow, is_object = make_scene(generated, main=(2.0, 0.0, 0.0, 0.0)).render()
    on_object = flow[0][is_object[0] > 0]
    assert len(on_object) > 0
    torch.testing.assert_close(on_object, torch.tensor([2.0, 0.0]).expand_as(on_object))
    assert (flow[0][is_object[0] == 0] == 0).all()
    # The middle of the object is seen two pixels further on.
    before, after = frames[0, 3, :, 28:36, 28:36], frames[0, 4, :, 28:36, 30:38]
    torch.testing.assert_close(after, before, atol=1e-4, rtol=0)
    assert not torch.allclose(frames[0, 4, :, 28:36, 28:36], before, atol=0.1)


def test_growth_leads_away_from_the_middle_and_turns_are_clockwise(generated):
    growing = make_scene(generated, main=(0.0, 0.0, 0.1, 0.0)).render()[1].view(4, 8, 8, 2)
    turning = make_scene(generated, main=(0.0, 0.0, 0.0, 0.1)).render()[1].view(4, 8, 8, 2)
    # The token right of the middle, whose middle is four pixels right and below.
    size, angle = math.exp(0.1) - 1, 0.1
    expected = 4 * torch.tensor([math.cos(angle) - math.sin(angle) - 1, math.cos(angle) + math.sin(angle) - 1])
    torch.testing.assert_close(growing[2, 4, 4], torch.tensor([4 * size, 4 * size]))
    torch.testing.assert_close(turning[2, 4, 4], expected)
    assert turning[2, 4, 4, 1] > 0 > turning[2, 4, 4, 0]
