"""Training on randomised labels: `label-rr`, after Ghazi et al. 2021, in one stage (LP-1ST) or in two (LP-2ST).

One stage: every label is answered for once by randomised response (`hush.sanitize.labels`), with a uniform prior or
with one that is public, and everything is trained on the answers. Two stages: coins that know no label send each
example to the first or the second part. The first stage trains on the answers of the first part, with the one-stage
prior; the model that it gives is the prior of the second part, example by example, whose labels are answered for then.
The second stage trains on all answers.

Theorem. Whatever is computed from the answers, all features, and who is in the data, is ε-differentially private for
one label being replaced by another.

Proof. Labels y, y′ differ in place i alone. Which part i is in is decided by a coin of its own. In the first part: its
answer is RRTop-k with a public prior, within e^ε; the answers of the first part determine, with coins and features, the
priors of the second part, whose labels are the same in y and y′: post-processing. In the second part: the first stage
has the same distribution under both, and given all of it the prior of i is fixed, so its answer is within e^ε. Each
label is answered for in exactly one part, and once. ∎

ε is 1/σ, so that more noise means a smaller ε. Pure ε-privacy is, for any δ, dominated by binary randomised response at
ε: the event. Answers are those of (secret, stream, number of the example): the same whenever they are asked for, so a
resumed run gives the same answers and spends nothing; the data's digest ensures that the labels are the same. Answers
of the second part are kept with the run's state. No answer is drawn before the first step, when a ledger is charged.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from dp_accounting import dp_event
from numpy.typing import NDArray
from torch import Tensor, nn

from hush._internal import validate
from hush._internal.tensors import Losses, Named, State, Sums
from hush.clipping.base import Channel, Claim, Query, Start
from hush.clipping.unclipped import PlainSum
from hush.data_source import Source
from hush.errors import InvalidInputError, RunStateError
from hush.noise.base import NoisyGradient
from hush.per_example.model_rng import drawing_only
from hush.randomness import Secret, streams
from hush.randomness.cipher import encrypt_counters
from hush.sampling import Participation
from hush.sanitize.privatised import UNBOUNDED
from hush.sanitize.split_model import check_pairs, evaluating, first_of, make_synthetic

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
    check_labels(labels, priors.shape[1])
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


def check_labels(labels: Integers, classes: int) -> None:
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


COINS = Channel(1.0, proof="coins", exact=True)
CHUNK = 500  # examples through the model at a time
REASON = (
    "each label is answered for once, by randomised response, and only the answers are trained on; features, and who "
    "is in the data, are not protected"
)
ASSUMED = "the prior of the classes was chosen without looking at the labels"


@dataclass(frozen=True)
class RandomisedLabels:
    """Plain gradients on answers. ``prior`` is a public one over the classes; with ``first`` steps in a first stage,
    ``share`` of the examples is answered for in it and the others after it."""

    prior: tuple[float, ...] | None = None
    first: int | None = None
    share: float = 0.5
    answers: RandomizedLabels | None = None  # once a run has data

    def __post_init__(self) -> None:
        validate.probability(share=self.share)
        if self.first is not None:
            validate.positive_int(steps_of_the_first_stage=self.first)
        if self.prior is not None:
            check_prior(self.prior)

    @property
    def channels(self) -> Mapping[str, Channel]:
        """The labels, by coins; the gradient, which is made of answers and needs no noise."""
        return {"labels": COINS, "gradient": UNBOUNDED}

    def prepare(self, start: Start) -> tuple[Query, Source]:
        """Examples get their number in the place of their label."""
        model, source = start.model, start.source
        check_pairs(source.take(torch.empty(0, dtype=torch.int64)), "the last alone would be taken for the label")
        classes = count_outputs(model, source)
        if self.prior is not None:
            check_prior(self.prior, classes)
        share = 1.0 if self.first is None else self.share
        prior = np.array(self.prior or [1.0] * classes, dtype=np.float64)
        answers = RandomizedLabels(
            model, source, start.secret, 1 / start.noise_std["labels"], prior / prior.sum(), share
        )
        return replace(self, answers=answers), IndexedLabels(source)

    def make_ready(self, step: int) -> None:
        """The labels are read, and those that are none of the classes refused."""
        if self.answers is not None:
            self.answers.read_labels()

    def recall(self, public: State) -> None:
        """Nothing of the model depends on it."""

    def count_numbers(self, model: nn.Module, source: Source) -> int:
        """One label, by coins."""
        return 1

    def count_releases(self, participation: Participation, steps: int) -> int:
        """Each label is answered for once, in one of the parts."""
        return 1

    def init(self, params: Named) -> tuple[State, State]:
        """Public: the answers of the second part, none of which is there yet."""
        if self.answers is None or self.first is None:
            return {}, {}
        return {"second": torch.full((len(self.answers.source),), -1, dtype=torch.int64)}, {}

    def piece(self, model: nn.Module, losses: Losses, content: Any, public: State) -> Sums:
        """The gradient of the answered examples' summed loss, divided by their share in the first stage."""
        if self.answers is None:
            raise RunStateError("labels are randomised only within a run: start the plan")
        *inputs, numbers = content
        labels = self.answers.find(public)[numbers.cpu()]
        rows = torch.nonzero(labels >= 0).squeeze(1)
        kept = (*(part[rows.to(part.device)] for part in inputs), labels[rows].to(numbers.device))
        with drawing_only(rows):
            sums = PlainSum().piece(model, losses, kept, public)
        scale = self.answers.share if _is_first_stage(public) else 1.0
        return {"gradient": {n: g / scale for n, g in sums["gradient"].items()}, "diagnostics": sums["diagnostics"]}

    def finish(self, sums: Sums, public: State, private: State) -> tuple[Sums, State]:
        """The sum as it is."""
        return {"gradient": sums["gradient"]}, private

    def observe(self, release: NoisyGradient, update: Named, public: State) -> State:
        """At the end of the first stage, the answers of the second part by the model that it gave."""
        if self.answers is None or self.first is None or release.step != self.first - 1:
            return public
        return {"second": self.answers.draw_second()}

    def claims(self, participation: Participation, noise_std: Mapping[str, float], steps: int) -> tuple[Claim, ...]:
        """ε-privacy of the labels, however many steps are taken."""
        event = dominating_pair(1 / noise_std["labels"])
        return (Claim(event, "replace", "proven", REASON, "labels"),)


