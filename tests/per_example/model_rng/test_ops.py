"""Each random operation has its distribution (a different parameter fails); unsupported operations are refused or
detected."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from scipy import stats
from torch import nn
from torch.func import vmap

from hush.errors import UnsupportedModelError
from hush.per_example.gradients import per_example_gradients
from hush.per_example.model_rng import drawing, model_randomness
from hush.per_example.model_rng.context import BatchShared, DrawLayouts, Irregular, PerExample
from hush.per_example.model_rng.numbers import LONG, ONE, Places, draw_rows
from hush.randomness import Secret
from hush.randomness.cipher import Keystream

SECRET = Secret.from_seed(4, "operations")
CPU = torch.device("cpu")
ROWS, WIDTH = 400, 101
KEY = bytes(range(32))


def drawn(make, n=ROWS, step=0):
    with model_randomness(SECRET, step, torch.arange(n), CPU), drawing(proven=False):
        return make()


def values(make):
    return drawn(make).double().flatten().numpy()


def empty(dtype=torch.float32):
    return torch.empty(ROWS, WIDTH, dtype=dtype)


CONTINUOUS = {
    "rand": (lambda: torch.rand(ROWS, WIDTH), stats.uniform(), stats.uniform(0, 1.05)),
    "rand, double": (lambda: torch.rand(ROWS, WIDTH, dtype=torch.float64), stats.uniform(), stats.uniform(0, 1.05)),
    "rand_like": (lambda: torch.rand_like(empty()), stats.uniform(), stats.uniform(-0.05, 1)),
    "uniform_": (lambda: empty().uniform_(-1, 3), stats.uniform(-1, 4), stats.uniform(-1, 4.2)),
    "randn": (lambda: torch.randn(ROWS, WIDTH), stats.norm(), stats.norm(0, 1.05)),
    "randn, double": (lambda: torch.randn(ROWS, WIDTH, dtype=torch.float64), stats.norm(), stats.norm(0, 0.95)),
    "randn_like": (lambda: torch.randn_like(empty()), stats.norm(), stats.norm(0.05)),
    "normal_": (lambda: empty().normal_(1, 2), stats.norm(1, 2), stats.norm(1, 2.1)),
    "normal of tensors": (
        lambda: torch.normal(torch.ones(ROWS, WIDTH), 2 * torch.ones(ROWS, 1)),
        stats.norm(1, 2),
        stats.norm(1, 1.9),
    ),
    "normal, a number and a tensor": (
        lambda: torch.normal(1.0, 2 * torch.ones(ROWS, WIDTH)),
        stats.norm(1, 2),
        stats.norm(1.1, 2),
    ),
    "normal, sized": (lambda: torch.normal(1.0, 2.0, (ROWS, WIDTH)), stats.norm(1, 2), stats.norm(1, 2.1)),
    "distribution": (
        lambda: torch.distributions.Normal(torch.ones(ROWS, WIDTH), 2.0).rsample(),
        stats.norm(1, 2),
        stats.norm(1, 2.1),
    ),
    "uniform distribution": (
        lambda: torch.distributions.Uniform(torch.zeros(ROWS, WIDTH), 3.0).rsample(),
        stats.uniform(0, 3),
        stats.uniform(0, 3.1),
    ),
    "exponential_": (lambda: empty().exponential_(2.0), stats.expon(0, 0.5), stats.expon(0, 0.53)),
    "cauchy_": (lambda: empty().cauchy_(1, 2), stats.cauchy(1, 2), stats.cauchy(1, 2.2)),
    "log_normal_": (lambda: empty().log_normal_(0, 0.5), stats.lognorm(0.5), stats.lognorm(0.53)),
    "rrelu": (
        lambda: -F.rrelu(-torch.ones(ROWS, WIDTH), 0.1, 0.5, training=True),
        stats.uniform(0.1, 0.4),
        stats.uniform(0.1, 0.42),
    ),
}


@pytest.mark.parametrize("name", CONTINUOUS)
def test_continuous(name):
    make, right, wrong = CONTINUOUS[name]
    found = values(make)
    assert found.size == ROWS * WIDTH
    assert stats.kstest(found, right.cdf).pvalue > 1e-3
    assert stats.kstest(found, wrong.cdf).pvalue < 1e-6
    pairs = found.reshape(ROWS, WIDTH)
    for a, b in ((pairs[:, :-1], pairs[:, 1:]), (pairs[:-1], pairs[1:])):  # neither along a row nor along the places
        assert abs(stats.spearmanr(a.ravel(), b.ravel()).statistic) < 4 / found.size**0.5


ONES = {
    "dropout": (lambda: F.dropout(torch.ones(ROWS, WIDTH), 0.3) > 0, 0.7),
    "dropout module": (lambda: nn.Dropout(0.3)(torch.ones(ROWS, WIDTH)) > 0, 0.7),
    "dropout1d": (lambda: F.dropout1d(torch.ones(ROWS, WIDTH, 2), 0.3)[..., 1] > 0, 0.7),
    "dropout2d": (lambda: F.dropout2d(torch.ones(ROWS, WIDTH, 2, 2), 0.3)[..., 1, 0] > 0, 0.7),
    "dropout3d": (lambda: F.dropout3d(torch.ones(ROWS, WIDTH, 1, 2, 2), 0.3)[..., 0, 1, 0] > 0, 0.7),
    "alpha dropout": (lambda: F.alpha_dropout(torch.ones(ROWS, WIDTH), 0.3, training=True) > 0, 0.7),
    "feature alpha dropout": (
        lambda: F.feature_alpha_dropout(torch.ones(ROWS, WIDTH, 2), 0.3, training=True)[..., 0] > 0,
        0.7,
    ),
    "native dropout": (lambda: torch.native_dropout(torch.ones(ROWS, WIDTH), 0.3, True)[0] > 0, 0.7),
    "bernoulli": (lambda: torch.bernoulli(torch.full((ROWS, WIDTH), 0.2)), 0.2),
    "bernoulli, double": (lambda: torch.bernoulli(torch.full((ROWS, WIDTH), 0.2, dtype=torch.float64)), 0.2),
    "bernoulli_": (lambda: empty().bernoulli_(0.2), 0.2),
    "bernoulli_, of whole numbers": (lambda: empty(torch.int64).bernoulli_(0.2), 0.2),
    "bernoulli_, of truth values": (lambda: empty(torch.bool).bernoulli_(0.2), 0.2),
    "bernoulli distribution": (lambda: torch.distributions.Bernoulli(torch.full((ROWS, WIDTH), 0.2)).sample(), 0.2),
    "bernoulli, never": (lambda: empty().bernoulli_(0.0), 0.0),
    "bernoulli, always": (lambda: empty().bernoulli_(1.0), 1.0),
    "gumbel": (lambda: F.gumbel_softmax(torch.tensor([0.2, 0.8]).log().expand(ROWS, WIDTH, 2), hard=True)[..., 0], 0.2),
    "randint": (lambda: torch.randint(0, 5, (ROWS, WIDTH)) == 3, 0.2),
    "randint, one bound": (lambda: torch.randint(5, (ROWS, WIDTH)) == 4, 0.2),
    "randint_like": (lambda: torch.randint_like(empty(), -2, 3) == -2, 0.2),
    "random_": (lambda: empty().random_(1, 6) == 5, 0.2),
    "random_, one bound": (lambda: empty().random_(5) == 0, 0.2),
    "random_, of bytes": (lambda: empty(torch.uint8).random_() < 64, 0.25),
    "geometric_": (lambda: empty().geometric_(0.2) == 1, 0.2),
    "geometric_, later": (lambda: empty().geometric_(0.2) == 3, 0.2 * 0.64),
}


@pytest.mark.parametrize("name", ONES)
def test_how_often(name):
    make, p = ONES[name]
    found = values(make)
    count, size = int(found.sum()), ROWS * WIDTH
    if p in (0.0, 1.0):
        assert count == p * size
        return
    assert stats.binomtest(count, size, p).pvalue > 1e-3
    assert stats.binomtest(count, size, 1.05 * p).pvalue < 1e-3


def test_dropout_scales_what_it_keeps():
    found = drawn(lambda: F.dropout(torch.ones(ROWS, WIDTH, dtype=torch.float64), 0.2))
    assert set(found.flatten().tolist()) == {0.0, 1 / 0.8}


def test_attention_drops_weights():
    eye = 100 * torch.eye(8).expand(ROWS, 1, 8, 8)

    def attention():
        return F.scaled_dot_product_attention(eye, eye, torch.eye(8).expand(ROWS, 1, 8, 8), dropout_p=0.25)

    kept = drawn(attention).diagonal(dim1=-2, dim2=-1).double().flatten()
    assert stats.binomtest(int((kept > 1).sum()), kept.numel(), 0.75).pvalue > 1e-3
    assert stats.binomtest(int((kept > 1).sum()), kept.numel(), 0.70).pvalue < 1e-3


def test_permutations_are_uniform():
    seen = [tuple(drawn(lambda: torch.randperm(3), step=step).tolist()) for step in range(1200)]
    counts = [seen.count(order) for order in sorted(set(seen))]
    assert len(counts) == 6
    assert stats.chisquare(counts).pvalue > 1e-3


REFUSED = {
    "poisson": lambda x: torch.poisson(x.abs()),
    "_standard_gamma": lambda x: torch.distributions.Gamma(x.abs() + 1, 1.0).rsample(),
    "_sample_dirichlet": lambda x: torch.distributions.Dirichlet(x.abs() + 1).rsample(),
    "multinomial": lambda x: torch.multinomial(x.abs() + 1, 1),
    "binomial": lambda x: torch.binomial(torch.ones_like(x), x.sigmoid()),
}


class Uses(nn.Module):
    def __init__(self, random):
        super().__init__()
        self.fc, self.random = nn.Linear(3, 4), random

    def forward(self, x):
        x = self.fc(x)
        return x + self.random(x.detach())


def wave(model, content):
    return model(content).flatten(1).sin().sum(1)


def piece(random, n=6, **options):
    model = Uses(random)
    with model_randomness(SECRET, 0, torch.arange(n), CPU):
        return per_example_gradients(model, wave, torch.ones(n, 3), **options)


@pytest.mark.parametrize("engine", ["auto", "book-keeping", "functional"])
@pytest.mark.parametrize("name", REFUSED)
def test_draws_whose_number_depends_on_data_are_refused(name, engine):
    with pytest.raises(
        UnsupportedModelError, match=rf"'{name}', which takes a number of random bits that depends on the data.*: "
    ):
        piece(REFUSED[name], engine=engine)


def test_a_generator_of_the_users_own_is_refused():
    own = torch.Generator()
    for draw in (
        lambda x: torch.rand(x.shape, generator=own),
        lambda x: torch.empty_like(x).normal_(generator=own),
        lambda x: x[:, torch.randperm(4, generator=own)],
    ):
        with pytest.raises(UnsupportedModelError, match="generator=…"):
            piece(draw)


def test_a_result_that_is_given_is_refused():
    with pytest.raises(UnsupportedModelError, match="out="):
        piece(lambda x: torch.rand(x.shape, out=torch.empty_like(x)))


def test_complex_numbers_are_refused():
    for draw in (torch.randn_like, torch.rand_like):
        with pytest.raises(UnsupportedModelError, match="complex64"):
            piece(lambda x, draw=draw: x + draw(x, dtype=torch.complex64).real)


def test_a_map_of_the_models_own_is_refused():
    with pytest.raises(UnsupportedModelError, match=r"torch\.func\.vmap"):
        piece(lambda x: vmap(lambda r: r * torch.rand_like(r), randomness="different")(x), engine="functional")


class Hidden(torch.autograd.Function):
    """Draws where no torch function is called from Python."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return torch.ops.aten.uniform_.default(x.clone())

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, gradient):
        return gradient


