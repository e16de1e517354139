"""Norms are never underestimated: what one example adds to a sum stays within its clip norm for any input."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from adversarial_inputs import MODELS, ROUNDED_ONCE, TERMS, added, cancelling, first_output, signed, wave
from hush.clipping import ClippedSum, Clipping
from hush.errors import InvalidInputError
from hush.per_example import rounding, terms
from hush.per_example.augmentation import Point
from hush.per_example.gradients import per_example_gradients
from hush.per_example.result import MaterializedGradients, Weights
from hush.per_example.rounding import (
    FLOOR,
    OlderSwitch,
    bound_squares,
    exact_products,
    round_towards_zero,
    unit_roundoff,
)
from hush.per_example.terms import OuterProduct, Recomputed

BLOCKS = (4, 8, 16, 32, 64)  # one of them is the width at which this processor sums


def hidden_pair(size, block, big, share):
    """Two rows whose difference is lost where squares are summed in lanes of ``block`` beside a big number."""
    first = torch.full((size,), big * share, dtype=torch.float64)
    first[:block] = big
    second = -first
    second[:block] = big
    return torch.stack([second, first])


def ranked(model, content):
    """softplus(score of the second − score of the first): a ranking loss on pairs."""
    scores = model(content).squeeze(-1)
    return F.softplus(scores[:, 1] - scores[:, 0])


def ranking(size, dtype=torch.float32):
    model = nn.Linear(size, 1, bias=False).to(dtype)
    nn.init.zeros_(model.weight)
    return model


def pairs(size, dtype=torch.float32):
    """The attack at every block: in float32 at inputs of 300, in float64 at 1e9."""
    big, share = (300.0, 0.99 * 2.0**-12) if dtype == torch.float32 else (1e9, 0.99 * 2.0**-26.5)
    return torch.stack([hidden_pair(size, block, big, share) for block in BLOCKS]).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [784, 4096, 65536])
def test_a_pair_whose_difference_rounding_hides_is_clipped(size, dtype):
    tape = per_example_gradients(ranking(size, dtype), ranked, pairs(size, dtype), engine="book-keeping")
    exact = (pairs(size, dtype)[:, 1] - pairs(size, dtype)[:, 0]).double().norm(dim=1) / 2
    assert float(exact.min()) > 1.9  # all of them are above the clip
    assert max(added(tape)) <= ROUNDED_ONCE[dtype]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_same_pair_through_a_convolution(dtype):
    model = nn.Conv2d(2048, 1, 1, bias=False).to(dtype)
    nn.init.zeros_(model.weight)
    content = pairs(2048, dtype).transpose(1, 2).unsqueeze(3)

    def losses(m, x):
        out = m(x).flatten(1)
        return F.softplus(out[:, 1] - out[:, 0])

    assert max(added(per_example_gradients(model, losses, content, engine="book-keeping"))) <= ROUNDED_ONCE[dtype]


def test_four_units_in_the_last_place_are_not_enough(monkeypatch):
    """The twin: with an allowance that does not grow with the length of the sum, the same test fails."""
    four = 4 * 2.0**-23
    monkeypatch.setattr(terms, "FLOOR", 0.0)
    monkeypatch.setattr(terms, "BLOCK", 1 << 30)
    monkeypatch.setattr(terms, "gamma", lambda roundings, dtype: four if dtype == torch.float32 else 0.0)
    tape = per_example_gradients(ranking(4096), ranked, pairs(4096), engine="book-keeping")
    assert max(added(tape)) > 1.5


def lanes(size, block):
    """A row of which sums of squares in ``block`` lanes lose all but the first numbers."""
    row = torch.full((size,), 0.99 * 2.0**-12.5)
    row[:block] = 1.0
    return row


@pytest.mark.parametrize("size", [10**5, 10**6, 10**7])
def test_long_gradients_are_not_underestimated(size):
    for block in BLOCKS:
        rows = lanes(size, block)[None]
        exact = float(rows.double().square().sum())
        found = float(bound_squares(rows))
        assert exact <= found <= exact * 1.0002
        assert max(added(MaterializedGradients(torch.zeros(1), {"w": rows}), 0.5)) <= 0.5


def test_long_gradients_in_one_float32_sum_are_underestimated(monkeypatch):
    """The twin: 10⁷ numbers in one go, with the allowance that one block has."""
    monkeypatch.setattr(rounding, "_allowance", lambda size, dtype: 1032 * 2.0**-24)
    monkeypatch.setattr(rounding, "BLOCK", 1 << 30)
    worst = max(float(lanes(10**7, b).double().square().sum() / bound_squares(lanes(10**7, b)[None])) for b in BLOCKS)
    assert worst > 1.0005


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("losses", [wave, signed])
@pytest.mark.parametrize("name", MODELS)
def test_what_one_example_adds_is_within_the_clip(name, losses, dtype):
    make, content = MODELS[name]
    torch.manual_seed(0)
    model = make().to(dtype)
    for engine in ("book-keeping", "functional"):
        for scale in (1, 300):
            data = content(dtype)
            data = data if data.dtype == torch.int64 else data * scale
            tape = per_example_gradients(model, first_output(losses), data, engine=engine)
            for mode, clip in (("plain", 1e-3), ("normalised", 1e-3)):
                bound = Clipping(clip, mode).bound
                assert max(added(tape, clip, mode)) <= bound * ROUNDED_ONCE[dtype]


# weights


def test_weights_are_rounded_towards_zero():
    values = torch.rand(10_000, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    low = round_towards_zero(values, torch.float32)
    assert bool((low.double() <= values).all())
    assert bool((values.float().double() > values).any())  # the twin: rounding to nearest goes above
    assert bool((low.double() >= values * (1 - 2.0**-23)).all())
    assert torch.equal(round_towards_zero(-values, torch.float32), -low)
    assert Weights.of(values, torch.float64).values is not low


@pytest.mark.parametrize("clip", [1e-25, 1e-16, 1e16])
def test_clips_that_float32_cannot_bound_are_refused(clip):
    with pytest.raises(InvalidInputError, match="float32"):
        ClippedSum(clip)


def test_gradients_whose_squares_vanish_stay_within_the_smallest_clip():
    rows = torch.full((1, 10_000), 1e-23)
    assert float(rows.norm()) == 0  # the squares vanish; the norm is 1e-21
    assert float(bound_squares(rows)) >= float(rows.double().square().sum())
    assert max(added(MaterializedGradients(torch.zeros(1), {"w": rows}), 1e-15)) <= 1e-15
    tape = per_example_gradients(ranking(784), ranked, pairs(784) * 1e-18, engine="book-keeping")
    assert max(added(tape, 1e-15)) <= 1e-15 * ROUNDED_ONCE[torch.float32]


def test_estimates_of_nothing_are_nothing():
    """Comparisons between engines see zeros where gradients are zero; bounds allow for what may have vanished."""
    for engine in ("book-keeping", "functional"):
        tape = per_example_gradients(
            nn.Linear(784, 9), lambda m, x: 0.0 * m(x).sum(1), torch.ones(3, 784), engine=engine
        )
        assert not any(v.any() for v in tape.squared_norms(certain=False).values())
        assert all(0 < float(v.max()) < 1e-30 for v in tape.squared_norms().values())


# The rounding of a weighted sum is bounded for any input, per block; a row of weight zero adds nothing.


def bound_double_sum(examples, positions, depth):
    """By how much a sum over positions in double precision can err, in units of the largest wᵢ√Vᵢ.

    It is made ``depth`` positions at a time, and wᵢ s ≤ wᵢ√Vᵢ/√``FLOOR``."""
    pieces = max(examples / max(1, depth // positions), examples * positions / depth)
    roundings = max(depth, positions) + pieces + 5
    return roundings * unit_roundoff(torch.float64) * examples / math.sqrt(FLOOR) * 1.01


def charged(n, dtype):
    """The rounding of n additions in any order, in clips: u·√n·√(Σ_{j≤n} j²)."""
    return unit_roundoff(dtype) * math.sqrt(n) * math.sqrt(sum(j * j for j in range(1, n + 1)))


def norm(named):
    return math.sqrt(sum(float(v.double().square().sum()) for v in named.values()))


def by_example(tape, weights, start, stop):
    """Σ over the examples of what each adds alone, in float64, and how far the block's own sum is from it."""
    total = {}
    for i in range(start, stop):
        alone = torch.zeros_like(weights)
        alone[i] = weights[i]
        for name, value in tape.sum(alone).items():
            total[name] = total.get(name, 0) + value.double()
    found = tape.sum(weights, start, stop)
    return total, norm({name: found[name].double() - total[name] for name in total})


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("losses", [wave, signed])
@pytest.mark.parametrize("name", MODELS)
def test_a_block_errs_by_no_more_than_its_additions(name, losses, dtype):
    make, content = MODELS[name]
    torch.manual_seed(0)
    model = make().to(dtype)
    data = content(dtype)
    data = data if data.dtype == torch.int64 else data * 300
    for engine in ("book-keeping", "functional"):
        tape = per_example_gradients(model, first_output(losses), data, engine=engine)
        weights = Clipping(1e-3).weigh(tape.squared_norms()).weights
        for start, stop in ((0, 6), (1, 5), (3, 4), (2, 2)):
            n = stop - start
            _, error = by_example(tape, weights, start, stop)
            own = n * unit_roundoff(dtype)  # each of the n sums that are compared with was rounded once
            assert error <= 1e-3 * (charged(n, dtype) + own + 1e-6)


