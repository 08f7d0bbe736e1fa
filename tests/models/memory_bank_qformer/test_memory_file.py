"""Files of memories: a field that does not fit the others is refused, and named."""

import json
import os

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from hf_video import MemoryBank, replay_memory

from .memory_bank_qformer_testing import random_frames, random_text, tiny_model

LENGTH, BATCH_SIZE, NUM_FRAMES = 3, 2, 7
NAN, INFINITY = float("nan"), float("inf")


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


def at(name, index, value):
    """A change of one number of a tensor."""

    def change(header, tensors):
        tensors[name][index] = value

    return change


def to(name, function):
    """A change of a whole tensor."""

    def change(header, tensors):
        tensors[name] = function(tensors[name]).contiguous()

    return change


def without(*names):
    def change(header, tensors):
        for name in names:
            del tensors[name]

    return change


def settings(**values):
    def change(header, tensors):
        header.update(values)

    return change


def without_layer_0(header, tensors):
    for name in [name for name in tensors if name.startswith("0.")]:
        tensors[f"5.{name[2:]}"] = tensors.pop(name)


TAMPERED = {
    "length of text": (settings(length="3"), "length must be a whole number"),
    "length 0": (settings(length=0), "length must be a whole number"),
    "length true": (settings(length=True), "length must be a whole number"),
    "length of another memory": (settings(length=4), r"slots must have the shape \(2, 5, any, any\)"),
    "length without end": (settings(length=10**12), "slots must have the shape"),
    "no length": (settings(length=None), "length must be a whole number"),
    "policy of another name": (settings(policy="lifo"), "policy must be one of merge, fifo, uniform, got 'lifo'"),
    "policy of a list": (settings(policy=["merge"]), "policy must be one of"),
    "origin of text": (settings(origin="here"), "origin must be a JSON object"),
    "no frames_seen": (without("frames_seen"), "frames_seen must be there"),
    "frames_seen of floats": (to("frames_seen", torch.Tensor.float), "frames_seen must be torch.int64"),
    "frames_seen of one video": (to("frames_seen", lambda seen: seen[:1]), r"slots must have the shape \(1, "),
    "frames_seen as a number": (to("frames_seen", lambda seen: seen[0]), "frames_seen must have the shape"),
    "fewer frames_seen": (at("frames_seen", 1, 2), "num_entries must be 1 to 3"),
    "last_queries of integers": (to("last_queries", torch.Tensor.long), "last_queries must be torch.float32"),
    "fewer last_queries": (to("last_queries", lambda queries: queries[:, :1]), "text_ids must have the shape"),
    "narrow last_queries": (to("last_queries", lambda queries: queries[..., :1]), "last_queries must have the shape"),
    "text_ids of floats": (to("text_ids", torch.Tensor.float), "text_ids must be torch.int64"),
    "shorter text_ids": (to("text_ids", lambda ids: ids[:, 1:]), "text_ids must have the shape"),
    "slots of half precision": (to("0.slots", torch.Tensor.half), "0.slots must be torch.float32 or torch.float64"),
    "slots of another shape": (to("0.slots", lambda slots: slots.flatten(2)), "0.slots must have the shape"),
    "slots of fewer positions": (to("1.slots", lambda slots: slots[:, :, :1]), "1.order must have the shape"),
    "order twice": (at("visual.order", (0, 0, 0), 1), "visual.order must have each of 0 to 3 once"),
    "order out of range": (at("0.order", (0, 0, 0), 10**6), "0.order must have each of 0 to 3 once"),
    "order below 0": (at("0.order", (1, 0, 0), -1), "0.order must have each of 0 to 3 once"),
    "order of int32": (to("0.order", torch.Tensor.int), "0.order must be torch.int64"),
    "a similarity with NaN": (at("0.similarities", (0, 0, 0), NAN), "0.similarities must be from -1 to 1"),
    "a similarity above 1": (at("visual.similarities", (0, 0, 0), 2), "visual.similarities must be from -1 to 1"),
    "similarities of another dtype": (
        to("0.similarities", torch.Tensor.double),
        "0.similarities must be torch.float32",
    ),
    "too many entries": (at("0.num_entries", 0, LENGTH + 1), "0.num_entries must be 1 to 3"),
    "no entries": (at("visual.num_entries", 0, 0), "visual.num_entries must be 1 to 3"),
    "entries of one video": (to("0.num_entries", lambda numbers: numbers[:1]), "0.num_entries must have the shape"),
    "no order": (without("0.order"), "bank 0 must have num_entries, order, similarities, slot_counts, slots"),
    "a gap between layers": (without_layer_0, "the banks must be visual, and 0, 1, ... without a gap"),
    "a tensor more": (lambda header, tensors: tensors.update(a=torch.zeros(1)), "its tensors must be .*, got {'a'}"),
    "a bank more": (lambda header, tensors: tensors.update({"a.b": torch.zeros(1)}), "the banks must be visual"),
}


