"""
Pictures made of random numbers: textures, and shapes with their outlines, of which `generated_motion.py` makes videos.
No picture is read. The same generator draws the same ones.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

NUM_SHAPES = 64
# Sides in texels of the square pictures of shapes and objects.
SHAPE_SIZE, OBJECT_SIZE = 64, 48
# Room around the outline of a shape whose radius is 1.
MARGIN = 1.2


def uniform(shape: tuple[int, ...], low: float, high: float, generator: torch.Generator) -> Tensor:
    return torch.rand(shape, generator=generator) * (high - low) + low


def chance(shape: tuple[int, ...], share: float, generator: torch.Generator) -> Tensor:
    """True with a probability of `share`."""
    return torch.rand(shape, generator=generator) < share


def noise(count: int, cells: int, size: int, generator: torch.Generator, mode: str = "bicubic") -> Tensor:
    """(count, size, size): a random value for each of `cells` x `cells` places, and smooth between them."""
    values = torch.randn((count, 1, cells, cells), generator=generator)
    corners = {} if mode == "nearest" else {"align_corners": False}
    return F.interpolate(values, size=size, mode=mode, **corners)[:, 0]


def number(low: int, high: int, generator: torch.Generator) -> int:
    return int(torch.randint(low, high + 1, (1,), generator=generator))


def turned_axes(count: int, size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Two coordinates at right angles, (count, size, size), whose waves have random directions and lengths."""
    axis = torch.arange(size, dtype=torch.float32)
    angle = uniform((count, 1, 1), 0, math.pi, generator)
    # Five to thirty texels.
    pace = 2 * math.pi / (5 * 6 ** torch.rand((count, 1, 1), generator=generator))
    phase = uniform((count, 1, 1), 0, 2 * math.pi, generator)
    along = (axis[None, None] * angle.cos() + axis[None, :, None] * angle.sin()) * pace + phase
    across = (axis[None, :, None] * angle.cos() - axis[None, None] * angle.sin()) * pace + phase
    return along, across


def clouds(count: int, size: int, generator: torch.Generator) -> Tensor:
    persistence = uniform((count, 1, 1), 0.4, 1.0, generator)
    return sum(persistence**i * noise(count, 4 * 2**i, size, generator) for i in range(4)) / 1.5


