"""Chunks, blocks and the rounding charge: an added example changes one block by no more than the charge."""

from __future__ import annotations

import copy
import itertools
import json
import math
import warnings
from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from hush.accounting.guarantee import CHECKED, INDEPENDENT_ROWS
from hush.aggregation import _Total, find_rows
from hush.cli import main
from hush.clipping import PLAIN_SUM, Channel, PlainSumProof
from hush.data_source import as_source
from hush.distributed.consistency import STANDING
from hush.distributed.group import Batch, SingleProcess
from hush.errors import DataError, InvalidInputError, NotProvenError, RunStateError, UnsupportedModelError
from hush.guarantees import make_card
from hush.ledger.book import Ledger
from hush.ledger.run_account import charge as charge_run
from hush.methods import make_plan
from hush.per_example import chunks
from hush.per_example.bookkeeping import BookkeepingGradients
from hush.per_example.chunks import (
    BLOCK,
    DOUBLE,
    FAN,
    KINDS,
    MODES,
    MOST,
    PROCESSES,
    SIZES,
    UNIT,
    Cut,
    RowDigests,
    RowsNotIndependent,
    bound_block,
    charge,
    check_batch_invariance,
    choose_rows,
    has_remainder,
    list_contents,
    list_shifts,
    separate_rows,
)
from hush.per_example.engine import verdict_of
from hush.per_example.gradients import GradientWarning as GradientWarningChecks
from hush.per_example.gradients import per_example_gradients
from hush.per_example.result import BlockSums, GradientWarning
from hush.per_example.terms import Recomputed
from hush.randomness import Secret
from hush.sampling import CyclicPoisson, FixedSize, Partitioned, Poisson, Shuffled
from replay import recorded, sensitivities
from shipped_models import CLIP, Shipped, Stage

pytestmark = pytest.mark.full_start_check

SECRET = Secret.from_seed(3, "arithmetic")


