"""Scenes and their pictures: one object drawn by a signed-distance function on one of six backgrounds, 32 x 32 RGB."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from leverplus_lab.world.words import BACKGROUNDS, COLOURS, SHAPES

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
SIZE = 32
NOISE = 10.0
"""Standard deviation of the pixel noise, in levels of 255."""

RGB = (
    (220, 40, 40),
    (240, 140, 30),
    (235, 220, 50),
    (50, 170, 70),
    (60, 205, 215),
    (50, 90, 220),
    (135, 60, 190),
)


@dataclass(frozen=True)
class Scenes:
    """N scenes, one array (N,) per property: shape, colour and background matter, radius, place and angle do not."""

    shape: Ints
    colour: Ints
    background: Ints
    radius: Floats
    x: Floats
    y: Floats
    angle: Floats

    def __len__(self) -> int:
        return len(self.shape)

    def take(self, rows: Ints) -> Scenes:
        """The scenes of these rows."""
        own = [getattr(self, field.name)[rows] for field in fields(self)]
        return Scenes(*own)


def draw_nuisance(rng: np.random.Generator, n: int) -> tuple[Floats, ...]:
    """Radius, x, y, angle of n objects; all inside the picture, turned by at most 20 degrees."""
    radius = rng.uniform(0.42, 0.68, n)
    # the picture spans [-1, 1], so that a centre within +-reach keeps the object inside
    reach = 1.0 - radius
    return (
        radius,
        rng.uniform(-1, 1, n) * reach,
        rng.uniform(-1, 1, n) * reach,
        rng.uniform(-0.35, 0.35, n),
    )


def draw_scenes(rng: np.random.Generator, background: Ints) -> Scenes:
    """Scenes with uniform shape and colour on given backgrounds."""
    n = len(background)
    shape = rng.integers(0, len(SHAPES), n)
    colour = rng.integers(0, len(COLOURS), n)
    return Scenes(shape, colour, background, *draw_nuisance(rng, n))


def render_scenes(
    scenes: Scenes,
    noise: Tensor,
    device: str = "cpu",
) -> Tensor:
    """Pictures (N, 3, 32, 32) uint8 of N scenes; `noise` (N, 3, 32, 32) is standard normal.

    Float64 on the CPU, so that rounding to bytes does not depend on the vector width of the processor.
    """
    kind = torch.float64 if device == "cpu" else torch.float32

    def column(values: Floats) -> Tensor:
        found = torch.as_tensor(values, device=device).to(kind)
        return found[:, None, None]  # (N, 1, 1)

    def index(values: Ints) -> Tensor:
        return torch.as_tensor(values, device=device)

    # centres of the pixels, from -1 to 1
    axis = (torch.arange(SIZE, device=device, dtype=kind) + 0.5) / SIZE * 2 - 1
    grid_y = axis[:, None].expand(SIZE, SIZE)
    grid_x = axis[None, :].expand(SIZE, SIZE)
    cos = torch.cos(column(scenes.angle))
    sin = torch.sin(column(scenes.angle))
    dx, dy = grid_x - column(scenes.x), grid_y - column(scenes.y)  # (N, 32, 32)
    # pixels in the object's own frame: moved to its centre, turned back, scaled to unit radius
    u = (cos * dx + sin * dy) / column(scenes.radius)
    v = (cos * dy - sin * dx) / column(scenes.radius)
    shape = index(scenes.shape)[:, None, None, None]
    shape = shape.expand(-1, 1, SIZE, SIZE)
    distance = torch.gather(_distances(u, v), 1, shape)  # (N, 1, 32, 32)
    # distance in pixels from the edge gives the share of a pixel that is covered: soft edges
    inside = 0.5 - distance * column(scenes.radius)[:, None] * SIZE / 2
    cover = torch.clamp(inside, 0, 1)
    grey = _backdrops(grid_x, grid_y)[index(scenes.background)]
    backdrops = grey[:, None]  # (N, 1, 32, 32)
    palette = torch.tensor(RGB, device=device, dtype=kind)
    colours = palette[index(scenes.colour)]
    paint = colours[:, :, None, None]  # (N, 3, 1, 1)
    picture = paint * cover + backdrops * (1 - cover) + NOISE * noise.to(kind)
    rounded = torch.round(picture)
    return torch.clamp(rounded, 0, 255).to(torch.uint8)


def _distances(u: Tensor, v: Tensor) -> Tensor:
    """Signed distances (N, 7, H, W) to the seven shapes of unit radius, negative inside."""
    length = torch.sqrt(u * u + v * v)
    ax = u.abs()
    ay = v.abs()
    # five rays; no true distance, but scaled below so that its edge is about as soft as the others'
    angle = torch.atan2(u, -v)
    star = length - (0.62 + 0.38 * torch.cos(5 * angle))
    triangle = torch.maximum(ax * 0.866 + v * -0.5, v) - 0.5
    bar_across = torch.maximum(ax - 0.95, ay - 0.27)
    bar_upright = torch.maximum(ay - 0.95, ax - 0.27)
    # outside of a second disc, which cuts the crescent
    bite = 0.75 - torch.sqrt((u - 0.45) ** 2 + v * v)
    shapes = {
        "circle": length - 0.95,
        "ring": (length - 0.75).abs() - 0.2,
        "square": torch.maximum(ax, ay) - 0.8,
        "triangle": triangle,
        "star": star * 0.6,
        "cross": torch.minimum(bar_across, bar_upright),
        "crescent": torch.maximum(length - 0.95, bite),
    }
    return torch.stack([shapes[name] for name in SHAPES], dim=1)


def _backdrops(x: Tensor, y: Tensor) -> Tensor:
    """Grey levels (6, H, W) of the backgrounds, in the order of words.BACKGROUNDS."""
    stripes = ((x + y) * 4).floor().remainder(2)
    squares = (x * 4).floor() + (y * 4).floor()
    checks = squares.remainder(2)
    across = ((x * 4).remainder(1) - 0.5) ** 2
    down = ((y * 4).remainder(1) - 0.5) ** 2
    dots = (across + down < 0.09).to(x.dtype)
    flat = torch.ones_like(x)
    levels = [
        flat * 215,
        205 - 80 * dots,
        175 + 50 * y,
        flat * 45,
        45 + 60 * stripes,
        45 + 60 * checks,
    ]
    assert len(levels) == len(BACKGROUNDS)
    return torch.stack(levels)
