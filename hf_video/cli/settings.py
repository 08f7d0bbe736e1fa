"""Declares the settings of the commands. `hf_video.training.settings` declares those of a training."""

import runpy
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from annotated_types import Le, Lt

import hf_video
from hf_video.data.settings import (
    READING_THREADS,
    OnError,
    ReadingThreads,
)
from hf_video.settings import (
    Alias,
    AtLeast1,
    BelowOne,
    Changeable,
    Expected,
    FromScratch,
    NotNegative,
    Positive,
    Share,
    one_of,
    setting,
    with_defaults,
)
from hf_video.training.settings import PreTrainingSettings, VideoTrainingSettings

# This file needs only NumPy. Its package would import Transformers.
_CLIP_SAMPLING = Path(hf_video.__file__).parent / "processing" / "clip_sampling.py"
SamplingStrategy = Annotated[str, one_of(runpy.run_path(str(_CLIP_SAMPLING))["SAMPLING_STRATEGIES"])]


@dataclass(kw_only=True)
class LabelledVideosSettings:
    """Data"""

    data: str = setting(help="Labelled videos, as for `hf-video train`.", metavar="DATA")
    video_root: Changeable[str | None] = setting(
        None, "Where relative paths in a CSV, list or JSON file begin; by default the folder of that file.", "DIR"
    )


@dataclass(kw_only=True)
class RunSettings(LabelledVideosSettings):
    """Data and output"""

    data: Changeable[str] = setting(help="Labelled videos, or rows of texts.", metavar="DATA")
    output_dir: Changeable[str] = setting(help="Folder for the model, checkpoints and report.", metavar="DIR")
    device: Changeable[Literal["auto", "cpu", "cuda", "mps"]] = setting(
        "auto", "Where to train; auto: on an accelerator if there is one."
    )


@dataclass(kw_only=True)
class HeldOutSettings:
    """Held-out videos"""

    validation_fraction: Annotated[Positive[float], Lt(1)] = setting(
        0.2, "Share of each class that is held out if DATA has no validation split."
    )


@dataclass(kw_only=True)
class TrainingVideosSettings(HeldOutSettings):
    """Held-out and broken videos"""

    on_error: Changeable[OnError] = setting(
        "error", "A video that cannot be read: stop, leave it out, or train on another one in its place."
    )


@dataclass(kw_only=True)
class ClassifierSettings:
    """Model"""

    model: str | None = setting(
        None, "Model folder or Hub name to fine-tune; by default a small VideoViT from scratch.", "MODEL"
    )
    num_frames: Annotated[AtLeast1[int] | None, FromScratch(16)] = setting(None, "Frames in a clip.")
    frame_sampling_rate: Annotated[AtLeast1[int] | None, FromScratch(4)] = setting(
        None, "Distance between two frames of a dense or strided clip."
    )
    sampling_strategy: Annotated[SamplingStrategy | None, FromScratch("uniform")] = setting(
        None,
        "How frames are chosen: dense and strided keep a distance, the others cover the whole video. The published "
        "trainings drew strided, tsn or sparse clips.",
    )
    image_size: Annotated[AtLeast1[int] | None, FromScratch(112)] = setting(
        None, "Height and width of a clip in pixels."
    )
    num_clips: Changeable[AtLeast1[int] | None] = setting(
        None, "Clips of a video in the report and wherever the model is used; by default the model's."
    )
    num_crops: Changeable[AtLeast1[int] | None] = setting(
        None, "Crops of a clip in the report and wherever the model is used; by default the model's."
    )


@dataclass(kw_only=True)
class RegularizationSettings:
    """Model"""

    drop_path_rate: BelowOne[float] | None = setting(None, "Largest rate of stochastic depth; by default the model's.")
    classifier_dropout: BelowOne[float] | None = setting(None, "Dropout before the head; by default the model's.")
    classifier_init_scale: Positive[float] | None = setting(
        None, "Factor on the first weights of a fresh head; by default the model's."
    )


