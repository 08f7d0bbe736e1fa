"""
Segments of a classifier of frames with a state, against those of a classifier of windows: F1, borders and time.

In the videos a digit moves left, right, up or down, stands still, or is not there. A small causal VideoMamba learns
the class of each frame, a small VideoViT of as many layers and channels the shares of the classes in windows of a
second. Both see the same seconds of the same video, for about as long. Rates and the batch of windows were chosen on
seed 7, the number of epochs on seeds 5 and 6, the batch of frames on seeds 20 and 21, after smaller ones had failed on
seed 1. Another video, of other digits, is the test. Windows are a quarter of a window apart (stride 2 of 8 frames).
Both have the options of `timeline.py`. With a delay the frame model answers for an earlier frame. Time is that of
processors; that of the models leaves out reading.

With `--freeze-layers` the pre-trained start, a VideoViT of 4 layers, gives its encoder: the embeddings and the first
layers stay as they are, and with 5 nothing but a linear classifier of frames learns. It sees both sides of each frame.

Wanted for the last delay: F1 at a temporal IoU of 0.5 not below that of windows, the median error of borders at most
half as large, and time of the model at most a quarter of that of a bidirectional VideoMamba of this size over windows.
The time of that one needs no training. It takes about 20 minutes for a seed on an idle core.

    python benchmarks/frame_labels.py [--seeds 0] [--delays 0 2] [--smoke]
"""

import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import torch
from helpers.event_training import (
    FPS,
    IMAGE_SIZE,
    NUM_FRAMES,
    TUBELET_SIZE,
    figures_at_half,
    find_events,
    make_clip_classifier,
    make_frame_classifier,
    make_processor,
    make_window_classifier,
    read_frames,
    read_windows,
    train,
)
from helpers.event_video import CLASSES, write_event_video
from helpers.measurement import GOAL_MISSED, make_parser, print_machine
from transformers import PreTrainedModel, set_seed

from hf_video.inference.scores import is_frame_classifier, score_frames, score_windows
from hf_video.loading.heads import load_frame_classifier
from hf_video.loading.released import model_path
from hf_video.training import freeze_layers

# Frames of a clip in training, from one clip to the next, and in a forward pass with a state. Windows have a batch of
# as many frames.
CLIP, CLIP_STRIDE, CHUNK = 32, 8, 128
TRAINING_STRIDE, STRIDE = 3, 2
FRAME_BATCH, WINDOW_BATCH = 8, 32
WINDOWS, UNTRAINED = "windows, stride 2", "VideoMamba of random weights over windows"
FRAMES = "frames"
# Learning rates from pre-trained weights: of a linear classifier alone, and with layers below it.
HEAD_RATE, START_RATE = 1e-2, 5e-4


class Figures(NamedTuple):
    f1: float
    border: float  # median error in seconds
    model_time: float  # seconds of a processor for a second of video