def dominating_pair(epsilon: float) -> Any:
    """Binary randomised response at ε, (2 − p)/p = e^ε: it dominates every ε-private release."""
    small = math.exp(-epsilon)
    return dp_event.RandomizedResponseDpEvent(noise_parameter=2 * small / (1 + small), num_buckets=2)


def _is_first_stage(public: State) -> bool:
    return "second" in public and not bool((public["second"] >= 0).any())


@dataclass(frozen=True, eq=False)
class IndexedLabels:
    """The data with each example's number in the place of its label, so that no label reaches a gradient."""

    source: Source

    def __len__(self) -> int:
        return len(self.source)

    def take(self, indices: Tensor) -> Any:
        """Features, then numbers."""
        content = self.source.take(indices)
        return (*content[:-1], indices.to(content[-1].device))


@dataclass(eq=False)
class RandomizedLabels:
    """The answers for all labels of a run: those of the first part by the prior, of the second by the model."""

    model: nn.Module
    source: Source
    secret: Callable[[], Secret]
    epsilon: float
    prior: Priors
    share: float
    _first: tuple[bytes, Tensor] | None = field(default=None, repr=False)
    _labels: Integers | None = field(default=None, repr=False)

    def find(self, public: State) -> Tensor:
        """The answer of every example, −1 where there is none yet."""
        first = self.draw_first()
        return torch.where(first >= 0, first, public["second"]) if "second" in public else first

    def draw_first(self) -> Tensor:
        """The answers of the first part."""
        secret = self.secret().first
        if self._first is None or self._first[0] != secret.key:
            priors = np.broadcast_to(self.prior, (len(self.source), len(self.prior)))
            answers = self._answer(secret, streams.LABELS_FIRST, priors)
            self._first = secret.key, torch.from_numpy(np.where(self._is_first(secret), answers, -1))
        return self._first[1]

    def draw_second(self) -> Tensor:
        """The answers of the second part, by the model as it is now."""
        secret = self.secret().first
        answers = self._answer(secret, streams.LABELS_SECOND, self._predict())
        return torch.from_numpy(np.where(self._is_first(secret), -1, answers))

    def _answer(self, secret: Secret, stream: str, priors: Priors) -> Integers:
        return respond(self.read_labels(), self.epsilon, priors, draw_integers(secret, stream, len(self.source)))

    def _is_first(self, secret: Secret) -> np.ndarray:
        """Which examples are in the first part: by coins that know no label."""
        if self.share == 1.0:
            return np.ones(len(self.source), dtype=bool)
        return draw_integers(secret, streams.LABELS_SPLIT, len(self.source)) < int(self.share * VALUES)

    def read_labels(self) -> Integers:
        """The true labels, read once and checked: private."""
        if self._labels is None:
            self._labels = self._read()
        return self._labels

    def _read(self) -> Integers:
        parts = [self.source.take(chunk)[-1] for chunk in self._chunks()]
        labels = torch.cat([part.cpu() for part in parts])
        if labels.dim() != 1 or labels.is_floating_point():
            raise InvalidInputError("randomised response needs one whole number as the label of each example")
        found: Integers = labels.long().numpy()
        check_labels(found, len(self.prior))
        return found

    def _predict(self) -> Priors:
        """The classes' probabilities that the model gives each example."""
        device = next(self.model.parameters()).device
        with torch.no_grad(), evaluating(self.model):
            scores = [self.model(first_of(self.source.take(chunk)).to(device)).double() for chunk in self._chunks()]
        found: Priors = torch.cat(scores).softmax(1).nan_to_num(nan=1.0).cpu().numpy()
        return found

    def _chunks(self) -> tuple[Tensor, ...]:
        return torch.split(torch.arange(len(self.source)), CHUNK)


def count_outputs(model: nn.Module, source: Source) -> int:
    """The number of classes of the model's output, from synthetic inputs: a public fact of its architecture."""
    like = source.take(torch.empty(0, dtype=torch.int64))
    device = next(model.parameters()).device
    with torch.no_grad(), evaluating(model):
        scores = model(first_of(make_synthetic(like, device)))
    if not isinstance(scores, Tensor) or scores.dim() != 2 or scores.shape[1] < 2:
        raise InvalidInputError(
            "randomised response needs a model that gives one score for each of two or more classes"
        )
    return int(scores.shape[1])
