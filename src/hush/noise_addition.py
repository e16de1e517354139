"""The noise of a run: the state of each channel's noise, and how noise is added to the sums of a step.

Noise and its state are functions of the secret and the step. A state that is sharded over processes is not saved in
checkpoints, because all shards would have to fit into one process. A resumed run recomputes its shard by drawing the
noise of all steps since the secret's first, without adding it to anything. The bits are the same as in an
uninterrupted run, and the resumed run may use other shards or none.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from hush._internal.tensors import Layout, Named, State, Sums
from hush.accounting.noise_tails import grid
from hush.distributed.group import ProcessGroup
from hush.errors import InvalidInputError
from hush.noise.base import NoisyGradient, add_noise
from hush.noise.independent import Independent
from hush.randomness import BLOCK, Secret, add_normal, normal, streams

if TYPE_CHECKING:
    from hush.plan import Plan

PIECE = 4 * BLOCK  # coordinates of independent noise that one thread generates at a time


def cut_shards(size: int, world: int) -> list[int]:
    """The first coordinate of each process, in whole blocks of random numbers, and the end of the last."""
    blocks = -(-size // BLOCK)
    return [min(size, BLOCK * (blocks * rank // world)) for rank in range(world)] + [size]


class NoiseAdder:
    """A plan's noise, in the type and on the device of these parameters."""

    def __init__(self, plan: Plan, params: Named, shards: ProcessGroup | None = None) -> None:
        self._plan, self._params, self._shards = plan, params, shards
        self._device = next(iter(params.values())).device
        self._stds = plan.channel_stds()
        self._plain = type(plan.noise) is Independent  # the noise of a step is one row of Z, scaled
        self._states: dict[str, State] = {}
        self._sizes: dict[str, int] = {}
        self._first = 0  # the step at which the secret's noise began

    def state(self) -> dict[str, Any]:
        """Every channel's size and state; views, not copies. None for a sharded state."""
        kept = self._states if self._shards is None else {}
        return {channel: {"size": size, "state": kept.get(channel)} for channel, size in self._sizes.items()}

    def restore(self, state: dict[str, Any], first: int) -> None:
        """Load `state`, under a secret whose noise began at step ``first``; missing states are recomputed when they
        are needed."""
        self.start_anew(first)
        for channel, entry in state.items():
            self._sizes[channel] = entry["size"]
            if self._shards is None and entry["state"] is not None:
                self._states[channel] = {**self._plan.noise.init(self._like(entry["size"])), **entry["state"]}

    def start_anew(self, first: int) -> None:
        """Reset the noise: a fresh secret begins at this step."""
        self._states, self._sizes, self._first = {}, {}, first

    def release(self, channels: Sums, secret: Secret, step: int) -> NoisyGradient:
        """The channels with the noise of a step, divided by the public divisor; changes the sums in place."""
        shape, divisor = self._plan.noise.std(step), self._plan.divisor
        values = {name: self._add(name, named, shape, secret, step) for name, named in channels.items()}
        return NoisyGradient(step, values, {n: std * shape / divisor for n, std in self._stds.items()})

    def draw(self, channel: str, size: int, secret: Secret, step: int) -> Iterator[Tensor]:
        """A step's noise (`Independent` noise before its schedule), in chunks if coordinates are independent; otherwise
        one tensor with one state."""
        self._sizes[channel] = size
        if self._shards is not None:
            yield self._draw_shard(self._shards, channel, size, secret, step)
            return
        noise = self._plan.noise
        self._begin(channel, self._like(size), 0, secret, step)
        cut = noise.pieces and self._device.type != "cuda"
        length = PIECE * torch.get_num_threads() if cut else max(1, size)
        for start in range(0, size, length):
            yield self._advance(channel, self._like(min(length, size - start)), start, secret, step)

    def _draw_shard(self, ranks: ProcessGroup, channel: str, size: int, secret: Secret, step: int) -> Tensor:
        """A step's noise, sharded: every process generates whole blocks with a state for these only, then all gather.

        This is possible because a coordinate of the noise depends on the same coordinate of Z only."""
        sides = cut_shards(size, ranks.world)
        start, stop = sides[ranks.rank], sides[ranks.rank + 1]
        like = self._like(stop - start)
        self._begin(channel, like, start, secret, step)
        part = self._advance(channel, like, start, secret, step)
        return ranks.all_gather(part, [high - low for low, high in zip(sides[:-1], sides[1:], strict=True)])

    def _begin(self, channel: str, like: Tensor, start: int, secret: Secret, step: int) -> None:
        """Make sure that a channel has the state before this step, for its coordinates from ``start`` on."""
        if channel in self._states:
            return
        self._states[channel] = self._plan.noise.init(like)
        for past in () if self._plan.noise.pieces else range(self._first, step):
            self._advance(channel, like, start, secret, past)

    def _advance(self, channel: str, like: Tensor, start: int, secret: Secret, step: int) -> Tensor:
        """The noise of a step for the coordinates from ``start`` on; updates the state."""
        if self._plain:
            return normal(secret, streams.noise(channel), step, like, start)
        noise = self._plan.noise
        drawn, state = noise.draw(
            step, lambda index: normal(secret, streams.noise(channel), index, like, start), self._states[channel]
        )
        if noise.pieces and state:
            raise InvalidInputError(
                f"{type(noise).__name__} declares that it can be drawn in pieces but keeps a state, which pieces and "
                "sharded checkpoints cannot pass on: set `pieces` to False"
            )
        if drawn.shape != like.shape:
            raise RuntimeError(f"the noise has shape {tuple(drawn.shape)}, expected {tuple(like.shape)}")
        self._states[channel] = state
        return drawn

    def _add(self, channel: str, sums: Named, shape: float, secret: Secret, step: int) -> Named:
        std, divisor, totals = self._stds[channel], self._plan.divisor, list(sums.values())
        if std == 0:
            torch._foreach_div_(totals, divisor)
            return self._in_own_type(sums)
        scale, spacing, size = std * shape if self._plain else std, grid(std * shape), Layout.of(sums).size
        if self._plain and self._shards is None:  # drawn, scaled, added and rounded in one pass
            self._sizes[channel] = size
            add_normal(secret, streams.noise(channel), step, totals, scale, spacing, divisor)
        else:
            add_noise(totals, self.draw(channel, size, secret, step), scale, spacing, divisor)
        return self._in_own_type(sums)

    def _in_own_type(self, sums: Named) -> Named:
        """Convert float64 sums (of batches with several chunks) back to the parameters' type."""
        own = {name: p.dtype for name, p in self._params.items()}
        return {name: value.to(own.get(name, value.dtype)) for name, value in sums.items()}

    def _like(self, size: int) -> Tensor:
        """A template for the noise that takes no memory: float64, on the CPU unless the device is CUDA."""
        device = self._device if self._device.type == "cuda" else "cpu"
        return torch.empty(1, dtype=torch.float64, device=device).expand(size)
