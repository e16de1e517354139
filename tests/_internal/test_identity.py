"""Plan fingerprints come from declared fields; two different plans never share one, and undeclared objects have
none."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.optim import lr_scheduler

from hush._internal.identity import IdentityScope, NoIdentity, declared, digest
from hush._internal.tensors import Named, State
from hush.checkpointing import Checkpoints
from hush.clipping import Channel, ClippedSum
from hush.errors import InvalidInputError, NotProvenError, ResumeError
from hush.matrix_factorization import Diagonal
from hush.methods import catalogue, make_plan
from hush.noise import Independent, Stages
from hush.noise.base import NoisyGradient
from hush.optimizers import SGD, Adam, Cosine, Grouped, TorchOptim
from hush.plan import Plan
from hush.training import take_steps

N, STEPS = 40, 10


def losses(model: nn.Module, content) -> torch.Tensor:
    return functional.cross_entropy(model(content[0]), content[1], reduction="none")


def data() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(N, 6, generator=generator), torch.randint(0, 3, (N,), generator=generator)


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))


def params() -> dict[str, torch.Tensor]:
    return dict(model().named_parameters())


def plan(method: str = "dp-sgd", **changes) -> Plan:
    how = {"examples": N, "batch_size": 8, "steps": STEPS, "accept_claimed": True, **changes}
    if method != "sgd":
        how.setdefault("noise_multiplier", 1.0)
    return make_plan(method, **how)


def scheduled(schedule: Callable[[int], float]) -> Plan:
    return replace(plan(), noise=Independent(STEPS, schedule))


def with_rule(optimizer: Any) -> Plan:
    return replace(plan(), optimizer=optimizer)


def secret_of(p: Plan, seed: int = 5) -> bytes:
    return p.start(model(), losses, data(), secret=seed).secret.key


def stopped(p: Plan, directory, after: int) -> None:
    run, kept = p.start(model(), losses, data()), Checkpoints(directory)
    kept.begin(run)
    steps = take_steps(run, checkpoints=kept, every=1)
    for _ in range(after):
        next(steps)
    kept.close()


def resume(p: Plan, directory) -> None:
    run, kept = p.start(model(), losses, data()), Checkpoints(directory)
    try:
        kept.restore(run, kept.newest().saved)
        for _ in take_steps(run, checkpoints=kept, every=1):
            pass
    finally:
        kept.close()


def test_another_noise_schedule_does_not_take_over_the_first_ones_steps(tmp_path) -> None:
    """Eight of ten steps with 0.3 of the noise, the rest under a schedule with more: its ε is not the run's."""
    spent, stated = (scheduled(lambda step, low=low: low).guarantee().epsilon for low in (0.3, 3.0))
    assert spent > 10 * stated
    stopped(scheduled(lambda step: 0.3), tmp_path, 8)
    with pytest.raises(ResumeError, match=r"\(noise\.scales\.first"):
        resume(scheduled(lambda step: 3.0), tmp_path)


def test_schedules_that_differ_in_one_late_step_are_two() -> None:
    assert secret_of(scheduled(lambda step: 1.0)) != secret_of(scheduled(lambda step: 1.0 if step < 9 else 0.5))
    assert secret_of(scheduled(lambda step: 1.0)) == secret_of(scheduled(lambda step: 2.0 - 1.0))


def test_two_learning_rates_do_not_share_the_secret_of_one_seed() -> None:
    first, second = (with_rule(SGD(lambda step, low=low: low / (1 + step))) for low in (0.1, 0.2))
    assert secret_of(first) != secret_of(second)
    assert secret_of(first) == secret_of(with_rule(SGD(lambda step: 0.1 / (1 + step))))
    assert secret_of(with_rule(SGD(Cosine(0.1, STEPS)))) != secret_of(with_rule(SGD(Cosine(0.1, STEPS, floor=0.01))))


def optimizer(make: Callable[[list[torch.Tensor]], torch.optim.Optimizer], scheduler: Any = None) -> Plan:
    return with_rule(TorchOptim(lambda named: make(list(named.values())), scheduler))


OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "another rate": lambda p: torch.optim.SGD(p, lr=0.2),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "adam": lambda p: torch.optim.Adam(p, lr=0.1),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.1),
    "betas": lambda p: torch.optim.Adam(p, lr=0.1, betas=(0.8, 0.99)),
    "groups": lambda p: torch.optim.SGD([{"params": p[:1], "lr": 0.2}, {"params": p[1:]}], lr=0.1),
    "other groups": lambda p: torch.optim.SGD([{"params": p[:2], "lr": 0.2}, {"params": p[2:]}], lr=0.1),
    "only some": lambda p: torch.optim.SGD(p[:2], lr=0.1),
}
SCHEDULERS = {
    "lambda": lambda o: lr_scheduler.LambdaLR(o, lambda n: 1 / (1 + n)),
    "another lambda": lambda o: lr_scheduler.LambdaLR(o, lambda n: 1 / (2 + n)),
    "late": lambda o: lr_scheduler.LambdaLR(o, lambda n: 1 / (1 + n) if n < STEPS else 0.0),
    "cosine": lambda o: lr_scheduler.CosineAnnealingLR(o, STEPS),
    "one cycle": lambda o: lr_scheduler.OneCycleLR(o, 0.5, STEPS),
    "momentum's cycle": lambda o: lr_scheduler.OneCycleLR(o, 0.5, STEPS, base_momentum=0.5),
}


def test_an_optimizer_given_as_a_function_is_what_it_builds() -> None:
    made = [optimizer(make).fingerprint(params()) for make in OPTIMIZERS.values()]
    assert len(set(made)) == len(OPTIMIZERS)
    again = optimizer(lambda p: torch.optim.SGD(p, 0.1)).fingerprint(params())
    assert again == made[0]
    momentum = OPTIMIZERS["momentum"]
    followed = [optimizer(momentum, scheduler).fingerprint(params()) for scheduler in SCHEDULERS.values()]
    assert len({*followed, made[2]}) == len(SCHEDULERS) + 1


def test_building_an_optimizer_for_its_identity_leaves_the_model_alone() -> None:
    named = params()
    before = {name: p.detach().clone() for name, p in named.items()}
    optimizer(OPTIMIZERS["momentum"], SCHEDULERS["one cycle"]).fingerprint(named)
    assert all(torch.equal(before[n], p) and p.grad is None for n, p in named.items())


class Strange(torch.optim.SGD):
    def step(self, closure=None):
        raise RuntimeError("no gradients, no step")


@dataclass(frozen=True)
class Own:
    """Somebody's rule: declared fields."""

    lr: float = 0.1
    how: Any = None

    def init(self, params):
        return {}

    def step(self, params, release, state):
        return {name: p.sub_(self.lr * release.gradient[name]) for name, p in params.items()}


class Opaque(Own):
    """Of a class without fields of its own, whose state nobody declares."""


class Bare:
    def init(self, params):
        return {}

    def step(self, params, release, state):
        return {name: p.sub_(0.1 * release.gradient[name]) for name, p in params.items()}


@dataclass(frozen=True)
class Declared(Own):
    def declared(self, scope):
        return {"lr": self.lr, "steps": scope.steps}


def inside() -> Any:
    @dataclass(frozen=True)
    class Local(Own):
        pass

    return Local()


UNKNOWN = {
    "a function in a field": (Own(how=lambda x: x), r"rule\.how is a .*<lambda>"),
    "an object": (Own(how=object()), r"rule\.how is a object"),
    "no fields at all": (Bare(), r"rule is a Bare"),
    "within a group": (Grouped((("*", Own(how=print)),)), r"rule\.groups\.0\.1\.how is a print"),
    "a class of its own in a function": (inside(), "defined inside a function"),
    "an optimizer that needs gradients": (
        TorchOptim(lambda p: Strange(p.values(), lr=0.1), lambda o: lr_scheduler.ConstantLR(o)),
        "no gradients, no step",
    ),
    "an array of objects": (Own(how=np.array([object()])), "array of Python objects"),
}


@pytest.mark.parametrize("which", UNKNOWN)
def test_what_cannot_be_told_has_no_identity(which, tmp_path, capsys) -> None:
    optimizer, why = UNKNOWN[which]
    p = with_rule(optimizer)
    with pytest.raises(InvalidInputError, match=f"takes no secret seed.*{why}"):
        p.start(model(), losses, data(), secret=3)
    if which.startswith("an optimizer"):
        return  # it does not run either
    stopped(p, tmp_path, 2)
    assert "not resumed" in capsys.readouterr().err
    with pytest.raises(ResumeError, match=f"cannot be resumed.*{why}"):
        resume(p, tmp_path)
    with pytest.raises(ResumeError):
        resume(plan(), tmp_path)


