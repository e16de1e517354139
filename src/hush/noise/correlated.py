"""Correlated noise, one step at a time, in bounded memory: the noise of step t is row t of MZ, where MC = I.

| strategy                   | kept between steps              | cost per step           |
|----------------------------|---------------------------------|-------------------------|
| Diagonal                   | nothing                         | one multiplication      |
| Toeplitz, banded (w bands) | the last w − 1 noise vectors    | w − 1 multiply-adds     |
| Toeplitz, inverse banded   | the last w − 1 rows of Z        | w − 1 multiply-adds     |
| BLT (p buffers)            | p vectors                       | 2p multiply-adds        |
| Tree                       | one vector per level            | two or three additions  |
| Dense                      | a block of noise vectors ahead  | see `DenseNoise`        |

Nothing here depends on privacy. A noise declares its strategy; the tests send impulses through every noise to show that
the two agree.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from hush._internal import validate
from hush._internal.tensors import State
from hush.errors import NotProvenError
from hush.matrix_factorization import (
    BLT,
    BandedMatrix,
    Dense,
    Diagonal,
    Strategy,
    Toeplitz,
    Tree,
    Workload,
    best_banded,
    prefix_sums,
)
from hush.matrix_factorization.sensitivity import Array
from hush.noise.base import Noise, Rows, Stream
from hush.noise.independent import Independent

ROWS_AT_A_TIME = 16  # rows of Z in memory, in addition to the block


@dataclass(frozen=True)
class DenseNoise(Stream):
    """Noise of a dense C: C⁻¹Z in blocks of steps, with Z recomputed from its counter for every block.

    A block holds the noise of the next m steps. Computing it reads all rows of Z up to its end once, a few at a time:
    memory is O(m·d), never O(T·d), and Z is computed T/(2m) times in all. Products and normal numbers are far cheaper
    than gradients. ``memory`` limits the block, in bytes; it changes the last bit of the rounding, so it is part of the
    plan.
    """

    structure: Dense
    memory: int = 192 << 20

    def __post_init__(self) -> None:
        validate.positive_int(memory=self.memory)

    def init(self, like: Tensor) -> State:
        """Empty: a block is scratch, recomputed from the secret when it is missing."""
        return {}

    def draw(self, step: int, z: Rows, state: State) -> tuple[Tensor, State]:
        if "_block" not in state or not state["_start"] <= step < state["_start"] + len(state["_block"]):
            state.pop("_block", None)  # free the old block before allocating the new one
            state["_start"], state["_block"] = self._block(step, z)
        return state["_block"][step - state["_start"]].clone(), state  # a view would keep the old block alive

    def _block(self, step: int, z: Rows) -> tuple[int, Tensor]:
        first = z(0)
        size = max(1, min(self.structure.steps, self.memory // (first.numel() * first.element_size() or 1)))
        start = step // size * size
        stop = min(start + size, self.structure.steps)
        weights = torch.from_numpy(np.array(self.structure.inverse[start:stop, :stop])).to(first.device, first.dtype)
        block = first.new_zeros(stop - start, first.numel())
        for low in range(0, stop, ROWS_AT_A_TIME):
            rows = torch.stack([first if j == 0 else z(j) for j in range(low, min(low + ROWS_AT_A_TIME, stop))])
            block.addmm_(weights[:, low : low + ROWS_AT_A_TIME], rows)
        return start, block


CACHED = 1 << 15  # coordinates of a BLT's buffers at a time: they stay in the processor's cache


def make_noise(structure: Strategy) -> Noise:
    """The noise of a strategy."""
    match structure:
        case Diagonal(steps=steps, scales=scales):
            return Independent(steps, None if scales is None else scales.__getitem__)
        case Toeplitz(inverse_banded=True):
            return WindowNoise(structure)
        case Toeplitz() | BandedMatrix():
            return BandedNoise(structure)
        case BLT():
            return BLTNoise(structure)
        case Tree():
            return TreeNoise(structure)
        case Dense():
            return DenseNoise(structure)
    raise NotProvenError(
        f"no noise is known for the strategy {type(structure).__name__}: implement `hush.noise.Noise` for it"
    )


@dataclass(frozen=True)
class Banded:
    """Banded noise whose strategy is optimised for a plan: for `hush.Plan.calibrated` with cyclic Poisson batches.

    ``workload`` says which sums of the noise reach the model; prefix sums of the plan's steps by default.
    """

    bands: int
    workload: Workload | None = None

    def __post_init__(self) -> None:
        validate.positive_int(bands=self.bands)

    def build(self, steps: int) -> Noise:
        workload = prefix_sums(steps) if self.workload is None else self.workload
        return make_noise(best_banded(workload, self.bands))


@dataclass(frozen=True)
class BandedNoise(Stream):
    """C has w bands: nₜ = (zₜ − Σ_{1≤j<w} C_{t,t−j} nₜ₋ⱼ)/C_tt, from a ring of the last w − 1 noise vectors."""

    structure: Toeplitz | BandedMatrix

    def init(self, like: Tensor) -> State:
        return {"ring": like.new_zeros(_width(self.structure) - 1, like.numel())}

    def draw(self, step: int, z: Rows, state: State) -> tuple[Tensor, State]:
        row = self._row(step)
        noise = _add_ring(z(step), state["ring"], step, -row[1:])
        if row[0] != 1.0:
            noise.div_(float(row[0]))
        _into_ring(state["ring"], step, noise)
        return noise, state

    def _row(self, step: int) -> Array:
        """C_tt, C_{t,t−1}, …"""
        return self.structure.rows[step] if isinstance(self.structure, BandedMatrix) else self.structure.coefficients


@dataclass(frozen=True)
class WindowNoise(Stream):
    """C⁻¹ has w bands: nₜ = Σ_{j<w} c⁻¹ⱼ zₜ₋ⱼ, from a ring of the last w − 1 rows of Z."""

    structure: Toeplitz

    def init(self, like: Tensor) -> State:
        return {"ring": like.new_zeros(len(self.structure.coefficients) - 1, like.numel())}

    def draw(self, step: int, z: Rows, state: State) -> tuple[Tensor, State]:
        row, weights, ring = z(step), self.structure.coefficients, state["ring"]
        if not len(ring):
            return row.mul_(float(weights[0])) if weights[0] != 1.0 else row, state
        newest = row.clone()
        noise = _add_ring(row.mul_(float(weights[0])), ring, step, weights[1:])
        _into_ring(ring, step, newest)
        return noise, state


@dataclass(frozen=True)
class BLTNoise(Stream):
    """nₜ = zₜ − Σⱼ ωⱼ sⱼ, then sⱼ ← θⱼ sⱼ + nₜ."""

    structure: BLT

    def init(self, like: Tensor) -> State:
        return {"buffers": like.new_zeros(self.structure.buffers, like.numel())}

    def draw(self, step: int, z: Rows, state: State) -> tuple[Tensor, State]:
        noise, buffers = z(step), state["buffers"]
        weights, decays = _numbers(self.structure.omega, buffers), _numbers(self.structure.theta, buffers)[:, None]
        for part, kept in zip(torch.split(noise, CACHED), torch.split(buffers, CACHED, dim=1), strict=True):
            part.addmv_(kept.t(), weights, alpha=-1.0)
            kept.mul_(decays).add_(part)
        return noise, state


@dataclass(frozen=True)
class TreeNoise(Stream):
    """The increment of the estimated prefix sum: new nodes are added, the nodes they merge are subtracted."""

    structure: Tree

    def init(self, like: Tensor) -> State:
        return {"stack": like.new_zeros(self.structure.buffers + 1, like.numel())}

    def draw(self, step: int, z: Rows, state: State) -> tuple[Tensor, State]:
        """The new node's estimate minus the nodes it replaces."""
        now, stack = self.structure.step(step), state["stack"]
        (first, weight), *others = now.rows
        estimate = z(first) if weight == 1.0 else z(first).mul_(weight)
        for row, weight in others:
            estimate.add_(z(row), alpha=weight)
        for level, weight in now.merged:
            if weight:
                estimate.add_(stack[level], alpha=weight)
        stack[now.level].copy_(estimate)  # unused until now, and not read again once the tree ends
        for level, _ in now.merged:
            estimate.sub_(stack[level])
        return estimate, state


def _width(structure: Toeplitz | BandedMatrix) -> int:
    return structure.bands if isinstance(structure, BandedMatrix) else len(structure.coefficients)


def _numbers(values: Array, like: Tensor) -> Tensor:
    return torch.from_numpy(np.array(values)).to(like.device, like.dtype)


def _add_ring(vector: Tensor, ring: Tensor, step: int, weights: Array) -> Tensor:
    """Add Σⱼ weights[j − 1] · (the vector of step − j) in place, as one product with the whole ring."""
    used = min(step, len(ring))
    if used:
        by_place = np.zeros(len(ring))
        by_place[(step - 1 - np.arange(used)) % len(ring)] = weights[:used]
        vector.addmv_(ring.t(), _numbers(by_place, ring))
    return vector


def _into_ring(ring: Tensor, step: int, vector: Tensor) -> None:
    if len(ring):
        ring[step % len(ring)] = vector
