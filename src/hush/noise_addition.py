"""The noise of a run: the state of every channel's, and how it is added to the sums of a step.

Noise is a function of the secret and the step, and so is its state. A state that lies in slices on several processes is
not kept in checkpoints, where all slices would have to fit one process: whoever goes on makes its own slice anew, by
drawing the noise of the steps since the secret's first, which adds it to nothing. So the bits are those of the run that
was not interrupted, and the run may go on with other slices, or with none.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from hush._internal.tensors import Layout, Named, State, Sums
from hush.accounting.noise_tails import grid
from hush.distributed.group import ProcessGroup
from hush.errors import Refused
from hush.noise.base import NoisyGradient, add_noise
from hush.randomness import BLOCK, Secret, normal, streams

if TYPE_CHECKING:
    from hush.plan import Mechanism

PIECE = 4 * BLOCK  # coordinates of independent noise that a thread makes at a time


def cut_shards(size: int, world: int) -> list[int]:
    """Where the coordinates of each process begin, in whole blocks of random numbers, and at last where all end."""
    blocks = -(-size // BLOCK)
    return [min(size, BLOCK * (blocks * rank // world)) for rank in range(world)] + [size]


class NoiseAdder:
    """A mechanism's noise for these parameters: their type, on their device."""

    def __init__(self, mechanism: Mechanism, params: Named, shards: ProcessGroup | None = None) -> None:
        self._mechanism, self._params, self._shards = mechanism, params, shards
        self._device = next(iter(params.values())).device
        self._stds = mechanism.channel_stds()
        self._states: dict[str, State] = {}
        self._sizes: dict[str, int] = {}
        self._first = 0  # the step at which the secret's noise began

    def state(self) -> dict[str, Any]:
        """Every channel's size and state; views, not copies. None for a state that lies in slices."""
        kept = self._states if self._shards is None else {}
        return {channel: {"size": size, "state": kept.get(channel)} for channel, size in self._sizes.items()}

    def restore(self, state: dict[str, Any], first: int) -> None:
        """Back from `state`, under a secret whose noise began at step ``first``; what is not in it is made anew when it
        is needed."""
        self.start_anew(first)
        for channel, entry in state.items():
            self._sizes[channel] = entry["size"]
            if self._shards is None and entry["state"] is not None:
                self._states[channel] = {**self._mechanism.noise.init(self._like(entry["size"])), **entry["state"]}

    def start_anew(self, first: int) -> None:
        """Forget the noise so far: a fresh secret begins its own at this step."""
        self._states, self._sizes, self._first = {}, {}, first

    def release(self, channels: Sums, secret: Secret, step: int) -> NoisyGradient:
        """The channels with the noise of a step, divided by the public divisor; the sums are changed in place."""
        shape, divisor = self._mechanism.noise.std(step), self._mechanism.divisor
        values = {name: self._add(name, named, shape, secret, step) for name, named in channels.items()}
        for name, channel in self._mechanism.query.channels.items():
            if channel.proof == "released" and name != "gradient":  # a part of the gradient that needs no noise
                values["gradient"] |= values.pop(name)
        return NoisyGradient(step, values, {n: std * shape / divisor for n, std in self._stds.items()})

    def draw(self, channel: str, size: int, secret: Secret, step: int) -> Iterator[Tensor]:
        """A step's noise, in pieces where every coordinate is made alone; other noise keeps one state for all."""
        self._sizes[channel] = size
        if self._shards is not None:
            yield self._draw_shard(self._shards, channel, size, secret, step)
            return
        noise = self._mechanism.noise
        self._begin(channel, self._like(size), 0, secret, step)
        cut = noise.pieces and self._device.type != "cuda"
        length = PIECE * torch.get_num_threads() if cut else max(1, size)
        for start in range(0, size, length):
            yield self._advance(channel, self._like(min(length, size - start)), start, secret, step)

    def _draw_shard(self, ranks: ProcessGroup, channel: str, size: int, secret: Secret, step: int) -> Tensor:
        """A step's noise of which every process makes the coordinates of whole blocks of its own, with a state for
        these alone, and gets the others' as copies: a coordinate of noise depends on this coordinate of Z alone."""
        sides = cut_shards(size, ranks.world)
        start, stop = sides[ranks.rank], sides[ranks.rank + 1]
        like = self._like(stop - start)
        self._begin(channel, like, start, secret, step)
        part = self._advance(channel, like, start, secret, step)
        return ranks.gather(part, [high - low for low, high in zip(sides[:-1], sides[1:], strict=True)])

    def _begin(self, channel: str, like: Tensor, start: int, secret: Secret, step: int) -> None:
        """See to it that a channel has the state before this step of its coordinates from ``start`` on."""
        if channel in self._states:
            return
        self._states[channel] = self._mechanism.noise.init(like)
        for past in () if self._mechanism.noise.pieces else range(self._first, step):
            self._advance(channel, like, start, secret, past)

    def _advance(self, channel: str, like: Tensor, start: int, secret: Secret, step: int) -> Tensor:
        """The noise of a step for the coordinates from ``start`` on, and the state after it."""
        noise = self._mechanism.noise
        drawn, state = noise.draw(
            step, lambda index: normal(secret, streams.noise(channel), index, like, start), self._states[channel]
        )
        if noise.pieces and state:
            raise Refused(
                f"{type(noise).__name__} says that it can be drawn in pieces and keeps a state, which one piece would "
                "leave to the next, and no checkpoint of slices to the run that goes on: let `pieces` be False"
            )
        if drawn.shape != like.shape:
            raise RuntimeError(f"the noise has shape {tuple(drawn.shape)} where {tuple(like.shape)} was asked for")
        self._states[channel] = state
        return drawn

    def _add(self, channel: str, sums: Named, shape: float, secret: Secret, step: int) -> Named:
        std, divisor = self._stds[channel], self._mechanism.divisor
        if std == 0:
            torch._foreach_div_(list(sums.values()), divisor)
            return self._in_own_type(sums)
        noise = self.draw(channel, Layout.of(sums).size, secret, step)
        add_noise(sums.values(), noise, std, grid(std * shape), divisor)
        return self._in_own_type(sums)

    def _in_own_type(self, sums: Named) -> Named:
        """Sums are float64 where a batch has several pieces; what is released has the parameters' type again."""
        own = {name: p.dtype for name, p in self._params.items()}
        return {name: value.to(own.get(name, value.dtype)) for name, value in sums.items()}

    def _like(self, size: int) -> Tensor:
        """What noise is like, a shape without memory: float64, on the CPU where the model's device may not have it."""
        device = self._device if self._device.type == "cuda" else "cpu"
        return torch.empty(1, dtype=torch.float64, device=device).expand(size)