def test_what_declares_itself_has_one(tmp_path) -> None:
    assert secret_of(with_rule(Declared(0.1))) != secret_of(with_rule(Declared(0.2)))
    assert secret_of(with_rule(Own(0.1))) != secret_of(with_rule(Declared(0.1)))
    stopped(with_rule(Declared(0.1)), tmp_path, 2)
    resume(with_rule(Declared(0.1)), tmp_path)


CHANGES = [
    {"noise_multiplier": 1.5},
    {"delta": 1e-6},
    {"batch_size": 10},
    {"sample_rate": 0.3},
    {"sampling": "same-order"},
    {"sampling": "fixed-size", "adjacency": "replace"},
    {"clip": 0.5},
    {"clip_mode": "normalised"},
    {"lr": 0.25},
    {"momentum": 0.5},
    {"clip_quantile": 0.5},
    {"average": "ema:0.9"},
    {"noise_end": 0.5},
    {"noise_end": 0.5, "noise_stages": 3},
    {"accountant": "rdp"},
    {"assumptions": ("the moon is round",)},
]


def test_every_setting_and_method_makes_another_plan() -> None:
    plans = [plan(), *(plan(**change) for change in CHANGES), plan(steps=STEPS - 1)]
    plans += [plan(name) for name in catalogue() if name != "dp-sgd"]
    plans += [with_rule(Adam()), scheduled(Stages(STEPS, 0.9))]
    assert len({p.fingerprint() for p in plans}) == len(plans)
    assert plan().fingerprint() == plan().fingerprint()


KNOWN = {
    "independent": ({}, "4f5f50af48786c95894fb4058abe53d7"),
    "schedule": ({"noise_end": 0.25, "noise_stages": 3}, "f620b45d8a816e4c0a75bc067d0de076"),
    "same order": ({"sampling": "same-order"}, "89fc22a17e8ec0764a85a23a0cc020dd"),
    "tree": ({"method": "dp-ftrl"}, "57254a4ede3ddcc0d7b064a2f490828d"),
}


@pytest.mark.parametrize("which", KNOWN)
def test_a_plan_keeps_its_fingerprint(which) -> None:
    """Noise that was drawn from a seed, and checkpoints that were kept, are bound to it."""
    changes, expected = KNOWN[which]
    assert plan(accept_claimed=False, **changes).fingerprint() == expected


@dataclass(frozen=True)
class Marked(Own):
    weights: Any = field(default_factory=lambda: np.arange(3.0))


def test_arrays_count_to_the_last_bit_and_by_their_type() -> None:
    near = np.array([0.0, 1.0, np.nextafter(2.0, 3.0)])
    kinds = [np.arange(3.0), near, np.arange(3.0, dtype=np.float32), np.arange(3), np.arange(3.0)[:, None]]
    kinds += [torch.arange(3.0), torch.arange(3.0, dtype=torch.float64)]
    assert len({with_rule(Marked(weights=weights)).fingerprint() for weights in kinds}) == len(kinds)
    assert with_rule(Marked()).fingerprint() == with_rule(Marked(weights=np.arange(6.0)[:3])).fingerprint()


# Objects with behaviour outside their fields: a different fingerprint, or none.


SCOPE = IdentityScope(4)


def plan_edges(**changes) -> Plan:
    found = make_plan("dp-sgd", examples=40, batch_size=10, steps=4, noise_multiplier=0.9)
    return replace(found, **changes)


class Up(NamedTuple):
    lr: float

    def init(self, params: Named) -> State:
        return {}

    def step(self, params: Named, release: NoisyGradient, state: State) -> Named:
        return {}


class Down(NamedTuple):
    lr: float

    init = Up.init
    step = Up.step


class Kept(SGD):
    """No dataclass of its own: what it adds is no field."""

    def __init__(self, extra: Any) -> None:
        super().__init__(0.1)
        object.__setattr__(self, "extra", extra)


@dataclass(frozen=True)
class Slotted:
    lr: float


class Hidden(Slotted):
    __slots__ = ("extra",)

    def __init__(self, extra: Any) -> None:
        super().__init__(0.1)
        object.__setattr__(self, "extra", extra)


class Mode(StrEnum):
    FAST = "fast"


class Stepping(torch.optim.SGD):
    def __init__(self, params: Any, power: Any) -> None:
        super().__init__(params, lr=0.1)
        self.power = power


