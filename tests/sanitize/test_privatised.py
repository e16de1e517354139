"""Released rows: how far a record can move them, their noise, when they are made, and that a resume repeats them."""

from __future__ import annotations

import math

import pytest
import torch
from networks import CLIP, METHODS, PROVEN, WIDTH, N, data, losses, network, plan
from scipy import stats
from torch import nn

from hush.accounting.noise_tails import grid
from hush.checkpointing import Checkpoints
from hush.data_source import as_source
from hush.errors import InvalidInputError, ResumeError, RunStateError, UnsupportedModelError
from hush.ledger.book import Ledger
from hush.ledger.run_account import charge
from hush.ledger.total import Scope
from hush.sanitize.layer import Sanitize
from hush.sanitize.privatised import ReleasedRows
from hush.sanitize.split_model import Head, find_cut
from hush.training import take_steps


def start(method="sanitize-once", *, model=None, rows=None, secret=3, **changes):
    made = model or network(method, floor=0.0 if changes.get("nonnegative") else None)
    return plan(method, **changes).start(made, losses, data() if rows is None else rows, secret=secret)


def rows_of(run) -> ReleasedRows:
    source = run._summing._source
    assert isinstance(source, ReleasedRows)
    return source


def finish(run):
    for _ in take_steps(run):
        pass
    return {name: value.clone() for name, value in run.model.state_dict().items()}


@pytest.mark.parametrize("floor", [None, 0.0])
def test_a_record_moves_its_own_row_only_and_by_no_more_than_was_counted(floor) -> None:
    features, labels = data()
    nonnegative = floor is not None
    model = network()
    with torch.no_grad():
        model[0].weight.copy_(torch.eye(WIDTH, features.shape[1]))  # so that the worst case is reached
        model[0].bias.zero_()
    model[1] = Sanitize(CLIP, 1.0, width=WIDTH, floor=floor)
    limit = (1 if nonnegative else 2) * CLIP * math.sqrt(WIDTH)
    std = 2.0 * CLIP * math.sqrt(WIDTH)
    largest = 0.0
    for value in (1e30, -1e30, 3.0, float("inf")):
        other = features.clone()
        features[7], other[7] = 1e6, -value if math.isfinite(value) else -1e38
        found = [
            rows_of(start(model=model, rows=(x, labels), nonnegative=nonnegative)).release() for x in (features, other)
        ]
        moved = (found[0] - found[1]).double()
        assert torch.equal(moved[:7], torch.zeros(7, WIDTH))
        assert torch.equal(moved[8:], torch.zeros(N - 8, WIDTH))
        largest = max(largest, float(moved[7].norm()))
        assert float(moved[7].norm()) <= limit + grid(std) * math.sqrt(WIDTH)
    assert largest == pytest.approx(limit, rel=1e-3)


def test_the_noise_is_gaussian_of_the_accounted_size_on_its_grid() -> None:
    generator = torch.Generator().manual_seed(5)
    features, labels = torch.randn(4000, 6, generator=generator), torch.zeros(4000, dtype=torch.int64)
    run = start(rows=(features, labels), examples=4000)
    released = rows_of(run).release().double()
    exact = run.model[1].bound(run.model[0](features)).detach().double()
    std = 2.0 * CLIP * math.sqrt(WIDTH)
    noise = ((released - exact) / std).flatten().numpy()
    assert stats.kstest(noise, "norm").pvalue > 1e-3
    assert stats.kstest(noise * 1.1, "norm").pvalue < 1e-4  # the wrong scale
    spacing = grid(std * (1 + 2.0**-20))
    assert torch.equal(released, (released / spacing).round() * spacing)


def test_another_release_has_other_noise_and_the_same_one_the_same() -> None:
    run = start("sanitize-frozen")
    rows = rows_of(run)
    first = rows.release().clone()
    rows.make_ready(5)  # the second epoch
    second = rows.release().clone()
    rows.make_ready(2)
    assert torch.equal(rows.release(), first)
    std = 2.0 * CLIP * math.sqrt(WIDTH) * math.sqrt(2)
    assert float((first - second).std()) == pytest.approx(std, rel=0.2)


def test_nothing_is_released_before_the_ledger_is_charged(monkeypatch, tmp_path) -> None:
    order: list[str] = []
    compute, add = ReleasedRows._compute, ReleasedRows._add_noise
    monkeypatch.setattr(ReleasedRows, "_compute", lambda self: (order.append("computed"), compute(self))[1])
    monkeypatch.setattr(ReleasedRows, "_add_noise", lambda self, s: (order.append("released"), add(self, s))[1])
    kept = Checkpoints(tmp_path / "run")
    run = start(secret=None)
    ledger = Ledger(tmp_path / "l.jsonl")
    charges = charge(run, ledger, "d", kept)
    kept.begin(run)
    assert order == []
    assert not charges.charged
    run.charged_by(lambda: (charges.charge(), order.append("charged"))[0])
    run.step(next(run.batches()))
    kept.close()
    assert order == ["computed", "charged", "released"]
    features, whole = (ledger.total("d", scope=Scope(protects=what)).epsilon for what in ("features", "example"))
    assert features == pytest.approx(run.plan.guarantee().epsilon, rel=1e-6)
    assert whole == math.inf


