"""Noise of a dense C: C⁻¹Z in blocks of steps, with Z made again from its counter for every block.

A block holds the noise of the next m steps. To make it, all rows of Z up to its end pass by once, a few at a time:
memory is O(m·d), never O(T·d), and Z is made T/(2m) times over in all. Both products and normal numbers are far cheaper
than gradients, and after a resume the block is simply made again.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from hush import validate
from hush.matrices import Dense
from hush.named import State
from hush.noise.noise import Rows, Stream

PASSING = 16  # rows of Z in memory beside the block


@dataclass(frozen=True)
class DenseNoise(Stream):
    """``memory`` is what a block may take, in bytes; it changes rounding in the last bit, so it is part of the plan."""

    structure: Dense
    memory: int = 192 << 20

    def __post_init__(self) -> None:
        validate.whole(memory=self.memory)

    def init(self, like: Tensor) -> State:
        """Nothing to keep: a block is scratch, made again from the secret when it is missing."""
        return {}

    def draw(self, step: int, z: Rows, state: State) -> tuple[Tensor, State]:
        """A row of the block that holds this step."""
        if "_block" not in state or not state["_start"] <= step < state["_start"] + len(state["_block"]):
            state.pop("_block", None)  # the old block goes before the new one comes
            state["_start"], state["_block"] = self._block(step, z)
        return state["_block"][step - state["_start"]].clone(), state  # a view would keep the old block alive

    def _block(self, step: int, z: Rows) -> tuple[int, Tensor]:
        first = z(0)
        size = max(1, min(self.structure.steps, self.memory // (first.numel() * first.element_size() or 1)))
        start = step // size * size
        stop = min(start + size, self.structure.steps)
        weights = torch.from_numpy(np.array(self.structure.inverse[start:stop, :stop])).to(first.device, first.dtype)
        block = first.new_zeros(stop - start, first.numel())
        for low in range(0, stop, PASSING):
            rows = torch.stack([first if j == 0 else z(j) for j in range(low, min(low + PASSING, stop))])
            block.addmm_(weights[:, low : low + PASSING], rows)
        return start, block
