"""Small models with a sanitisation layer, and data for them."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from hush.methods import make_plan
from hush.plan import Plan
from hush.sanitize.layer import Sanitize

N, FEATURES, WIDTH, CLASSES, CLIP = 40, 6, 5, 3, 0.5
PROVEN = ("sanitize-once",)
METHODS = ("sanitize", *PROVEN)


def losses(model: nn.Module, content: tuple[Tensor, Tensor]) -> Tensor:
    return functional.cross_entropy(model(content[0]), content[1], reduction="none")


def data(seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(N, FEATURES, generator=generator), torch.randint(0, CLASSES, (N,), generator=generator)


def network(method: str = "sanitize-once", *, seed: int = 0, floor: float | None = None) -> nn.Sequential:
    """A linear front, the layer, and a head; the front is frozen where the method wants it."""
    generator = torch.Generator().manual_seed(seed)
    layer = Sanitize(CLIP, 1.0, width=WIDTH, floor=floor)
    model = nn.Sequential(nn.Linear(FEATURES, WIDTH), layer, nn.Tanh(), nn.Linear(WIDTH, CLASSES))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.5)
    if method == "sanitize-once":
        model[0].requires_grad_(False)
    return model


def plan(method: str = "sanitize-once", **changes) -> Plan:
    how = {"examples": N, "batch_size": 8, "steps": 10, "accept_claimed": True, "noise_multiplier": 2.0} | changes
    return make_plan(method, **how)
