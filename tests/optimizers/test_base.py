"""Conformance table of all optimizers: a new optimizer is a row in RULES."""

from __future__ import annotations

import copy
import json
import math

import pytest
import torch

from hush.checkpointing.tree import flatten, revive, unflatten
from hush.errors import InvalidInputError, NotProvenError
from hush.noise.base import NoisyGradient
from hush.optimizers import FTRL, SGD, Adam, AdamBC, Cosine, Grouped, KalmanFilter, Linear, TorchOptim

RULES = {
    "sgd": SGD(0.1),
    "sgd-momentum": SGD(0.05, momentum=0.9, weight_decay=1e-3),
    "sgd-cosine": SGD(Cosine(0.2, 200, warmup=10)),
    "adam": Adam(0.05),
    "adamw": Adam(0.05, weight_decay=1e-3),
    "adam-bc": AdamBC(0.05),
    "adam-bc-decayed": AdamBC(Cosine(0.1, 400), weight_decay=1e-3),
    "ftrl": FTRL(0.1),
    "ftrl-momentum": FTRL(0.05, momentum=0.9),
    "kalman-sgd": KalmanFilter(SGD(0.1), 0.7),
    "kalman-momentum": KalmanFilter(SGD(Cosine(0.1, 400), momentum=0.5, weight_decay=1e-3), 0.3),
    "kalman-adam-bc": KalmanFilter(AdamBC(0.05), 0.5),
    "grouped": Grouped((("b", SGD(0.1)), ("*", AdamBC(Cosine(0.1, 400), weight_decay=1e-4)))),
    "kalman-grouped": KalmanFilter(Grouped((("a", SGD(0.1, momentum=0.5)), ("b", SGD(0.05)))), 0.7),
    "kalman-torch": KalmanFilter(TorchOptim(lambda p: torch.optim.SGD(p.values(), lr=0.1)), 0.7),
    "torch-adamw": TorchOptim(lambda p: torch.optim.AdamW(p.values(), lr=0.05)),
    "torch-sgd-scheduled": TorchOptim(
        lambda p: torch.optim.SGD(p.values(), lr=0.2, momentum=0.5),
        lambda o: torch.optim.lr_scheduler.StepLR(o, 50, 0.5),
    ),
    "torch-groups": TorchOptim(
        lambda p: torch.optim.SGD([{"params": [p["a"]], "lr": 0.2}, {"params": [p["b"]], "lr": 0.05}])
    ),
}
TARGET = {"a": torch.tensor([1.0, -2.0]), "b": torch.tensor([[0.5]])}


def parameters() -> dict[str, torch.Tensor]:
    return {"a": torch.nn.Parameter(torch.zeros(2)), "b": torch.nn.Parameter(torch.ones(1, 1))}


def release(step: int, gradient: dict[str, torch.Tensor], std: float = 0.0) -> NoisyGradient:
    return NoisyGradient(step, {"gradient": gradient}, {"gradient": std})


def descend(optimizer, params, steps: int) -> None:
    state = optimizer.init(params)
    for step in range(steps):
        optimizer.step(params, release(step, {n: p.detach() - TARGET[n] for n, p in params.items()}), state)


@pytest.mark.parametrize("name", RULES)
def test_converges_on_a_quadratic_without_noise(name: str) -> None:
    params = parameters()
    descend(RULES[name], params, 400)
    for key, value in params.items():
        assert torch.allclose(value, TARGET[key], atol=0.02), (key, value)


@pytest.mark.parametrize("name", RULES)
def test_the_update_is_new_minus_old_and_the_release_is_untouched(name: str) -> None:
    params = parameters()
    optimizer = RULES[name]
    state = optimizer.init(params)
    for step in range(3):
        before = {n: p.detach().clone() for n, p in params.items()}
        gradient = {n: torch.randn_like(p) for n, p in params.items()}
        kept = copy.deepcopy(gradient)
        update = optimizer.step(params, release(step, gradient), state)
        assert list(update) == list(params)
        for key in params:
            assert torch.allclose(params[key] - before[key], update[key], atol=1e-7)
            assert torch.equal(gradient[key], kept[key])
            assert params[key].grad is None


