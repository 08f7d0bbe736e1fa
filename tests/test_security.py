"""Each promise of SECURITY.md names tests that hold it, and the tests are there."""

import ast
import re
from pathlib import Path

import torch

from hf_video import VideoViTForVideoClassification

from .models.memory_bank_qformer.memory_bank_qformer_testing import random_frames, tiny_model
from .models.videovit.videovit_testing import tiny_config

ROOT = Path(__file__).parents[1]
TEST = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)`")


def promises():
    """The items of the list under the first heading."""
    text = (ROOT / "SECURITY.md").read_text().partition("## What is trusted")[2].partition("\n## ")[0]
    return text.split("\n- ")[1:]


def names_of_tests(file):
    tree = ast.parse((ROOT / file).read_text())
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def unheld(items):
    """The promises that name no test, and the tests that are not there."""
    found = []
    for item in items:
        named = TEST.findall(item)
        found += [] if named else [item.splitlines()[0]]
        found += [
            f"{file}::{name}"
            for file, name in named
            if not (ROOT / file).is_file() or name not in names_of_tests(file)
        ]
    return found


def test_each_promise_is_held_by_tests_that_exist():
    assert len(promises()) > 10 and not unheld(promises())


def test_a_promise_without_a_test_and_a_test_that_is_missing_are_found():
    assert unheld(["**Nothing** is promised."]) == ["**Nothing** is promised."]
    assert unheld(["Held by `tests/test_security.py::test_of_nothing`."]) == [
        "tests/test_security.py::test_of_nothing"
    ]
    assert unheld(["Held by `tests/test_none.py::test_of_nothing`."]) == ["tests/test_none.py::test_of_nothing"]


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
