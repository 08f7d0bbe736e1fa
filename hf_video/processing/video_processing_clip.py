"""Video processor that makes the input of a model: samples clips, resizes, crops and normalises."""

from typing import Any

import numpy as np
import torch
from torchvision.transforms import InterpolationMode
from torchvision.transforms.v2 import functional as F
from transformers.image_processing_utils import BatchFeature
from transformers.image_transforms import get_resize_output_image_size
from transformers.image_utils import (
    IMAGENET_DEFAULT_MEAN,
    IMAGENET_DEFAULT_STD,
    ChannelDimension,
    PILImageResampling,
    SizeDict,
)
from transformers.processing_utils import Unpack, VideosKwargs
from transformers.utils import TensorType
from transformers.video_utils import VideoInput, VideoMetadata, make_batched_metadata

from .clip_sampling import STRIDED_STRATEGIES, sample_at_rate, sample_clip_indices
from .option_checks import check_options, check_shapes, check_statistics, require_positive
from .uint8_resize import resize_bicubic, resize_bilinear
from .video_inputs import TensorVideoProcessor, check_values, flatten_videos, is_array, sample_array


class VideoClipProcessorKwargs(VideosKwargs, total=False):  # type: ignore[call-arg]
    """
    Keyword arguments of `VideoClipProcessor`, on top of those of every video processor.

    Attributes:
        num_frames (`int`, *optional*, defaults to 16):
            Number of frames of a clip. With `None`, a clip has as many frames as the video has at the sampling rate.
        frame_sampling_rate (`float`, *optional*, defaults to 4):
            Distance between the frames of a "dense" or "strided" clip, in frames of the video. Excludes `fps`.
        fps (`float`, *optional*):
            Frames per second of a "dense" or "strided" clip, for videos of any rate.
        sampling_strategy (`str`, *optional*, defaults to `"dense"`):
            How clips are laid out in the video: a name of `SAMPLING_STRATEGIES`; see `sample_clip_indices`.
        num_clips (`int`, *optional*, defaults to 1):
            Number of clips of a video.
        num_crops (`int`, *optional*, defaults to 1):
            Number of crops of a clip: 1 is the centre crop, more are spread evenly along the longer side (for crops
            that are not square, along the side with more room).
        repeat_last_frame (`bool`, *optional*, defaults to `True`):
            Whether a video that is shorter than a clip may repeat frames. Otherwise it is an error.
        antialias (`bool`, *optional*, defaults to `False`):
            Whether to smooth while shrinking. The original models were trained and evaluated without it.
        round_resized (`bool`, *optional*, defaults to `False`):
            Whether 8-bit values of bicubic resizing without `antialias` are rounded, as by torchvision, for VideoMamba
            with text. Otherwise their fractions are dropped, as by MA-LMM.
    """

    frame_sampling_rate: int | float | None
    sampling_strategy: str | None
    num_clips: int | None
    num_crops: int | None
    repeat_last_frame: bool | None
    antialias: bool | None
    round_resized: bool | None


