"""Ordinary training: the sum of gradients without a bound, and so without a guarantee."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from hush._internal.tensors import Losses, Named, State, Sums, check_losses, trainable
from hush.clipping.base import Channel, Claim, PlainSumProof
from hush.clipping.clipped import diagnostics
from hush.noise.base import NoisyGradient
from hush.per_example.augmentation import read_batch_size
from hush.per_example.model_rng import computing_again, drawing
from hush.sampling import Participation


@dataclass(frozen=True)
class PlainSum:
    """Σ gᵢ by one ordinary backward pass."""

    @property
    def channels(self) -> Mapping[str, Channel]:
        return {"gradient": Channel(math.inf, proof="none")}

    def init(self, params: Named) -> tuple[State, State]:
        return {}, {}

    def piece(self, model: nn.Module, losses: Losses, content: Any, public: State) -> Sums:
        return _sum_gradients(model, trainable(model), losses, content)

    def finish(self, sums: Sums, public: State, private: State) -> tuple[Sums, State]:
        return {"gradient": sums["gradient"]}, private

    def observe(self, release: NoisyGradient, update: Named, public: State) -> State:
        return public

    def claims(
        self, participation: Participation, noise_std: Mapping[str, float], steps: int
    ) -> tuple[Claim, ...] | PlainSumProof:
        return ()


def _sum_gradients(module: nn.Module, params: Named, losses: Losses, content: Any) -> Sums:
    """The gradient of the module's summed loss in these parameters, and diagnostics."""
    with drawing(proven=False, again=True):
        values = losses(module, content)
        check_losses(values, read_batch_size(content))
    with computing_again(proven=False):
        grads = torch.autograd.grad(values.sum(), list(params.values()), allow_unused=True)
    named = {n: torch.zeros_like(p) if g is None else g for (n, p), g in zip(params.items(), grads, strict=True)}
    detached = values.detach()
    return {"gradient": named, "diagnostics": diagnostics(detached, torch.zeros_like(detached))}
