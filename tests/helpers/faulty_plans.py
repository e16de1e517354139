"""Plans that claim one thing and do another: each is a real plan with one faulty part."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import hush
from hush._internal.tensors import Losses, State, Sums
from hush.audit.canary import LONG, CanarySetup, make_digits_setup
from hush.clipping.adaptive import CHANNEL, Adaptive
from hush.clipping.clipped import clipped_sums
from hush.noise.base import Noise, Rows
from hush.per_example.gradients import per_example_gradients
from hush.per_example.result import PerExampleGradients
from hush.randomness import Secret, generator
from hush.sampling import PoissonSampled


@dataclass(frozen=True)
class Scaled:
    """A noise that is smaller than it says."""

    inner: Noise
    factor: float

    @property
    def structure(self) -> Any:
        return self.inner.structure

    @property
    def pieces(self) -> bool:
        return self.inner.pieces

    def init(self, like: Tensor) -> State:
        return self.inner.init(like)

    def draw(self, step: int, z: Rows, state: State) -> tuple[Tensor, State]:
        piece, state = self.inner.draw(step, z, state)
        return piece * self.factor, state

    def std(self, step: int) -> float:
        return self.inner.std(step)


@dataclass(frozen=True, eq=False)
class Mapped(Scaled):
    """A noise of another map than its structure says: row t of ``rows`` times Z."""

    rows: np.ndarray = field(default_factory=lambda: np.eye(1))

    @property
    def pieces(self) -> bool:
        return False

    def draw(self, step: int, z: Rows, state: State) -> tuple[Tensor, State]:
        return sum(float(w) * z(j) for j, w in enumerate(self.rows[step]) if w), state  # type: ignore[return-value]


@dataclass(frozen=True, eq=False)
class Reused(Scaled):
    """A noise that every second run has in common with the run before it."""

    kept: dict[int, Tensor] = field(default_factory=dict)

    @property
    def pieces(self) -> bool:
        return False

    def draw(self, step: int, z: Rows, state: State) -> tuple[Tensor, State]:
        if step in self.kept:
            return self.kept.pop(step), state
        self.kept[step] = self.inner.draw(step, z, state)[0]
        return self.kept[step].clone(), state


@dataclass(frozen=True)
class OneLayerUnclipped(hush.ClippedSum):
    """Clips by the norm over all layers but one, and leaves that one out."""

    left_out: str = "lower.weight"

    def piece(self, model: nn.Module, losses: Losses, content: Any, public: State) -> Sums:
        tape = self.tape(model, losses, content, public)
        sums = clipped_sums(tape, self.clipping)
        whole = tape.sum(torch.ones(len(tape.losses), dtype=torch.float64))
        return {**sums, "gradient": {**sums["gradient"], self.left_out: whole[self.left_out]}}


@dataclass(frozen=True)
class RealLength(hush.ClippedSum):
    """Divides by the number of examples there are, and not by the public one."""

    expected: float = 1.0

    def tape(self, model: nn.Module, losses: Losses, content: Any, public: State) -> PerExampleGradients:
        return per_example_gradients(model, losses, content, engine=self.engine)

    def finish(self, sums: Sums, public: State, private: State) -> tuple[Sums, State]:
        scale = self.expected / float(sums["diagnostics"]["examples"])
        return {"gradient": {name: value * scale for name, value in sums["gradient"].items()}}, private


@dataclass(frozen=True)
class LoudCounts(Adaptive):
    """Adaptive clipping with a twentieth of its noise on the count."""

    def finish(self, sums: Sums, public: State, private: State) -> tuple[Sums, State]:
        channels, private = super().finish(sums, public, private)
        return {**channels, CHANNEL: {"count": 20 * channels[CHANNEL]["count"]}}, private


@dataclass(frozen=True)
class CalledPoisson:
    """Batches in the order of the data, from its end on and the same every epoch, which are said to be sampled."""

    examples: int
    batch_size: int
    steps: int

    @property
    def participation(self) -> PoissonSampled:
        return PoissonSampled(self.batch_size / self.examples, self.steps)

    @property
    def largest_batch(self) -> int:
        return 2 * self.batch_size

    def indices(self, secret: Secret, step: int, population: int) -> Tensor:
        last = population - step * self.batch_size
        return torch.arange(max(0, last - self.batch_size), max(0, last))


@dataclass(frozen=True)
class SecretOrder(CalledPoisson):
    """Fixed batches in a secret order, the same every epoch, which are said to be sampled."""

    def indices(self, secret: Secret, step: int, population: int) -> Tensor:
        batches = self.examples // self.batch_size
        order = generator(secret, "sampling", 0).permutation(population)
        return torch.from_numpy(order[step % batches :: batches].copy())


def halve_noise(plan: hush.Plan) -> hush.Plan:
    return dataclasses.replace(plan, noise=Scaled(plan.noise, 0.5))


def add_float32_noise(
    sums: Iterable[Tensor], noise: Iterable[Tensor], scale: float, spacing: float, divisor: float
) -> None:
    """As one would write it: float32 throughout, and no grid."""
    flat = torch.cat([piece.float() * scale for piece in noise])
    for total in sums:
        count = total.numel()
        total.copy_(((total.float().reshape(-1) + flat[:count]) / divisor).view(total.shape))
        flat = flat[count:]


def make_crowded_setup() -> CanarySetup:
    """Every other example pulls against the canary, at the clip."""
    setup = make_digits_setup()
    blank = setup.canary[0].expand(200, -1).clone()

    def losses(model: nn.Module, content: Any) -> Tensor:
        images, _, kinds, amounts = content
        return torch.where(kinds, LONG * amounts, -LONG * torch.ones_like(amounts)) * model(images).sum(1)

    return dataclasses.replace(setup, losses=losses, rows=(blank, torch.zeros(200, dtype=torch.int64)))