class VideoClipProcessor(TensorVideoProcessor):
    r"""
    Constructs a video processor that samples clips from videos, resizes their shorter side, crops and normalises.

    A video has `num_clips * num_crops` views; the crops of a clip are next to each other. If there are several views,
    they have an axis of their own, and the classifiers of this package average the class probabilities over it. So the
    options saved with a model are the protocol of its evaluation and use. All views of a batch pass through the model
    at once: consider them for the batch size.

    Args:
        frame_interval (`float`, *optional*):
            Seconds between two frames next to each other in the clips that the model learned from, whatever the
            options say. It is a fact about the model, which training measures; sliding windows take their frames at
            this distance. `None` if it is unknown.
        kwargs (`VideoClipProcessorKwargs`):
            Defaults of the options, which every call can override.

    Raises:
        `ValueError`: for an option out of range, or something that is not a video; the message names the value.
        `VideoReadError`: for a file that cannot be read.

    Example:

    ```python
    >>> from hf_video import VideoClipProcessor

    >>> processor = VideoClipProcessor(num_frames=16, frame_sampling_rate=4, num_clips=5, num_crops=3)
    >>> inputs = processor("archery.mp4", return_tensors="pt")
    >>> inputs["pixel_values"].shape
    torch.Size([1, 15, 16, 3, 224, 224])
    ```
    """

    valid_kwargs = VideoClipProcessorKwargs
    model_input_names = ["pixel_values"]

    do_sample_frames = True
    num_frames = 16
    frame_sampling_rate = 4
    sampling_strategy = "dense"
    num_clips = 1
    repeat_last_frame = True
    frame_interval: float | None = None

    do_convert_rgb = True
    do_resize = True
    size = {"shortest_edge": 224}
    default_to_square = False
    resample = PILImageResampling.BILINEAR
    antialias = False
    round_resized = False
    do_center_crop = True
    crop_size = {"height": 224, "width": 224}
    num_crops = 1
    do_rescale = True
    rescale_factor = 1 / 255
    do_normalize = True
    image_mean = IMAGENET_DEFAULT_MEAN
    image_std = IMAGENET_DEFAULT_STD

    def __init__(self, **kwargs: Unpack[VideoClipProcessorKwargs]):
        kwargs = self._settle_rate(kwargs)
        check_shapes(kwargs)
        super().__init__(**kwargs)
        if self.frame_interval is not None:
            require_positive("frame_interval", self.frame_interval)
        check_options({name: getattr(self, name) for name in self.valid_kwargs.__annotations__})

    def preprocess(self, videos: VideoInput, **kwargs: Unpack[VideoClipProcessorKwargs]) -> BatchFeature:
        """
        Turn videos into a batch of views.

        Args:
            videos:
                A video or a (nested) list of videos. A video is a path or URL of a file, a path of a folder of JPEG /
                PNG frames, an array or tensor (num_frames, height, width, channels) or (num_frames, channels, height,
                width) of uint8, or float in [0, 255] (any range with `do_rescale=False`), or a list of frames: PIL
                images or arrays of one size.
            kwargs (`VideoClipProcessorKwargs`):
                Options for this call. For `None`, the option of the processor counts.

        Returns:
            `BatchFeature`: with `pixel_values` (batch, num_frames, channels, height, width), or (batch, num_clips *
            num_crops, num_frames, channels, height, width) with several views; float32, or the dtype of the input if
            it is neither rescaled nor normalised. The key is the first of `model_input_names`, as the model of the
            processor calls its input. With `return_metadata=True` also `video_metadata`, one entry for each video.
            With `do_sample_frames=False` a video is one clip, and `num_clips` is ignored.
        """
        options = self.valid_kwargs.__annotations__
        # Other names stay, also with None: the base class refuses them.
        given = {name: value for name, value in kwargs.items() if value is not None or name not in options}
        kwargs = self._settle_rate(given)
        check_shapes(kwargs)
        defaults = {name: getattr(self, name, None) for name in options}
        check_options(self._standardize_kwargs(**{**defaults, **kwargs}))
        return super().preprocess(videos, **kwargs)

    def sample_frames(
        self,
        metadata: VideoMetadata,
        num_frames: int | None = None,
        fps: int | float | None = None,
        generator: np.random.Generator | None = None,
        **kwargs: Any,
    ) -> np.ndarray:
        """
        Indices of the frames of every clip of a video.

        Args:
            metadata (`VideoMetadata`):
                Metadata of the video. To sample clips at a given `fps`, its rate must be known.
            num_frames, fps, kwargs (`VideoClipProcessorKwargs`):
                The options of sampling. They default to those of the processor.
            generator (`np.random.Generator`, *optional*):
                Draws the clips at random, for training. By default the clips are those of evaluation.

        Returns:
            `np.ndarray`: (num_clips, num_frames) int64.

        Raises:
            `ValueError`: if `fps` is given and the rate of the video is unknown, or the video is shorter than a clip
                and `repeat_last_frame` is off.
        """
        names = ("sampling_strategy", "num_clips", "repeat_last_frame")
        options = {name: getattr(self, name) if kwargs.get(name) is None else kwargs[name] for name in names}
        rate, is_strided = kwargs.get("frame_sampling_rate"), options["sampling_strategy"] in STRIDED_STRATEGIES
        fps = self.fps if fps is None and rate is None else fps
        rate = self.frame_sampling_rate if rate is None else rate
        num_frames = self.num_frames if num_frames is None else num_frames
        if fps is not None:
            if not metadata.fps:
                raise ValueError(
                    f"fps={fps} needs the frame rate of the video, which is unknown. Give video_metadata with `fps`, "
                    "or use frame_sampling_rate."
                )
            # `hf_video.reading` tells the times of frames.
            times = getattr(metadata, "times", None)
            if times is not None and metadata.duration and is_strided:
                unsteady = sample_at_rate(times, metadata.duration, fps, num_frames, generator=generator, **options)
                if unsteady is not None:
                    return unsteady
            rate = metadata.fps / fps
        rate = 1 if rate is None or not is_strided else rate
        total = metadata.total_num_frames
        num_frames = max(int(total / rate), 1) if num_frames is None else num_frames
        strategy = options.pop("sampling_strategy")
        return sample_clip_indices(strategy, total, num_frames, rate, generator=generator, **options)

    def fetch_videos(self, video_url_or_urls: Any, sample_indices_fn: Any = None) -> Any:
        """Frames and metadata of what `read_video` takes, at the indices that `sample_indices_fn(metadata=)` returns;
        for a (nested) list, a list of all frames and a list of all metadata."""
        if isinstance(video_url_or_urls, (list, tuple)):
            fetched = [self.fetch_videos(video, sample_indices_fn) for video in video_url_or_urls]
            return [list(column) for column in zip(*fetched, strict=True)]
        # At the top this would be a circle: reading imports Transformers, which registers this class.
        try:
            from hf_video.reading import read_video
        except ModuleNotFoundError:  # on a machine without hf_video
            from .plain_video_reading import read_video
        return read_video(video_url_or_urls, sample_indices_fn)

    def _decode_and_sample_videos(
        self, videos: VideoInput, video_metadata: Any, do_sample_frames: Any = None, sample_indices_fn: Any = None
    ) -> tuple[list[Any], list[VideoMetadata]]:
        """The clips (num_clips, num_frames, ...) and the metadata of each video."""
        sources = flatten_videos(videos)
        given = [None] * len(sources) if video_metadata is None else make_batched_metadata(sources, video_metadata)
        read = [
            sample_array(source, metadata, sample_indices_fn)
            if is_array(source)
            else self.fetch_videos(source, sample_indices_fn)
            for source, metadata in zip(sources, given, strict=True)
        ]
        return [frames if do_sample_frames else frames[None] for frames, _ in read], [metadata for _, metadata in read]

    def resize(
        self, image: torch.Tensor, size: SizeDict, resample: Any = None, antialias: Any = True, **kwargs: Any
    ) -> torch.Tensor:
        """As in the base class. But 8-bit resizing without antialiasing gives the values of the originals' tools."""
        rounds = bool(kwargs.pop("round_resized", False))
        is_bilinear = resample in (PILImageResampling.BILINEAR, InterpolationMode.BILINEAR)
        is_bicubic = resample in (PILImageResampling.BICUBIC, InterpolationMode.BICUBIC)
        is_exact = (is_bilinear or is_bicubic) and not antialias and image.dtype == torch.uint8
        if not is_exact or size.longest_edge or size.max_height:
            return super().resize(image, size, resample, antialias=bool(antialias), **kwargs)
        if size.shortest_edge:
            height, width = get_resize_output_image_size(
                image, size.shortest_edge, default_to_square=False, input_data_format=ChannelDimension.FIRST
            )
        else:
            height, width = size.height, size.width
        if is_bilinear:
            return resize_bilinear(image, height, width)
        return resize_bicubic(image, height, width, rounds)

    def _preprocess(
        self, videos: list[torch.Tensor], return_tensors: str | TensorType | None = None, **options: Any
    ) -> BatchFeature:
        prepared: list[torch.Tensor] = []
        for clips in videos:
            check_values(clips, options["do_rescale"])
            frames = clips.flatten(0, 1)
            if options["do_resize"]:
                given = {name: options[name] for name in ("size", "resample", "antialias", "round_resized")}
                frames = self.resize(frames, **given)
            if options["do_normalize"]:
                check_statistics(options["image_mean"], options["image_std"], num_channels=frames.shape[-3])
            crops = [frames]
            if options["do_center_crop"]:
                crops = self._crop(frames, options["crop_size"], options["num_crops"])
            # Bytes are copied before they become floats, which are four times as large.
            views = torch.stack([crop.unflatten(0, clips.shape[:2]) for crop in crops], dim=1).flatten(0, 1)
            views = self.normalize_frames(views, options)
            prepared.append(views if len(views) > 1 else views[0])
        shapes = sorted({tuple(video.shape[-4:]) for video in prepared})
        if return_tensors is not None and len(shapes) > 1:
            raise ValueError(
                f"Views of the shapes {shapes} (frames, channels, height, width) do not fit into one batch. "
                "Sample num_frames frames of each video and crop them, or process the videos one by one."
            )
        # The base class would copy a single video to stack it.
        is_single = return_tensors is not None and len(prepared) == 1
        pixel_values = prepared[0][None] if is_single else prepared
        return BatchFeature(data={self.model_input_names[0]: pixel_values}, tensor_type=return_tensors)

    def center_crop(self, image: torch.Tensor, size: SizeDict, **kwargs: Any) -> torch.Tensor:
        """
        The centre crop of torchvision and the originals, which rounds half a pixel to the even one; the base class
        rounds it down. Small frames are padded with zeros.
        """
        return F.center_crop(image, [size.height, size.width])

    def _crop(self, video: torch.Tensor, crop_size: SizeDict, num_crops: int) -> list[torch.Tensor]:
        """The centre crop, or `num_crops` crops, spread along the side with more room and centred on the other."""
        if num_crops == 1:
            return [self.center_crop(video, crop_size)]
        height, width = video.shape[-2:]
        room_y, room_x = height - crop_size.height, width - crop_size.width
        if room_y < 0 or room_x < 0:
            raise ValueError(
                f"crop_size={dict(crop_size)} does not fit {num_crops} times into frames of {height} x {width}; "
                "use a larger size or num_crops=1."
            )
        is_wide = room_x >= room_y
        dim, room, side = (-1, room_x, crop_size.width) if is_wide else (-2, room_y, crop_size.height)
        strip = F.center_crop(video, [crop_size.height, width] if is_wide else [height, crop_size.width])
        return [strip.narrow(dim, int(i * room / (num_crops - 1)), side) for i in range(num_crops)]

    @classmethod
    def from_dict(cls, video_processor_dict: dict[str, Any], **kwargs: Any) -> Any:
        """As in the base class. `fps` in `kwargs` replaces `frame_sampling_rate` in the dictionary, and vice versa."""
        return super().from_dict(video_processor_dict, **cls._settle_rate(kwargs))

    @staticmethod
    def _settle_rate(kwargs: Any) -> Any:
        """Options in which `fps` switches `frame_sampling_rate` off, and vice versa."""
        rates = {name: kwargs.get(name) for name in ("fps", "frame_sampling_rate")}
        if None not in rates.values():
            raise ValueError(
                f"{' and '.join(f'{k}={v}' for k, v in rates.items())} both set the rate of a clip; give one."
            )
        return {**kwargs, **rates} if any(rate is not None for rate in rates.values()) else kwargs
