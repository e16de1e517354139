"""Views: each image from itself alone, within its own pixels."""

from __future__ import annotations

import torch

from hush.datasets.images import make_views, mirrored, shifted
from hush.randomness import seeded


def test_every_shift_occurs_and_is_a_shift() -> None:
    images = torch.arange(25.0).reshape(1, 1, 5, 5).repeat(400, 1, 1, 1)
    with seeded(0):
        moved = shifted(1)(images)
    corners = {(int(v) // 5, int(v) % 5) for v in moved[:, 0, 2, 2]}  # what came to the centre
    assert corners == {(r, c) for r in (1, 2, 3) for c in (1, 2, 3)}
    first = moved[0, 0]
    down, right = 2 - int(first[2, 2]) // 5, 2 - int(first[2, 2]) % 5
    expected = images[0, 0].roll((down, right), (0, 1))
    assert torch.equal(first[1:4, 1:4], expected[1:4, 1:4])


def test_the_edge_is_reflected() -> None:
    images = torch.arange(4.0).reshape(1, 1, 1, 4).repeat(50, 1, 1, 1)
    with seeded(0):
        rows = {tuple(row) for row in shifted(2)(images)[:, 0, 0].tolist()}
    assert (2, 1, 0, 1) in rows
    assert (2, 3, 2, 1) in rows


def test_half_are_mirrored() -> None:
    images = torch.arange(3.0).reshape(1, 1, 1, 3).repeat(2000, 1, 1, 1)
    with seeded(0):
        flipped = (mirrored(images)[:, 0, 0, 0] == 2).float().mean().item()
    assert abs(flipped - 0.5) < 0.05  # 4.5 standard deviations


def test_a_view_depends_on_its_own_image_alone() -> None:
    images = torch.rand(6, 3, 8, 8)
    changed = images.clone()
    changed[2] = 100.0
    with seeded(1):
        first = make_views(images, 4, shifted(2), mirrored)
    with seeded(1):
        second = make_views(changed, 4, shifted(2), mirrored)
    assert first.shape == (6, 4, 3, 8, 8)
    others = [0, 1, 3, 4, 5]
    assert torch.equal(first[others], second[others])
    assert (second[2] == 100).all()
