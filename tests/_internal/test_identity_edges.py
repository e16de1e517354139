"""Plans that do different things have different fingerprints, or none: what hides from a list of fields is found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import nn

from hush._internal.identity import IdentityScope, NoIdentity, declared, digest
from hush._internal.tensors import Named, State
from hush.clipping import Channel, ClippedSum
from hush.errors import NotProvenError
from hush.matrix_factorization import Diagonal
from hush.methods import make_plan
from hush.noise import Independent
from hush.noise.base import NoisyGradient
from hush.optimizers import SGD, TorchOptim
from hush.plan import Plan

SCOPE = IdentityScope(4)


def plan(**changes) -> Plan:
    found = make_plan("dp-sgd", examples=40, batch_size=10, steps=4, noise_multiplier=0.9)
    return replace(found, **changes)


class Up(NamedTuple):
    lr: float

    def init(self, params: Named) -> State:
        return {}

    def step(self, params: Named, release: NoisyGradient, state: State) -> Named:
        return {}


class Down(NamedTuple):
    lr: float

    init = Up.init
    step = Up.step


class Kept(SGD):
    """No dataclass of its own: what it adds is no field."""

    def __init__(self, extra: Any) -> None:
        super().__init__(0.1)
        object.__setattr__(self, "extra", extra)


@dataclass(frozen=True)
class Slotted:
    lr: float


class Hidden(Slotted):
    __slots__ = ("extra",)

    def __init__(self, extra: Any) -> None:
        super().__init__(0.1)
        object.__setattr__(self, "extra", extra)


class Mode(StrEnum):
    FAST = "fast"


class Stepping(torch.optim.SGD):
    def __init__(self, params: Any, power: Any) -> None:
        super().__init__(params, lr=0.1)
        self.power = power


def fingerprint(value: Any) -> str:
    return digest(declared(value, SCOPE))


def test_two_classes_of_named_tuples() -> None:
    assert plan(optimizer=Up(0.1)).fingerprint() != plan(optimizer=Down(0.1)).fingerprint()
    assert plan(optimizer=Up(0.1)).fingerprint() == plan(optimizer=Up(0.1)).fingerprint()
    assert fingerprint(Mode.FAST) != fingerprint("fast")
    assert fingerprint((1, 2)) == fingerprint([1, 2])
    assert fingerprint(torch.Size([1, 2])) != fingerprint((1, 3))
    assert fingerprint(np.float64(0.5)) == fingerprint(np.float64(0.5)) != fingerprint(np.float64(0.25))


@pytest.mark.parametrize("kind", [Kept, Hidden])
def test_attributes_that_are_no_fields(kind: Callable[[Any], Any]) -> None:
    assert fingerprint(kind(1)) != fingerprint(kind(2))
    assert fingerprint(kind(1)) == fingerprint(kind(1))
    with pytest.raises(NoIdentity):
        fingerprint(kind(lambda step: 1.0))


def test_what_was_computed_once_and_kept_is_no_attribute() -> None:
    one, other = plan(), plan()
    assert one.sensitivity == 1.0
    assert one.charge
    assert one.fingerprint() == other.fingerprint()


def test_an_optimizers_own_attributes_and_hooks() -> None:
    params = {"w": nn.Parameter(torch.zeros(2))}

    def made(build: Callable[[Named], torch.optim.Optimizer]) -> str:
        return plan(optimizer=TorchOptim(build)).fingerprint(params)

    assert made(lambda p: Stepping(p.values(), 1)) != made(lambda p: Stepping(p.values(), 2))
    assert made(lambda p: Stepping(p.values(), 1)) == made(lambda p: Stepping(p.values(), 1))
    with pytest.raises(NoIdentity):
        made(lambda p: Stepping(p.values(), lambda step: 1))

    def hooked(p: Named) -> torch.optim.Optimizer:
        found = torch.optim.SGD(p.values(), lr=0.1)
        found.register_step_pre_hook(lambda *_: None)
        return found

    with pytest.raises(NoIdentity, match="hooks"):
        made(hooked)
    for build in (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.RMSprop, torch.optim.Adagrad):
        assert made(lambda p, build=build: build(p.values(), lr=0.1))
    cosine = TorchOptim(
        lambda p: torch.optim.SGD(p.values(), lr=0.1), lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 4)
    )
    assert plan(optimizer=cosine).fingerprint(params) == plan(optimizer=cosine).fingerprint(params)


class Loose(ClippedSum):
    """A query whose bound somebody can change after the plan was made."""

    @property
    def channels(self) -> dict[str, Channel]:
        return {name: replace(c, bound=BOUND[0]) for name, c in super().channels.items()}


BOUND = [1.0]


def test_a_bound_that_changed_after_the_run_was_started_is_refused() -> None:
    found = plan(query=Loose(1.0))
    x = torch.randn(40, 3)
    try:
        run = found.start(nn.Linear(3, 1), lambda model, content: model(content[0]).sum(1), (x,))
        batches = run.batches()
        run.step(next(batches))
        BOUND[0] = 100.0
        with pytest.raises(NotProvenError):
            run.step(next(batches))
    finally:
        BOUND[0] = 1.0


@dataclass(frozen=True)
class Tilted(Diagonal):
    tilt: float = 0.0


class Leaning(Independent):
    """No dataclass of its own."""

    def __init__(self, tilt: float) -> None:
        super().__init__(4)
        object.__setattr__(self, "tilt", tilt)


@pytest.mark.parametrize("kind", [lambda tilt: Tilted(4, None, tilt), Leaning])
def test_a_subclass_of_what_declares_itself_is_of_another_kind(kind: Callable[[float], Any]) -> None:
    assert fingerprint(kind(1.0)) != fingerprint(kind(2.0))
    assert fingerprint(kind(1.0)) == fingerprint(kind(1.0))
    assert fingerprint(Tilted(4)) != fingerprint(Diagonal(4))
    assert fingerprint(Independent(4)) != fingerprint(Leaning(0.0))
