"""Unusually built models: correct gradients or one accurate error, and the model is never left modified."""

from __future__ import annotations

import collections
import functools
import types
import warnings

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from torch.utils.checkpoint import checkpoint

from hush import UnsupportedModelError, make_plan, to_group_norm
from hush._internal.tensors import trainable
from hush.data_source import tensors_of, to_each
from hush.per_example.augmentation import Point
from hush.per_example.functional import record_one_by_one
from hush.per_example.gradients import per_example_gradients
from hush.per_example.model_checks import SMALL, _Bits, check_model
from hush.per_example.result import GradientWarning

N = 5
ENGINES = ["auto", "book-keeping", "functional"]


def data(*shape, n=N):
    return torch.randn(n, *shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


TOKENS = torch.tensor([[0, 1, 1, 2], [3, 3, 3, 3], [2, 0, 2, 0], [4, 1, 0, 2], [2, 2, 1, 1]])


def wave(model, content):
    return model(content).flatten(1).sin().sum(1)


def by_hand(model, losses, content):
    """Each example's gradient by one ordinary backward pass of the untouched model."""
    rows = []
    for i in range(len(tensors_of(content)[0])):
        single = to_each(lambda t, i=i: t[i : i + 1], content)
        found = torch.autograd.grad(losses(model, single).sum(), list(model.parameters()), allow_unused=True)
        rows.append([torch.zeros_like(p) if g is None else g for p, g in zip(model.parameters(), found, strict=True)])
    names = [name for name, _ in model.named_parameters()]
    return {name: torch.stack([row[k] for row in rows]) for k, name in enumerate(names)}


def places(model):
    """Which object stands where, under every name, and which forwards modules were given by hand."""
    found = {}
    for name, module in model.named_modules(remove_duplicate=False):
        for key, tensor in [*module._parameters.items(), *module._buffers.items()]:
            found[name, key] = id(tensor)
        found[name, "forward"] = module.__dict__.get("forward")
    return found


def right(model, content, losses=wave, engine="auto"):
    """The engine's gradients are those of ordinary backward passes, and the model is as it was."""
    expected, before = by_hand(model, losses, content), places(model)
    tape = per_example_gradients(model, losses, content, engine=engine)
    assert places(model) == before
    n = len(tape.losses)
    for i in range(n):
        found = tape.sum(torch.eye(n, dtype=torch.float64)[i])
        for name, rows in expected.items():
            torch.testing.assert_close(found[name], rows[i], rtol=1e-9, atol=1e-11)
    return tape


class Embedded(nn.Module):
    """One embedding under three names, as encoder and decoder share it."""

    def __init__(self):
        super().__init__()
        self.shared, self.head = nn.Embedding(6, 3), nn.Linear(3, 2)
        self.encoder, self.decoder = nn.ModuleDict({"embed": self.shared}), nn.ModuleDict({"embed": self.shared})

    def forward(self, tokens):
        return self.head(self.encoder["embed"](tokens).tanh() * self.decoder["embed"](tokens.flip(1)))


class TwoNames(nn.Module):
    """One recurrent layer under two names."""

    def __init__(self):
        super().__init__()
        self.first = nn.LSTM(3, 3, batch_first=True)
        self.second = self.first

    def forward(self, x):
        return self.second(self.first(x)[0])[0]


def twice():
    block = nn.Linear(3, 3)
    return nn.Sequential(block, nn.Tanh(), block)


def twice_without_a_rule():
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.matrix = nn.Parameter(0.3 * torch.randn(3, 3))

        def forward(self, x):
            return x @ self.matrix.t().exp()

    block = Odd()
    return nn.Sequential(block, nn.Tanh(), block)


SHARED = {
    "module": (twice, data(3)),
    "embedding": (Embedded, TOKENS),
    "lstm": (TwoNames, data(4, 3)),
    "no rule": (twice_without_a_rule, data(3)),
}


@pytest.mark.filterwarnings("ignore::hush.per_example.result.GradientWarning")
@pytest.mark.parametrize("engine", ["auto", "functional"])
@pytest.mark.parametrize("name", SHARED)
def test_a_module_under_two_names(name, engine):
    make, content = SHARED[name]
    torch.manual_seed(0)
    right(make().double(), content, engine=engine)


def test_a_module_under_two_names_one_by_one_and_in_a_run():
    torch.manual_seed(0)
    model = twice().double()
    expected, before = by_hand(model, wave, data(3)), places(model)
    tape = record_one_by_one(model, wave, data(3), N, [Point()])
    assert places(model) == before
    for name, rows in expected.items():
        torch.testing.assert_close(tape.gradients[name], rows)
    run = make_plan("dp-sgd", examples=N, batch_size=N, steps=2, noise_multiplier=1.0).start(model, wave, data(3))
    for batch in run.batches():
        run.step(batch)
    assert places(model) == before


class Stopped(Exception):
    pass


@pytest.mark.parametrize("engine", ENGINES)
def test_an_exception_leaves_the_model_as_it_was(engine):
    model = nn.Sequential(TwoNames(), nn.MultiheadAttention(3, 1, batch_first=True)).double()
    model[0].forward = types.MethodType(lambda self, x: self.second(self.first(x)[0])[0], model[0])
    before = places(model)

    def broken(m, x):
        m[0](x)
        raise Stopped

    with pytest.raises(Stopped):
        per_example_gradients(model, broken, data(4, 3), engine=engine)
    assert places(model) == before


def test_a_forward_given_by_hand_stays_and_is_used():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 3), nn.LSTM(3, 2, batch_first=True)).double()
    lstm = model[1]
    lstm.forward = types.MethodType(lambda self, x: x @ self.weight_ih_l0.t(), lstm)
    own = lstm.forward
    right(model, data(4, 3), lambda m, x: m(x).flatten(1).sin().sum(1), engine="functional")
    assert lstm.__dict__["forward"] is own


