"""Gradients of privacy units: book-keeping, torch.func and one backward pass per unit agree, for every layer."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from hush._internal.tensors import trainable
from hush.per_example.augmentation import Augmented, Point, _OfRows, average_rows
from hush.per_example.gradients import per_example_gradients
from hush.per_example.model_rng import model_randomness
from hush.per_example.result import GradientWarning, Weights
from hush.per_example.terms import Materialized
from hush.per_example.units import Gathered, gather_rows
from hush.privacy_unit import UnitRows, spread_rows
from hush.randomness import Secret

COUNTS, MOST = [3, 1, 2, 3], 3
ROWS = sum(COUNTS)


class Recurrent(nn.Module):
    """An LSTM, which has no rule: torch.func maps it by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.head = nn.LSTM(4, 3, batch_first=True), nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.inner(x)[0][:, -1])


class Attending(nn.Module):
    """Attention, a bare parameter that is added, and one that is copied to every row."""

    def __init__(self) -> None:
        super().__init__()
        self.places, self.token = nn.Parameter(torch.randn(4, 6)), nn.Parameter(torch.randn(1, 1, 6))
        self.layer, self.head = nn.TransformerEncoderLayer(6, 2, 8, dropout=0.0, batch_first=True), nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.cat([self.token.expand(len(x), -1, -1), x + self.places], 1)
        return self.head(self.layer(x)[:, 0])


def _image(*layers: nn.Module) -> nn.Module:
    return nn.Sequential(*layers, nn.Flatten(), nn.LazyLinear(2))


MODELS = {
    "linear": (lambda: nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 2)), (5,)),
    "linear over positions": (
        lambda: nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Flatten(), nn.Linear(12, 2)),
        (3, 5),
    ),
    "conv": (lambda: _image(nn.Conv2d(2, 3, 3, padding=1), nn.Tanh(), nn.MaxPool2d(2)), (2, 6, 6)),
    "many channels": (lambda: _image(nn.Conv2d(24, 24, 3), nn.Tanh()), (24, 3, 3)),
    "grouped conv": (lambda: _image(nn.Conv1d(4, 6, 3, groups=2), nn.Tanh()), (4, 7)),
    "transposed conv": (lambda: _image(nn.ConvTranspose2d(2, 3, 3, stride=2), nn.Tanh()), (2, 4, 4)),
    "embedding": (lambda: nn.Sequential(nn.Embedding(6, 4), nn.Flatten(), nn.Linear(16, 2)), (4,)),
    "layer norm": (lambda: nn.Sequential(nn.Linear(5, 6), nn.LayerNorm(6), nn.Linear(6, 2)), (5,)),
    "group norm": (lambda: _image(nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4), nn.Tanh()), (2, 5, 5)),
    "instance norm": (lambda: _image(nn.Conv2d(2, 4, 3), nn.InstanceNorm2d(4, affine=True), nn.Tanh()), (2, 5, 5)),
    "lstm": (Recurrent, (3, 4)),
    "attention": (Attending, (4, 6)),
}


def losses(model: nn.Module, content) -> Tensor:
    return F.cross_entropy(model(content[0]), content[1], reduction="none")


def make(name: str) -> tuple[nn.Module, tuple[Tensor, Tensor]]:
    build, shape = MODELS[name]
    with torch.random.fork_rng():
        torch.manual_seed(3)
        model = build().double()
        x = torch.randint(6, (ROWS, *shape)) if name == "embedding" else torch.randn(ROWS, *shape, dtype=torch.float64)
        y = torch.randint(2, (ROWS,))
        model(x)  # a lazy layer takes its size
    return model, (x, y)


def naive(model: nn.Module, content, at=None) -> list[dict[str, Tensor]]:
    """∇ of the mean over each unit's own rows, by plain autograd; nothing is padded."""
    found, start = [], 0
    params = trainable(model)
    given = {name: p.detach().clone() if at is None else at[name] for name, p in params.items()}
    for count in COUNTS:
        own = tuple(t[start : start + count] for t in content)
        leaves = {name: value.clone().requires_grad_() for name, value in given.items()}
        mean = F.cross_entropy(torch.func.functional_call(model, leaves, (own[0],)), own[1])
        found.append(dict(zip(leaves, torch.autograd.grad(mean, list(leaves.values())), strict=True)))
        start += count
    return found


def rows_of(tape, n: int) -> list[dict[str, Tensor]]:
    return [tape.sum(weights) for weights in torch.eye(n, dtype=torch.float64)]