def spots(count: int, size: int, generator: torch.Generator) -> Tensor:
    return noise(count, number(size // 16, size // 3, generator), size, generator)


def grain(count: int, size: int, generator: torch.Generator) -> Tensor:
    return noise(count, size // 2, size, generator, "bilinear")


def camouflage(count: int, size: int, generator: torch.Generator) -> Tensor:
    return (6 * noise(count, number(size // 16, size // 4, generator), size, generator)).tanh()


def mosaic(count: int, size: int, generator: torch.Generator) -> Tensor:
    return noise(count, number(size // 16, size // 4, generator), size, generator, "nearest")


def waves(count: int, size: int, generator: torch.Generator) -> Tensor:
    return turned_axes(count, size, generator)[0].sin()


def bars(count: int, size: int, generator: torch.Generator) -> Tensor:
    return (8 * turned_axes(count, size, generator)[0].sin()).tanh()


def checks(count: int, size: int, generator: torch.Generator) -> Tensor:
    along, across = turned_axes(count, size, generator)
    return (8 * along.sin() * across.sin()).tanh()


def dots(count: int, size: int, generator: torch.Generator) -> Tensor:
    along, across = turned_axes(count, size, generator)
    return (6 * (along.sin() + across.sin() - 0.8)).tanh()


def ripples(count: int, size: int, generator: torch.Generator) -> Tensor:
    along, across = turned_axes(count, size, generator)
    middle = uniform((2, count, 1, 1), 0, 6, generator)
    return ((along - middle[0]) ** 2 + (across - middle[1]) ** 2).sqrt().sin()


def cells(count: int, size: int, generator: torch.Generator) -> Tensor:
    """Distance to the nearest of some points."""
    points = uniform((count, 24, 2), 0, size, generator)
    axis = torch.arange(size, dtype=torch.float32)
    places = torch.cartesian_prod(axis, axis).expand(count, -1, -1)
    distances = torch.cdist(places, points).amin(dim=2).view(count, size, size)
    return 2 * distances / distances.amax(dim=(1, 2), keepdim=True) * 1.5 - 1


def slope(count: int, size: int, generator: torch.Generator) -> Tensor:
    """From dark to bright, once."""
    along, _ = turned_axes(count, size, generator)
    return (along - along.mean(dim=(1, 2), keepdim=True)) / along.std(dim=(1, 2), keepdim=True)


TEXTURES = (clouds, spots, grain, camouflage, mosaic, waves, bars, checks, dots, ripples, cells, slope)


def draw_textures(count: int, size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Coloured patterns (count, 3, size, size) around zero, and their kinds (count,)."""
    kinds = torch.randint(len(TEXTURES), (count,), generator=generator)
    pattern = torch.empty(count, size, size)
    for kind, draw in enumerate(TEXTURES):
        chosen = (kinds == kind).nonzero()[:, 0]
        if len(chosen):
            pattern[chosen] = draw(len(chosen), size, generator).clamp(-2, 2)
    # Dark to bright in any tint; the pattern of another clip adds a second colour.
    tint = 1 + 0.6 * torch.randn((count, 3), generator=generator)
    other = 0.6 * torch.randn((count, 3), generator=generator)
    strength = uniform((count, 1, 1, 1), 0.08, 0.25, generator)
    coloured = pattern[:, None] * tint[..., None, None] + pattern.roll(1, dims=0)[:, None] * other[..., None, None]
    return coloured * strength, kinds


def draw_shapes() -> Tensor:
    """
    The shapes, (NUM_SHAPES, size, size): positive inside, about the distance from the outline, whose radius is 1.
    Half of them are closed outlines: polygons, stars, rings and smooth ones. Half are strokes, straight and bent.
    """
    generator = torch.Generator().manual_seed(0)
    axis = torch.linspace(-MARGIN, MARGIN, SHAPE_SIZE)
    y, x = torch.meshgrid(axis, axis, indexing="ij")
    radius, angle = (x**2 + y**2).sqrt(), torch.atan2(x, -y) % (2 * math.pi)
    shapes = [1 - radius, torch.minimum(1 - radius, radius - 0.55), torch.minimum(1 - radius, y)]
    for corners in (3, 4, 5, 6, 8):
        part = 2 * math.pi / corners
        inner = math.cos(part / 2)
        polygon = inner - radius * (angle % part - part / 2).cos()
        star = 0.4 + 0.6 * ((angle % part) / part - 0.5).abs() * 2 - radius
        shapes += [polygon, star]
        if corners < 6:
            shapes.append(torch.minimum(polygon, radius * (angle % part - part / 2).cos() - 0.5 * inner))
    while len(shapes) < NUM_SHAPES // 2:
        waves_of = torch.randn((4, 2), generator=generator) * torch.tensor([[0.25], [0.25], [0.2], [0.12]])
        outline = sum(a * (k * angle).cos() + b * (k * angle).sin() for k, (a, b) in enumerate(waves_of.tolist(), 1))
        shapes.append((0.7 + outline).clamp(0.2, 1.0) - radius)
    places = torch.stack([x, y], dim=-1).view(-1, 2)
    share = torch.linspace(0, 1, 40)[:, None]
    while len(shapes) < NUM_SHAPES:
        lines = []
        for _ in range(1 + len(shapes) % 2):
            a, b, c, d = uniform((4, 2), -0.95, 0.95, generator)
            bend = (1 - share) ** 3 * a + 3 * (1 - share) ** 2 * share * 2 * b + 3 * (1 - share) * share**2 * 2 * c
            straight = torch.cat([a + (b - a) * share, b + (c - b) * share, c + (d - c) * share])
            lines.append((bend + share**3 * d).clamp(-1, 1) if len(shapes) % 3 else straight)
        shapes.append(0.16 - torch.cdist(places, torch.cat(lines)).amin(dim=1).view(SHAPE_SIZE, SHAPE_SIZE))
    return torch.stack(shapes)


SHAPES = draw_shapes()


def turned_places(count: int, generator: torch.Generator) -> Tensor:
    """Where `grid_sample` finds stretched, sheared and leant pictures, (count, OBJECT_SIZE, OBJECT_SIZE, 2)."""
    lean = uniform((count,), -0.35, 0.35, generator)
    stretch = (uniform((count,), -0.25, 0.25, generator)).exp()
    shear = uniform((count,), -0.2, 0.2, generator)
    cos, sin, zero = lean.cos(), lean.sin(), torch.zeros(count)
    first = torch.stack([cos * stretch, -sin * stretch + shear, zero], dim=-1)
    second = torch.stack([sin / stretch, cos / stretch, zero], dim=-1)
    size = [count, 1, OBJECT_SIZE, OBJECT_SIZE]
    return F.affine_grid(torch.stack([first, second], dim=1), size, align_corners=False)


def draw_outlines(kinds: Tensor, generator: torch.Generator) -> Tensor:
    """Opacity (count, OBJECT_SIZE, OBJECT_SIZE) in [0, 1] of shapes that are stretched, sheared, leant and dented."""
    count = len(kinds)
    places = turned_places(count, generator)
    dents = noise(2 * count, 4, OBJECT_SIZE, generator).view(count, 2, OBJECT_SIZE, OBJECT_SIZE)
    places = places + 0.06 * dents.permute(0, 2, 3, 1)
    depth = F.grid_sample(SHAPES[kinds][:, None], places, padding_mode="border", align_corners=False)[:, 0]
    return torch.sigmoid(20 * (depth + uniform((count, 1, 1), -0.03, 0.06, generator)))