def through_a_checkpoint(state, living):
    tensors: dict[str, torch.Tensor] = {}
    kept = json.loads(json.dumps(flatten(state, tensors)))
    return revive(unflatten(kept, copy.deepcopy(tensors)), living, torch.device("cpu"))


@pytest.mark.parametrize("name", RULES)
def test_its_state_goes_through_a_checkpoint_to_the_same_bits(name: str) -> None:
    optimizer = RULES[name]
    generator = torch.Generator().manual_seed(1)
    gradients = [{n: torch.randn(p.shape, generator=generator) for n, p in parameters().items()} for _ in range(8)]
    straight = parameters()
    state = optimizer.init(straight)
    for step, gradient in enumerate(gradients):
        if step == 4:
            resumed = {n: torch.nn.Parameter(p.detach().clone()) for n, p in straight.items()}
            other = through_a_checkpoint(state, optimizer.init(resumed))
        optimizer.step(straight, release(step, gradient, 0.1), state)
        if step >= 4:
            optimizer.step(resumed, release(step, gradient, 0.1), other)
    assert all(torch.equal(straight[n], resumed[n]) for n in straight)


@pytest.mark.parametrize("name", [n for n in RULES if n != "torch-groups"])
def test_parameters_that_are_not_trained_are_not_needed(name: str) -> None:
    """A frozen parameter is not among the given ones: the rest moves as it would with it."""
    whole, part = parameters(), {"a": parameters()["a"]}
    states = RULES[name].init(whole), RULES[name].init(part)
    for step in range(3):
        gradient = {"a": torch.tensor([0.3, -0.2]), "b": torch.ones(1, 1)}
        RULES[name].step(whole, release(step, gradient), states[0])
        RULES[name].step(part, release(step, {"a": gradient["a"]}), states[1])
    assert torch.equal(whole["a"], part["a"])


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (SGD(0.1, momentum=0.9, weight_decay=0.01), lambda p: torch.optim.SGD(p, 0.1, 0.9, weight_decay=0.01)),
        (Adam(0.03), lambda p: torch.optim.Adam(p, 0.03)),
        (Adam(0.03, weight_decay=0.1), lambda p: torch.optim.AdamW(p, 0.03, weight_decay=0.1)),
    ],
    ids=["sgd", "adam", "adamw"],
)
def test_equals_torch(ours, theirs) -> None:
    mine, other = parameters(), parameters()
    state, optimizer = ours.init(mine), theirs(other.values())
    generator = torch.Generator().manual_seed(0)
    for step in range(20):
        gradient = {n: torch.randn(p.shape, generator=generator) for n, p in mine.items()}
        ours.step(mine, release(step, gradient), state)
        for name, parameter in other.items():
            parameter.grad = gradient[name].clone()
        optimizer.step()
    for name in mine:
        assert torch.allclose(mine[name], other[name], atol=1e-6)


def test_sgd_by_hand() -> None:
    params = {"w": torch.nn.Parameter(torch.tensor([2.0]))}
    optimizer = SGD(0.5, momentum=0.5)
    state = optimizer.init(params)
    optimizer.step(params, release(0, {"w": torch.tensor([1.0])}), state)  # m = 1, w = 1.5
    optimizer.step(params, release(1, {"w": torch.tensor([1.0])}), state)  # m = 1.5, w = 0.75
    assert params["w"].item() == 0.75


def test_groups_by_hand() -> None:
    params = parameters()
    optimizer = Grouped((("a", SGD(0.5)), ("*", SGD(0.1))))
    optimizer.step(params, release(0, {"a": torch.ones(2), "b": torch.ones(1, 1)}), optimizer.init(params))
    assert params["a"].tolist() == [-0.5, -0.5]
    assert params["b"].item() == pytest.approx(0.9)
    with pytest.raises(InvalidInputError, match="'b'"):
        Grouped((("a", SGD(0.5)),)).init(params)
    with pytest.raises(InvalidInputError):
        Grouped((("*", SGD(0.5)), ("*", SGD(0.1)))).init(params)


