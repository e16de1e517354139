"""What a trade-off curve means for one person: the best odds that any attacker can reach, as numbers and in words.

The attacker knows everything about the data but one thing, whether one unit took part (or which of two records it
had), holds it for true with probability p beforehand, and sees the release. All bounds follow from β ≥ f(α) and from
f being convex; a curve that lies too low makes each of them larger, never smaller. With ROC(α) = 1 − f(α):

- **Right in all**, whatever they answer: p(1 − β) + (1 − p)(1 − α) = 1 − p·(β + x·α) with x = (1 − p)/p, so at most
  1 − p·C(x), where C(x) is the least cost. At p = ½ that is (1 + total variation)/2 = 1 − min(α + f(α))/2.
- **Found**: a test with false positives at α finds at most ROC(α) of those who took part.
- **Right when they accuse**: of the accusations of such a test at most p·ROC(α)/(p·ROC(α) + (1 − p)·α) are right.
  ROC(α)/α does not rise with α, so a test with more false positives is right less often, and one with fewer can be
  right more often, up to certainty: a number like this is true at its α and means nothing without it.
- **Belief**: the posterior, by Bayes' rule. For η in (0, 1) let a be where ROC(a) = η. Where the unit took part, the
  posterior odds exceed (η/a)·p/(1 − p) with probability at most η. Proof: let A be the outcomes with likelihood ratio
  above η/a, so that P(A) > (η/a)·Q(A) unless A is empty. Were P(A) > η, then ROC(Q(A)) ≥ P(A) > η = ROC(a), hence
  Q(A) > a and P(A)/Q(A) ≤ ROC(Q(A))/Q(A) ≤ ROC(a)/a = η/a, against the choice of A. Where δ ≥ η, a is 0 and the
  bound is certainty.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import ROUND_CEILING, Decimal

from hush.privacy.accounting import ADJACENCIES, Adjacency
from hush.privacy.guarantee import PROTECTED, Protects
from hush.privacy.tradeoff import Curve
from hush.validate import one_of, probability

PRIORS = (0.01, 0.1, 0.5)
FALSE_POSITIVES = (0.001, 0.01, 0.1)
COLUMNS = (
    "thought beforehand",
    "right without the release, in 100",
    "right with it, at most",
    "right when accusing, at most, with 1 false accusation in 100",
    "belief afterwards, at most, but for at most 1 case in 100",
)


@dataclass(frozen=True)
class Odds:
    """The best that any attacker can reach from one prior; every number is an upper bound (but ``without``)."""

    prior: float
    without: float  # right in all without the release
    right: float  # right in all with it
    accusing: float  # right among the accusations of a test with these false positives
    false_positives: float
    belief: float  # posterior, exceeded with probability ``exception`` at most where the unit took part
    exception: float


@dataclass(frozen=True)
class Words:
    """Sentences for somebody without mathematics, and a small table; all numbers are rounded up."""

    sentences: tuple[str, ...]
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def best_odds(curve: Curve, prior: float, *, false_positives: float = 0.01, exception: float = 0.01) -> Odds:
    """The best odds from this prior; see the module's text for what each number means and why it holds."""
    probability(prior=prior, false_positives=false_positives, exception=exception)
    found = prior * detection(curve, false_positives)
    return Odds(
        prior=prior,
        without=max(prior, 1 - prior),
        right=min(1 - prior * curve.least_cost((1 - prior) / prior), 1.0),
        accusing=found / (found + (1 - prior) * false_positives),
        false_positives=false_positives,
        belief=_belief(curve, prior, exception),
        exception=exception,
    )


def best_accuracy(curve: Curve) -> float:
    """How often an attacker can be right at 50:50: (1 + total variation)/2."""
    return best_odds(curve, 0.5).right


def detection(curve: Curve, false_positives: float) -> float:
    """The largest share of those who took part that a test with these false positives finds."""
    return 1.0 - float(curve.beta(false_positives))


