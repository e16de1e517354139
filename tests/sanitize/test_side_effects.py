"""Places in which a model could keep something of a record for the next one's row."""

from __future__ import annotations

import functools
import itertools
import logging
import random
import threading
import time

import numpy as np
import pytest
import torch
from networks import N, losses, plan
from replaced import Model, neighbours
from torch import nn

from hush.data_source import as_source
from hush.errors import UnsupportedModelError
from hush.per_example.augmentation import Augmented
from hush.sanitize.side_effects import ModelSnapshot
from hush.sanitize.split_model import check_no_bypass, find_cut


def is_large(x) -> bool:
    return bool(x.max() > 100)


class Slotted:
    __slots__ = ("scale",)

    def __init__(self) -> None:
        self.scale = 1.0


class Holding(Model):
    """Holds something, and changes it where a record is large."""

    make = staticmethod(list)

    def __init__(self) -> None:
        super().__init__()
        self.held = self.make()

    def forward(self, x):
        if is_large(x):
            self.change(self.held)
        return super().forward(x)


def holding(name, make, change):
    return pytest.param(
        type("Holds", (Holding,), {"make": staticmethod(make), "change": staticmethod(change)}), id=name
    )


def count_in_a_closure():
    seen = [0]

    def count() -> None:
        seen[0] += 1

    return count


KINDS = [
    holding("slots", Slotted, lambda held: setattr(held, "scale", 0.5)),
    holding("bytes", lambda: bytearray(1), lambda held: held.append(1)),
    holding("RandomState", lambda: np.random.RandomState(0), lambda held: held.rand()),
    holding("Generator", lambda: np.random.default_rng(0), lambda held: held.random()),
    holding("Random", lambda: random.Random(0), lambda held: held.random()),
    holding("count", itertools.count, next),
    holding("list iterator", lambda: iter([1, 2]), next),
    holding("nested", lambda: {"a": [(1, [2])]}, lambda held: held["a"][0][1].append(1)),
    holding("many words", lambda: {f"w{i}": i for i in range(1000)}, lambda held: held.update(w3=5)),
    holding("another order", lambda: {"a": 1, "b": 1}, lambda held: held.update(a=held.pop("a"))),
    holding("closure", count_in_a_closure, lambda held: held()),
    holding("partial", lambda: functools.partial(list.append, []), lambda held: held(1)),
    holding("array of objects", lambda: np.array([None, 1], object), lambda held: held.__setitem__(0, 1)),
    holding("buffer of a hidden module", lambda: [nn.BatchNorm1d(5)], lambda held: held[0].running_mean.add_(1)),
    holding("list in an array", lambda: np.array([None, []], object), lambda held: held[1].append(1)),
    holding("other data", lambda: torch.ones(9999), lambda held: setattr(held, "data", torch.zeros(9999))),
    holding("data", lambda: torch.ones(()), lambda held: held.data.fill_(0.5)),
]


class OfClass(Model):
    scale = 1.0
    seen: list[int] = []

    def forward(self, x):
        if is_large(x):
            type(self).scale = 0.5
        return super().forward(x * self.scale)


class InClass(OfClass):
    def forward(self, x):
        if is_large(x):
            self.seen.append(1)
        return Model.forward(self, x)


@pytest.fixture
def clean():
    yield
    OfClass.scale = 1.0
    OfClass.seen.clear()


def step(model, rows) -> None:
    run = plan().start(model, losses, rows, secret=3)
    run.step(next(run.batches()))


@pytest.mark.usefixtures("clean")
@pytest.mark.parametrize("kind", [*KINDS, OfClass, InClass])
def test_a_memory_is_refused_where_it_is_used(kind) -> None:
    step(kind(), neighbours()[0])
    with pytest.raises(UnsupportedModelError):
        step(kind(), neighbours()[1])


def test_a_module_that_is_in_a_list_is_put_back() -> None:
    model = Model()
    model.hidden = [nn.Identity()]
    found = ModelSnapshot(model)
    model.hidden[0].scale = 0.5
    found.put_back()
    assert not hasattr(model.hidden[0], "scale")


def test_an_iterator_that_cannot_be_looked_into() -> None:
    model = Model()
    model.numbers = (i for i in range(3))
    with pytest.raises(UnsupportedModelError, match="'numbers'"):
        ModelSnapshot(model)


