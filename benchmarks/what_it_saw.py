"""
Draws what a model answers for a video, when it sees what, and where it looks: the picture in docs/timeline.md.

In the video a digit moves left, right, up or down, stands still, or is not there. Without `--model` a small VideoViT
is trained on another such video, of other digits, as `timeline.py` does it. The picture has three parts, all from this
model. The answer and the heat maps are those of a second of the video that is marked in the timeline.

It takes one to two minutes on 2 idle CPU cores, or seconds with a model that `--save-model` kept.

    python benchmarks/what_it_saw.py [--plot docs/what_it_saw.png] [--model DIR | --save-model DIR] [--smoke]
"""

import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from helpers.event_training import (
    FPS,
    NUM_FRAMES,
    WINDOW_SECONDS,
    make_processor,
    make_window_classifier,
    read_windows,
    train,
)
from helpers.event_video import BACKGROUND, write_event_video
from helpers.measurement import make_parser, print_machine
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from timeline import TRAINING_STRIDE
from transformers import AutoModelForVideoClassification, AutoVideoProcessor, set_seed

from hf_video.inference import Segment, explain, find_segments, predict_scores, read_clip
from hf_video.inference.explanation import Clip, overlay_heat_maps

SEED = 0
# An example that is easy to see: a video with every motion, and a second in which a digit does not leave the picture.
VIDEO_SEED, MOMENT = 2, 22.5
NUM_THUMBNAILS = 14
GREY = "#9a9a9a"


class Findings(NamedTuple):
    """What a model says about a video.

    Attributes:
        segments: when it sees what.
        clip: a clip of one window.
        scores: (num_classes,) of the clip.
        heat_map: (T, H, W) in [0, 1], the evidence in the clip for the class with the highest score.
        overview: frames from the whole video.
    """

    segments: list[Segment]
    clip: Clip
    scores: torch.Tensor
    heat_map: np.ndarray
    overview: Clip


def make_model(folder: Path, training_seconds: float, epochs: int) -> None:
    """Trains a classifier of windows and saves it with its processor."""
    with tempfile.TemporaryDirectory() as work:
        video = Path(work, "training.mp4")
        events = write_event_video(video, seconds=training_seconds, seed=SEED, held_out=False)
        windows = read_windows(video, events, NUM_FRAMES, TRAINING_STRIDE)
        model = train(make_window_classifier(), *windows, epochs)
    model.save_pretrained(folder)
    make_processor().save_pretrained(folder)


