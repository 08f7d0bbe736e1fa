"""
Draws the moving picture of the README: people who walk, which way a model says they do, and where it sees that.

The frames are real: PETS 2009, as OpenCV distributes them under Apache-2.0 (`samples/data/vtest.avi`, 80 s), and are
looked for where Debian's `apt-get install opencv-doc` puts them. A small VideoViT learns from the first 60 seconds to
say whether somebody in a window walks left, walks right, or nobody is there; what is true is read from the outlines
of what differs from the empty scene. The picture is of the last 17 seconds, which the model has not seen: a window
that follows one person after another. It takes four minutes on 2 idle CPU cores. With `--smoke` squares move over a
noisy ground. `--example` writes the model, and clips of seconds that it has not seen: `hf_video/example` is made so.

    python benchmarks/people_walking.py [--video vtest.avi] [--plot docs/people_walking.webp] [--example DIR] [--smoke]
"""

import sys
from pathlib import Path

import numpy as np
import torch
from helpers.measurement import SKIPPED, make_parser, print_machine
from helpers.walking_scene import (
    CLASSES,
    NUM_FRAMES,
    SPAN,
    STRIDE,
    TEST_FRAMES,
    WINDOW,
    Place,
    Scene,
    draw_places,
    follow,
    move_elsewhere,
    read_clips,
    read_scene,
)
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from PIL import Image
from torch.nn.functional import interpolate
from transformers import set_seed

from hf_video.drawing import overlay_heat_maps
from hf_video.drawing.video import VideoEncoder
from hf_video.inference import explain
from hf_video.models.videovit import VideoViTConfig, VideoViTForVideoClassification
from hf_video.processing import VideoClipProcessor

VIDEO = Path("/usr/share/doc/opencv-doc/examples/data/vtest.avi")
MIRRORED = torch.tensor([1, 0, 2])
BATCH_SIZE = 16
COLORS = ("#3b6fb6", "#c8553d", "#9a9a9a")
# Where somebody walks right, turns round and walks left, before a window that stays: its corner, and frames of the
# unseen seconds. Clips are shown larger than the window is.
CORNER, ENLARGED, FRAMES_PER_SECOND = (96, 616), 3, 10
CLIPS = {"walks_right.mp4": (116, 146), "there_and_back.mp4": (80, 174)}


def train(scene: Scene, places: list[Place], num_steps: int) -> VideoViTForVideoClassification:
    """Who walks left walks right in a mirror, and when time runs backwards: half of the clips are turned each way."""
    sizes = {"image_size": WINDOW, "patch_size": 16, "num_frames": NUM_FRAMES, "hidden_size": 128}
    layers = {"num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 512}
    config = VideoViTConfig(**sizes, **layers, id2label=dict(enumerate(CLASSES)))
    model = VideoViTForVideoClassification(config).train()
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-3, total_steps=num_steps)
    for _ in range(num_steps):
        chosen = [places[index] for index in torch.randint(len(places), (BATCH_SIZE,))]
        batch, truth = read_clips(scene, chosen), torch.tensor([place.label for place in chosen])
        moved = torch.rand(BATCH_SIZE) < 0.5
        batch[moved] = move_elsewhere(
            scene, [place for place, is_moved in zip(chosen, moved, strict=True) if is_moved]
        )
        for axis in (-1, 1):
            turned = torch.rand(BATCH_SIZE) < 0.5
            batch[turned] = batch[turned].flip(axis)
            truth[turned] = MIRRORED[truth[turned]]
        contrast, brightness = 0.3 * torch.randn(2, BATCH_SIZE, 1, 3, 1, 1)
        model(pixel_values=batch * (1 + contrast) + brightness, labels=truth).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    return model.eval()


def accuracy(model: VideoViTForVideoClassification, scene: Scene, places: list[Place]) -> float:
    right = 0
    for start in range(0, len(places), BATCH_SIZE):
        batch = places[start : start + BATCH_SIZE]
        with torch.no_grad():
            predicted = model(read_clips(scene, batch)).logits.argmax(dim=-1).tolist()
        right += sum(label == place.label for label, place in zip(predicted, batch, strict=True))
    return right / len(places)


