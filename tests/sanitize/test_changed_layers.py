"""A sanitisation layer that is changed in a run, or that is of another kind, is refused."""

from __future__ import annotations

import pytest
import torch
from networks import CLIP, WIDTH, data, losses, plan
from replaced import Model

from hush.errors import RunStateError, UnsupportedModelError
from hush.sanitize.layer import Sanitize
from hush.training import take_steps

CHANGES = {
    "clip": 5.0,
    "floored": True,
    "noise_multiplier": 1e-3,
    "width": 2 * WIDTH,
    "dropout": 0.5,
    "place": "before",
    "draw": torch.zeros_like,
}


@pytest.mark.parametrize("setting", sorted(CHANGES))
@pytest.mark.parametrize("method", ["sanitize", "sanitize-once", "sanitize-hybrid"])
@pytest.mark.parametrize("after", [0, 1])
def test_a_layer_that_is_changed_in_a_run(method, setting, after) -> None:
    model = Model(frozen=method == "sanitize-once")
    run = plan(method).start(model, losses, data(), secret=3)
    steps = take_steps(run)
    for _ in range(after):
        next(steps)
    setattr(model.layer, setting, CHANGES[setting])
    with pytest.raises(RunStateError):
        next(steps)


def test_a_clip_that_follows_the_weights_and_a_dropout_that_changes() -> None:
    model = Model(frozen=False)
    run = plan("sanitize", threshold_share=0.3).start(model, losses, data(), secret=3)
    steps = take_steps(run)
    clips = {(next(steps), model.layer.clip)[1] for _ in range(6)}  # over the end of an epoch
    assert len(clips) > 1
    model.layer.dropout = 0.5
    with pytest.raises(RunStateError):
        next(steps)


class Quiet(Sanitize):
    def noised(self, x):
        return x


@pytest.mark.parametrize("method", ["sanitize", "sanitize-once", "sanitize-hybrid"])
def test_a_layer_of_another_kind(method) -> None:
    model = Model(frozen=method == "sanitize-once")
    model.layer = Quiet(CLIP, 1.0)
    with pytest.raises(UnsupportedModelError):
        plan(method).start(model, losses, data())
