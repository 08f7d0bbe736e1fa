"""
Videos made of random numbers, in which everything that moves is known: what a model can learn motion and shape from.

    python examples/generated_motion.py PICTURE.png [--seed 0] [--level 1.0]    # draws eight of them, a row each

A clip is a textured ground and up to two textured objects. Each of them moves, turns and grows in its own way. Three
quarters of the clips have one thing to see: a plain object whose shape stands out, a ground that alone moves, or an
object that alone moves. The targets say what: for every token how far what it shows moves, and for the clip the kinds
and rates of the motions, the shape and the textures. No picture and no video is read, unless pictures are given: then
grounds and objects have them, too, and there are letters and clip art. The same seed makes the same clips.

Positions are in pixels from the middle of a frame, x to the right and y down. Angles are in radians, clockwise.
"""

import argparse
import math
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from generated_pictures import MARGIN, NUM_SHAPES, OBJECT_SIZE, chance, draw_outlines, draw_textures, uniform
from start_pictures import Pictures
from torch import Tensor
from torchvision.utils import save_image

NUM_FRAMES, IMAGE_SIZE = 8, 64
# Frames, rows and columns of a token.
TUBELET_SIZE, PATCH_SIZE = 2, 8
STEPS = NUM_FRAMES - 1

# How a rate develops over the steps from frame to frame. Growth and turns have these kinds as well, but for the last.
KINDS = ("still", "steady", "faster", "slower", "starts", "stops", "back", "swings", "jitters", "bends")
# The largest absolute rates in a step: pixels to the right and down, log of the size, angle.
RATES = ("right", "down", "growth", "turn")
OBJECT_LIMITS = (8.0, 8.0, 0.15, 0.5)
GROUND_LIMITS = (6.0, 6.0, 0.08, 0.12)
# The last is the log of the radius over that of a usual object.
PLACES = ("x", "y", "size")
PLACE_LIMITS = (24.0, 24.0, 0.5)
USUAL_RADIUS = 14.0
# What `Clips.values` holds, with the largest absolute value of each: mean rates of both halves, then the mean place.
VALUES = {
    **{f"{name} {rate} {half}": limit
       for name, limits in (("object", OBJECT_LIMITS), ("ground", GROUND_LIMITS))
       for half in ("first", "last")
       for rate, limit in zip(RATES, limits, strict=True)},
    **{f"object {place}": limit for place, limit in zip(PLACES, PLACE_LIMITS, strict=True)},
}  # fmt: skip
# What `Clips.kinds` holds.
MOTIONS = ("object move", "object grow", "object turn", "ground move", "ground grow", "ground turn")
UNKNOWN = -100

# What there is to see, in equal shares: the shape of the main object, the motion of the ground, that of the main
# object, or all of them at once.
SCENES = ("form", "camera", "object", "all")
# With pictures: a part of one alone, a letter, or clip art.
PICTURE_SCENES = ("picture", "letter", "stamp")
# Sides of the square ground, in texels and, half of it, in pixels of a frame.
GROUND_SIZE = 128
GROUND_EXTENT = 0.75 * IMAGE_SIZE


@dataclass
class Clips:
    """
    A batch of B clips, T frames of H x W pixels, in N tokens that are ordered by time, row and column.

    Attributes:
        frames: (B, T, 3, H, W) float32 in [0, 1].
        flow: (B, N, 2) float32, how far what a token shows moves to the right and down, in pixels, from the first
            frame of the token to the second. NaN where a ground without contrast hides its motion.
        is_object: (B, N) float32, 1 for tokens that show more of an object than of the ground.
        kinds: (B, 6) int64, indices of `KINDS` for `MOTIONS`. `UNKNOWN` if there is nothing to see.
        values: (B, 19) float32, see `VALUES`; NaN if there is nothing to see.
        shape: (B,) int64, which of the `NUM_SHAPES` shapes the main object has, or `UNKNOWN`.
        textures: (B, 2) int64, indices of `TEXTURES` for the main object and the ground, or `UNKNOWN`.
        letter: (B,) int64, index of `LETTERS`, or `UNKNOWN`.
        file: (B,) int64, of which file a picture or clip art is, see `Pictures`, or `UNKNOWN`.
    """

    frames: Tensor
    flow: Tensor
    is_object: Tensor
    kinds: Tensor
    values: Tensor
    shape: Tensor
    textures: Tensor
    letter: Tensor
    file: Tensor