def packed(model, content):
    """A recurrent layer that reads sequences of several lengths through torch's own kernel."""
    lengths = torch.full((len(content),), 3)
    out, _ = model(pack_padded_sequence(content, lengths, batch_first=True))
    return pad_packed_sequence(out, batch_first=True)[0].flatten(1).sin().sum(1)


def test_a_recurrent_layer_that_reads_packed_sequences():
    model = nn.LSTM(3, 2, batch_first=True).double()
    expected = by_hand(model, packed, data(3, 3))
    tape = record_one_by_one(model, packed, data(3, 3), N, [Point()])
    for name, rows in expected.items():
        torch.testing.assert_close(tape.gradients[name], rows)


class SequenceFirst(nn.Module):
    def __init__(self):
        super().__init__()
        self.each, self.head = nn.Linear(3, 3), nn.Linear(3, 2)

    def forward(self, x):
        return self.head(self.each(x.transpose(0, 1)).tanh().mean(0))


@pytest.mark.parametrize("length", [2, 3, 5, 7])
def test_the_sequence_before_the_examples(length):
    model = SequenceFirst().double()
    with pytest.warns(GradientWarning, match=r"torch\.func"):
        right(model, data(length, 3))


class Assigning(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.linear, self.kind = nn.Linear(3, 2), kind
        if kind != "register":
            self.register_buffer("cache", torch.zeros(3, dtype=torch.float64))

    def forward(self, x):
        if self.kind == "register":
            self.register_buffer("cache", x.detach())
        elif self.kind == "assign":
            self.cache = x.detach().mean(0)
        else:
            self.linear.weight = nn.Parameter(self.linear.weight.detach() * 0.5)
        return self.linear(x)


@pytest.mark.filterwarnings("ignore::hush.per_example.result.GradientWarning")
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("kind", "name"), [("assign", "cache"), ("register", "cache"), ("parameter", r"linear\.weight")]
)
@pytest.mark.parametrize("n", [2, N])
def test_a_buffer_or_parameter_assigned_in_forward_is_refused(kind, name, engine, n):
    model = nn.ModuleDict({"inner": Assigning(kind)}).double()
    before = places(model)
    why = rf"{name}' of the \w+ is assigned in a training forward"
    if engine == "book-keeping" and kind == "parameter":
        why = "use engine='auto'"
    with pytest.raises(UnsupportedModelError, match=why):
        per_example_gradients(model, lambda m, x: wave(m["inner"], x), data(3)[:n], engine=engine)
    assert places(model) == before


