"""The guarantees of Source, one test per guarantee, for every kind of data."""

from __future__ import annotations

import math
from collections import UserDict, namedtuple

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import Dataset

from hush import InvalidInputError, make_plan
from hush.data_source import Tensors, as_source, list_parts, refuse_other_parts, tensors_of, to_each
from hush.errors import DataError, UnsupportedModelError

N = 11
FEATURES = torch.arange(N * 6, dtype=torch.float32).view(N, 2, 3)
LABELS = torch.arange(N) * 7


class Items(Dataset):
    """Items that are dicts, as tokenizers give them."""

    def __len__(self):
        return N

    def __getitem__(self, index):
        return {"features": FEATURES[index], "label": LABELS[index]}


class Pairs:
    """No Dataset by name: a length and items are enough."""

    def __len__(self):
        return N

    def __getitem__(self, index):
        return FEATURES[index], int(LABELS[index])


SOURCES = {"tensor": FEATURES, "tensors": (FEATURES, LABELS), "dataset": Items(), "items": Pairs()}


@pytest.fixture(params=SOURCES)
def source(request):
    return as_source(SOURCES[request.param])


def rows(source, indices):
    return tensors_of(source.take(torch.tensor(indices, dtype=torch.int64)))


def test_the_length_is_the_number_of_examples(source):
    assert len(source) == N


@pytest.mark.parametrize("empty", [FEATURES[:0], (FEATURES[:0], LABELS[:0])])
def test_no_examples_are_no_data(empty):
    with pytest.raises(InvalidInputError, match="examples"):
        as_source(empty)


@pytest.mark.parametrize("indices", [[3], [10, 0, 5], [4, 4], list(range(N))])
def test_row_j_is_example_j_in_any_order_and_company(source, indices):
    found = rows(source, indices)
    assert torch.equal(found[0], FEATURES[indices])
    if len(found) == 2:
        assert torch.equal(found[1], LABELS[indices])
    again = rows(source, indices)
    assert all(torch.equal(a, b) for a, b in zip(found, again, strict=True))


@pytest.mark.parametrize("indices", [[], [3], [10, 0, 5]])
def test_examples_lie_in_dimension_0_and_the_others_stay(source, indices):
    usual = rows(source, [0, 1])
    found = rows(source, indices)
    assert [len(t) for t in found] == [len(indices)] * len(usual)
    assert [(t.shape[1:], t.dtype) for t in found] == [(t.shape[1:], t.dtype) for t in usual]


def test_tensors_of_different_lengths_and_numbers_that_are_not_finite_are_refused():
    with pytest.raises(InvalidInputError, match=r"\[10, 11\]"):
        Tensors((FEATURES, LABELS[1:]))
    with pytest.raises(InvalidInputError, match="0"):
        Tensors((torch.tensor([1.0, float("nan")]),))
    with pytest.raises(InvalidInputError):
        as_source(3)


def test_a_function_reaches_every_tensor_and_keeps_the_shape_of_the_content():
    pair = namedtuple("pair", "x y")
    content = {"a": pair(LABELS, [FEATURES, "name"]), "b": 3}
    found = to_each(lambda t: t[:1], content)
    assert type(found["a"]) is pair
    assert found["b"] == 3
    assert found["a"].y[1] == "name"
    assert torch.equal(found["a"].x, LABELS[:1])
    assert torch.equal(found["a"].y[0], FEATURES[:1])
    assert [t.shape for t in tensors_of(content)] == [LABELS.shape, FEATURES.shape]


class Frame:
    """A table or a column as pandas has them: its items are columns."""

    shape = (N, 2)

    def __len__(self):
        return N

    def __getitem__(self, name):
        raise KeyError(name)

    def to_numpy(self):
        return FEATURES.numpy()


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ({"x": FEATURES, "y": LABELS}, "the data is a dict of Tensor, .*: give a tuple of tensors, or a Dataset whose"),
        (UserDict(x=FEATURES), "the data is a UserDict of Tensor"),
        ((Frame(), Frame()), r"the data is \(Frame, Frame\)"),
        (Frame(), "the data is a Frame"),
        ((FEATURES, LABELS.tolist()), r"the data is \(Tensor, list\)"),
        ([FEATURES, Frame(), 1, 2], r"the data is \(Tensor, Frame, int, …\)"),
    ],
)
def test_columns_are_not_taken_for_examples(data, said) -> None:
    with pytest.raises(InvalidInputError, match=said):
        as_source(data)


def test_examples_by_number_may_be_in_any_container() -> None:
    items = [(FEATURES[i], int(LABELS[i])) for i in range(N)]
    for data in (items, tuple(items), dict(enumerate(items))):
        assert torch.equal(as_source(data).take(torch.tensor([3]))[1], LABELS[3:4])


