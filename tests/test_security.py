"""Each promise of SECURITY.md names tests that hold it, and the tests are there."""

import re
from pathlib import Path

import torch

from hf_video import VideoViTForVideoClassification

from .models.memory_bank_qformer.memory_bank_qformer_testing import random_frames, tiny_model
from .models.videovit.videovit_testing import tiny_config

ROOT = Path(__file__).parents[1]


def test_each_promise_is_held_by_tests_that_exist():
    trusted = (ROOT / "SECURITY.md").read_text().partition("## What is trusted")[2].partition("\n## ")[0]
    promises = trusted.split("\n- ")[1:]
    assert promises
    for promise in promises:
        named = re.findall(r"`(tests/[\w/]+\.py)::(test_\w+)`", promise)
        assert named, promise
        for file, name in named:
            assert (ROOT / file).is_file() and f"def {name}(" in (ROOT / file).read_text(), f"{file}::{name}"


def test_models_and_memories_are_written_as_safetensors(tmp_path):
    """A pickle begins with the byte 0x80, and a file of `torch.save` is a zip."""
    VideoViTForVideoClassification(tiny_config()).save_pretrained(tmp_path / "model")
    model = tiny_model()
    with torch.no_grad():
        memory = model(vision_embeds=random_frames(), use_memory=True).memory
    memory.save(tmp_path / "memory.safetensors")
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert {path.suffix for path in files} == {".json", ".safetensors"}
    assert not [path for path in files if path.read_bytes()[:1] == b"\x80" or path.read_bytes()[:2] == b"PK"]
