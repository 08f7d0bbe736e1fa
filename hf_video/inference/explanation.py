"""What speaks for a class: the clip that a model sees, and the evidence as a heat map on its pixels."""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from transformers import PreTrainedModel

from hf_video.processing import VideoClipProcessor
from hf_video.reading import VideoReader

from .evidence import PatchGrid, find_patch_grid, reads_into_memory, roll_out_attention, weigh_memory, weigh_patches

_COLOR_MAP = "plasma"
# Share of the colour at the highest evidence; the rest is the frame. The exponent makes half of it well seen.
_OPACITY, _EXPONENT = 0.85, 0.75


def explain(
    model: PreTrainedModel,
    inputs: torch.Tensor | Mapping[str, Any],
    target: int | torch.Tensor | None = None,
) -> torch.Tensor:
    """
    Heat maps of the evidence for a class: which pixels of which frames speak for it. Evidence against it is left out.

    Three ways, by what the model can do:

    - Models that record attention between all tokens of a clip (VideoViT, VideoMAE, ViViT, V-JEPA 2): roll-out of the
      attention, weighted by its gradients, see `roll_out_attention`.
    - Models that read frame by frame into a memory (MemoryBankQFormer): gradients on the memory, see `weigh_memory`.
    - All others (VideoMamba, TimeSformer, VideoPrism): integrated gradients of the patches, see `weigh_patches`.

    The model computes in evaluation mode, one video after the other. Afterwards it is as it was, also after an error,
    and no parameter has got a gradient.

    Args:
        model: a video classifier, also a `PeftModel`, a quantised or a compiled one.
        inputs: `pixel_values` (batch_size, num_frames, num_channels, height, width), or the mapping that the processor
            gives; moved to the model's device and dtype.
        target: class id, or ids (batch_size,) int64; for a regression or multi-label model the number of the output.
            By default the class with the highest score.

    Returns:
        (batch_size, num_frames, height, width) float32 in [0, 1], on the CPU. The highest value of a video is 1, or 0
        if nothing speaks for the class. Values have the resolution of the model's patches, linear between their
        centres; frames of one tubelet have the same values.

    Raises:
        ValueError: the model is not a classifier or its patches cannot be found, the inputs are not a batch of clips,
            there is no such class, or the model gives no gradients or values that are not finite.
        ImportError: the model needs integrated gradients, and captum is not installed.
    """
    model = _without_wrapper(model)
    clips, options = _clips_of(model, inputs)
    _check_classifier(model)
    with _undisturbed(model), _eager_attention(model), torch.inference_mode(False), torch.enable_grad():
        # Tensors of a caller's inference mode cannot take part in gradients; their copies can.
        clips = clips.to(model.device, model.dtype).clone()
        targets = _targets(model, target, len(clips))
        maps = [
            _explain_clip(model, clips[row : row + 1], _row(options, row), targets[row]) for row in range(len(clips))
        ]
    return torch.cat(maps)


def _explain_clip(
    model: PreTrainedModel, clip: torch.Tensor, options: dict[str, Any], target: int | None
) -> torch.Tensor:
    """The heat map (1, num_frames, height, width) of one clip."""
    patches = find_patch_grid(model, clip)
    if target is None:
        with torch.no_grad():
            target = int(model(**{model.main_input_name: clip, **options}).logits[0].argmax())
    if reads_into_memory(model):
        evidence = weigh_memory(model, patches, clip, options, target)
    else:
        rolled_out = roll_out_attention(model, patches, clip, options, target)
        evidence = weigh_patches(model, patches, clip, options, target) if rolled_out is None else rolled_out
    if not evidence.isfinite().all():
        raise ValueError(
            f"The gradients of class {target} are not finite: check the inputs for NaN, and explain a model in "
            "float16 in float32."
        )
    return _on_pixels(evidence, patches, clip.shape)


def _on_pixels(evidence: torch.Tensor, patches: PatchGrid, shape: torch.Size) -> torch.Tensor:
    """Evidence (1, t, h, w) on the pixels of a clip (1, num_frames, num_channels, height, width), from 0 to 1."""
    (_, num_frames, _, height, width), (dt, dh, dw) = shape, patches.patch_shape
    covered = evidence.shape[2] * dh, evidence.shape[3] * dw
    maps = F.interpolate(evidence.float().cpu(), size=covered, mode="bilinear")
    maps = maps.repeat_interleave(dt, 1)
    # The model drops what fills no patch at the end: nothing there speaks for anything.
    maps = F.pad(maps, (0, width - covered[1], 0, height - covered[0], 0, num_frames - maps.shape[1]))
    highest = maps.amax((1, 2, 3), keepdim=True)
    return maps / highest.where(highest > 0, 1)