class Marked(torch.Tensor):
    """A tensor that a loss can tell from others."""


class Word(str):
    """A word that is written in one way, whatever it is."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "'word'"


ROWS = torch.zeros(2, 3)


@pytest.mark.parametrize(
    ("usual", "other"),
    [
        ((ROWS,), (ROWS.as_subclass(Marked),)),
        ({"x": ROWS, "y": ROWS}, {"y": ROWS, "x": ROWS}),
        ((ROWS, "word"), (ROWS, Word("other"))),
        ((ROWS, Word("word")), (ROWS, Word("other"))),
        ((ROWS, math.nan), (ROWS, -math.nan)),
        ((ROWS, np.float32(math.nan)), (ROWS, -np.float32(math.nan))),
    ],
)
def test_a_batch_has_nothing_that_tells_it_from_the_empty_one(usual, other) -> None:
    known = list_parts(to_each(lambda t: t[:0], usual))
    with pytest.raises((DataError, UnsupportedModelError)):
        refuse_other_parts(known, other, 2)


@pytest.mark.parametrize("thing", [None, True, 1, 1.5, 1j, "word", b"word", np.float32(1), np.str_("word"), torch.int8])
def test_what_is_the_same_in_every_batch_may_be_there(thing) -> None:
    known = list_parts((ROWS[:0], thing, {"a": Marked(ROWS[:0])}))
    refuse_other_parts(known, (ROWS, thing, {"a": Marked(ROWS)}), 2)


class Mixing(torch.Tensor):
    """A tensor that computes in its own way."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        return super().__torch_function__(func, types, args, kwargs or {})


@pytest.mark.parametrize(
    ("form", "said"),
    [
        (torch.Tensor.to_sparse, "sparse_coo"),
        (torch.Tensor.to_sparse_csr, "sparse_csr"),
        (lambda x: torch.nested.nested_tensor(list(x)), "nested"),
        (lambda x: torch.nested.nested_tensor(list(x), layout=torch.jagged), "nested.*jagged"),
        (lambda x: x.as_subclass(Mixing), "Mixing"),
        (lambda x: nn.Parameter(x.as_subclass(Mixing)), "Mixing"),
    ],
)
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors", "ignore:Sparse CSR")
def test_tensors_that_are_not_dense_or_compute_in_their_own_way_are_no_data(form, said) -> None:
    for data in (form(FEATURES[:, 0]), (LABELS, form(FEATURES[:, 0]))):
        with pytest.raises(DataError, match=said):
            as_source(data)
    assert len(as_source(nn.Parameter(FEATURES))) == N


# Data with another floating-point type than the model: one sentence before the run, only where it cannot work.


X, Y = torch.randn(24, 3, generator=torch.Generator().manual_seed(1)), torch.arange(24) % 2


def losses(model, content):
    return functional.cross_entropy(model(content[0]), content[1], reduction="none")


def squares(model, content):
    return (model(content)[:, 0] - 1) ** 2


class Turning(nn.Linear):
    """A model that takes numbers of any type."""

    def forward(self, input):
        return super().forward(input.to(self.weight.dtype))


def start(model, data, how=losses):
    plan = make_plan("dp-sgd", examples=24, batch_size=6, steps=1, noise_multiplier=1.0)
    return plan.start(model, how, data)


@pytest.mark.parametrize(
    ("model", "data", "how", "said"),
    [
        (
            nn.Linear(3, 2),
            (X.double(), Y),
            losses,
            "float64 and the model float32: .* x.to(torch.float32), or the",
        ),
        (nn.Linear(3, 2), (X.double().numpy(), Y.numpy()), losses, "float64 and the model float32"),
        (nn.Linear(3, 2).double(), (X, Y), losses, "float32 and the model float64: .* x.to(torch.float64)$"),
        (nn.Linear(3, 2), (X.half(), Y), losses, "float16 and the model float32: .* x.to(torch.float32)$"),
        (nn.Linear(3, 2), X.double(), squares, "float64 and the model float32"),
    ],
)
def test_another_type_is_named_before_the_run(model, data, how, said) -> None:
    with pytest.raises(InvalidInputError, match="the data is " + said.replace("(", r"\(").replace(")", r"\)")):
        start(model, data, how)


@pytest.mark.parametrize("model", [Turning(3, 2), nn.Sequential(nn.Dropout(0.5), Turning(3, 2))])
def test_a_model_that_turns_its_input_runs_and_nothing_of_it_is_touched(model) -> None:
    before = torch.get_rng_state()
    run = start(model, (X.double(), Y))
    assert torch.equal(torch.get_rng_state(), before)
    run.step(run.batch(0))


def test_what_fails_for_another_reason_is_left_to_its_own_words() -> None:
    start(nn.Linear(4, 2), (X.double(), Y))
