"""A norm is never underestimated: what one example adds to a sum stays within its clip, whatever the example is."""

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from adversaries import MODELS, ROUNDED_ONCE, added, first_output, signed, wave
from torch import nn

from hush.clipping import ClippedSum, Clipping
from hush.errors import InvalidInputError
from hush.per_example import rounding, terms
from hush.per_example.gradients import per_example_gradients
from hush.per_example.result import MaterializedGradients, Weights
from hush.per_example.rounding import bound_squares, round_towards_zero

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
