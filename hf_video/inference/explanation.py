"""The clip that a model sees of a video, which of its pixels speak for a class (rolled-out attention, or integrated
gradients), and what such a heat map says of its frames."""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from itertools import cycle
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from transformers import PreTrainedModel

from hf_video.processing import VideoClipProcessor
from hf_video.reading import VideoReader

_NUM_STEPS = 8


class Clip(NamedTuple):
    """One view of a video: (1, T, C, H, W) float32, as the model takes it; (T, H, W, 3) uint8, the frames as the model
    sees them, resized and cropped, not normalised; (T,) seconds of each frame after the first frame of the video, some
    twice in a short video; the second at which the clip ends, a step after its last frame, at most the end of what was
    sampled from; (H, W, 2) float32, the column and the row of the video that each pixel comes from; and height and
    width of the video in pixels."""

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
    """Reads the clip of a video that a processor samples: a single one, and its centre crop.

    Args:
        processor, video: the processor of the model, and what `VideoReader` takes.
        start, end: seconds of the part to sample from; by default the whole video.
        source_fps: frames per second of a folder of frames, which has no times of its own.

    Raises:
        VideoReadError: the video cannot be read, or the part holds no frame.
        ValueError: a folder of frames comes without `source_fps`, or with `start` or `end`.
    """
    with VideoReader(video) as reader:
        times = np.append(reader.times, reader.end)
        if source_fps is not None:
            times = np.arange(len(times)) / source_fps
        elif math.isnan(reader.end):
            raise ValueError(
                f"{reader.name} is a folder of frames, which have no times: give source_fps (--source-fps), the rate "
                "at which they were taken."
            )
        segment = reader.segment(start, end)
        chosen = processor.sample_frames(reader.metadata_of(segment), num_clips=1) + segment.start
        clips = reader.read(chosen)
    times, stop = times[chosen[0]], float(times[segment.stop])
    # A model takes one clip; what resizes and crops is apart from what makes numbers of bytes.
    as_images = partial(_process, processor, do_rescale=False, do_normalize=False)
    images = as_images(clips[0])
    height, width = clips.shape[2:4]
    columns, rows = np.meshgrid(np.arange(width), np.arange(height))
    places = as_images(np.stack([columns, rows, 0 * rows], axis=-1)[None].astype(np.float32))
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


def frame_shares(heat_map: np.ndarray) -> np.ndarray:
    """The share of the evidence, a heat map (T, H, W) of 0 or more, that lies on each frame: (T,) float64 with the sum
    1; all 0 if there is no evidence."""
    evidence = np.asarray(heat_map, dtype=np.float64).sum(axis=(1, 2))
    return evidence / (evidence.sum() or 1.0)


def top_frames(shares: np.ndarray, count: int = 3) -> list[int]:
    """The frames that counted most by their [`frame_shares`], the first one most: at most `count`, each with at least
    an even share. Of neighbours with the same share, as those of a tubelet, the first one counts."""
    # The highest of some numbers may be below their mean by a rounding error.
    even = shares.mean() * (1 - 1e-9)
    is_first = np.append(True, ~np.isclose(shares[1:], shares[:-1], rtol=1e-6, atol=0))
    ranked = np.argsort(-shares, kind="stable").tolist()
    return [frame for frame in ranked if is_first[frame] and shares[frame] > 0 and shares[frame] >= even][:count]


def describe_frames(clip: Clip, heat_map: np.ndarray) -> list[dict[str, Any]]:
    """What a heat map (T, H, W) in [0, 1] says of each frame: its time in `seconds`, its `share` of the evidence, and
    its `highest` place, column and row in pixels of the video; None where there is no evidence."""
    entries = []
    for seconds, share, heat in zip(clip.times, frame_shares(heat_map), heat_map, strict=True):
        column, row = clip.places[np.unravel_index(heat.argmax(), heat.shape)].tolist()
        highest = [round(column, 1), round(row, 1)] if share else None
        entries.append({"seconds": round(float(seconds), 3), "share": round(float(share), 6), "highest": highest})
    return entries