@pytest.mark.filterwarnings("ignore::hush.per_example.result.GradientWarning")
@pytest.mark.parametrize("engine", ["auto", "functional", "book-keeping"])
@pytest.mark.parametrize("name", MODELS)
def test_a_units_gradient_is_that_of_the_mean_over_its_rows(name: str, engine: str) -> None:
    if engine == "book-keeping" and name == "lstm":
        pytest.skip("has no rule by itself")
    model, content = make(name)
    tape = per_example_gradients(model, average_rows(losses, MOST), spread_rows(content, COUNTS, MOST), engine=engine)
    right, own = naive(model, content), rows_of(tape, len(COUNTS))
    for found, wanted in zip(own, right, strict=True):
        for key, value in wanted.items():
            torch.testing.assert_close(found[key], value, rtol=1e-9, atol=1e-11)
    norms = tape.squared_norms()
    for key in norms:
        added = torch.stack([unit[key].square().sum() for unit in own])
        wanted = torch.stack([unit[key].square().sum() for unit in right])
        assert (norms[key] >= added * (1 - 1e-12)).all()
        torch.testing.assert_close(tape.squared_norms(certain=False)[key], wanted, rtol=1e-7, atol=1e-12)


@pytest.mark.parametrize("name", ["linear", "conv", "many channels", "embedding"])
def test_the_engines_agree_on_two_points(name: str) -> None:
    model, content = make(name)
    ahead = {key: p.detach() + 0.1 for key, p in trainable(model).items()}
    points = [Point(0.3), Point(0.7, ahead)]
    here, there = naive(model, content), naive(model, content, ahead)
    for engine in ("book-keeping", "functional"):
        given = spread_rows(content, COUNTS, MOST)
        tape = per_example_gradients(model, average_rows(losses, MOST), given, engine=engine, points=points)
        for found, a, b in zip(rows_of(tape, len(COUNTS)), here, there, strict=True):
            for key in found:
                torch.testing.assert_close(found[key], 0.3 * a[key] + 0.7 * b[key], rtol=1e-9, atol=1e-11)


def test_every_term_that_is_gathered_is_used() -> None:
    """One of the models keeps a convolution's windows: otherwise the general way would not be tested."""
    from hush.per_example.bookkeeping import record_book_keeping

    model, content = make("many channels")
    tape = record_book_keeping(
        model, average_rows(losses, MOST), spread_rows(content, COUNTS, MOST), len(COUNTS), [Point()]
    )
    assert isinstance(tape.terms["0.weight"][0], Gathered)


def test_rows_that_a_unit_does_not_have_add_exactly_nothing() -> None:
    """The same units with room for more rows: the same gradients, and other content in the room changes no bit."""
    model, content = make("linear")
    at = spread_rows(content, COUNTS, MOST)
    other = at.rows[0].clone()
    other[at.weights == 0] = 1e3
    for engine in ("book-keeping", "functional"):
        one = per_example_gradients(model, average_rows(losses, MOST), at, engine=engine)
        two = per_example_gradients(
            model, average_rows(losses, MOST), UnitRows((other, at.rows[1]), at.weights), engine=engine
        )
        for a, b in zip(rows_of(one, 4), rows_of(two, 4), strict=True):
            assert all(torch.equal(a[key], b[key]) for key in a)
        for wide in (5, 8):
            more = per_example_gradients(
                model, average_rows(losses, wide), spread_rows(content, COUNTS, wide), engine=engine
            )
            for a, b in zip(rows_of(one, 4), rows_of(more, 4), strict=True):
                for key in a:
                    torch.testing.assert_close(a[key], b[key], rtol=1e-12, atol=1e-14)


def test_a_row_that_is_not_finite_takes_its_unit_out_and_no_other() -> None:
    model, (x, y) = make("linear")
    x = x.clone()
    x[1] = torch.nan  # of the first unit
    for engine in ("book-keeping", "functional"):
        tape = per_example_gradients(
            model, average_rows(losses, MOST), spread_rows((x, y), COUNTS, MOST), engine=engine
        )
        squared = sum(tape.squared_norms().values())
        assert torch.isfinite(squared).tolist() == [False, True, True, True]
        assert all(bool(torch.isfinite(v).all()) for v in tape.sum(torch.tensor([0.0, 1, 1, 1])).values())