UNSEEN = {
    "an operation by its inner name": lambda x: torch.ops.aten.bernoulli(x, 0.5),
    "a function of autograd's": lambda x: Hidden.apply(x),
    "before a draw that is seen": lambda x: torch.ops.aten.bernoulli(x, 0.5) + F.dropout(x, 0.5),
}


@pytest.mark.parametrize("engine", ["auto", "book-keeping", "functional"])
@pytest.mark.parametrize("name", UNSEEN)
def test_what_is_drawn_past_us_is_noticed(name, engine):
    with pytest.raises(UnsupportedModelError):
        piece(UNSEEN[name], engine=engine)


@pytest.mark.parametrize("other", [random.random, np.random.rand])
def test_draws_that_are_not_torchs_are_refused(other):
    with pytest.raises(UnsupportedModelError, match="Python's"):
        piece(lambda x: x * other())


def test_a_count_of_draws_that_depends_on_the_batch_is_refused():
    with pytest.raises(UnsupportedModelError, match="number"):
        piece(lambda x: torch.stack([torch.rand(4) for _ in x]))


def test_a_draw_that_appears_later_in_another_shape_is_refused():
    table = []
    model = Uses(lambda x: sum(make(x) for make in table) + F.dropout(x, 0.5))
    with model_randomness(SECRET, 0, torch.arange(6), CPU):
        per_example_gradients(model, wave, torch.ones(6, 3), engine="book-keeping")
    table.append(lambda x: torch.rand(5, 4).sum(0))
    with (
        pytest.raises(UnsupportedModelError, match="0"),
        model_randomness(SECRET, 0, torch.arange(6), CPU),
    ):
        per_example_gradients(model, wave, torch.ones(6, 3), engine="book-keeping")


