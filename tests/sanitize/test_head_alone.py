"""The head by rows alone, and every record by itself in the hybrid's sums, with twins as in test_alone.py."""

from __future__ import annotations

import pytest
import torch
from networks import CLASSES, CLIP, WIDTH, N, data, losses, plan
from replaced import OTHERS, Branching, Calibrating, Model, neighbours
from torch import nn

from hush.clipping import Clipping, Start
from hush.data_source import as_source
from hush.errors import UnsupportedModelError
from hush.per_example.augmentation import Augmented
from hush.per_example.chunks import Chunk
from hush.per_example.gradients import per_example_gradients
from hush.per_example.model_rng import model_randomness
from hush.per_example.result import GradientWarning, microbatch_scope
from hush.randomness import Secret
from hush.sanitize import privatised
from hush.sanitize.layer import FrozenLayer
from hush.sanitize.privatised import Hybrid
from hush.training import take_steps

ONE_BY_ONE = pytest.mark.filterwarnings("ignore::hush.per_example.result.GradientWarning")


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


STDS = {"rows": 2.0, "gradient": 0.02, "head": 0.0}


def sums_of(model, rows, loss=losses, *, in_two=True):
    """The hybrid's sums of one batch, under the noise of one secret and step."""
    model.train()
    source = as_source(data())
    query, _ = Hybrid(Clipping(0.01)).prepare(Start(model, loss, source, lambda: Secret.from_seed(0, "t"), STDS))
    places = torch.arange(N)
    piece = Chunk(places, places)
    with (
        model_randomness(Secret.from_seed(1, "t"), 0, places, torch.device("cpu")),
        torch.enable_grad(),
        microbatch_scope(piece),
    ):
        if in_two:
            return query.piece(model, loss, rows, {})
        return {"head": per_example_gradients(model, loss, rows, engine="one by one").sum(torch.ones(N))}


def are_same(one, other) -> bool:
    return all(torch.equal(one[name], other[name]) for name in one)


def test_where_nothing_passes_by_the_layer_the_sums_are_those_of_the_whole(monkeypatch) -> None:
    noise = torch.randn(N, WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    monkeypatch.setattr(privatised, "draw_noise", lambda stream, shape, device: noise)
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
    release = FrozenLayer.release
    monkeypatch.setattr(FrozenLayer, "release", lambda self, given, z: (seen.append(z), release(self, given, z))[1])
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
    for _ in take_steps(plan("sanitize-hybrid").start(model, losses, (features.to(dtype), labels), secret=3)):
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
    monkeypatch.setattr(privatised, "check_no_bypass", lambda cut, losses: None)
    one, other = (sums_of(kind(frozen=False), rows, loss) for rows in neighbours(value))
    assert name in one["head"]
    assert are_same(one["head"], other["head"])
    one, other = (sums_of(kind(frozen=False), rows, loss, in_two=False) for rows in neighbours(value))
    assert not are_same({name: one["head"][name]}, {name: other["head"][name]})


@pytest.mark.parametrize(("kind", "loss"), [(Missing, losses), (Model, older), (Keeping, losses)])
def test_what_passes_by_the_layer_is_refused_before_the_run(kind, loss) -> None:
    with pytest.raises(UnsupportedModelError):
        plan("sanitize-hybrid").start(kind(frozen=False), loss, data())


def watch_rows(monkeypatch) -> list[torch.Tensor]:
    """What reaches the noise from now on."""
    reached: list[torch.Tensor] = []
    release = FrozenLayer.release

    def watch(self, given, noise):
        reached.append(given.detach().clone())
        return release(self, given, noise)

    monkeypatch.setattr(FrozenLayer, "release", watch)
    return reached


def test_a_branch_sees_no_company_in_the_hybrid_either(monkeypatch) -> None:
    reached = watch_rows(monkeypatch)
    found = []
    for rows in neighbours():
        with pytest.warns(GradientWarning, match="RuntimeError"):
            sums_of(Branching(frozen=False), rows)
        found.append(torch.cat(reached[-N:]))
        assert all(len(each) == 1 for each in reached[-N:])
    assert torch.equal(found[0][OTHERS], found[1][OTHERS])


def test_a_clip_that_a_forward_sets_changes_nothing_that_is_released() -> None:
    model = Calibrating(frozen=False)
    with pytest.warns(GradientWarning, match="RuntimeError"):
        run = plan("sanitize-hybrid", steps=1, batch_size=N).start(model, losses, neighbours(1e6)[1], secret=3)
    with pytest.raises(UnsupportedModelError, match=r"'layer\.clip'"):
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


def test_noise_of_the_layer_is_noise_of_the_copy() -> None:
    """A layer whose own forward was put aside still releases with noise."""
    model = Model(frozen=False)
    model.layer.forward = lambda x: x
    loud = sums_of(model, data())["head"]
    assert are_same(loud, sums_of(Model(frozen=False), data())["head"])
