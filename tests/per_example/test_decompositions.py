"""Packed sequences: exact gradients on the fast path, and no length of an example reaches another example."""

from __future__ import annotations

import warnings

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pack_sequence, pad_packed_sequence

from hush import explain, make_plan
from hush.per_example.decompositions import PACKED
from hush.per_example.engine import verdict_of
from hush.per_example.gradients import per_example_gradients
from hush.per_example.model_rng import model_randomness
from hush.per_example.result import GradientWarning
from hush.randomness import Secret
from replay import recorded

N, STEPS = 7, 6
GENERATOR = torch.Generator().manual_seed(0)
WORDS = torch.randint(1, 20, (N, STEPS), generator=GENERATOR)
LENGTHS = torch.tensor([3, 6, 1, 2, 6, 5, 1])
LABELS = torch.arange(N) % 2


class Reader(nn.Module):
    """A classifier of packed sequences, which uses the outputs, their lengths and the last state."""

    def __init__(self, kind=nn.LSTM, change=None, **options):
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.table, self.layer = nn.Embedding(20, 4), kind(4, 5, **options)
            width, sides = options.get("proj_size", 5), 1 + options.get("bidirectional", False)
            self.head = nn.Linear(width * sides * (STEPS + 1 + options.get("num_layers", 1)) + 1, 2)
        self.first, self.change = options.get("batch_first", False), change

    def forward(self, words, lengths):
        rows = self.table(words) if self.first else self.table(words).transpose(0, 1)
        packed = pack_padded_sequence(rows, lengths.cpu(), batch_first=self.first, enforce_sorted=False)
        packed, state = self.layer(packed if self.change is None else self.change(packed))
        out, counts = pad_packed_sequence(packed, batch_first=self.first, padding_value=-1.0, total_length=STEPS + 1)
        out = out if self.first else out.transpose(0, 1)
        state = state[0] if isinstance(state, tuple) else state
        return self.head(torch.cat([out.flatten(1), *state, counts[:, None].to(out.dtype)], 1))


def losses(model, content):
    return F.cross_entropy(model(*content[:2]), content[2], reduction="none")


def weighted(model, content):
    return content[3] * losses(model, content)


KINDS = [nn.LSTM, nn.GRU, nn.RNN]
OPTIONS = [{}, {"batch_first": True, "num_layers": 2, "bidirectional": True}]
ALL = [(kind, options) for kind in KINDS for options in OPTIONS]
ALL += [(nn.RNN, {"nonlinearity": "relu", "bias": False}), (nn.LSTM, {"proj_size": 3, "num_layers": 2})]


@pytest.mark.parametrize(("kind", "options"), ALL)
def test_gradients_are_those_of_a_loop_over_packed_sequences(kind, options):
    model, content = Reader(kind, **options).double(), (WORDS, LENGTHS, LABELS)
    params, weights = dict(model.named_parameters()), torch.linspace(0.1, 1, N, dtype=torch.float64)
    rows = []
    for i in range(N):  # torch's own packing and kernels
        loss = losses(model, tuple(t[i : i + 1] for t in content)).sum()
        rows.append(torch.autograd.grad(loss, list(params.values())))
    with warnings.catch_warnings():
        warnings.simplefilter("error", GradientWarning)
        tape = per_example_gradients(model, losses, content)
    assert (verdict_of(model, losses).engine, verdict_of(model, losses).alone) == ("book-keeping", frozenset())
    torch.testing.assert_close(tape.losses, losses(model, content).detach(), rtol=1e-12, atol=1e-14)
    for (name, mine), *each in zip(tape.sum(weights).items(), *rows, strict=True):
        right = sum(w * g for w, g in zip(weights, each, strict=True))
        torch.testing.assert_close(mine, right, rtol=1e-10, atol=1e-13, msg=name)
    squares = torch.stack([sum(g.square().sum() for g in row) for row in rows])
    ours = torch.stack(list(tape.squared_norms(certain=False).values())).sum(0)
    torch.testing.assert_close(ours, squares, rtol=1e-10, atol=1e-20)


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("engine", ["functional", "one by one"])
def test_every_engine_draws_the_same_dropout(engine):
    model = Reader(batch_first=True, num_layers=2, dropout=0.5)
    found = []
    for each in ("book-keeping", engine):
        with model_randomness(Secret.from_seed(1, "packed"), 0, torch.arange(N), torch.device("cpu")):
            found.append(per_example_gradients(model, losses, (WORDS, LENGTHS, LABELS), engine=each).losses)
    torch.testing.assert_close(*found)


