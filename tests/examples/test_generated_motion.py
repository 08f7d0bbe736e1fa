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
    clips = generated.draw_clips(192, seed=0)
    assert clips.frames.shape == (192, 8, 3, 64, 64) and clips.frames.dtype == torch.float32
    assert clips.frames.min() >= 0 and clips.frames.max() <= 1
    assert clips.flow.shape == (192, 256, 2) and clips.is_object.shape == (192, 256)
    assert clips.kinds.shape == (192, len(generated.MOTIONS)) and clips.textures.shape == (192, 2)
    assert clips.values.shape == (192, len(generated.VALUES))
    limits = torch.tensor(list(generated.VALUES.values()))
    assert (clips.values.nan_to_num(0).abs() <= limits).all()
    for indices, count in (
        (clips.kinds, len(generated.KINDS)),
        (clips.shape, generated.NUM_SHAPES),
        (clips.textures, len(importlib.import_module("generated_pictures").TEXTURES)),
    ):
        assert ((indices == generated.UNKNOWN) | ((indices >= 0) & (indices < count))).all()
    assert set(clips.kinds[:, 0].tolist()) >= set(range(len(generated.KINDS)))
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


def test_a_ground_that_moves_under_a_still_object(generated):
    frames, flow, is_object = make_scene(generated, ground=(0.0, -3.0, 0.0, 0.0)).render()
    assert (flow[0][is_object[0] > 0] == 0).all()
    torch.testing.assert_close(flow[0][is_object[0] == 0].mean(dim=0), torch.tensor([0.0, -3.0]))
    torch.testing.assert_close(frames[0, 4, :, 2:5, :], frames[0, 3, :, 5:8, :], atol=1e-4, rtol=0)


def test_growth_leads_away_from_the_middle_and_turns_are_clockwise(generated):
    growing = make_scene(generated, main=(0.0, 0.0, 0.1, 0.0)).render()[1].view(4, 8, 8, 2)
    turning = make_scene(generated, main=(0.0, 0.0, 0.0, 0.1)).render()[1].view(4, 8, 8, 2)
    # The token right of the middle, whose middle is four pixels right and below.
    size, angle = math.exp(0.1) - 1, 0.1
    expected = 4 * torch.tensor([math.cos(angle) - math.sin(angle) - 1, math.cos(angle) + math.sin(angle) - 1])
    torch.testing.assert_close(growing[2, 4, 4], torch.tensor([4 * size, 4 * size]))
    torch.testing.assert_close(turning[2, 4, 4], expected)
    assert turning[2, 4, 4, 1] > 0 > turning[2, 4, 4, 0]


def test_a_ground_without_contrast_has_no_known_motion(generated):
    flow, is_object = make_scene(generated, ground=(3.0, 0.0, 0.0, 0.0), contrast=0.0).render()[1:]
    assert torch.equal(flow.isnan().any(dim=-1), is_object == 0)
    easy = generated.draw_clips(16, seed=0, level=0.0, scenes=("object", "all"))
    assert (easy.kinds[:, 3:] == generated.UNKNOWN).all() and (easy.textures[:, 1] == generated.UNKNOWN).all()


def test_values_are_those_of_the_motion(generated):
    """Where an object is in the first and the last frame follows from its rates."""
    generator = torch.Generator().manual_seed(0)
    none = torch.zeros(200, dtype=torch.bool)
    motion = generated.draw_motion(generated.OBJECT_LIMITS, (1.0, 1.0, 1.0), none, none, generator)
    poses = motion.poses(torch.zeros(200, 4))
    torch.testing.assert_close(poses.mean(dim=1), torch.zeros(200, 4), atol=1e-4, rtol=0)
    torch.testing.assert_close(poses[:, -1] - poses[:, 0], motion.rates.sum(dim=1), atol=1e-4, rtol=0)
    speed = motion.rates[..., :2].norm(dim=-1)
    of_kind = {kind: motion.kinds[:, 0] == index for index, kind in enumerate(generated.KINDS)}
    assert not of_kind["still"].any()
    assert (speed[of_kind["steady"]].std(dim=1) < 1e-4).all()
    assert (speed[of_kind["faster"]].diff(dim=1) >= 0).all()
    assert (speed[of_kind["stops"]][:, -1] == 0).all() and (speed[of_kind["stops"]][:, 0] > 0).all()
    turns_round = motion.rates[of_kind["back"], :, :2]
    assert ((turns_round[:, 0] * turns_round[:, -1]).sum(dim=-1) < 0).all()


def test_a_scene_has_one_thing_to_see(generated):
    object_rates, ground_rates = slice(0, 8), slice(8, 16)
    form = generated.draw_clips(32, seed=0, scenes=("form",))
    assert (form.shape >= 0).all() and (form.values[:, ground_rates].nan_to_num() == 0).all()
    assert form.values[:, :2].abs().max() <= 0.2 * generated.OBJECT_LIMITS[0]
    camera = generated.draw_clips(32, seed=0, scenes=("camera",))
    assert (camera.shape == generated.UNKNOWN).all() and camera.values[:, object_rates].isnan().all()
    moving = generated.draw_clips(32, seed=0, scenes=("object",))
    assert (moving.shape >= 0).all() and (moving.values[:, ground_rates].nan_to_num() == 0).all()
    still = generated.KINDS.index("still")
    for kinds in (camera.kinds[:, 3:], moving.kinds[:, :3]):
        changes = (kinds != still).sum(dim=1)
        assert set(changes.tolist()) == {0, 1}


def test_short_clips_are_the_beginning_and_tell_no_rates(generated):
    short, whole = (generated.draw_clips(8, seed=3, num_frames=number) for number in (2, 8))
    assert short.frames.shape == (8, 2, 3, 64, 64) and short.flow.shape == (8, 64, 2)
    assert torch.equal(short.shape, whole.shape) and torch.equal(short.textures, whole.textures)
    torch.testing.assert_close(short.flow, whole.flow[:, :64], equal_nan=True)
    assert short.values[:, :16].isnan().all() and (short.kinds == generated.UNKNOWN).all()
    assert not short.values[short.shape >= 0, 16:].isnan().any()
