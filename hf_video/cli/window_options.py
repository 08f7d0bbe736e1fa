"""The windows that a command slides over a video: as given, else as the model was saved."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from hf_video.processing import VideoClipProcessor


def window_options(args: argparse.Namespace, model: PreTrainedModel, processor: VideoClipProcessor) -> dict[str, Any]:
    """The options of `sliding_windows`.

    Args:
        args: values of `WindowSettings`.
        model: its `num_frames` is the default length of a window.
        processor: its rate is the default rate of samples, if clips of its sampling strategy have one.

    Raises:
        ValueError: both --fps and --frame-sampling-rate are given.
    """
    from hf_video.processing.clip_sampling import STRIDED_STRATEGIES

    if args.fps is not None and args.frame_sampling_rate is not None:
        raise ValueError(
            f"--fps {args.fps:g} and --frame-sampling-rate {args.frame_sampling_rate:g} both set the rate of samples: "
            "give one of them."
        )
    fps, rate = args.fps, args.frame_sampling_rate
    if fps is None and rate is None and processor.sampling_strategy in STRIDED_STRATEGIES:
        fps, rate = processor.fps, processor.frame_sampling_rate
    num_frames = args.window or getattr(model.config, "num_frames", None) or processor.num_frames
    return {
        "num_frames": num_frames,
        "stride": args.stride or max(num_frames // 2, 1),
        "fps": fps,
        "frame_sampling_rate": 1 if rate is None else int(rate) if rate == int(rate) else rate,
        "last": args.last_window,
        "source_fps": args.source_fps,
    }