class Checkpointed(nn.Module):
    def __init__(self, reentrant):
        super().__init__()
        self.first, self.a, self.b, self.reentrant = nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 3), reentrant

    def forward(self, x):
        return checkpoint(lambda x: self.b(self.a(x).tanh()), self.first(x), use_reentrant=self.reentrant)


def test_checkpointing_is_book_kept():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tape = right(Checkpointed(False).double(), data(3))
    assert type(tape).__name__ == "BookkeepingGradients"


@pytest.mark.filterwarnings("ignore::hush.per_example.result.GradientWarning")
@pytest.mark.parametrize("engine", ["auto", "book-keeping"])
def test_reentrant_checkpointing_is_refused(engine):
    model = Checkpointed(True).double()
    before = places(model)
    with pytest.raises(UnsupportedModelError, match="use_reentrant=False"):
        per_example_gradients(model, wave, data(3), engine=engine)
    assert places(model) == before


Pair = collections.namedtuple("Pair", "x y")


class Tokenized(collections.UserDict):
    """As a tokenizer gives a batch: a mapping whose entries are attributes too."""

    def __getattr__(self, name):
        try:
            return self.data[name]
        except KeyError:
            raise AttributeError(name) from None


class Given:
    """Data that gives its batches in a type of their own."""

    def __init__(self, make):
        self.make, self.x, self.y = make, data(3, n=12).float(), torch.arange(12) % 2

    def __len__(self):
        return 12

    def take(self, indices):
        return self.make(self.x[indices], self.y[indices])


class Items(torch.utils.data.Dataset):
    def __init__(self, given):
        self.given = given

    def __len__(self):
        return 12

    def __getitem__(self, i):
        return self.given.take(i)


TYPES = {
    "namedtuple": Pair,
    "mapping": lambda x, y: Tokenized({"x": x, "y": y}),
    "nested": lambda x, y: Tokenized({"x": x, "y": y, "both": Pair(x, {"more": [y]})}),
}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("wrap", [lambda given: given, Items])
@pytest.mark.parametrize("name", TYPES)
def test_batches_keep_their_type(name, wrap, engine):
    seen = set()

    def losses(model, content):
        seen.add(type(content))
        if name == "nested":
            assert type(content.both) is Pair
        return F.cross_entropy(model(content.x), content.y, reduction="none")

    given = Given(TYPES[name])
    plan = make_plan("dp-sgd", examples=12, batch_size=6, steps=2, noise_multiplier=1.0)
    run = plan.start(nn.Linear(3, 2), losses, wrap(given), secret=1)
    for batch in run.batches():
        run.step(batch)
    per_example_gradients(nn.Linear(3, 2), losses, given.take(torch.arange(4)), engine=engine)
    assert seen == {Pair if name == "namedtuple" else Tokenized}


def test_a_batch_that_was_given_is_not_changed():
    old = Tokenized({"x": torch.ones(2), "y": "text"})
    new = to_each(lambda t: t + 1, old)
    assert torch.equal(old.x, torch.ones(2))
    assert torch.equal(new.x, 2 * torch.ones(2))
    assert new.y == "text"


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("inside", [False, True])
def test_jitted_modules_get_a_true_sentence(inside, engine):
    scripted = torch.jit.script(nn.Linear(3, 3))
    model, name = (nn.Sequential(nn.Linear(3, 3), scripted), "layer '1'") if inside else (scripted, "the model")
    for attempt in (check_model, lambda m: per_example_gradients(m, wave, data(3).float(), engine=engine)):
        with pytest.raises(UnsupportedModelError, match=f"{name} was compiled by torch.jit"):
            attempt(model)


@pytest.mark.parametrize("way", ["function", "method"])
def test_compiled_models_are_run_as_they_were_written(way):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 2)).double()
    if way == "function":
        model = torch.compile(model, backend="eager")
    else:
        model.compile(backend="eager")
    with torch.compiler.set_stance("force_eager"):
        expected = by_hand(model, wave, data(3))
    with pytest.warns(GradientWarning):
        tape = per_example_gradients(model, wave, data(3))
    assert type(tape).__name__ == "BookkeepingGradients"
    for name, rows in expected.items():
        torch.testing.assert_close(tape.sum(torch.ones(N, dtype=torch.float64))[name], rows.sum(0))


