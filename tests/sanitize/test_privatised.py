"""Released rows: their sensitivity, their noise, when they are made, and that a resume repeats them."""

from __future__ import annotations

import math
from typing import NamedTuple

import pytest
import torch
from scipy import stats
from torch import nn
from torch.utils.data import Dataset

from hush.accounting.noise_tails import Tails, grid
from hush.checkpointing import Checkpoints
from hush.data_release import ReleasedData
from hush.errors import InvalidInputError, ResumeError, RunStateError, UnsupportedModelError
from hush.ledger.book import Ledger
from hush.ledger.run_account import charge
from hush.ledger.total import Scope
from hush.methods import make_plan
from hush.randomness import Secret, seeded
from hush.sanitize.front import Front, Head, trace_front
from hush.sanitize.layer import Sanitize
from hush.sanitize.privatised import RowNoise, SanitizedFeatures
from hush.training import take_steps
from neighbouring_records import Model
from sanitized_models import CLIP, METHODS, WIDTH, N, data, losses, network, plan


def start(method="sanitize-once", *, model=None, rows=None, secret=3, **changes):
    made = model or network(method, floor=0.0 if changes.get("nonnegative") else None)
    return plan(method, **changes).start(made, losses, data() if rows is None else rows, secret=secret)


def rows_of(run, secret: Secret | None = None) -> torch.Tensor:
    """The rows that a run would draw from this secret, which is that of the run by default."""
    source = run._summing._source
    assert isinstance(source, ReleasedData)
    return source.part.release(secret or run.secret)["rows"]


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
        found = [rows_of(start(model=model, rows=(x, labels), nonnegative=nonnegative)) for x in (features, other)]
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
    released = rows_of(run).double()
    exact = run.model[1].bound(run.model[0](features)).detach().double()
    std = 2.0 * CLIP * math.sqrt(WIDTH)
    noise = ((released - exact) / std).flatten().numpy()
    assert stats.kstest(noise, "norm").pvalue > 1e-3
    assert stats.kstest(noise * 1.1, "norm").pvalue < 1e-4  # the wrong scale
    spacing = grid(std * (1 + 2.0**-20))
    assert torch.equal(released, (released / spacing).round() * spacing)


@pytest.mark.parametrize(("scale", "std"), [("published", 2.0 * CLIP * math.sqrt(WIDTH)), ("per-number", 2.0 * CLIP)])
def test_both_readings_of_the_published_noise_have_their_size(scale, std) -> None:
    model = network("sanitize")
    start("sanitize", model=model, sanitize_scale=scale, sanitize_width=WIDTH)
    with seeded(7):
        drawn = model[1].noised(torch.zeros(4000, WIDTH)).double()
        drawn = (drawn + grid(std) * (torch.rand_like(drawn) - 0.5)).numpy().ravel()  # anywhere in its cell of the grid
    twin = 2.0 * CLIP if scale == "published" else 2.0 * CLIP * math.sqrt(WIDTH)
    assert stats.kstest(drawn / std, "norm").pvalue > 1e-3
    assert stats.kstest(drawn / (std * 1.03), "norm").pvalue < 1e-3
    assert stats.kstest(drawn / twin, "norm").pvalue < 1e-3  # the other reading


@pytest.mark.parametrize(("place", "std"), [("after", 2.0 * CLIP), ("before", 2.0 * CLIP)])
def test_dropout_leaves_the_noise_per_number_as_it_is(place, std) -> None:
    model = network("sanitize")
    model[1] = Sanitize(CLIP, 1.0, width=WIDTH, dropout=0.36, place=place)
    start("sanitize", model=model, sanitize_scale="per-number", sanitize_width=WIDTH)
    assert model[1].noise_std == pytest.approx(std)


def test_noise_per_number_claims_what_the_published_formula_says_of_it() -> None:
    shared = {"examples": 50_000, "batch_size": 250, "epochs": 20, "accept_claimed": True}
    less = make_plan("sanitize", **shared, noise_multiplier=1.0, sanitize_scale="per-number", sanitize_width=16)
    formula = make_plan("sanitize", **shared, noise_multiplier=0.25)
    published = make_plan("sanitize", **shared, noise_multiplier=1.0)
    assert less.guarantee().epsilon == formula.guarantee().epsilon > 10 * published.guarantee().epsilon
    assert less.guarantee().status in ("claimed", "refuted")
    assert published.fingerprint() != less.fingerprint()


