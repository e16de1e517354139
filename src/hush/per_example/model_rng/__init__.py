"""The model's own randomness (dropout, a VAE's draws, views of an image), by the place of each example.

A number is a pure function of (secret, step, number of the draw, place, coordinate), so that one example more changes
nobody else's. README.md beside this file says what that proves and what it assumes.
"""

from hush.per_example.model_rng.context import (
    NotPerExample,
    computing_again,
    draw_noise,
    drawing,
    drawing_only,
    is_by_place,
    model_randomness,
    number_from,
    probe_rng,
)

__all__ = [
    "NotPerExample",
    "computing_again",
    "draw_noise",
    "drawing",
    "drawing_only",
    "is_by_place",
    "model_randomness",
    "number_from",
    "probe_rng",
]