def _clips_of(model: PreTrainedModel, inputs: torch.Tensor | Mapping[str, Any]) -> tuple[torch.Tensor, dict[str, Any]]:
    """The clips, and the further inputs of the model."""
    name = model.main_input_name
    named = dict(inputs) if isinstance(inputs, Mapping) else {name: inputs}
    clips = named.pop(name, None)
    if not isinstance(clips, torch.Tensor):
        raise ValueError(
            f"{type(model).__name__} takes `{name}`, a tensor; got {sorted(named) or type(clips).__name__}."
        )
    if clips.ndim == 6:
        raise ValueError(
            f"`{name}` has {clips.shape[1]} views of each video, {tuple(clips.shape)}: explain one view at a time, "
            "for example pixel_values[:, 0]. Views show different pixels, so they have no heat map in common."
        )
    if clips.ndim != 5 or not clips.numel():
        raise ValueError(
            f"`{name}` must be (batch_size, num_frames, num_channels, height, width), got {tuple(clips.shape)}."
        )
    return clips, {key: value for key, value in named.items() if key != "labels"}


def _row(options: dict[str, Any], row: int) -> dict[str, Any]:
    """The further inputs of one clip of the batch."""
    return {
        name: value[row : row + 1].clone() if isinstance(value, torch.Tensor) and value.ndim else value
        for name, value in options.items()
    }


def _without_wrapper(model: Any) -> PreTrainedModel:
    """The model within a `PeftModel`, with its adapters, or within what `torch.compile` gives."""
    compiled = getattr(model, "_orig_mod", model)
    return compiled.get_base_model() if hasattr(compiled, "get_base_model") else compiled


def _check_classifier(model: PreTrainedModel) -> None:
    if not isinstance(getattr(model, "classifier", None), torch.nn.Module) or not model.config.num_labels:
        raise ValueError(
            f"{type(model).__name__} is not a classifier with a head: heat maps need a class to explain. Load the "
            "model with AutoModelForVideoClassification, with at least one label."
        )
    if any(parameter.is_inference() for parameter in model.parameters()):
        raise ValueError("The model was made under torch.inference_mode, which rules out gradients: load it outside.")


def _targets(model: PreTrainedModel, target: int | torch.Tensor | None, batch_size: int) -> list[Any]:
    """The number of the output for each clip, None for that with the highest score."""
    if target is None:
        return [None] * batch_size
    try:
        given = torch.as_tensor(target)
    except (TypeError, ValueError, RuntimeError):
        given = torch.empty(0)
    if given.is_floating_point() or given.dtype == torch.bool or given.shape not in ((), (batch_size,)):
        raise ValueError(
            f"`target` must be a class id or one for each of the {batch_size} videos, whole numbers; got {target!r}."
        )
    targets = given.expand(batch_size).tolist()
    last = model.config.num_labels - 1
    for number in targets:
        if not 0 <= number <= last:
            raise ValueError(f"The target {number} is not a class of this model: its classes are 0 to {last}.")
    return targets


@contextmanager
def _undisturbed(model: PreTrainedModel) -> Iterator[None]:
    """Evaluation mode, and no gradients of parameters; what each module and parameter had comes back."""
    was_training = [module for module in model.modules() if module.training]
    were_trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    model.eval()
    for parameter in were_trained:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in were_trained:
            parameter.requires_grad_(True)
        for module in was_training:
            module.training = True


@contextmanager
def _eager_attention(model: PreTrainedModel) -> Iterator[None]:
    """Attention step by step: fused implementations do not return weights, and some have no gradient. What was
    compiled runs as Python: a compiled model does not use the attention weights that it returns."""
    configs = {id(part.config): part.config for part in model.modules() if isinstance(part, PreTrainedModel)}
    before = [(config, config._attn_implementation) for config in configs.values()]
    try:
        for config, _ in before:
            config._attn_implementation = "eager"
        with torch.compiler.set_stance("force_eager"):
            yield
    finally:
        for config, implementation in before:
            config._attn_implementation = implementation


class Clip(NamedTuple):
    """
    One view of a video.

    Attributes:
        pixel_values: (1, T, C, H, W) float32, as the model takes it.
        images: (T, H, W, 3) uint8, the frames as the model sees them: resized and cropped, not normalised.
        times: (T,) seconds of each frame after the first frame of the video. A short video repeats frames.
        end: seconds at which the clip ends: a step after its last frame, at most the end of what was sampled from.
        places: (H, W, 2) float32, the column and the row of the video that each pixel of an image comes from.
        video_size: height and width of the video in pixels.
    """

    pixel_values: torch.Tensor
    images: np.ndarray
    times: np.ndarray
    end: float
    places: np.ndarray
    video_size: tuple[int, int]


