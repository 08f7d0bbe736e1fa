"""Checks that a model loads and runs for a stranger: in a new process, with an empty cache and without hf_video.

`run_as_stranger` runs this file as that process:

    python -P loading_check.py FOLDER CLIPS

It makes hf_video impossible to import, whether it is installed or not. The last line of its output is one JSON object.
So nothing at the top of this file may import hf_video.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor


def run_as_stranger(folder: Path, clips: "Mapping[str, Tensor]") -> dict[str, Any]:
    """Loads a model and its processor in a fresh process that cannot import hf_video and trusts the code beside them,
    and runs the model.

    Args:
        folder: a whole repository.
        clips: what the videos of the self-test became here, by file name, (1, ...) float32. A processor of this
            package makes them again, and they are all that the model of another one is given.

    Returns:
        `outputs`, nested lists by file name, see `output_of`; `error` if the model takes no such clip; and
        `difference` of the clips, as a share of the largest value.

    Raises:
        PublishError: the model does not load, or weights are missing, left over or of another shape.
    """
    from safetensors.torch import save_file

    from .folder_checks import PublishError

    with tempfile.TemporaryDirectory() as home:
        file = str(Path(home, "clips.safetensors"))
        save_file({name: clip.contiguous() for name, clip in clips.items()}, file)
        environment = {**os.environ, "HF_HUB_CACHE": home, "HF_MODULES_CACHE": home, "HF_TOKEN": ""}
        # -P: modules beside this file must not hide others of the same name.
        command = [sys.executable, "-P", __file__, str(folder), file]
        process = subprocess.run(command, env=environment, cwd=home, capture_output=True, text=True)
    if process.returncode:
        reason = (process.stderr.strip().splitlines() or [f"exit code {process.returncode}"])[-1]
        raise PublishError(f"The model cannot be loaded where hf_video is not installed: {reason}")
    found = json.loads(process.stdout.splitlines()[-1])
    if problems := found.pop("problems"):
        listed = "; ".join(f"{name.replace('_', ' ')}: {', '.join(keys[:3])}" for name, keys in problems.items())
        raise PublishError(f"The weights do not fit the configuration ({listed}).")
    return found


def load(folder: str, clips: str) -> dict[str, Any]:
    """What `run_as_stranger` gives, and `problems`, lists of tensors by what is wrong with them."""
    sys.modules["hf_video"] = None  # type: ignore[assignment]
    import transformers
    from safetensors.torch import load_file
    from transformers.dynamic_module_utils import get_class_from_dynamic_module

    config = transformers.AutoConfig.from_pretrained(folder, trust_remote_code=True)
    references = dict(getattr(config, "auto_map", None) or {}).values()
    classes = {each.rpartition(".")[2]: get_class_from_dynamic_module(each, folder) for each in references}
    architecture = config.architectures[0]
    model_class = classes.get(architecture) or getattr(transformers, architecture)
    model, report = model_class.from_pretrained(folder, output_loading_info=True)
    processor = transformers.AutoProcessor.from_pretrained(folder, trust_remote_code=True)
    found: dict[str, Any] = {"problems": {name: sorted(map(str, keys)) for name, keys in report.items() if keys}}
    found |= {"outputs": {}, "error": None, "difference": 0.0}
    for name, clip in {} if found["problems"] else load_file(clips).items():
        given = clip
        if type(processor).__name__ == "VideoClipProcessor":
            clip = processor(str(Path(folder, "self_test", name)), return_tensors="pt")[model.main_input_name]
            found["difference"] = max(found["difference"], float((clip - given).abs().max() / given.abs().max()))
        try:
            found["outputs"][name] = output_of(model.float().eval(), clip).tolist()
        except (ImportError, OSError, RuntimeError, ValueError) as error:
            found["error"] = str(error)
    return found


def output_of(model: Any, clip: "Tensor") -> "Tensor":
    """What is compared of a model for a clip, float32 on the CPU: the logits of a classifier, (1, num_classes) or of
    frames (1, token frames, num_classes); of others the mean over the tokens of their encoder, (1, hidden_size)."""
    import torch

    inputs = {model.main_input_name: clip.to(model.device, model.dtype)}
    with torch.inference_mode():
        if type(model).__name__.endswith("Classification"):
            logits = model(**inputs).logits.float().cpu()
            return logits.squeeze(1) if logits.ndim == 3 else logits  # VideoPrism keeps the axis of its query
        return model.base_model(**inputs)[0].float().mean(dim=1).cpu()


if __name__ == "__main__":
    print(json.dumps(load(*sys.argv[1:])))
