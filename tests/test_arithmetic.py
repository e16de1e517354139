"""Places, blocks and what rounding is charged: one example more changes one block, by no more than the charge."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import nn
from torch.nn.functional import cross_entropy

from hush.accounting.guarantee import CHECKED, INDEPENDENT_ROWS
from hush.cli import main
from hush.errors import InvalidInputError, RunStateError, UnsupportedModelError
from hush.guarantees import make_card
from hush.ledger.book import Ledger
from hush.ledger.run_account import charge as charge_run
from hush.methods import make_plan
from hush.per_example.chunks import BLOCK, HALF, KINDS, UNIT, Seats, charge, separate_rows
from hush.randomness import Secret
from hush.sampling import CyclicPoisson, FixedSize, Partitioned, Poisson, Room, Shuffled
from replay import recorded, sensitivities

pytestmark = pytest.mark.full_start_check

SECRET = Secret.from_seed(3, "arithmetic")


class TestPlaces:
    @pytest.mark.parametrize(("batch", "places"), [(256, 376), (1024, 1255), (4096, 4537), (20_000, 20_866)])
    def test_golden(self, batch: int, places: int) -> None:
        """MECHANISMS.md §15: a Poisson batch overflows with probability 1e-12, to a hundredth whatever N is."""
        for examples in (60_000, 10**8):
            room = Poisson(examples, batch / examples, 10).room(1e-12)
            assert room.places == pytest.approx(places, rel=0.01)
            others = stats.binom(examples, batch / examples)
            assert others.sf(room.places - 1) == room.overflow <= 1e-12 < others.sf(room.places - 2)

    def test_batches_of_fixed_size_have_no_overflow(self) -> None:
        for kind in (FixedSize, Shuffled, Partitioned):
            assert kind(100, 30, 8).room(1e-12) == Room(30, 0.0)
        assert Poisson(50, 1.0, 3).room(1e-12) == Room(51, 0.0)
        assert CyclicPoisson(100, 4, 1.0, 8).room(1e-12) == Room(26, 0.0)

    def test_the_overflow_is_a_small_share_of_delta_and_is_paid(self) -> None:
        plan = make_plan("dp-sgd", examples=60_000, batch_size=256, epochs=20, noise_multiplier=1.0)
        assert 0 < plan.steps * plan.room.overflow <= 1e-5 * plan.delta
        assert plan.guarantee().delta == plan.delta

        class Tight(Poisson):
            def room(self, chance: float) -> Room:
                return Room(300, 2e-9)

        tight = replace(plan, sampler=Tight(60_000, 256 / 60_000, plan.steps))
        assert tight.guarantee().epsilon > plan.guarantee().epsilon * 1.01  # 4 700 × 2e-9 is most of δ

    def test_more_data_than_planned_is_refused(self) -> None:
        sampler = Poisson(100, 0.5, 3)
        assert len(sampler.indices(SECRET, 0, 101)) > 0  # a neighbour
        with pytest.raises(InvalidInputError, match="100"):
            sampler.indices(SECRET, 0, 102)

    @settings(max_examples=60, deadline=None)
    @given(
        places=st.integers(1, 3000),
        share=st.floats(0, 1),
        microbatch=st.integers(1, 3000),
        world=st.integers(1, 3),
        mode=st.sampled_from(["fast", "rigorous"]),
    )
    def test_every_example_is_summed_once_in_blocks_that_are_small_enough(self, places, share, microbatch, world, mode):
        count = int(share * places)
        seats = Seats.of(Room(places), microbatch, world, mode)
        taken = seats.assign(SECRET, 5, count)
        assert len(set(taken.tolist())) == count
        seen: list[int] = []
        for rank in range(world):
            for piece in seats.cut(taken, rank, world):
                seen += piece.chosen.tolist()
                rows = len(piece.places)
                assert piece.blocks[0][0] == 0
                assert piece.blocks[-1][-1] == rows
                for one, other in zip(piece.blocks[:-1], piece.blocks[1:], strict=True):
                    assert one[-1] == other[0]
                for block in piece.blocks:
                    assert list(block) == sorted(block)
                    assert block[-1] - block[0] <= min(BLOCK, places)
                    assert all(b - a <= HALF for a, b in zip(block[:-1], block[1:], strict=True))
                real = piece.places if piece.empty is None else piece.places[~piece.empty]
                assert torch.equal(real, taken[piece.chosen])
        assert sorted(seen) == list(range(count))

    def test_one_example_more_takes_a_free_place_and_nobody_moves(self) -> None:
        seats = Seats(1272, 4, "fast")
        before, after = (seats.assign(SECRET, 7, count) for count in (1000, 1001))
        assert torch.equal(before, after[:1000])
        pieces = [list(seats.cut(taken)) for taken in (before, after)]
        changed = [
            [b - a for block in one.blocks for a, b in zip(block[:-1], block[1:], strict=True)]
            != [b - a for block in other.blocks for a, b in zip(block[:-1], block[1:], strict=True)]
            for one, other in zip(*pieces, strict=True)
        ]
        assert sum(changed) == 1

    def test_places_are_uniform(self) -> None:
        seats = Seats(7, 1)
        first = np.array([seats.assign(SECRET, step, 3).numpy() for step in range(7000)])
        for column in first.T:
            assert stats.chisquare(np.bincount(column, minlength=7)).pvalue > 1e-6

    def test_who_finds_no_place_stays_out(self) -> None:
        taken = Seats(5, 1).assign(SECRET, 0, 9)
        assert sorted(taken.tolist()) == [0, 1, 2, 3, 4]  # the first five of nine, each in a place of its own


class Mixing(nn.Module):
    """A linear layer whose outputs something about the other rows changes a little."""

    def __init__(self, factor) -> None:
        super().__init__()
        self.linear, self.factor = nn.Linear(20, 3), factor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x) * (1 + 1e-6 * self.factor(x.detach()))


def _of_row(position: int, seen_by: int):
    """What one row holds changes another one alone."""

    def factor(x: torch.Tensor) -> torch.Tensor:
        found = torch.zeros(len(x), 1)
        if len(x) > 40:
            found[seen_by] = x[position].sum().nan_to_num().clamp(-5, 5)
        return found

    return factor


MIXING = {
    "mean": lambda x: x.nan_to_num().abs().mean().clamp(max=5),
    "non-finite": lambda x: x.isnan().any().float(),
    "infinite": lambda x: x.isinf().any().float(),
    "large": lambda x: (x.nan_to_num(0, 0, 0).abs() > 1e20).any().float(),
    "zero": lambda x: (x == 0).any().float(),
    "subnormal": lambda x: ((x != 0) & (x.abs() < 1e-37)).any().float(),
    "one row": _of_row(3, 35),
    "one row of the same parity": _of_row(6, 38),
}


class TestCharge:
    def test_at_most_a_hundredth_at_the_defaults(self) -> None:
        plan = make_plan("dp-sgd", examples=60_000, batch_size=256, epochs=20, noise_multiplier=1.0)
        assert 0.005 < plan.charge < 0.01
        assert charge(BLOCK) < charge(20_000) < charge(BLOCK) + 1e-6 < 0.006

    def test_it_never_falls_with_the_number_of_places(self) -> None:
        charges = [charge(n) for n in range(1, 600)]
        assert charges == sorted(charges)

    def test_the_noise_grows_by_it_and_the_event_does_not(self) -> None:
        plan = make_plan("dp-sgd", examples=60_000, batch_size=256, epochs=20, noise_multiplier=1.0, clip=0.3)
        assert plan.channel_stds()["gradient"] == pytest.approx(0.3 * (1 + plan.charge), rel=1e-12)
        assert plan.channels["gradient"].bound == pytest.approx(0.3 * (1 + plan.charge), rel=1e-12)
        assert plan.event().event.event.noise_multiplier == 1.0
        assert make_card(plan, steps_taken=0)["arithmetic"]["charge"] == plan.charge

    @pytest.mark.parametrize("rows", [2, 64, HALF, 256, BLOCK])
    def test_no_order_of_additions_errs_by_more(self, rows: int) -> None:
        """The worst orders, exactly: each half one after the other, addends that make every rounding count."""
        worst = 0.0
        for seed in range(6):
            values = _spiteful(rows, seed)
            parts = np.array_split(values, -(-rows // HALF))
            found = np.float32(0)
            for part in parts:
                total = np.float32(0)
                for value in part:
                    total = np.float32(total + value)
                found = np.float32(found + total)
            exact = sum((Fraction(float(v)) for v in values), Fraction(0))
            worst = max(worst, abs(float(Fraction(float(found)) - exact)))
        assert worst <= charge(rows) / 2  # one sum's part of it
        if rows >= 64:
            assert worst > charge(rows) / 40  # and it is no idle bound

    def test_a_charge_for_random_rounding_would_not_hold(self) -> None:
        values = _spiteful(BLOCK, 0)
        total = np.float32(0)
        for value in values:
            total = np.float32(total + value)
        exact = float(sum((Fraction(float(v)) for v in values), Fraction(0)))
        assert abs(float(total) - exact) > UNIT * math.sqrt(BLOCK) * 10


def _spiteful(rows: int, seed: int) -> np.ndarray:
    """Addends of at most one clip whose running sum is rounded the same way at every addition, as far as found."""
    rng = np.random.default_rng(seed)
    values, total = [], np.float32(0)
    for _ in range(rows):
        tries = np.float32(1) - rng.integers(0, 2**12, 64).astype(np.float32) * np.float32(2.0**-24)
        errors = [float(np.float32(total + t)) - (float(total) + float(t)) for t in tries]
        chosen = tries[int(np.argmax(errors))]
        values.append(chosen)
        total = np.float32(total + chosen)
    return np.array(values, dtype=np.float32)


def losses(model: nn.Module, batch) -> torch.Tensor:
    return cross_entropy(model(batch[0]), batch[1], reduction="none")


def mlp(dropout: float = 0.0) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(20, 16), nn.Dropout(dropout), nn.ReLU(), nn.Linear(16, 3))


def data(n: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(n, 20, generator=generator), torch.randint(0, 3, (n,), generator=generator)


def plan(n: int, batch: int, arithmetic: str, **options):
    return make_plan(
        "dp-sgd",
        examples=n,
        batch_size=batch,
        steps=3,
        noise_multiplier=1.0,
        clip=0.5,
        arithmetic=arithmetic,
        **options,
    )


class TestRigorous:
    @pytest.mark.parametrize("batch", [2, 64, 700])
    def test_one_example_more_moves_the_sum_by_no_more_than_the_bound(self, batch: int) -> None:
        x, y = data(1000)
        p = plan(999, batch, "rigorous")
        moved = sensitivities(p, lambda: mlp(0.3), losses, (x, y), (x[:-1], y[:-1]), secret=2)
        assert max(s["gradient"] for s in moved) <= p.channels["gradient"].bound

    def test_the_rows_are_the_same_whatever_the_batch(self) -> None:
        shapes = set()

        class Watching(nn.Linear):
            def forward(self, x: torch.Tensor) -> torch.Tensor:
                shapes.add(x.shape[0])
                return super().forward(x)

        def rows_of(p):
            model = nn.Sequential(Watching(20, 3))
            run = p.start(model, losses, data(500), secret=1)
            for batch in run.batches():
                run.step(batch)
                if run.next == 1:
                    shapes.clear()  # the first step also compares engines and measures
            return shapes - {1}  # what a spot check looks at alone

        p = plan(500, 60, "rigorous")
        assert rows_of(p) == {p.room.places}
        assert len(rows_of(plan(500, 60, "fast"))) > 1

    def test_it_gives_the_same_sums_as_fast_arithmetic(self) -> None:
        for batch in (30, 900):
            x, y = data(1000)
            one, releases = recorded(plan(1000, batch, "rigorous"), mlp(), losses, (x, y))
            rule = plan(1000, batch, "fast")
            other, _ = recorded(
                rule, mlp(), losses, (x, y), given=releases, same=plan(1000, batch, "rigorous").fingerprint()
            )
            for a, b in zip(one, other, strict=True):
                for name, value in a["gradient"].items():
                    assert torch.allclose(value.double(), b["gradient"][name].double(), atol=1e-5)

    def test_empty_places_count_for_nothing(self) -> None:
        """Not in the sum, not in the figures, and not where the model makes them NaN."""

        class Inverse(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.linear = nn.Linear(20, 3)

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return self.linear(x / x.norm(dim=1, keepdim=True))  # 0/0 at an empty place

        p = plan(500, 60, "rigorous")
        sums, _ = recorded(p, Inverse(), losses, data(500))
        assert all(bool(torch.isfinite(v).all()) for s in sums for v in s["gradient"].values())
        run = p.start(mlp(), losses, data(500), secret=1)
        batch = next(run.batches())
        record = run.step(batch)
        assert record.numbers()["examples"] == len(batch.indices)

    def test_the_guarantee_says_one_thing_about_arithmetic(self) -> None:
        said = {}
        for mode in ("fast", "rigorous"):
            run = plan(500, 60, mode).start(mlp(), losses, data(500), secret=1)
            run.step(next(run.batches()))
            said[mode] = [a for a in run.guarantee.assumptions if a.startswith(INDEPENDENT_ROWS)]
            assert run.guarantee.status == ("proven" if mode == "rigorous" else "claimed")
            if mode == "rigorous":
                compared = run.state()["checked"]
        assert said == {"fast": [], "rigorous": [INDEPENDENT_ROWS + CHECKED.format(compared)]}
        places = plan(500, 60, "rigorous").room.places
        masks = separate_rows(places)
        assert compared == places + len(KINDS) * sum(int(kept.sum()) for kept in masks)

    def test_what_is_said_is_the_same_after_a_resume(self) -> None:
        first, second = (plan(500, 60, "rigorous").start(mlp(), losses, data(500), secret=1) for _ in range(2))
        first.step(first.batch(0))
        second.restore(first.state(), compared=True)
        assert second.guarantee.assumptions == first.guarantee.assumptions

    @pytest.mark.parametrize("rows", [2, 3, 5, 37, 200, 376])
    def test_every_two_rows_are_separated(self, rows: int) -> None:
        masks = torch.stack(separate_rows(rows))
        apart = (masks[:, :, None] & ~masks[:, None, :]).any(0)
        assert bool((apart | torch.eye(rows, dtype=torch.bool)).all())
        assert len(masks) <= 2 * math.ceil(math.log2(rows))

    def test_a_ledger_carries_what_arithmetic_assumes_along(self, tmp_path) -> None:
        for mode, said in (("fast", False), ("rigorous", True)):
            run = plan(500, 60, mode).start(mlp(), losses, data(500))
            ledger = Ledger(tmp_path / mode)
            charge_run(run, ledger, "mine")
            run.step(next(run.batches()))
            assert (INDEPENDENT_ROWS in ledger.total("mine").assumptions) == said

    @pytest.mark.parametrize("kind", MIXING)
    def test_a_model_whose_rows_depend_on_each_other_is_refused(self, kind: str) -> None:
        """By far less than what comparisons of engines call rounding, and only in some values or between some rows."""
        run = plan(500, 60, "rigorous").start(Mixing(MIXING[kind]), losses, data(500), secret=1)
        with pytest.raises(UnsupportedModelError):
            run.step(run.batch(0))

    def test_a_model_that_stops_at_rows_that_are_not_finite_is_checked_with_the_others(self) -> None:
        """No such row is ever summed."""

        def strict(model: nn.Module, batch) -> torch.Tensor:
            if not bool(batch[0].isfinite().all()):
                raise ValueError("not finite")
            return losses(model, batch)

        run = plan(500, 60, "rigorous").start(mlp(), strict, data(500), secret=1)
        run.step(run.batch(0))
        assert 0 < run.state()["checked"] < len(KINDS) * 1000

    def test_a_model_that_cannot_be_checked_is_refused_and_runs_in_fast_arithmetic(self) -> None:
        """Made-up inputs are none of those that it takes."""

        def strict(model: nn.Module, batch) -> torch.Tensor:
            if bool((batch[0] < 0).any()):
                raise ValueError("not a picture")
            return losses(model, batch)

        x, y = data(500)
        for mode in ("rigorous", "fast"):
            run = plan(500, 60, mode).start(mlp(), strict, (x.abs(), y), secret=1)
            if mode == "fast":
                run.step(run.batch(0))
                continue
            with pytest.raises(UnsupportedModelError):
                run.step(run.batch(0))

    def test_the_check_leaves_generators_and_flags_as_they_were(self) -> None:
        run = plan(500, 60, "rigorous").start(mlp(dropout=0.3), losses, data(500), secret=1)
        before = torch.get_rng_state(), torch.are_deterministic_algorithms_enabled()
        run.step(run.batch(0))
        assert torch.equal(torch.get_rng_state(), before[0])
        assert torch.are_deterministic_algorithms_enabled() == before[1]

    def test_threads_are_fixed(self) -> None:
        run = plan(500, 60, "rigorous").start(mlp(), losses, data(500), secret=1)
        run.step(next(run.batches()))
        before = torch.get_num_threads()
        try:
            torch.set_num_threads(before + 1)
            with pytest.raises(RunStateError, match=str(before)):
                run.step(run.batch(1))
        finally:
            torch.set_num_threads(before)

    def test_accounting_without_a_model_says_what_is_assumed(self, capsys) -> None:
        main(["account", "--examples", "60000", "--noise-multiplier", "1", "--epochs", "1", "--json"])
        said = json.loads(capsys.readouterr().out)
        assert said["status"] == "proven"
        assert INDEPENDENT_ROWS in said["assumptions"]

    def test_unknown_words_are_refused(self) -> None:
        with pytest.raises(InvalidInputError):
            plan(500, 60, "exact")