def test_blocks_add_up_to_the_whole():
    make, content = MODELS["convolution"]
    tape = per_example_gradients(make().double(), wave, content(torch.float64), engine="book-keeping")
    weights = torch.rand(6, dtype=torch.float64)
    whole, parts = tape.sum(weights), [tape.sum(weights, 0, 2), tape.sum(weights, 2, 3), tape.sum(weights, 3)]
    for name, value in whole.items():
        torch.testing.assert_close(sum(p[name] for p in parts), value)


def cancelling_batch(n=64, positions=2, size=64):
    """Examples whose two positions cancel but for a small rest, each with its own large inputs."""
    generator = torch.Generator().manual_seed(0)
    a = 1e4 * torch.randn(n, 1, size, generator=generator).expand(n, positions, size).clone()
    a[:, 1] += 1e-2 * torch.randn(n, size, generator=generator)
    b = torch.ones(n, positions, 8)
    b[:, 1] = -1
    return a, b


def test_positions_that_cancel_are_summed_in_double_precision():
    term = OuterProduct(*cancelling_batch())
    n = len(term.a)
    weights = Weights.of(1 / term.bound_squares().sqrt(), torch.float32)
    exact = torch.einsum("i,ipo,ipk->ok", weights.values.double(), term.b.double(), term.a.double())
    largest = float((weights.values.double() * term.bound_squares().sqrt()).max())
    bound = largest * (charged(n, torch.float32) + bound_double_sum(n, 2, 64))
    assert float((term.sum(weights).double() - exact).norm()) <= bound
    scaled = (term.b * weights.values[:, None, None]).flatten(0, 1)  # the twin: one float32 product of everything
    steps = exact.new_zeros(exact.shape).float()
    for row, column in zip(scaled, term.a.flatten(0, 1), strict=True):
        steps = steps + row[:, None] * column[None]
    assert float((steps.double() - exact).norm()) > 1e-6 * largest
    assert float((term.sum(weights).double() - exact).norm()) < 0.01 * float((steps.double() - exact).norm())