@pytest.mark.parametrize(
    ("method", "changes", "named"),
    [
        ("sanitize", {}, "sanitize_width"),
        ("sanitize", {"sanitize_width": 0}, "sanitize_width"),
        ("sanitize", {"sanitize_width": WIDTH + 1}, str(WIDTH)),
        ("sanitize-once", {"sanitize_width": WIDTH}, "sanitize-once"),
        ("dp-sgd", {"sanitize_width": WIDTH}, "dp-sgd"),
    ],
)
def test_noise_per_number_is_for_one_method_and_one_width(method, changes, named) -> None:
    with pytest.raises(InvalidInputError, match=named):
        start(method, sanitize_scale="per-number", **changes)


def test_another_secret_has_other_noise_and_the_same_one_the_same() -> None:
    run = start()
    first, second = rows_of(run), rows_of(run, Secret(bytes(range(32))))
    assert torch.equal(rows_of(run), first)
    assert torch.equal(run.draw_data()["rows"], first)
    std = 2.0 * CLIP * math.sqrt(WIDTH) * math.sqrt(2)
    assert float((first - second).std()) == pytest.approx(std, rel=0.2)


def test_nothing_is_released_before_the_ledger_is_charged(monkeypatch, tmp_path) -> None:
    order: list[str] = []
    compute, draw = Front.compute, RowNoise.draw
    monkeypatch.setattr(Front, "compute", lambda *given: (order.append("computed"), compute(*given))[1])
    monkeypatch.setattr(RowNoise, "draw", lambda self, s: (order.append("released"), draw(self, s))[1])
    kept = Checkpoints(tmp_path / "run")
    run = start(secret=None)
    ledger = Ledger(tmp_path / "l.jsonl")
    charges = charge(run, ledger, "d", kept)
    kept.begin(run)
    assert order == []
    assert not charges.charged
    assert run.spent.epsilon == 0
    run.charged_by(lambda: (charges.charge(), order.append("charged"))[0])
    run.draw_data()
    assert order == ["computed", "charged", "released"]
    assert run.spent.epsilon == run.guarantee.epsilon  # the rows are out before the first step is taken
    run.step(next(run.batches()))
    kept.close()
    assert order == ["computed", "charged", "released"]
    assert len(ledger.path.read_text().splitlines()) == len(set(ledger.path.read_text().splitlines()))
    features, whole = (ledger.total("d", scope=Scope(protects=what)).epsilon for what in ("features", "example"))
    assert features == pytest.approx(run.plan.guarantee().epsilon, rel=1e-6)
    assert whole == math.inf


def test_the_tails_of_one_record_are_those_of_its_numbers() -> None:
    run = start()
    assert run.coordinates == WIDTH
    ends = run.plan.find_tails(run.coordinates)
    assert ends == Tails(WIDTH, 1, mu=1.0)  # 2/σ
    assert run.plan.tails == ends.cost() > 0
    assert SanitizedFeatures(nonnegative=True).find_tails(2.0, 7) == Tails(7, 1, mu=0.5)


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


def interrupted(tmp_path, after: int) -> None:
    run, kept = start(), Checkpoints(tmp_path)
    kept.begin(run)
    steps = take_steps(run, checkpoints=kept, every=1)
    for _ in range(after):
        next(steps)
    kept.close()


def test_a_resumed_run_reads_its_rows_and_computes_none(tmp_path, monkeypatch) -> None:
    interrupted(tmp_path, 3)
    monkeypatch.setattr(Front, "compute", lambda *given: pytest.fail("computed"))
    again, kept = start(secret=None), Checkpoints(tmp_path)
    kept.restore(again, kept.newest().saved)
    assert not list(tmp_path.glob("sums*"))  # training on released rows needs no sum log
    finish(again)
    kept.close()


def test_a_resumed_run_without_its_rows_is_refused(tmp_path) -> None:
    interrupted(tmp_path, 3)
    (file,) = tmp_path.glob("before-rows*")
    file.unlink()
    again, kept = start(secret=None), Checkpoints(tmp_path)
    kept.restore(again, kept.newest().saved)
    with pytest.raises(ResumeError, match="3"):
        again.step(again.batch(3))
    kept.close()