@pytest.mark.parametrize("options", [*OPTIONS, {"num_layers": 2, "dropout": 0.5}])
def test_the_length_of_one_example_leaves_the_bits_of_the_others(options):
    model, rows = Reader(**options), []
    for length in (2, 0, 1, 4, STEPS):
        lengths = LENGTHS.clone()
        lengths[3] = length
        with model_randomness(Secret.from_seed(1, "packed"), 0, torch.arange(N), torch.device("cpu")):
            tape = per_example_gradients(model, losses, (WORDS, lengths, LABELS), engine="book-keeping")
        rows.append([tape.sum(one) for one in torch.eye(N)])
    for other in rows[1:]:
        for i in range(N):
            assert all(torch.equal(rows[0][i][name], g) for name, g in other[i].items()) == (i != 3)


@pytest.mark.parametrize("arithmetic", ["rigorous", "fast"])
def test_a_run_reads_no_length(arithmetic):
    sums, releases = [], None
    for length in (2, STEPS):
        lengths = LENGTHS.clone()
        lengths[3] = length
        content = (WORDS, lengths, LABELS, (torch.arange(N) != 3).float())
        options = {"noise_multiplier": 1.0, "arithmetic": arithmetic, "accept_claimed": True}
        plan = make_plan("dp-sgd", examples=N, batch_size=N, sample_rate=1.0, steps=2, **options)
        model = Reader(batch_first=True)
        with warnings.catch_warnings():
            warnings.simplefilter("error", GradientWarning)
            found, releases = recorded(plan, model, weighted, content, given=releases)
        assert verdict_of(model, weighted).engine == "book-keeping"
        sums.append(found)
    for one, other in zip(*sums, strict=True):
        assert any(bool(g.any()) for g in one["gradient"].values())
        assert all(torch.equal(g, other["gradient"][name]) for name, g in one["gradient"].items())


def with_data(packed):
    return PackedSequence(F.dropout(packed.data, 0.0), *packed[1:])


def with_sizes(packed):
    return packed if packed.batch_sizes[0] else packed


def with_all(packed):
    return PackedSequence(packed.data * 1.0, packed.batch_sizes, packed.sorted_indices, packed.unsorted_indices)


@pytest.mark.parametrize("change", [with_data, with_sizes, with_all])
def test_what_uses_packed_data_is_computed_one_example_at_a_time_for_that_reason(change):
    model, content = Reader(nn.GRU, change), (WORDS, LENGTHS, LABELS)
    paths = explain(model, losses, content)
    assert {path.path for path in paths} == {"one by one"}
    assert PACKED in {path.reason for path in paths}
    with pytest.warns(GradientWarning):
        tape = per_example_gradients(model, losses, content)
    right = per_example_gradients(Reader(nn.GRU), losses, content)
    for name, g in tape.sum(torch.ones(N)).items():
        torch.testing.assert_close(g, right.sum(torch.ones(N))[name], rtol=1e-4, atol=1e-6)


def test_a_run_of_what_uses_packed_data_computes_one_example_at_a_time():
    def doubled(packed):
        return PackedSequence(F.relu(packed.data), *packed[1:])

    sums, releases = [], None
    for length in (2, STEPS):
        lengths = LENGTHS.clone()
        lengths[3] = length
        content = (WORDS, lengths, LABELS, (torch.arange(N) != 3).float())
        options = {"noise_multiplier": 1.0, "arithmetic": "fast", "accept_claimed": True}
        plan = make_plan("dp-sgd", examples=N, batch_size=N, sample_rate=1.0, steps=2, **options)
        model = Reader(nn.GRU, doubled, batch_first=True)
        model.table = nn.Sequential(model.table, nn.Dropout(0.5))  # drawn before the packed data are used
        with pytest.warns(GradientWarning, match="packed"):
            found, releases = recorded(plan, model, weighted, content, given=releases)
        assert verdict_of(model, weighted).engine == "one by one"
        sums.append(found)
    for one, other in zip(*sums, strict=True):
        assert any(bool(g.any()) for g in one["gradient"].values())
        assert all(torch.equal(g, other["gradient"][name]) for name, g in one["gradient"].items())


def test_outside_of_a_recording_sequences_are_packed():
    assert isinstance(pack_sequence([torch.ones(2, 1), torch.ones(1, 1)]).data, torch.Tensor)
    model = Reader()
    per_example_gradients(model, losses, (WORDS, LENGTHS, LABELS))
    assert isinstance(pack_sequence([torch.ones(2, 1), torch.ones(1, 1)]).data, torch.Tensor)
