"""The frames of each entry are those that were merged into it."""

import numpy as np
import pytest
import torch
from PIL import Image

from hf_video import MemoryBank, draw_memory
from hf_video.drawing.memory_picture import frames_of_entries

from .memory_bank_qformer_testing import random_frames, tiny_model


def one_hot_memory(policy, num_frames, length=4):
    """A memory of frames that have a channel each, so that the states show which frames were merged."""
    memory = MemoryBank(length, policy)
    memory.prepare(1, (5, num_frames), [], torch.float32, torch.device("cpu"))
    noise = torch.rand(num_frames, 5, 1, generator=torch.Generator().manual_seed(0))
    for t in range(num_frames):
        memory.visual.append((torch.eye(num_frames)[t] * (1 + noise[t]))[None] + 1e-3 * t)
        memory.frames_seen += 1
    return memory


@pytest.mark.parametrize(("policy", "num_frames"), [("merge", 3), ("merge", 17), ("fifo", 17)])
def test_the_shares_are_those_of_the_states(policy, num_frames):
    memory = one_hot_memory(policy, num_frames)
    share = frames_of_entries(memory)
    holds = (memory.visual.states[0] > 0.05).float().mean(1)
    assert torch.allclose(share, holds)
    forgotten = max(num_frames - 4, 0) if policy == "fifo" else 0
    assert share.sum(0).tolist() == pytest.approx([0.0] * forgotten + [1.0] * (num_frames - forgotten))


def test_entries_that_stand_for_others_are_shown_with_them():
    share = frames_of_entries(one_hot_memory("uniform", 16))
    assert share.sum(0).tolist() == pytest.approx([1.0] * 16)
    assert (share.diff(dim=1).clamp(min=0).sum(1) <= 1).all()


@torch.no_grad()
def test_a_memory_of_a_model_is_drawn_with_its_frames(tmp_path):
    memory = tiny_model(memory_bank_length=4)(vision_embeds=random_frames(2, 9)).memory
    asked = []

    def read_images(frames):
        asked.extend(frames)
        return [np.full((12, 16, 3), 20 * frame, np.uint8) for frame in frames]

    draw_memory(memory, tmp_path / "plain.png", video=1)
    draw_memory(memory, tmp_path / "images.png", read_images, seconds=[0.5 * t for t in range(9)])
    assert asked == sorted(set(asked)) and 0 in asked and 8 in asked
    plain, images = (Image.open(tmp_path / f"{name}.png") for name in ("plain", "images"))
    assert images.width > plain.width


@pytest.mark.parametrize("name", ["memory.xyz", "memory"])
def test_endings_of_no_format_are_refused(tmp_path, name):
    with pytest.raises(ValueError, match=f"{name} should end in a format of pictures, one of .*png"):
        draw_memory(one_hot_memory("merge", 3), tmp_path / name)
    assert not list(tmp_path.iterdir())


def test_a_memory_without_frames_is_refused(tmp_path):
    with pytest.raises(ValueError, match="holds no frames"):
        draw_memory(MemoryBank(3), tmp_path / "none.png")
    assert not list(tmp_path.iterdir())
