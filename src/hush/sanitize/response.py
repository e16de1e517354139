"""Randomised response on labels with a prior, drawn with exact probabilities.

Ghazi, Golowich, Kumar, Manurangsi, Zhang 2021, "Deep learning with label differential privacy". RRTop-k answers within
the k labels that a prior finds likeliest: a label y among them is kept with probability e^ε/(e^ε + k − 1) and gives way
to each of the others with 1/(e^ε + k − 1); a label that is not among them gives way to any of the k alike. RRWithPrior
takes the k that maximises the expected probability of a true answer, e^ε/(e^ε + k − 1)·Σ of the k largest of the prior;
with a uniform prior that is all of them, plain randomised response. Both are ε-differentially private for whatever
prior, as long as the prior was not made from the label.

**The ε that is drawn is at most the ε that is stated.** An answer is decided by an integer u, uniform over
M = 2⁶² values (62 bits as they come: nothing is rounded). With g a fraction below e^ε (`bound_growth`), each other
label gets b = ⌈M/(g + k − 1)⌉ of the values and the own label a = M − (k − 1)b. Then
a ≤ M − (k − 1)M/(g + k − 1) = gM/(g + k − 1) ≤ g·b. A label outside gives way to each of the k with ⌊M/k⌋ of the
values, to the last one with what is left. Every probability is a multiple of 1/M, so `find_largest_ratio` is exact, and
a `Table` is refused where it is above g.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from hush import validate
from hush.errors import BadInput
from hush.randomness import Secret
from hush.randomness.cipher import encrypt_counters

BITS = 62
VALUES = 1 << BITS
LARGEST = 40.0  # ε from which on a table is made as for this one: a label then gives way once in 10¹⁷ examples
SLACK = Fraction(1, 1 << 40)  # far above the error of a float's exponential, far below anything that matters

Integers = NDArray[np.int64]
Priors = NDArray[np.float64]


def bound_growth(epsilon: float) -> Fraction:
    """A fraction below e^ε by at most one part in 2³⁹, and at least 1: what no ratio of probabilities exceeds."""
    validate.positive(epsilon=epsilon)
    return max(Fraction(1), Fraction(math.exp(min(epsilon, LARGEST))) * (1 - SLACK))


@dataclass(frozen=True)
class Table:
    """RRTop-k in values out of `VALUES`: ``own`` for the label itself, ``other`` for each of the k − 1 others, and for
    a label outside ``outside`` for each of the k, the last of them also what is left."""

    size: int
    own: int
    other: int

    @staticmethod
    @lru_cache(maxsize=4096)
    def of(epsilon: float, size: int) -> Table:
        """The table of RRTop-k at ε."""
        validate.whole(k=size)
        growth = bound_growth(epsilon)
        other = math.ceil(VALUES / (growth + size - 1))
        table = Table(size, VALUES - (size - 1) * other, other)
        if find_largest_ratio(table) > growth or table.own < table.other:
            raise BadInput(
                f"randomised response over {size} labels cannot be drawn at ε = {epsilon:g}: give a larger ε"
            )
        return table

    @property
    def outside(self) -> int:
        """The values of each of the k labels but the last, where the label is none of them."""
        return VALUES // self.size

    def list_rows(self) -> list[list[int]]:
        """The number of values of each answer: for the k labels, and for one outside."""
        rows = [[self.own if a == y else self.other for a in range(self.size)] for y in range(self.size)]
        last = VALUES - (self.size - 1) * self.outside
        return [*rows, [self.outside] * (self.size - 1) + [last]]


def find_largest_ratio(table: Table) -> Fraction:
    """The largest ratio of the probabilities of one answer under two labels: e^ε of what is drawn, exactly."""
    columns = zip(*table.list_rows(), strict=True)
    return max(Fraction(max(column), min(column)) for column in columns)


def choose_sizes(epsilon: float, priors: Priors) -> Integers:
    """The k of each row of priors, by RRWithPrior; of two that are as good, the smaller."""
    ordered = np.cumsum(-np.sort(-priors, axis=1), axis=1)
    growth = math.exp(min(epsilon, LARGEST))
    kept = growth / (growth + np.arange(priors.shape[1]))
    return np.asarray(np.argmax(kept * ordered, axis=1) + 1, dtype=np.int64)


def respond(labels: Integers, epsilon: float, priors: Priors, draws: Integers) -> Integers:
    """The answer for each label, by its row of priors and its integer of `BITS` bits; pure, so the same again."""
    check_labels(labels, priors.shape[1])
    order = np.argsort(-priors, axis=1, kind="stable")
    sizes = choose_sizes(epsilon, priors)
    places = np.argmax(order == labels[:, None], axis=1)  # of the label among the likeliest
    answers = np.empty_like(labels)
    for size in np.unique(sizes):
        rows = np.flatnonzero(sizes == size)
        chosen = _choose_places(Table.of(epsilon, int(size)), places[rows], draws[rows])
        answers[rows] = order[rows, chosen]
    return answers


def _choose_places(table: Table, places: Integers, draws: Integers) -> Integers:
    """Which of the k likeliest is answered, given the place of the label (k or more: it is none of them)."""
    others = (draws - table.own) // max(1, table.other)
    moved = np.where(others >= places, others + 1, others)  # the k − 1 others, in order, without the label
    within = np.where(draws < table.own, places, moved)
    outside = np.minimum(draws // table.outside, table.size - 1)
    return np.asarray(np.where(places < table.size, within, outside), dtype=np.int64)


def draw_integers(secret: Secret, stream: str, count: int) -> Integers:
    """For each example an integer of `BITS` bits, keyed by the secret, the stream and the example's number."""
    numbers = np.arange(count, dtype=np.uint64)
    octets = encrypt_counters(secret.derive(stream, 0, size=32), numbers, 1)
    return (np.ascontiguousarray(octets[:, :8]).view("<u8").reshape(-1) >> np.uint64(64 - BITS)).astype(np.int64)


def check_labels(labels: Integers, classes: int) -> None:
    """Refuse labels that are none of the classes."""
    if len(labels) and not (labels.min() >= 0 and labels.max() < classes):
        raise BadInput(f"the labels must be whole numbers from 0 to {classes - 1}, one for each output of the model")


def check_prior(prior: Sequence[float], classes: int | None = None) -> None:
    """Refuse what is no public prior over the classes."""
    if len(prior) < 2 or not all(validate.is_finite(p) and p >= 0 for p in prior) or not sum(prior) > 0:
        raise BadInput("a prior has one number of at least 0 for each class, two or more, and not all of them 0")
    if classes is not None and len(prior) != classes:
        raise BadInput(f"the prior names {len(prior)} classes and the model has {classes} outputs: name each of them")
