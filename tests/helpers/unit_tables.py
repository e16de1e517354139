"""Tables in which a unit has several rows, and small runs on them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from hush import make_plan
from hush.plan import Plan

CLIP, MOST, UNITS = 0.5, 3, 24


def losses(model: nn.Module, content: Any) -> Tensor:
    return F.cross_entropy(model(content[0]), content[1], reduction="none")


def make_model(dropout: float = 0.0) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Dropout(dropout), nn.Linear(6, 2))


@dataclass(frozen=True)
class Table:
    """Rows and whose they are; the last unit comes last, with many rows."""

    x: Tensor
    y: Tensor
    ids: list[str]

    @property
    def content(self) -> tuple[Tensor, Tensor]:
        return self.x, self.y

    def without_last(self) -> Table:
        kept = torch.tensor([name != self.ids[-1] for name in self.ids])
        return Table(self.x[kept], self.y[kept], [name for name in self.ids if name != self.ids[-1]])


def make_table(units: int = UNITS, scale: float = 30.0) -> Table:
    """Units of 1 to 7 rows; the last has 20, which all pull into one direction."""
    counts = [1 + 3 * i % 7 for i in range(units - 1)] + [20]
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(sum(counts), 4, generator=generator)
    x[-20:] = scale * torch.ones(4)
    y = torch.randint(2, (len(x),), generator=generator)
    y[-20:] = 1
    return Table(x, y, [f"p{i}" for i, count in enumerate(counts) for _ in range(count)])


def make(**given: Any) -> Plan:
    chosen = {"examples": UNITS, "batch_size": 12, "steps": 4, "noise_multiplier": 1.0, "clip": CLIP, "lr": 0.1}
    return make_plan("dp-sgd", **(chosen | {"unit": "patient_id"} | given))


def start(plan: Plan, table: Table, *, secret: int = 1, **how: Any):
    chosen = {"unit": table.ids, "rows_per_unit": MOST}
    return plan.start(make_model(), losses, table.content, secret=secret, **(chosen | how))


def params(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def trained(run: Any) -> Tensor:
    for batch in run.batches():
        run.step(batch)
    return params(run.model)