def test_the_callers_generator_is_left_alone():
    good, bad = Uses(lambda x: F.dropout(x, 0.5)), Uses(UNSEEN["an operation by its inner name"])
    state = torch.get_rng_state()
    with model_randomness(SECRET, 0, torch.arange(6), CPU):
        per_example_gradients(good, wave, torch.ones(6, 3))
    assert torch.equal(torch.get_rng_state(), state)
    with pytest.raises(UnsupportedModelError), model_randomness(SECRET, 0, torch.arange(6), CPU):
        per_example_gradients(bad, wave, torch.ones(6, 3))
    assert torch.equal(torch.get_rng_state(), state)


def test_kinds_come_from_two_sizes():
    two = [(0, (2, 3)), (1, (4, 2)), (2, (2, 5)), (3, ()), (4, (4, 3)), (5, (2, 2))]
    three = [(0, (3, 3)), (1, (4, 3)), (2, (2, 5)), (3, ()), (4, (6, 3)), (5, (3, 3))]
    kinds = DrawLayouts.of(two, three)
    right = {
        0: PerExample(0),
        1: PerExample(1),
        2: BatchShared((2, 5)),
        3: BatchShared(()),
        4: Irregular(),
        5: Irregular(),
    }
    assert kinds.by_number == right
    assert kinds.find(1, (7, 7), 7) == PerExample(1)  # sequences as long as the batch
    assert kinds.find(2, (2, 5), 2) == BatchShared((2, 5))  # a table as long as the batch
    for number, shape in ((0, (6, 3)), (2, (3, 5)), (9, (7, 3))):
        with pytest.raises(UnsupportedModelError, match=f"random draw {number} of a forward"):
            kinds.find(number, shape, 7)


