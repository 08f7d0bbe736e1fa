"""Compares what a published model gives on this machine with its self-test."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from huggingface_hub import snapshot_download
from transformers import MODEL_FOR_VIDEO_CLASSIFICATION_MAPPING
from transformers.utils import cached_file

from hf_video.io import read_object
from hf_video.loading.models import choose_device, locate_model

from .folder_checks import PUBLISHED, SELF_TEST, read_part
from .self_test import (
    RECORD,
    RUN_ERRORS,
    SAME_INPUT,
    Measured,
    SelfTest,
    Values,
    describe_cpu,
    describe_software,
    measure,
    parts_of,
    sample,
    saved_values,
    why_untested,
)


@dataclass(frozen=True)
class Finding:
    """Whether a part of a model is here as it was where it was published.

    Attributes:
        part: `frames`, `processor`, `pixel_values`, `labels`, `logits` or `features`.
        agrees: None if it was not compared.
        text: what was compared, or the first thing that differs.
        difference: the largest difference as a share of the largest value; None for what is equal or is not.
    """

    part: str
    agrees: bool | None
    text: str
    difference: float | None = None


@dataclass(frozen=True)
class Verification:
    """What [`verify_model`] found.

    Attributes:
        findings: one for each part, in the order in which a video passes them.
        here: device, dtype, backend, versions and machine of this run.
        made_with: versions and machine that the self-test was made with.
    """

    findings: list[Finding]
    here: str
    made_with: str

    @property
    def first_difference(self) -> Finding | None:
        """The first part that differs; None if the model is verified."""
        return next((finding for finding in self.findings if finding.agrees is False), None)


def verify_model(
    model: str, *, revision: str | None = None, device: str = "auto", dtype: str = "float32"
) -> Verification:
    """Run the self-test of a published model: read its videos, prepare them, run the model, and compare each step with
    what it gave where the model was published. The labels and the options of the processor must be equal.

    Of a model that was too large to be run there, or is too large for this machine, only these two are compared.

    Args:
        model: a folder, or a repository on the Hub.
        revision: branch, tag or commit of a repository.
        device: a device of PyTorch, or "auto" for an accelerator if there is one.
        dtype: "float32", "bfloat16" or "float16". The logits of the last two may differ more.

    Raises:
        OSError: there is no such model.
        ValueError: the model has no self-test, or the device does not exist.
    """
    target = choose_device(device)
    folder = _fetch(locate_model(model), revision)
    if not (folder / RECORD).is_file():
        raise ValueError(f"{model} has no self-test ({RECORD}): publish it again, with `hf-video publish`.")
    test = SelfTest.model_validate(read_object(folder / RECORD, SelfTest))
    saved, found = test.saved, saved_values(folder)
    compared = {part: _compare_saved(part, saved.get(part, {}), found[part]) for part in found}
    untested = test.untested or why_untested(folder)
    for part in parts_of(folder):
        if untested is not None:
            compared[part] = Finding(part, None, f"not compared: {untested}")
        else:
            bounded_by = (
                part if part in test.bounds else _precision(target, dtype, compared["pixel_values"].difference)
            )
            compared[part] = _compare_measured(folder, part, test, bounded_by, device=str(target), dtype=dtype)
    order = ("frames", "processor", "pixel_values", "labels", parts_of(folder)[-1])
    here = f"{target}, {dtype}, {_backend(folder, target, dtype)}; {describe_software()}; {describe_cpu()}"
    return Verification([compared[part] for part in order], here, test.made_with)


def _fetch(model: str, revision: str | None) -> Path:
    """The folder of a model, with all of its files."""
    if Path(model).is_dir():
        return Path(model)
    # Of no such repository, the error of Transformers says more.
    cached_file(model, "config.json", revision=revision)
    return Path(snapshot_download(model, revision=revision, allow_patterns=[*PUBLISHED, f"{SELF_TEST}/*"]))


def _compare_saved(part: str, expected: Mapping[str, str], found: Mapping[str, str]) -> Finding:
    names = [name for name in {**expected, **found} if expected.get(name) != found.get(name)]
    if not names:
        return Finding(part, True, f"{len(found)} are equal")
    name = names[0]
    more = f", and {len(names) - 1} more" if names[1:] else ""
    values = [each.get(name, "missing") for each in (found, expected)]
    return Finding(part, False, f"{name} is {values[0]:.60}, published was {values[1]:.60}{more}")


def _compare_measured(folder: Path, part: Measured, test: SelfTest, bounded_by: str, **where: str) -> Finding:
    try:
        found = measure(folder, part, **where)
    except RUN_ERRORS as error:
        return Finding(part, False, f"cannot be computed: {error}")
    differences = []
    for file, published in test.videos.items():
        if file not in found or part not in published:
            return Finding(part, False, f"{SELF_TEST}/{file} is missing, or {part} of it were not published")
        expected = published[part]
        shape = list(found[file].shape)
        if shape != expected.shape:
            return Finding(part, False, f"of {file} have the shape {shape}, published was {expected.shape}")
        differences.append(_difference(found[file], expected))
    # `max` of Python would pass over NaN.
    difference = float(torch.tensor(differences).max())
    bound = test.bounds[bounded_by]
    text = f"largest difference {difference:.1e} of the largest value, {bound:g} is allowed"
    return Finding(part, difference <= bound, text, difference)


def _difference(found: torch.Tensor, expected: Values) -> float:
    wanted = torch.tensor(expected.values)
    return float((sample(found, len(wanted)) - wanted).abs().max() / wanted.abs().max().clamp(min=1e-12))


def _precision(device: torch.device, dtype: str, input_difference: float | None) -> str:
    """The dtype whose bound the outputs must keep. That of float32 counts where a CPU gets the same input: with other
    instructions it resizes frames to values of pixels that are one level off, and accelerators may multiply float32 as
    TF32, with the digits of float16."""
    is_exact = device.type == "cpu" and input_difference is not None and input_difference <= SAME_INPUT
    return "float16" if dtype == "float32" and not is_exact else dtype


def _backend(folder: Path, device: torch.device, dtype: str) -> str:
    """What computes the layers of a model. Its configuration may be one that cannot be loaded."""
    config = read_part(folder, "config.json")
    if config["model_type"] == "videomamba":
        from hf_video.ops.selective_scan.dispatch import choose_backend

        state_size = config.get("state_size", 16)
        return f"selective scan {choose_backend(device.type, getattr(torch, dtype), state_size, False, None)}"
    networks = {kind.model_type: network for kind, network in MODEL_FOR_VIDEO_CLASSIFICATION_MAPPING.items()}
    has_sdpa = getattr(networks.get(config["model_type"]), "_supports_sdpa", False)
    return f"attention {'sdpa' if has_sdpa else 'eager'}"
