"""The model's own randomness (dropout, a VAE's samples, views of an image), by the place of each example.

A number is a pure function of (secret, step, number of the draw, place, coordinate), so one more example changes no
other example's numbers. README.md in this folder says what this proves and what it assumes.
"""

from hush.per_example.model_rng.context import (
    NotPerExample,
    bookmark_draws,
    computing_again,
    drawing,
    drawing_only,
    draws_shared,
    is_by_place,
    model_randomness,
    probe_rng,
)

__all__ = [
    "NotPerExample",
    "bookmark_draws",
    "computing_again",
    "drawing",
    "drawing_only",
    "draws_shared",
    "is_by_place",
    "model_randomness",
    "probe_rng",
]