def test_complex_parameters_get_a_true_sentence_and_complex_activations_work():
    class Complex(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.randn(3, 2, dtype=torch.complex64))

    with pytest.raises(UnsupportedModelError, match="'w'"):
        check_model(Complex())
    model = nn.Linear(3, 6).double()
    right(model, data(3), lambda m, x: torch.fft.rfft(m(x)).abs().sin().sum(1))


def recorded(model, losses, content, engine):
    if engine == "one by one":
        return record_one_by_one(model, losses, content, N, [Point()])
    return per_example_gradients(model, losses, content, engine=engine)


class Hidden(nn.Module):
    """A weight that is reached past its module."""

    def __init__(self, way):
        super().__init__()
        self.before, self.linear, self.way = nn.Linear(3, 3), nn.Linear(3, 2), way
        self.__dict__["hidden"] = self.linear.weight
        self.listed = [self.linear.weight]
        self.partly = functools.partial(F.linear, weight=self.linear.weight)

    def forward(self, x):
        x = self.before(x)
        if self.way == "partial":
            return self.partly(x) + self.linear.bias
        return F.linear(x, self.hidden if self.way == "dict" else self.listed[0], self.linear.bias)


class HiddenInOdd(Hidden):
    """The same in a module that torch.func maps by itself."""

    def forward(self, x):
        return super().forward(torch.atan2(x, self.before.weight.sum(0)))


@pytest.mark.filterwarnings("ignore::hush.per_example.result.GradientWarning")
@pytest.mark.parametrize("engine", [*ENGINES, "one by one"])
@pytest.mark.parametrize("make", [Hidden, HiddenInOdd])
@pytest.mark.parametrize("way", ["dict", "list", "partial"])
def test_a_weight_reached_past_its_module_is_refused_by_name(way, make, engine):
    model = nn.Sequential(make(way), nn.Linear(2, 2)).double()
    why = r"parameter '0\.linear\.weight' .* model\.get_submodule\('0\.linear'\)\.weight"
    if engine == "book-keeping" and (make is HiddenInOdd or way != "partial"):
        why = "use engine='auto'"
    with pytest.raises(UnsupportedModelError, match=why):
        recorded(model, wave, data(3), engine)