@dataclass(kw_only=True)
class RunLengthSettings:
    """Model"""

    run_length_threshold: NotNegative[float] | None = setting(
        None,
        "Drop tokens of a VideoViT that repeat over time: largest mean difference of normalised pixels that counts as "
        "a repetition, such as 0.1; by default the model's.",
    )
    use_run_length_embedding: bool | None = setting(
        None, "Learn a vector that tells a token how many it stands for; by default the model's."
    )


@dataclass(kw_only=True)
class ScratchSettings:
    """Model from scratch, without --model"""

    patch_size: AtLeast1[int] = setting(16, "Pixels on a side of a patch.")
    tubelet_size: AtLeast1[int] = setting(2, "Frames in a patch.")
    hidden_size: AtLeast1[int] = setting(192, "Width of a token.")
    num_hidden_layers: AtLeast1[int] = setting(6, "Number of layers.")
    num_attention_heads: AtLeast1[int] = setting(3, "Attention heads of a layer.")


@dataclass(kw_only=True)
@with_defaults(
    num_train_epochs=20.0,
    learning_rate=FromScratch(1e-3),
    per_device_eval_batch_size=None,
    dataloader_pin_memory=None,
)
class TrainSettings(VideoTrainingSettings):
    """Training (fields of VideoTrainingArguments)"""


@dataclass(kw_only=True)
class UnlabelledRunSettings(RunSettings):
    """Data and output"""

    data: Changeable[str] = setting(help="Videos, which need no labels.", metavar="DATA")


@dataclass(kw_only=True)
@with_defaults(sampling_strategy=FromScratch("dense"))
class EncoderSettings(ClassifierSettings):
    """Model"""

    model: str | None = setting(
        None, "Model folder or Hub name to go on from; by default a model from scratch.", "MODEL"
    )


@dataclass(kw_only=True)
class TeacherSettings:
    """Model"""

    teacher: str | None = setting(
        None,
        "Image model that a VideoMamba learns from, such as openai/clip-vit-base-patch16: a folder or Hub name.",
        "MODEL",
    )


@dataclass(kw_only=True)
class MaskedModelSettings:
    """Model"""

    mask_ratio: Annotated[Positive[float], Lt(1)] | None = setting(
        None, "Share of patches that are hidden; by default the model's, from scratch 0.9 or, for a VideoMamba, 0.8."
    )
    drop_path_rate: BelowOne[float] | None = setting(None, "Largest rate of stochastic depth; by default the model's.")
    norm_pix_loss: bool | None = setting(
        None,
        "Reconstruct pixels that are standardised by patch and channel; by default the model's, from scratch true.",
    )
    last_aligned_feature: Literal["normalized", "raw", "unmixed"] | None = setting(
        None, "What of a VideoMamba's last layer is aligned: unmixed as the released models; by default the model's."
    )


@dataclass(kw_only=True)
class MaskedScratchSettings(ScratchSettings):
    """Model from scratch, without --model"""

    family: Literal["videovit", "videomamba"] = setting("videovit", "What learns: pixels, or the teacher's features.")
    intermediate_size: AtLeast1[int] | None = setting(
        None, "Width of the hidden layer of an MLP; by default four times hidden_size."
    )
    decoder_hidden_size: AtLeast1[int] | None = setting(
        None, "Width of a token in the decoder; by default half of hidden_size."
    )
    decoder_num_hidden_layers: NotNegative[int] = setting(4, "Number of layers of the decoder.")
    decoder_num_attention_heads: AtLeast1[int] | None = setting(
        None, "Attention heads of a layer of the decoder; by default half of num_attention_heads."
    )


@dataclass(kw_only=True)
@with_defaults(
    num_train_epochs=20.0, learning_rate=FromScratch(1e-3), per_device_eval_batch_size=None, dataloader_pin_memory=None
)
class PretrainSettings(PreTrainingSettings):
    """Training (fields of PreTrainingArguments)"""


