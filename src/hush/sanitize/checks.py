"""What the proofs of released rows take of a model and its losses, checked on made-up inputs before a run starts."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.func import functional_call

from hush.errors import Refused
from hush.named import Losses, Named, trainable
from hush.randomness import seeded
from hush.sanitize.cut import PROBES, Cut, check_uses, evaluating, first_of, handing_on, make_up, reach_layer


def check_frozen(cut: Cut) -> None:
    """Refuse a trained parameter before the layer: it would learn from the raw features. One that takes part without a
    gradient counts too: rows would be made anew by another function, under the same noise."""
    found = cut.before or _find_movers(cut)
    if found:
        names = ", ".join(sorted(found)[:3])
        raise Refused(
            f"'{names}' is trained and stands before the sanitisation layer at '{cut.name}', so that it would take the "
            "raw features past the noise: freeze all that is before the layer (requires_grad_(False)), or use method "
            "sanitize-hybrid, which adds noise to its gradients too"
        )


def check_alone(cut: Cut, *, training: bool) -> None:
    """Refuse a front by which an example reaches the rows of others: with other examples beside it, in the same place
    of a batch of the same size, its row must be the same bits."""
    device = next(cut.model.parameters()).device
    with seeded(0):
        one, others = (first_of(make_up(cut.like, device)) for _ in range(2))
        others[0] = one[0]
    found = []
    for inputs in (one, others):
        with seeded(0), evaluating(cut.model, training), torch.no_grad():
            found.append(reach_layer(cut.model, cut.layer, inputs)[0])
    if not _are_same(*found):
        raise Refused(
            f"what reaches the sanitisation layer at '{cut.name}' for one example changes with the other examples of a "
            "batch, so that a record would be in the rows of others too, which the noise on its own does not cover: "
            "compute every example by itself (statistics of a batch are what mixes them most often)"
        )


def find_behind(cut: Cut, losses: Losses) -> frozenset[str]:
    """The trained parameters that learn by the rows that the layer hands on, and by nothing before it."""
    params, device = trainable(cut.model), next(cut.model.parameters()).device
    with seeded(0), evaluating(cut.model), torch.enable_grad():
        rows = torch.randn(PROBES, *cut.shape, device=device)
        with handing_on(cut.layer, rows):
            total = losses(cut.model, make_up(cut.like, device)).sum()
        found = torch.autograd.grad(total, list(params.values()), allow_unused=True) if total.requires_grad else ()
    seen = {name for name, grad in zip(params, found, strict=False) if grad is not None}
    return frozenset(seen - cut.before)


def check_used_once(cut: Cut, losses: Losses) -> None:
    """Refuse a loss that sends an example through the layer several times: each time is a release of its own."""
    device = next(cut.model.parameters()).device
    with seeded(0), evaluating(cut.model, True), torch.no_grad():
        check_uses(cut.layer, lambda: losses(cut.model, make_up(cut.like, device)), "losses call", cut.name)


def check_nothing_passes(cut: Cut, losses: Losses) -> None:
    """Refuse a model or a loss that sees the inputs by another way than the layer: with the layer's rows held fixed,
    other inputs must not change a single loss, in training or in evaluation."""
    device = next(cut.model.parameters()).device
    with seeded(0):
        content = make_up(cut.like, device)
        other = (make_up(cut.like, device)[0], *content[1:])
        rows = torch.randn(PROBES, *cut.shape, device=device)
    for training in (True, False):
        found = []
        for tried in (content, other):
            with seeded(0), evaluating(cut.model, training), torch.no_grad(), handing_on(cut.layer, rows):
                found.append(losses(cut.model, tried))
        if _are_same(*found):
            continue
        raise Refused(
            f"the model or its loss sees the inputs by another way than the sanitisation layer at '{cut.name}' (a "
            "shortcut around it, or a loss that compares with the inputs), and what passes by the layer has no noise: "
            "put the layer where everything passes"
        )


def _find_movers(cut: Cut) -> frozenset[str]:
    """Trained parameters that change what reaches the layer although no gradient says so."""
    device = next(cut.model.parameters()).device
    with seeded(0), evaluating(cut.model), torch.no_grad():
        inputs = first_of(make_up(cut.like, device))
        fixed = reach_layer(cut.model, cut.layer, inputs)
        moved = {}
        for name, value in trainable(cut.model).items():
            other = {name: torch.randn_like(value)}
            moved[name] = reach_layer(_With(cut.model, other), cut.layer, inputs)
    return frozenset(name for name, found in moved.items() if not _are_same(found, fixed))


def _are_same(one: Tensor, other: Tensor) -> bool:
    """The same bits; what is not a number is the same as another such."""
    return torch.equal(one.isnan(), other.isnan()) and torch.equal(one.nan_to_num(), other.nan_to_num())


class _With(nn.Module):
    """A model with other numbers in some of its parameters."""

    def __init__(self, model: nn.Module, params: Named) -> None:
        super().__init__()
        self.model, self.other = model, params

    def forward(self, inputs: Tensor) -> Tensor:
        found: Tensor = functional_call(self.model, self.other, (inputs,))
        return found