def test_rows_that_were_drawn_before_the_first_checkpoint_are_saved_with_it(tmp_path) -> None:
    run, kept = start(), Checkpoints(tmp_path)
    for _ in range(2):
        run.step(run.batch(run.next))
    kept.save(run)
    kept.close()
    again, kept = start(secret=None), Checkpoints(tmp_path)
    kept.restore(again, kept.newest().saved)
    found, straight = finish(again), finish(start())
    kept.close()
    assert all(torch.equal(found[name], straight[name]) for name in straight)


def test_the_same_noise_is_not_added_to_other_rows(tmp_path) -> None:
    """A seed gives the same secret again: the file of the first run tells that its noise was used."""
    interrupted(tmp_path, 1)
    features, labels = data()
    features[7] += 1.0
    run, kept = start(rows=(features, labels)), Checkpoints(tmp_path)
    kept.begin(run)
    with pytest.raises(ResumeError):
        run.step(run.batch(0))
    kept.close()


def test_fresh_noise_for_training_releases_no_second_row(tmp_path) -> None:
    run = start()
    first = run.draw_data()["rows"]
    run.step(run.batch(0))
    run.use_fresh_secret()
    run.step(run.batch(1))
    assert run.draw_data()["rows"] is first
    assert run.guarantee.epsilon >= start().guarantee.epsilon * (1 - 1e-12)  # the last bits are of the search for ε


def test_what_is_before_the_layer_stays_and_the_head_learns() -> None:
    before, after = network().state_dict(), finish(start())
    assert torch.equal(before["0.weight"], after["0.weight"])
    assert not torch.equal(before["3.weight"], after["3.weight"])


def test_changes_of_the_layer_after_the_start_do_not_reach_the_rows() -> None:
    run, other = start(), start()
    layer = other.model[1]
    layer.clip, layer.noise_multiplier, layer.floored = 5.0, 1e-3, True
    assert torch.equal(rows_of(run), rows_of(other))


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
        inner = network("sanitize")
        self.front, self.layer, self.head, self.around = inner[0], inner[1], inner[3], nn.Linear(6, 3)

    def forward(self, x):
        return self.head(self.layer(self.front(x))) + self.around(x)


class Straight(Around):
    """The same without the way around."""

    def forward(self, x):
        return self.head(self.layer(self.front(x)))


def test_a_model_of_any_shape_is_cut_at_its_layer() -> None:
    model, like = Straight(), data()[0]
    assert trace_front(model, like).names == {"front.weight", "front.bias"}
    rows = torch.randn(4, WIDTH)
    assert torch.equal(Head(model, like)(rows), model.head(rows))
    in_a_row = network("sanitize")
    assert trace_front(in_a_row, like).names == {"0.weight", "0.bias"}
    assert torch.equal(Head(in_a_row, like)(rows), in_a_row[3](in_a_row[2](rows)))


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

    def test_something_trained_before_the_layer(self):
        with pytest.raises(UnsupportedModelError, match=r"'0\.bias,\ 0\.weight'"):
            start(model=network("sanitize"))

    def test_batch_norm(self):
        model = network()
        model.insert(0, nn.BatchNorm1d(6, affine=False))
        with pytest.raises(UnsupportedModelError, match=r"'0'.*BatchNorm"):
            start(model=model)

    @pytest.mark.parametrize("method", METHODS)
    def test_a_layer_of_another_range(self, method):
        with pytest.raises(InvalidInputError, match=r"\[0, C\].*\[−C, C\]"):
            start(method, model=network(method, floor=0.0))

    def test_rows_are_not_taken_before_they_are_drawn(self):
        with pytest.raises(RunStateError):
            start()._summing._source.take(torch.arange(3))

    def test_data_without_labels(self):
        with pytest.raises(InvalidInputError, match="labels"):
            start(rows=data()[0])


# Batches that are named tuples, and models that catch exceptions raised inside them.


METHODS_NAMED = ["sanitize", "sanitize-once"]


class Named(NamedTuple):
    features: torch.Tensor
    label: torch.Tensor


