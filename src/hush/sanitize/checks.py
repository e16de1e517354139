"""What would not be trained as it was meant, found on made-up inputs before a run starts.

Made-up inputs show only what they happen to meet, and no proof rests on what they show but one: that nothing which is
trained moves the rows of `sanitize-once` and `sanitize-frozen` (`check_frozen`), and there the rows are computed before
the first step and kept. That a record is alone, and that it reaches the head by its row, is so by construction
(`hush.sanitize.rows`, `hush.sanitize.apart`).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import torch
from torch import Tensor

from hush.errors import BadInput, Refused
from hush.gradients.swaps import recording
from hush.named import Losses, trainable
from hush.randomness import seeded
from hush.sanitize.cut import (
    PROBES,
    Cut,
    check_uses,
    evaluating,
    first_of,
    handing_on,
    make_up,
    reach_layer,
    with_inputs,
)
from hush.sanitize.pristine import left_as_found, restoring


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
    """Refuse a front that is not made for single records: by itself each would give another row than in company."""
    device = next(cut.model.parameters()).device
    with seeded(0):
        one, others = (first_of(make_up(cut.like, device)) for _ in range(2))
        others[0] = one[0]
    if not _are_same(*(_reach(cut, inputs, {}, training)[0] for inputs in (one, others))):
        raise Refused(
            f"what reaches the sanitisation layer at '{cut.name}' for one example changes with the other examples of a "
            "batch, so that a record would be in the rows of others too, which the noise on its own does not cover: "
            "compute every example by itself (statistics of a batch are what mixes them most often)"
        )
    alone = _reach(cut, one[:1], {}, training)
    if alone.shape != (1, *cut.shape):
        raise BadInput(
            f"every record is computed in a batch of its own, and one example reaches the sanitisation layer at "
            f"'{cut.name}' as {tuple(alone.shape)}, not as {(1, *cut.shape)}: keep the first dimension (squeeze() "
            "without a dimension takes it away)"
        )


def find_behind(cut: Cut, losses: Losses) -> frozenset[str]:
    """The trained parameters that learn by the rows that the layer hands on, and by nothing before it."""
    params, device = trainable(cut.model), next(cut.model.parameters()).device
    with seeded(0), evaluating(cut.model), torch.enable_grad():
        rows = torch.randn(PROBES, *cut.shape, device=device, dtype=cut.dtype)
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


def check_forgetful(cut: Cut, losses: Losses) -> None:
    """Refuse early what a record would be refused for: a model or losses that keep something before the layer."""
    device = next(cut.model.parameters()).device
    with seeded(0), evaluating(cut.model, True), torch.no_grad(), left_as_found(cut.model, losses):
        reach_layer(partial(losses, cut.model), cut.layer, make_up(cut.like, device))


def check_nothing_passes(cut: Cut, losses: Losses) -> None:
    """Refuse a model or a loss that sees the inputs by another way than the layer: with the layer's rows held fixed,
    other inputs must not change a single loss, in training or in evaluation. In a run it would see zeros."""
    device = next(cut.model.parameters()).device
    with seeded(0):
        content = make_up(cut.like, device)
        rows = torch.randn(PROBES, *cut.shape, device=device, dtype=cut.dtype)
        others = [make_up(cut.like, device)[0], *_list_unusual(content[0])]
    for training in (True, False):

        def compute(inputs: Tensor, training: bool = training) -> Tensor:
            with (
                restoring(losses, cut.model),
                seeded(0),
                evaluating(cut.model, training),
                torch.no_grad(),
                handing_on(cut.layer, rows),
            ):
                return losses(cut.model, with_inputs(content, inputs))

        usual = compute(content[0])
        for place, inputs in enumerate(others):
            try:
                found = compute(inputs)
            except Exception:  # a model may say no to numbers of which nobody knows that they occur
                if not place:
                    raise
                continue
            if not _are_same(usual, found):
                raise Refused(
                    f"the model or its loss sees the inputs by another way than the sanitisation layer at '{cut.name}' "
                    "(a shortcut around it, a mask, or a loss that compares with the inputs), and what passes by the "
                    "layer has no noise: put the layer where everything passes"
                )


def _list_unusual(like: Tensor) -> list[Tensor]:
    """Inputs that masks and thresholds look for: zeros, numbers far away on either side, and none at all."""
    if not like.is_floating_point():
        return [torch.zeros_like(like)]
    return [torch.zeros_like(like), 1e4 * like, -1e4 * like, like.new_full(like.shape, torch.nan)]


def _find_movers(cut: Cut) -> frozenset[str]:
    """Trained parameters that change what reaches the layer although no gradient says so."""
    with seeded(0):
        inputs = first_of(make_up(cut.like, next(cut.model.parameters()).device))
        others = {name: (value, torch.randn_like(value)) for name, value in trainable(cut.model).items()}
    fixed = _reach(cut, inputs, {})
    if not _are_same(fixed, _reach(cut, inputs, {})):
        raise Refused(
            f"what reaches the sanitisation layer at '{cut.name}' is another every time, as with numbers from numpy or "
            "from a generator of the model's own: draw with torch.rand, torch.randn or dropout, which come back"
        )
    return frozenset(
        name for name, (old, new) in others.items() if not _are_same(_reach(cut, inputs, {id(old): new}), fixed)
    )


def _reach(cut: Cut, inputs: Tensor, others: Mapping[int, Tensor], training: bool = False) -> Tensor:
    """What reaches the layer with other parameters in their places (by id), the same coins each time, and a model that
    remembers no other try."""
    with seeded(0), evaluating(cut.model, training), torch.no_grad(), recording(cut.model, others):
        return reach_layer(cut.model, cut.layer, inputs)


def _are_same(one: Tensor, other: Tensor) -> bool:
    """The same bits; what is not a number is the same as another such."""
    return torch.equal(one.isnan(), other.isnan()) and torch.equal(one.nan_to_num(), other.nan_to_num())