def fingerprint(value: Any) -> str:
    return digest(declared(value, SCOPE))


def test_two_classes_of_named_tuples() -> None:
    assert plan_edges(optimizer=Up(0.1)).fingerprint() != plan_edges(optimizer=Down(0.1)).fingerprint()
    assert plan_edges(optimizer=Up(0.1)).fingerprint() == plan_edges(optimizer=Up(0.1)).fingerprint()
    assert fingerprint(Mode.FAST) != fingerprint("fast")
    assert fingerprint((1, 2)) == fingerprint([1, 2])
    assert fingerprint(torch.Size([1, 2])) != fingerprint((1, 3))
    assert fingerprint(np.float64(0.5)) == fingerprint(np.float64(0.5)) != fingerprint(np.float64(0.25))


@pytest.mark.parametrize("kind", [Kept, Hidden])
def test_attributes_that_are_no_fields(kind: Callable[[Any], Any]) -> None:
    assert fingerprint(kind(1)) != fingerprint(kind(2))
    assert fingerprint(kind(1)) == fingerprint(kind(1))
    with pytest.raises(NoIdentity):
        fingerprint(kind(lambda step: 1.0))


def test_what_was_computed_once_and_kept_is_no_attribute() -> None:
    one, other = plan_edges(), plan_edges()
    assert one.sensitivity == 1.0
    assert one.charge
    assert one.fingerprint() == other.fingerprint()


def test_an_optimizers_own_attributes_and_hooks() -> None:
    params = {"w": nn.Parameter(torch.zeros(2))}

    def made(build: Callable[[Named], torch.optim.Optimizer]) -> str:
        return plan_edges(optimizer=TorchOptim(build)).fingerprint(params)

    assert made(lambda p: Stepping(p.values(), 1)) != made(lambda p: Stepping(p.values(), 2))
    assert made(lambda p: Stepping(p.values(), 1)) == made(lambda p: Stepping(p.values(), 1))
    with pytest.raises(NoIdentity):
        made(lambda p: Stepping(p.values(), lambda step: 1))

    def hooked(p: Named) -> torch.optim.Optimizer:
        found = torch.optim.SGD(p.values(), lr=0.1)
        found.register_step_pre_hook(lambda *_: None)
        return found

    with pytest.raises(NoIdentity, match="hooks"):
        made(hooked)
    for build in (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.RMSprop, torch.optim.Adagrad):
        assert made(lambda p, build=build: build(p.values(), lr=0.1))
    cosine = TorchOptim(
        lambda p: torch.optim.SGD(p.values(), lr=0.1), lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 4)
    )
    assert plan_edges(optimizer=cosine).fingerprint(params) == plan_edges(optimizer=cosine).fingerprint(params)


class Loose(ClippedSum):
    """A query whose bound somebody can change after the plan was made."""

    @property
    def channels(self) -> dict[str, Channel]:
        return {name: replace(c, bound=BOUND[0]) for name, c in super().channels.items()}


BOUND = [1.0]


def test_a_bound_that_changed_after_the_run_was_started_is_refused() -> None:
    found = plan_edges(query=Loose(1.0))
    x = torch.randn(40, 3)
    try:
        run = found.start(nn.Linear(3, 1), lambda model, content: model(content[0]).sum(1), (x,))
        batches = run.batches()
        run.step(next(batches))
        BOUND[0] = 100.0
        with pytest.raises(NotProvenError):
            run.step(next(batches))
    finally:
        BOUND[0] = 1.0


@dataclass(frozen=True)
class Tilted(Diagonal):
    tilt: float = 0.0


class Leaning(Independent):
    """No dataclass of its own."""

    def __init__(self, tilt: float) -> None:
        super().__init__(4)
        object.__setattr__(self, "tilt", tilt)


@pytest.mark.parametrize("kind", [lambda tilt: Tilted(4, None, tilt), Leaning])
def test_a_subclass_of_what_declares_itself_is_of_another_kind(kind: Callable[[float], Any]) -> None:
    assert fingerprint(kind(1.0)) != fingerprint(kind(2.0))
    assert fingerprint(kind(1.0)) == fingerprint(kind(1.0))
    assert fingerprint(Tilted(4)) != fingerprint(Diagonal(4))
    assert fingerprint(Independent(4)) != fingerprint(Leaning(0.0))