def draw_film(model: VideoViTForVideoClassification, scene: Scene, path: Path) -> float:
    """Writes the moving picture; returns the share of its moments in which the model is right."""
    pictures, right = [], []
    for place in follow(scene):
        clip = read_clips(scene, [place])
        with torch.no_grad():
            scores = model(clip).logits.softmax(dim=-1)[0].numpy()
        right.append(int(scores.argmax()) == place.label)
        # One map of the whole clip on the frame in its middle: where at any time the evidence is.
        heat = explain(model, clip)[0].amax(dim=0)[None, None]
        heat = interpolate(heat, (WINDOW, WINDOW), mode="bilinear").clamp(0, 1)[0].numpy()
        whole = scene.frames[place.frame + SPAN // 2]
        part = whole[None, place.top : place.top + WINDOW, place.left : place.left + WINDOW]
        pictures.append(draw_moment(whole, place, part[0], overlay_heat_maps(part, heat)[0], scores))
    first, *rest = pictures
    first.save(path, save_all=True, append_images=rest, duration=200, loop=0, quality=55, method=6)
    return sum(right) / len(right)


def draw_moment(
    whole: np.ndarray, place: Place, part: np.ndarray, heated: np.ndarray, scores: np.ndarray
) -> Image.Image:
    figure = Figure(figsize=(9.6, 3.2), dpi=100)
    canvas = FigureCanvasAgg(figure)
    scene = figure.add_axes((0.005, 0.02, 0.42, 0.96))
    scene.imshow(whole)
    color = COLORS[int(scores.argmax())]
    corner = (place.left, place.top)
    scene.add_patch(Rectangle(corner, WINDOW, WINDOW, fill=False, edgecolor=color, linewidth=2.5))
    windows = [figure.add_axes((left, 0.26, 0.27, 0.72)) for left in (0.44, 0.725)]
    for axes, image in zip(windows, (part, heated), strict=True):
        axes.imshow(image, interpolation="bicubic")
    for axes in (scene, *windows):
        axes.set_axis_off()
    bars = figure.add_axes((0.55, 0.02, 0.4, 0.22))
    drawn = bars.barh(CLASSES, scores, color=COLORS)
    bars.bar_label(drawn, [f"{score:.0%}" for score in scores], padding=3, fontsize=9)
    bars.set(xlim=(0, 1.12), xticks=[])
    bars.invert_yaxis()
    bars.tick_params(axis="y", length=0, labelsize=10)
    bars.spines[:].set_visible(False)
    canvas.draw()
    return Image.fromarray(np.asarray(canvas.buffer_rgba())[..., :3].copy())


def write_example(model: VideoViTForVideoClassification, unseen: Scene, folder: Path) -> None:
    """Writes `model/`, with weights in bfloat16, and the clips."""
    processor = VideoClipProcessor(
        num_frames=NUM_FRAMES,
        frame_sampling_rate=STRIDE,
        frame_interval=STRIDE / FRAMES_PER_SECOND,
        sampling_strategy="dense",
        size={"shortest_edge": WINDOW},
        crop_size={"height": WINDOW, "width": WINDOW},
        image_mean=[0.5] * 3,
        image_std=[0.5] * 3,
    )
    processor.save_pretrained(folder / "model")
    model.to(torch.bfloat16).save_pretrained(folder / "model")
    top, left = CORNER
    for name, (first, last) in CLIPS.items():
        with VideoEncoder(folder / name) as encoder:
            for number, frame in enumerate(unseen.frames[first:last]):
                window = Image.fromarray(frame[top : top + WINDOW, left : left + WINDOW])
                shown = window.resize((ENLARGED * WINDOW, ENLARGED * WINDOW), Image.Resampling.BICUBIC)
                encoder.add(np.asarray(shown), number / FRAMES_PER_SECOND)
            encoder.finish((last - first) / FRAMES_PER_SECOND)


def main() -> int:
    parser = make_parser(__doc__)
    parser.add_argument("--video", type=Path, default=VIDEO, help="vtest.avi of OpenCV (default: %(default)s)")
    parser.add_argument("--plot", type=Path, help="WebP file of the moving picture")
    parser.add_argument("--example", type=Path, help="folder for the model and clips that show it")
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    if not arguments.smoke and not arguments.video.is_file():
        print(f"{arguments.video} is missing: apt-get install opencv-doc, or name it with --video", file=sys.stderr)
        return SKIPPED
    torch.set_num_threads(arguments.threads)
    print_machine("torch", "transformers", "av", threads=arguments.threads)
    num_clips, num_steps = (24, 4) if arguments.smoke else (8000, 1000)
    set_seed(0)
    scene = read_scene(None if arguments.smoke else arguments.video)
    border = max(len(scene.frames) - TEST_FRAMES, len(scene.frames) // 2)
    seen, unseen = scene.part(0, border), scene.part(border, len(scene.frames))
    model = train(seen, draw_places(seen, num_clips, seed=0), num_steps)
    for name, part in (("seen", seen), ("unseen", unseen)):
        places = draw_places(part, min(num_clips, 600), seed=1)
        share = accuracy(model, part, places)
        print(f"{name} seconds: {share:.1%} of {len(places)} clips are right", flush=True)
    if arguments.plot:
        share = draw_film(model, unseen, arguments.plot)
        size = arguments.plot.stat().st_size / 1024
        print(f"picture of {size:.0f} KiB: {share:.1%} of its moments are right")
    if arguments.example:
        write_example(model, unseen, arguments.example)
    return 0


if __name__ == "__main__":
    sys.exit(main())
