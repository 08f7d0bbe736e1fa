"""Small models that learn the events of `event_video.py`, from windows of the video or from each frame."""

import os
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from helpers.event_video import BACKGROUND, CLASSES, class_shares
from torch.nn.functional import cross_entropy
from transformers import PreTrainedModel, get_cosine_schedule_with_warmup

from hf_video.evaluation import evaluate_segments
from hf_video.inference import Segment, window_batches
from hf_video.inference.segments import make_finder, segments_of
from hf_video.models.videomamba import (
    VideoMambaConfig,
    VideoMambaForFrameClassification,
    VideoMambaForVideoClassification,
)
from hf_video.models.videovit import VideoViTConfig, VideoViTForVideoClassification
from hf_video.processing import VideoClipProcessor

NUM_FRAMES, FPS, IMAGE_SIZE, TUBELET_SIZE = 8, 8, 48, 2
WINDOW_SECONDS = NUM_FRAMES / FPS
# The class that each class of CLASSES becomes where an axis is mirrored: rows, then columns.
MIRRORED = {
    axis: [CLASSES.index(swapped.get(name, name)) for name in CLASSES]
    for axis, swapped in ((-2, {"down": "up", "up": "down"}), (-1, {"left": "right", "right": "left"}))
}
_SIZES: dict[str, Any] = {
    **{"image_size": IMAGE_SIZE, "patch_size": 12, "tubelet_size": TUBELET_SIZE},
    **{"hidden_size": 96, "num_hidden_layers": 3},
    **{"id2label": dict(enumerate(CLASSES)), "label2id": {name: index for index, name in enumerate(CLASSES)}},
}


def make_processor() -> VideoClipProcessor:
    size = {"height": IMAGE_SIZE, "width": IMAGE_SIZE}
    return VideoClipProcessor(
        num_frames=NUM_FRAMES, sampling_strategy="dense", fps=FPS, size=size, crop_size=size, do_center_crop=False
    )


def make_window_classifier() -> VideoViTForVideoClassification:
    sizes = {"num_frames": NUM_FRAMES, "num_attention_heads": 4, "intermediate_size": 192}
    return VideoViTForVideoClassification(VideoViTConfig(**_SIZES, **sizes))


def make_clip_classifier() -> VideoMambaForVideoClassification:
    """A model of windows that reads the class token and has positions over time, as released weights do."""
    return VideoMambaForVideoClassification(
        VideoMambaConfig(**_SIZES, num_frames=NUM_FRAMES, time_step_init_scheme="random")
    )


def make_frame_classifier(num_frames: int) -> VideoMambaForFrameClassification:
    """A model of as many layers and channels as the classifier of windows."""
    scan = {"bidirectional": False, "use_temporal_position_embeddings": False}
    return VideoMambaForFrameClassification(
        VideoMambaConfig(**_SIZES, **scan, num_frames=num_frames, time_step_init_scheme="random")
    )


def read_windows(
    video: str | os.PathLike, events: Sequence[Segment], num_frames: int, stride: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """The windows of a video (N, num_frames, C, H, W), and the share of each that every class takes (N, classes)."""
    sizes = {"batch_size": 64, "num_frames": num_frames, "stride": stride, "fps": FPS, "last": "drop"}
    batches = list(window_batches(make_processor(), video, **sizes))
    times = [times for batch in batches for times in zip(batch.starts, batch.ends, strict=True)]
    shares = torch.tensor([class_shares(events, start, end) for start, end in times])
    return torch.cat([batch.pixel_values for batch in batches]), shares


def read_frames(
    video: str | os.PathLike, events: Sequence[Segment], num_frames: int, stride: int, delay: int = 0
) -> tuple[torch.Tensor, torch.Tensor]:
    """Clips that overlap (N, num_frames, C, H, W), views of one tensor, and the shares of the classes in each tubelet
    (N, num_frames / TUBELET_SIZE, classes): in the one `delay` frames before it."""
    frames, shares = read_windows(video, events, 1, 1)
    targets = torch.cat([shares[:1].expand(delay, -1), shares])[: len(shares)]
    clips, targets = (each.unfold(0, num_frames, stride).movedim(-1, 1) for each in (frames[:, 0], targets))
    return clips, targets.unflatten(1, (-1, TUBELET_SIZE)).mean(dim=2)


def train(
    model: PreTrainedModel,
    clips: torch.Tensor,
    targets: torch.Tensor,
    epochs: int,
    batch_size: int = 32,
    learning_rate: float = 1.5e-3,
    delay: int = 0,
) -> Any:
    """Trains a classifier on shares of classes. Clips are shifted around the edges, which leaves their motions as they
    are, and mirrored, which turns them around. The first `delay` frames of a clip are not asked for: they are answers
    for frames before it.
    """
    late = delay // TUBELET_SIZE
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, weight_decay=0.05)
    steps = epochs * -(-len(clips) // batch_size)
    schedule = get_cosine_schedule_with_warmup(optimizer, steps // 10, steps)
    for _ in range(epochs):
        for batch in torch.randperm(len(clips)).split(batch_size):
            inputs, wanted = clips[batch], targets[batch]
            inputs = inputs.roll(torch.randint(IMAGE_SIZE, (2,)).tolist(), dims=(-2, -1))
            for axis, ways in MIRRORED.items():
                if torch.rand(()) < 0.5:
                    inputs, wanted = inputs.flip(axis), wanted[..., ways]
            logits = model(pixel_values=inputs).logits
            if late:
                logits, wanted = logits[:, late:], wanted[:, late:]
            cross_entropy(logits.flatten(0, -2), wanted.flatten(0, -2)).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
    return model.eval()


def find_events(model: PreTrainedModel, scored: Iterable[Any]) -> list[Segment]:
    """The segments in scores of windows or frames, with the options of `timeline.py`."""
    durations = {"min_duration_on": WINDOW_SECONDS, "min_duration_off": WINDOW_SECONDS}
    finder = make_finder(model, background=[BACKGROUND], **durations)
    return list(segments_of(((start, end, scores) for start, end, scores, *_ in scored), finder))


def figures_at_half(found: Sequence[Segment], events: Sequence[Segment]) -> tuple[float, float]:
    """F1 at a temporal IoU of 0.5, and the median error of borders in seconds, infinite if nothing is right."""
    figures = evaluate_segments({"test": found} if found else {}, {"test": events}, [0.5])
    error = figures["median_border_error"][0]
    return figures["f1"][0], float("inf") if error is None else error
