"""
Small sets of labelled videos, to learn from a few clips: photographs and handwritten digits that move, people, and
drawn gears and figures.

Nothing here is shared with the videos and pictures that the start was pre-trained on. The photographs and the people
are OpenCV's samples (Debian: opencv-doc), the digits and the grounds of drawings scikit-learn's. What a test clip
shows, other than its class, is in no training clip: photographs, halves of photographs, digits or seconds are split
between the two.
"""

from collections.abc import Callable
from functools import cache, partial
from itertools import product
from pathlib import Path
from typing import NamedTuple

import av
import numpy as np
from helpers.walking_scene import CLASSES, SPAN, TEST_FRAMES, WINDOW, draw_places, read_scene
from PIL import Image, ImageDraw, ImageFilter

SIZE, NUM_FRAMES, RATE = 96, 24, 12
SAMPLES = Path("/usr/share/doc/opencv-doc/examples/data")
VIDEO = SAMPLES / "vtest.avi"
# The first half is for training, the second for tests.
PHOTOS = (
    *("fruits.jpg", "baboon.jpg", "building.jpg", "board.jpg", "graf1.png", "starry_night.jpg", "aero1.jpg"),
    *("butterfly.jpg", "home.jpg", "chicky_512.png", "messi5.jpg", "stuff.jpg", "leuvenA.jpg", "rubberwhale1.png"),
)
SURFACES = {
    "fruit": "fruits.jpg",
    "circuit board": "board.jpg",
    "graffiti": "graf1.png",
    "painting": "starry_night.jpg",
}
Draw = Callable[[str, bool, np.random.Generator], np.ndarray]


class SmallSet(NamedTuple):
    """A set by its classes, and whether the classes are motions that the generator of the start knows.

    Attributes:
        classes: their names.
        kind: "motion" for motions of generated videos, "other motion", or "no motion".
        open: gives the function that draws the frames (T, H, W, 3) uint8 of a clip: from its class, whether it is a
            test clip, and a generator. It takes whether inputs are small ones that need no samples of OpenCV.
    """

    classes: tuple[str, ...]
    kind: str
    open: Callable[[bool], Draw]


def write_set(
    name: str, folder: Path, *, train_per_class: int, test_per_class: int, seed: int, is_small: bool = False
) -> None:
    """Writes a set as `folder/train/CLASS/*.mp4` and `folder/test/CLASS/*.mp4`."""
    chosen = SETS[name]
    draw = chosen.open(is_small)
    for (split, number), label in product({"train": train_per_class, "test": test_per_class}.items(), chosen.classes):
        place = folder / split / label
        place.mkdir(parents=True)
        for index in range(number):
            seeds = [seed, split == "test", chosen.classes.index(label), index]
            encode(place / f"{index:03}.mp4", draw(label, split == "test", np.random.default_rng(seeds)))


def encode(file: Path, frames: np.ndarray) -> None:
    with av.open(file, "w") as container:
        stream = container.add_stream("libx264", rate=RATE, options={"crf": "20", "threads": "1"})
        stream.pix_fmt = "yuv420p"
        stream.height, stream.width = frames.shape[1:3]
        for frame in frames:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(np.ascontiguousarray(frame))))
        container.mux(stream.encode())


def load_photos(is_small: bool, names: tuple[str, ...] = PHOTOS) -> list[Image.Image]:
    """Photographs whose shorter side has 240 pixels; small inputs are the two of scikit-learn, again and again."""
    if is_small:
        from sklearn.datasets import load_sample_images

        images = [Image.fromarray(image) for image in load_sample_images().images]
        photos = [images[index % 2] for index in range(len(names))]
    else:
        photos = [Image.open(SAMPLES / name).convert("RGB") for name in names]
    return [photo.resize([round(side * 240 / min(photo.size)) for side in photo.size]) for photo in photos]


def part_for(photos: list[Image.Image], is_test: bool) -> list[Image.Image]:
    half = len(photos) // 2
    return photos[half:] if is_test else photos[:half]


def window(photo: Image.Image, centre: tuple[float, float], scale: float = 1.0, angle: float = 0.0) -> np.ndarray:
    """The frame (SIZE, SIZE, 3) around a point of a photograph, of `scale` pixels a pixel, turned by `angle`."""
    cosine, sine = scale * np.cos(angle), scale * np.sin(angle)
    middle = SIZE / 2
    across = (cosine, -sine, centre[0] - cosine * middle + sine * middle)
    down = (sine, cosine, centre[1] - sine * middle - cosine * middle)
    return np.asarray(
        photo.transform((SIZE, SIZE), Image.Transform.AFFINE, (*across, *down), Image.Resampling.BICUBIC)
    )