def read_clip(
    processor: VideoClipProcessor,
    video: Any,
    *,
    start: float | None = None,
    end: float | None = None,
    source_fps: float | None = None,
) -> Clip:
    """
    Reads the clip of a video that a processor samples: a single one, and its centre crop.

    Args:
        processor: the processor of the model.
        video: path of a video file, URL, bytes, an open file, or path of a folder of frames.
        start, end: seconds of the part to sample from; by default the whole video.
        source_fps: frames per second of a folder of frames, which has no times of its own.

    Raises:
        VideoReadError: the video cannot be read, or the part holds no frame.
        ValueError: a folder of frames comes without `source_fps`, or with `start` or `end`.
    """
    with VideoReader(video) as reader:
        if source_fps is None and math.isnan(reader.end):
            raise ValueError(
                f"{reader.name} has no times: give source_fps=..., the rate at which its frames were taken."
            )
        segment = reader.segment(start, end)
        chosen = processor.sample_frames(reader.metadata_of(segment), num_clips=1) + segment.start
        clips = reader.read(chosen)
        times = np.append(reader.times, reader.end)
        times, stop = times[chosen[0]], float(times[segment.stop])
    # A model takes one clip; what resizes and crops is apart from what makes numbers of bytes.
    as_images = partial(_process, processor, do_rescale=False, do_normalize=False)
    images = as_images(clips[0])
    height, width = clips.shape[2:4]
    columns, rows = np.meshgrid(np.arange(width), np.arange(height))
    places = as_images(np.stack([columns, rows, 0 * rows], axis=-1)[None].astype(np.float32))
    if source_fps is not None:
        times, stop = chosen[0] / source_fps, len(segment) / source_fps
    step = (times[-1] - times[0]) / (len(times) - 1) if times[-1] > times[0] else math.inf
    return Clip(
        _process(processor, images, do_resize=False, do_center_crop=False),
        images[0].movedim(1, -1).numpy(),
        times,
        min(float(times[-1]) + step, stop),
        places[0, 0, :2].movedim(0, -1).numpy(),
        (height, width),
    )


def _process(processor: VideoClipProcessor, frames: Any, **options: Any) -> torch.Tensor:
    """(1, T, C, H, W) of frames that are sampled already."""
    inputs = processor(frames, do_sample_frames=False, num_crops=1, return_tensors="pt", **options)
    return inputs[processor.model_input_names[0]]


def overlay_heat_maps(images: np.ndarray, heat_maps: np.ndarray) -> np.ndarray:
    """
    Frames with heat maps on them. The colours are matplotlib's "plasma", in which equal steps look equal, from blue to
    yellow. The colour is the more opaque the higher the value, so that a value of 0 leaves a pixel as it is.

    Args:
        images: (T, H, W, 3) uint8.
        heat_maps: (T, H, W) in [0, 1].

    Returns:
        (T, H, W, 3) uint8.

    Raises:
        ImportError: matplotlib is not installed.
        ValueError: shapes do not agree, or a value is outside of [0, 1].
    """
    heat_maps = np.asarray(heat_maps, dtype=np.float32)
    if images.shape != (*heat_maps.shape, 3):
        raise ValueError(f"Heat maps of the shape {heat_maps.shape} do not fit images of the shape {images.shape}.")
    if not (heat_maps.min() >= 0 and heat_maps.max() <= 1):
        raise ValueError(f"Heat maps lie in [0, 1], got values from {heat_maps.min():g} to {heat_maps.max():g}.")
    from matplotlib import colormaps

    colors = (colormaps[_COLOR_MAP](np.arange(256))[:, :3] * 255).astype(np.float32)
    mixed = np.empty(images.shape, dtype=np.uint8)
    # A frame at a time: as numbers, a long clip would need many times the memory of its pixels.
    for image, heat, result in zip(images, heat_maps, mixed, strict=True):
        opacity = _OPACITY * heat[..., None] ** _EXPONENT
        result[:] = np.rint((1 - opacity) * image + opacity * colors[np.rint(heat * 255).astype(np.uint8)])
    return mixed


def frame_shares(heat_map: np.ndarray) -> np.ndarray:
    """
    The share of the evidence that lies on each frame.

    Args:
        heat_map: (T, H, W), 0 or more.

    Returns:
        (T,) float64 with the sum 1; all 0 if there is no evidence.
    """
    evidence = np.asarray(heat_map, dtype=np.float64).sum(axis=(1, 2))
    return evidence / (evidence.sum() or 1.0)


def top_frames(shares: np.ndarray, count: int = 3) -> list[int]:
    """
    The frames that counted most, the first one most: at most `count`, each with at least an even share. Of neighbours
    with the same share the first one counts: a model that joins frames to tubelets has one value for all of them.

    Args:
        shares: (T,), see [`frame_shares`].
        count: largest number of frames.
    """
    # The highest of some numbers may be below their mean by a rounding error.
    even = shares.mean() * (1 - 1e-9)
    is_first = np.append(True, ~np.isclose(shares[1:], shares[:-1], rtol=1e-6, atol=0))
    ranked = np.argsort(-shares, kind="stable").tolist()
    return [frame for frame in ranked if is_first[frame] and shares[frame] > 0 and shares[frame] >= even][:count]