@pytest.mark.filterwarnings("ignore::hush.per_example.result.GradientWarning")
@pytest.mark.parametrize("engine", [*ENGINES, "one by one"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_captured_parameters_are_refused_by_name(engine, dtype):
    model = nn.Linear(3, 2).to(dtype)
    captured = list(model.parameters())

    def penalised(m, x):
        return wave(m, x) + captured[1].square().sum()

    content = data(3).to(dtype)
    with pytest.raises(UnsupportedModelError, match=r"'bias'.*model\.bias$"):
        recorded(model, penalised, content, engine)


@pytest.mark.filterwarnings("ignore::hush.per_example.result.GradientWarning")
def test_the_remedy_works():
    model = nn.Linear(3, 2).double()
    right(model, data(3), lambda m, x: wave(m, x) + m.bias.square().sum())


def test_a_captured_model_is_the_model():
    model = nn.Linear(3, 2).double()
    tape = right(model, data(3), lambda m, x: wave(model, x))
    assert type(tape).__name__ == "BookkeepingGradients"


# Checks of a model during training.


SIDE = 64  # a weight of SMALL numbers
ORDERS = {"upside down": lambda w: w.flip(0), "rolled": lambda w: w.roll(1), "transposed": lambda w: w.t()}


def losses(model, content):
    return functional.cross_entropy(model(content[0]), content[1], reduction="none")


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("side", [SIDE - 1, SIDE, 2 * SIDE + 1])
def test_another_order_of_a_parameters_numbers_is_a_change(side: int, order: str) -> None:
    params = trainable(nn.Sequential(nn.Linear(3, side), nn.Linear(side, side)))
    before = _Bits.of(params)
    assert before.find_changed(params) == []
    with torch.no_grad():
        params["1.weight"].copy_(ORDERS[order](params["1.weight"]).clone())
    assert before.find_changed(params) == ["1.weight"]


def test_a_large_weight_turned_around_between_two_steps_is_noticed(tmp_path) -> None:
    assert SIDE * SIDE >= SMALL
    x, y = torch.randn(24, SIDE, generator=torch.Generator().manual_seed(1)), torch.arange(24) % 3
    plan = make_plan("dp-sgd", examples=24, batch_size=6, steps=3, noise_multiplier=1.0)
    run = plan.start(nn.Linear(SIDE, SIDE), losses, (x, y), secret=1)
    run.step(run.batch(0))
    run.model.weight.data.copy_(run.model.weight.data.flip(0))
    with pytest.raises(UnsupportedModelError, match="'weight'"):
        run.step(run.batch(1))
    with pytest.raises(UnsupportedModelError, match="'weight'"):
        run.release(tmp_path / "release")


# BatchNorm replaced by GroupNorm: outputs depend on one example only, and the model can be trained.


WIDTHS = (4, 8, 16, 32, 64)
ROWS = 24


def draw(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1))


def of_rows(width: int) -> tuple[nn.Module, Tensor]:
    return nn.Sequential(nn.Linear(6, width), nn.BatchNorm1d(width), nn.Linear(width, 2)), draw(ROWS, 6)


def of_sequences(width: int) -> tuple[nn.Module, Tensor]:
    layers = nn.Conv1d(2, width, 3), nn.BatchNorm1d(width), nn.Flatten(), nn.Linear(4 * width, 2)
    return nn.Sequential(*layers), draw(ROWS, 2, 6)


def of_pooled_pictures(width: int) -> tuple[nn.Module, Tensor]:
    """Maps of 1 × 1, as the last ones of many networks are."""
    layers = nn.Conv2d(1, width, 3), nn.AdaptiveAvgPool2d(1), nn.BatchNorm2d(width), nn.Flatten(), nn.Linear(width, 2)
    return nn.Sequential(*layers), draw(ROWS, 1, 6, 6)


def of_pooled_volumes(width: int) -> tuple[nn.Module, Tensor]:
    layers = nn.Conv3d(1, width, 3), nn.AdaptiveAvgPool3d(1), nn.BatchNorm3d(width), nn.Flatten(), nn.Linear(width, 2)
    return nn.Sequential(*layers), draw(ROWS, 1, 3, 3, 3)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("make", [of_rows, of_sequences, of_pooled_pictures, of_pooled_volumes])
def test_outputs_vary_and_a_private_step_runs(make, width: int) -> None:
    model, x = make(width)
    model = to_group_norm(model)
    at = next(k for k, layer in enumerate(model) if isinstance(layer, nn.GroupNorm))
    sizes = model[: at + 1](x).detach().abs().round(decimals=3)
    assert len(sizes.unique()) > 2 * ROWS  # neither 0 everywhere nor ±1
    plan = make_plan("dp-sgd", examples=ROWS, batch_size=6, steps=1, noise_multiplier=1.0)
    run = plan.start(model, losses, (x, torch.arange(ROWS) % 2), secret=1)
    run.step(run.batch(0))


@pytest.mark.parametrize(
    ("layer", "groups"),
    [
        (nn.BatchNorm1d(64), 1),
        (nn.BatchNorm2d(3), 1),
        (nn.BatchNorm2d(6), 1),
        (nn.BatchNorm2d(16), 4),
        (nn.BatchNorm2d(24), 6),
        (nn.BatchNorm2d(128), 32),
        (nn.BatchNorm3d(256), 32),
        (nn.InstanceNorm2d(8, track_running_stats=True), 8),
    ],
)
def test_the_number_of_groups(layer: nn.Module, groups: int) -> None:
    assert to_group_norm(layer).num_groups == groups


def test_scale_and_shift_are_kept() -> None:
    old = nn.BatchNorm1d(8)
    nn.init.normal_(old.weight)
    new = to_group_norm(old)
    assert torch.equal(new.weight, old.weight)
    assert torch.equal(new.bias, old.bias)