class Talking(Model):
    """Writes a line for large records, and holds what threads need."""

    def __init__(self) -> None:
        super().__init__()
        self.logger, self.lock, self.event = logging.getLogger("hush.test.rare"), threading.Lock(), threading.Event()

    def forward(self, x):
        with self.lock:
            if is_large(x):
                self.logger.info("a large one")
        return super().forward(x)


def test_a_line_in_a_log_is_no_memory() -> None:
    step(Talking(), neighbours()[1])


def test_equal_numbers_are_no_change() -> None:
    model = Model()
    model.sizes = {"length": 1000, "rate": 0.5}
    found = ModelSnapshot(model)
    model.sizes.update(length=int("1000"), rate=float("0.5"))
    found.put_back()


def test_what_a_record_costs() -> None:
    model = Talking()
    model.words = {f"w{i}": i for i in range(30_000)}
    model.linked = [Slotted() for _ in range(30)]
    for each in model.linked:
        each.scale = model.linked
    found, times = ModelSnapshot(model), []
    for _ in range(20):
        start = time.perf_counter()
        found.put_back()
        times.append(time.perf_counter() - start)
    assert min(times) < 5e-3  # 0.8 ms on one core; it was over 100


class Running:
    """A running mean of the inputs, which is taken from them."""

    def __init__(self) -> None:
        self.mean = 0.0

    def __call__(self, model, content):
        self.mean = 0.9 * self.mean + 0.1 * float(content[0].mean())
        return losses(model, (content[0] - self.mean, content[1]))

    def compute(self, model, content):
        return self(model, content)


class RunningBuffer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(()))

    def forward(self, model, content):
        self.mean.mul_(0.9).add_(content[0].mean(), alpha=0.1)
        return losses(model, (content[0] - self.mean, content[1]))


def run_in_a_closure():
    mean = 0.0

    def compute(model, content):
        nonlocal mean
        mean = 0.9 * mean + 0.1 * float(content[0].mean())
        return losses(model, (content[0] - mean, content[1]))

    return compute


def run_in_a_module():
    criterion = RunningBuffer()
    return lambda model, content: criterion(model, content)


@pytest.mark.parametrize(
    "make",
    [
        Running,
        RunningBuffer,
        run_in_a_closure,
        run_in_a_module,
        lambda: Running().compute,
        lambda: functools.partial(Running.compute, Running()),
        lambda: Augmented(Running(), lambda content: content, 1),
    ],
)
def test_losses_that_keep_a_running_number(make) -> None:
    with pytest.raises(UnsupportedModelError):
        plan("sanitize-hybrid").start(Model(frozen=False), make(), neighbours()[0], secret=3)


class KeepingLarge(Running):
    """Keeps that there was a large record, which made-up inputs do not show."""

    def __call__(self, model, content):
        if float(content[0].max()) > 100:
            self.mean = 1.0
        return losses(model, (content[0] - self.mean, content[1]))


@pytest.mark.filterwarnings("ignore::hush.per_example.result.GradientWarning")
def test_losses_that_keep_something_of_one_record() -> None:
    run = plan("sanitize-hybrid", steps=8).start(Model(frozen=False), KeepingLarge(), neighbours()[0], secret=3)
    run.step(next(run.batches()))
    run = plan("sanitize-hybrid", steps=1, batch_size=N).start(
        Model(frozen=False), KeepingLarge(), neighbours()[1], secret=3
    )
    with pytest.raises(UnsupportedModelError, match="'mean'"):
        run.step(next(run.batches()))


class Counting:
    """Counts its calls and keeps its last result, which is let be."""

    def __init__(self) -> None:
        self.calls, self.last, self.value = 0, None, 0.0
        self.criterion = RunningOfResults()

    def __call__(self, model, content):
        self.calls += 1
        self.last = self.criterion(losses(model, content))
        return self.last


class RunningOfResults(nn.Module):
    """Looks at what comes out of the model."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("largest", torch.zeros(()))

    def forward(self, found):
        if not torch.is_grad_enabled():
            self.largest.copy_(found.detach().max())
        return found


def test_what_is_tried_leaves_nothing_in_losses() -> None:
    loss = Counting()
    model = Model(frozen=False)
    check_no_bypass(find_cut(model, as_source(neighbours()[0])), loss)
    assert (loss.calls, loss.last, float(loss.criterion.largest)) == (0, None, 0.0)


def test_losses_may_count() -> None:
    run = plan("sanitize-hybrid").start(Model(frozen=False), Counting(), neighbours()[0], secret=3)
    run.step(next(run.batches()))
