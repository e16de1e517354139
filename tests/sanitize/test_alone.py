"""Every record by itself: by construction, for models that made-up inputs say nothing of.

Each test replays a computation on two data sets that differ in one record, under the same noise; twins compute it in
the way that hush does not take, where the record does reach what it must not.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from networks import FEATURES, N, data, losses, plan
from replaced import OTHERS, REPLACED, Branching, Calibrating, Model, neighbours
from torch import nn
from torch.utils.data import DataLoader, Dataset

from hush.errors import DataError, InvalidInputError, RunStateError, UnsupportedModelError


class Remembering(Model):
    """Adds what the last forward left."""

    last = None

    def forward(self, x):
        seen, self.last = self.last, x.mean()
        return super().forward(x if seen is None else x + seen)


class Flagging(Model):
    """Scales everything once it has met a large number."""

    large = False

    def forward(self, x):
        scale = 0.1 if self.large else 1.0
        self.large = self.large or bool(x.max() > 100)
        return super().forward(scale * x)


class Listing(Model):
    """Keeps all that it has met, and centres by it."""

    def __init__(self, *, frozen: bool = True) -> None:
        super().__init__(frozen=frozen)
        self.seen = []

    def forward(self, x):
        self.seen.append(x.mean())
        return super().forward(x - self.seen[0])


class DrawingFromNumpy(Model):
    """For large records alone."""

    def forward(self, x):
        return super().forward(x * np.random.rand() if x.max() > 100 else x)


class DrawingElsewhere(Model):
    """From a generator of its own."""

    def __init__(self, *, frozen: bool = True) -> None:
        super().__init__(frozen=frozen)
        self.generator = torch.Generator().manual_seed(0)

    def forward(self, x):
        return super().forward(x + torch.rand(len(x), FEATURES, generator=self.generator))


class Drawing(Model):
    """Draws twice for large records."""

    def forward(self, x):
        noise = torch.rand(len(x), FEATURES)
        return super().forward(x + torch.rand(len(x), FEATURES) if x.max() > 100 else x + noise)


class Counting(Model):
    """Keeps the largest number it has met, in a buffer."""

    def __init__(self, *, frozen: bool = True) -> None:
        super().__init__(frozen=frozen)
        self.register_buffer("largest", torch.ones(()))

    def forward(self, x):
        self.largest.copy_(torch.maximum(self.largest, x.max().round()))
        return super().forward(x / self.largest)


class Squeezing(Model):
    def forward(self, x):
        return super().forward(x.unsqueeze(1).squeeze())


def released(model, rows) -> torch.Tensor:
    run = plan().start(model, losses, rows, secret=3)
    return run._summing._source.release()


def in_company(model, rows) -> torch.Tensor:
    """The way that hush does not take: all records in one batch."""
    reached = []
    hook = model.layer.register_forward_pre_hook(lambda module, given: reached.append(given[0]))
    with torch.no_grad(), torch.random.fork_rng():
        torch.manual_seed(0)
        model.eval()(rows[0])
    hook.remove()
    return model.layer.bound(reached[-1])


@pytest.mark.parametrize("kind", [Branching, Drawing])
def test_a_record_is_in_no_other_row(kind) -> None:
    one, other = (released(kind(), rows) for rows in neighbours())
    assert torch.equal(one[OTHERS], other[OTHERS])
    one, other = (in_company(kind(), rows) for rows in neighbours())
    assert not torch.equal(one[OTHERS], other[OTHERS])


@pytest.mark.parametrize("kind", [Remembering, Flagging])
def test_what_a_forward_leaves_in_the_model_is_in_no_other_row(kind) -> None:
    one, other = (released(kind(), rows) for rows in neighbours())
    assert torch.equal(one[OTHERS], other[OTHERS])
    models = kind(), kind()  # twins, which nobody tidies up
    for model, rows in zip(models, neighbours(), strict=True):
        in_company(model, rows)
    one, other = (in_company(model, neighbours()[0]) for model in models)
    assert not torch.equal(one, other)


def test_a_row_is_what_the_record_alone_has() -> None:
    features, labels = neighbours()[1]
    rows = plan().start(Branching(), losses, (features, labels), secret=3)._summing._source
    rows.make_ready(0)
    model = Branching()
    for i in (0, REPLACED, N - 1):
        assert torch.equal(rows._bounded[i], in_company(model, (features[i : i + 1], labels))[0])


@pytest.mark.parametrize(
    ("kind", "what"),
    [
        (Counting, "'largest' of the Counting"),
        (Calibrating, "clip of the sanitisation layer was changed"),
        (Listing, "'seen' of the Listing"),
        (DrawingFromNumpy, "draw from Python's random or from numpy"),
    ],
)
def test_a_forward_that_changes_the_model_is_refused_before_anything_is_released(kind, what, monkeypatch) -> None:
    monkeypatch.setattr("hush.sanitize.privatised.add_noise", lambda *given: pytest.fail("released"))
    run = plan().start(kind(), losses, neighbours(1e6)[1], secret=3)
    with pytest.raises((UnsupportedModelError, RunStateError), match=what):
        run.step(next(run.batches()))


def test_a_front_with_a_generator_of_its_own() -> None:
    with pytest.raises(UnsupportedModelError):
        plan().start(DrawingElsewhere(), losses, data())


@pytest.mark.parametrize("method", ["sanitize-once", "sanitize-frozen", "sanitize-hybrid"])
def test_a_front_that_needs_company(method) -> None:
    with pytest.raises(
        InvalidInputError, match=r"reaches the sanitisation layer at 'layer' as \(5,\), not as \(1, 5\)"
    ):
        plan(method).start(Squeezing(frozen=method != "sanitize-hybrid"), losses, data())


class Padded(Dataset):
    """Records of several lengths, which a batch pads to the longest of its own."""

    def __init__(self, longest: int) -> None:
        self.features, self.labels = data()
        self.lengths = torch.full((N,), 3)
        self.lengths[REPLACED] = longest

    def __len__(self) -> int:
        return N

    def __getitem__(self, i):
        return self.features[i, : self.lengths[i]], self.labels[i]

    def collate(self, items):
        features = nn.utils.rnn.pad_sequence([features for features, _ in items], batch_first=True)
        return features, torch.stack([label for _, label in items])


class Pooling(Model):
    """Looks at the mean of a record, and at how long it is with its padding."""

    def forward(self, x):
        return super().forward((x.mean(1, keepdim=True) * x.shape[1]).expand(-1, FEATURES))


def load(longest: int) -> DataLoader:
    made = Padded(longest)
    return DataLoader(made, batch_size=8, collate_fn=made.collate)


def test_padding_to_a_batch_is_company_too() -> None:
    one, other = (released(Pooling(), load(longest)) for longest in (3, 6))
    assert torch.equal(one[OTHERS], other[OTHERS])
    run = plan("sanitize-hybrid", steps=1, batch_size=N).start(Pooling(frozen=False), losses, load(6), secret=3)
    with pytest.raises(DataError, match=r"content\[0\]"):
        run.step(next(run.batches()))
