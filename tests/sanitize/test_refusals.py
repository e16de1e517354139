"""What would break a proof or a claim is refused before anything is charged or released."""

from __future__ import annotations

import pytest
import torch
from networks import CLASSES, CLIP, FEATURES, data, losses, network, plan
from replaced import Model
from torch import nn

from hush.checkpointing import Checkpoints
from hush.errors import InvalidInputError, RunStateError, UnsupportedModelError
from hush.sanitize.layer import Sanitize, find_layer
from hush.training import take_steps


def start(method: str, model: nn.Module, *, rows=None, loss=losses, secret: int | None = 3, **changes):
    return plan(method, **changes).start(model, loss, data() if rows is None else rows, secret=secret)


def test_features_in_two_tensors() -> None:
    features, labels = data()
    with pytest.raises(InvalidInputError, match="3"):
        start("sanitize-once", network(), rows=(features, features, labels))


def test_a_layer_in_evaluation() -> None:
    run = start("sanitize", network("sanitize"))
    run.model.eval()
    with pytest.raises(RunStateError):
        run.step(next(run.batches()))


def test_a_clip_in_half_precision_is_not_rounded_up() -> None:
    layer = Sanitize(0.3, 1.0)  # in half precision 0.30005
    found = layer.bound(torch.tensor([[10.0, -10.0]], dtype=torch.float16)).double()
    assert float(found.abs().max()) <= 0.3 * (1 + 2.0**-20)
    assert layer.eval()(torch.zeros(1, 2, dtype=torch.float16)).dtype == torch.float16


def test_the_clip_of_a_run_that_is_resumed_is_its_own(tmp_path) -> None:
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
        run = start("label-rr", nn.Linear(FEATURES, CLASSES), rows=(features, labels))
        seen = self.charged_by(run)
        with pytest.raises(InvalidInputError, match="0.*2"):
            run.step(next(run.batches()))
        assert seen == []

    def test_a_front_that_fails_on_the_data(self):
        """A whole number that its table has no entry for."""

        class Tokens(Model):
            def __init__(self) -> None:
                super().__init__()
                self.front = nn.Embedding(7, 5).requires_grad_(False)

            def forward(self, x):
                return super().forward(x[:, 0])

        tokens = torch.zeros(len(data()[0]), 2, dtype=torch.int64)
        tokens[7] = 77
        run = start("sanitize-once", Tokens(), rows=(tokens, data()[1]))
        seen = self.charged_by(run)
        with pytest.raises(IndexError):
            run.step(next(run.batches()))
        assert seen == []


# The claim about the published layer is one about its settings.

CHANGES = {
    "clip": 5.0,
    "floored": True,
    "noise_multiplier": 1e-3,
    "dropout": 0.5,
    "place": "before",
    "draw": torch.zeros_like,
}


@pytest.mark.parametrize("setting", sorted(CHANGES))
@pytest.mark.parametrize("after", [0, 1])
def test_a_published_layer_that_is_changed_in_a_run(setting, after) -> None:
    model = Model(frozen=False)
    run = plan("sanitize").start(model, losses, data(), secret=3)
    steps = take_steps(run)
    for _ in range(after):
        next(steps)
    setattr(model.layer, setting, CHANGES[setting])
    with pytest.raises(RunStateError, match=setting.replace("_", " ")):
        next(steps)


def test_a_clip_that_follows_the_weights_and_a_dropout_that_changes() -> None:
    model = Model(frozen=False)
    run = plan("sanitize", threshold_share=0.3).start(model, losses, data(), secret=3)
    steps = take_steps(run)
    clips = {(next(steps), model.layer.clip)[1] for _ in range(6)}  # over the end of an epoch
    assert len(clips) > 1
    model.layer.dropout = 0.5
    with pytest.raises(RunStateError):
        next(steps)


class Quiet(Sanitize):
    def noised(self, x):
        return x


@pytest.mark.parametrize("method", ["sanitize", "sanitize-once"])
def test_a_layer_of_another_kind(method) -> None:
    model = Model(frozen=method == "sanitize-once")
    model.layer = Quiet(CLIP, 1.0)
    with pytest.raises(UnsupportedModelError, match="Quiet"):
        plan(method).start(model, losses, data())
    model.layer = Sanitize(CLIP, 1.0, draw=torch.zeros_like)
    with pytest.raises(UnsupportedModelError, match="draw"):
        plan(method).start(model, losses, data())