def draw_profiles(kinds: Tensor, generator: torch.Generator) -> Tensor:
    """Factors (count, STEPS) of a rate in each step, by the index of its kind."""
    count = len(kinds)
    step = torch.arange(STEPS, dtype=torch.float32)
    ramp = (step / (STEPS - 1)).expand(count, -1)
    switch = torch.randint(2, STEPS - 1, (count, 1), generator=generator)
    frequency = uniform((count, 1), 0.8, 1.8, generator) / STEPS
    phase = uniform((count, 1), 0, 2 * math.pi, generator)
    one = torch.ones(count, STEPS)
    profiles = {
        "still": 0 * one,
        "steady": one,
        "faster": 0.1 + 1.8 * ramp,
        "slower": 1.9 - 1.8 * ramp,
        "starts": (step >= switch).float(),
        "stops": (step < switch).float(),
        "back": torch.where(step < switch, 1.0, -1.0),
        "swings": (2 * math.pi * frequency * step + phase).cos(),
        "jitters": torch.randn((count, STEPS), generator=generator),
        "bends": one,
    }
    return torch.stack([profiles[kind] for kind in KINDS])[kinds, torch.arange(count)]


def draw_kinds(count: int, moving: float, generator: torch.Generator, with_bends: bool = False) -> Tensor:
    """Indices of `KINDS`, (count,), half of those that move being steady."""
    kinds = torch.randint(1, len(KINDS) if with_bends else len(KINDS) - 1, (count,), generator=generator)
    kinds = torch.where(chance((count,), 0.3, generator), KINDS.index("steady"), kinds)
    return torch.where(chance((count,), moving, generator), kinds, KINDS.index("still"))


@dataclass
class Motion:
    """Rates (count, STEPS, 4) in the order of `RATES`, and the kinds (count, 3) of the move, the growth, the turn."""

    rates: Tensor
    kinds: Tensor

    def poses(self, middle: Tensor) -> Tensor:
        """x, y, log of the size and angle in each frame, (count, NUM_FRAMES, 4), with the mean `middle` (count, 4)."""
        path = F.pad(self.rates.cumsum(dim=1), (0, 0, 1, 0))
        return path - path.mean(dim=1, keepdim=True) + middle[:, None]


def draw_motion(
    limits: tuple[float, ...],
    shares: tuple[float, float, float],
    still: Tensor,
    clear: Tensor,
    generator: torch.Generator,
) -> Motion:
    """
    Motions that move, grow and turn in the given shares of the clips, more of them slow than fast.

    Args:
        limits: the largest rates.
        shares: of the clips that move, grow and turn, where a clip is neither still nor clear.
        still: (count,) bool, nothing changes.
        clear: (count,) bool, at most one of the three changes, and never slowly.
    """
    count = len(still)
    kinds = torch.stack([draw_kinds(count, s, generator, with_bends=i == 0) for i, s in enumerate(shares)], dim=1)
    only = F.one_hot(torch.randint(4, (count,), generator=generator), 4)[:, :3]
    of_clear = draw_kinds(3 * count, 1.0, generator).view(count, 3) * only
    kinds = torch.where(clear[:, None], of_clear, kinds) * ~still[:, None]
    size = torch.rand((count, 3), generator=generator)
    size = torch.where(clear[:, None], 0.2 + 0.8 * size, 0.06 + 0.94 * size**1.7)
    size = torch.tensor([limits[1], limits[2], limits[3]]) * size
    sign = torch.where(chance((count, 3), 0.5, generator), 1.0, -1.0)
    move, grow, turn = ((size * sign)[:, i, None] * draw_profiles(kinds[:, i], generator) for i in range(len(shares)))
    direction = uniform((count, 1), 0, 2 * math.pi, generator)
    curve = sign[:, 1:2] * uniform((count, 1), 0.25, 0.7, generator) * torch.arange(STEPS)
    scatter = uniform((count, STEPS), 0, 2 * math.pi, generator)
    direction = direction + torch.where(kinds[:, :1] == KINDS.index("bends"), curve, 0)
    direction = torch.where(kinds[:, :1] == KINDS.index("jitters"), scatter, direction)
    rates = torch.stack([move * direction.cos(), move * direction.sin(), grow, turn], dim=-1)
    largest = torch.tensor(limits)
    return Motion(rates.clamp(-largest, largest), kinds)


def turning(angle: Tensor) -> Tensor:
    """The matrices (..., 2, 2) that turn clockwise, as y goes down."""
    cos, sin = angle.cos(), angle.sin()
    return torch.stack([torch.stack([cos, -sin], dim=-1), torch.stack([sin, cos], dim=-1)], dim=-2)


