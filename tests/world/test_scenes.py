"""Scenes: pictures are bytes, the seven shapes differ, and objects stay inside."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from leverplus_lab.world.scenes import (
    RGB,
    SIZE,
    Scenes,
    draw_nuisance,
    draw_scenes,
    render_scenes,
)
from leverplus_lab.world.words import BACKGROUNDS, COLOURS, SHAPES


def plain(**changes: int) -> Scenes:
    """One upright object in the middle."""
    values = {"shape": 0, "colour": 0, "background": 0, **changes}
    whole = {key: np.array([value]) for key, value in values.items()}
    return Scenes(
        **whole, radius=np.array([0.6]), x=np.zeros(1), y=np.zeros(1), angle=np.zeros(1)
    )


def still(scenes: Scenes) -> torch.Tensor:
    """Pictures without noise."""
    return render_scenes(scenes, torch.zeros(len(scenes), 3, SIZE, SIZE))


def test_a_picture_is_three_planes_of_bytes() -> None:
    scenes = draw_scenes(np.random.default_rng(0), np.arange(6))
    pictures = render_scenes(scenes, torch.randn(6, 3, SIZE, SIZE))
    assert pictures.shape == (6, 3, 32, 32)
    assert pictures.dtype == torch.uint8


def test_the_middle_of_a_circle_has_its_colour_and_the_corner_its_background() -> None:
    for colour in range(len(COLOURS)):
        picture = still(plain(colour=colour))[0]
        assert tuple(picture[:, 16, 16].tolist()) == RGB[colour]
        assert picture[:, 0, 0].tolist() == [215, 215, 215]


def test_every_shape_and_every_background_looks_different() -> None:
    shapes = [still(plain(shape=shape)) for shape in range(len(SHAPES))]
    backgrounds = [
        still(plain(background=background)) for background in range(len(BACKGROUNDS))
    ]
    for group in (shapes, backgrounds):
        for place, picture in enumerate(group):
            for other in group[:place]:
                assert (picture.int() - other.int()).abs().float().mean() > 3


def test_noise_changes_a_picture_by_its_own_size() -> None:
    noise = torch.from_numpy(
        np.random.default_rng(0).standard_normal((1, 3, SIZE, SIZE))
    )
    changed = (
        render_scenes(plain(background=3), noise).double()
        - still(plain(background=3)).double()
    )
    inside = (still(plain(background=3)) > 30) & (still(plain(background=3)) < 225)
    assert 9 < float(changed[inside].std()) < 11


def test_objects_stay_inside_the_picture() -> None:
    radius, x, y, angle = draw_nuisance(np.random.default_rng(0), 1000)
    assert (np.abs(x) + radius <= 1.0 + 1e-9).all()
    assert (np.abs(y) + radius <= 1.0 + 1e-9).all()
    assert (np.abs(angle) <= 0.35).all()


def test_rows_of_scenes_are_drawn_as_they_are_alone() -> None:
    scenes = draw_scenes(np.random.default_rng(1), np.arange(6))
    alone = torch.cat([still(scenes.take(np.array([row]))) for row in range(6)])
    assert torch.equal(still(scenes), alone)
    moved = replace(scenes, x=-scenes.x)
    assert not torch.equal(still(scenes), still(moved))