@pytest.mark.parametrize("case", TAMPERED)
def test_a_field_that_does_not_fit_is_named(sound, tmp_path, case):
    _, header, tensors = sound
    header, tensors = dict(header), {name: tensor.clone() for name, tensor in tensors.items()}
    change, message = TAMPERED[case]
    change(header, tensors)
    save_file(tensors, tmp_path / "memory", {"memory_bank": json.dumps(header)})
    with pytest.raises(ValueError, match=f"memory is damaged, or not as .*: .*{message}"):
        MemoryBank.load(tmp_path / "memory")


@pytest.mark.parametrize("header", ["{", "[]", "3", "[" * 100_000, '{"policy": "merge"}'])
def test_a_header_that_is_none_is_refused(sound, tmp_path, header):
    save_file(sound[2], tmp_path / "memory", {"memory_bank": header})
    with pytest.raises(ValueError, match="memory is damaged"):
        MemoryBank.load(tmp_path / "memory")


@pytest.mark.parametrize("part", [0, 4, 8, 0.1, 0.5, 0.999])
def test_a_part_of_a_file_is_no_memory(sound, tmp_path, part):
    content = sound[0].read_bytes()
    (tmp_path / "memory").write_bytes(content[: part if isinstance(part, int) else int(part * len(content))])
    with pytest.raises(ValueError, match="memory is not a file that `MemoryBank.save` wrote, or is damaged"):
        MemoryBank.load(tmp_path / "memory")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no FIFOs")
def test_what_is_no_file_is_refused_without_waiting(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    for path in (tmp_path, tmp_path / "fifo"):
        with pytest.raises(ValueError, match="is not a regular file"):
            MemoryBank.load(path)
    with pytest.raises(FileNotFoundError):
        MemoryBank.load(tmp_path / "missing")


@torch.no_grad()
def test_a_memory_that_answers_another_question_can_be_saved(sound, tmp_path):
    """Its counts are not whole numbers."""
    memory, _ = replay_memory(tiny_model(), MemoryBank.load(sound[0]), **random_text(BATCH_SIZE, length=4))
    memory.save(tmp_path / "memory")
    assert MemoryBank.load(tmp_path / "memory").frames_seen.tolist() == [NUM_FRAMES] * BATCH_SIZE


@pytest.mark.parametrize("length", [1, 2, 5])
def test_a_memory_of_another_length_can_be_saved(sound, tmp_path, length):
    memory = MemoryBank.load(sound[0])
    memory.resize(length)
    memory.save(tmp_path / "memory")
    loaded = MemoryBank.load(tmp_path / "memory")
    assert torch.equal(loaded.visual.states, memory.visual.states) and loaded.length == length


@pytest.mark.parametrize("policy", ["fifo", "uniform"])
@torch.no_grad()
def test_an_infinite_frame_that_leaves_again_can_be_saved(tmp_path, policy):
    memory = MemoryBank(LENGTH, policy)
    memory.prepare(1, (2, 4), [], torch.float32, torch.device("cpu"))
    for frame in (1.0, INFINITY, 3.0):
        memory.append(torch.full((1, 2, 4), frame), [], torch.zeros(1, 1, 4))
    memory.save(tmp_path / "memory")
    assert MemoryBank.load(tmp_path / "memory").visual.states.isinf().any()
