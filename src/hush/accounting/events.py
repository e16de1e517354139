"""Reads privacy events: the leaves of a composition, their counts and their names.

An event is data (`dp_accounting.dp_event`). Before any accountant sees it, it is rewritten here into counted leaves, by
identities that are exact: equal leaves add their counts; Gaussians add their μ² = 1/σ²; a Poisson sample at rate 1 is
no sample, one at rate 0 is nothing; several Gaussians released on the same sample are one Gaussian.

CONVENTION, for every event and every accountant in hush: a leaf is written for the sensitivity of the adjacency it is
accounted under, and accounting never doubles anything. A sum of vectors of norm at most c with noise of standard
deviation σc is ``Gaussian(σ)`` under add-remove and zero-out, and ``Gaussian(σ/2)`` under replace, where one example
can move the sum by 2c. (dp-accounting is inconsistent here: its PLD doubles under REPLACE_ONE, its RDP does not.)
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeAlias, runtime_checkable

from dp_accounting import dp_event

from hush.errors import InvalidInputError, NotProvenError

DpEvent: TypeAlias = Any  # a dp_accounting.dp_event.DpEvent: that package has no types


@runtime_checkable
class Profile(Protocol):
    """An event with its own privacy profile δ(ε): an upper bound that does not increase in ε."""

    def delta_of(self, epsilon: float) -> float: ...


@dataclass(frozen=True)
class FinitePrecisionDpEvent(dp_event.DpEvent):  # type: ignore[misc]  # named as dp-accounting names its events
    """The noise of the events it is composed with is drawn in finite precision (`hush.accounting.noise_precision`).

    For every dataset, the distribution M̃ of the output and the M that the other events describe satisfy
    M̃ ≤ eᵃM + δ₂ and M ≤ eᵃM̃ + δ₂, with a = ``log_ratio`` and δ₂ = ``delta``. If the others are (ε, δ)-private, all
    together are (ε + 2a, eᵃδ + (1 + e^(ε+a))·δ₂)-private. In a composition both numbers add up, because each release
    may be replaced in turn."""

    log_ratio: float
    delta: float


@dataclass(frozen=True)
class CountedEvents:
    """A composition as counted leaves: one Gaussian of ``mu`` = √Σ1/σ², and every other leaf with its count; and the
    sums of `FinitePrecisionDpEvent`."""

    mu: float
    others: tuple[tuple[Any, int], ...]
    log_ratio: float = 0.0
    imprecise_delta: float = 0.0

    @property
    def ideal(self) -> CountedEvents:
        """The same leaves in exact arithmetic."""
        return replace(self, log_ratio=0.0, imprecise_delta=0.0)

    @property
    def purely_gaussian(self) -> bool:
        """Whether there are only Gaussians, or nothing."""
        return not self.others


def find_leaves(event: Any) -> CountedEvents:
    """The counted leaves of ``event``; a leaf without noise, or a non-private one, makes ``mu`` infinite."""
    mu_squared = 0.0
    others: dict[str, tuple[Any, int]] = {}  # by repr: some events hold lists and cannot be hashed
    log_ratio = imprecise = 0.0
    for leaf, count in _walk(event, 1):
        if isinstance(leaf, FinitePrecisionDpEvent):
            log_ratio, imprecise = log_ratio + count * leaf.log_ratio, imprecise + count * leaf.delta
        elif isinstance(leaf, dp_event.GaussianDpEvent):
            sigma = leaf.noise_multiplier
            mu_squared += math.inf if sigma < 1e-150 else count * (1 / sigma) ** 2
        else:
            others[repr(leaf)] = (leaf, count + others.get(repr(leaf), (leaf, 0))[1])
    return CountedEvents(math.sqrt(mu_squared), tuple(others.values()), log_ratio, imprecise)


def rebuild(parts: CountedEvents) -> DpEvent:
    """A dp_accounting event with the same leaves, in plain floats."""
    events = [dp_event.SelfComposedDpEvent(leaf, count) for leaf, count in parts.others]
    if parts.mu == math.inf:
        events.append(dp_event.NonPrivateDpEvent())
    elif parts.mu > 0:
        events.append(dp_event.GaussianDpEvent(1 / parts.mu))
    if parts != parts.ideal:
        events.append(FinitePrecisionDpEvent(parts.log_ratio, parts.imprecise_delta))
    return dp_event.ComposedDpEvent(events)


def name_event(event: Any) -> str:
    """The event in one readable line, such as ``4700 × Poisson(rate 0.00426, Gaussian(σ 1))``."""
    match event:
        case None:
            return "nothing"
        case dp_event.SelfComposedDpEvent():
            return f"{event.count} × {name_event(event.event)}"
        case dp_event.ComposedDpEvent():
            return " + ".join(name_event(part) for part in event.events) or "nothing"
        case dp_event.GaussianDpEvent():
            return f"Gaussian(σ {event.noise_multiplier:.6g})"
        case dp_event.LaplaceDpEvent():
            return f"Laplace(scale {event.noise_multiplier:.6g})"
        case dp_event.PoissonSampledDpEvent():
            return f"Poisson(rate {event.sampling_probability:.6g}, {name_event(event.event)})"
        case dp_event.SampledWithoutReplacementDpEvent():
            size = f"{event.sample_size} of {event.source_dataset_size}"
            return f"SampledWithoutReplacement({size}, {name_event(event.event)})"
        case dp_event.RepeatAndSelectDpEvent():
            return f"BestOf(mean {event.mean:g}, shape {event.shape:g}, {name_event(event.event)})"
        case FinitePrecisionDpEvent():
            return f"FinitePrecision(ε {2 * event.log_ratio:.2g}, δ {event.delta:.2g})"
        case dp_event.NoOpDpEvent():
            return "nothing"
        case dp_event.NonPrivateDpEvent():
            return "NonPrivate"
        case _:
            return str(event)


def _walk(event: Any, count: int) -> Iterator[tuple[Any, int]]:
    match event:
        case dp_event.NoOpDpEvent():
            return
        case dp_event.NonPrivateDpEvent():
            yield dp_event.GaussianDpEvent(0.0), count
        case dp_event.SelfComposedDpEvent():
            times = event.count
            if isinstance(times, bool) or int(times) != times or times < 0:
                raise InvalidInputError(f"an event can be repeated a whole number of times, got {times!r}")
            if times > 0:
                yield from _walk(event.event, count * int(times))
        case dp_event.ComposedDpEvent():
            for part in event.events:
                yield from _walk(part, count)
        case dp_event.GaussianDpEvent():
            yield dp_event.GaussianDpEvent(_noise(event.noise_multiplier)), count
        case dp_event.LaplaceDpEvent():
            scale = _noise(event.noise_multiplier)
            yield (dp_event.LaplaceDpEvent(scale) if scale > 0 else dp_event.GaussianDpEvent(0.0)), count
        case dp_event.PoissonSampledDpEvent():
            yield from _poisson(event, count)
        case dp_event.SampledWithoutReplacementDpEvent():
            yield from _without_replacement(event, count)
        case dp_event.RepeatAndSelectDpEvent():
            inner = rebuild(find_leaves(event.event))
            yield dp_event.RepeatAndSelectDpEvent(inner, float(event.mean), float(event.shape)), count
        case FinitePrecisionDpEvent():
            if not (event.log_ratio >= 0 and event.delta >= 0):
                raise InvalidInputError(f"finite precision costs a log-ratio and δ of at least 0, got {event}")
            yield event, count
        case dp_event.RandomizedResponseDpEvent():
            if not (0 <= event.noise_parameter <= 1 and event.num_buckets >= 1):
                raise InvalidInputError(f"randomised response needs a probability and at least one answer, got {event}")
            if event.num_buckets > 1 and event.noise_parameter < 1:
                yield (event if event.noise_parameter > 0 else dp_event.GaussianDpEvent(0.0)), count
        case dp_event.DpEvent():
            yield event, count
        case Profile():
            raise NotProvenError(
                f"{event} brings its own privacy profile and cannot be composed with other events: "
                "account for it alone, or add its ε and δ to the others' by basic composition"
            )
        case _:
            raise InvalidInputError(f"expected a privacy event (dp_accounting.DpEvent), got {event!r}")


def _poisson(event: Any, count: int) -> Iterator[tuple[Any, int]]:
    rate = float(event.sampling_probability)
    if not 0 <= rate <= 1:
        raise InvalidInputError(f"the sampling rate must lie between 0 and 1, got {rate}")
    if rate == 0:
        return
    if rate == 1:
        yield from _walk(event.event, count)
        return
    inner, content = _read_sampled(event.event)
    yield from _find_imprecision(inner, count)
    if inner.purely_gaussian and inner.mu == 0:
        return
    if inner.mu == math.inf:
        yield dp_event.GaussianDpEvent(0.0), count  # even a rare release without noise has no finite ε
    elif inner.purely_gaussian:
        yield dp_event.PoissonSampledDpEvent(rate, dp_event.GaussianDpEvent(1 / inner.mu)), count
    else:
        only = inner.others[0][0] if inner.mu == 0 and inner.others == ((inner.others[0][0], 1),) else content
        yield dp_event.PoissonSampledDpEvent(rate, only), count


def _without_replacement(event: Any, count: int) -> Iterator[tuple[Any, int]]:
    size, examples = event.sample_size, event.source_dataset_size
    if not 0 <= size <= examples:
        raise InvalidInputError(f"a sample of {size} cannot be drawn from {examples} examples without replacement")
    if size == 0:
        return
    if size == examples:
        yield from _walk(event.event, count)
        return
    inner, content = _read_sampled(event.event)
    yield from _find_imprecision(inner, count)
    only = dp_event.GaussianDpEvent(1 / inner.mu) if inner.purely_gaussian and inner.mu > 0 else content
    if inner.mu == math.inf:
        yield dp_event.GaussianDpEvent(0.0), count
    elif inner.mu > 0 or inner.others:
        yield dp_event.SampledWithoutReplacementDpEvent(examples, size, only), count


def _read_sampled(event: Any) -> tuple[CountedEvents, Any]:
    """The leaves of a release on a sample, and its event in exact arithmetic."""
    inner = find_leaves(event)
    return inner, event if inner == inner.ideal else rebuild(inner.ideal)


def _find_imprecision(inner: CountedEvents, count: int) -> Iterator[tuple[Any, int]]:
    """What is released of a sample is a mixture over samples, which is off by no more than its parts: sampling makes
    finite precision no cheaper."""
    if inner != inner.ideal:
        yield FinitePrecisionDpEvent(inner.log_ratio, inner.imprecise_delta), count


def _noise(multiplier: float) -> float:
    value = float(multiplier)
    if math.isnan(value) or value < 0:
        raise InvalidInputError(f"a noise multiplier must be zero or above, got {multiplier}")
    return value


# Privacy events as readable JSON and back, without eval or pickle: only the kinds listed here are ever built.

FIELDS: dict[str, tuple[str, ...]] = {
    "NoOpDpEvent": (),
    "NonPrivateDpEvent": (),
    "GaussianDpEvent": ("noise_multiplier",),
    "LaplaceDpEvent": ("noise_multiplier",),
    "RandomizedResponseDpEvent": ("noise_parameter", "num_buckets"),
    "ZCDpEvent": ("rho", "xi"),
    "PoissonSampledDpEvent": ("sampling_probability", "event"),
    "SampledWithoutReplacementDpEvent": ("source_dataset_size", "sample_size", "event"),
    "SelfComposedDpEvent": ("event", "count"),
    "ComposedDpEvent": ("events",),
    "RepeatAndSelectDpEvent": ("event", "mean", "shape"),
    "FinitePrecisionDpEvent": ("log_ratio", "delta"),
}


def _kind(name: str) -> Any:
    return FinitePrecisionDpEvent if name == "FinitePrecisionDpEvent" else getattr(dp_event, name, None)


def to_json(event: Any) -> dict[str, Any] | None:
    """The event as plain JSON types; None where it is of a kind that cannot be rebuilt from them."""
    name = type(event).__name__
    if type(event) is not _kind(name) or name not in FIELDS:
        return None
    found: dict[str, Any] = {"kind": name.removesuffix("DpEvent")}
    for field in FIELDS[name]:
        value = _plain(getattr(event, field))
        if value is None:
            return None
        found[field] = value
    return found


def from_json(data: Any) -> Any:
    """The event that `to_json` wrote."""
    name = f"{data['kind']}DpEvent" if isinstance(data, dict) and "kind" in data else ""
    if name not in FIELDS or set(data) - {"kind"} != set(FIELDS[name]):
        raise InvalidInputError(f"not a privacy event as hush writes it: {data!r}")
    return _kind(name)(**{field: _value(data[field]) for field in FIELDS[name]})


def _plain(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        parts = [to_json(part) for part in value]
        return None if any(part is None for part in parts) else parts
    if isinstance(value, dp_event.DpEvent):
        return to_json(value)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        try:
            number: Any = value
            value = number.item()  # a numpy number
        except AttributeError:
            return None
    return value if math.isfinite(value) else str(float(value))


def _value(data: Any) -> Any:
    if isinstance(data, list):
        return [from_json(part) for part in data]
    if isinstance(data, dict):
        return from_json(data)
    if isinstance(data, (int, float)) and not isinstance(data, bool):
        return data
    if data in ("inf", "-inf"):
        return float(data)
    raise InvalidInputError(f"a number was expected in a privacy event, got {data!r}")