def place(pictures: Tensor, poses: Tensor, extent: Tensor, padding_mode: str) -> Tensor:
    """
    Frames (count, channels, T, IMAGE_SIZE, IMAGE_SIZE) that show pictures at their poses.

    Args:
        pictures: (count, channels, size, size).
        poses: (count, T, 4), see `Motion.poses`.
        extent: (count,), half the side of a picture in pixels, where the log of the size is 0.
        padding_mode: what lies around a picture, as in `grid_sample`.
    """
    count = len(pictures)
    inverse = turning(-poses[..., 3]) / (extent[:, None] * poses[..., 2].exp())[..., None, None]
    offset = -(inverse @ poses[..., :2, None])
    theta = torch.cat([inverse * (IMAGE_SIZE / 2), offset], dim=-1).flatten(0, 1)
    grid = F.affine_grid(theta, [len(theta), 1, IMAGE_SIZE, IMAGE_SIZE], align_corners=False)
    # The frames of a clip are one tall picture, so that nothing is copied.
    grid = grid.view(count, -1, IMAGE_SIZE, 2)
    frames = F.grid_sample(pictures, grid, padding_mode=padding_mode, align_corners=False)
    return frames.unflatten(2, (-1, IMAGE_SIZE))


def flow_of(poses: Tensor) -> Tensor:
    """How far the middle of each token moves with a layer, (count, N, 2), from the first frame of the token to the
    second."""
    middles = (torch.arange(IMAGE_SIZE // PATCH_SIZE) + 0.5) * PATCH_SIZE - IMAGE_SIZE / 2
    rows, columns = torch.meshgrid(middles, middles, indexing="ij")
    points = torch.stack([columns, rows], dim=-1).view(1, 1, -1, 2)
    before, after = poses[:, ::TUBELET_SIZE, None], poses[:, 1::TUBELET_SIZE, None]
    change = turning(after[..., 3] - before[..., 3]) * (after[..., 2] - before[..., 2]).exp()[..., None, None]
    moved = (change @ (points - before[..., :2])[..., None])[..., 0] + after[..., :2]
    return (moved - points).flatten(1, 2)


@dataclass
class Scene:
    """
    What clips show, back to front: the ground, a small object, the main object.

    Attributes:
        ground: (B, 3, size, size) colours; `contrast` (B,) is the strength of its texture.
        objects: (B, 4, size, size) colours and opacity of the small and of the main object.
        poses: (B, T, 4) of the three, see `Motion.poses`; `extents` (B,), see `place`.
    """

    ground: Tensor
    contrast: Tensor
    objects: list[Tensor]
    poses: list[Tensor]
    extents: list[Tensor]

    def render(self) -> tuple[Tensor, Tensor, Tensor]:
        """Frames (B, T, 3, H, W), and `flow` and `is_object` of `Clips`."""
        frames = place(self.ground, self.poses[0], self.extents[0], "reflection")
        flow = flow_of(self.poses[0])
        flow[self.contrast < 0.1] = torch.nan
        shares = []
        for layer, poses, extent in zip(self.objects, self.poses[1:], self.extents[1:], strict=True):
            colours, opacity = place(layer, poses, extent, "zeros").split([3, 1], dim=1)
            frames = frames + (colours - frames) * opacity
            share = F.avg_pool3d(opacity[:, 0], (TUBELET_SIZE, PATCH_SIZE, PATCH_SIZE)).flatten(1)
            shares = [below * (1 - share) for below in shares] + [share]
            flow = torch.where(share[..., None] > 0.5, flow_of(poses), flow)
        return frames.transpose(1, 2), flow, (torch.stack(shares).sum(dim=0) > 0.5).float()


def light(frames: Tensor, generator: torch.Generator) -> Tensor:
    """Frames with brightness that drifts and flickers, with blur, and with noise."""
    count, num_frames = frames.shape[:2]
    drift = uniform((count, 1), -0.25, 0.25, generator) * chance((count, 1), 0.3, generator)
    flicker = 0.06 * chance((count, 1), 0.3, generator) * torch.randn((count, num_frames), generator=generator)
    gain = 1 + drift * torch.linspace(-0.5, 0.5, num_frames) + flicker
    blur = torch.rand((count,), generator=generator) * chance((count,), 0.6, generator)
    padded = F.pad(frames.flatten(0, 1), (1, 1, 1, 1), "replicate")
    rows = padded[..., :-2, :] + padded[..., 1:-1, :] + padded[..., 2:, :]
    smooth = ((rows[..., :-2] + rows[..., 1:-1] + rows[..., 2:]) / 9).view_as(frames)
    frames = frames.lerp(smooth, blur[:, None, None, None, None]) * gain[..., None, None, None]
    deviation = 0.08 * torch.rand((count, 1, 1, 1, 1), generator=generator) ** 2
    speckle = torch.randn((count, num_frames, 1, IMAGE_SIZE, IMAGE_SIZE), generator=generator)
    return (frames + deviation * speckle).clamp_(0, 1)


def draw_clips(
    count: int,
    seed: int,
    level: float = 1.0,
    scenes: tuple[str, ...] = SCENES,
    num_frames: int = NUM_FRAMES,
    pictures: Pictures | None = None,
    ease: float = 0.0,
) -> Clips:
    """
    Random clips. The seed decides everything about them.

    Args:
        count: number of clips.
        seed: of the random numbers.
        level: from 0 (the ground has no texture, and objects are darker or brighter than it) to 1 (grounds have full
            textures, and objects any colour). A model that begins at 1 stays at chance for long.
        scenes: which of `SCENES` and, with pictures, `PICTURE_SCENES` there are, in equal shares.
        num_frames: how many of `NUM_FRAMES` to show. Rates and kinds of motions are unknown unless all are seen.
        pictures: more than half of the grounds and some objects of moving scenes are these.
        ease: the share of letters and clip art that are large, in the middle, and before a plain ground.
    """
    generator = torch.Generator().manual_seed(seed)
    scene = torch.randint(len(scenes), (count,), generator=generator)
    names = SCENES + PICTURE_SCENES
    scene = torch.tensor([names.index(each) for each in scenes])[scene]
    form, of_camera, of_object, with_all, of_picture, of_letter, of_stamp = (
        scene == index for index in range(len(names))
    )
    alone = form | of_letter | of_stamp
    camera = draw_motion(GROUND_LIMITS, (0.5, 0.2, 0.15), alone | of_object, of_camera, generator)
    small = draw_motion(OBJECT_LIMITS, (0.7, 0.2, 0.2), alone, torch.zeros_like(form), generator)
    main = draw_motion(OBJECT_LIMITS, (0.75, 0.35, 0.35), torch.zeros_like(form), of_object, generator)
    # What it shows is seen best where it is slow.
    main.rates[alone] *= 0.2
    camera.rates[of_picture] *= 0.4
    has_small = chance((count,), 0.35, generator) & with_all
    has_main = chance((count,), 0.9, generator) & with_all | alone | of_object

    pattern, ground_texture = draw_textures(count, GROUND_SIZE, generator)
    colour = uniform((count, 3, 1, 1), 0.2, 0.8, generator)
    contrast = (
        torch.where(of_camera, 1.0, level) * torch.where(alone, 0.3, 1.0) * uniform((count,), 0.3, 1.3, generator)
    )
    ground = colour + contrast[:, None, None, None] * pattern
    pattern, textures = draw_textures(2 * count, OBJECT_SIZE, generator)
    shapes = torch.randint(NUM_SHAPES, (2 * count,), generator=generator)
    opacity = draw_outlines(shapes, generator)
    brighter = torch.where(colour.mean(dim=1, keepdim=True) < 0.5, 0.4, -0.4)
    any_colour = torch.rand((2 * count, 3, 1, 1), generator=generator)
    plain = chance((2 * count, 1, 1, 1), 1 - 0.8 * level, generator) | alone.repeat(2)[:, None, None, None]
    objects = torch.where(plain, (colour + brighter).repeat(2, 1, 1, 1), any_colour)
    objects = objects + torch.where(alone, 0.4, 1.0).repeat(2)[:, None, None, None] * pattern

    middle = torch.zeros(count, 4)
    extents, places = [torch.full((count,), GROUND_EXTENT)], []
    for (low, high), far in (((5, 9), 24), ((9, 22), 14)):
        places.append(uniform((count, 2), -far, far, generator))
        extents.append(uniform((count,), low, high, generator) * MARGIN)
    letter, file = torch.full((2, count), UNKNOWN)
    if pictures is not None:
        is_easy = chance((count,), ease, generator) & (of_letter | of_stamp)
        is_plain = chance((count,), 0.5, generator) & (of_letter | of_stamp) | is_easy
        contrast = torch.where(is_plain, 0.05, 1.0) * contrast
        ground = colour + torch.where(is_plain, 0.05, 1.0)[:, None, None, None] * (ground - colour)
        of_grounds, of_objects = (0.6, 0.5) if pictures.takes_parts else (0.0, 0.0)
        chosen = (chance((count,), of_grounds, generator) & ~form & ~is_plain | of_picture).nonzero()[:, 0]
        if len(chosen):
            ground[chosen], files = pictures.draw_parts(len(chosen), GROUND_SIZE, generator)
            ground_texture[chosen], file[chosen] = UNKNOWN, files
            contrast[chosen] = (10 * ground[chosen].mean(dim=1).flatten(1).std(dim=1)).clamp(max=1)
        chosen = (chance((2 * count,), of_objects, generator) & (of_object | with_all).repeat(2)).nonzero()[:, 0]
        objects[chosen], textures[chosen] = pictures.draw_parts(len(chosen), OBJECT_SIZE, generator)[0], UNKNOWN
        chosen = of_letter.nonzero()[:, 0]
        opacity[count + chosen], letter[chosen] = pictures.draw_letters(len(chosen), generator)
        chosen = (of_stamp | chance((count,), 0.4, generator) & (of_object | with_all)).nonzero()[:, 0]
        objects[count + chosen], opacity[count + chosen], files = pictures.draw_stamps(len(chosen), generator)
        textures[count + chosen], file[chosen] = UNKNOWN, files
        file[~(of_picture | of_stamp)] = UNKNOWN
        places[1] = torch.where(is_easy, 0.4, 1.0)[:, None] * places[1]
        large = uniform((count,), 14, 26, generator) * MARGIN
        extents[2] = torch.where(is_easy | of_stamp, large, extents[2])
        shapes[count:][letter != UNKNOWN] = shapes[count + chosen] = UNKNOWN
    seen = torch.cat([has_small, has_main])[:, None, None, None]
    objects = torch.cat([objects.clamp(0, 1), opacity[:, None] * seen], dim=1)
    poses = [camera.poses(middle)]
    for motion, place_of in zip((small, main), places, strict=True):
        poses.append(motion.poses(torch.cat([place_of, middle[:, 2:]], dim=1)))
    shown = [each[:, :num_frames] for each in poses]
    frames, flow, is_object = Scene(ground.clamp(0, 1), contrast, list(objects.split(count)), shown, extents).render()

    def halves(motion: Motion) -> list[Tensor]:
        return [motion.rates[:, : STEPS // 2 + 1].mean(dim=1), motion.rates[:, STEPS // 2 :].mean(dim=1)]

    size = (extents[2] / MARGIN / USUAL_RADIUS).log()
    of_place = torch.cat([shown[2][..., :2].mean(dim=1), size[:, None]], dim=1)
    seen_main, seen_ground = has_main[:, None], (contrast >= 0.1)[:, None]
    values = torch.cat(
        [
            torch.where(seen_main, torch.cat(halves(main), dim=1), torch.nan),
            torch.where(seen_ground, torch.cat(halves(camera), dim=1), torch.nan),
            torch.where(seen_main, of_place, torch.nan),
        ],
        dim=1,
    )
    kinds = [torch.where(seen_main, main.kinds, UNKNOWN), torch.where(seen_ground, camera.kinds, UNKNOWN)]
    kinds = torch.cat(kinds, dim=1)
    if num_frames < NUM_FRAMES:
        kinds[:], values[:, : -len(PLACES)] = UNKNOWN, torch.nan
    return Clips(
        frames=light(frames, generator),
        flow=flow,
        is_object=is_object,
        kinds=kinds,
        values=values,
        shape=torch.where(has_main, shapes[count:], UNKNOWN),
        textures=torch.stack(
            [
                torch.where(has_main, textures[count:], UNKNOWN),
                torch.where(seen_ground[:, 0], ground_texture, UNKNOWN),
            ],
            dim=1,
        ),
        letter=letter,
        file=file,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("picture", type=Path, help="where to draw clips, a PNG file")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--level", type=float, default=1.0, help="from 0, plain, to 1, textured; default 1")
    arguments = parser.parse_args()
    clips = draw_clips(8, arguments.seed, arguments.level)
    save_image(clips.frames.flatten(0, 1), arguments.picture, nrow=NUM_FRAMES)
    for row, (move, grow, turn) in enumerate(clips.kinds[:, :3].tolist()):
        said = ", ".join(
            f"{name} {KINDS[kind]}" for name, kind in (("moves", move), ("grows", grow), ("turns", turn)) if kind > 0
        )
        print(f"row {row + 1}: the main object {said or 'is still or missing'}")


if __name__ == "__main__":
    main()