def explain(
    model: PreTrainedModel,
    inputs: torch.Tensor | Mapping[str, Any],
    target: int | torch.Tensor | None = None,
) -> torch.Tensor:
    """
    Heat maps of the evidence for a class: which pixels of which frames speak for it. Evidence against it is left out.

    Models that record attention between all tokens of a clip (VideoViT, VideoMAE, ViViT, V-JEPA 2) are explained by
    the roll-out of that attention, weighted by its gradients: equations 5 and 6 of Chefer, Gur and Wolf, "Generic
    Attention-model Explainability" (ICCV 2021). Attention is eager, and that of all layers is in memory, twice: in
    float32 2.8 GB for VideoViT-B with 1568 tokens, and 7.6 GB for VideoViT-L.

    All others (VideoMamba, TimeSformer, VideoPrism) are explained by integrated gradients from a blank clip, which has
    the median colour of the clip: equation 1 of Sundararajan, Taly and Yan, "Axiomatic Attribution for Deep Networks"
    (ICML 2017), in 8 steps. A patch that looks like the blank clip has no evidence, whatever the model has learned.

    The model computes in evaluation mode, one video after the other. Afterwards it is as it was, also after an error.

    Args:
        model: a video classifier, also a `PeftModel`, a quantised or a compiled one.
        inputs: `pixel_values` (batch_size, num_frames, num_channels, height, width), or the mapping with them that the
            processor gives; moved to the model's device and dtype.
        target: class id, or ids (batch_size,) int64; for a regression or multi-label model the number of the output.
            By default the class with the highest score.

    Returns:
        (batch_size, num_frames, height, width) float32 in [0, 1], on the CPU; the highest value of a video is 1, or 0
        if nothing speaks for the class. Values are linear between the centres of the model's patches.

    Raises:
        ValueError: the model has no classes of clips, reads frames into a memory (MemoryBankQFormer), or its patches
            cannot be found; the inputs are not a batch of clips; there is no such class; or the model gives no
            gradients or values that are not finite.
    """
    model = getattr(model, "_orig_mod", model)
    if hasattr(model, "get_base_model"):
        model = model.get_base_model()
    if not hasattr(model, "classifier") or not model.config.num_labels:
        raise ValueError(
            f"{type(model).__name__} is not a classifier with a head: heat maps need a class to explain. Load the "
            "model with AutoModelForVideoClassification, with at least one label."
        )
    if model.config.model_type == "memory_bank_qformer":
        raise ValueError(f"{type(model).__name__} has no heat maps: no gradients run through its memory.")
    name = model.main_input_name
    clips = inputs.get(name) if isinstance(inputs, Mapping) else inputs
    if clips is None or clips.ndim != 5:
        raise ValueError(
            f"{type(model).__name__} takes `{name}` (batch_size, num_frames, num_channels, height, width), got "
            f"{[*inputs] if clips is None else tuple(clips.shape)}. Of several views of a video, explain one."
        )
    ids: list[Any] = [None] if target is None else torch.as_tensor(target).flatten().tolist()
    last = model.config.num_labels - 1
    if len(ids) not in (1, len(clips)) or not all(each is None or each in range(last + 1) for each in ids):
        raise ValueError(
            f"`target` is {target!r}; the id of a class, or one for each of {len(clips)} videos, is expected, from 0 "
            f"to {last}."
        )
    patch_shape = find_patch_shape(model)
    with _explainable(model), torch.inference_mode(False), torch.enable_grad():
        # Tensors of a caller's inference mode cannot take part in gradients; their copies can.
        parts = clips.to(model.device, model.dtype).clone().split(1)
        return torch.cat([_explain_clip(model, patch_shape, *pair) for pair in zip(parts, cycle(ids), strict=False)])


@contextmanager
def _explainable(model: PreTrainedModel) -> Iterator[None]:
    """Evaluation mode, no gradients of parameters, and eager attention: fused implementations do not return weights.
    What was compiled runs as Python: a compiled model does not use the attention weights that it returns."""
    training = [module for module in model.modules() if module.training]
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    configs = [part.config for part in model.modules() if isinstance(part, PreTrainedModel)]
    attentions = [config._attn_implementation for config in configs]
    try:
        model.eval().requires_grad_(False)
        for config in configs:
            config._attn_implementation = "eager"
        with torch.compiler.set_stance("force_eager"):
            yield
    finally:
        for config, attention in zip(configs, attentions, strict=True):
            config._attn_implementation = attention
        for parameter in trained:
            parameter.requires_grad_(True)
        for module in training:
            module.training = True


def _explain_clip(
    model: PreTrainedModel, patch_shape: tuple[int, int, int], clip: torch.Tensor, target: int | None
) -> torch.Tensor:
    """The heat map (1, num_frames, height, width) of one clip."""
    (_, num_frames, _, height, width), (dt, dh, dw) = clip.shape, patch_shape
    t, h, w = num_frames // dt, height // dh, width // dw
    if not t * h * w:
        raise ValueError(f"{num_frames} frames of {height} x {width} pixels hold no patch of {patch_shape}.")
    if target is None:
        with torch.no_grad():
            target = int(model(**{model.main_input_name: clip}).logits[0].argmax())
    evidence = roll_out_attention(model, (t, h, w), clip, target)
    if evidence is None:
        products = integrate_gradients(model, clip, target).float()
        # What fills no patch at the end is left out.
        evidence = F.avg_pool3d(products.sum(2)[:, None], patch_shape, divisor_override=1)[:, 0].clamp(min=0)
    if not evidence.isfinite().all():
        raise ValueError(
            f"The gradients of class {target} are not finite: check the inputs for NaN, and explain a model in "
            "float16 in float32."
        )
    maps = F.interpolate(evidence.float().cpu(), size=(h * dh, w * dw), mode="bilinear").repeat_interleave(dt, 1)
    maps = F.pad(maps, (0, width - w * dw, 0, height - h * dh, 0, num_frames - t * dt))
    highest = maps.amax((1, 2, 3), keepdim=True)
    return maps / highest.where(highest > 0, 1)