@pytest.mark.parametrize("after", [0, 1, 6])
@pytest.mark.parametrize("method", METHODS)
def test_a_resumed_run_goes_on_to_the_same_bits(method, after, tmp_path) -> None:
    run, kept = start(method), Checkpoints(tmp_path)
    kept.begin(run)
    steps = take_steps(run, checkpoints=kept, every=1)
    for _ in range(after):
        next(steps)
    kept.close()
    again, kept = start(method, secret=None), Checkpoints(tmp_path)
    kept.restore(again, kept.newest().saved)
    found = finish(again)
    kept.close()
    straight = finish(start(method))
    assert all(torch.equal(found[name], straight[name]) for name in straight)


@pytest.mark.parametrize("method", METHODS)
def test_rows_do_not_get_fresh_noise_within_a_run(method) -> None:
    with pytest.raises(ResumeError):
        start(method).renew()


@pytest.mark.parametrize("method", ["sanitize-once", "sanitize-frozen"])
def test_what_is_before_the_layer_stays_and_the_head_learns(method) -> None:
    before, after = network(method).state_dict(), finish(start(method))
    assert torch.equal(before["0.weight"], after["0.weight"])
    assert not torch.equal(before["3.weight"], after["3.weight"])


def test_the_trained_head_depends_on_released_rows_and_labels_alone() -> None:
    """Features that the front maps to the same rows give the same model, bit by bit."""
    features, labels = data()
    other = features.clone()
    other[:, 0] += 100.0

    def blind():
        model = network()
        with torch.no_grad():
            model[0].weight[:, 0] = 0.0
        return model

    found = [finish(start(model=blind(), rows=(x, labels))) for x in (features, other)]
    assert all(torch.equal(found[0][name], found[1][name]) for name in found[0])
    seen = [finish(start(rows=(x, labels))) for x in (features, other)]
    assert not torch.equal(seen[0]["3.weight"], seen[1]["3.weight"])


class Around(nn.Module):
    """A model in which the inputs also pass by the layer."""

    def __init__(self) -> None:
        super().__init__()
        inner = network("sanitize-hybrid")
        self.front, self.layer, self.head, self.around = inner[0], inner[1], inner[3], nn.Linear(6, 3)

    def forward(self, x):
        return self.head(self.layer(self.front(x))) + self.around(x)


class Straight(Around):
    """The same without the way around."""

    def forward(self, x):
        return self.head(self.layer(self.front(x)))


def test_a_model_of_any_shape_is_cut_at_its_layer() -> None:
    model = Straight()
    model.around.requires_grad_(False)
    cut = find_cut(model, as_source(data()))
    assert cut.before == {"front.weight", "front.bias"}
    rows = torch.randn(4, WIDTH)
    assert torch.equal(Head(cut)(rows), model.head(rows))
    in_a_row = network("sanitize-hybrid")
    assert torch.equal(Head(find_cut(in_a_row, as_source(data())))(rows), in_a_row[3](in_a_row[2](rows)))


def test_what_passes_by_the_layer_sees_zeros_where_rows_were_released() -> None:
    features, labels = data()

    def blind():
        model = Around()
        with torch.no_grad():
            for name, value in model.named_parameters():
                value.copy_(torch.linspace(-1, 1, value.numel()).view(value.shape) * (name != "front.weight"))
        model.front.requires_grad_(False)
        return model

    found = [finish(start(model=blind(), rows=(x, labels))) for x in (features, features + 1.0)]
    assert all(torch.equal(found[0][name], found[1][name]) for name in found[0])


class TestBadUse:
    @pytest.mark.parametrize("method", METHODS)
    def test_no_layer(self, method):
        with pytest.raises(InvalidInputError, match="0"):
            start(method, model=nn.Linear(6, 3))

    @pytest.mark.parametrize("method", ["sanitize-once", "sanitize-frozen"])
    def test_something_trained_before_the_layer(self, method):
        with pytest.raises(UnsupportedModelError, match=r"'0\.bias,\ 0\.weight'"):
            start(method, model=network("sanitize-hybrid"))

    def test_nothing_trained_before_the_layer_of_hybrid(self):
        with pytest.raises(UnsupportedModelError, match="method"):
            start("sanitize-hybrid", model=network("sanitize-once"))

    @pytest.mark.parametrize("method", METHODS)
    def test_batch_norm(self, method):
        model = network(method)
        model.insert(0, nn.BatchNorm1d(6, affine=False))
        with pytest.raises(UnsupportedModelError, match="'0'.*BatchNorm.*mixes"):
            start(method, model=model)

    def test_a_way_around_the_layer(self):
        with pytest.raises(UnsupportedModelError):
            start("sanitize-hybrid", model=Around())

    @pytest.mark.parametrize("method", PROVEN)
    def test_a_layer_of_another_range(self, method):
        with pytest.raises(InvalidInputError, match=r"\[0.*C\].*\[−C.*C\]"):
            start(method, model=network(method, floor=0.0))

    def test_a_clip_that_is_changed_later(self):
        run = start()
        run.model[1].clip = 5.0
        with pytest.raises(RunStateError):
            run.step(next(run.batches()))

    def test_data_without_labels(self):
        with pytest.raises(InvalidInputError, match="labels"):
            start(rows=data()[0])
