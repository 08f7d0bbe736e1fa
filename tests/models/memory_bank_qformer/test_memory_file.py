"""Files of memories: a field that does not fit the others is refused, and named."""

import json

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from hf_video import MemoryBank, replay_memory

from .memory_bank_qformer_testing import random_frames, random_text, tiny_model

LENGTH, BATCH_SIZE, NUM_FRAMES = 3, 2, 7


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    """A file of two videos, its header, and its tensors."""
    path = tmp_path_factory.mktemp("memory") / "sound"
    with torch.no_grad():
        outputs = tiny_model()(vision_embeds=random_frames(BATCH_SIZE, NUM_FRAMES), **random_text(BATCH_SIZE))
    outputs.memory.save(path)
    with safe_open(path, "pt") as file:
        header = json.loads(file.metadata()["memory_bank"])
    return path, header, load_file(path)


def change_policy(header, tensors):
    header["policy"] = "lifo"


def change_frames_seen(header, tensors):
    tensors["frames_seen"] = tensors["frames_seen"].float()


def change_order(header, tensors):
    tensors["0.order"][0, 0, 0] = 10**6


def leave_out_order(header, tensors):
    del tensors["0.order"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (change_policy, "policy must be one of merge, fifo, uniform, got 'lifo'"),
        (change_frames_seen, "frames_seen must be torch.int64"),
        (change_order, "0.order must have each of 0 to 3 once"),
        (leave_out_order, "bank 0 must have num_entries, order"),
    ],
)
def test_a_field_that_does_not_fit_is_named(sound, tmp_path, change, message):
    _, header, tensors = sound
    header, tensors = dict(header), {name: tensor.clone() for name, tensor in tensors.items()}
    change(header, tensors)
    save_file(tensors, tmp_path / "memory", {"memory_bank": json.dumps(header)})
    with pytest.raises(ValueError, match=message):
        MemoryBank.load(tmp_path / "memory")


@pytest.mark.parametrize("part", [0, 8, 0.5])
def test_a_part_of_a_file_is_no_memory(sound, tmp_path, part):
    content = sound[0].read_bytes()
    (tmp_path / "memory").write_bytes(content[: part if isinstance(part, int) else int(part * len(content))])
    with pytest.raises(ValueError, match="memory is not a file that `MemoryBank.save` wrote, or is damaged"):
        MemoryBank.load(tmp_path / "memory")


@torch.no_grad()
def test_a_memory_that_answers_another_question_can_be_saved(sound, tmp_path):
    """Its counts are not whole numbers."""
    memory, _ = replay_memory(tiny_model(), MemoryBank.load(sound[0]), **random_text(BATCH_SIZE, length=4))
    memory.save(tmp_path / "memory")
    assert MemoryBank.load(tmp_path / "memory").frames_seen.tolist() == [NUM_FRAMES] * BATCH_SIZE


@pytest.mark.parametrize("length", [1, 5])
def test_a_memory_of_another_length_can_be_saved(sound, tmp_path, length):
    memory = MemoryBank.load(sound[0])
    memory.resize(length)
    memory.save(tmp_path / "memory")
    loaded = MemoryBank.load(tmp_path / "memory")
    assert torch.equal(loaded.visual.states, memory.visual.states) and loaded.length == length
