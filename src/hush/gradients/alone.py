"""Modules without a rule: torch.func maps each of them over the examples, by itself, in an otherwise ordinary forward.

Every example gets a view of the module's parameters of its own; autograd computes their gradients as of any tensor, and
these are the per-example gradients.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from typing import Any

from torch import Tensor, nn
from torch.func import vmap
from torch.utils import _pytree as pytree

from hush.gradients.substitutes import forwards
from hush.gradients.swapped import recording
from hush.gradients.watched import Entry, Session, Unhandled, Watched

Known = dict[str, list[list[bool]]]
"""By module, for each of its calls: which of the inputs hold the examples."""


def mapped(
    model: nn.Module, names: Iterable[str], session: Session, known: Known
) -> dict[nn.Module, Callable[..., Any]]:
    """The forwards of these modules as maps over single examples."""
    modules = dict(model.named_modules())
    return {modules[name]: _mapped(modules[name], session, known.setdefault(name, [])) for name in names}


def _mapped(module: nn.Module, session: Session, known: list[list[bool]]) -> Callable[..., Any]:
    calls, own = itertools.count(), module.forward

    def forward(*args: Any, **kwargs: Any) -> Any:
        with forwards({module: own}):
            return _call(module, session, args, kwargs, known, next(calls))

    return forward


def _leaf(entry: Entry) -> Tensor:
    session = entry.session
    leaf = entry.value.expand(session.n, *entry.value.shape).detach().requires_grad_()
    session.leaves.append((entry, leaf))
    return leaf


def _call(module: nn.Module, session: Session, args: Any, kwargs: Any, known: list[list[bool]], call: int) -> Any:
    stand_ins = {name: p for name, p in module.named_parameters() if isinstance(p, Watched)}
    watched = {name: p.entry for name, p in stand_ins.items()}
    leaves = {name: _leaf(entry) for name, entry in watched.items()}
    flat, spec = pytree.tree_flatten((args, kwargs))
    batched = [isinstance(v, Tensor) and v.dim() > 0 and v.shape[0] == session.n for v in flat]
    if not any(batched):
        raise Unhandled(
            [entry.name for entry in watched.values()], "no input of the module has the examples in its first dimension"
        )
    if call == len(known):
        known.append(batched)
    if known[call] != batched:  # such as a table with as many rows as this batch has examples
        raise Unhandled(
            [entry.name for entry in watched.values()],
            "which inputs of the module hold examples changes between batches",
        )

    def one(params: dict[str, Tensor], *values: Any) -> Any:
        single = [v.unsqueeze(0) if b else v for v, b in zip(values, batched, strict=True)]
        inner_args, inner_kwargs = pytree.tree_unflatten(single, spec)
        with recording(module, {id(p): params[name] for name, p in stand_ins.items()}):
            out = module(*inner_args, **inner_kwargs)
        return pytree.tree_map(lambda t: t.squeeze(0), out)

    dims = tuple(0 if b else None for b in batched)
    return vmap(one, in_dims=(0, *dims), randomness="different")(leaves, *flat)
