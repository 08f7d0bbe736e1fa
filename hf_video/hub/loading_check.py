"""Checks that a model loads for a stranger: in a new process, with an empty cache and without hf_video.

`verify` runs this file as that process:

    python -P loading_check.py SOURCE REVISION

It makes hf_video impossible to import, whether it is installed or not.
The last line of the output is one JSON object: the classes of model and processor, the tensors that did not fit, and
how far the logits are from those of the self-test.
So nothing at the top of this file may import hf_video.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any


def verify(
    source: str,
    *,
    revision: str | None = None,
    endpoint: str | None = None,
    token: str | None = None,
) -> dict[str, Any]:
    """Loads a model and its processor in a fresh process that cannot import hf_video and trusts the repository's code.
    If there is a self-test with logits, its first video goes through both.

    Args:
        source: a folder or a Hub repository; of a repository, `revision` is a branch, tag or commit.
        endpoint, token: the Hub and who may read there; those of huggingface_hub by default.

    Returns:
        The names of the classes that were loaded, under `model` and `processor`.

    Raises:
        PublishError: the model does not load, weights are missing, left over or of another shape, or the logits are
            others.
    """
    from .connection import PublishError

    with tempfile.TemporaryDirectory() as home:
        environment = {**os.environ, "HF_HUB_CACHE": home, "HF_MODULES_CACHE": home, "HF_TOKEN": token or ""}
        if endpoint is not None:
            environment["HF_ENDPOINT"] = endpoint
        # -P: modules beside this file must not hide others of the same name.
        process = subprocess.run(
            [sys.executable, "-P", __file__, source, revision or ""],
            env=environment,
            cwd=home,
            capture_output=True,
            text=True,
        )
    if process.returncode:
        reason = (process.stderr.strip().splitlines() or [f"exit code {process.returncode}"])[-1]
        raise PublishError(f"{source} cannot be loaded: {reason}")
    loaded = json.loads(process.stdout.splitlines()[-1])
    if problems := loaded.pop("problems"):
        listed = "; ".join(f"{name.replace('_', ' ')}: {', '.join(keys[:3])}" for name, keys in problems.items())
        raise PublishError(f"The weights of {source} do not fit its configuration ({listed}).")
    difference, bound = loaded.pop("difference")
    if not difference <= bound:
        raise PublishError(
            f"{source} gives other logits where hf_video is not installed: they differ by {difference:.1e} of the "
            f"largest one, {bound:g} is allowed. Please report it."
        )
    return loaded


def load(source: str, revision: str) -> dict[str, Any]:
    """Loads model and processor in this process, without hf_video. Gives the names of their classes, `model` and
    `processor`; `problems`, lists of tensors by what is wrong with them; and `difference`, see `compare_logits`."""
    sys.modules["hf_video"] = None  # type: ignore[assignment]
    import transformers
    from transformers.dynamic_module_utils import get_class_from_dynamic_module

    trusted = {"revision": revision or None, "trust_remote_code": True}
    config = transformers.AutoConfig.from_pretrained(source, **trusted)
    auto_map = dict(getattr(config, "auto_map", None) or {})
    classes = {
        reference.rpartition(".")[2]: get_class_from_dynamic_module(reference, source, revision=revision or None)
        for reference in auto_map.values()
    }
    architecture = config.architectures[0]
    model_class = classes.get(architecture) or getattr(transformers, architecture)
    model, report = model_class.from_pretrained(source, revision=revision or None, output_loading_info=True)
    processor = transformers.AutoProcessor.from_pretrained(source, **trusted)
    problems = {name: sorted(map(str, keys)) for name, keys in report.items() if keys}
    difference = (0.0, 0.0) if problems else compare_logits(source, revision, model, processor)
    loaded = {"model": architecture, "processor": type(processor).__name__}
    return {**loaded, "problems": problems, "difference": difference}


def compare_logits(source: str, revision: str, model: Any, processor: Any) -> tuple[float, float]:
    """The largest difference from the logits of the self-test for its first video, as a share of the largest one, and
    the one that is allowed. Both are 0 if there are no such logits, or the processor is not one of this package."""
    import torch
    from transformers.utils import cached_file

    places = {"revision": revision or None, "_raise_exceptions_for_missing_entries": False}
    record = cached_file(source, "self_test/self_test.json", **places)
    test = json.loads(Path(record).read_text(encoding="utf-8")) if record else {"videos": {}}
    nothing: tuple[str, dict[str, Any]] = ("", {})
    name, expected = next(iter(test["videos"].items()), nothing)
    if "logits" not in expected or type(processor).__name__ != "VideoClipProcessor":
        return 0.0, 0.0
    inputs = processor(cached_file(source, f"self_test/{name}", **places), return_tensors="pt")
    with torch.inference_mode():
        logits = model.float().eval()(**inputs).logits.flatten()
    wanted = torch.tensor(expected["logits"]["values"])
    return float((logits - wanted).abs().max() / wanted.abs().max()), test["bounds"]["float32"]


if __name__ == "__main__":
    source, revision = sys.argv[1:]
    print(json.dumps(load(source, revision)))