@pytest.mark.parametrize("kind", ["plain", "opposite", "powers", "alternating", "huge"])
@pytest.mark.parametrize("name", TERMS)
def test_every_term_sums_to_its_bound(name, kind):
    generator = torch.Generator().manual_seed(1)
    term = cancelling(TERMS[name](generator, torch.float32), kind, generator)
    bound = term.bound_squares().sqrt()
    weights = Weights.of(1 / bound, torch.float32)
    rows = term.rows(0, 3).double() if isinstance(term, Recomputed) else double(term).rows(0, 3)
    exact = sum(w * r for w, r in zip(weights.values.double(), rows, strict=True))
    for one in torch.eye(3):
        alone = Weights.of(one * weights.values, torch.float32)
        assert float(term.sum(alone).double().norm()) <= ROUNDED_ONCE[torch.float32]
    assert float((term.sum(weights).double() - exact).norm()) <= charged(3, torch.float32) + 3 * 2.0**-24 + 1e-6


def double(term):
    """The same term in float64: 29 bits more than its float32 inputs need."""
    if isinstance(term, OuterProduct):
        return OuterProduct(term.a.double(), term.b.double())
    return type(term)(term.rule, term.x.double(), term.gy.double(), term.weight.double())


def test_the_double_precision_sum_is_negligible():
    assert bound_double_sum(1024, 512, 64) < 1e-6
    assert bound_double_sum(384, 4096, 64) < 1e-6
    assert bound_double_sum(384, 16, 200) < 1e-7


# rows of weight zero


@pytest.mark.parametrize("engine", ["book-keeping", "functional"])
@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("name", [n for n in MODELS if n not in ("embedding", "tied")])
@pytest.mark.parametrize("looked", [True, False])
def test_a_row_of_weight_zero_changes_no_bit_of_the_sum(name, bad, engine, looked):
    make, content = MODELS[name]
    torch.manual_seed(0)
    model, data = make(), content(torch.float32)
    sums = []
    for value in (0.5, bad):
        data[2] = value
        tape = per_example_gradients(model, first_output(wave), data, engine=engine)
        if looked:
            tape.squared_norms()
        sums.append(tape.sum(torch.tensor([0.3, 1.0, 0.0, 0.7, 0.2, 0.9])))
    for key, value in sums[0].items():
        assert bool(value.isfinite().all())
        assert torch.equal(value, sums[1][key])


