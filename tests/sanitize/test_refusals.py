"""What would break a proof is refused before anything is charged or released."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

import pytest
import torch
from networks import CLASSES, CLIP, FEATURES, WIDTH, N, data, losses, network, plan
from torch import nn
from torch.nn import functional

from hush.checkpointing import Checkpoints
from hush.errors import InvalidInputError, ResumeError, RunStateError, UnsupportedModelError
from hush.per_example.augmentation import Augmented
from hush.sanitize.labels import RandomisedLabels
from hush.sanitize.layer import Sanitize, find_layer
from hush.training import take_steps

PROVEN = ("sanitize-once", "sanitize-frozen", "sanitize-hybrid")


class Model(nn.Module):
    """A front, the layer and a head, which ``forward`` of a test's own puts together."""

    def __init__(self, *, frozen: bool = False) -> None:
        super().__init__()
        self.front, self.head = nn.Linear(FEATURES, WIDTH), nn.Linear(WIDTH, CLASSES)
        self.layer = Sanitize(CLIP, 1.0)
        self.front.requires_grad_(not frozen)

    def forward(self, x):
        return self.head(self.layer(self.front(x)))


def make(kind: type[Model], method: str) -> Model:
    return kind(frozen=method != "sanitize-hybrid")


def start(method: str, model: nn.Module, *, rows=None, loss=losses, secret: int | None = 3, **changes):
    return plan(method, **changes).start(model, loss, data() if rows is None else rows, secret=secret)


class Twice(Model):
    def forward(self, x):
        return self.head(self.layer(self.front(x)) + self.layer(self.front(-x)))


class Centred(Model):
    def forward(self, x):
        return super().forward(x - x.mean(0))


class CentredInTraining(Model):
    def forward(self, x):
        return super().forward(x - x.mean(0) if self.training else x)


