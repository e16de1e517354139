"""The traced part before the layer: one function of one record, whatever the model's code does.

Neighbouring data sets differ in one record. Twins compute in the way that hush does not take: the model's own code on
all records in one batch, where the record does reach the rows of others.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from hush.errors import InvalidInputError, UnsupportedModelError
from hush.randomness import Secret
from hush.sanitize.front import trace_front
from hush.sanitize.layer import Sanitize
from neighbouring_records import OTHERS, REPLACED, Branching, Calibrating, Model, neighbours
from sanitized_models import FEATURES, WIDTH, N, data, losses, plan

SEEN: list[torch.Tensor] = []


class Remembering(Model):
    """Adds what the last forward left."""

    last = None

    def forward(self, x):
        seen, self.last = self.last, x.mean()
        return super().forward(x if seen is None else x + seen)


class Listing(Model):
    """Keeps all that it has met, and centres by it."""

    def __init__(self, *, frozen: bool = True) -> None:
        super().__init__(frozen=frozen)
        self.seen = []

    def forward(self, x):
        self.seen.append(x.mean())
        return super().forward(x - self.seen[0])


class Global(Model):
    """The same in a global variable."""

    def forward(self, x):
        SEEN.append(x.mean())
        return super().forward(x - SEEN[0])


class Centred(Model):
    """Centres by the batch."""

    def forward(self, x):
        return super().forward(x - x.mean() if len(x) > 1 else x)


class Drawing(Model):
    """Draws in evaluation too; dropout and noise."""

    def forward(self, x):
        return super().forward(nn.functional.dropout(x, 0.3, True) + torch.rand(len(x), FEATURES))


class DrawingFromNumpy(Model):
    def forward(self, x):
        return super().forward(x * np.random.rand())


class DrawingElsewhere(Model):
    """From a generator of its own."""

    def __init__(self, *, frozen: bool = True) -> None:
        super().__init__(frozen=frozen)
        self.generator = torch.Generator().manual_seed(0)

    def forward(self, x):
        return super().forward(x + torch.rand(len(x), FEATURES, generator=self.generator))


class Counting(Model):
    """Keeps the largest number it has met, in a buffer."""

    def __init__(self, *, frozen: bool = True) -> None:
        super().__init__(frozen=frozen)
        self.register_buffer("largest", torch.ones(()))

    def forward(self, x):
        self.largest.copy_(torch.maximum(self.largest, x.max().round()))
        return super().forward(x / self.largest)


class Writing(Model):
    """Changes its input."""

    def forward(self, x):
        return super().forward(x.mul_(2))


class Squeezing(Model):
    def forward(self, x):
        return super().forward(x.unsqueeze(1).squeeze())


class Twice(Model):
    def forward(self, x):
        return self.head(self.layer(self.front(x)) + self.layer(self.front(-x)))


class Folded(Model):
    """Two rows of the layer for each example."""

    def __init__(self, *, frozen: bool = True) -> None:
        super().__init__(frozen=frozen)
        self.front = nn.Linear(FEATURES // 2, WIDTH).requires_grad_(not frozen)

    def forward(self, x):
        rows = self.layer(self.front(x.reshape(-1, FEATURES // 2)))
        return self.head(rows.reshape(len(x), 2, WIDTH).sum(1))


class Unused(Model):
    def forward(self, x):
        return self.head(self.front(x))


class Tied(Model):
    """The head learns a weight that the front uses without a gradient."""

    def __init__(self, *, frozen: bool = True) -> None:
        super().__init__(frozen=frozen)
        self.head = nn.Linear(FEATURES, WIDTH)

    def forward(self, x):
        return self.layer(nn.functional.linear(x, self.head.weight.detach())) @ self.head.weight[:, :3]


class Deep(nn.Sequential):
    """Convolution, normalisation within a record, pooling, dropout: layers that act differently in training."""

    def __init__(self) -> None:
        layers = [nn.Unflatten(1, (1, 8, 8)), nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(inplace=True)]
        layers += [nn.MaxPool2d(2), nn.Dropout(0.5), nn.Flatten()]
        super().__init__(*layers, Sanitize(0.5, 1.0), nn.Linear(36, 3))


def released(model, rows) -> torch.Tensor:
    run = plan().start(model, losses, rows, secret=3)
    return run._summing._source.part.release(Secret(bytes(range(32))))["rows"]


def in_one_batch(model, rows) -> torch.Tensor:
    """The way that hush does not take."""
    reached = []
    hook = model.layer.register_forward_pre_hook(lambda module, given: reached.append(given[0]))
    with torch.no_grad(), torch.random.fork_rng():
        torch.manual_seed(0)
        model.eval()(rows[0].clone())
    hook.remove()
    return model.layer.bound(reached[-1])


@pytest.mark.parametrize("kind", [Remembering, Listing, Global, Centred, Drawing, DrawingFromNumpy])
def test_a_record_is_in_no_other_row(kind) -> None:
    SEEN.clear()
    if kind is DrawingFromNumpy:
        np.random.seed(0)
    one = released(kind(), neighbours()[0])
    SEEN.clear()
    if kind is DrawingFromNumpy:
        np.random.seed(0)
    other = released(kind(), neighbours()[1])
    assert torch.equal(one[OTHERS], other[OTHERS])


@pytest.mark.parametrize("kind", [Remembering, Listing, Global, Centred])
def test_without_the_graph_it_would_be(kind) -> None:
    rows = []
    for features in neighbours():
        SEEN.clear()
        model = kind()
        in_one_batch(model, (features[0][REPLACED:], features[1]))  # which leaves something where there is a memory
        rows.append(in_one_batch(model, features))
    assert not torch.equal(rows[0][OTHERS], rows[1][OTHERS])


def test_the_code_of_the_model_never_sees_a_record() -> None:
    """What it keeps is of the synthetic record, in a copy of the model."""
    SEEN.clear()
    run = plan().start(Global(), losses, data(), secret=3)
    traced = len(SEEN)
    run.draw_data()
    assert len(SEEN) == traced > 0
    model = Listing()
    plan().start(model, losses, data(), secret=3).draw_data()
    assert model.seen == []


def test_the_graph_has_the_bits_of_the_model() -> None:
    """One record at a time, in evaluation."""
    generator = torch.Generator().manual_seed(1)
    records = torch.randn(20, 64, generator=generator)
    model = Deep().train()
    front = trace_front(model, records)
    assert front.shape == (36,)
    assert not front.draws  # dropout does nothing in evaluation
    found = [front.graph(*front.weights, record[None])[0] for record in records]
    eager = nn.Sequential(*list(model)[:7]).eval()
    with torch.no_grad():
        assert all(torch.equal(row, eager(record[None])) for row, record in zip(found, records, strict=True))


def test_draws_are_those_of_a_public_seed_for_every_record() -> None:
    features, labels = data()
    same = torch.ones_like(features)
    run = plan().start(Drawing(), losses, (same, labels), secret=3)
    bounded = run._summing._source.part.release.__self__.compute()
    assert torch.equal(bounded, bounded[:1].expand_as(bounded))
    assert trace_front(Drawing(), features).draws


@pytest.mark.parametrize(
    ("kind", "error", "what"),
    [
        (Branching, UnsupportedModelError, "torch.export"),
        (Calibrating, UnsupportedModelError, "torch.export"),
        (DrawingElsewhere, UnsupportedModelError, "generator"),
        (Counting, UnsupportedModelError, "'largest'"),
        (Writing, UnsupportedModelError, "'x'"),
        (Twice, UnsupportedModelError, "2 times"),
        (Squeezing, InvalidInputError, r"\(5,\)"),
        (Folded, InvalidInputError, r"\(2, 5\)"),
        (Unused, InvalidInputError, "does not use"),
        (Tied, UnsupportedModelError, r"'head\.weight'"),
    ],
)
def test_what_is_no_fixed_function_of_one_record_is_refused_at_the_start(kind, error, what) -> None:
    with pytest.raises(error, match=what):
        plan().start(kind(), losses, data())


def test_the_trace_leaves_the_model_as_it_is() -> None:
    model = Drawing().train()
    model.head.eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    state = torch.get_rng_state()
    trace_front(model, data()[0])
    assert torch.equal(torch.get_rng_state(), state)
    assert (model.training, model.head.training) == (True, False)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_records_of_another_shape_are_refused_before_the_charge() -> None:
    class Ragged(torch.utils.data.Dataset):
        def __len__(self) -> int:
            return N

        def __getitem__(self, i):
            return torch.ones(FEATURES + (i == 7)), torch.tensor(0)

    run = plan().start(Model(), losses, torch.utils.data.DataLoader(Ragged(), batch_size=1), secret=3)
    charged: list[bool] = []
    run.charged_by(lambda: charged.append(True))
    with pytest.raises(InvalidInputError):
        run.step(run.batch(0))
    assert charged == []
