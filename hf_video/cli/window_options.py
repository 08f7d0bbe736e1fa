"""The options of windows under the names that functions give them."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hf_video.processing import VideoClipProcessor


def window_options(args: argparse.Namespace, processor: VideoClipProcessor) -> dict[str, Any]:
    """The options of `window_batches` in the values of `WindowSettings`.

    Raises:
        ValueError: both --fps and --frame-sampling-rate are given.
    """
    from hf_video.inference.window_batching import choose_windows

    if args.fps is not None and args.frame_sampling_rate is not None:
        raise ValueError(
            f"--fps {args.fps:g} and --frame-sampling-rate {args.frame_sampling_rate:g} both set the rate of samples: "
            "give one of them."
        )
    windows = choose_windows(
        processor,
        num_frames=args.window,
        stride=args.stride,
        fps=args.fps,
        frame_sampling_rate=args.frame_sampling_rate,
    )
    return windows | {"last": args.last_window, "source_fps": args.source_fps}
