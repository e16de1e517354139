"""Small runs restored to an earlier checkpoint and continued, unchanged or changed."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

from hush.checkpointing import Checkpoints
from hush.ledger.book import Ledger
from hush.ledger.run_account import charge
from hush.methods import make_plan
from hush.plan import Plan
from hush.run import Run
from hush.training import take_steps

N, STEPS, BATCH = 40, 8, 10


def losses(model: nn.Module, content) -> torch.Tensor:
    return functional.cross_entropy(model(content[0]), content[1], reduction="none")


def other_losses(model: nn.Module, content) -> torch.Tensor:
    return functional.cross_entropy(model(content[0]), content[1], reduction="none", label_smoothing=0.1)


def data(n: int = N) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(n, 6, generator=generator), torch.randint(0, 3, (n,), generator=generator)


class Net(nn.Module):
    """Its weights have the same shapes whatever ``power`` is; what it computes differs."""

    def __init__(self, power: float = 1.0) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last, self.power = nn.Linear(6, 5), nn.Linear(5, 3), power

    def forward(self, x):
        return self.last(torch.tanh(self.power * self.first(x)))


def plan(method: str = "dp-sgd", **changes) -> Plan:
    how = {"examples": N, "batch_size": BATCH, "steps": STEPS, "noise_multiplier": 0.9, "accept_claimed": True}
    return make_plan(method, **{**how, **changes})


def start(p: Plan, **how) -> Run:
    made, told = how.pop("model", None) or Net(), how.pop("losses", losses)
    return p.start(made, told, how.pop("data", None) or data(), **how)


def go(run: Run, kept: Checkpoints, until: int = STEPS) -> Run:
    for _ in take_steps(run, checkpoints=kept, every=1):
        if run.next == until:
            break
    return run


def begun(p: Plan, directory: Path, until: int = STEPS, ledger: Path | None = None, **how) -> Run:
    run, kept = start(p, **how), Checkpoints(directory)
    try:
        if ledger is not None:
            charge(run, Ledger(ledger), "d", kept)
        kept.begin(run)
        return go(run, kept, until)
    finally:
        kept.close()


def resumed(p: Plan, directory: Path, until: int = STEPS, ledger: Path | None = None, **how) -> Run:
    run, kept = start(p, **how), Checkpoints(directory)
    try:
        kept.restore(run, kept.newest().saved)
        if ledger is not None:
            charge(run, Ledger(ledger), "d", kept)
        return go(run, kept, until)
    finally:
        kept.close()


def back_to(directory: Path, step: int, tmp: Path) -> None:
    """Only the checkpoint of that step is left, as after a kill or by somebody's hand."""
    for path in directory.glob("checkpoint-*"):
        path.unlink()
    (tmp / f"checkpoint-{step:010d}.safetensors").rename(directory / f"checkpoint-{step:010d}.safetensors")


def taken_back(p: Plan, directory: Path, step: int, **how) -> Run:
    """A finished run whose newest checkpoint is that of ``step``."""
    run, kept = start(p, **how), Checkpoints(directory)
    kept.begin(run)
    aside = directory / "aside"
    aside.mkdir()
    if step == 0:
        _copy(kept, aside)
    for _ in take_steps(run, checkpoints=kept, every=1):
        if run.next == step:
            _copy(kept, aside)
    kept.close()
    back_to(directory, step, aside)
    return run


def _copy(kept: Checkpoints, aside: Path) -> None:
    newest = kept.files()[0]
    (aside / newest.name).write_bytes(newest.read_bytes())


def weights(run: Run) -> torch.Tensor:
    return torch.cat([p.detach().reshape(-1) for p in run.model.parameters()])