@pytest.mark.parametrize("width", [1, 5, 64])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_a_row_is_a_function_of_its_place(width, dtype):
    whole = draw_rows(KEY, Places(np.arange(3000)), width, dtype)
    assert whole.shape == (3000, width)
    for places in ([5], [4, 5, 6], [9, 2, 7, 3], [0, 2999], [*range(0, 3000, 300)], [*range(50, 90), *range(200, 240)]):
        assert torch.equal(draw_rows(KEY, Places(np.array(places)), width, dtype), whole[places])
    assert len(set(whole[:, 0].tolist())) > 2990  # 32 bits: some pair of 3 000 may be equal
    assert not torch.equal(whole[:1], draw_rows(bytes(32), ONE, width, dtype))


def test_long_rows_are_functions_of_their_places_too():
    width = 4 * LONG + 3
    whole = draw_rows(KEY, Places(np.arange(6)), width, torch.int32)
    assert torch.equal(draw_rows(KEY, Places(np.array([4, 1])), width, torch.int32), whole[[4, 1]])


def test_rows_are_the_stream_of_the_key():
    """A row of nine 32-bit integers takes three blocks: place p those from 3p on."""
    for place, row in zip(
        [7, 1, 1000, 1001], draw_rows(KEY, Places(np.array([7, 1, 1000, 1001])), 9, torch.int32), strict=True
    ):
        stretch = np.zeros(36, np.uint8)
        Keystream(KEY, 3 * place).fill(stretch)
        assert row.numpy().tobytes() == stretch.tobytes()


def test_no_rows_and_no_columns():
    assert draw_rows(KEY, Places(np.arange(0)), 3, torch.int32).shape == (0, 3)
    assert draw_rows(KEY, Places(np.arange(4)), 0, torch.int32).shape == (4, 0)