def in_words(
    curve: Curve,
    *,
    adjacency: Adjacency = "add-remove",
    unit: str = "person",
    protects: Protects = "example",
    priors: Sequence[float] = PRIORS,
) -> Words:
    """What the curve means for one unit, in sentences that are true as they stand, and a table over priors. Where only
    its features or its labels are protected, the attacker knows the other half.

    The curve is taken for proven: of one that is only claimed, the caller says so beside them.
    """
    one_of(ADJACENCIES, adjacency=adjacency)
    one_of(PROTECTED, protects=protects)
    told = _phrases(adjacency, unit) if protects == "example" else _phrases_of_half(protects, unit)
    even = best_odds(curve, 0.5)
    few, some, many = (_hundredths(detection(curve, rate), 1) for rate in FALSE_POSITIVES)
    sentences = (
        f"Someone who knows everything about {told.others} and thinks it is 50:50 {told.question} can, with what is "
        f"released, at best be right {_hundredths(even.right, 0)} times in 100; by tossing a coin they are right 50 "
        "times.",
        _tell_belief(even, told),
        f"A test that accuses 1 in 1000 falsely finds at most {few} in 100 of the {told.those}; one that accuses 1 in "
        f"100 falsely at most {some}, and one that accuses 1 in 10 falsely at most {many}.",
    )
    return Words(sentences, COLUMNS, tuple(_row(best_odds(curve, prior)) for prior in priors))


def _belief(curve: Curve, prior: float, exception: float) -> float:
    rare = _largest_rate(curve, 1 - exception)
    if rare == 0:
        return 1.0
    odds = exception / rare * prior / (1 - prior)
    return odds / (1 + odds)


def _largest_rate(curve: Curve, height: float) -> float:
    """An α with f(α) ≥ height, and hardly a larger one: what is returned never lies above. 0 where there is none."""
    low, high = math.log(1e-290), 0.0
    if float(curve.beta(math.exp(low))) < height:
        return 0.0
    for _ in range(70):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if float(curve.beta(math.exp(middle))) >= height else (low, middle)
    return math.exp(low)


def _tell_belief(odds: Odds, told: _Phrases) -> str:
    rare, belief = f"{_hundredths(odds.exception, 1)} in 100", _percent(odds.belief)
    if belief == _percent(1.0):
        return f"If {told.fact}, the chance that they become as good as certain of it may be more than {rare}."
    return f"If {told.fact}, the chance that they come to think it more than {belief} likely is at most {rare}."


@dataclass(frozen=True)
class _Phrases:
    others: str
    question: str
    fact: str
    those: str


def _phrases(adjacency: Adjacency, unit: str) -> _Phrases:
    """What is asked about one unit, by what neighbours differ in."""
    if unit == "person":
        others, you = (
            "everybody else",
            {
                "add-remove": ("whether you are in the data", "you are in the data", "people who are in the data"),
                "zero-out": ("whether your data were used", "they were used", "people whose data were used"),
                "replace": (
                    "which of two possible records is yours",
                    "it is the first",
                    "people with the first record",
                ),
            },
        )
        return _Phrases(others, *you[adjacency])
    it = {
        "add-remove": (f"whether one given {unit} is in the data", "it is", f"{unit}s in the data"),
        "zero-out": (f"whether one given {unit} was used", "it was", f"{unit}s that were used"),
        "replace": (f"which of two possible values one {unit} has", "it is the first", f"{unit}s with the first value"),
    }
    return _Phrases(f"every other {unit}", *it[adjacency])


def _phrases_of_half(protects: Protects, unit: str) -> _Phrases:
    """What is asked where the other half is public."""
    hidden, public = ("sets of features", "labels") if protects == "features" else ("labels", "features")
    first = "the first set of features" if protects == "features" else "the first label"
    if unit == "person":
        others, question = f"everybody else and your {public}", f"which of two possible {hidden} is yours"
        return _Phrases(others, question, "it is the first", f"people with {first}")
    others, question = f"every other {unit} and this one's {public}", f"which of two possible {hidden} one {unit} has"
    return _Phrases(others, question, "it is the first", f"{unit}s with {first}")


def _row(odds: Odds) -> tuple[str, ...]:
    return (
        _percent(odds.prior),
        _hundredths(odds.without, 1),
        _hundredths(odds.right, 1),
        _hundredths(odds.accusing, 1),
        _percent(odds.belief),
    )


def _percent(share: float) -> str:
    return f"{_hundredths(share, 1)} %"


def _hundredths(share: float, decimals: int) -> str:
    """100·share, rounded up; what floating point adds to a round number (a ten-billionth) is dropped."""
    exact = Decimal(f"{100 * share:.8f}").quantize(Decimal(1).scaleb(-decimals), ROUND_CEILING)
    return f"{exact.normalize():f}"
