"""Every record by itself, and the head by rows alone: by construction, for models that made-up inputs say nothing of.

Each test replays a computation on two data sets that differ in one record, under the same noise; twins compute it in
the way that hush does not take, where the record does reach what it must not.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from networks import CLASSES, CLIP, FEATURES, WIDTH, N, data, losses, plan
from torch import nn
from torch.utils.data import DataLoader, Dataset

from hush.arithmetic import Piece
from hush.draws import model_randomness
from hush.errors import BadInput, Refused
from hush.gradients import GradientWarning, placing, record
from hush.gradients.points import Augmented
from hush.loop import train
from hush.queries import Clipping, Start
from hush.randomness import Secret
from hush.sanitize import Sanitize, hybrid
from hush.sanitize.accounted import Accounted
from hush.sanitize.hybrid import Hybrid
from hush.source import as_source

REPLACED = 7
OTHERS = torch.arange(N) != REPLACED
ONE_BY_ONE = pytest.mark.filterwarnings("ignore:one backward pass an example")


class Model(nn.Module):
    """A front, the layer and a head; the front does not look at the first feature."""

    def __init__(self, *, frozen: bool = True) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.front, self.layer, self.head = nn.Linear(FEATURES, WIDTH), Sanitize(CLIP, 1.0), nn.Linear(WIDTH, CLASSES)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.5)
            self.front.weight[:, 0] = 0.0
        self.front.requires_grad_(not frozen)

    def forward(self, x):
        return self.head(self.layer(self.front(x)))


class Branching(Model):
    """Bytes, or numbers up to 1."""

    def forward(self, x):
        return super().forward(x / 255 if x.max() > 100 else x)


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


class Calibrating(Model):
    """Sets the clip by what it meets."""

    def forward(self, x):
        self.layer.clip = max(CLIP, float(x.max()) / 1000)
        return super().forward(x)


class Squeezing(Model):
    def forward(self, x):
        return super().forward(x.unsqueeze(1).squeeze())


class Missing(Model):
    """The head is told that the first feature is missing."""

    def __init__(self, *, frozen: bool = True) -> None:
        super().__init__(frozen=frozen)
        self.told = nn.Parameter(torch.linspace(-1, 1, CLASSES))

    def forward(self, x):
        return super().forward(x) + self.told * (x[:, :1] == 0).to(x.dtype)


class Detour(Model):
    """For a large first feature the row's gradient goes into the head too; the row itself is the same."""

    def forward(self, x):
        h, w = self.front(x), self.head.weight.sum()
        return self.head(self.layer(h + 1e6 * (w - w.detach()) if x[0, 0] > 100 else h))


class Keeping(Model):
    """Whether there was a large number stays until there are other numbers than zeros."""

    large = None

    def forward(self, x):
        if x.any():
            self.large = (x[:, 0] > 100).any().to(x.dtype)
        return super().forward(x) + self.large * self.head.bias


class KeepingANumber(Keeping):
    """The same as a whole number."""

    def forward(self, x):
        if x.any():
            self.large = int(x[:, 0].max() > 100)
        return Model.forward(self, x) + self.large * self.head.bias


def older(model, content):
    """A weight by the first feature."""
    return losses(model, content) * torch.where(content[0][:, 0] > 65, 5.0, 1.0)


def neighbours(value: float = 500.0):
    """The data, and the same with one record replaced in its first feature."""
    features, labels = data()
    other = features.clone()
    other[REPLACED, 0] = value
    return (features, labels), (other, labels)


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
        (Counting, "'largest' of the Counting is not the same after a forward"),
        (Calibrating, "clip of the sanitisation layer was changed"),
        (Listing, "'seen' of the Listing is not the same after a forward"),
        (DrawingFromNumpy, "draw from Python's random or from numpy"),
    ],
)
def test_a_forward_that_changes_the_model_is_refused_before_anything_is_released(kind, what, monkeypatch) -> None:
    monkeypatch.setattr("hush.sanitize.rows.add_noise", lambda *given: pytest.fail("released"))
    run = plan().start(kind(), losses, neighbours(1e6)[1], secret=3)
    with pytest.raises(Refused, match=what):
        run.step(next(run.batches()))


def test_a_front_with_a_generator_of_its_own() -> None:
    with pytest.raises(Refused, match="is another every time"):
        plan().start(DrawingElsewhere(), losses, data())