class Dropping(nn.Module):
    """Dropout on rows, and on a tensor that has the rows in its second dimension."""

    def __init__(self, turned: bool) -> None:
        super().__init__()
        self.first, self.second, self.turned = nn.Linear(5, 6), nn.Linear(6, 2), turned

    def forward(self, x: Tensor) -> Tensor:
        x = F.dropout(self.first(x).tanh(), 0.5, self.training)
        if self.turned:
            x = F.dropout(x.unflatten(1, (2, 3)).transpose(0, 1), 0.5, self.training).transpose(0, 1).flatten(1)
        return self.second(x)


@pytest.mark.parametrize("turned", [False, True])
def test_dropout_is_drawn_for_each_row_and_is_the_same_in_every_engine(turned: bool) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Dropping(turned).double().train()
        x, y = torch.randn(1, 5, dtype=torch.float64).repeat(ROWS, 1), torch.zeros(ROWS, dtype=torch.int64)
    secret, places = Secret.from_seed(1, "dropout"), torch.tensor([4, 0, 9, 2])
    found = {}
    for engine in ("auto", "functional", "book-keeping"):
        with model_randomness(secret, 0, places, torch.device("cpu"), MOST):
            content = spread_rows((x, y), COUNTS, MOST)
            found[engine] = rows_of(per_example_gradients(model, average_rows(losses, MOST), content, engine=engine), 4)
    for engine in ("functional", "book-keeping"):
        for a, b in zip(found["auto"], found[engine], strict=True):
            for key in a:
                torch.testing.assert_close(a[key], b[key], rtol=1e-9, atol=1e-12)
    seen: list[Tensor] = []

    def spying(model: nn.Module, content) -> Tensor:
        out = model(content[0])
        seen.append(out.detach())
        return F.cross_entropy(out, content[1], reduction="none")

    with model_randomness(secret, 0, places, torch.device("cpu"), MOST):
        per_example_gradients(model, average_rows(spying, MOST), content, engine="book-keeping")
    rows = seen[-1]
    assert len(rows) == MOST * len(COUNTS)
    assert len({tuple(row.tolist()) for row in rows}) > len(rows) // 2  # the input is one and the same


def test_a_module_that_torch_func_maps_row_by_row_draws_the_same() -> None:
    class Odd(nn.Module):
        """A function of inputs and parameters without a rule; it drops out as well."""

        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(5, 5, dtype=torch.float64))

        def forward(self, x: Tensor) -> Tensor:
            return F.dropout(torch.atan2(x, self.weight.sum(0)), 0.5, self.training)

    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(5, 5), Odd(), nn.Tanh(), nn.Linear(5, 2)).double().train()
        content = torch.randn(ROWS, 5, dtype=torch.float64), torch.zeros(ROWS, dtype=torch.int64)
    given = spread_rows(content, COUNTS, MOST)
    found = {}
    for engine in ("auto", "functional"):
        with model_randomness(Secret.from_seed(1, "odd"), 0, torch.tensor([4, 0, 9, 2]), torch.device("cpu"), MOST):
            if engine == "auto":
                with pytest.warns(GradientWarning, match="torch.func.*'1'"):
                    tape = per_example_gradients(model, average_rows(losses, MOST), given, engine=engine)
            else:
                tape = per_example_gradients(model, average_rows(losses, MOST), given, engine=engine)
        found[engine] = rows_of(tape, 4)
    for a, b in zip(found["auto"], found["functional"], strict=True):
        for key in a:
            torch.testing.assert_close(a[key], b[key], rtol=1e-9, atol=1e-12)


def test_views_are_made_of_each_row() -> None:
    def flipped(content):
        return content[0].flip(1), content[1]

    model, content = make("linear")
    given = average_rows(Augmented(losses, flipped, 2), MOST)
    assert isinstance(given, Augmented)
    assert isinstance(given.augment, _OfRows)
    tape = per_example_gradients(model, given, spread_rows(content, COUNTS, MOST))
    right = naive(model, flipped(content))
    for found, wanted in zip(rows_of(tape, 4), right, strict=True):
        for key in wanted:
            torch.testing.assert_close(found[key], wanted[key], rtol=1e-9, atol=1e-11)


def test_a_term_of_one_row_a_unit_stays_as_it_is() -> None:
    term = Materialized(torch.randn(4, 3))
    assert gather_rows(term, 4, 1, torch.zeros(3)) is term
    two = gather_rows(term, 2, 2, torch.zeros(3))
    weights = Weights.of(torch.tensor([1.0, 0.0]), torch.float32)
    assert torch.equal(two.sum(weights), term.values[0] + term.values[1])