@dataclass(kw_only=True)
class AnsweringModelSettings:
    """Model"""

    model: str = setting(help="Folder or Hub name of the MemoryBankQFormer to fine-tune.", metavar="MODEL")
    num_frames: AtLeast1[int] | None = setting(None, "Frames of a video; by default the model's.")
    sampling_strategy: SamplingStrategy | None = setting(None, "How frames are chosen; by default the model's.")
    memory_bank_length: NotNegative[int] | None = setting(
        None, "Frames that the memory holds, 0 for no memory; by default the model's."
    )


@dataclass(kw_only=True)
class TrainedModelSettings:
    """Model"""

    model: str = setting(help="A model folder, or the name of one on the Hub.", metavar="MODEL")
    device: str = setting("auto", "cpu, cuda, cuda:1, mps ...; auto: an accelerator if there is one.", "DEVICE")
    dtype: Literal["float32", "bfloat16", "float16"] = setting("float32", "Type of weights and inputs.")


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
class EvaluateSettings:
    """Output"""

    split: str | None = setting(
        None, "Split to measure on; by default test if DATA has it, else validation, else train.", "NAME"
    )
    json: bool = setting(False, "Print one JSON object, with the confusion matrix.")
    output: str | None = setting(None, "Also write the JSON object to FILE, which must not exist.", "FILE")
    predictions: str | None = setting(
        None, "Also write a table of all videos, .csv or .parquet, which must not exist.", "FILE"
    )


@dataclass(kw_only=True)
class EvaluateSegmentsSettings:
    """Data and output"""

    subset: str | None = setting(None, "Subset of the ground truth to measure on; by default all videos.", "NAME")
    json: bool = setting(False, "Print one JSON object.")
    output: str | None = setting(None, "Also write the JSON object to FILE, which must not exist.", "FILE")


@dataclass(kw_only=True)
class ProbeSettings:
    """Probe"""

    output_dir: str = setting(help="Folder for the probe and its report; new or empty.", metavar="DIR")
    kind: Literal["linear", "attentive", "knn"] = setting("linear", "The classifier, see above.")
    features: str | None = setting(
        None, "Where features are kept; by default in the cache folder of Hugging Face.", "DIR"
    )
    num_neighbors: AtLeast1[int] = setting(20, "Neighbours of knn, at most all videos.")


@dataclass(kw_only=True)
class JsonLinesSettings:
    """Output"""

    json: bool = setting(False, "Print one JSON object a line.")


@dataclass(kw_only=True)
class PredictSettings(JsonLinesSettings):
    """Output"""

    top_k: AtLeast1[int] = setting(5, "Classes shown for each video.", "K")
    video_root: str | None = setting(
        None, "Where relative paths in a CSV, list or JSON file begin; by default the folder of that file.", "DIR"
    )
    output: str | None = setting(
        None, "With --engine: folder for the table; new, empty, or one that this command began. A path or URL.", "DIR"
    )


@dataclass(kw_only=True)
class BulkSettings:
    """Many videos, see docs/bulk.md"""

    engine: Literal["local", "ray"] | None = setting(
        None, "Write Parquet files with a row for each video; local: in this process; ray: in processes of Ray."
    )
    part_size: AtLeast1[int] = setting(128, "Videos in one Parquet file, which is written as a whole.")
    retry_errors: bool = setting(False, "Do videos again whose row has an error.")
    ray_address: str | None = setting(
        None, "Cluster to work on, auto: the one of this machine; by default Ray starts on this machine.", "ADDRESS"
    )
    min_decoders: AtLeast1[int] = setting(1, "Least processes of Ray that read videos, each on one core.")
    max_decoders: AtLeast1[int] | None = setting(
        None, "Most processes of Ray that read videos; by default one for each core that the models leave."
    )
    models: AtLeast1[int] | None = setting(
        None, "Processes of Ray with a model; by default one a GPU, without GPUs one for every two cores."
    )
    num_gpus: NotNegative[float] | None = setting(
        None, "GPUs of each model, such as 0.5; by default 1 if the cluster has any."
    )


