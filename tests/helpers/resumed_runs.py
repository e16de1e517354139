"""Small runs without interruption, or stopped with a checkpoint and resumed."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

from hush.checkpointing import Checkpoints
from hush.methods import catalogue, make_plan
from hush.plan import Plan
from hush.training import take_steps

N, STEPS = 40, 7
METHODS = [name for name in catalogue() if not name.startswith("sanitize")]  # these need a layer: tests/sanitize


def losses(model: nn.Module, content) -> torch.Tensor:
    return functional.cross_entropy(model(content[0]), content[1], reduction="none")


def data(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(N, 6, generator=generator), torch.randint(0, 3, (N,), generator=generator)


def model(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Dropout(0.3), nn.Linear(5, 3))


def plan(method: str = "dp-sgd", **changes) -> Plan:
    how = {"examples": N, "batch_size": 8, "steps": STEPS, "accept_claimed": True, **changes}
    if method != "sgd":
        how.setdefault("noise_multiplier", 2.0 if method == "dp-dice" else 0.7)  # its memory moves far
    return make_plan(method, **how)


def start(p: Plan, *, secret: int | None = 3, **how):
    return p.start(how.pop("model", None) or model(), losses, how.pop("data", None) or data(), secret=secret, **how)


def straight(p: Plan, **how) -> dict[str, torch.Tensor]:
    run = start(p, **how)
    for _ in take_steps(run):
        pass
    return {n: v.clone() for n, v in run.model.state_dict().items()}


def stopped(p: Plan, directory: Path, after: int, **how) -> None:
    """A run that is stopped after some steps, with a checkpoint there."""
    run, kept = start(p, **how), Checkpoints(directory)
    kept.begin(run)
    steps = take_steps(run, checkpoints=kept, every=1)
    for _ in range(after):
        next(steps)
    assert run.next == after
    kept.close()


def resumed(p: Plan, directory: Path, **how) -> dict[str, torch.Tensor]:
    run, kept = start(p, **{"secret": None, "model": model(seed=99), **how}), Checkpoints(directory)
    saved = kept.newest().saved
    assert saved is not None
    kept.restore(run, saved)
    for _ in take_steps(run, checkpoints=kept, every=3):
        pass
    kept.close()
    return run.model.state_dict()


def same(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[n], second[n]) for n in first)
