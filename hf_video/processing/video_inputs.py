"""The videos that a video processor accepts, brought into one form."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from PIL import Image
from transformers.image_utils import ChannelDimension, infer_channel_dimension_format
from transformers.video_processing_utils import BaseVideoProcessor
from transformers.video_utils import VideoMetadata


class TensorVideoProcessor(BaseVideoProcessor):
    """A video processor whose videos (..., num_frames, height, width, channels) need not have four dimensions."""

    def _prepare_input_videos(
        self, videos: list[Any], do_convert_rgb: bool | None = None, input_data_format: Any = None, device: Any = None
    ) -> list[torch.Tensor]:
        prepared = []
        for video in videos:
            # Reversed arrays have negative strides, which tensors cannot have.
            tensor = video if isinstance(video, torch.Tensor) else torch.from_numpy(np.ascontiguousarray(video))
            frames = channels_first(tensor.to(device), input_data_format)
            prepared.append(self.convert_to_rgb(frames) if do_convert_rgb else frames)
        return prepared

    def normalize_frames(self, frames: torch.Tensor, options: dict[str, Any]) -> torch.Tensor:
        """As `rescale_and_normalize`, by the options of a call."""
        names = ("do_rescale", "rescale_factor", "do_normalize", "image_mean", "image_std")
        return self.rescale_and_normalize(frames, *(options[name] for name in names))


def is_array(video: Any) -> bool:
    """Whether a video is an array or tensor of frames, so that nothing has to be read."""
    return isinstance(video, (np.ndarray, torch.Tensor))


def flatten_videos(videos: Any) -> list[Any]:
    """
    The videos of a (nested) list as `VideoClipProcessor` takes them: arrays and tensors of four dimensions; paths,
    URLs and files as they are.

    Raises:
        `ValueError`: for an empty list, frames of several sizes, or a wrong number of dimensions.
    """
    if isinstance(videos, (list, tuple)):
        if not videos:
            raise ValueError("Got an empty list; expected a video, a list of frames or a list of videos.")
        if all(isinstance(item, Image.Image) or (is_array(item) and item.ndim <= 3) for item in videos):
            return [_stack_frames(videos)]
        return [video for item in videos for video in flatten_videos(item)]
    if isinstance(videos, Image.Image):
        raise ValueError("Got a single image; a video is a list of frames: wrap it in a list.")
    if not is_array(videos) or videos.ndim == 4:
        return [videos]
    if videos.ndim == 5:
        return list(videos)
    raise ValueError(
        "An array video is (num_frames, height, width, channels) or (num_frames, channels, height, width), "
        f"got {videos.ndim} dimensions: {tuple(videos.shape)}."
    )


def _stack_frames(frames: Any) -> Any:
    modes = {frame.mode for frame in frames if isinstance(frame, Image.Image)}
    if len(modes) > 1 or not modes <= {"RGB", "RGBA"}:
        # Arrays of palettes and of other modes would not hold colours.
        frames = [frame.convert("RGB") if isinstance(frame, Image.Image) else frame for frame in frames]
    if not all(isinstance(frame, torch.Tensor) for frame in frames):
        frames = [np.asarray(frame) for frame in frames]
    shapes = {tuple(frame.shape) for frame in frames}
    if len(shapes) > 1:
        raise ValueError(f"The frames of a video must have one size, got the shapes {sorted(shapes)}.")
    return torch.stack(list(frames)) if isinstance(frames[0], torch.Tensor) else np.stack(frames)


def sample_array(
    video: Any, metadata: VideoMetadata | None, sample_indices_fn: Callable[..., np.ndarray] | None
) -> tuple[Any, VideoMetadata]:
    """
    The frames (*indices.shape, ...) of an array (total_num_frames, ...) at the indices that
    `sample_indices_fn(metadata=...)` returns, by default all of them; and the metadata with `frames_indices`.

    Raises:
        `ValueError`: if there is no frame, or the metadata have another number of frames.
    """
    if len(video) == 0:
        raise ValueError(f"A video has at least one frame, got an array of shape {tuple(video.shape)}.")
    metadata = metadata or VideoMetadata(total_num_frames=len(video))
    if sample_indices_fn is None:
        return video, metadata
    if metadata.total_num_frames != len(video):
        raise ValueError(
            f"video_metadata says total_num_frames={metadata.total_num_frames}, but the array has {len(video)}. "
            "Correct it, or use do_sample_frames=False if the frames are sampled already."
        )
    indices = sample_indices_fn(metadata=metadata)
    return video[indices], replace(metadata, frames_indices=indices.ravel().tolist())


def channels_first(video: torch.Tensor, input_data_format: str | ChannelDimension | None) -> torch.Tensor:
    """
    Move the channels of (..., num_frames, height, width, channels) before height and width. By default the shape tells
    where they are: if two dimensions can be the channels, the one of three is taken, else the one after the frames.
    Raises `ValueError` if neither dimension is 1, 3 or 4.
    """
    if input_data_format is None and video.shape[-1] == 3 != video.shape[-3]:
        input_data_format = ChannelDimension.LAST
    try:
        input_data_format = input_data_format or infer_channel_dimension_format(video, num_channels=(1, 3, 4))
    except ValueError as error:
        raise ValueError(
            f"A video has 1, 3 or 4 channels, last or after the frames; got the shape {tuple(video.shape[-4:])}."
        ) from error
    return video.movedim(-1, -3).contiguous() if input_data_format == ChannelDimension.LAST else video


def check_values(video: torch.Tensor, do_rescale: bool | None) -> None:
    """Raise `ValueError` for a dtype other than uint8 and float. With `do_rescale`, also for float values outside
    [0, 255], and for values that are all in [0, 1], which are rescaled already."""
    if video.dtype == torch.uint8:
        return
    if not video.is_floating_point():
        raise ValueError(f"A video is uint8 or float, got {video.dtype}; convert it first.")
    if not do_rescale:
        return
    low, high = (bound.item() for bound in video.aminmax())
    if not (low >= 0 and high <= 255):
        raise ValueError(f"A float video lies in [0, 255], got values from {low} to {high}.")
    if 0 < high <= 1:
        raise ValueError(f"This float video lies in [0, {high}] and seems rescaled already; use do_rescale=False.")
