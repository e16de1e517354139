"""Training on randomised labels: `label-rr`, after Ghazi et al. 2021 (LP-1ST).

Every label is answered for once by randomised response, with a uniform prior or with one that is public, and everything
is trained on the answers.

Theorem. Whatever is computed from the answers, all features, and who is in the data, is ε-differentially private for
one label being replaced by another.

Proof. Labels y, y′ differ in place i alone. The answers of all other places have the same distribution under both, and
are independent of that of i, which is RRTop-k with a public prior, within e^ε. The rest is post-processing. ∎

ε is 1/σ, so that more noise means a smaller ε. Pure ε-privacy is, for any δ, dominated by binary randomised response at
ε: the event. Answers are those of (secret, stream, number of the example). They are drawn once, before the first step
(`hush.data_release`).

Two stages (LP-2ST) are two releases on disjoint rows: docs/sanitize.md has the recipe.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from dp_accounting import dp_event
from numpy.typing import NDArray
from torch import Tensor, nn

from hush._internal import validate
from hush._internal.tensors import Losses
from hush.clipping.base import Claim
from hush.data_release import ComposedRelease, DataRelease, ReleasedData, TrainingData, Values
from hush.data_source import Source
from hush.errors import InvalidInputError
from hush.randomness import Secret, streams
from hush.randomness.cipher import encrypt_counters
from hush.sanitize.front import check_pairs, evaluating, make_synthetic, with_part

# Randomised response on labels with a prior, drawn with exact probabilities.
#
# Ghazi, Golowich, Kumar, Manurangsi, Zhang 2021, "Deep learning with label differential privacy". RRTop-k answers
# within the k labels that a prior finds likeliest: a label y among them is kept with probability e^ε/(e^ε + k − 1) and
# gives way to each of the others with 1/(e^ε + k − 1); a label that is not among them gives way to any of the k alike.
# RRWithPrior takes the k that maximises the expected probability of a true answer, e^ε/(e^ε + k − 1)·Σ of the k largest
# of the prior; with a uniform prior that is all of them, plain randomised response. Both are ε-differentially private
# for whatever prior, as long as the prior was not made from the label.
#
# **The ε that is drawn is at most the ε that is stated.** An answer is decided by an integer u, uniform over
# M = 2⁶² values (62 bits as they come: nothing is rounded). With g a fraction below e^ε (`bound_growth`), each other
# label gets b = ⌈M/(g + k − 1)⌉ of the values and the own label a = M − (k − 1)b. Then
# a ≤ M − (k − 1)M/(g + k − 1) = gM/(g + k − 1) ≤ g·b. A label outside gives way to each of the k with ⌊M/k⌋ of the
# values, to the last one with what is left. Every probability is a multiple of 1/M, so `find_largest_ratio` is exact,
# and a `ResponseTable` is refused where it is above g.

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
class ResponseTable:
    """RRTop-k in values out of `VALUES`: ``own`` for the label itself, ``other`` for each of the k − 1 others, and for
    a label outside ``outside`` for each of the k, the last of them also what is left."""

    size: int
    own: int
    other: int

    @staticmethod
    @lru_cache(maxsize=4096)
    def of(epsilon: float, size: int) -> ResponseTable:
        """The table of RRTop-k at ε."""
        validate.positive_int(k=size)
        growth = bound_growth(epsilon)
        other = math.ceil(VALUES / (growth + size - 1))
        table = ResponseTable(size, VALUES - (size - 1) * other, other)
        if find_largest_ratio(table) > growth or table.own < table.other:
            raise InvalidInputError(
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


def find_largest_ratio(table: ResponseTable) -> Fraction:
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
    _check_labels(labels, priors.shape[1])
    order = np.argsort(-priors, axis=1, kind="stable")
    sizes = choose_sizes(epsilon, priors)
    places = np.argmax(order == labels[:, None], axis=1)  # of the label among the likeliest
    answers = np.empty_like(labels)
    for size in np.unique(sizes):
        rows = np.flatnonzero(sizes == size)
        chosen = _choose_places(ResponseTable.of(epsilon, int(size)), places[rows], draws[rows])
        answers[rows] = order[rows, chosen]
    return answers


def _choose_places(table: ResponseTable, places: Integers, draws: Integers) -> Integers:
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


def _check_labels(labels: Integers, classes: int) -> None:
    """Refuse labels that are none of the classes."""
    if len(labels) and not (labels.min() >= 0 and labels.max() < classes):
        raise InvalidInputError(
            f"the labels must be whole numbers from 0 to {classes - 1}, one for each output of the model"
        )


def check_prior(prior: Sequence[float], classes: int | None = None) -> None:
    """Refuse what is no public prior over the classes."""
    if len(prior) < 2 or not all(validate.is_finite(p) and p >= 0 for p in prior) or not sum(prior) > 0:
        raise InvalidInputError(
            "a prior has one number of at least 0 for each class, two or more, and not all of them 0"
        )
    if classes is not None and len(prior) != classes:
        raise InvalidInputError(
            f"the prior names {len(prior)} classes and the model has {classes} outputs: name each of them"
        )


CHUNK = 500  # labels read at a time
PROBES = 3  # synthetic rows with which a model is tried
REASON = (
    "each label is answered for once, by randomised response, and only the answers are trained on; features, and who "
    "is in the data, are not protected"
)
ASSUMED = "the prior of the classes was chosen without looking at the labels"


@dataclass(frozen=True)
class RandomisedLabels:
    """Training on randomised labels; ``prior`` is a public one over the classes."""

    prior: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        if self.prior is not None:
            check_prior(self.prior)

    @property
    def assumptions(self) -> tuple[str, ...]:
        """Of the prior, if there is one."""
        return () if self.prior is None else (ASSUMED,)

    def claims(self, sigma: float, steps: int) -> tuple[Claim, ...]:
        """ε-privacy of the labels at ε = 1/σ, for any number of steps."""
        return (Claim(dominating_pair(1 / sigma), "replace", "proven", REASON, "labels"),)

    def find_tails(self, sigma: float, numbers: int) -> None:
        """Randomised response has no tails: its probabilities are exact."""

    def bind(self, model: nn.Module, losses: Losses, source: Source, sigma: float) -> TrainingData:
        """Put answers in the place of the labels."""
        none = source.take(torch.empty(0, dtype=torch.int64))
        like = check_pairs(none, "the last alone would be taken for the label")
        classes = _count_outputs(model, like)
        if self.prior is not None:
            check_prior(self.prior, classes)
        prior = np.array(self.prior or [1.0] * classes, dtype=np.float64)
        answers = LabelAnswers(source, 1 / sigma, prior / prior.sum())
        (claim,) = self.claims(sigma, 1)
        stated = ComposedRelease("every record's label by randomised response", claim.event, claim.adjacency)
        part = DataRelease("labels", stated, answers.draw, answers.content)

        def put(content: Any, values: Values, indices: Tensor) -> Any:
            if not len(indices):
                return content
            return with_part(content, len(content) - 1, values["labels"][indices].to(content[-1].device))

        return TrainingData(losses, ReleasedData(part, source, put))


def dominating_pair(epsilon: float) -> Any:
    """Binary randomised response at ε, (2 − p)/p = e^ε: it dominates every ε-private release."""
    small = math.exp(-epsilon)
    return dp_event.RandomizedResponseDpEvent(noise_parameter=2 * small / (1 + small), num_buckets=2)


@dataclass(eq=False)
class LabelAnswers:
    """The answers for all labels, by randomised response at ε; ``prior`` has one row for all records, or one for each.

    A prior must not depend on the labels that it is used for."""

    source: Source
    epsilon: float
    prior: Priors
    _labels: Integers | None = field(default=None, repr=False)

    def draw(self, secret: Secret) -> Values:
        """The answer for every label."""
        labels = self.read_labels()
        priors = np.broadcast_to(self.prior, (len(labels), self.prior.shape[-1]))
        answers = respond(labels, self.epsilon, priors, draw_integers(secret, streams.LABELS_FIRST, len(labels)))
        return {"labels": torch.from_numpy(answers)}

    def content(self) -> Iterable[bytes]:
        """The bytes of the labels and of the prior."""
        yield self.prior.tobytes()
        yield self.read_labels().tobytes()

    def read_labels(self) -> Integers:
        """The true labels, read once and checked: private."""
        if self._labels is None:
            chunks = torch.split(torch.arange(len(self.source)), CHUNK)
            labels = torch.cat([self.source.take(chunk)[-1].cpu() for chunk in chunks])
            if labels.dim() != 1 or labels.is_floating_point():
                raise InvalidInputError("randomised response needs one whole number as the label of each example")
            found: Integers = labels.long().numpy()
            _check_labels(found, self.prior.shape[-1])
            self._labels = found
        return self._labels


def _count_outputs(model: nn.Module, like: Tensor) -> int:
    """The number of classes of the model's output, from synthetic inputs: a public fact of its architecture."""
    device = next(model.parameters()).device
    with torch.no_grad(), evaluating(model):
        scores = model(make_synthetic(like, device, PROBES))
    if not isinstance(scores, Tensor) or scores.dim() != 2 or scores.shape[1] < 2:
        raise InvalidInputError(
            "randomised response needs a model that gives one score for each of two or more classes"
        )
    return int(scores.shape[1])
