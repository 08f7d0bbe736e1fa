"""Exports classifiers and backbones to ONNX and to programs of torch.export."""

import importlib.util
import json
import logging
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from torch import nn
from torch.export import Dim, ExportedProgram
from torch.fx import GraphModule
from transformers import PreTrainedModel
from transformers.models.auto import modeling_auto

from hf_video.io import new_folder

ExportFormat = Literal["onnx", "torch-export"]
FILES: dict[str, str] = {"onnx": "model.onnx", "torch-export": "model.pt2"}
# Of the largest value of an output. Other kernels add in another order.
TOLERANCE = 1e-4
BATCH_SIZES = (1, 2, 3)

_CLASSIFIERS = [
    getattr(modeling_auto, f"MODEL_FOR_{kind}_CLASSIFICATION_MAPPING") for kind in ("VIDEO", "IMAGE", "TOKEN")
]


class Export(NamedTuple):
    """An exported model: the path of the ONNX file or the program; the names of its outputs, `logits` or the stages of
    a backbone; (num_frames, num_channels, height, width) of its input, (num_channels, height, width) for images; and
    the largest difference from the model, as a share of the largest value of that output."""

    file: Path
    outputs: tuple[str, ...]
    clip_shape: tuple[int, ...]
    difference: float


class ExportError(ValueError):
    """A model cannot be exported, or its export gives other numbers."""


class _Exportable(nn.Module):
    """A model whose input and outputs are tensors."""

    def __init__(self, model: PreTrainedModel, input_name: str, output: str) -> None:
        super().__init__()
        self.model, self.input_name, self.output = model, input_name, output

    def forward(self, pixel_values: torch.Tensor) -> tuple[torch.Tensor, ...]:
        answer = getattr(self.model(**{self.input_name: pixel_values}, return_dict=True), self.output)
        return (answer,) if isinstance(answer, torch.Tensor) else tuple(answer)


def export_model(
    model: PreTrainedModel,
    folder: Path,
    clip_shape: tuple[int, ...],
    to: ExportFormat = "onnx",
    processor: Any | None = None,
) -> Export:
    """Writes a classifier or backbone as ONNX (`torch.onnx.export`) or as a program of `torch.export`, and compares
    what the file gives, in ONNX Runtime or loaded again, with the model for three random batches.
    The folder is whole or not there at all. The batch is free; a clip is one view.

    Args:
        model: in evaluation mode, float32, on the CPU.
        folder: does not exist, or is empty; gets the file, the configuration, and the processor if there is one.
        clip_shape: (num_frames, num_channels, height, width); of an image classifier (num_channels, height, width).
        to: the format.

    Raises:
        ExportError: the model is not a classifier or backbone, is quantised, has a memory, cannot be traced, or its
            file gives other numbers.
        ImportError: ONNX, ONNX Script or ONNX Runtime is not installed.
    """
    if to == "onnx":
        require_onnx()
    output = _output_of(model)
    exportable, kind = _Exportable(model, model.main_input_name, output).eval(), type(model).__name__
    names = tuple(getattr(model, "out_features", [])) if output == "feature_maps" else (output,)
    generator = torch.Generator().manual_seed(0)
    clips = [torch.randn(size, *clip_shape, generator=generator) for size in BATCH_SIZES]
    # Exporters warn about their own code.
    logging.getLogger("onnxscript").setLevel(logging.ERROR)
    with torch.no_grad(), warnings.catch_warnings(action="ignore"), new_folder(folder) as unfinished:
        expected = [exportable(batch) for batch in clips]
        try:
            program = torch.export.export(exportable, (clips[1],), dynamic_shapes={"pixel_values": {0: Dim.DYNAMIC}})
            run = _write(program, unfinished / FILES[to], names, model)
            pairs = [
                each
                for clip, wanted in zip(clips, expected, strict=True)
                for each in zip(run(clip), wanted, strict=True)
            ]
        except Exception as error:  # exporters have no common class for what they cannot do
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise ExportError(f"{kind} cannot be exported as {to}: {reason}") from error
        shares = [(one - other).abs().max() / other.abs().max().clamp(min=1e-12) for one, other in pairs]
        # NaN if a value is: `max` of Python would pass over that.
        difference = float(torch.stack(shares).max())
        if not difference <= TOLERANCE:
            raise ExportError(
                f"{kind} as {to} gives other numbers: they differ by {difference:.1e} of the largest value, "
                f"{TOLERANCE:g} is allowed. Nothing was kept; please report it."
            )
        model.config.save_pretrained(unfinished)
        if processor is not None:
            processor.save_pretrained(unfinished)
    return Export(folder / FILES[to], names, clip_shape, difference)


def require_onnx() -> None:
    """Raises an `ImportError` that says how to install all packages for ONNX, if one is not installed."""
    for name in ("onnx", "onnxruntime", "onnxscript"):
        if importlib.util.find_spec(name) is None:
            raise ImportError(f"Export to ONNX needs {name}: pip install 'hf-video-models[export]'", name=name)


def _output_of(model: PreTrainedModel) -> str:
    """The name of what a classifier or backbone gives; an `ExportError` if it cannot be exported."""
    name, kind = type(model).__name__, type(model.config)
    is_backbone = type(model) is modeling_auto.MODEL_FOR_BACKBONE_MAPPING.get(kind, None)
    if not is_backbone and not any(type(model) is mapping.get(kind, None) for mapping in _CLASSIFIERS):
        raise ExportError(
            f"{name} cannot be exported: classifiers of videos, frames and images and backbones can. "
            "AutoModelForVideoClassification, or the backbone of the family, such as VideoViTBackbone, loads what can "
            "be exported from its folder."
        )
    if model.config.model_type == "memory_bank_qformer":
        raise ExportError(f"{name} cannot be exported: its memory is merged video by video, which no tracer follows.")
    if hasattr(model.config, "quantization_config"):
        raise ExportError("A quantised model cannot be exported: export the one that it was made from.")
    return "feature_maps" if is_backbone else "logits"


def _write(
    program: ExportedProgram, file: Path, names: tuple[str, ...], model: PreTrainedModel
) -> Callable[[torch.Tensor], list[torch.Tensor]]:
    """Writes a file, and gives what runs it."""
    # The traces of calls name folders of this machine, and would be in the file.
    for module in program.graph_module.modules():
        for node in module.graph.nodes if isinstance(module, GraphModule) else ():
            node.meta.pop("stack_trace", None)
    if file.name == FILES["torch-export"]:
        torch.export.save(program, file)
        loaded = torch.export.load(file).module()
        return lambda batch: list(loaded(batch))
    import onnxruntime

    options: dict[str, Any] = {"input_names": ["pixel_values"], "output_names": list(names)}
    exported: Any = torch.onnx.export(program, dynamo=True, verbose=False, **options)
    labels = getattr(model.config, "id2label", None) or {}
    exported.model.metadata_props["labels"] = json.dumps([labels[index] for index in sorted(labels)])
    exported.save(file)
    settings = onnxruntime.SessionOptions()
    settings.log_severity_level = 3
    session = onnxruntime.InferenceSession(file, settings, providers=["CPUExecutionProvider"])
    return lambda batch: [torch.from_numpy(each) for each in session.run(None, {"pixel_values": batch.numpy()})]
