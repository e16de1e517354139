"""A norm is never underestimated: what one example adds to a sum stays within its clip, whatever the example is."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from hush.errors import BadInput
from hush.gradients import record, rounding, terms
from hush.gradients.convolution import Convolution, Windowed
from hush.gradients.lookup import Lookup
from hush.gradients.rounding import squares, towards_zero
from hush.gradients.tape import HeldTape, Weights
from hush.gradients.terms import Outer, Rows
from hush.queries import ClippedSum, Clipping

BLOCKS = (4, 8, 16, 32, 64)  # one of them is the width at which this processor sums
ROUNDED_ONCE = {torch.float32: 1 + 2.0**-23, torch.float64: 1 + 2.0**-40}  # the sum's own rounding is charged elsewhere


def added(tape, clip=1.0, mode="plain"):
    """The norm of what each example adds to the sum: one weight at a time, the others zero."""
    weights = Clipping(clip, mode).weigh(tape.squared_norms()).weights
    norms = []
    for i in range(len(weights)):
        alone = torch.zeros_like(weights)
        alone[i] = weights[i]
        norms.append(math.sqrt(sum(float(v.double().square().sum()) for v in tape.sum(alone).values())))
    return norms


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
    tape = record(ranking(size, dtype), ranked, pairs(size, dtype), engine="book-keeping")
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

    assert max(added(record(model, losses, content, engine="book-keeping"))) <= ROUNDED_ONCE[dtype]


def test_four_units_in_the_last_place_are_not_enough(monkeypatch):
    """The twin: with an allowance that does not grow with the length of the sum, the same test fails."""
    four = 4 * 2.0**-23
    monkeypatch.setattr(terms, "FLOOR", 0.0)
    monkeypatch.setattr(terms, "BLOCK", 1 << 30)
    monkeypatch.setattr(terms, "lost", lambda roundings, dtype: four if dtype == torch.float32 else 0.0)
    tape = record(ranking(4096), ranked, pairs(4096), engine="book-keeping")
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
        found = float(squares(rows))
        assert exact <= found <= exact * 1.0002
        assert max(added(HeldTape(torch.zeros(1), {"w": rows}), 0.5)) <= 0.5


def test_long_gradients_in_one_float32_sum_are_underestimated(monkeypatch):
    """The twin: 10⁷ numbers in one go, with the allowance that one block has."""
    monkeypatch.setattr(rounding, "_allowance", lambda size, dtype: 1032 * 2.0**-24)
    monkeypatch.setattr(rounding, "BLOCK", 1 << 30)
    worst = max(float(lanes(10**7, b).double().square().sum() / squares(lanes(10**7, b)[None])) for b in BLOCKS)
    assert worst > 1.0005


# every term, against an exact reference


def convolution(generator, dtype, *, inputs, outputs, side, kernel, stride=1, padding=0, groups=1, transposed=False):
    x = torch.randn(3, inputs, side, side, generator=generator, dtype=torch.float64).to(dtype)
    if transposed:
        weight = torch.zeros(inputs, outputs // groups, kernel, kernel, dtype=dtype)
        rule = Convolution.transpose(2, stride, padding, 0, groups, 1)
    else:
        weight = torch.zeros(outputs, inputs // groups, kernel, kernel, dtype=dtype)
        rule = Convolution.of(2, stride, padding, 1, groups, weight.shape[2:])
    gy = torch.randn(rule.forward(x, weight, None).shape, generator=generator, dtype=torch.float64).to(dtype)
    return Windowed(rule, x, gy, weight)


def outer(generator, dtype, positions, inputs, outputs):
    sides = [torch.randn(3, positions, k, generator=generator, dtype=torch.float64) for k in (inputs, outputs)]
    return Outer(*(t.to(dtype) for t in sides))


def lookup(generator, dtype):
    tokens = torch.randint(0, 3, (3, 12), generator=generator)
    return tokens, torch.randn(3, 12, 40, generator=generator, dtype=torch.float64).to(dtype)


TERMS = {
    "outer, one position": lambda g, t: outer(g, t, 1, 300, 70),
    "outer, gram": lambda g, t: outer(g, t, 3, 2500, 40),
    "outer, held": lambda g, t: outer(g, t, 40, 12, 10),
    "windows, gram": lambda g, t: convolution(g, t, inputs=40, outputs=48, side=4, kernel=3),
    "windows, gram, wide": lambda g, t: convolution(g, t, inputs=2048, outputs=2, side=2, kernel=1),
    "windows, held": lambda g, t: convolution(g, t, inputs=3, outputs=5, side=9, kernel=3, padding=1),
    "windows, strided": lambda g, t: convolution(g, t, inputs=32, outputs=40, side=6, kernel=3, stride=2, padding=1),
    "windows, grouped": lambda g, t: convolution(g, t, inputs=32, outputs=40, side=4, kernel=3, groups=2),
    "windows, transposed": lambda g, t: convolution(
        g, t, inputs=40, outputs=24, side=3, kernel=3, stride=2, transposed=True
    ),
}


def sides_of(term):
    return (term.a, term.b) if isinstance(term, Outer) else (term.x, term.gy)


def cancelling(term, kind, generator):
    """The same term with inputs made to cancel, in one of several ways."""
    left, right = (t.clone() for t in sides_of(term))
    spatial = (slice(None), slice(1, None)) if isinstance(term, Outer) else (slice(None), slice(None), slice(1, None))
    first = (slice(None), slice(0, 1)) if isinstance(term, Outer) else (slice(None), slice(None), slice(0, 1))
    if kind == "opposite":  # all positions alike, and the other side sums to almost zero
        left[spatial] = left[first]
        right[:] = right.sign() + 1e-3 * right
    elif kind == "powers":
        left *= 2.0 ** torch.randint(-12, 12, left.shape, generator=generator)
        right *= 2.0 ** torch.randint(-12, 12, right.shape, generator=generator)
    elif kind == "alternating":  # one huge entry beside many that vanish next to it
        left.mul_(2.0**-12 if left.dtype == torch.float32 else 2.0**-26)
        left.view(len(left), -1)[:, ::97] = 300.0
        right[:] = right.abs() * torch.where(torch.arange(right[0].numel()) % 2 == 0, 1.0, -1.0).view(right[0].shape)
    elif kind == "huge":
        left, right = left * 1e9, right * 1e6
    elif kind == "tiny":
        left, right = left * 1e-20, right * 1e-17
    if isinstance(term, Outer):
        return Outer(left, right)
    return Windowed(term.rule, left, right, term.weight)


def two_sum(values):
    """Exact sums along the first axis, rounded once (Shewchuk, by way of math.fsum)."""
    flat = values.reshape(len(values), -1)
    return np.array([math.fsum(column) for column in flat.T])


def two_product(a, b):
    """a·b = high + low exactly, by Dekker's splitting."""
    high = a * b
    parts = []
    for v in (a, b):
        c = v * 134217729.0
        big = c - (c - v)
        parts.append((big, v - big))
    (ah, al), (bh, bl) = parts
    return high, ((ah * bh - high) + ah * bl + al * bh) + al * bl


