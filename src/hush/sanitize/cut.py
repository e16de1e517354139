"""Where a model is cut: what stands before its sanitisation layer, and what goes on from what the layer gives.

The cut is made by running the model on made-up inputs, so that the layer may stand at any place of any model. *Before*
it is every parameter that its input depends on. *After* it is a function of the rows that it hands on, and of nothing
else of the data, by construction: it is run on inputs of zeros. Made-up inputs show only what they happen to meet, so
that the proofs take nothing from them: each record reaches the layer in a batch of its own (`hush.sanitize.rows`,
`hush.sanitize.apart`). What is tried beforehand (`hush.sanitize.checks`) says early what would not train as meant.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from hush.errors import BadInput, Refused
from hush.named import trainable
from hush.randomness import seeded
from hush.sanitize.layer import Sanitize, find_layer
from hush.source import Source, to_each

PROBES = 3  # made-up rows that a model is tried with


@dataclass(frozen=True, eq=False)
class Cut:
    """A model, its one sanitisation layer, and what is known of both sides of it."""

    model: nn.Module
    layer: Sanitize
    name: str
    like: Any  # content of no rows: shapes and types
    shape: torch.Size  # of what one example is at the layer
    before: frozenset[str]  # the trained parameters that the layer's input depends on
    after: tuple[nn.Module, ...] | None  # the modules behind the layer, where that is all there is
    dtype: torch.dtype  # of what reaches the layer

    def run_head(self, rows: Tensor) -> Tensor:
        """What the model gives where its layer hands on these rows. All else that it sees are inputs of zeros."""
        rows = nn.functional.dropout(rows, self.layer.dropout, self.layer.training and self.layer.place == "after")
        if self.after is None:
            inputs = torch.zeros(len(rows), *first_of(self.like).shape[1:], dtype=first_of(self.like).dtype)
            with handing_on(self.layer, rows):
                return _call(self.model, inputs.to(rows.device))
        for module in self.after:
            rows = module(rows)
        return rows


class Head(nn.Module):
    """The model behind its layer, as a module that losses can be given in place of the model."""

    def __init__(self, cut: Cut) -> None:
        super().__init__()
        self.cut = cut

    def forward(self, rows: Tensor) -> Tensor:
        """What the model makes of released rows."""
        return self.cut.run_head(rows)


def first_of(content: Any) -> Tensor:
    """The inputs among a content: its first tensor, beside which labels stand."""
    if not isinstance(content, tuple | list) or not isinstance(content[0], Tensor) or len(content) < 2:
        raise BadInput("sanitising needs data that are pairs: a tensor of features first, then labels")
    return content[0]


def hide_inputs(content: Any) -> Any:
    """The content with zeros for its inputs: all that is left of it is public."""
    return with_inputs(content, torch.zeros_like(first_of(content)))


def with_inputs(content: Any, inputs: Tensor) -> Any:
    """The content with other inputs; a named tuple stays one."""
    make: Callable[[Any], Any] = getattr(type(content), "_make", tuple)
    return make([inputs, *content[1:]])


def check_pairs(content: Any, otherwise: str) -> None:
    """Refuse what is not features and labels, and nothing else."""
    first_of(content)
    if len(content) != 2:
        raise BadInput(
            f"sanitising needs data that are pairs, and these have {len(content)} parts: {otherwise}; join the "
            "features into one tensor"
        )


def find_cut(model: nn.Module, source: Source) -> Cut:
    """The cut of a model at its sanitisation layer, tried on made-up inputs; what mixes examples is refused."""
    name, layer = find_layer(model)
    like = source.take(torch.empty(0, dtype=torch.int64))
    check_pairs(like, "all but the first would be taken for labels, which are not protected")
    for place, module in model.named_modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            raise Refused(
                f"layer '{place}' (BatchNorm) mixes the examples of a batch, so that a record would be in the released "
                "activations of others too, which the noise on its own does not cover: convert it with "
                "model = hush.to_group_norm(model)"
            )
    device = next(model.parameters()).device
    with seeded(0), evaluating(model), torch.enable_grad():
        check_uses(layer, lambda: _call(model, first_of(make_up(like, device))), "model calls", name)
        more = reach_layer(model, layer, first_of(make_up(like, device, 2 * PROBES)))
        reached = reach_layer(model, layer, first_of(make_up(like, device)))
        _check_shapes(reached.shape, more.shape, name)
        layer(reached)  # which checks the width
        params = trainable(model)
        needed = list(params.values()) if reached.requires_grad else []
        found = torch.autograd.grad(reached.sum(), needed, allow_unused=True) if needed else ()
    before = frozenset(name for name, grad in zip(params, found, strict=False) if grad is not None)
    return Cut(model, layer, name, like, reached.shape[1:], before, _list_after(model, name), reached.dtype)


def make_up(like: Any, device: torch.device, rows: int = PROBES) -> Any:
    """Content of these shapes that shows nothing of the data: normal numbers, and 0 or 1 for integers."""

    def invent(t: Tensor) -> Tensor:
        shape = (rows, *t.shape[1:])
        made = torch.randn(shape) if t.is_floating_point() else torch.randint(0, 2, shape)
        return made.to(device, t.dtype)

    return to_each(invent, like)


def _check_shapes(few: torch.Size, more: torch.Size, name: str) -> None:
    """One row for each example, as many as there are: else n would not be the numbers of one example."""
    if (len(few) and few[0] == PROBES) and more == (2 * PROBES, *few[1:]):
        return
    raise BadInput(
        f"the sanitisation layer at '{name}' needs one row for each example in its first dimension, and {PROBES} "
        f"examples reach it as {tuple(few)}: put it where all numbers of an example are in one row"
    )


def check_uses(layer: Sanitize, run: Callable[[], Any], whose: str, name: str) -> None:
    """Refuse what sends an example through the layer more than once."""
    times: list[None] = []
    handle = layer.register_forward_hook(lambda module, given, out: times.append(None))
    try:
        run()
    finally:
        handle.remove()
    if len(times) > 1:
        raise Refused(
            f"the {whose} the sanitisation layer at '{name}' {len(times)} times for one example, and each time would "
            "be a release of its own, of which one was counted: let every example pass it once (no views, no shared "
            "layer)"
        )


class _Reached(BaseException):  # which no "except Exception" of a model takes for a fault of its own
    def __init__(self, value: Tensor) -> None:
        super().__init__()
        self.value = value


def reach_layer(run: Callable[[Any], Any], layer: Sanitize, inputs: Any) -> Tensor:
    """The layer's input where a model, or its losses, run on these inputs; what comes after is not computed."""

    def stop(_: nn.Module, given: tuple[Tensor, ...]) -> None:
        raise _Reached(given[0])

    handle = layer.register_forward_pre_hook(stop)
    try:
        run(inputs)
    except _Reached as reached:
        return reached.value
    finally:
        handle.remove()
    raise BadInput("the model does not use its sanitisation layer: put it where the forward pass goes")