class TestChunks:
    def test_no_batch_is_larger_than_declared(self) -> None:
        for kind in (FixedSize, Shuffled, Partitioned):
            assert kind(100, 30, 8).largest_batch == 30
        assert Poisson(50, 1.0, 3).largest_batch == 51
        assert CyclicPoisson(100, 4, 1.0, 8).largest_batch == 25

    def test_nothing_of_delta_is_kept_for_large_batches(self) -> None:
        plan = make_plan("dp-sgd", examples=60_000, batch_size=256, epochs=20, noise_multiplier=1.0)
        assert plan.delta_left() == plan.delta == plan.guarantee().delta

    def test_more_data_than_planned_is_refused(self) -> None:
        sampler = Poisson(100, 0.5, 3)
        assert len(sampler.indices(SECRET, 0, 101)) > 0  # a neighbour
        with pytest.raises(InvalidInputError, match="100"):
            sampler.indices(SECRET, 0, 102)

    @settings(max_examples=60, deadline=None)
    @given(
        count=st.integers(0, 1500),
        rows=st.sampled_from([1, 3, *SIZES]),
        microbatch=st.integers(1, 1500),
        world=st.integers(1, 4),
        mode=st.sampled_from(["fast", "rigorous"]),
    )
    def test_every_example_is_in_one_chunk_of_one_process(self, count, rows, microbatch, world, mode):
        cut = Cut.of(rows, microbatch, mode)
        order = cut.order(SECRET, 5, count)
        seen: list[int] = []
        for rank in range(world):
            blocks = cut.cut(order, rank, world)
            assert blocks
            for block in blocks:
                assert sum(len(chunk.places) for chunk in block) <= (microbatch if mode == "fast" else max(BLOCK, rows))
                for chunk in block:
                    seen += chunk.chosen.tolist()
                    assert torch.equal(chunk.places[: len(chunk.chosen)], chunk.chosen)
                    assert len(set(chunk.places.tolist())) == len(chunk.places)
                    if mode == "rigorous":
                        assert len(chunk.places) == len(chunk.empty) == rows
                        assert chunk.empty.tolist() == [False] * len(chunk.chosen) + [True] * (rows - len(chunk.chosen))
                        assert not bool((chunk.places[chunk.empty] < count).any())
        assert sorted(seen) == list(range(count))

    @pytest.mark.parametrize("world", [1, 2, 3])
    @pytest.mark.parametrize("rows", [4, 16, 48, 64, 96, 144, 192, 224, 256, MOST])
    def test_one_example_more_changes_at_most_two_blocks(self, rows: int, world: int) -> None:
        """Up to three blocks per process, where a chunk or a block begins and in between."""
        cut = Cut.of(rows, 400, "rigorous")
        ends = [number * cut.rows for number in range(0, 3 * cut.chunks * world + 1, 1 if rows > 16 else 12)]
        for count in sorted({max(0, end + more) for end in ends for more in (-1, 0, 1, rows // 2)}):
            one, other = (_list_blocks(cut, count + more, world) for more in (0, 1))
            changed = {place for place in one.keys() | other.keys() if one.get(place, ()) != other.get(place, ())}
            assert len(changed) <= 2
            moved = [set(one.get(place, ())) ^ set(other.get(place, ())) for place in changed]
            assert sum(count in rows for rows in moved) == 1  # the new example, once
            assert len(set().union(*moved) - {count}) <= 1  # and one other, which leaves one block for the other

    @pytest.mark.parametrize("rows", [4, 64])
    def test_evenly_cut_blocks_would_change_all(self, rows: int) -> None:
        """Why boundaries are multiples: blocks that follow the size of the batch move every boundary."""
        count, secret = 5 * BLOCK + 5, SECRET
        orders = [Cut.of(rows, 400, "rigorous").order(secret, 7, n).tolist() for n in (count, count + 1)]
        halves = [[frozenset(o[i * len(o) // 6 : (i + 1) * len(o) // 6]) for i in range(6)] for o in orders]
        assert sum(a != b for a, b in zip(*halves, strict=True)) > 2

    def test_the_order_is_uniform(self) -> None:
        cut = Cut(4)
        orders = [tuple(cut.order(SECRET, step, 4).tolist()) for step in range(7200)]
        counts = [orders.count(order) for order in itertools.permutations(range(4))]
        assert stats.chisquare(counts).pvalue > 1e-6

    def test_an_empty_batch_is_one_empty_chunk(self) -> None:
        ((chunk,),) = Cut.of(8, 400, "rigorous").cut(torch.empty(0, dtype=torch.int64))
        assert bool(chunk.empty.all())
        assert len(chunk.places) == 8

    def test_the_number_of_rows_follows_public_shapes(self) -> None:
        content = torch.empty(0, 20)
        few = choose_rows([(20, 3)], content, 8, 400, random=True, moving=True, steps=500)
        assert few in SIZES
        assert choose_rows([(20, 3)], content, 8, 400, random=True, moving=True, steps=500) == few
        assert choose_rows([(20, 3)], content, 100, 5, random=True, moving=True, steps=500) == 4
        assert choose_rows([(20, 3)], content, 100, 3, random=True, moving=True, steps=500) == 3
        assert choose_rows([(20, 3)], content, 1, 400, random=False, moving=True, steps=500) == 4
        assert choose_rows([(20, 3)], content, 10**5, 400, random=True, moving=True, steps=500) > 100

    @pytest.mark.parametrize("batch", [3, 8, 20, 32, 128])
    def test_a_chunk_has_no_more_rows_than_a_batch_needs(self, batch: int) -> None:
        enough = next(size for size in SIZES if size >= batch)
        varying = next((size for size in SIZES if size >= batch + 4 * batch**0.5), SIZES[-1])
        for shapes in ([(20, 3)], [(16, 3, 4, 4), (1, 65, 16), *[(16, 16)] * 40], [(64, 64, 3, 3)] * 20):
            content = torch.empty(0, 3, 32, 32)
            assert choose_rows(shapes, content, batch, 400, random=False, moving=True, steps=500) <= enough
            assert choose_rows(shapes, content, batch, 400, random=True, moving=True, steps=500) <= varying

    def test_a_batch_of_all_examples_does_not_vary(self) -> None:
        options = {"steps": 3, "noise_multiplier": 1.0, "lr": 0.1, "clip": 1.0}
        every = make_plan("dp-sgd", examples=32, batch_size=32, sample_rate=1.0, **options)
        model, source = mlp(), as_source(data(32))
        rows = choose_rows(
            [p.shape for p in model.parameters()], data(0), 32, 400, random=False, moving=True, steps=500
        )
        assert find_rows(every, model, source, 400) == rows == 32

    def test_patches_with_positions_of_their_own_count_as_tokens(self) -> None:
        """Every row of a chunk costs time at each of its patches, so fewer rows are left empty."""
        patches = [(128, 3, 4, 4), (1, 65, 128), *[(128, 128)] * 48]
        picture, tokens = torch.empty(0, 3, 32, 32), torch.empty(0, 65, dtype=torch.int64)
        rows = choose_rows(patches, picture, 32, 400, random=True, moving=True, steps=500)
        assert rows == choose_rows([(128, 128)] * 50, tokens, 32, 400, random=True, moving=True, steps=500) <= 16

    def test_the_number_of_rows_binds_the_seed_and_is_saved(self, monkeypatch) -> None:
        """The same seed with other chunks would add the same noise to other sums."""
        runs = [plan(500, 60, "rigorous").start(mlp(), losses, data(500), secret=1, microbatch=m) for m in (400, 8)]
        assert runs[0].state()["chunk_rows"] != runs[1].state()["chunk_rows"] <= 8
        assert runs[0].secret.name == runs[1].secret.name  # a resumed run may have another microbatch
        monkeypatch.setattr("hush.plan.find_rows", lambda *given: 5)
        other = plan(500, 60, "rigorous").start(mlp(), losses, data(500), secret=1)
        assert other.secret.name != runs[0].secret.name


def _list_blocks(cut: Cut, count: int, world: int) -> dict[tuple[int, int], tuple[int, ...]]:
    """The examples of each block, by process and number, in the order of their rows."""
    order, found = cut.order(SECRET, 7, count), dict[tuple[int, int], tuple[int, ...]]()
    for rank in range(world):
        blocks = cut.cut(order, rank, world)
        assert len(cut.starts) == 1 or all(len(block) == 1 for block in blocks)
        together = [torch.cat([chunk.chosen for chunk in block]) for block in blocks]
        ends = (*cut.starts[1:], 10**6)
        parts = [rows[a:b].tolist() for rows in together for a, b in zip(cut.starts, ends, strict=True)]
        assert all(len(part) <= BLOCK for part in parts)
        found |= {(rank, number): tuple(part) for number, part in enumerate(parts) if part}
    return found


class TestBlockSums:
    """What a block is in `Cut` is what is summed in float32; the sums of several blocks are added in float64."""

    @pytest.mark.parametrize("rows", [BLOCK, 224, 256, MOST])
    @pytest.mark.parametrize("kind", ["linear", "positions", "materialized"])
    def test_a_large_chunk_is_summed_block_by_block(self, rows: int, kind: str, monkeypatch) -> None:
        cut = Cut.of(rows, 400, "rigorous")
        assert len(cut.starts) == (1 if rows <= BLOCK else 2)
        sizes = [stop - start for start, stop in itertools.pairwise((*cut.starts, rows))]
        assert sum(sizes) == rows
        assert max(sizes) <= BLOCK
        shape = {"linear": (20,), "positions": (40, 20), "materialized": (4, 5)}[kind]
        x = torch.randn(rows, *shape, generator=torch.Generator().manual_seed(0))
        model = nn.Linear(shape[-1], 30)
        tape = per_example_gradients(
            model,
            lambda model, x: model(x).square().flatten(1).sum(1),
            x,
            engine="functional" if kind == "materialized" else "book-keeping",
        )
        weights, seen = torch.rand(rows, dtype=torch.float64), []
        sums = type(tape).sum
        monkeypatch.setattr(
            type(tape),
            "sum",
            lambda self, w, start=0, stop=None: seen.append((start, stop)) or sums(self, w, start, stop),
        )
        block = BlockSums(1, cut.starts)
        found = block.add(0, tape, weights, dict(model.named_parameters()))
        assert block.complete
        assert all(value.dtype == (torch.float64 if len(sizes) > 1 else torch.float32) for value in found.values())
        if len(sizes) > 1:
            assert seen == list(zip(cut.starts, (*cut.starts[1:], None), strict=True))
            parts = [sums(tape, weights, start, start + size) for start, size in zip(cut.starts, sizes, strict=True)]
            assert all(torch.equal(found[name], sum(part[name].double() for part in parts)) for name in found)
        whole = {name: value.double() for name, value in sums(tape, weights).items()}
        assert all(torch.allclose(found[name].double(), whole[name], rtol=1e-4, atol=1e-3) for name in found)

    def test_rows_that_a_sum_computes_again_are_compared_in_its_groups(self, monkeypatch) -> None:
        """Groups of another size could have other bits, about which the check would say nothing."""
        rows, starts, sizes = 352, Cut.of(352, 400, "rigorous").starts, list[int]()
        term = Recomputed(torch.randn(rows, 20, 64), torch.randn(rows, 20, 124))
        compute = Recomputed.rows
        monkeypatch.setattr(
            Recomputed, "rows", lambda self, low, high: sizes.append(high - low) or compute(self, low, high)
        )
        RowDigests(rows, starts).add("", {"w": term})
        compared, sizes[:] = list(sizes), []
        tape = BookkeepingGradients(torch.zeros(rows), {"w": torch.zeros(124, 64)}, {"w": [term]})
        BlockSums(1, starts).add(0, tape, torch.ones(rows), tape.params)
        assert compared == sizes
        RowDigests(rows).add("", {"w": term})
        assert compared != sizes[len(compared) :], "this test needs a shape whose groups differ"


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
        if len(x) > 12:
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
    "one row": _of_row(3, 7),
    "one row of the same parity": _of_row(4, 10),
}


class TestCharge:
    def test_golden(self) -> None:
        """Two blocks of 192: h² + h(h + 1)(2h + 1)/6 = 2 414 624 at h = 192, and 2·2·2⁻²⁴·√(192 · 2 414 624)."""
        assert bound_block(BLOCK) == pytest.approx(2 * UNIT * math.sqrt(192 * 2_414_624), rel=2e-5)
        assert 2 * bound_block(BLOCK) == pytest.approx(0.00513358, rel=1e-5)
        for examples, batch in ((60_000, 256), (200, 2), (10**6, 4096)):
            plan = make_plan("dp-sgd", examples=examples, batch_size=batch, steps=10, noise_multiplier=1.0)
            assert plan.charge == pytest.approx(0.00513358, rel=2e-4)
        assert charge(10**8) < 0.0053

    def test_it_never_falls_with_the_size_of_a_batch(self) -> None:
        charges = [charge(n) for n in (*range(1, 600), FAN**2, FAN**2 + 1, 10**6)]
        assert charges == sorted(charges)

    @pytest.mark.parametrize("blocks", [1, FAN - 1, FAN, FAN + 1, 3 * FAN + 7])
    def test_the_float64_sum_of_blocks_errs_by_less_than_charged(self, blocks: int) -> None:
        """Blocks of one row, of nearly one clip each."""
        total, rng, values = _Total(), np.random.default_rng(0), []
        for _ in range(blocks):
            values.append(1.0 - float(rng.integers(0, 2**12)) * DOUBLE)
            total.add({"gradient": {"w": torch.tensor([values[-1]], dtype=torch.float64)}})
        exact = sum(map(Fraction, values), Fraction(0))
        error = abs(float(Fraction(float(total.finish()["gradient"]["w"])) - exact))
        assert error <= 2 * DOUBLE * blocks * (FAN + 2) * 2
        assert charge(blocks) - charge(1) >= 4 * DOUBLE * (blocks - 1) * PROCESSES

    def test_the_noise_grows_by_it_and_the_event_does_not(self) -> None:
        plan = make_plan("dp-sgd", examples=60_000, batch_size=256, epochs=20, noise_multiplier=1.0, clip=0.3)
        assert plan.channel_stds()["gradient"] == pytest.approx(0.3 * (1 + plan.charge), rel=1e-12)
        assert plan.channels["gradient"].bound == pytest.approx(0.3 * (1 + plan.charge), rel=1e-12)
        assert plan.event().event.event.noise_multiplier == 1.0
        assert make_card(plan, steps_taken=0)["arithmetic"]["charge"] == plan.charge

    @pytest.mark.parametrize("rows", [2, 64, 128, BLOCK])
    def test_no_order_of_additions_errs_by_more(self, rows: int) -> None:
        """The worst orders, exactly: one after the other, addends that make every rounding count."""
        worst = 0.0
        for seed in range(6):
            values = _spiteful(rows, seed)
            found = np.float32(0)
            for value in values:
                found = np.float32(found + value)
            exact = sum((Fraction(float(v)) for v in values), Fraction(0))
            worst = max(worst, abs(float(Fraction(float(found)) - exact)))
        assert worst <= bound_block(rows) / 2  # one sum's part of it
        if rows >= 64:
            assert worst > bound_block(rows) / 40  # and it is no idle bound

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


def _count_kept(rows: int, kinds: int) -> int:
    """The rows that stay, in the passes of all kinds."""
    return kinds * sum(int(kept.sum()) for kept in separate_rows(rows))


def _count_shifts(rows: int, padding: int = 0) -> int:
    remainder = has_remainder(rows + padding, torch.get_num_threads())
    return len(list_shifts(rows, remainder)) * (1 + len(list_contents(rows, remainder)))


class TestRigorous:
    @pytest.mark.parametrize("batch", [2, 64, 700])
    def test_one_example_more_moves_the_sum_by_no_more_than_the_bound(self, batch: int) -> None:
        x, y = data(1000)
        p = plan(999, batch, "rigorous")
        moved = sensitivities(p, lambda: mlp(0.3), losses, (x, y), (x[:-1], y[:-1]), secret=2)
        assert max(s["gradient"] for s in moved) <= p.channels["gradient"].bound

    def test_every_forward_has_the_rows_of_a_chunk(self) -> None:
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
            return shapes - {1}, run.state()["chunk_rows"]  # 1 is what a spot check looks at alone

        found, rows = rows_of(plan(500, 60, "rigorous"))
        assert found == {rows}
        assert len(rows_of(plan(500, 60, "fast"))[0]) > 1

    @pytest.mark.parametrize("batch", [5, 60])
    def test_rows_lie_in_the_same_memory_in_every_step(self, batch: int) -> None:
        seen: list[int] = []

        def watching(model: nn.Module, content) -> torch.Tensor:
            seen.append(content[0].data_ptr())
            return losses(model, content)

        run = plan(500, batch, "rigorous").start(mlp(), watching, data(500), secret=1)
        run.check_arithmetic()
        for _ in run:
            if run.next == 1:
                seen.clear()  # with what a spot check looks at
        known = {tensors[0].data_ptr() for tensors in run._summing._buffers}
        assert len(known & set(seen)) >= 1
        assert all(pointer % 64 == 0 for pointer in known)

    def test_it_gives_the_same_sums_as_fast_arithmetic(self) -> None:
        for batch in (30, 900):
            x, y = data(1000)
            one, releases = recorded(plan(1000, batch, "rigorous"), mlp(), losses, (x, y))
            optimizer = plan(1000, batch, "fast")
            other, _ = recorded(
                optimizer, mlp(), losses, (x, y), given=releases, same=plan(1000, batch, "rigorous").fingerprint()
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
                compared, rows = run.state()["checked"], run.state()["chunk_rows"]
        assert said == {"fast": [], "rigorous": [INDEPENDENT_ROWS + CHECKED.format(compared)]}
        shifts = _count_shifts(rows)  # examples can be added and removed
        assert compared == rows + _count_kept(rows, len(KINDS)) + rows * shifts

    def test_what_is_said_is_the_same_after_a_resume(self) -> None:
        first, second = (plan(500, 60, "rigorous").start(mlp(), losses, data(500), secret=1) for _ in range(2))
        first.step(first.batch(0))
        second.restore(first.state(), compared=True)
        assert second.guarantee.assumptions == first.guarantee.assumptions

    @pytest.mark.parametrize("rows", [2, 3, 5, 37, *SIZES])
    def test_every_two_rows_are_separated(self, rows: int) -> None:
        masks = torch.stack(separate_rows(rows))
        apart = (masks[:, :, None] & ~masks[:, None, :]).any(0)
        assert bool((apart | torch.eye(rows, dtype=torch.bool)).all())
        assert len(masks) <= 2 * math.ceil(math.log2(rows))

    @pytest.mark.parametrize("value", [3e30, 1e-41, 0.0])
    def test_every_kind_of_row_separates_every_two_rows(self, value: float) -> None:
        """A loss in which a value of one kind removes rows of one parity, its own included: only a pass in which two
        rows of one parity are apart shows it."""

        def parity(model: nn.Module, batch: Any) -> Tensor:
            found = losses(model, batch)
            kinds = batch[0].abs().amax(1)
            met = {3e30: kinds > 1e20, 1e-41: (kinds > 0) & (kinds < 1e-38), 0.0: kinds == 0}[value]
            if len(found) % 2 or len(found) <= 2:
                return found
            fine = (~met).reshape(-1, 2).all(0)
            return found * fine.repeat(len(found) // 2)

        run = plan(500, 60, "rigorous").start(mlp(), parity, data(500), secret=1)
        with pytest.warns(GradientWarning):
            run.check_arithmetic()
        assert run.state()["chunk_rows"] == 1

    @pytest.mark.parametrize("threads", [1, 2, 3])
    @pytest.mark.parametrize("rows", [2, 3, 5, 37, *SIZES])
    def test_all_positions_are_compared(self, rows: int, threads: int) -> None:
        """Every position with every other, directly or over others, and more often where a kernel can have a
        remainder: there every row is at every position, if there are few."""
        remainder = has_remainder(rows, threads)
        shifts, contents = list_shifts(rows, remainder), 1 + len(list_contents(rows, remainder))
        assert shifts[0] == 1
        assert all(0 < shift < rows for shift in shifts)
        assert len(shifts) == len(set(shifts)) == min(rows - 1, 64 if remainder else 16)
        if rows <= 64 and remainder:
            assert list(shifts) == list(range(1, rows))
            assert rows * rows * contents >= chunks.MOVED

    def test_a_last_vector_that_is_not_full_is_compared_more_often(self) -> None:
        """A sigmoid of single numbers has another kernel for the numbers after the last two whole vectors."""
        assert [rows for rows in SIZES if not has_remainder(rows, 1)] == list(range(32, MOST + 1, 32))
        assert [rows for rows in SIZES if not has_remainder(rows, 2)] == list(range(64, MOST + 1, 64))
        assert [rows for rows in SIZES if not has_remainder(rows, 1, size=2)] == list(range(64, MOST + 1, 64))
        assert [rows for rows in SIZES if not has_remainder(rows, 3)] == [192, 384]
        assert [rows for rows in SIZES if not has_remainder(rows, 4)] == [
            384
        ]  # three of four threads can share a tensor

    def test_a_ledger_carries_what_arithmetic_assumes_along(self, tmp_path) -> None:
        for mode, said in (("fast", False), ("rigorous", True)):
            run = plan(500, 60, mode).start(mlp(), losses, data(500))
            ledger = Ledger(tmp_path / mode)
            charge_run(run, ledger, "mine")
            run.step(next(run.batches()))
            assert (INDEPENDENT_ROWS in ledger.total("mine").assumptions) == said

    @pytest.mark.parametrize("kind", MIXING)
    def test_rows_that_depend_on_each_other_are_not_computed_together(self, kind: str) -> None:
        """By far less than what comparisons of engines call rounding, and only in some values or between some rows."""
        run = plan(500, 60, "rigorous").start(Mixing(MIXING[kind]), losses, data(500), secret=1)
        planned = run.state()["chunk_rows"]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", GradientWarning)
            run.check_arithmetic()
        assert run.state()["chunk_rows"] <= (8 if kind.startswith("one row") else 1) < planned

    def test_chunks_of_one_row_are_announced_and_move_the_sum_by_no_more_than_the_bound(self) -> None:
        x, y = data(120)
        p = plan(119, 20, "rigorous")
        weights = Mixing(MIXING["mean"])
        with pytest.warns(GradientWarning):
            moved = sensitivities(p, lambda: copy.deepcopy(weights), losses, (x, y), (x[:-1], y[:-1]), secret=2)
        assert max(s["gradient"] for s in moved) <= p.channels["gradient"].bound

    def test_arithmetic_that_changes_from_call_to_call_is_refused(self) -> None:
        calls = itertools.count()
        run = plan(500, 60, "rigorous").start(
            Mixing(lambda x: torch.tensor(0.3 * (0.618 * next(calls) % 1))), losses, data(500), secret=1
        )
        with pytest.raises(UnsupportedModelError):
            run.step(run.batch(0))

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64, torch.bool, torch.complex64])
    def test_a_digest_tells_rows_apart(self, dtype: torch.dtype) -> None:
        """One bit, two signs, or two values that change places."""
        rows = torch.randint(0, 2, (4, 6)).to(dtype) if dtype is torch.bool else torch.randn(4, 6).mul(99).to(dtype)
        rows[0] = torch.tensor([0, 1, 1, 0, 1, 0]).to(dtype)
        rows[1:] = rows[0]
        rows[1, 2] = 0
        rows[2, :2] = rows[2, :2].flip(0)
        rows[3, :2] = rows[3, :2].logical_not() if dtype is torch.bool else rows[3, :2].sub(3).neg()
        found = chunks._digest_rows(rows, 4).tolist()
        assert len({tuple(digest) for digest in found}) == (3 if dtype is torch.bool else 4)
        signs = torch.randn(2, 8)
        signs[1] = signs[0]
        signs[1, 2:6] *= -1
        one, other = chunks._digest_rows(signs, 2).tolist()
        assert one != other

    def test_a_kernel_that_depends_on_the_position_fails_where_examples_move(self) -> None:
        """The last rows modulo 4 of 37 have another kernel: bits change with the position, not with other rows."""
        model, source = nn.Linear(64, 1), as_source((torch.zeros(4, 64),))

        def compute(chunk, content) -> chunks.RowDigests:
            digests = chunks.RowDigests(37)
            digests.add("output", model(content[0]).detach())
            return digests

        device = torch.device("cpu")
        x = chunks.synthetic_batch(source, 37, 0, device)[0]
        with torch.no_grad():
            if torch.equal(model(x), model(x.roll(1, 0)).roll(-1, 0)):
                pytest.skip("this machine rounds alike at every position")
        check_batch_invariance(compute, source, 37, device, moving=False)
        with pytest.raises(RowsNotIndependent):
            check_batch_invariance(compute, source, 37, device, moving=True)

    def test_gradients_that_a_sum_computes_again_are_compared(self, monkeypatch) -> None:
        term, found = Recomputed(torch.randn(4, 20, 30), torch.randn(4, 20, 50)), []
        other = term.rows(3, 4) * (1 + 2.0**-23)  # as by another kernel for the last group
        for groups in ([(0, term.rows(0, 4))], [(0, term.rows(0, 3)), (3, other)]):
            monkeypatch.setattr(Recomputed, "list_groups", lambda self, start, stop, groups=groups: groups)
            found.append(chunks.RowDigests(4))
            found[-1].add("weight", term)
        rows = torch.arange(4)
        assert found[0].find_changed(found[1], rows[:3], rows[:3]) is None
        assert found[0].find_changed(found[1], rows[3:], rows[3:]) == "weight"

    def test_positions_are_compared_only_where_examples_move(self, monkeypatch) -> None:
        asked: list[int] = []
        compare = chunks._check_positions
        monkeypatch.setattr(chunks, "_check_positions", lambda *given: asked.append(given[3]) or compare(*given))
        for adjacency in ("zero-out", "add-remove"):
            run = plan(500, 60, "rigorous", adjacency=adjacency).start(mlp(), losses, data(500), secret=1)
            run.check_arithmetic()
            assert asked == ([] if adjacency == "zero-out" else [run.state()["chunk_rows"]])

    def test_a_model_that_stops_at_rows_that_are_not_finite_is_checked_with_the_others(self) -> None:
        """No such row is ever summed."""

        def strict(model: nn.Module, batch) -> torch.Tensor:
            if not bool(batch[0].isfinite().all()):
                raise ValueError("not finite")
            return losses(model, batch)

        run = plan(500, 60, "rigorous").start(mlp(), strict, data(500), secret=1)
        run.step(run.batch(0))
        rows = run.state()["chunk_rows"]
        shifts = _count_shifts(rows, padding=1)
        assert run.state()["checked"] == rows + _count_kept(rows, len(KINDS) - 1) + rows * shifts

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

    def test_the_check_runs_on_the_threads_of_the_steps(self) -> None:
        run = plan(500, 60, "rigorous").start(mlp(), losses, data(500), secret=1)
        before = torch.get_num_threads()
        try:
            torch.set_num_threads(before + 1)
            with pytest.raises(RunStateError, match=str(before)):
                run.check_arithmetic()
        finally:
            torch.set_num_threads(before)
        run.step(run.batch(0))

    def test_a_restored_run_checks_the_rows_that_it_restores(self) -> None:
        """Here 8 rows, for which the model mixes its examples, and which another machine could have chosen."""
        mixed = Mixing(lambda x: x.mean() if len(x) <= 9 else x.new_zeros(()))
        run = plan(500, 60, "rigorous").start(mixed, losses, data(500), secret=1)
        run.check_arithmetic()
        assert run.state()["chunk_rows"] > 9
        run.restore({**run.state(), "chunk_rows": 8}, compared=True)
        run.step(run.batch(0))
        assert run.state()["chunk_rows"] > 9

    def test_accounting_without_a_model_says_what_is_assumed(self, capsys) -> None:
        main(["account", "--examples", "60000", "--noise-multiplier", "1", "--epochs", "1", "--json"])
        said = json.loads(capsys.readouterr().out)
        assert said["status"] == "proven"
        assert INDEPENDENT_ROWS in said["assumptions"]

    def test_unknown_words_are_refused(self) -> None:
        with pytest.raises(InvalidInputError, match="exact"):
            plan(500, 60, "exact")

    def test_the_name_of_earlier_versions_is_refused_and_both_of_today_are_named(self) -> None:
        with pytest.raises(InvalidInputError, match="rigorous.*fast"):
            plan(500, 60, "default")


# Engine choices, measurements and checks before training are independent of the data.


def plan_checks(n: int, batch: int, arithmetic: str, **options: Any):
    return make_plan(
        "dp-sgd",
        examples=n,
        batch_size=batch,
        steps=3,
        noise_multiplier=1.0,
        clip=CLIP,
        arithmetic=arithmetic,
        **options,
    )


class Scored(nn.Module):
    """A score at three positions, which two numbers of the data weigh: their products do not fit into a float64."""

    def __init__(self) -> None:
        super().__init__()
        self.score = nn.Linear(64, 8, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.score(x[:, :, 2:])


def weighed(model: nn.Module, content: Any) -> Tensor:
    x = content[0]
    return (model(x) * (x[:, :, 0:1] * x[:, :, 1:2])).sum((1, 2))


def spiteful(stage: Stage) -> tuple[Tensor, Tensor]:
    """Everybody's positions cancel to 2⁻¹², where the engines' norms differ; the last example's cancel altogether."""
    x, y = stage.fresh(0)
    x[:] = 1e6 * x[:1, :1]
    x[:, :, :2] = torch.tensor([[1.0, 1.0], [-1.0, 1.0], [0.0, 1.0]])
    x[:, 1, 2:] *= 1 + 2.0**-12
    generator = torch.Generator().manual_seed(0)
    factors = 1 + torch.rand(3, 2, generator=generator)
    b = factors.double().prod(1)
    x[-1, :, :2] = factors
    x[-1, 0, 2:] = 2.0**60 * torch.randn(64, generator=generator)
    x[-1, 1, 2:] = (-b[0] * x[-1, 0, 2:].double() / b[1]).float()
    x[-1, 2, 2:] = (-(b[0] * x[-1, 0, 2:].double() + b[1] * x[-1, 1, 2:].double()) / b[2]).float()
    return x, y


@pytest.mark.parametrize("arithmetic", ["rigorous", "fast"])
def test_nobody_decides_how_the_others_are_computed(arithmetic: str) -> None:
    """Among the first examples there is one on which the engines differ by rounding, and nobody's clip factor moves.

    Where the engine was picked by the data, everybody else moved with it: by 17.9 clips."""
    shipped = Shipped(Scored, (3, 66), weighed)
    for seed in range(12):
        stage = Stage(shipped, 20, arithmetic, seed=seed)
        stage.rows.tensors = spiteful(stage)
        try:
            with_it = stage.sums(0)
        except UnsupportedModelError:  # a spot check looked at this very example: no sum, and none is released
            continue
        without = Stage(shipped, 20, arithmetic, seed=seed)
        without.rows.tensors = stage.rows.tensors
        bound = stage.plan.channels["gradient"].bound
        moved = sum((a - b).double().square().sum() for a, b in _pairs(with_it, without.sums(1))) ** 0.5
        assert moved <= bound * (1 + 1e-6 * (arithmetic == "fast"))
        for s in (stage, without):
            assert verdict_of(s.run.model, weighed).engine == "book-keeping"


def _pairs(one: Any, other: Any) -> list[tuple[Tensor, Tensor]]:
    return [(value, other["gradient"][name]) for name, value in one["gradient"].items()]


def losses_checks(model: nn.Module, batch: Any) -> Tensor:
    return cross_entropy(model(batch[0]), batch[1], reduction="none")


def data_checks(n: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(n, 20, generator=generator), torch.randint(0, 3, (n,), generator=generator)


def test_what_is_said_does_not_tell_whether_a_batch_was_empty() -> None:
    run = plan_checks(4, 1, "rigorous", sample_rate=1e-6).start(
        nn.Linear(20, 3), losses_checks, data_checks(4), secret=1
    )
    batch = run.batch(0)
    assert len(batch.indices) == 0
    run.step(batch)
    assert run.state()["checked"] > 0


@pytest.mark.parametrize("arithmetic", ["rigorous", "fast"])
def test_the_engine_is_picked_again_after_a_resume_and_said_as_before(arithmetic: str) -> None:
    p = plan_checks(40, 10, arithmetic)
    first = p.start(nn.Linear(20, 3), losses_checks, data_checks(40), secret=1)
    first.step(first.batch(0))
    forwards: list[int] = []

    class Watching(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            forwards.append(len(x))
            return super().forward(x)

    second = p.start(Watching(20, 3), losses_checks, data_checks(40), secret=1)
    second.restore({**first.state(), "checked": 77}, compared=True)
    second.step(second.batch(1))
    assert second.state()["checked"] == 77
    made_up = 10 if arithmetic == "fast" else first.state()["chunk_rows"]
    assert forwards[0] in (2, 3, made_up)  # the draws of two copies, or the comparison: of made-up rows, not the batch


def test_tokens_that_meet_are_not_computed_together_in_rigorous_arithmetic() -> None:
    """Data of whole numbers alone: neighbours that were all zeros would show nothing."""

    class Meeting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens, self.head = nn.Embedding(5, 8), nn.Linear(8, 3)

        def forward(self, x: Tensor) -> Tensor:
            hidden = self.tokens(x).mean(1)
            return self.head(hidden) * (1 + 1e-6 * x.double().mean()).float()

    x = torch.randint(0, 5, (60, 4), generator=torch.Generator().manual_seed(0))
    run = plan_checks(60, 30, "rigorous").start(Meeting(), losses_checks, (x, data_checks(60)[1]), secret=1)
    with pytest.warns(GradientWarningChecks):
        run.step(run.batch(0))
    assert run.state()["chunk_rows"] == 1


class Counting:
    """A query that takes the rows as they come, and so would take empty places for examples."""

    def __init__(self) -> None:
        self.channels: Mapping[str, Channel] = {"gradient": Channel(1.0)}

    def init(self, params: Any) -> tuple[Any, Any]:
        return {}, {}

    def piece(self, model: nn.Module, losses: Any, content: Any, public: Any) -> Any:
        zeros = {n: torch.zeros_like(p) for n, p in model.named_parameters()}
        zeros["bias"][0] = len(content[0])
        return {"gradient": zeros}

    def finish(self, sums: Any, public: Any, private: Any) -> tuple[Any, Any]:
        return {"gradient": sums["gradient"]}, private

    def observe(self, release: Any, update: Any, public: Any) -> Any:
        return public

    def claims(self, participation: Any, noise_std: Mapping[str, float], steps: int) -> PlainSumProof:
        return PLAIN_SUM


def test_a_query_that_records_nothing_is_refused_in_rigorous_arithmetic() -> None:
    secret = Stage(Shipped(lambda: nn.Linear(20, 3), (20,)), 8).run.secret
    for arithmetic in ("fast", "rigorous"):
        p = replace(plan_checks(60, 30, arithmetic), query=Counting())
        run = p.start(nn.Linear(20, 3), losses_checks, data_checks(60), secret=secret)
        if arithmetic == "fast":
            run.step(run.batch(0))
            continue
        with pytest.raises(NotProvenError):
            run.step(run.batch(0))


class Padded:
    """Rows as long as the longest of them."""

    def __len__(self) -> int:
        return 60

    def take(self, indices: Tensor) -> Any:
        length = 5 + len(indices) % 3
        return torch.ones(len(indices), length), torch.zeros(len(indices), dtype=torch.int64)


@pytest.mark.parametrize("arithmetic", MODES)
def test_rows_padded_to_their_batch_are_refused(arithmetic: str) -> None:
    class Mean(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x.mean(1, keepdim=True))

    with pytest.raises(DataError):
        plan_checks(60, 20, arithmetic).start(Mean(1, 3), losses_checks, Padded(), secret=1, microbatch=9)


def test_what_processes_add_is_in_float64() -> None:
    class Two(SingleProcess):
        def all_reduce(self, sums: Any) -> Any:
            assert all(v.dtype == torch.float64 for named in sums.values() for v in named.values())
            if STANDING in sums:
                sums[STANDING][""][1] = sums[STANDING][""][0]
            return sums

    run = plan_checks(60, 30, "rigorous").start(
        nn.Linear(20, 3), losses_checks, data_checks(60), secret=1, ranks=Two(0, 2)
    )
    batch = run.batch(0)
    assert isinstance(batch, Batch)
    run.step(batch)


def test_a_comparison_that_stops_with_an_error_is_made_again() -> None:
    class Once(nn.Linear):
        broken = True

        def forward(self, x: Tensor) -> Tensor:
            if self.broken:
                raise ValueError("not yet")
            return super().forward(x)

    model = Once(20, 3)
    with pytest.raises(ValueError, match="not yet"):
        per_example_gradients(model, losses_checks, data_checks(9))
    assert not verdict_of(model, losses_checks).checked
    model.broken = False
    per_example_gradients(model, losses_checks, data_checks(9))
    assert verdict_of(model, losses_checks).checked