@pytest.mark.parametrize("method", ["sanitize-once", "sanitize-frozen", "sanitize-hybrid"])
def test_a_front_that_needs_company(method) -> None:
    with pytest.raises(BadInput, match=r"reaches the sanitisation layer at 'layer' as \(5,\), not as \(1, 5\)"):
        plan(method).start(Squeezing(frozen=method != "sanitize-hybrid"), losses, data())


STDS = {"rows": 2.0, "gradient": 0.02, "head": 0.0}


def sums_of(model, rows, loss=losses, *, in_two=True):
    """The hybrid's sums of one batch, under the noise of one secret and step."""
    model.train()
    source = as_source(data())
    query, _ = Hybrid(Clipping(0.01)).prepare(Start(model, loss, source, lambda: Secret.from_seed(0, "t"), STDS))
    places = torch.arange(N)
    piece = Piece(places, places, ((0, N),), None)
    with (
        model_randomness(Secret.from_seed(1, "t"), 0, places, torch.device("cpu")),
        torch.enable_grad(),
        placing(piece),
    ):
        if in_two:
            return query.piece(model, loss, rows, {})
        return {"head": record(model, loss, rows, engine="one by one").sum(torch.ones(N))}


def are_same(one, other) -> bool:
    return all(torch.equal(one[name], other[name]) for name in one)


def test_where_nothing_passes_by_the_layer_the_sums_are_those_of_the_whole(monkeypatch) -> None:
    noise = torch.randn(N, WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    monkeypatch.setattr(hybrid, "draw_noise", lambda stream, shape, device: noise)
    model = Model(frozen=False)
    found = sums_of(model, data())["head"]
    model.layer.draw = lambda like: noise
    grads = torch.autograd.grad(losses(model, data()).sum(), list(model.head.parameters()))
    for (name, _), grad in zip(model.head.named_parameters(), grads, strict=True):
        assert torch.allclose(found[f"head.{name}"], grad, rtol=1e-4, atol=1e-5)


class SharedThenNone(Model):
    """One draw for all, which large records go without: the next number of theirs would be the layer's noise."""

    def forward(self, x):
        return super().forward(x if x.max() > 100 else x + torch.rand(1, WIDTH).sum())


@ONE_BY_ONE
def test_no_draw_of_a_model_moves_the_noise_or_meets_it(monkeypatch) -> None:
    seen: list[torch.Tensor] = []
    release = Accounted.release
    monkeypatch.setattr(Accounted, "release", lambda self, given, z: (seen.append(z), release(self, given, z))[1])
    rows = data()[0].clone(), data()[1]
    rows[0][5:7, 0] = 500.0
    sums_of(SharedThenNone(frozen=False), rows)
    noise = torch.cat(seen[-N:])
    assert len(noise.unique(dim=0)) == N
    sums_of(SharedThenNone(frozen=False), data())
    assert torch.equal(noise, torch.cat(seen[-N:]))


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64])
def test_other_precisions(dtype) -> None:
    features, labels = data()
    model = Model(frozen=False)
    if dtype == torch.float64:
        model.double()
    else:
        model.front = nn.Sequential(Widened(), model.front)
    for _ in train(plan("sanitize-hybrid").start(model, losses, (features.to(dtype), labels), secret=3)):
        pass
    assert all(bool(p.isfinite().all()) for p in model.parameters())


class Widened(nn.Module):
    def forward(self, x):
        return x.float()


@ONE_BY_ONE
@pytest.mark.parametrize(
    ("kind", "loss", "value", "name"),
    [
        (Missing, losses, 0.0, "told"),
        (Model, older, 500.0, "head.bias"),
        (Detour, losses, 500.0, "head.weight"),
        (Keeping, losses, 500.0, "head.bias"),
        (KeepingANumber, losses, 500.0, "head.bias"),
    ],
)
def test_the_head_sees_rows_alone(kind, loss, value, name, monkeypatch) -> None:
    """The front does not look at what is replaced: the rows are the same, and so must the head's sums be."""
    monkeypatch.setattr(hybrid, "check_nothing_passes", lambda cut, losses: None)
    one, other = (sums_of(kind(frozen=False), rows, loss) for rows in neighbours(value))
    assert name in one["head"]
    assert are_same(one["head"], other["head"])
    one, other = (sums_of(kind(frozen=False), rows, loss, in_two=False) for rows in neighbours(value))
    assert not are_same({name: one["head"][name]}, {name: other["head"][name]})