def draw_centre(photo: Image.Image, margin: float, generator: np.random.Generator) -> np.ndarray:
    width, height = photo.size
    return np.array([generator.uniform(margin, width - margin), generator.uniform(margin, height - margin)])


def draw_cutouts(tracks: list[np.ndarray], photos: list[Image.Image], generator: np.random.Generator) -> np.ndarray:
    """Round parts of photographs at the places (T, 2) of their middles, before a still part of another one."""
    ground, *things = (photos[index] for index in generator.permutation(len(photos))[: len(tracks) + 1])
    still = window(ground, tuple(draw_centre(ground, SIZE / 2, generator)), generator.uniform(0.7, 1.0))
    frames = np.repeat(still[None].astype(np.float64), NUM_FRAMES, axis=0)
    rows, columns = np.mgrid[:SIZE, :SIZE]
    for track, thing in zip(tracks, things, strict=True):
        part = window(thing, tuple(draw_centre(thing, SIZE / 2, generator)), 1.2)
        radius = float(generator.uniform(11, 17))
        for frame, (x, y) in zip(frames, track, strict=True):
            right, down = round(float(x)) - SIZE // 2, round(float(y)) - SIZE // 2
            distance = np.hypot(rows - SIZE // 2 - down, columns - SIZE // 2 - right)
            share = np.clip(radius - distance, 0, 1)[..., None]
            frame += share * (np.roll(part, (down, right), axis=(0, 1)) - frame)
    return frames.round().astype(np.uint8)


def open_crossing(is_small: bool) -> Draw:
    photos = load_photos(is_small)
    ways = {"goes left": (-1, 0), "goes right": (1, 0), "goes up": (0, -1), "goes down": (0, 1)}

    def draw(label: str, is_test: bool, generator: np.random.Generator) -> np.ndarray:
        shares = np.linspace(-0.5, 0.5, NUM_FRAMES)[:, None]
        middle = SIZE / 2 + generator.uniform(-12, 12, 2)
        track = middle + shares * np.array(ways[label]) * generator.uniform(25, 50)
        return draw_cutouts([track], part_for(photos, is_test), generator)

    return draw


def open_pairs(is_small: bool) -> Draw:
    photos = load_photos(is_small)

    def draw(label: str, is_test: bool, generator: np.random.Generator) -> np.ndarray:
        angle = generator.uniform(0, 2 * np.pi)
        along, aside = np.array([[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]])
        near, far = generator.uniform(12, 15), generator.uniform(28, 36)
        time = np.linspace(-1, 1, NUM_FRAMES)[:, None]
        apart = {
            "meet": far + (near - far) * (time + 1) / 2,
            "part": near + (far - near) * (time + 1) / 2,
            "pass": far * time,
            "go together": np.full_like(time, near),
        }[label]
        shared = generator.uniform(14, 22) * time * (label == "go together")
        beside = generator.uniform(9, 13) * (label == "pass")
        middle = SIZE / 2 + generator.uniform(-6, 6, 2) + shared * along
        tracks = [middle + sign * (apart * along + beside * aside) for sign in (-1, 1)]
        return draw_cutouts(tracks, part_for(photos, is_test), generator)

    return draw


def open_camera(is_small: bool) -> Draw:
    photos = load_photos(is_small)

    def draw(label: str, is_test: bool, generator: np.random.Generator) -> np.ndarray:
        chosen = part_for(photos, is_test)
        photo = chosen[generator.integers(len(chosen))]
        time, change = np.linspace(0, 1, NUM_FRAMES), generator.uniform(1.3, 1.7)
        scales = np.full(NUM_FRAMES, 1.0) * generator.uniform(0.7, 1.0)
        if label in ("zooms in", "zooms out"):
            scales = change ** (-time if label == "zooms in" else time - 1)
        turn = generator.choice([-1, 1]) * generator.uniform(0.4, 0.9) * (label == "turns")
        centre = draw_centre(photo, 0.75 * SIZE, generator)
        # Nobody holds a camera quite still.
        drift = time[:, None] * generator.uniform(-4, 4, 2) + generator.normal(0, 0.3, (NUM_FRAMES, 2))
        moments = zip(centre + drift, scales, turn * time, strict=True)
        return np.stack([window(photo, tuple(place), scale, angle) for place, scale, angle in moments])

    return draw


def open_digits(is_small: bool) -> Draw:
    from sklearn.datasets import load_digits

    scans = load_digits()
    images = np.rint(scans.images * (255 / 16)).astype(np.uint8)
    names = dict(zip(("zero", "one", "two", "three"), range(4), strict=True))

    def draw(label: str, is_test: bool, generator: np.random.Generator) -> np.ndarray:
        of_class = images[scans.target == names[label]]
        border = len(of_class) // 2
        image = generator.choice(of_class[border:] if is_test else of_class[:border])
        side = int(generator.integers(28, 44))
        ink = np.asarray(Image.fromarray(image).resize((side, side), Image.Resampling.BICUBIC)) / 255
        color, ground = generator.uniform(140, 255, 3), generator.uniform(0, 90, 3)
        start, end = generator.uniform(0, SIZE - side, (2, 2))
        frames = np.full((NUM_FRAMES, SIZE, SIZE, 3), ground)
        for frame, time in zip(frames, np.linspace(0, 1, NUM_FRAMES), strict=True):
            left, top = np.rint(start + time * (end - start)).astype(int)
            inside = frame[top : top + side, left : left + side]
            inside += ink[..., None] * (color - inside)
        return (frames + generator.normal(0, 6, frames.shape)).clip(0, 255).astype(np.uint8)

    return draw


def open_surfaces(is_small: bool) -> Draw:
    photos = dict(zip(SURFACES, load_photos(is_small, tuple(SURFACES.values())), strict=True))

    def draw(label: str, is_test: bool, generator: np.random.Generator) -> np.ndarray:
        width, height = photos[label].size
        half = photos[label].crop((width // 2, 0, width, height) if is_test else (0, 0, width // 2, height))
        half = half.filter(ImageFilter.GaussianBlur(generator.uniform(0, 0.8))).convert("L").convert("RGB")
        scale = generator.uniform(0.6, 0.9)
        ends = [draw_centre(half, scale * SIZE / 2, generator) for _ in range(2)]
        shares = np.linspace(0, 0.6, NUM_FRAMES)
        return np.stack([window(half, tuple(ends[0] + share * (ends[1] - ends[0])), scale) for share in shares])

    return draw


@cache
def open_people(is_small: bool) -> Draw:
    scene = read_scene(None if is_small else VIDEO)
    border = max(len(scene.frames) - TEST_FRAMES, len(scene.frames) // 2)
    parts = {False: scene.part(0, border), True: scene.part(border, len(scene.frames))}
    found = {is_test: draw_places(part, 12 if is_small else 750, seed=0) for is_test, part in parts.items()}

    def draw(label: str, is_test: bool, generator: np.random.Generator) -> np.ndarray:
        places = [place for place in found[is_test] if place.label == CLASSES.index(label)]
        place = places[generator.integers(len(places))]
        span = parts[is_test].frames[place.frame : place.frame + SPAN]
        return span[:, place.top : place.top + WINDOW, place.left : place.left + WINDOW]

    return draw


def draw_over(
    photos: list[Image.Image], draws: list[Callable[[ImageDraw.ImageDraw], None]], generator: np.random.Generator
) -> np.ndarray:
    """Frames of drawings, in thirds of pixels, before a blurred part of a photograph that drifts a little."""
    photo = photos[generator.integers(len(photos))].filter(ImageFilter.GaussianBlur(2))
    start, end = draw_centre(photo, SIZE, generator), generator.uniform(-5, 5, 2)
    frames = []
    for share, draw in zip(np.linspace(0, 1, NUM_FRAMES), draws, strict=True):
        ground = Image.fromarray(window(photo, tuple(start + share * end)))
        large = ground.resize((3 * SIZE, 3 * SIZE))
        draw(ImageDraw.Draw(large))
        frames.append(np.asarray(large.reduce(3)))
    noisy = np.stack(frames) + generator.normal(0, 4, (NUM_FRAMES, SIZE, SIZE, 3))
    return noisy.clip(0, 255).astype(np.uint8)


def draw_colour(generator: np.random.Generator) -> tuple[int, ...]:
    low = generator.choice([0, 175])
    return tuple(generator.integers(low, low + 80, 3).tolist())


def sample_photos() -> list[Image.Image]:
    """A building and a flower."""
    from sklearn.datasets import load_sample_images

    return [Image.fromarray(image) for image in load_sample_images().images]


def open_gears(is_small: bool) -> Draw:
    photos = sample_photos()

    def draw(label: str, is_test: bool, generator: np.random.Generator) -> np.ndarray:
        radius, teeth = 3 * generator.uniform(22, 32), int(generator.integers(9, 14))
        middle = 1.5 * SIZE + 3 * generator.uniform(-12, 12, 2)
        turn, colour, hole = generator.uniform(0, 2 * np.pi), draw_colour(generator), generator.uniform(0.2, 0.35)
        angles = turn + np.arange(4 * teeth) * 2 * np.pi / (4 * teeth)
        rims = np.tile([1.0, 1.0, 0.75, 0.75], teeth)
        if label == "a tooth is missing":
            rims[:2] = 0.75
        outline = [
            tuple(middle + radius * rim * np.array([np.cos(a), np.sin(a)]))
            for rim, a in zip(rims, angles, strict=True)
        ]
        crack = [turn + generator.uniform(-0.15, 0.15) + share for share in generator.uniform(-0.12, 0.12, 5)]

        def paint(on: ImageDraw.ImageDraw) -> None:
            on.polygon(outline, fill=colour)
            inner = hole * radius
            on.ellipse((*(middle - inner), *(middle + inner)), fill=(90, 90, 90))
            if label == "cracked":
                along = zip(crack, np.linspace(hole, 0.8, 5), strict=True)
                on.line(
                    [tuple(middle + radius * r * np.array([np.cos(a), np.sin(a)])) for a, r in along], (90, 90, 90), 6
                )

        return draw_over(part_for(photos, is_test), [paint] * NUM_FRAMES, generator)

    return draw


# Degrees from hanging down, forward: trunk (from upright), both upper arms, lower arms, thighs, shins.
POSTURES = {
    "stands": (0, 15, 10, 5, 0),
    "sits": (0, 35, 70, 85, 0),
    "bends": (75, 0, 0, 5, 0),
    "raises its arms": (0, 150, 170, 5, 0),
}
# The largest change of the same angles, and of the height over that of a leg.
GESTURES = {
    "waves": ((0, 0, 0, 0, 0), 0.0),
    "squats": ((15, 40, 50, 75, -65), 0.0),
    "jumps": ((0, 20, 20, 0, 0), 0.45),
    "lifts its arms": ((0, 140, 150, 0, 0), 0.0),
}


def paint_figure(
    on: ImageDraw.ImageDraw, degrees: np.ndarray, foot: np.ndarray, size: float, facing: int, colour: tuple[int, ...]
) -> None:
    """A figure from the side; degrees (2, 5) are those of `POSTURES` for its two sides."""
    steps = np.stack([facing * np.sin(np.radians(degrees)), np.cos(np.radians(degrees))], axis=-1) * size
    trunk = steps[0, 0] * np.array([0.6, -0.6])
    legs = 0.5 * steps[:, 3] + 0.5 * steps[:, 4]
    hip = foot - [0, legs[:, 1].max()]
    neck, width = hip + trunk, round(size / 7)
    for side in range(2):
        knee, elbow = hip + 0.5 * steps[side, 3], neck + 0.35 * steps[side, 1]
        lines = [hip, knee, hip + legs[side]], [hip, neck, elbow, elbow + 0.35 * steps[side, 2]]
        for line in lines:
            on.line([tuple(point) for point in line], colour, width, joint="curve")
    head = neck + 0.3 * trunk / 0.6
    on.ellipse((*(head - 0.17 * size), *(head + 0.17 * size)), fill=colour)


def open_figures(is_small: bool) -> Draw:
    """Postures that are kept, or gestures."""
    photos = sample_photos()

    def draw(label: str, is_test: bool, generator: np.random.Generator) -> np.ndarray:
        size, facing, colour = 3 * generator.uniform(24, 34), int(generator.choice([-1, 1])), draw_colour(generator)
        foot = np.array([1.5 * SIZE + 3 * generator.uniform(-14, 14), 3 * generator.uniform(78, 92)])
        usual = np.array(POSTURES.get(label, POSTURES["stands"])) + generator.normal(0, 7, (2, 5))
        change, height = GESTURES.get(label, ((0,) * 5, 0.0))
        phase, times = generator.uniform(0, 1), np.linspace(0, generator.uniform(1.2, 2), NUM_FRAMES)
        draws = []
        for time in times:
            share = (1 - np.cos(2 * np.pi * (time + phase))) / 2
            degrees = usual + share * np.array(change)
            if label == "waves":
                degrees[0, 1:3] = 120, 150 + 60 * (share - 0.5)
            place = foot - [0, height * size * share]
            draws.append(partial(paint_figure, degrees=degrees, foot=place, size=size, facing=facing, colour=colour))
        return draw_over(part_for(photos, is_test), draws, generator)

    return draw


SETS = {
    "crossing": SmallSet(("goes left", "goes right", "goes up", "goes down"), "motion", open_crossing),
    "camera": SmallSet(("zooms in", "zooms out", "turns", "is still"), "motion", open_camera),
    "people": SmallSet(CLASSES, "motion", open_people),
    "pairs": SmallSet(("meet", "part", "pass", "go together"), "other motion", open_pairs),
    "digits": SmallSet(("zero", "one", "two", "three"), "no motion", open_digits),
    "surfaces": SmallSet(tuple(SURFACES), "no motion", open_surfaces),
    "gears": SmallSet(("good", "a tooth is missing", "cracked"), "no motion", open_gears),
    "postures": SmallSet(tuple(POSTURES), "no motion", open_figures),
    "gestures": SmallSet(tuple(GESTURES), "other motion", open_figures),
}
