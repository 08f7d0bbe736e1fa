"""CONTRIBUTING's "Add a family", followed word by word in a copy of the repository."""

import re
import shutil
import subprocess
import sys
import tomllib

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForVideoClassification, dynamic_module_utils

from tests.hub_server.fixtures import REPOSITORY_ROOT, WRITE, hub, run_in_fresh_process  # noqa: F401

COPIED = ("hf_video", "conversion", "recipes", "tests/__init__.py", "pyproject.toml")
TEXT = (REPOSITORY_ROOT / "CONTRIBUTING.md").read_text()
BLOCK = re.compile(r"^```(?:python|toml)\n# (\S+?)(?:, at the end of (\w+))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)

FOLLOW = """
    import pytest, torch
    from safetensors.torch import save_file
    from transformers import AutoModelForVideoClassification, AutoVideoProcessor
    from conversion.patchpool import main
    from hf_video.cli import convert
    from hf_video.hub import publish
    from hf_video.training import VideoTrainer, VideoTrainingArguments

    assert pytest.main(["-q", "-p", "no:cacheprovider", "-o", "addopts=", "tests/models/patchpool"]) == 0
    convert.CONVERSION = "conversion"
    assert convert.installed_sources()["patchpool"] == "The original PatchPool"
    main(["original.pth", "converted"])
    model = AutoModelForVideoClassification.from_pretrained("converted")
    before = model.classifier.weight.clone()
    clips = [{"pixel_values": torch.randn(1, 4, 3, 32, 32), "labels": i % 2} for i in range(8)]
    trainer = VideoTrainer(
        model,
        VideoTrainingArguments("trained", use_cpu=True, disable_tqdm=True, max_steps=2, per_device_train_batch_size=4),
        train_dataset=clips,
        eval_dataset=clips,
        processing_class=AutoVideoProcessor.from_pretrained("converted"),
    )
    trainer.train()
    trainer.save_model()
    assert trainer.state.global_step == 2 and not torch.equal(model.classifier.weight, before)
    publish("trained", "alice/patchpool", labels=["no", "yes"])
    pixel_values = torch.randn(2, 4, 3, 32, 32)
    save_file({"pixel_values": pixel_values, "logits": model.eval()(pixel_values).logits}, "expected.safetensors")
"""


def put_at_the_end_of(name, text, lines):
    """`text` with `lines` before the bracket that closes the table `name`."""
    start = re.search(rf"^{name} = [\[({{]$", text, re.MULTILINE).end()
    end = start + re.search(r"^[\])}]$", text[start:], re.MULTILINE).start()
    return text[:end] + lines + text[end:]


@pytest.fixture
def copy(tmp_path):
    """A copy of the repository with the blocks of the text in their places."""
    folder = tmp_path / "repository"
    for name in COPIED:
        source = REPOSITORY_ROOT / name
        if source.is_dir():
            shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            (folder / name).parent.mkdir(exist_ok=True)
            shutil.copy(source, folder / name)
    for path, table, content in BLOCK.findall(TEXT):
        file = folder / path
        if table:
            file.write_text(put_at_the_end_of(table, file.read_text(), content))
        else:
            file.parent.mkdir(parents=True, exist_ok=True)
            assert not file.exists(), f"{path} would be overwritten"
            file.write_text(content)
    return folder


@pytest.mark.slow
def test_a_family_is_added_as_the_text_says(copy, hub, tmp_path, monkeypatch):  # noqa: F811
    packages = tomllib.loads((copy / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    folders = {path.parent.relative_to(copy) for path in (copy / "hf_video").rglob("__init__.py")}
    assert {str(folder).replace("/", ".") for folder in folders} <= set(packages)
    for check in (["check"], ["format", "--check"]):
        result = subprocess.run([sys.executable, "-m", "ruff", *check], cwd=copy, capture_output=True, text=True)
        assert result.returncode == 0, result.stdout

    torch.manual_seed(0)
    original = {"patch_embed.weight": torch.randn(16, 192), "patch_embed.bias": torch.randn(16)}
    original |= {"head.weight": torch.randn(2, 16), "head.bias": torch.randn(2), "aux_head.weight": torch.randn(3, 16)}
    torch.save({"model": original}, copy / "original.pth")
    result = run_in_fresh_process(hub, FOLLOW, token=WRITE, with_hf_video=True, cwd=copy)
    assert result.returncode == 0, result.stdout + result.stderr

    # Publishing has loaded it in another process, where hf_video cannot be imported. Here PatchPool is not registered.
    monkeypatch.setattr(dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.setattr(sys, "path", [*sys.path])
    model = AutoModelForVideoClassification.from_pretrained("alice/patchpool", trust_remote_code=True)
    assert type(model).__module__.startswith("transformers_modules.")
    expected = load_file(copy / "expected.safetensors")
    torch.testing.assert_close(model(expected["pixel_values"]).logits, expected["logits"])