def exact_norm(term, i):
    """‖gᵢ‖ of what the term stands for: products and sums without any rounding but the last."""
    if isinstance(term, Outer):
        a, b = term.a[i], term.b[i]
        groups = [(a, b)]
    else:
        groups = []
        for windows, narrow in term.factors(i, i + 1, 1):
            groups += [(w.t(), v.t()) for w, v in zip(windows, narrow, strict=True)]
    total = 0.0
    for a, b in groups:
        left, right = (t.double().numpy() for t in (a, b))
        high, low = two_product(left[:, :, None], right[:, None, :])
        total += float(np.square(two_sum(np.concatenate([high, low]))).sum())
    return math.sqrt(total)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", ["plain", "opposite", "powers", "alternating", "huge", "tiny"])
@pytest.mark.parametrize("name", TERMS)
def test_every_term_bounds_its_exact_norm(name, kind, dtype):
    generator = torch.Generator().manual_seed(len(name))
    term = cancelling(TERMS[name](generator, dtype), kind, generator)
    bound = term.squares().sqrt()
    for i in range(2):
        assert exact_norm(term, i) <= float(bound[i])
    if kind == "plain":
        assert float(bound[0]) <= exact_norm(term, 0) * 1.01  # and it is close where nothing cancels


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", ["outer, gram", "outer, held", "windows, gram", "windows, held"])
def test_a_climb_towards_underestimated_norms_does_not_arrive(name, dtype):
    """Random steps that keep whatever makes the bound smaller beside the exact norm."""
    generator = torch.Generator().manual_seed(0)
    term = cancelling(TERMS[name](generator, dtype), "opposite", generator)
    best, worst = term, exact_norm(term, 0) / float(term.squares().sqrt()[0])
    for step in range(25):
        sides = [t.clone() for t in sides_of(best)]
        side = sides[step % 2].view(len(sides[step % 2]), -1)
        some = torch.randint(0, side.shape[1], (max(1, side.shape[1] // 8),), generator=generator)
        side[0, some] *= 2.0 ** torch.randint(-6, 7, some.shape, generator=generator) * (-1) ** step
        tried = Outer(*sides) if isinstance(term, Outer) else Windowed(term.rule, *sides, term.weight)
        ratio = exact_norm(tried, 0) / float(tried.squares().sqrt()[0])
        assert ratio <= 1
        if ratio > worst:
            best, worst = tried, ratio


def test_rows_and_lookups_bound_what_they_add():
    generator = torch.Generator().manual_seed(0)
    for dtype in (torch.float32, torch.float64):
        tokens, b = lookup(generator, dtype)
        b[:, ::2] = -b[:, 1::2] * (1 + 1e-6)  # positions of one token cancel
        term = Lookup.of(tokens, b, torch.Size((3, 40)))
        rows = term.rows(0, 3)
        assert torch.equal(rows, Rows(rows).rows(0, 3))
        exact = rows.double().flatten(1).square().sum(1)
        assert bool((term.squares() >= exact).all())
        assert bool((term.squares() <= exact * 1.001).all())
        assert bool((Rows(rows).squares() >= exact).all())


# the whole tape, on models with every kind of term


class Tied(nn.Module):
    """One table for reading and writing: terms of two kinds that can cancel."""

    def __init__(self):
        super().__init__()
        self.read, self.write = nn.Embedding(6, 32), nn.Linear(32, 6, bias=False)
        self.write.weight = self.read.weight

    def forward(self, tokens):
        return self.write(self.read(tokens))


class Twice(nn.Module):
    """Every layer used twice, with opposite signs."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(8, 8, 3, padding=1), nn.GroupNorm(2, 8)
        self.scale, self.linear = nn.Parameter(torch.randn(8, 1, 1)), nn.Linear(8, 8)

    def forward(self, x):
        y = self.conv(x) - self.conv(x * (1 + 2.0**-11))
        y = self.norm(y)
        y = y * self.scale - 0.999 * y * self.scale
        y = y.flatten(2).transpose(1, 2)
        return self.linear(y) - self.linear(y * 0.9999)


def wave(model, content):
    """One loss per example."""
    return model(content).flatten(1).sin().sum(1)


def signed(model, content):
    """Positions that count with opposite signs, so that their gradients cancel."""
    out = model(content).flatten(1)
    return (out * torch.where(torch.arange(out.shape[1]) % 2 == 0, 1.0, -1.0).to(out)).sum(1)


def pictures(*shape):
    return lambda dtype: torch.randn(6, *shape, generator=torch.Generator().manual_seed(0)).to(dtype)


def words(dtype):
    return torch.randint(0, 6, (6, 9), generator=torch.Generator().manual_seed(0))


MODELS = {
    "linear": (lambda: nn.Linear(50, 20), pictures(50)),
    "positions": (lambda: nn.Linear(900, 3), pictures(4, 900)),
    "many positions": (lambda: nn.Linear(9, 7), pictures(60, 9)),
    "convolution": (lambda: nn.Conv2d(32, 40, 3), pictures(32, 4, 4)),
    "grouped": (lambda: nn.Conv2d(8, 8, 3, groups=4), pictures(8, 5, 5)),
    "transposed": (lambda: nn.ConvTranspose2d(16, 24, 3, stride=2), pictures(16, 3, 3)),
    "embedding": (lambda: nn.Sequential(nn.Embedding(6, 40), nn.Linear(40, 3)), words),
    "tied": (Tied, words),
    "twice": (Twice, pictures(8, 4, 4)),
    "layer norm": (lambda: nn.LayerNorm(30), pictures(7, 30)),
    "group norm": (lambda: nn.GroupNorm(2, 6), pictures(6, 5, 5)),
    "encoder": (lambda: nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True), pictures(5, 8)),
    "lstm": (lambda: nn.LSTM(6, 5, batch_first=True), pictures(7, 6)),
}


def first_output(losses):
    def found(model, content):
        return losses(lambda c: out[0] if isinstance(out := model(c), tuple) else out, content)

    return found


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
            tape = record(model, first_output(losses), data, engine=engine)
            for mode, clip in (("plain", 1e-3), ("normalised", 1e-3)):
                bound = Clipping(clip, mode).bound
                assert max(added(tape, clip, mode)) <= bound * ROUNDED_ONCE[dtype]


# weights


def test_weights_are_rounded_towards_zero():
    values = torch.rand(10_000, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    low = towards_zero(values, torch.float32)
    assert bool((low.double() <= values).all())
    assert bool((values.float().double() > values).any())  # the twin: rounding to nearest goes above
    assert bool((low.double() >= values * (1 - 2.0**-23)).all())
    assert torch.equal(towards_zero(-values, torch.float32), -low)
    assert Weights.of(values, torch.float64).values is not low


@pytest.mark.parametrize("clip", [1e-25, 1e-16, 1e16])
def test_clips_that_float32_cannot_bound_are_refused(clip):
    with pytest.raises(BadInput, match="beyond what float32 can bound"):
        ClippedSum(clip)


def test_gradients_whose_squares_vanish_stay_within_the_smallest_clip():
    rows = torch.full((1, 10_000), 1e-23)
    assert float(rows.norm()) == 0  # the squares vanish; the norm is 1e-21
    assert float(squares(rows)) >= float(rows.double().square().sum())
    assert max(added(HeldTape(torch.zeros(1), {"w": rows}), 1e-15)) <= 1e-15
    tape = record(ranking(784), ranked, pairs(784) * 1e-18, engine="book-keeping")
    assert max(added(tape, 1e-15)) <= 1e-15 * ROUNDED_ONCE[torch.float32]
