"""The trade-off curve as a small SVG: the limit on an attacker, and random guessing for comparison."""

from __future__ import annotations

import numpy as np
from markupsafe import Markup

from hush.accounting.tradeoff import Curve

LEFT, TOP, SIDE = 52, 12, 200  # where the square of the two rates lies, in units of the picture
POINTS = np.unique(np.concatenate([np.geomspace(1e-4, 0.05, 40), np.linspace(0.0, 1.0, 101)]))


def draw_curve(curve: Curve) -> Markup:
    """Misses against false alarms, both in 100, with the line of those who guess."""
    line = _path(POINTS, np.asarray(curve.beta(POINTS)))
    right, bottom = LEFT + SIDE, TOP + SIDE
    return Markup(
        f'<svg viewBox="0 0 {right + 14} {bottom + 44}" role="img" aria-labelledby="curve-title">'
        '<title id="curve-title">How seldom an attacker can miss somebody, given how many false alarms they raise'
        "</title>"
        f'<polygon class="out" points="{LEFT},{bottom} {line} {right},{bottom}"/>'
        f'<path class="grid" d="{_grid()}"/>'
        f'<path class="guess" d="M{LEFT} {TOP}L{right} {bottom}"/>'
        f'<polyline class="best" points="{line}"/>'
        f'<path class="axis" d="M{LEFT} {TOP}V{bottom}H{right}"/>'
        f"{_ticks()}{_legend()}"
        f'<text class="name" x="{LEFT + SIDE / 2}" y="{bottom + 36}">false alarms, in 100</text>'
        f'<text class="name" transform="translate(14 {TOP + SIDE / 2}) rotate(-90)">misses, in 100</text>'
        "</svg>"
    )


def _path(across: np.ndarray, up: np.ndarray) -> str:
    return " ".join(f"{LEFT + SIDE * a:.1f},{TOP + SIDE * (1 - b):.1f}" for a, b in zip(across, up, strict=True))


def _grid() -> str:
    marks = [SIDE * share for share in (0.25, 0.5, 0.75, 1.0)]
    return "".join(f"M{LEFT + mark} {TOP}v{SIDE}M{LEFT} {TOP + SIDE - mark}h{SIDE}" for mark in marks)


def _ticks() -> str:
    across = (
        f'<text x="{LEFT + SIDE * n / 100}" y="{TOP + SIDE + 15}" text-anchor="middle">{n}</text>'
        for n in (0, 25, 50, 75, 100)
    )
    up = (
        f'<text x="{LEFT - 6}" y="{TOP + SIDE * (1 - n / 100) + 4}" text-anchor="end">{n}</text>'
        for n in (0, 25, 50, 75, 100)
    )
    return "".join((*across, *up))


def _legend() -> str:
    """In the half above the line of those who guess, where no curve ever is."""
    x, y = LEFT + 92, TOP + 16
    return (
        f'<rect class="ground" x="{x - 5}" y="{y - 13}" width="108" height="50"/>'
        f'<path class="guess" d="M{x} {y - 4}h18"/><text x="{x + 23}" y="{y}">guessing</text>'
        f'<path class="best" d="M{x} {y + 12}h18"/><text x="{x + 23}" y="{y + 16}">best attacker</text>'
        f'<rect class="out" x="{x}" y="{y + 23}" width="18" height="10"/>'
        f'<text x="{x + 23}" y="{y + 32}">out of reach</text>'
    )
