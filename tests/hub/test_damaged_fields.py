"""A field with a value of another type, in any file that publishing reads, is refused by its name."""

import copy
import json
import shutil

import pytest

from hf_video.hub import PublishError, publishing, stage

from .conftest import make_model

CONFIG, PROCESSOR, INDEX = "config.json", "video_preprocessor_config.json", "model.safetensors.index.json"
FACTS, REPORT = "training_facts.json", "report/metrics.json"
CONTENTS = {
    FACTS: {
        "model": "VideoViTForVideoClassification",
        "source": {"name": "org/base", "license": "mit"},
        "data": {"train": {"name": "digits", "num_videos": 3}, "validation": {"hub_id": "a/b", "revision": "0"}},
        "recipe": {"learning_rate": 1e-3},
        "clips": {"num_frames": 4},
        "views": {"num_clips": 1},
        "versions": {"python": "3.11"},
        "hardware": "CPU",
        "validation": {"eval_top1_accuracy": 0.5},
    },
    REPORT: {"split": "validation", "num_videos": 2, "top1_accuracy": 0.5},
}
# The fields that are read; of the facts and the report, all.
READ = {
    CONFIG: ("model_type", "architectures", "auto_map", "id2label", "quantization_config", "problem_type"),
    PROCESSOR: ("video_processor_type", "num_frames"),
    INDEX: ("weight_map",),
}
WRONG = (None, [1], {"a": 1}, 3)


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / "model"
    model, processor = make_model("VideoViT", list("ab"))
    model.save_pretrained(folder, max_shard_size="20KB")
    processor.save_pretrained(folder)
    (folder / "report").mkdir()
    for name, content in CONTENTS.items():
        (folder / name).write_text(json.dumps(content))
    return folder


@pytest.fixture
def staged(sound, tmp_path, monkeypatch):
    """Stages a copy of the folder with another content of one file; returns the refusal, if there is one."""
    monkeypatch.setattr(publishing, "verify", lambda *arguments, **options: {})
    folder = shutil.copytree(sound, tmp_path / "model")

    def run(name, content):
        (folder / name).write_text(json.dumps(content))
        (tmp_path / "staging").mkdir()
        try:
            stage(folder, tmp_path / "staging", "alice/model")
        except PublishError as error:
            return str(error)
        finally:
            shutil.rmtree(tmp_path / "staging")
            shutil.copy(sound / name, folder / name)

    return run


def damaged(content, wrongs, fields=()):
    """The content, and each of its values down to the leaves, replaced by each of `wrongs`; at the top, only those of
    some fields, if there are any given."""
    yield from wrongs
    if isinstance(content, dict | list):
        for key, part in content.items() if isinstance(content, dict) else enumerate(content):
            for wrong in damaged(part, wrongs) if not fields or key in fields else ():
                changed = copy.copy(content)
                changed[key] = wrong
                yield changed


@pytest.mark.parametrize("wrongs", [WRONG[1:3], pytest.param(WRONG, marks=pytest.mark.slow)], ids=str)
@pytest.mark.parametrize("name", [*READ, *CONTENTS])
def test_no_value_of_a_field_is_a_bug(name, wrongs, sound, staged):
    content = json.loads((sound / name).read_text())
    assert staged(name, content) is None
    refusals = [staged(name, wrong) for wrong in damaged(content, wrongs, READ.get(name, ()))]
    explained = (name, "The classes have no names")
    assert any(refusals) and all(any(part in refusal for part in explained) for refusal in refusals if refusal)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        (CONFIG, {"model_type": {"a": 1}}, "config.json: `model_type` must be a valid string, got {'a': 1}"),
        (CONFIG, {"architectures": 3}, "config.json: `architectures` must be a valid list, got 3"),
        (CONFIG, {"id2label": ["a"]}, "config.json: `id2label` must be a valid dictionary, got ['a']"),
        (PROCESSOR, {"video_processor_type": [1]}, f"{PROCESSOR}: `video_processor_type` must be a valid string"),
        (INDEX, {"weight_map": {"a": 3}}, f"{INDEX}: `weight_map.a` must be a valid string, got 3"),
        (FACTS, {"data": [1]}, f"{FACTS}: `data` must be a valid dictionary, got [1]"),
        (FACTS, {"source": {}}, f"{FACTS}: `source.name` is missing"),
        (REPORT, {"top1_accuracy": "high"}, f"{REPORT}: `top1_accuracy` must be a valid number, got 'high'"),
    ],
)
def test_the_field_is_named(name, change, message, sound, staged):
    assert message in staged(name, json.loads((sound / name).read_text()) | change)


@pytest.mark.parametrize(("name", "kind"), [(PROCESSOR, "list"), (FACTS, "list"), (REPORT, "list")])
def test_a_list_is_no_object(name, kind, staged):
    assert f"{name} must hold one JSON object, got a {kind}" in staged(name, [])
