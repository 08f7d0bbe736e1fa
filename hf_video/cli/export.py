"""Write a classifier or backbone for programs that do not have hf_video. The folder gets

  model.onnx or model.pt2         pixel_values (batch, frames, channels, height, width) in, logits or the feature maps
                                  of a backbone out; of images without the frames. A classifier of frames gives those
                                  of one clip (batch, token frames, classes), without a state
  config.json                     the configuration, with the names of classes
  video_preprocessor_config.json  how clips are made, if the model has a processor

The batch is free. Frames, height and width are fixed; --num-frames chooses another number. Before anything is
kept, the file is run, in ONNX Runtime or by torch.export, and compared with the model for batches of one, two and
three clips.

example: hf-video export my_model my_onnx --to onnx
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from hf_video.loading.models import load_trained_model, locate_model
from hf_video.output_folders import require_fresh
from hf_video.settings import AtLeast1, Mark, Settings, setting

from .command import command

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(kw_only=True)
class ExportSettings(Settings):
    """Export"""

    model: Annotated[str, Mark(form="word", names="model")] = setting(
        help="A model folder, or the name of one on the Hub.", metavar="MODEL"
    )
    output: Annotated[str, Mark(form="word")] = setting(help="Folder to write; new or empty.", metavar="OUT")
    to: Literal["onnx", "torch-export"] = setting("onnx", "Format: onnx needs the extra `export`.")
    num_frames: AtLeast1[int] | None = setting(None, "Frames of a clip; by default as the model was saved.")


@command(help="write a model as ONNX or as a program of torch.export")
def run(settings: ExportSettings) -> int:
    """Prints the file, its input and how far it is from the model."""
    folder = Path(settings.output).expanduser().absolute()
    require_fresh(folder, "Choose another folder.", option="OUT")

    from hf_video.inference.exporting import export_model, require_onnx

    if settings.to == "onnx":
        require_onnx()
    model, processor, clip_shape = _load(settings, locate_model(settings.model))
    print(f"exporting {type(model).__name__} for an input of ({_sizes(clip_shape)}); this takes a minute or more")
    export = export_model(model, folder, clip_shape, settings.to, processor)
    print(f"{settings.to} {export.file}")
    print(f"pixel_values (batch, {_sizes(clip_shape)}) -> {', '.join(export.outputs)}")
    print(f"differs from the model by {export.difference:.0e} of the largest value, for batches of 1, 2 and 3")
    return 0


def _sizes(clip_shape: tuple[int, ...]) -> str:
    return ", ".join(map(str, clip_shape))


def _load(settings: ExportSettings, name: str) -> tuple[PreTrainedModel, Any, tuple[int, ...]]:
    """The model, its processor if it has one, and the shape of a clip or image."""
    from transformers import AutoImageProcessor, AutoModelForImageClassification, AutoVideoProcessor
    from transformers.models.auto.modeling_auto import MODEL_FOR_BACKBONE_MAPPING

    from hf_video.loading.clip_size import clip_size, set_input_size
    from hf_video.loading.configurations import load_config

    config = load_config(name)
    kind = (config.architectures or [""])[0]
    takes_images = kind.endswith("ForImageClassification")
    if takes_images and settings.num_frames is not None:
        raise ValueError(
            f"--num-frames {settings.num_frames}: {settings.model} is a classifier of images; leave it out."
        )
    if kind.endswith("Backbone") and type(config) not in MODEL_FOR_BACKBONE_MAPPING:
        raise ValueError(f"{name} holds a model of the type {config.model_type!r}, which has no backbone to export.")
    if takes_images:
        model, processor = _load_whole(name, AutoModelForImageClassification, AutoImageProcessor)
    elif kind.endswith("Backbone"):
        # `AutoBackbone` looks for every name on the Hub, folders among them.
        model, processor = _load_whole(name, MODEL_FOR_BACKBONE_MAPPING[type(config)], AutoVideoProcessor)
    else:
        model, processor = load_trained_model(name, device="cpu", part="any classifier")
    if settings.num_frames is not None:
        set_input_size(model, num_frames=settings.num_frames)
        if processor is not None:
            processor.num_frames = settings.num_frames
    kept, size = clip_size(model.config), None
    if processor is not None:
        size = processor.crop_size if getattr(processor, "do_center_crop", False) else processor.size
    sizes: Any = getattr(size, "height", None), getattr(size, "width", None)
    if None in sizes:
        sizes = (kept.image_size,) * 2 if isinstance(kept.image_size, int | None) else tuple(kept.image_size)
    frames = () if takes_images else (getattr(processor, "num_frames", None) or kept.num_frames,)
    shape = *frames, getattr(config, "num_channels", 3), *sizes
    if None in shape:
        raise ValueError(f"{settings.model} does not define the size of its input: save its processor beside it.")
    return model, processor, shape


def _load_whole(name: str, network: Any, processors: Any) -> tuple[PreTrainedModel, Any]:
    """A model with all of its weights, and its processor if it has one."""
    from hf_video.loading.configurations import load_weights, refuse_missing

    model, report = load_weights(network, name, dtype="float32")
    refuse_missing(name, model, report["missing_keys"])
    try:
        return model.eval(), processors.from_pretrained(name)
    except (OSError, ValueError):
        return model.eval(), None