class Folded(Model):
    """Two rows of the layer for each example."""

    def __init__(self, *, frozen: bool = False) -> None:
        super().__init__(frozen=frozen)
        self.front = nn.Linear(FEATURES // 2, WIDTH).requires_grad_(not frozen)

    def forward(self, x):
        rows = self.layer(self.front(x.reshape(-1, FEATURES // 2)))
        return self.head(rows.reshape(len(x), 2, WIDTH).sum(1))


class Tied(Model):
    """The head learns a weight that the front uses without a gradient."""

    def __init__(self, *, frozen: bool = False) -> None:
        super().__init__(frozen=frozen)
        self.head = nn.Linear(FEATURES, WIDTH)

    def forward(self, x):
        return self.layer(functional.linear(x, self.head.weight.detach())) @ self.head.weight[:, :CLASSES]


@pytest.mark.parametrize("method", PROVEN)
def test_a_layer_that_an_example_passes_twice(method) -> None:
    with pytest.raises(UnsupportedModelError, match="2"):
        start(method, make(Twice, method))


def test_a_loss_that_sends_an_example_through_the_layer_several_times() -> None:
    views = Augmented(losses, lambda content: content, 3)
    with pytest.raises(UnsupportedModelError, match="'layer'"):
        start("sanitize-hybrid", Model(), loss=views)
    start("sanitize-hybrid", Model(), loss=Augmented(losses, lambda content: content, 1))


@pytest.mark.parametrize("method", PROVEN)
def test_a_front_that_mixes_examples(method) -> None:
    with pytest.raises(UnsupportedModelError):
        start(method, make(Centred, method))


def test_a_front_that_mixes_examples_in_training_alone() -> None:
    with pytest.raises(UnsupportedModelError):
        start("sanitize-hybrid", CentredInTraining())
    start("sanitize-once", make(CentredInTraining, "sanitize-once"))  # whose front is in evaluation


@pytest.mark.parametrize("method", PROVEN)
def test_a_layer_that_has_several_rows_of_an_example(method) -> None:
    with pytest.raises(InvalidInputError, match=r"one row for each example.*\(6, 5\)"):
        start(method, make(Folded, method))


def test_a_front_that_is_trained_without_a_gradient_of_its_own() -> None:
    with pytest.raises(UnsupportedModelError, match=r"'head\.weight'"):
        start("sanitize-once", make(Tied, "sanitize-once"))


@pytest.mark.parametrize("method", PROVEN)
def test_features_in_two_tensors(method) -> None:
    features, labels = data()
    with pytest.raises(InvalidInputError, match="3"):
        start(method, network(method), rows=(features, features, labels))


class Tokens(Model):
    """Whole numbers, which also pass by the layer where ``around``."""

    around = True

    def __init__(self, *, frozen: bool = False) -> None:
        super().__init__(frozen=frozen)
        self.front, self.side = nn.Embedding(7, WIDTH), nn.Embedding(7, CLASSES)

    def forward(self, x):
        scores = self.head(self.layer(self.front(x[:, 0])))
        return scores + self.side(x[:, 1]) if self.around else scores


def test_whole_numbers_that_pass_by_the_layer(monkeypatch) -> None:
    tokens = torch.randint(0, 7, (N, 2), generator=torch.Generator().manual_seed(0))
    with pytest.raises(UnsupportedModelError):
        start("sanitize-hybrid", Tokens(), rows=(tokens, data()[1]))
    monkeypatch.setattr(Tokens, "around", False)
    run = start("sanitize-hybrid", Tokens(), rows=(tokens, data()[1]))
    assert "side.weight" not in run._query.apart.behind  # what the rows do not reach gets noise
    assert "head.weight" in run._query.apart.behind


def with_inputs(model, content):
    """A loss that compares with the inputs, in training alone."""
    extra = content[0].square().sum(1) if model.training else 0.0
    return losses(model, content) + extra


def test_a_loss_that_sees_the_inputs_in_training() -> None:
    with pytest.raises(UnsupportedModelError):
        start("sanitize-hybrid", Model(), loss=with_inputs)


@pytest.mark.parametrize("method", ["sanitize", "sanitize-hybrid"])
def test_a_layer_in_evaluation(method) -> None:
    run = start(method, network(method))
    run.model.eval()
    with pytest.raises(RunStateError):
        run.step(next(run.batches()))


def test_noise_of_the_hybrid_that_is_changed_later() -> None:
    run = start("sanitize-hybrid", network("sanitize-hybrid"))
    run.model[1].noise_multiplier = 1e-3
    with pytest.raises(RunStateError):
        run.step(next(run.batches()))


@pytest.mark.parametrize("change", ["clip", "dropout"])
def test_a_resume_with_other_rows_under_the_same_noise(change, tmp_path) -> None:
    run, kept = start("sanitize-once", network()), Checkpoints(tmp_path)
    kept.begin(run)
    steps = take_steps(run, checkpoints=kept, every=1)
    next(steps)
    kept.close()
    model = network()
    if change == "clip":
        model[1].clip = 2 * CLIP
    again, kept = start("sanitize-once", model, secret=None), Checkpoints(tmp_path)
    kept.restore(again, kept.newest().saved)
    if change == "clip":
        with pytest.raises(ResumeError):
            again.step(next(again.batches()))
    else:
        again.step(next(again.batches()))  # the same rows again
    kept.close()


def test_a_clip_in_half_precision_is_not_rounded_up() -> None:
    layer = Sanitize(0.3, 1.0)  # in half precision 0.30005
    found = layer.bound(torch.tensor([[10.0, -10.0]], dtype=torch.float16)).double()
    assert float(found.abs().max()) <= 0.3 * (1 + 2.0**-20)
    assert layer.eval()(torch.zeros(1, 2, dtype=torch.float16)).dtype == torch.float16


def test_the_clip_of_a_run_that_goes_on_is_its_own(tmp_path) -> None:
    """Resumed at every step, and at the end where no step is left to set it."""
    straight = start("sanitize", network("sanitize"), threshold_share=0.3)
    clips = [find_layer(straight.model)[1].clip]
    for _ in take_steps(straight):
        clips.append(find_layer(straight.model)[1].clip)
    assert len(set(clips)) == 3  # before training and after each of the two epochs
    for after in (0, 3, 5, 7, 10):
        run, kept = start("sanitize", network("sanitize"), threshold_share=0.3), Checkpoints(tmp_path / str(after))
        kept.begin(run)
        steps = take_steps(run, checkpoints=kept, every=1)
        for _ in range(after):
            next(steps)
        kept.close()
        again = start("sanitize", network("sanitize"), threshold_share=0.3, secret=None)
        kept = Checkpoints(tmp_path / str(after))
        kept.restore(again, kept.newest().saved)
        assert find_layer(again.model)[1].clip == clips[after]
        for _ in take_steps(again):
            pass
        kept.close()
        assert find_layer(again.model)[1].clip == clips[-1]
        pairs = zip(again.model.parameters(), straight.model.parameters(), strict=True)
        assert all(torch.equal(a, b) for a, b in pairs)


class TestBeforeTheCharge:
    def charged_by(self, run) -> list[bool]:
        seen: list[bool] = []
        run.charged_by(lambda: seen.append(True))
        return seen

    def test_labels_that_are_none_of_the_classes(self):
        features, labels = data()
        labels[7] = CLASSES
        model = nn.Linear(FEATURES, CLASSES)
        run = start("label-rr", model, rows=(features, labels))
        seen = self.charged_by(run)
        with pytest.raises(InvalidInputError, match="0.*2"):
            run.step(next(run.batches()))
        assert seen == []

    def test_a_front_that_fails_on_the_data(self):
        class Picky(Model):
            def forward(self, x):
                if bool((x == 77).any()):
                    raise ValueError("no 77")
                return super().forward(x)

        features, labels = data()
        features[7, 0] = 77
        run = start("sanitize-once", make(Picky, "sanitize-once"), rows=(features, labels))
        seen = self.charged_by(run)
        with pytest.raises(ValueError, match="77"):
            run.step(next(run.batches()))
        assert seen == []

    def test_a_query_that_cannot_be_prepared(self):
        made = plan("label-rr")
        bare = dataclasses.replace(made, query=Bare(made.query))
        with pytest.raises(InvalidInputError):
            bare.start(nn.Linear(FEATURES, CLASSES), losses, data())


@dataclass(frozen=True)
class Bare:
    """A query that releases single records and leaves out how a run prepares it."""

    inner: RandomisedLabels

    @property
    def channels(self):
        return self.inner.channels

    def init(self, params):
        return self.inner.init(params)

    def piece(self, model, losses, content, public):
        return self.inner.piece(model, losses, content, public)

    def finish(self, sums, public, private):
        return self.inner.finish(sums, public, private)

    def observe(self, release, update, public):
        return self.inner.observe(release, update, public)

    def claims(self, participation, noise_std, steps):
        return self.inner.claims(participation, noise_std, steps)


def test_the_probe_leaves_the_model_as_it_is() -> None:
    model = network().train()
    model[3].eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    state = torch.get_rng_state()
    start("sanitize-once", model, secret=None)
    assert torch.equal(torch.get_rng_state(), state)
    assert [m.training for m in model] == [True, True, True, False]
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert math.isfinite(model[1].noise_std)
