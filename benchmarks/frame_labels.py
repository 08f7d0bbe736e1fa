"""
Segments of a classifier of frames with a state, against those of a classifier of windows: F1, borders and time.

In the videos a digit moves left, right, up or down, stands still, or is not there. A small causal VideoMamba learns
the class of each frame, a small VideoViT of as many layers and channels the shares of the classes in windows of a
second. Both see the same seconds of the same video. Another video, of other digits, is the test. Windows are a quarter
of a window apart (stride 2 of 8 frames), and both have the options of `timeline.py`. With a delay the frame model
answers for an earlier frame. Time is that of processors; that of the models
leaves out reading.

With `--teacher` a bidirectional frame model learns first. Its probabilities are half of what further causal models
learn, and the scans of those begin with its forward weights.

Wanted for the last delay: F1 at a temporal IoU of 0.5 not below that of windows, the median error of borders at most
half as large, and time of the model at most a quarter of that of a bidirectional VideoMamba of this size over windows.
The time of that one needs no training. It takes about five minutes for a seed on an idle core, and
with `--teacher` ten minutes more.

    python benchmarks/frame_labels.py [--seeds 1] [--delays 0 2] [--teacher] [--save FOLDER]
        [--load FOLDER] [--smoke]
"""

import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import torch
from helpers.event_training import (
    FPS,
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
from helpers.event_video import write_event_video
from helpers.measurement import GOAL_MISSED, make_parser, print_machine
from transformers import PreTrainedModel, set_seed

from hf_video.inference.frame_scoring import is_frame_classifier, score_frames
from hf_video.inference.prediction import score_windows
from hf_video.models.videomamba import VideoMambaForFrameClassification
from hf_video.models.videovit import VideoViTForVideoClassification

# Frames of a clip in training, from one clip to the next, and in a forward pass with a state. Windows have a batch of
# as many frames.
CLIP, CLIP_STRIDE, CHUNK = 32, 8, 128
TRAINING_STRIDE, STRIDE = 3, 2
# What reads a model that is kept, and its folder.
SAVED = ((VideoViTForVideoClassification, "windows"), (VideoMambaForFrameClassification, "frames"))


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


def measure(name: str, model: PreTrainedModel, video: Path, events: Any, seconds: float) -> Figures:
    clock = Clock(model)
    # The first pass warms up.
    for _ in range(2):
        clock.seconds, begin = 0.0, time.process_time()
        if is_frame_classifier(model):
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


def measure_seed(seed: int, arguments: Any, folder: Path) -> tuple[Figures, Figures, Figures]:
    """The figures of windows, of an untrained VideoMamba over windows, and of frames with the last delay."""
    training_seconds, seconds, epochs, window_epochs = (
        (24, 24, 1, 1) if arguments.smoke else (arguments.seconds, 600, arguments.epochs, 2 * arguments.epochs)
    )
    set_seed(seed)
    video, test = folder / "training.mp4", folder / "test.mp4"
    events = write_event_video(video, seconds=training_seconds, seed=seed, held_out=False)
    on_test = (test, write_event_video(test, seconds=seconds, seed=seed, held_out=True), seconds)

    def measure_windows(model: PreTrainedModel) -> tuple[Figures, Figures]:
        other = make_clip_classifier(TUBELET_SIZE).eval()
        untrained = measure("VideoMamba of random weights over windows", other, *on_test)
        return measure("windows, stride 2", model, *on_test), untrained

    def learn_frames(name: str, delay: int, bidirectional: bool = False, **ways: Any) -> tuple[Figures, Any]:
        set_seed(seed)
        model, teacher = make_frame_classifier(CLIP, bidirectional), ways.get("teacher")
        # `score_frames` gives late answers to the frames that they are for.
        model.config.frame_delay = delay // TUBELET_SIZE
        if teacher is not None:
            # The weights of its backward scans have no place.
            model.load_state_dict(teacher.state_dict(), strict=False)
        train(model, *read_frames(video, events, CLIP, CLIP_STRIDE, delay), epochs, batch_size=8, delay=delay, **ways)
        return measure(name, model, *on_test), model

    if arguments.load:
        windows, model = (kind.from_pretrained(arguments.load / name).eval() for kind, name in SAVED)
        delay = model.config.frame_delay * TUBELET_SIZE
        return *measure_windows(windows), measure(f"frames, delay {delay}", model, *on_test)
    clips = read_windows(video, events, NUM_FRAMES, TRAINING_STRIDE)
    windows = train(make_window_classifier(), *clips, window_epochs)
    of_windows, untrained = measure_windows(windows)
    for delay in arguments.delays:
        of_frames, model = learn_frames(f"frames, delay {delay}", delay)
    if arguments.save:
        for trained, (_, name) in zip((windows, model), SAVED, strict=True):
            trained.save_pretrained(arguments.save / name)
            make_processor().save_pretrained(arguments.save / name)
    if arguments.teacher:
        _, teacher = learn_frames("teacher, both ways", 0, bidirectional=True)
        for delay in arguments.delays:
            learn_frames(f"student, delay {delay}", delay, teacher=teacher)
    return of_windows, untrained, of_frames


def main() -> int:
    parser = make_parser(__doc__)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--delays", type=int, nargs="+", default=[0, 2], help="frames of look-ahead")
    parser.add_argument("--seconds", type=int, default=600, help="length of the training video")
    parser.add_argument("--epochs", type=int, default=8, help="of frames; windows have twice as many")
    parser.add_argument("--teacher", action="store_true", help="also train a bidirectional teacher, and its students")
    parser.add_argument("--save", type=Path, metavar="FOLDER", help="keep the models of the last delay and seed")
    parser.add_argument("--load", type=Path, metavar="FOLDER", help="measure models that were kept, and train none")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    print_machine("torch", "transformers", "av", threads=1)
    is_good = True
    for seed in range(arguments.seeds):
        print(f"seed {seed}")
        with tempfile.TemporaryDirectory() as folder:
            windows, untrained, frames = measure_seed(seed, arguments, Path(folder))
        print(
            f"  delay {arguments.delays[-1]} against windows: F1 {frames.f1 - windows.f1:+.3f}, wanted: 0 or more; "
            f"border error {frames.border / windows.border:.2f} of it, wanted: 0.50; "
            f"{windows.model_time / frames.model_time:.1f} times cheaper, "
            f"and {untrained.model_time / frames.model_time:.1f} times than VideoMamba over windows, wanted: 4"
        )
        is_good &= frames.f1 >= windows.f1 and frames.border <= windows.border / 2
        is_good &= 4 * frames.model_time <= untrained.model_time
    return 0 if is_good or arguments.smoke else GOAL_MISSED


if __name__ == "__main__":
    sys.exit(main())