def test_ftrl_by_hand() -> None:
    """θₜ = θ₀ − η s̃ₜ; with momentum mₜ = γ mₜ₋₁ + s̃ₜ in the place of s̃ₜ (Kairouz et al. 2021)."""
    params = {"w": torch.nn.Parameter(torch.tensor([2.0]))}
    optimizer = FTRL(0.5, momentum=0.5)
    state = optimizer.init(params)
    optimizer.step(params, release(0, {"w": torch.tensor([1.0])}), state)  # s = 1, m = 1
    assert params["w"].item() == 1.5
    optimizer.step(params, release(1, {"w": torch.tensor([3.0])}), state)  # s = 4, m = 4.5
    assert params["w"].item() == -0.25
    plain = {"w": torch.nn.Parameter(torch.tensor([2.0]))}
    optimizer = FTRL(0.5)
    state = optimizer.init(plain)
    for step, gradient in enumerate([1.0, -4.0, 2.0]):
        optimizer.step(plain, release(step, {"w": torch.tensor([gradient])}), state)
    assert plain["w"].item() == 2.5  # 2 − 0.5 · (1 − 4 + 2)


def test_ftrl_forgets_nothing_and_drifts_nowhere() -> None:
    """Noise that cancels in the sum is gone from the weights exactly, however small the weights are beside it."""
    params = {"w": torch.nn.Parameter(torch.tensor([0.1]))}
    optimizer = FTRL(1.0)
    state = optimizer.init(params)
    for step, gradient in enumerate([2.0**20, -(2.0**20)] * 3):
        optimizer.step(params, release(step, {"w": torch.tensor([gradient])}), state)
    assert params["w"].item() == torch.tensor(0.1).item()


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_ftrl_is_sgd_in_increments(momentum: float) -> None:
    mine, other = parameters(), parameters()
    rules = FTRL(0.1, momentum), SGD(0.1, momentum)
    states = rules[0].init(mine), rules[1].init(other)
    generator = torch.Generator().manual_seed(0)
    for step in range(20):
        gradient = {n: torch.randn(p.shape, generator=generator) for n, p in mine.items()}
        rules[0].step(mine, release(step, gradient), states[0])
        rules[1].step(other, release(step, gradient), states[1])
    assert all(torch.allclose(mine[n], other[n], atol=1e-5) for n in mine)


def test_schedules() -> None:
    cosine = Cosine(1.0, 110, warmup=10, floor=0.1)
    assert cosine(0) == pytest.approx(0.1)
    assert cosine(9) == 1.0
    assert cosine(60) == pytest.approx(0.55)
    assert cosine(110) == cosine(500) == pytest.approx(0.1)
    assert Linear(1.0, 0.0, 10)(5) == 0.5


def test_rules_that_read_the_loss_are_refused() -> None:
    params = parameters()
    with pytest.raises(NotProvenError):
        TorchOptim(lambda p: torch.optim.LBFGS(p.values())).init(params)
    plateau = TorchOptim(lambda p: torch.optim.SGD(p.values(), 0.1), torch.optim.lr_scheduler.ReduceLROnPlateau)
    with pytest.raises(NotProvenError):
        plateau.init(params)


def test_foreign_parameters_are_refused() -> None:
    other = torch.nn.Parameter(torch.zeros(1))
    with pytest.raises(InvalidInputError, match="parameters"):
        TorchOptim(lambda p: torch.optim.SGD([other], 0.1)).init(parameters())


@pytest.mark.parametrize("lr", [0.0, -1.0, math.nan, math.inf])
@pytest.mark.parametrize("kind", [SGD, Adam, AdamBC, FTRL])
def test_a_bad_learning_rate_is_refused(kind, lr: float) -> None:
    with pytest.raises(InvalidInputError):
        kind(lr)


@pytest.mark.parametrize("kind", [SGD, FTRL])
@pytest.mark.parametrize("momentum", [-0.1, 1.0, 2.0])
def test_momentum_is_a_part_of_the_last_update(kind: type, momentum: float) -> None:
    with pytest.raises(InvalidInputError, match="0.*1"):
        kind(0.1, momentum)