@contextmanager
def handing_on(layer: Sanitize, rows: Tensor) -> Iterator[None]:
    """Within it, the layer hands on these rows whatever it gets."""
    handle = layer.register_forward_hook(lambda module, given, out: rows)
    try:
        yield
    finally:
        handle.remove()


@contextmanager
def evaluating(model: nn.Module, training: bool = False) -> Iterator[None]:
    """Within it, the model is in evaluation (or in training); each module's own mode comes back after."""
    modes = {module: module.training for module in model.modules()}
    model.train(training)
    try:
        yield
    finally:
        for module, mode in modes.items():
            module.training = mode


def _call(model: nn.Module, inputs: Tensor) -> Tensor:
    out: Tensor = model(inputs)
    return out


def _list_after(model: nn.Module, name: str) -> tuple[nn.Module, ...] | None:
    """The modules behind the layer where everything that holds it is a plain `nn.Sequential`; else None."""
    parents, found = name.split("."), []
    for depth in range(len(parents) - 1, -1, -1):
        holder = model.get_submodule(".".join(parents[:depth]))
        if type(holder) is not nn.Sequential or holder._forward_hooks or holder._forward_pre_hooks:
            return None
        children = dict(holder.named_children())
        found += list(children.values())[list(children).index(parents[depth]) + 1 :]
    return tuple(found)


def count_numbers(cut: Cut) -> int:
    """n: how many numbers of one example the layer hands on."""
    return math.prod(cut.shape)
