"""Loads a repository or folder as a stranger would; run by its path, as a process of its own.

    python -P loading_check.py SOURCE REVISION {alone,with-hf-video} SECONDS

`alone` makes hf_video impossible to import, whether it is installed or not. A Hub that is silent for SECONDS is given
up. The last line of the output is one JSON
object with the classes of model and processor, and the tensors that did not fit.
"""

import json
import sys
from typing import Any


def load(source: str, revision: str, alone: bool, seconds: float) -> dict[str, Any]:
    if alone:
        sys.modules["hf_video"] = None  # type: ignore[assignment]
    else:
        import hf_video  # noqa: F401
    import transformers
    from huggingface_hub import get_session
    from transformers.dynamic_module_utils import get_class_from_dynamic_module

    def limit(request: Any) -> None:
        wanted = request.extensions.get("timeout", {})
        kinds = ("connect", "read", "write", "pool")
        request.extensions["timeout"] = {kind: wanted.get(kind) or seconds for kind in kinds}

    get_session().event_hooks["request"].append(limit)
    trusted = {"revision": revision or None, "trust_remote_code": alone}
    config = transformers.AutoConfig.from_pretrained(source, **trusted)
    auto_map = dict(getattr(config, "auto_map", None) or {}) if alone else {}
    classes = {
        reference.rpartition(".")[2]: get_class_from_dynamic_module(reference, source, revision=revision or None)
        for reference in auto_map.values()
    }
    architecture = config.architectures[0]
    model_class = classes.get(architecture) or getattr(transformers, architecture, None)
    if model_class is None:
        model_class = getattr(sys.modules["hf_video"], architecture)
    model, report = model_class.from_pretrained(source, revision=revision or None, output_loading_info=True)
    processor = transformers.AutoProcessor.from_pretrained(source, **trusted)
    problems = {name: sorted(map(str, keys)) for name, keys in report.items() if keys}
    return {"model": architecture, "processor": type(processor).__name__, "problems": problems}


if __name__ == "__main__":
    source, revision, mode, seconds = sys.argv[1:]
    print(json.dumps(load(source, revision, alone=mode == "alone", seconds=float(seconds))))
