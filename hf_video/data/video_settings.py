"""Declares the settings of labelled videos and of training clips: broken videos, augmentation and mixing."""

from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import partial
from typing import Annotated, Any, Literal

from annotated_types import Gt, Le

from hf_video.settings import AtLeast1, Mark, NotNegative, Share, setting

# What happens to a video that cannot be read.
OnError = Literal["error", "skip", "replace"]
# Type and help of the setting `reading_threads`, see `ReadAheadLoader`.
ReadingThreads = NotNegative[int] | None
READING_THREADS = (
    "Threads that read videos while the model works, if no processes do; default: half the cores, 0: none."
)

_NAMES = partial(str.split, sep=",")
# What can be chosen for an annotation file, and how the text of a choice is read.
CHOICES: dict[str, Callable[[str], Any]] = {"classes": _NAMES, "tiers": _NAMES, "tier_is_class": _NAMES}
CHOICES |= {"attribute": str, "point_width": float, "by": str}


@dataclass(kw_only=True)
class VideoRootSettings:
    """Videos"""

    video_root: Annotated[str | None, Mark(changeable=True)] = setting(
        None, "Where relative paths in a CSV, list or JSON file begin; by default the folder of that file.", "DIR"
    )


@dataclass(kw_only=True)
class LabelledVideosSettings(VideoRootSettings):
    """Videos"""

    data: Annotated[str, Mark(common=True, form="word", names="videos")] = setting(
        help="Labelled videos, as for `hf-video train`.", metavar="DATA"
    )
    class_from: Literal["code", "code+modifier", "subject+code"] = setting(
        "code", "Annotation files of BORIS, ELAN and others: what the class of a row is made of."
    )
    choose: Annotated[list[str] | None, Mark(form="several")] = setting(
        None,
        "Annotation files: what they do not say: classes=NAME,NAME (columns, of SimBA), tiers= and tier_is_class= (of "
        "ELAN), attribute= (of VIA), point_width=SECONDS (around instants; 0.5 with --task frames), by=person "
        "(the default), by=model (what `hf-video timeline` wrote; default of evaluate --task segments) or by=all.",
        "NAME=VALUE",
    )


def annotation_choices(settings: LabelledVideosSettings) -> dict[str, Any]:
    """What the settings say of an annotation file, as `choices` of `read_annotations`."""
    given = [each.partition("=") for each in settings.choose or ()]
    if wrong := [name for name, _, value in given if name not in CHOICES or not value]:
        raise ValueError(f"--choose {wrong[0]}: one of {', '.join(f'{name}=VALUE' for name in CHOICES)} is expected.")
    found = {"class_from": settings.class_from, **{name: CHOICES[name](value) for name, _, value in given}}
    if not found.get("point_width", 1.0) > 0:
        raise ValueError(f"--choose point_width={found['point_width']:g}: a number of seconds above 0 is expected.")
    return found


@dataclass(kw_only=True)
class DetectionDataSettings:
    """Persons and their actions"""

    label_map: str | None = setting(
        None, "Names of actions by their ids, in AVA's form; by default actions are named as in the data.", "PBTXT"
    )
    exclude: str | None = setting(None, "Key frames that are left out: rows of video,second.", "CSV")
    first_second: NotNegative[float] = setting(
        0.0, "Second of the annotations at which the video files begin: 900 for AVA's files of 15 minutes."
    )


@dataclass(kw_only=True)
class DatasetSettings:
    """Data set of the Hub"""

    config: str | None = setting(None, "Configuration of the data set, if it has several.", "NAME")
    revision: str | None = setting(None, "Branch, tag or commit of the data set.", "REV")
    train_split: str | None = setting(None, "Split to train on; by default that with a usual name.", "NAME")
    validation_split: str | None = setting(None, "Split to validate with; by default that with a usual name.", "NAME")


def dataset_options(settings: DatasetSettings) -> dict[str, Any]:
    """The settings of a data set, as arguments of `load_video_dataset` and `load_video_stream`."""
    return {each.name: getattr(settings, each.name) for each in fields(DatasetSettings)}


@dataclass(kw_only=True)
class StreamSettings:
    """Data set of the Hub"""

    streaming: bool = setting(
        False, "Read the training videos from the Hub while the model trains, and keep none; needs max_steps."
    )
    shuffle_buffer_size: Annotated[AtLeast1[int], Mark(needs="streaming")] = setting(
        256, "Rows of a stream that are shuffled together; videos of three times as many are in memory."
    )


@dataclass(kw_only=True)
class KeptFramesSettings:
    """Videos"""

    kept_frames_gib: NotNegative[float] = setting(
        4.0, "GiB beside the checkpoints for frames, so that each is decoded once; 0: none, as published recipes say."
    )


@dataclass
class ClipAugmentationSettings:
    """Augmentation of training clips"""

    crop_min_area: Annotated[float, Gt(0), Le(1)] | None = setting(
        None, "Smallest share of a frame of a random resized crop; by default crops are not resized."
    )
    multi_scale_crop: bool = setting(
        False, "Crop 1, 0.875, 0.75 or 0.66 of the shorter side at one of 13 places, as VideoMAE's pre-training."
    )
    horizontal_flip: bool = setting(
        False, "Mirror half of the clips, but none of a class whose name says left, right or clockwise."
    )
    rand_augment_num_ops: NotNegative[int] = setting(0, "Operations of RandAugment, before the crop; 0: none.")
    rand_augment_magnitude: Annotated[NotNegative[float], Le(10)] = setting(7.0, "Mean magnitude of RandAugment.")
    rand_augment_magnitude_std: NotNegative[float] = setting(0.5, "Standard deviation of RandAugment's magnitude.")
    color_jitter: Share[float] = setting(0.0, "Largest relative change of brightness, contrast and saturation.")
    erasing_prob: Share[float] = setting(0.0, "Share of clips with a rectangle of noise, anew for each frame.")
    decode_to_size: bool = setting(
        False,
        "Decode training clips straight to the size that they need, which halves the work for large videos; values "
        "differ by some levels of 255 from a resize.",
    )
    augment_on: Literal["cpu", "device"] = setting(
        "cpu", "Where training clips are changed: on the CPU while they are read, or on the device of the training."
    )


@dataclass
class RepeatedAugmentationSettings:
    """Augmentation of training clips"""

    num_augmentations: AtLeast1[int] = setting(1, "Views of each clip in a batch (repeated augmentation).")


@dataclass
class ClipMixingSettings:
    """Mixing of the clips of a batch"""

    mixup_alpha: NotNegative[float] = setting(0.0, "MixUp: parameter of the Beta distribution of weights; 0: none.")
    cutmix_alpha: NotNegative[float] = setting(0.0, "CutMix: parameter of the Beta distribution of areas; 0: none.")
    mixing_prob: Share[float] = setting(1.0, "Share of batches that are mixed.")
    cutmix_prob: Share[float] = setting(0.5, "Share of CutMix where both are on.")