@dataclass(kw_only=True)
class InspectSettings(LabelledVideosSettings):
    """Data"""

    quick: bool = setting(False, "Read the structure and one frame of each file only.")
    output: str | None = setting(
        None,
        "Also write a manifest, which other commands take as DATA and trust: a Parquet FILE, which must not exist.",
        "FILE",
    )
    num_workers: AtLeast1[int] | None = setting(None, "Processes that read videos; by default one a core.")
    json: bool = setting(False, "Print one JSON object.")


def _is_file_size(text: str) -> bool:
    from datasets.utils.py_utils import convert_file_size_to_int

    try:
        return convert_file_size_to_int(text) > 0
    except ValueError:
        return False


@dataclass(kw_only=True)
class PackSettings(LabelledVideosSettings):
    """Pack"""

    output: str = setting(
        help="Folder or URL for the pack, such as s3://bucket/pack: new, empty, or one that this command began.",
        metavar="DIR",
    )
    shard_size: Annotated[str, Expected("a size such as 1GB or 500MB", _is_file_size)] = setting(
        "1GB", "Size of a shard, about; a larger video has one of its own.", "SIZE"
    )
    max_duration: Positive[float] | None = setting(
        None,
        "Cut longer videos into pieces of so many seconds at most, at key frames, without encoding them again; of a "
        "segment, keep the piece around it. Pieces have no sound. By default videos are packed as they are.",
        "SECONDS",
    )
    num_workers: AtLeast1[int] | None = setting(None, "Processes that write shards; by default one a core.")


@dataclass(kw_only=True)
class DemoSettings:
    """Demo"""

    folder: str = setting("hf_video_demo", "Folder for videos and model.", "DIR")
    model: Literal["videovit", "videomamba"] = setting("videovit", "The family to train.")
    fast: bool = setting(False, "Write a few videos and train one epoch, to check every step but the accuracy.")


@dataclass(kw_only=True)
class FrameSourceSettings:
    """Source"""

    source_fps: Positive[float] | None = setting(
        None, "Frames per second at which the pictures of a folder were taken, which have no times of their own."
    )


@dataclass(kw_only=True)
class WindowSettings(FrameSourceSettings):
    """Windows"""

    window: AtLeast1[int] | None = setting(None, "Samples in a window; by default the frames that the model takes.")
    stride: AtLeast1[int] | None = setting(
        None, "Samples from the start of a window to the start of the next; by default half a window."
    )
    fps: Positive[float] | None = setting(
        None,
        "Samples per second, by the times of the video; by default those of the clips that the model learned from.",
    )
    frame_sampling_rate: Positive[float] | None = setting(
        None,
        "Distance between samples in frames, instead of --fps; the default of a model that does not say the distance "
        "of its training, such as a converted one: that of its clips if they keep one, else 1.",
    )
    last_window: Literal["pad", "drop", "shift"] = setting(
        "pad",
        "Samples at the end that fill no window: repeat the last one, leave them out, or move the window back so that "
        "it ends with the video.",
    )


@dataclass(kw_only=True)
class ExtractSettings(TrainedModelSettings):
    """Features"""

    output: str = setting(help="Folder for the features: new, empty, or one that this command began.", metavar="DIR")
    format: Literal["npy", "safetensors", "parquet"] = setting(
        "npy",
        "npy: an array for each video, as code for temporal localisation reads them; safetensors: with the times; "
        "parquet: a row for each window, for the datasets library.",
    )
    pooling: Literal["head", "mean", "cls", "none"] | None = setting(
        None,
        "What stands for a window: head: what the head sees; mean: the mean over the tokens; cls: the first token; "
        "none: all tokens. By default head, with --layer mean.",
    )
    layer: int | None = setting(
        None,
        "Hidden state to take, as hidden_states of Transformers: 0 is before the first layer, -1 the last.",
    )
    batch_size: AtLeast1[int] = setting(8, "Windows in one forward pass.")
    video_root: str | None = setting(
        None, "Where relative paths in a CSV, list or JSON file begin; by default the folder of that file.", "DIR"
    )


