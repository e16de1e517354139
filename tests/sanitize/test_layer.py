"""The sanitisation layer: clipping, noise and placement."""

from __future__ import annotations

import math

import pytest
import torch
from scipy import stats
from torch import Tensor, nn

from hush.accounting.noise_tails import grid
from hush.checkpointing import Checkpoints
from hush.errors import InvalidInputError, RunStateError, UnsupportedModelError
from hush.per_example.model_rng import drawing, model_randomness, probe_rng
from hush.randomness import Secret, seeded
from hush.sanitize.layer import Place, Sanitize, find_layer, insert
from hush.training import take_steps
from neighbouring_records import Model
from sanitized_models import CLASSES, CLIP, FEATURES, data, losses, network, plan

PLACES: tuple[Place, ...] = ("after", "before")


def _zeros(x: Tensor) -> Tensor:
    return torch.zeros_like(x)


@pytest.mark.parametrize(
    ("floor", "expected"), [(None, [-1.0, -0.5, 0.0, 0.9, 1.0, 1.0, -1.0, 0.0]), (0, [0, 0, 0, 0.9, 1, 1, 0, 0])]
)
def test_every_element_is_clipped_by_itself(floor: float | None, expected: list[float]) -> None:
    layer = Sanitize(1.0, 1.0, floor=floor, draw=_zeros)
    x = torch.tensor([[-2.8, -0.5, 0.0, 0.9, 1.5, math.inf, -math.inf, math.nan]])
    assert layer.bound(x).tolist() == [pytest.approx(expected)]
    assert layer(x).tolist() == [pytest.approx(expected, abs=grid(layer.noise_std) / 2)]  # rounded to the grid


@pytest.mark.parametrize(
    ("options", "std"),
    [({}, 0.5 * 2 * 5), ({"dropout": 0.36}, 0.5 * 2 * 5 * 0.8), ({"dropout": 0.36, "place": "before"}, 0.5 * 2 * 5)],
)
def test_the_noise_has_the_published_scale(options: dict[str, object], std: float) -> None:
    layer = Sanitize(0.5, 2.0, width=25, **options)  # type: ignore[arg-type]
    assert layer.noise_std == pytest.approx(std)
    with seeded(7):
        drawn = layer.noised(torch.zeros(4000, 25)).double()
        drawn = (drawn + grid(std) * (torch.rand_like(drawn) - 0.5)).numpy().ravel()  # anywhere in its cell of the grid
    assert stats.kstest(drawn / std, "norm").pvalue > 1e-3
    assert stats.kstest(drawn / (std * 1.02), "norm").pvalue < 1e-3  # a twin of another scale is told apart


def test_what_one_release_costs() -> None:
    """μ = range·√n/std, the same for every width and clip."""
    for layer, mu in [
        (Sanitize(0.5, 2.0, width=50), 1.0),
        (Sanitize(0.5, 2.0, width=50, floor=0), 0.5),
        (Sanitize(3.0, 2.0, width=7, dropout=0.75), 2.0),
        (Sanitize(3.0, 2.0, width=7, dropout=0.75, place="before"), 1.0),
    ]:
        assert layer.mu == pytest.approx(mu)
        assert layer.sensitivity / layer.noise_std == pytest.approx(mu)


def test_no_noise_in_evaluation_unless_asked() -> None:
    x = torch.full((3, 4), 9.0)
    quiet, noisy = Sanitize(2.0, 1.0).eval(), Sanitize(2.0, 1.0, noisy_evaluation=True).eval()
    assert torch.equal(quiet(x), torch.full((3, 4), 2.0))
    assert not torch.equal(noisy(x), noisy(x))


def test_dropout_acts_after_the_noise_or_before_it() -> None:
    x = torch.ones(200, 50)
    after, before = (Sanitize(5.0, 1.0, dropout=0.5, place=place)(x) for place in PLACES)
    assert 0.4 < float((after == 0).double().mean()) < 0.6
    assert float((before == 0).double().mean()) < 0.01  # a point of the grid, now and then


