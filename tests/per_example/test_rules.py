"""The guarantees of a book-keeping rule (hush.per_example.rules), one test per guarantee, for every rule."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F  # noqa: N812

import hush.per_example.bookkeeping  # noqa: F401  (its rules are registered)
from hush.per_example.rules import HANDLERS, Entry, NoLayerRule, Session, TrackedParameter
from hush.per_example.terms import Materialized

N = 4
pytestmark = pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")  # torch's, about its speed


def numbers(*shape):
    generator = torch.Generator().manual_seed(len(shape) + sum(shape))
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def tokens(*shape):
    return torch.randint(6, shape, generator=torch.Generator().manual_seed(1))


# name: function, input, parameters in the places that follow it, settings
RULES = {
    "linear": (F.linear, numbers(N, 3, 5), [numbers(2, 5), numbers(2)], {}),
    "matmul": (torch.matmul, numbers(N, 3, 5), [numbers(5, 2)], {}),
    "linear of rows": (
        lambda x, *given: F.linear(x.flatten(0, 1), *given).view(len(x), -1, 2) * 1,
        numbers(N, 3, 5),
        [numbers(2, 5), numbers(2)],
        {},
    ),
    "layer norm of rows": (
        lambda x, *given: F.layer_norm(x.flatten(0, 1), (5,), *given).view(x.shape) * 1,
        numbers(N, 3, 5),
        [numbers(5), numbers(5) + 1],
        {},
    ),
    "addmm of rows": (
        lambda x, weight, bias: torch.addmm(bias, x.flatten(0, 1), weight).view(len(x), -1, 2) * 1,
        numbers(N, 3, 5),
        [numbers(5, 2), numbers(2)],
        {},
    ),
    "baddbmm": (lambda x, bias: torch.baddbmm(bias, x, x.transpose(1, 2)), numbers(N, 3, 5), [numbers(3, 3)], {}),
    "a product from the left": (lambda x, weight: weight @ x, numbers(N, 3, 5), [numbers(2, 3)], {}),
    "a product with many matrices": (torch.matmul, numbers(N, 2, 3, 5), [numbers(2, 5, 2)], {}),
    "einsum, product": (lambda x, w: torch.einsum("npi,io->npo", x, w), numbers(N, 3, 5), [numbers(5, 2)], {}),
    "einsum, transposed": (lambda x, w: torch.einsum("npi,oi->npo", x, w), numbers(N, 3, 5), [numbers(2, 5)], {}),
    "einsum": (
        lambda x, w: torch.einsum("npi,hip->nhi", x, w).contiguous(),
        numbers(N, 3, 5),
        [numbers(2, 5, 3)],
        {},
    ),
    "einsum, any dimensions": (
        lambda x, w: torch.einsum("... i, io -> ... o", x, w) * 1,
        numbers(N, 3, 5),
        [numbers(5, 2)],
        {},
    ),
    "learned mask": (
        lambda x, mask: F.scaled_dot_product_attention(x, x, x, mask) * 1,
        numbers(N, 2, 3, 5),
        [numbers(1, 2, 3, 3)],
        {},
    ),
    "where": (lambda x, p: x + torch.where(x > 0, p, 0.0), numbers(N, 3, 5), [numbers(1, 3, 5)], {}),
    "masked": (lambda x, p: x + p.masked_fill(x > 0, 0.0), numbers(N, 3, 5), [numbers(1, 3, 5)], {}),
    "expand": (lambda x, p: x + p.expand(len(x), -1, -1), numbers(N, 3, 5), [numbers(1, 3, 5)], {}),
    "expand as": (lambda x, p: x + p.expand_as(x), numbers(N, 3, 5), [numbers(3, 5)], {}),
    "repeat": (lambda x, p: x + p.repeat(len(x), 3, 1), numbers(N, 3, 5), [numbers(1, 1, 5)], {}),
    "computed scale": (lambda x, p: x * (1 + p.exp()), numbers(N, 3, 5), [numbers(5)], {}),
    "slice": (lambda x, p: x + p[:, :3], numbers(N, 3, 5), [numbers(1, 7, 5)], {}),
    "transposed weight": (lambda x, w: x @ w.t(), numbers(N, 3, 5), [numbers(2, 5)], {}),
    "normalised weight": (
        lambda x, v, g: F.linear(x, g * v / v.norm(dim=1, keepdim=True)),
        numbers(N, 3, 5),
        [numbers(2, 5), numbers(2, 1)],
        {},
    ),
    "shared embedding": (
        lambda x, table: x + F.embedding(torch.tensor([3, 0, 3]), table),
        numbers(N, 3, 5),
        [numbers(6, 5)],
        {},
    ),
    "relative positions": (
        lambda x, table: x + F.embedding(torch.tensor([[1, 0, 2], [2, 1, 0]]), table).permute(2, 0, 1).unsqueeze(0),
        numbers(N, 4, 2, 3),
        [numbers(6, 4)],
        {},
    ),
    "conv1d": (F.conv1d, numbers(N, 4, 7), [numbers(2, 2, 3), numbers(2)], {"groups": 2, "dilation": 2}),
    "conv2d": (F.conv2d, numbers(N, 2, 6, 5), [numbers(3, 2, 3, 2), numbers(3)], {"stride": 2, "padding": 1}),
    "conv2d same": (F.conv2d, numbers(N, 2, 6, 5), [numbers(3, 2, 2, 2), numbers(3)], {"padding": "same"}),
    "conv3d": (F.conv3d, numbers(N, 2, 3, 4, 3), [numbers(2, 2, 2, 2, 2), numbers(2)], {}),
    "transposed": (
        F.conv_transpose2d,
        numbers(N, 2, 4, 4),
        [numbers(2, 3, 3, 3), numbers(3)],
        {"stride": 2, "padding": 1, "output_padding": 1},
    ),
    "conv2d channels last": (
        F.conv2d,
        numbers(N, 2, 7, 5).contiguous(memory_format=torch.channels_last),
        [numbers(3, 2, 3, 2), numbers(3)],
        {"stride": 2, "padding": 1, "dilation": 2},
    ),
    "embedding": (F.embedding, tokens(N, 5), [numbers(6, 3)], {"padding_idx": 2}),
    "embedding bag": (F.embedding_bag, tokens(N, 5), [numbers(6, 3)], {"padding_idx": 2}),
    "embedding bag, sum": (F.embedding_bag, tokens(N, 5), [numbers(6, 3)], {"mode": "sum"}),
    "embedding bag, maximum": (F.embedding_bag, tokens(N, 5), [numbers(6, 3)], {"mode": "max"}),
    "prelu": (F.prelu, numbers(N, 3, 5), [numbers(3)], {}),
    "prelu, one slope": (F.prelu, numbers(N, 5), [numbers(1)], {}),
    "bilinear": (
        lambda x, *given: F.bilinear(x, x.cos(), *given) * 1,
        numbers(N, 3, 5),
        [numbers(2, 5, 5), numbers(2)],
        {},
    ),
    "lstm cell": (
        lambda x, *given: torch.cat(torch.lstm_cell(x, (x[:, :2], x[:, 1:3]), *given), 1),
        numbers(N, 5),
        [numbers(8, 5), numbers(8, 2), numbers(8), numbers(8) + 1],
        {},
    ),
    "gru cell": (
        lambda x, *given: torch.gru_cell(x, x[:, :2], *given),
        numbers(N, 5),
        [numbers(6, 5), numbers(6, 2), numbers(6), numbers(6) + 1],
        {},
    ),
    "rnn cell": (
        lambda x, *given: torch.rnn_relu_cell(x, x[:, :2], *given),
        numbers(N, 5).abs(),
        [numbers(2, 5).abs(), numbers(2, 2).abs()],
        {},
    ),
    "rnn cell, tanh": (
        lambda x, *given: torch.rnn_tanh_cell(x, x[:, :2], *given),
        numbers(N, 5),
        [numbers(2, 5), numbers(2, 2)],
        {},
    ),
    "add": (torch.add, numbers(N, 3, 5), [numbers(3, 5)], {}),
    "mul": (torch.mul, numbers(N, 3, 5), [numbers(5)], {}),
}
NORMS = {
    "layer norm": (F.layer_norm, numbers(N, 3, 5), {"normalized_shape": (5,)}, (5,), True),
    "group norm": (F.group_norm, numbers(N, 6, 5), {"num_groups": 3}, (6,), True),
    "instance norm": (F.instance_norm, numbers(N, 6, 5), {}, (6,), True),
    "rms norm": (F.rms_norm, numbers(N, 3, 5), {"normalized_shape": (5,)}, (5,), False),
}
for name, (function, x, settings, shape, shifts) in NORMS.items():
    named = {"weight": numbers(*shape)} | ({"bias": numbers(*shape) + 1} if shifts else {})
    RULES[name] = (function, x, [], settings | named)


def split(case):
    """The function of an input and parameters by name, and those."""
    function, x, positional, settings = RULES[case]
    params = dict(enumerate(positional)) | {k: v for k, v in settings.items() if isinstance(v, torch.Tensor)}
    rest = {k: v for k, v in settings.items() if not isinstance(v, torch.Tensor)}

    def call(x, given):
        extra = {k: v for k, v in given.items() if isinstance(k, str)}
        return function(x, *(given[i] for i in range(len(positional))), **extra, **rest)

    return call, x, params


def recorded(case, x, n=N):
    """The output, the input's gradient, and each parameter's entry with the terms that one backward left."""
    call, _, params = split(case)
    session = Session(n, torch.zeros(0, dtype=torch.float64, requires_grad=True))
    entries = {name: Entry(str(name), p, session) for name, p in params.items()}
    x = x.clone().requires_grad_(x.is_floating_point())
    out = call(x, {name: TrackedParameter.of(entry) for name, entry in entries.items()})
    inputs = [session.anchor, *([x] if x.requires_grad else []), *(leaf for _, leaf in session.leaves)]
    _, *found = torch.autograd.grad(out, inputs, upstream(out), allow_unused=True)
    gx = found.pop(0) if x.requires_grad else None
    for (entry, _), gradient in zip(session.leaves, found, strict=True):
        entry.leave(Materialized(gradient.reshape(n, *entry.value.shape)))
    session.settle()
    rows = {name: sum(term.rows(0, n) for term in entry.terms) for name, entry in entries.items() if entry.terms}
    return out, gx, rows


def upstream(out):
    """Another gradient at every number of the output."""
    return torch.linspace(-1, 2, out.numel(), dtype=torch.float64).view_as(out)


@pytest.mark.parametrize("case", RULES)
def test_the_output_and_the_gradient_of_the_input_are_torchs(case):
    call, x, params = split(case)
    right_x = x.clone().requires_grad_(x.is_floating_point())
    right = call(right_x, params)
    out, gx, _ = recorded(case, x)
    assert torch.allclose(out, right, rtol=1e-12, atol=1e-12)
    assert (out.stride(), out._is_view()) == (right.stride(), False)  # models view it, and act on it in place
    if gx is not None:
        (right_gx,) = torch.autograd.grad(right, right_x, upstream(right))
        assert torch.allclose(gx, right_gx, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("case", RULES)
def test_row_i_of_a_term_is_the_gradient_of_example_i_alone(case):
    call, x, params = split(case)
    _, _, rows = recorded(case, x)
    assert rows.keys() == params.keys()
    whole = upstream(call(x, params))
    for i in range(N):
        leaves = {name: p.clone().requires_grad_() for name, p in params.items()}
        alone = call(x[i : i + 1], leaves)
        found = torch.autograd.grad(alone, list(leaves.values()), whole[i : i + 1])
        for name, right in zip(leaves, found, strict=True):
            assert torch.allclose(rows[name][i], right, rtol=1e-10, atol=1e-12), name
            assert float(right.abs().max()) > 1e-3  # there is something to find


@pytest.mark.parametrize("case", [case for case in RULES if case != "embedding"])
def test_a_first_dimension_that_holds_no_examples_is_not_handled(case):
    _, x, _ = split(case)
    with pytest.raises(NoLayerRule):
        recorded(case, x[: N - 1])


@pytest.mark.parametrize(
    ("case", "setting"),
    [("embedding", {"max_norm": 1.0}), ("embedding", {"scale_grad_by_freq": True})],
)
def test_a_setting_that_is_not_covered_is_not_handled(case, setting, monkeypatch):
    function, x, positional, settings = RULES[case]
    monkeypatch.setitem(RULES, case, (function, x, positional, settings | setting))
    with pytest.raises(NoLayerRule):
        recorded(case, x)


def test_a_function_of_a_parameter_and_of_examples_needs_a_rule():
    session = Session(N, torch.zeros(0, requires_grad=True))
    stand_in = TrackedParameter.of(Entry("weight", numbers(3), session))
    assert torch.atan2 not in HANDLERS
    with pytest.raises(NoLayerRule, match="'atan2'") as stop:
        torch.atan2(stand_in, numbers(N, 3))
    assert stop.value.names == ["weight"]
    with pytest.raises(NoLayerRule, match="'sin_'"):
        stand_in.sin_()


def test_what_is_computed_from_parameters_without_a_gradient_is_an_ordinary_tensor():
    session = Session(N, torch.zeros(0, requires_grad=True))
    stand_in = TrackedParameter.of(Entry("weight", numbers(3), session))
    assert type(stand_in.detach()) is torch.Tensor
    assert stand_in.double() is stand_in
    assert type(stand_in * 2) is TrackedParameter


def test_whether_a_lookup_is_shared_is_decided_once():
    """A sequence as long as a later batch is large does not become its examples."""
    known = {}

    def look_up(n):
        table = TrackedParameter.of(
            Entry("table", numbers(6, 5), Session(n, torch.zeros(0, requires_grad=True), known))
        )
        return F.embedding(torch.tensor([3, 0, 3]), table)

    assert isinstance(look_up(4), TrackedParameter)
    assert isinstance(look_up(3), TrackedParameter)
    known.clear()
    assert not isinstance(look_up(3), TrackedParameter)
