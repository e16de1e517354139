"""What one unit can change: all of its rows together move a sum by no more than one clip."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hush._internal.tensors import Losses, State, Sums
from hush.clipping import Adaptive, ClippedSum, ErrorFeedback, Quantile, TwoPoint
from hush.clipping.clipped import clipped_sums
from hush.data_source import Tensors
from hush.per_example.augmentation import Augmented
from hush.plan import Plan
from hush.privacy_unit import UnitRows, Units, spread_rows
from replay import distance, recorded
from unit_tables import CLIP, MOST, Table, losses, make, make_model, make_table

QUERIES = {
    "plain": ClippedSum(CLIP),
    "normalised": ClippedSum(CLIP, "normalised"),
    "automatic": ClippedSum(CLIP, "automatic"),
    "per layer": ClippedSum(CLIP, per_layer=True),
    "functional": ClippedSum(CLIP, engine="functional"),
    "adaptive": Adaptive(ClippedSum(CLIP), Quantile(CLIP), 10.0),
    "two points": TwoPoint.of(ClippedSum(CLIP).clipping, 0.5, 0.7),
    "error feedback": ErrorFeedback(CLIP, CLIP),
}


def moved(plan: Plan, table: Table, loss: Losses = losses, steps: int | None = None) -> float:
    """By how much of a channel's bound the last unit, all of its rows, moves a sum at equal parameters; the most."""
    fewer = table.without_last()

    def sums(of: Table, given: Any) -> Any:
        how = {"unit": of.ids, "rows_per_unit": MOST}
        return recorded(plan, make_model(), loss, of.content, given=given, same="units", **how)

    with_it, releases = sums(table, None)
    without, _ = sums(fewer, releases)
    pairs = list(zip(with_it, without, strict=True))[:steps]
    return max(distance(a[name], b[name]) / plan.channels[name].bound for a, b in pairs for name in a)


@pytest.mark.parametrize("query", QUERIES)
def test_a_whole_unit_moves_a_sum_by_no_more_than_its_bound(query: str) -> None:
    """The error of error feedback differs from the second step on; what that costs is in its claims."""
    plan = replace(make(steps=6, accept_claimed=True), query=QUERIES[query])
    found = moved(plan, make_table(), steps=1 if query == "error feedback" else None)
    assert 0.5 < found <= 1.0  # the unit does count


@dataclass(frozen=True)
class RowWise:
    """A twin that clips each row, then puts a unit's rows together: added up, or averaged."""

    add: bool

    channels = ClippedSum(CLIP).channels
    init, finish, observe, claims = (
        staticmethod(getattr(ClippedSum(CLIP), name)) for name in ("init", "finish", "observe", "claims")
    )

    def piece(self, model: nn.Module, loss: Any, content: UnitRows, public: State) -> Sums:
        total: dict[str, Tensor] = {}
        for unit in range(len(content.weights)):
            there = content.weights[unit] > 0
            own = tuple(t[unit][there] for t in content.rows)
            sums = clipped_sums(_tape(model, own), ClippedSum(CLIP).clipping)["gradient"]
            share = 1.0 if self.add else 1.0 / int(there.sum())
            total = {name: total.get(name, 0) + share * value for name, value in sums.items()}
        zeros = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
        return {"gradient": zeros | total, "diagnostics": {}}


def _tape(model: nn.Module, rows: Any) -> Any:
    from hush.per_example.augmentation import Point
    from hush.per_example.functional import record_functional

    return record_functional(model, losses, rows, len(rows[0]), [Point()])


@pytest.mark.filterwarnings("ignore::hush.per_example.result.GradientWarning")
def test_clipping_rows_before_their_mean_is_not_needed_and_adding_them_up_fails() -> None:
    """The mean of clipped rows obeys the bound that the clipped mean obeys; their sum has three times as much. The
    twins take their gradients in a way of their own, which fast arithmetic alone allows."""
    plan, table = make(steps=6, arithmetic="fast"), make_table()
    assert moved(plan, table) <= 1.0 + 1e-6
    assert 0.5 < moved(replace(plan, query=RowWise(add=False)), table) <= 1.0 + 1e-6
    assert moved(replace(plan, query=RowWise(add=True)), table) > 2.5


def pull(model: nn.Module, content: Any) -> Tensor:
    """A gradient that is the row itself."""
    return model(content[0]).squeeze(1)


def test_a_cap_that_looks_at_other_units_fails(monkeypatch) -> None:
    """A twin that divides everybody's rows by the largest unit's number of them: one unit more makes all others
    smaller, who are within the clip, and the sum moves by several clips."""
    table = make_table()
    alike = Table(torch.full_like(table.x, 0.45 * CLIP), table.y, table.ids)
    plan = replace(make(steps=1), query=ClippedSum(CLIP))
    monkeypatch.setattr("test_unit_bounds.make_model", lambda: nn.Linear(4, 1, bias=False))
    assert 0.5 < moved(plan, alike, pull) <= 1.0 + 1e-6
    original = Units.of

    def of_the_largest(rows: Any, ids: Any, most: int | None = None) -> Units:
        return original(rows, ids, max(Counter(ids).values()))

    def divided_alike(found: Any, counts: Any, most: int) -> UnitRows:
        content = spread_rows(found, counts, most)
        return UnitRows(content.rows, (content.weights > 0).double() / most)

    monkeypatch.setattr(Units, "of", staticmethod(of_the_largest))
    monkeypatch.setattr("hush.privacy_unit.spread_rows", divided_alike)
    assert moved(plan, alike, pull) > 2.0


def test_a_run_that_forgets_the_units_exceeds_the_bound() -> None:
    """Rows as examples of their own: the twenty rows of the last unit move a sum by far more than one clip."""
    table = make_table()
    fewer = table.without_last()
    rows = len(table.x)
    plan = make(unit="example", examples=rows, batch_size=rows // 2, steps=3, sample_rate=0.5)
    sums, releases = recorded(plan, make_model(), losses, table.content, same="rows")
    padded = (torch.cat([fewer.x, torch.full((20, 4), torch.nan)]), table.y)

    @dataclass
    class Unchecked:
        tensors: Any
        single: bool = False

        def __len__(self) -> int:
            return rows

        def take(self, indices: Tensor) -> Any:
            return Tensors.take(self, indices)  # type: ignore[arg-type]

    others, _ = recorded(plan, make_model(), losses, Unchecked(padded), given=releases, same="rows")
    assert max(distance(a["gradient"], b["gradient"]) for a, b in zip(sums, others, strict=True)) > 4 * CLIP


def test_views_and_units_together() -> None:
    def shifted(content: Any) -> Any:
        return content[0] + torch.rand(len(content[0]), 1), content[1]

    table = make_table()
    plan = make(steps=3)
    assert moved(plan, table, Augmented(losses, shifted, 2)) <= 1.0 + 1e-6