def test_weights_by_parameter_and_by_example_in_blocks():
    model = nn.Linear(3, 2)
    tape = per_example_gradients(model, wave, torch.randn(4, 3), engine="book-keeping")
    ones, half = torch.ones(4), torch.full((4,), 0.5)
    named = tape.sum({"weight": ones, "bias": half}, 1, 3)
    assert torch.equal(named["weight"], tape.sum(ones, 1, 3)["weight"])
    assert torch.equal(named["bias"], tape.sum(half, 1, 3)["bias"])
    held = MaterializedGradients(tape.losses, {"w": torch.arange(4.0)[:, None]})
    assert held.sum(ones, 1, 3)["w"].tolist() == [3.0]


# the type that products are computed in


@pytest.mark.parametrize("older", [False, True])
def test_faster_products_are_switched_off_within_and_come_back(older, monkeypatch):
    before = torch.get_float32_matmul_precision()
    if older:
        monkeypatch.setattr(rounding, "list_switches", lambda: ((OlderSwitch(), "precision", ("highest",)),))
    try:
        torch.set_float32_matmul_precision("medium")
        switches = rounding.list_switches()
        chosen = [getattr(owner, name) for owner, name, _ in switches]
        assert any(value not in wanted for value, (_, _, wanted) in zip(chosen, switches, strict=True))
        with exact_products():
            assert all(getattr(owner, name) in wanted for owner, name, wanted in switches)
        assert [getattr(owner, name) for owner, name, _ in switches] == chosen
    finally:
        torch.set_float32_matmul_precision(before)


def test_autocast_does_not_reach_a_recording():
    torch.manual_seed(0)
    model, data = nn.Sequential(nn.Linear(40, 30), nn.Linear(30, 3)), torch.randn(5, 40)

    def losses(m, x):
        return F.softplus(m(x)).sum(1)

    plain = per_example_gradients(model, losses, data, engine="book-keeping")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        cast = per_example_gradients(model, losses, data, engine="book-keeping")
        norms, sums = cast.squared_norms(), cast.sum(torch.ones(5))
    for name, value in plain.sum(torch.ones(5)).items():
        assert torch.equal(sums[name], value)
        assert torch.equal(norms[name], plain.squared_norms()[name])


@pytest.mark.parametrize("n", [16, 256])
def test_additions_that_are_all_lost_are_within_the_charge(n):
    """One example at 1 and the others just too small to move it: every addition errs by nearly u."""
    rows = torch.full((n, 2), 2.0**-24 * 0.999)
    rows[0] = 1.0
    for tape in (
        MaterializedGradients(torch.zeros(n), {"w": rows}),
        per_example_gradients(nn.Linear(2, 1, bias=False), lambda m, x: m(x).squeeze(1), rows, engine="book-keeping"),
    ):
        weights = torch.ones(n)
        total, error = by_example(tape, weights, 0, n)
        assert error <= charged(n, torch.float32)  # every norm is at most √2
        assert norm(total) > 1.4


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", ["linear", "positions", "convolution", "twice", "tied", "lstm"])
def test_two_points_that_almost_cancel_stay_within_the_clip(name, dtype):
    make, content = MODELS[name]
    torch.manual_seed(0)
    model = make().to(dtype)
    other = {key: p.detach() * (1 + 2.0**-10) for key, p in model.named_parameters()}
    points = [Point(9.0), Point(-8.5, other)]
    tape = per_example_gradients(model, first_output(wave), content(dtype), engine="book-keeping", points=points)
    assert max(added(tape, 1e-3)) <= 1e-3 * ROUNDED_ONCE[dtype]
    weights = Clipping(1e-3).weigh(tape.squared_norms()).weights
    _, error = by_example(tape, weights, 0, 6)
    assert error <= 1e-3 * (charged(6, dtype) + 6 * unit_roundoff(dtype) + 1e-6)


def test_results_of_a_block_with_the_same_weights_have_their_own_rows_that_are_not_finite():
    """One tensor of weights for both: the row of weight zero that is not finite is in the second only."""
    model, x = nn.Linear(3, 2), torch.ones(2, 4, 3)
    x[1, 1] = torch.nan
    tapes = [per_example_gradients(model, lambda m, batch: m(batch).sum(1), each) for each in x]
    for tape in tapes:
        tape.squared_norms()
    weights = torch.tensor([1.0, 0.0, 1.0, 1.0], dtype=torch.float64)
    total = tapes[1].sum_block(weights, [(tapes[0], weights)])
    assert torch.equal(total["weight"], torch.full((2, 3), 6.0))