def look(model: Any, processor: Any, video: Path, moment: float) -> Findings:
    windows = {"num_frames": NUM_FRAMES, "stride": NUM_FRAMES // 2, "fps": FPS, "batch_size": 8}
    least = {"min_duration_on": WINDOW_SECONDS, "min_duration_off": WINDOW_SECONDS}
    segments = list(find_segments(model, processor, video, background=[BACKGROUND], **least, **windows))
    clip = read_clip(processor, video, start=moment, end=moment + WINDOW_SECONDS)
    heat_map = explain(model, clip.pixel_values)[0].numpy()
    processor.sampling_strategy, processor.num_frames, processor.fps = "uniform", NUM_THUMBNAILS, None
    return Findings(segments, clip, predict_scores(model, clip.pixel_values)[0], heat_map, read_clip(processor, video))


def draw(found: Findings, names: list[str]) -> Figure:
    figure = Figure(figsize=(16, 7.6), dpi=100)
    FigureCanvasAgg(figure)
    shown = [name for name in names if name != BACKGROUND]
    colors = {name: f"C{number}" for number, name in enumerate(shown)} | {BACKGROUND: GREY}
    above, below = figure.subfigures(2, 1, height_ratios=(1.18, 1))
    left, right = above.subfigures(1, 2, width_ratios=(1, 3.4))
    draw_answer(left, found, names, colors)
    draw_heat_maps(right, found, names)
    draw_timeline(below, found, shown, colors)
    return figure


def draw_answer(figure: Any, found: Findings, names: list[str], colors: dict[str, str]) -> None:
    figure.suptitle("What is it?", fontsize=17, weight="bold", x=0.12, ha="left")
    scores = found.scores.numpy()
    ranked = np.argsort(scores)
    axes = figure.add_axes((0.34, 0.12, 0.46, 0.7))
    bars = axes.barh([names[index] for index in ranked], scores[ranked], color=[colors[names[i]] for i in ranked])
    axes.bar_label(bars, [f"{score:.1%}" for score in scores[ranked]], padding=5, fontsize=13)
    axes.set(xlim=(0, 1), xticks=[])
    axes.tick_params(axis="y", length=0, labelsize=14)
    axes.spines[["top", "right", "bottom"]].set_visible(False)


def draw_heat_maps(figure: Any, found: Findings, names: list[str]) -> None:
    label = names[int(found.scores.argmax())]
    figure.suptitle(f'Where does it see "{label}"?', fontsize=17, weight="bold", x=0.02, ha="left")
    rows = (found.clip.images, overlay_heat_maps(found.clip.images, found.heat_map))
    edges = {"left": 0.02, "right": 0.98, "top": 0.84, "wspace": 0.05, "hspace": 0.05}
    grid = figure.subplots(2, len(found.clip.images), gridspec_kw=edges)
    for axes, images in zip(grid, rows, strict=True):
        for each, image in zip(axes, images, strict=True):
            each.imshow(image, interpolation="lanczos")
            each.set_axis_off()
    for each, seconds in zip(grid[1], found.clip.times, strict=True):
        each.set_title(f"{seconds:.2f} s", fontsize=12, y=-0.2)


def draw_timeline(figure: Any, found: Findings, shown: list[str], colors: dict[str, str]) -> None:
    figure.suptitle("When does it see what?", fontsize=17, weight="bold", x=0.027, ha="left")
    end = found.overview.end
    axes = figure.add_axes((0.085, 0.18, 0.9, 0.4))
    for row, name in enumerate(shown):
        spans = [(each.start, each.end - each.start) for each in found.segments if each.label == name]
        axes.axhspan(row + 0.08, row + 0.92, color="#f2f2f2", zorder=0)
        axes.broken_barh(spans, (row + 0.08, 0.84), color=colors[name])
    axes.axvspan(found.clip.times[0], found.clip.end, facecolor="none", edgecolor="black", linewidth=2, zorder=3)
    axes.set(xlim=(0, end), ylim=(len(shown), 0), xlabel="seconds (the box is the clip above)")
    axes.set_yticks(np.arange(len(shown)) + 0.5, shown)
    axes.tick_params(axis="y", length=0, labelsize=14)
    axes.tick_params(axis="x", labelsize=12)
    axes.xaxis.label.set_size(12)
    axes.spines[["top", "left", "right"]].set_visible(False)
    width = 1 / len(found.overview.images)
    for number, image in enumerate(found.overview.images):
        picture = axes.inset_axes((width * (number + 0.02), 1.04, width * 0.96, 0.76))
        picture.imshow(image, interpolation="lanczos")
        picture.set_axis_off()


def main() -> int:
    parser = make_parser(__doc__)
    parser.add_argument("--plot", type=Path, help="PNG file of the picture")
    parser.add_argument("--model", type=Path, help="folder of a model that --save-model kept")
    parser.add_argument("--save-model", type=Path, help="folder for the model")
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    print_machine("torch", "transformers", "av", threads=arguments.threads)
    training_seconds, epochs, seconds, moment = (24, 1, 24, 12) if arguments.smoke else (600, 16, 60, MOMENT)
    set_seed(SEED)
    with tempfile.TemporaryDirectory() as work:
        folder = arguments.model or arguments.save_model or Path(work, "model")
        if arguments.model is None:
            make_model(folder, training_seconds, epochs)
        model = AutoModelForVideoClassification.from_pretrained(folder).eval()
        video = Path(work, "video.mp4")
        events = write_event_video(video, seconds=seconds, seed=VIDEO_SEED, held_out=True)
        found = look(model, AutoVideoProcessor.from_pretrained(folder), video, moment)
        names = [model.config.id2label[index] for index in range(model.config.num_labels)]
        figure = draw(found, names)
        plot = arguments.plot or Path(work, "picture.png")
        figure.savefig(plot)
        print(f"{len(events)} events, {len(found.segments)} segments; picture of {plot.stat().st_size / 1024:.0f} KiB")
    for each in found.segments:
        print(f"  {each.start:5.1f} to {each.end:5.1f} s  {each.label:5}  {each.score:.3f}")
    print(f"answer for {found.clip.times[0]:.1f} to {found.clip.end:.1f} s: {names[int(found.scores.argmax())]}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