@dataclass(kw_only=True)
class TimelineSettings(TrainedModelSettings):
    """Timeline"""

    video: str = setting(help="Video file, URL, live stream, camera, or folder of frames.", metavar="VIDEO")
    onset: Annotated[Positive[float], Le(1)] = setting(0.5, "Score with which a segment begins.")
    offset: Share[float] | None = setting(None, "A score below it ends the segment; by default that of --onset.")
    min_duration_on: NotNegative[float] = setting(0.0, "Least seconds of a segment; shorter ones are dropped.")
    min_duration_off: NotNegative[float] = setting(
        0.0, "Least seconds between two segments of a class; shorter gaps are filled."
    )
    batch_size: AtLeast1[int] | None = setting(
        None, "Windows in one forward pass; by default 8, and 1 for a live stream, which is answered at once."
    )
    output: str | None = setting(None, "Folder for the files listed below; new or empty.", "DIR")
    annotate: bool = setting(False, "Also write the video with the classes drawn on it into the folder of --output.")


@dataclass(kw_only=True)
class ExplainSettings(FrameSourceSettings, TrainedModelSettings):
    """Explanation"""

    video: str = setting(help="Video file, URL, or folder of frames.", metavar="VIDEO")
    class_name: Annotated[str | None, Alias("class")] = setting(
        None, "Name or number of the class to explain; by default the one with the highest score.", "CLASS"
    )
    question: str | None = setting(None, "What a model that answers in words is asked.", "TEXT")
    start: NotNegative[float] | None = setting(
        None, "Seconds at which the part to look at begins; by default the start of the video."
    )
    end: Positive[float] | None = setting(None, "Seconds at which it ends; by default the end of the video.")
    top_k: AtLeast1[int] = setting(5, "Classes shown.", "K")
    output: str | None = setting(None, "Folder for the files listed below; new or empty.", "DIR")
    json: bool = setting(False, "Print one JSON object.")


@dataclass(kw_only=True)
class WatchSettings(FrameSourceSettings, TrainedModelSettings):
    """Watching"""

    video: str = setting(
        help="Video file or its URL, RTSP, RTMP, UDP or TCP stream, camera (/dev/video0), or folder of frames.",
        metavar="VIDEO",
    )
    prompt: str = setting("{}", 'Text around a question, with {} in its place, such as "Question: {} Short answer:".')
    every: str | None = setting(
        None, "Answer each time so much of the video has passed: 30s, 5m, 1h; by default only at the end.", "TIME"
    )
    fps: Positive[float] = setting(1.0, "Frames to look at in each second.")
    memory: str | None = setting(None, "File for the memory, saved with each answer.", "FILE")
    resume: bool = setting(False, "Go on from the memory in FILE, after the frames that it has seen.")
    picture: str | None = setting(None, "Draw what the memory holds at the end; needs matplotlib.", "FILE.png")
    chunk_size: AtLeast1[int] = setting(8, "Frames in the vision tower at once.")
    max_new_tokens: AtLeast1[int] | None = setting(None, "Tokens of an answer; by default as the model was saved.")
    num_beams: AtLeast1[int] | None = setting(None, "Beams of the search; by default as the model was saved.")


@dataclass(kw_only=True)
class ExportSettings:
    """Export"""

    to: Literal["onnx", "torch-export"] = setting("onnx", "Format: onnx needs the extra `export`.")
    num_frames: AtLeast1[int] | None = setting(None, "Frames of a clip; by default as the model was saved.")


@dataclass(kw_only=True)
class AppSettings:
    """Page"""

    host: str = setting("127.0.0.1", "Address to listen at; 0.0.0.0 lets other machines in, without a password.")
    port: Annotated[AtLeast1[int], Le(65535)] = setting(7860, "Port to listen at.")
    max_upload: AtLeast1[int] = setting(500, "Most megabytes of a video that is uploaded or fetched.", "MB")
    workers: AtLeast1[int] = setting(2, "Requests that are worked on at a time; a model computes for one.")
    queue: AtLeast1[int] = setting(32, "Requests that may wait; more are turned away.")