class NamedData(Dataset):
    def __init__(self) -> None:
        self.features, self.labels = data()

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, i) -> Named:
        return Named(self.features[i], self.labels[i])


def losses_named(model, content):
    return nn.functional.cross_entropy(model(content[0]), content[1], reduction="none")


def named_losses(model, content):
    return losses_named(model, (content.features, content.label))


def train_weights(method, loss, rows, model=None) -> list[torch.Tensor]:
    model = model or Model(frozen=method == "sanitize-once")
    for _ in take_steps(plan(method).start(model, loss, rows, secret=3)):
        pass
    return list(model.parameters())


@pytest.mark.parametrize("method", METHODS_NAMED)
def test_named_tuples(method) -> None:
    found = train_weights(method, named_losses, NamedData())
    for one, other in zip(found, train_weights(method, losses_named, data()), strict=True):
        assert torch.equal(one, other)


class Catching(Model):
    """Says of every fault that it was the batch's."""

    def forward(self, x):
        try:
            rows = self.layer(self.front(x))
        except Exception as stop:
            raise RuntimeError("bad batch") from stop
        return self.head(rows)


@pytest.mark.parametrize("method", METHODS_NAMED)
def test_a_model_that_catches_exceptions(method) -> None:
    frozen = method == "sanitize-once"
    found = train_weights(method, losses_named, data(), Catching(frozen=frozen))
    for one, other in zip(found, train_weights(method, losses_named, data()), strict=True):
        assert torch.equal(one, other)


# The weights before the published layer disclose a record; the proven variants stay within their ε. The canary is a
# record with a pixel that is zero in every other record, so without it the first layer's weights of that pixel never
# move. The attacker knows all other records, the initial weights and the released model, and answers "present" if the
# weights moved by more than a fixed threshold. (ε, δ)-privacy implies TPR ≤ e^ε·FPR + δ, so the counts refute every ε
# below ln((TPR − δ)/FPR), with Clopper-Pearson bounds of both at 99.99 %.


RUNS, DELTA, DOUBT = 60, 1e-5, 1e-4
PIXEL, CANARY = 0, 11


def released_weights(method: str, *, there: bool, number: int, sigma: float) -> torch.Tensor:
    """How far the weights of the canary's pixel are from where they began, in a model that was released."""
    features, labels = data()
    features[:, PIXEL] = 0.0
    features[CANARY] = 0.0
    if there:
        features[CANARY, PIXEL] = 0.1
    model = network(method)
    before = model[0].weight.detach()[:, PIXEL].clone()
    p = plan(method, noise_multiplier=sigma, steps=5, delta=DELTA)
    run = p.start(model, losses, (features, labels), secret=2 * number + there)
    for _ in take_steps(run):
        pass
    return model[0].weight.detach()[:, PIXEL] - before


def refuted_epsilon(method: str, threshold: float, sigma: float, runs: int = RUNS) -> float:
    """Every ε below this one is refuted with 99.99 % confidence; −∞ where the attack shows nothing."""
    says = {True: 0, False: 0}
    for there in says:
        shifts = [released_weights(method, there=there, number=k, sigma=sigma) for k in range(runs)]
        says[there] = sum(float(shift.norm()) > threshold for shift in shifts)
    least = stats.beta.ppf(DOUBT / 2, says[True], runs - says[True] + 1) if says[True] else 0.0
    most = stats.beta.ppf(1 - DOUBT / 2, says[False] + 1, runs - says[False]) if says[False] < runs else 1.0
    return math.log((least - DELTA) / most) if least > DELTA else -math.inf


def test_the_published_layer_gives_a_record_away() -> None:
    sigma = 8.0
    (claim,) = plan("sanitize", noise_multiplier=sigma, steps=5, delta=DELTA).claims()
    assert claim.epsilon < 0.6
    assert refuted_epsilon("sanitize", 0.0, sigma) > 1.5 > 2 * claim.epsilon


def test_frozen_layers_give_nothing_away() -> None:
    once = "sanitize-once"
    moved = [released_weights(once, there=there, number=k, sigma=8.0) for there in (True, False) for k in range(3)]
    assert all(torch.equal(shift, torch.zeros_like(shift)) for shift in moved)
    assert refuted_epsilon(once, 0.0, 8.0, 10) == -math.inf  # a single "there" would make it finite