def test_the_width_is_that_of_the_first_forward_and_stays() -> None:
    layer = Sanitize(1.0, 1.0)
    with pytest.raises(InvalidInputError):
        _ = layer.noise_std
    layer(torch.zeros(2, 3, 4))
    assert layer.width == 12
    with pytest.raises(InvalidInputError, match="12"):
        layer(torch.zeros(2, 13))


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"clip": 0.0}, "clip must be above zero, got 0.0"),
        ({"noise_multiplier": 0}, "noise_multiplier must be above zero, got 0"),
        ({"floor": 0.5}, "the floor of a sanitisation layer is 0, or none for −clip, got 0.5"),
        ({"dropout": 1.0}, "dropout must lie between 0 and 1"),
        ({"place": "behind"}, "unknown place of dropout 'behind'"),
    ],
)
def test_bad_settings_get_a_sentence(given: dict[str, object], sentence: str) -> None:
    with pytest.raises(InvalidInputError, match=sentence):
        Sanitize(**({"clip": 1.0, "noise_multiplier": 1.0} | given))  # type: ignore[arg-type]


def _draw_by_place(layer: Sanitize, secret: Secret, step: int, places: list[int]) -> Tensor:
    x = torch.zeros(len(places), 3)
    with (
        model_randomness(secret, step, torch.tensor(places), torch.device("cpu")),
        probe_rng(layer, None, layer, x, len(places)),
        drawing(),
    ):
        found: Tensor = layer(x)
    return found


def test_in_a_run_the_noise_follows_the_examples_place() -> None:
    """An example more, or another order, changes nobody else's noise; another step or secret changes all of it."""
    layer, secret = Sanitize(1.0, 1.0, dropout=0.1), Secret.from_seed(1, "a test")
    three, two = (_draw_by_place(layer, secret, 5, places) for places in ([4, 8, 2], [2, 4]))
    assert torch.equal(three[[2, 0]], two)
    assert not torch.equal(three[0], three[1])
    assert not torch.equal(_draw_by_place(layer, secret, 6, [2, 4]), two)
    assert not torch.equal(_draw_by_place(layer, Secret.from_seed(2, "a test"), 5, [2, 4]), two)


def _small_model() -> nn.Sequential:
    return nn.Sequential(nn.Sequential(nn.Linear(4, 3), nn.ReLU()), nn.Linear(3, 2))


@pytest.mark.parametrize("name", ["0.1", "0", "1", ""])
def test_it_is_put_after_any_named_module(name: str) -> None:
    plain, x = _small_model(), torch.randn(5, 4)
    layer = Sanitize(0.2, 1.0, draw=_zeros)
    seen: list[Tensor] = []
    model = insert(_copy_of(plain), name, layer)
    layer.register_forward_hook(lambda module, inputs, output: seen.append(inputs[0]))
    out = model(x)
    assert find_layer(model)[1] is layer
    expected = {"0.1": plain[0](x), "0": plain[0](x), "1": plain(x), "": plain(x)}[name]
    assert torch.equal(seen[0], expected)
    clipped = expected.clamp(-0.2, 0.2)
    expected = plain[1](clipped) if name in ("0.1", "0") else clipped
    assert torch.allclose(out, expected, atol=2e-3)  # rounded to the grid of the noise
    assert len(list(model.parameters())) == len(list(plain.parameters()))


def _copy_of(model: nn.Module) -> nn.Module:
    made = _small_model()
    made.load_state_dict(model.state_dict())
    return made


def test_a_module_that_is_not_there_is_named_with_the_nearest() -> None:
    model = nn.Sequential()
    model.add_module("body", nn.Linear(2, 2))
    model.add_module("head", nn.Linear(2, 2))
    with pytest.raises(InvalidInputError, match="'bdy'.*'body'"):
        insert(model, "bdy", Sanitize(1.0, 1.0))


def test_a_module_with_two_places_or_two_layers_is_refused() -> None:
    shared = nn.ReLU()
    model = nn.Sequential(nn.Linear(2, 2), shared, nn.Linear(2, 2), shared)
    with pytest.raises(InvalidInputError):
        insert(model, "1", Sanitize(1.0, 1.0))
    again = insert(_small_model(), "0", Sanitize(1.0, 1.0))
    with pytest.raises(InvalidInputError, match="'0'"):
        insert(again, "0", Sanitize(1.0, 1.0))
    with pytest.raises(InvalidInputError, match="0"):
        find_layer(_small_model())


# Models and losses that would break a proof are refused before anything is charged or released.


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
    with pytest.raises(UnsupportedModelError):
        plan(method).start(model, losses, data())
    model.layer = Sanitize(CLIP, 1.0, draw=torch.zeros_like)
    with pytest.raises(UnsupportedModelError):
        plan(method).start(model, losses, data())