def _class_score(model: PreTrainedModel, logits: torch.Tensor, target: int) -> torch.Tensor:
    """One output of a model for one clip: (1,), of its logits, through which gradients can run."""
    if logits.numel() != model.config.num_labels:
        raise ValueError(f"{type(model).__name__} gives classes of frames, and none of a clip that a map could be of.")
    if not logits.requires_grad:
        raise ValueError(
            "The model gives no gradients, which heat maps need. If it rounds its activations (int8), load it without "
            "quantisation, or with weights alone in int8."
        )
    return logits.reshape(1, -1)[:, target]


def roll_out_attention(
    model: PreTrainedModel, grid: tuple[int, int, int], clip: torch.Tensor, target: int
) -> torch.Tensor | None:
    """Evidence (1, t, h, w) of the patches of a clip. None if the model does not record attention over one sequence of
    a class token, or none, and then all patches in the order time, row, column.

    In each layer, for attention A with gradient G, with the mean over heads, A_bar = mean(max(G * A, 0)) and
    R <- R + A_bar R, from R = 1. The evidence of a token is the mean of its column in R - 1 over the rows that the
    head of the model reads: all tokens, or the class token. Those rows have a gradient in the last layer, others have
    none. As the last layer's gradient comes first, the mean of rows is rolled out from there, as the gradient of a
    class runs back: a row takes the place of a matrix a layer.
    """
    if "attentions" not in (model._can_record_outputs or {}) or not model._can_set_attn_implementation():
        return None
    inputs = {model.main_input_name: clip.detach().requires_grad_()}
    outputs = model(**inputs, output_attentions=True, return_dict=True)
    score = _class_score(model, outputs.logits, target)
    attentions, num_patches = outputs.attentions or (), math.prod(grid)
    shapes = {(len(attention), *attention.shape[2:]) for attention in attentions}
    if shapes not in ({(1, num_patches, num_patches)}, {(1, num_patches + 1, num_patches + 1)}):
        return None
    rows: list[torch.Tensor] = []

    def add(attention: torch.Tensor, gradient: torch.Tensor) -> None:
        """Takes in the layer before the last one added; both (1, num_heads, num_tokens, num_tokens)."""
        weights = (attention * gradient).clamp(min=0)
        weights = weights.to(torch.promote_types(weights.dtype, torch.float32)).mean(1)
        if not rows:
            read = gradient.ne(0).any(-1).any(1).to(weights)
            rows.append(read / read.sum(1, keepdim=True).clamp(min=1))
        rows.append(rows[-1] + (rows[-1][:, None] @ weights)[:, 0])

    for attention in attentions:
        attention.register_hook(partial(add, attention.detach()))
    torch.autograd.grad(score, inputs[model.main_input_name])
    return (rows[-1] - rows[0])[:, -num_patches:].reshape(1, *grid)


def integrate_gradients(model: PreTrainedModel, clip: torch.Tensor, target: int) -> torch.Tensor:
    """The share of each value of a clip, of its shape, in the score of a class less that of the blank clip. A patch
    becomes a token by an affine map, so the sum over its pixels is that over the channels of its token. The pixels
    have their places, whatever order, class token or scan comes behind."""
    colors = clip.float().transpose(1, 2).flatten(2).median(-1).values.to(clip.dtype)
    blank = colors[:, None, :, None, None]
    gradient = torch.zeros_like(clip)
    for place, weight in zip(*np.polynomial.legendre.leggauss(_NUM_STEPS), strict=True):
        between = (blank + float(place + 1) / 2 * (clip - blank)).requires_grad_()
        score = _class_score(model, model(**{model.main_input_name: between}).logits, target)
        gradient += float(weight) / 2 * torch.autograd.grad(score, between)[0]
    return gradient * (clip - blank)


def find_patch_shape(model: PreTrainedModel) -> tuple[int, int, int]:
    """Frames, rows and columns of the patches that a model cuts a clip into: the kernel of the only convolution in the
    input embeddings of the model or, if these read text, of the vision tower within it; of a linear layer the
    `patch_shape` of the embeddings' configuration."""
    for part in (part for part in model.modules() if isinstance(part, PreTrainedModel)):
        try:
            embedding = part.get_input_embeddings()
        except NotImplementedError:
            continue
        found = [] if embedding is None else list(_projections(embedding))
        if len(found) == 1:
            kernel = getattr(found[0], "kernel_size", None)
            shape = getattr(getattr(embedding, "config", None), "patch_shape", None) if kernel is None else kernel
            # Patches of a convolution with other strides overlap.
            if shape is not None and (kernel is None or (kernel == found[0].stride and not any(found[0].padding))):
                dt, dh, dw = (1, *shape)[-3:]
                return dt, dh, dw
    raise ValueError(
        f"{type(model).__name__} cannot be explained: no layer was found that turns patches of pixels into tokens."
    )


def _projections(module: nn.Module) -> Iterator[Any]:
    """The convolutions and linear layers in a module. One with a LoRA adapter of PEFT is one layer."""
    layer = getattr(module, "base_layer", module)
    if isinstance(layer, nn.Conv2d | nn.Conv3d | nn.Linear):
        yield layer
    else:
        for child in module.children():
            yield from _projections(child)