class Clock:
    """Time of a processor that a model takes in the thread that calls it."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.seconds = 0.0
        model.register_forward_pre_hook(self.start)
        model.register_forward_hook(self.stop)

    def start(self, *_: Any) -> None:
        self.begin = time.thread_time()

    def stop(self, *_: Any) -> None:
        self.seconds += time.thread_time() - self.begin


def measure(kind: str, model: PreTrainedModel, video: Path, events: Any, seconds: float) -> Figures:
    clock, name = Clock(model), kind
    # The first pass warms up.
    for _ in range(2):
        clock.seconds, begin = 0.0, time.process_time()
        if is_frame_classifier(model):
            name = f"{kind}, delay {model.config.frame_delay * TUBELET_SIZE}"
            scored = list(score_frames(model, make_processor(), video, batch_size=CHUNK, fps=FPS))
        else:
            sizes = {"batch_size": CHUNK // NUM_FRAMES, "stride": STRIDE, "fps": FPS}
            scored = list(score_windows(model, make_processor(), video, num_frames=NUM_FRAMES, **sizes))
        whole = (time.process_time() - begin) / seconds
    found = find_events(model, scored)
    figures = Figures(*figures_at_half(found, events), clock.seconds / seconds)
    print(
        f"  {name}: {len(found)} segments, {len(events)} events; F1 {figures.f1:.3f}, border error "
        f"{figures.border:.3f} s; model {figures.model_time * 1e3:.2f} ms, with reading {whole * 1e3:.2f} ms "
        "for a second of video",
        flush=True,
    )
    return figures


def measure_seed(seed: int, arguments: Any, folder: Path) -> dict[str, Figures]:
    """The figures of all models; of frames those of the last delay."""
    training_seconds, seconds, epochs, window_epochs = (
        (24, 24, 1, 1) if arguments.smoke else (arguments.seconds, 600, arguments.epochs, 2 * arguments.epochs)
    )
    set_seed(seed)
    video, test = folder / "training.mp4", folder / "test.mp4"
    events = write_event_video(video, seconds=training_seconds, seed=seed, held_out=False)
    on_test = (test, write_event_video(test, seconds=seconds, seed=seed, held_out=True), seconds)
    found: dict[str, Figures] = {}

    def keep(name: str, model: PreTrainedModel) -> None:
        found[name] = measure(name, model, *on_test)

    keep(UNTRAINED, make_clip_classifier().eval())
    clips = read_windows(video, events, NUM_FRAMES, TRAINING_STRIDE)
    keep(WINDOWS, train(make_window_classifier(), *clips, window_epochs, WINDOW_BATCH))
    for delay in arguments.delays:
        set_seed(seed)
        model = make_frame_classifier(CLIP)
        # `score_frames` gives late answers to the frames that they are for.
        model.config.frame_delay = delay // TUBELET_SIZE
        clips = read_frames(video, events, CLIP, CLIP_STRIDE, delay)
        keep(FRAMES, train(model, *clips, epochs, FRAME_BATCH, delay=delay))
    for count in arguments.freeze_layers:
        set_seed(seed)
        model, _ = load_frame_classifier(model_path("start"), CLASSES, num_frames=NUM_FRAMES, image_size=IMAGE_SIZE)
        freeze_layers(model, count)
        clips = read_frames(video, events, NUM_FRAMES, TRAINING_STRIDE)
        rate = HEAD_RATE if count > model.config.num_hidden_layers else START_RATE
        keep(
            f"frames of the bundled model, {count} of 5 groups frozen",
            train(model, *clips, max(epochs // 4, 1), WINDOW_BATCH, rate),
        )
    return found


def main() -> int:
    parser = make_parser(__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--delays", type=int, nargs="+", default=[0, 2], help="frames of look-ahead")
    parser.add_argument(
        "--freeze-layers", type=int, nargs="*", default=[5], help="groups of the bundled model that stay"
    )
    parser.add_argument("--seconds", type=int, default=600, help="length of the training video")
    parser.add_argument(
        "--epochs", type=int, default=32, help="of frames; windows have twice as many, the bundled model a quarter"
    )
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    print_machine("torch", "transformers", "av", threads=1)
    is_good = True
    for seed in arguments.seeds:
        print(f"seed {seed}")
        with tempfile.TemporaryDirectory() as folder:
            found = measure_seed(seed, arguments, Path(folder))
        frames, windows, untrained = (found[name] for name in (FRAMES, WINDOWS, UNTRAINED))
        print(
            f"  frames against windows: F1 {frames.f1 - windows.f1:+.3f}, wanted: 0 or more; "
            f"border error {frames.border / windows.border:.2f} of it, wanted: 0.50; "
            f"{windows.model_time / frames.model_time:.1f} times cheaper, "
            f"and {untrained.model_time / frames.model_time:.1f} times than VideoMamba over windows, wanted: 4"
        )
        is_good &= frames.f1 >= windows.f1 and frames.border <= windows.border / 2
        is_good &= 4 * frames.model_time <= untrained.model_time
    return 0 if is_good or arguments.smoke else GOAL_MISSED


if __name__ == "__main__":
    sys.exit(main())
