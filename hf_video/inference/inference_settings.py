"""Declares the settings of what uses a trained model. Nothing here imports PyTorch, so that `--help` is fast."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Le

from hf_video.data.video_settings import (
    READING_THREADS,
    DatasetSettings,
    DetectionDataSettings,
    LabelledVideosSettings,
    ReadingThreads,
    VideoRootSettings,
)
from hf_video.settings import (
    AtLeast1,
    Mark,
    NotNegative,
    Positive,
    Settings,
    Share,
    check_values,
    setting,
    with_defaults,
)

MODEL, VIDEO, SEVERAL = Mark(names="model"), Mark(names="videos", form="word"), Mark(form="several")
# What a segment is if nobody says otherwise: the score that begins it; and the seconds of the shortest one, and of the
# shortest gap in a class.
ONSET, SHORTEST_SEGMENT, SHORTEST_GAP = 0.5, 0.0, 0.0


@dataclass(kw_only=True)
class ComputingSettings:
    """Model"""

    device: str = setting("auto", "cpu, cuda, cuda:1, mps ...; auto: an accelerator if there is one.", "DEVICE")
    dtype: Literal["float32", "bfloat16", "float16"] = setting("float32", "Type of weights and inputs.")


@dataclass(kw_only=True)
class TrainedModelSettings(ComputingSettings):
    """Model"""

    model: Annotated[str, MODEL] = setting(
        help="A folder, or a name on the Hub or of `hf-video models`.", metavar="MODEL"
    )


@dataclass(kw_only=True)
class VideosSettings(VideoRootSettings):
    """Videos"""

    videos: Annotated[list[str], Mark(names="videos", form="words")] = setting(help="See above.", metavar="VIDEO")


@dataclass(kw_only=True)
class ClassificationSettings(TrainedModelSettings):
    """Model"""

    batch_size: AtLeast1[int] = setting(8, "Videos in one forward pass.")
    reading_threads: ReadingThreads = setting(None, READING_THREADS)
    num_clips: AtLeast1[int] | None = setting(None, "Clips taken from a video; by default as the model was saved.")
    num_crops: AtLeast1[int] | None = setting(None, "Crops of each clip; by default as the model was saved.")


@dataclass(kw_only=True)
class ReadingSettings(LabelledVideosSettings):
    """Data"""

    num_workers: NotNegative[int] = setting(0, "Processes that read videos; 0: the main one.")
    on_error: Literal["error", "skip"] = setting("error", "A video that cannot be read: stop, or leave it out.")


@dataclass(kw_only=True)
class FrameSourceSettings:
    """Source"""

    source_fps: Positive[float] | None = setting(None, "Frames per second of a folder of pictures.")


@dataclass(kw_only=True)
class WindowSettings(FrameSourceSettings):
    """Windows"""

    window: AtLeast1[int] | None = setting(None, "Samples in a window; by default the frames that the model takes.")
    stride: AtLeast1[int] | None = setting(None, "Samples from window to window; by default half a window.")
    fps: Positive[float] | None = setting(None, "Samples per second of the video; by default those of the training.")
    frame_sampling_rate: Positive[float] | None = setting(None, "Distance between samples in frames, not --fps.")
    last_window: Literal["pad", "drop", "shift"] = setting(
        "pad", "Samples at the end that fill no window: repeat the last one, leave them out, or move the window back."
    )


_OF_RAY = Mark(needs="engine=ray")


@dataclass(kw_only=True)
class BulkSettings:
    """Many videos, see docs/bulk.md"""

    engine: Literal["local", "ray"] | None = setting(
        None, "Write Parquet files with a row for each piece of a video; local: in this process; ray: by Ray."
    )
    part_size: Annotated[AtLeast1[int], Mark(needs="engine")] = setting(128, "Videos whose rows share a Parquet file.")
    retry_errors: Annotated[bool, Mark(needs="engine")] = setting(False, "Do videos again that have an error.")
    ray_address: Annotated[str | None, _OF_RAY] = setting(
        None, "Cluster to work on, auto: the one of this machine; by default Ray starts on this machine.", "ADDRESS"
    )
    min_decoders: Annotated[AtLeast1[int], _OF_RAY] = setting(1, "Processes that read videos at first, a core each.")
    max_decoders: Annotated[AtLeast1[int] | None, _OF_RAY] = setting(
        None, "Most processes that read videos; by default one for each core that the models leave."
    )
    models: Annotated[AtLeast1[int] | None, _OF_RAY] = setting(
        None, "Processes with a model; by default one a GPU, without GPUs one for every two cores."
    )
    num_gpus: Annotated[NotNegative[float] | None, _OF_RAY] = setting(
        None, "GPUs of each model, such as 0.5; by default 1 if the cluster has any."
    )

    def __post_init__(self) -> None:
        check_values(self, type(self))


@dataclass(kw_only=True)
class JsonLinesSettings:
    """Output"""

    json: bool = setting(False, "Print one JSON object a line.")


@dataclass(kw_only=True)
class JsonResultSettings:
    """Output"""

    json: bool = setting(False, "Print one JSON object with all figures.")
    output: str | None = setting(None, "Also write the JSON object to FILE, which must not exist.", "FILE")


@dataclass(kw_only=True)
class PredictSettings(VideosSettings, ClassificationSettings, BulkSettings, Settings):
    """Output"""

    top_k: AtLeast1[int] = setting(5, "Classes shown for each video.", "K")
    labels: str | None = setting(
        None, "Classes in words, for a model of videos and texts: 'a dog barks;a cat sleeps'.", "A;B;..."
    )
    template: Annotated[str, Mark(needs="labels")] = setting("{}", "The text around a class, such as 'a video of {}'.")
    output: Annotated[str | None, Mark(needs="engine")] = setting(None, "Folder for the table: a path or URL.", "DIR")


@dataclass(kw_only=True)
class ExtractSettings(VideosSettings, TrainedModelSettings, WindowSettings, BulkSettings, Settings):
    """Features"""

    output: str = setting(help="Folder for the features: new, empty, or one that this command began.", metavar="DIR")
    pooling: Literal["head", "mean", "cls", "none"] | None = setting(
        None, "Features: what the head sees (default), the mean of tokens (with --layer), the first, or all tokens."
    )
    layer: int | None = setting(None, "Hidden state to take: 0 is before the first layer, -1 the last.")
    batch_size: AtLeast1[int] = setting(8, "Windows in one forward pass.")


@dataclass(kw_only=True)
@with_defaults(engine="local")
class IndexSettings(VideosSettings, TrainedModelSettings, WindowSettings, BulkSettings, Settings):
    """Index"""

    output: str = setting(help="Folder for the index: a path or URL.", metavar="DIR")
    batch_size: AtLeast1[int] = setting(8, "Clips in one forward pass.")
    prune: bool = setting(False, "Remove the rows of videos that are not named.")


@dataclass(kw_only=True)
class SearchSettings(ComputingSettings, Settings):
    """Search"""

    text: Annotated[str | None, Mark(form="word")] = setting(None, "What to look for, in words.", "TEXT")
    index: str = setting(help="Folder that `hf-video index` wrote.", metavar="DIR")
    video: Annotated[str | None, Mark(names="videos")] = setting(None, "Look for clips like this video.", "FILE")
    model: Annotated[str | None, MODEL] = setting(None, "The model of the index, if it has moved.", "MODEL")
    top_k: AtLeast1[int] = setting(10, "Clips to find.", "K")
    rerank: AtLeast1[int] | None = setting(None, "Match this many of the best clips with the words, and sort.", "N")
    batch_size: AtLeast1[int] = setting(8, "Clips in one forward pass of --rerank.")


@dataclass(kw_only=True)
class DetectSettings(VideosSettings, TrainedModelSettings, BulkSettings, Settings):
    """Detection"""

    output: str = setting(
        help="A new file for one video, .json or .csv; or a folder for a file of each video.", metavar="FILE_OR_DIR"
    )
    format: Literal["json", "csv"] = setting("json", "Format of the files in a folder.")
    seconds: Annotated[list[float], SEVERAL] = setting([], "Times of the key frames, instead of --every.", "SECONDS")
    every: Positive[float] = setting(1.0, "Seconds from one key frame to the next; the first is that at 0.", "SECONDS")
    person_threshold: Share[float] | None = setting(None, "Smallest score of a person; by default the model's.")
    action_threshold: Share[float] = setting(0.5, "Smallest score of an action.")
    batch_size: AtLeast1[int] = setting(4, "Key frames in one forward pass.")


@dataclass(kw_only=True)
class TimelineSettings(TrainedModelSettings, WindowSettings, Settings):
    """Timeline"""

    video: Annotated[str, VIDEO] = setting(help="File, URL, stream, camera, or folder of frames.", metavar="VIDEO")
    background: Annotated[list[str] | None, Mark(form="flags")] = setting(
        None, "A class that gets no segment; several times for several; by default that of the training.", "CLASS"
    )
    onset: Annotated[Positive[float], Le(1)] = setting(ONSET, "Score with which a segment begins.")
    offset: Share[float] | None = setting(None, "A score below it ends the segment; by default that of --onset.")
    min_duration_on: NotNegative[float] = setting(SHORTEST_SEGMENT, "Seconds of a segment; shorter ones are dropped.")
    min_duration_off: NotNegative[float] = setting(
        SHORTEST_GAP, "Seconds of a gap in a class; shorter ones are filled."
    )
    batch_size: AtLeast1[int] | None = setting(None, "Windows or frames in a forward pass; 8, or 1 of a live stream.")
    longest_gap: Positive[float] | None = setting(
        None, "Seconds without a frame after which a classifier of frames begins anew; by default 2 for a live stream."
    )
    output: str | None = setting(None, "Folder for the files listed above; new or empty.", "DIR")
    format: Literal["vtt", "csv", "json", "boris", "eaf", "via"] = setting(
        "vtt", "List of the segments beside csv and json: subtitles, or a project of BORIS, ELAN or VIA 3."
    )
    annotations: str | None = setting(
        None, "Annotation file of the video: a copy of it in the folder has the segments beside yours.", "FILE"
    )


@dataclass(kw_only=True)
class SuggestSettings(VideosSettings, TrainedModelSettings, WindowSettings, Settings):
    """Stretches"""

    count: AtLeast1[int] = setting(20, "Stretches to label next.", "N")
    seconds: Positive[float] = setting(3.0, "Length of a stretch.", "SECONDS")
    output: str = setting(help="File for the stretches, which must not exist.", metavar="FILE")
    format: Literal["boris", "eaf", "via", "csv", "json"] | None = setting(
        None, "A project of BORIS, ELAN (one video) or VIA 3, or a list of times; by default what the name says."
    )
    annotations: str | None = setting(
        None, "What is labelled already; of the tool of --output, that is a copy of it, with the stretches.", "FILE"
    )
    batch_size: AtLeast1[int] = setting(8, "Windows or frames in one forward pass.")


_RETRIEVAL, _SEGMENTS = Mark(needs="task=retrieval"), Mark(needs="task=segments")
_CLASSES, _FRAMES = Mark(needs="task=classification"), Mark(needs="task=frames or frame-classification")
_DETECTION = "task=detection or action-detection"


@dataclass(kw_only=True)
class MeasuredSettings(ReadingSettings, DatasetSettings, ClassificationSettings):
    """Measuring"""

    split: str | None = setting(
        None, "Split to measure on: test, else validation, else train. What a training held out is validation.", "NAME"
    )

    def choose_split(self, splits: Iterable[str]) -> str:
        """The split to measure on, of those that there are; a `ValueError` if there is no such one."""
        known = [*splits]
        split = self.split or next(name for name in ("test", "validation", "train") if name in known)
        if split not in known:
            raise ValueError(f"--split {split}: {self.data} only has {', '.join(known)}.")
        return split


@dataclass(kw_only=True)
class AuditSettings(MeasuredSettings, Settings):
    """Settings of `hf-video audit`."""


@dataclass(kw_only=True)
@with_defaults(
    model=None,
    **dict.fromkeys(("num_clips", "num_crops"), _CLASSES),
    **dict.fromkeys(("label_map", "exclude", "first_second"), Mark(needs=_DETECTION)),
)
class EvaluateSettings(MeasuredSettings, DetectionDataSettings, Settings):
    """Measuring"""

    task: str = setting("classification", "See above; --task TASK --help lists what acts with it.", "TASK")
    predictions: Annotated[str | None, _CLASSES] = setting(
        None, "Also write a table of all videos, .csv or .parquet, which must not exist.", "FILE"
    )
    by: Annotated[str | None, _CLASSES] = setting(None, "Also tell the accuracy for each value of COLUMN.", "COLUMN")
    paragraph: Annotated[bool, _RETRIEVAL] = setting(False, "Retrieval: join the captions of a video to one text.")
    first_seconds: Annotated[Positive[float] | None, _RETRIEVAL] = setting(
        None, "Retrieval: read this much of each video, 30 for DiDeMo; by default all."
    )
    max_length: Annotated[AtLeast1[int] | None, _RETRIEVAL] = setting(
        None, "Retrieval: texts are cut after so many tokens; by default as the model was saved."
    )
    k_test: Annotated[NotNegative[int], _RETRIEVAL] = setting(
        128, "Retrieval: best texts of a video, and videos of a text, that are ranked again; 0: none."
    )
    ground_truth: Annotated[str | None, Mark(needs=f"{_DETECTION} or segments")] = setting(
        None, "Annotations of boxes or of segments; DATA is then a file of detections or of segments.", "FILE"
    )
    against: str | None = setting(
        None, "Another person's annotations, with which DATA are compared; no model.", "FILE"
    )
    detections: Annotated[str | None, Mark(needs=_DETECTION)] = setting(
        None, "Also write what the model detected in AVA's form to FILE, which must not exist.", "FILE"
    )
    background: Annotated[str | None, _FRAMES] = setting(
        None, "Class of frames outside of all segments; by default that of the training, or unknown.", "CLASS"
    )
    tiou: Annotated[list[float], _SEGMENTS, SEVERAL] = setting(
        [0.3, 0.4, 0.5, 0.6, 0.7], "Segments: thresholds of temporal IoU.", "X"
    )
    subset: Annotated[str | None, _SEGMENTS] = setting(
        None, "Segments: subset of the ground truth to measure on; by default all videos.", "NAME"
    )

    def __post_init__(self) -> None:
        if self.against is not None and self.task == "classification":
            self.task = "agreement"
        check_values(self, type(self))
        name = "ground_truth" if self.task == "segments" or self.ground_truth is not None else "model"
        name = "against" if self.task == "agreement" else name
        flag = f"--{name.replace('_', '-')}"
        if getattr(self, name) is None or (self.against is not None and name != "against"):
            raise ValueError(f"--task {self.task} needs {flag}, and --against is without --task.")
        if name != "model" and (self.model or self.detections):
            raise ValueError(f"{flag} measures a file: leave --model and --detections out.")