@pytest.mark.parametrize(("kind", "loss"), [(Missing, losses), (Model, older), (Keeping, losses)])
def test_what_passes_by_the_layer_is_refused_before_the_run(kind, loss) -> None:
    with pytest.raises(Refused, match="by another way than the sanitisation layer"):
        plan("sanitize-hybrid").start(kind(frozen=False), loss, data())


def watch_rows(monkeypatch) -> list[torch.Tensor]:
    """What reaches the noise from now on."""
    reached: list[torch.Tensor] = []
    release = Accounted.release

    def watch(self, given, noise):
        reached.append(given.detach().clone())
        return release(self, given, noise)

    monkeypatch.setattr(Accounted, "release", watch)
    return reached


def test_a_branch_sees_no_company_in_the_hybrid_either(monkeypatch) -> None:
    reached = watch_rows(monkeypatch)
    found = []
    for rows in neighbours():
        with pytest.warns(GradientWarning, match="one backward pass an example"):
            sums_of(Branching(frozen=False), rows)
        found.append(torch.cat(reached[-N:]))
        assert all(len(each) == 1 for each in reached[-N:])
    assert torch.equal(found[0][OTHERS], found[1][OTHERS])


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
    with pytest.raises(Refused, match="records of one shape"):
        run.step(next(run.batches()))


def test_a_clip_that_a_forward_sets_changes_nothing_that_is_released() -> None:
    model = Calibrating(frozen=False)
    with pytest.warns(GradientWarning, match="one backward pass an example"):
        run = plan("sanitize-hybrid", steps=1, batch_size=N).start(model, losses, neighbours(1e6)[1], secret=3)
    with pytest.raises(Refused, match=r"'layer.clip'.*holds other numbers after a training forward"):
        run.step(next(run.batches()))
    assert run._query.apart.layer.copy.clip == CLIP


def test_a_view_of_an_example_goes_through_the_front() -> None:
    """The gradient before the layer is that of the view, and the view is made of the example alone."""
    view = Augmented(losses, lambda content: (2 * content[0], content[1]), 1)
    rows = data()
    doubled = sums_of(Model(frozen=False), (2 * rows[0], rows[1]))
    found = sums_of(Model(frozen=False), rows, view)
    assert are_same(found["gradient"], doubled["gradient"])
    assert are_same(found["head"], doubled["head"])


CHANGES = {
    "clip": 5.0,
    "floored": True,
    "noise_multiplier": 1e-3,
    "width": 2 * WIDTH,
    "dropout": 0.5,
    "place": "before",
    "draw": torch.zeros_like,
}


@pytest.mark.parametrize("setting", sorted(CHANGES))
@pytest.mark.parametrize("method", ["sanitize", "sanitize-once", "sanitize-hybrid"])
@pytest.mark.parametrize("after", [0, 1])
def test_a_layer_that_is_changed_in_a_run(method, setting, after) -> None:
    model = Model(frozen=method == "sanitize-once")
    run = plan(method).start(model, losses, data(), secret=3)
    steps = train(run)
    for _ in range(after):
        next(steps)
    setattr(model.layer, setting, CHANGES[setting])
    with pytest.raises(Refused, match="of the sanitisation layer was changed after the run had begun"):
        next(steps)


def test_a_clip_that_follows_the_weights_and_a_dropout_that_changes() -> None:
    model = Model(frozen=False)
    run = plan("sanitize", threshold_share=0.3).start(model, losses, data(), secret=3)
    steps = train(run)
    clips = {(next(steps), model.layer.clip)[1] for _ in range(6)}  # over the end of an epoch
    assert len(clips) > 1
    model.layer.dropout = 0.5
    with pytest.raises(Refused, match="dropout of the sanitisation layer was changed"):
        next(steps)


class Quiet(Sanitize):
    def noised(self, x):
        return x


@pytest.mark.parametrize("method", ["sanitize", "sanitize-once", "sanitize-hybrid"])
def test_a_layer_of_another_kind(method) -> None:
    model = Model(frozen=method == "sanitize-once")
    model.layer = Quiet(CLIP, 1.0)
    with pytest.raises(Refused, match="Quiet is a sanitisation layer of another kind"):
        plan(method).start(model, losses, data())


def test_noise_of_the_layer_is_noise_of_the_copy() -> None:
    """A layer whose own forward was put aside still releases with noise."""
    model = Model(frozen=False)
    model.layer.forward = lambda x: x
    loud = sums_of(model, data())["head"]
    assert are_same(loud, sums_of(Model(frozen=False), data())["head"])
