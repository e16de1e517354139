"""Splits a model at its sanitisation layer into the part before it and the part after it.

The split is found by running the model on synthetic inputs, so the layer may be anywhere in any model. *Before* the
layer is every parameter that its input depends on. *After* it is a function of the rows that the layer returns, and by
construction of nothing else of the data: it is run on inputs of zeros. Synthetic inputs show only the paths they happen
to take, so the proofs do not rely on them: each record reaches the layer in a batch of its own
(`hush.sanitize.privatised`, `SplitLoss`). The checks here detect early what would not train as intended.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from hush._internal.tensors import Losses, trainable
from hush.data_source import Source, to_each
from hush.errors import InvalidInputError, UnsupportedModelError
from hush.per_example.decompositions import replacing_forwards
from hush.per_example.functional import recording
from hush.per_example.gradients import per_example_gradients
from hush.per_example.model_rng import number_from
from hush.per_example.result import GradientWarning
from hush.randomness import seeded
from hush.sanitize.layer import FrozenLayer, Sanitize, find_layer
from hush.sanitize.side_effects import restoring, restoring_state

PROBES = 3  # synthetic rows with which a model is tried


@dataclass(frozen=True, eq=False)
class SplitModel:
    """A model, its one sanitisation layer, and what is known about both sides of the layer."""

    model: nn.Module
    layer: Sanitize
    name: str
    like: Any  # content of no rows: shapes and types
    shape: torch.Size  # of one example at the layer
    before: frozenset[str]  # the trained parameters that the layer's input depends on
    after: tuple[nn.Module, ...] | None  # the modules after the layer, if they are a plain sequence
    dtype: torch.dtype  # of the layer's input

    def run_head(self, rows: Tensor) -> Tensor:
        """The model's output if its layer returns these rows; all other inputs are zeros."""
        rows = nn.functional.dropout(rows, self.layer.dropout, self.layer.training and self.layer.place == "after")
        if self.after is None:
            inputs = torch.zeros(len(rows), *first_of(self.like).shape[1:], dtype=first_of(self.like).dtype)
            with returning_rows(self.layer, rows):
                return _call(self.model, inputs.to(rows.device))
        for module in self.after:
            rows = module(rows)
        return rows


class Head(nn.Module):
    """The part of the model after its layer, as a module for the losses."""

    def __init__(self, cut: SplitModel) -> None:
        super().__init__()
        self.cut = cut

    def forward(self, rows: Tensor) -> Tensor:
        return self.cut.run_head(rows)


def first_of(content: Any) -> Tensor:
    """The inputs in a content: its first tensor; the labels follow."""
    if not isinstance(content, tuple | list) or not isinstance(content[0], Tensor) or len(content) < 2:
        raise InvalidInputError("sanitising needs data in pairs: a tensor of features, then labels")
    return content[0]


def hide_inputs(content: Any) -> Any:
    """The content with its inputs replaced by zeros; the rest is public."""
    return with_inputs(content, torch.zeros_like(first_of(content)))


def with_inputs(content: Any, inputs: Tensor) -> Any:
    """The content with other inputs; a named tuple stays one."""
    make: Callable[[Any], Any] = getattr(type(content), "_make", tuple)
    return make([inputs, *content[1:]])


def check_pairs(content: Any, otherwise: str) -> None:
    """Raise unless the content is a pair of features and labels."""
    first_of(content)
    if len(content) != 2:
        raise InvalidInputError(
            f"sanitising needs data in pairs, got {len(content)} parts: {otherwise}; join the features into one tensor"
        )


def find_cut(model: nn.Module, source: Source) -> SplitModel:
    """Split a model at its sanitisation layer, using synthetic inputs; raises if examples mix."""
    name, layer = find_layer(model)
    like = source.take(torch.empty(0, dtype=torch.int64))
    check_pairs(like, "all but the first would be taken for labels, which are not protected")
    for place, module in model.named_modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            raise UnsupportedModelError(
                f"layer '{place}' (BatchNorm) mixes the examples of a batch, so a record would influence the released "
                "activations of others, which its noise does not cover: convert it with "
                "model = hush.to_group_norm(model)"
            )
    device = next(model.parameters()).device
    with seeded(0), evaluating(model), torch.enable_grad():
        check_uses(layer, lambda: _call(model, first_of(make_synthetic(like, device))), "model calls", name)
        more = forward_to_layer(model, layer, first_of(make_synthetic(like, device, 2 * PROBES)))
        reached = forward_to_layer(model, layer, first_of(make_synthetic(like, device)))
        _check_shapes(reached.shape, more.shape, name)
        layer(reached)  # checks the width
        params = trainable(model)
        needed = list(params.values()) if reached.requires_grad else []
        found = torch.autograd.grad(reached.sum(), needed, allow_unused=True) if needed else ()
    before = frozenset(name for name, grad in zip(params, found, strict=False) if grad is not None)
    return SplitModel(model, layer, name, like, reached.shape[1:], before, _list_after(model, name), reached.dtype)


def make_synthetic(like: Any, device: torch.device, rows: int = PROBES) -> Any:
    """Synthetic content of these shapes, independent of the data: normal numbers, and 0 or 1 for integers."""

    def invent(t: Tensor) -> Tensor:
        shape = (rows, *t.shape[1:])
        made = torch.randn(shape) if t.is_floating_point() else torch.randint(0, 2, shape)
        return made.to(device, t.dtype)

    return to_each(invent, like)


def _check_shapes(few: torch.Size, more: torch.Size, name: str) -> None:
    """One row for each example, as many as there are: else n would not be the numbers of one example."""
    if (len(few) and few[0] == PROBES) and more == (2 * PROBES, *few[1:]):
        return
    raise InvalidInputError(
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
        raise UnsupportedModelError(
            f"the {whose} the sanitisation layer at '{name}' {len(times)} times for one example, and each time would "
            "be a release of its own, of which one was counted: let every example pass it once (no views, no shared "
            "layer)"
        )


class _Reached(BaseException):  # which no "except Exception" of a model takes for a fault of its own
    def __init__(self, value: Tensor) -> None:
        super().__init__()
        self.value = value


def forward_to_layer(run: Callable[[Any], Any], layer: Sanitize, inputs: Any) -> Tensor:
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
    raise InvalidInputError("the model does not use its sanitisation layer: put it where the forward pass goes")


@contextmanager
def returning_rows(layer: Sanitize, rows: Tensor) -> Iterator[None]:
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


def count_numbers(cut: SplitModel) -> int:
    """n: how many numbers of one example the layer hands on."""
    return math.prod(cut.shape)


# Losses cut in two at the layer, so that what is behind it sees rows and nothing else of a record.
#
# The losses run twice. First on the record itself, up to the layer: its input is clamped and gets noise. Then on inputs
# of zeros, with the layer returning those rows: anything that bypasses the layer (a mask of missing values, a weight by
# age, a target computed from the inputs) sees zeros. The gradient flows back through the rows.
#
# The noise is drawn before either run, by place and from its own stream: a model that draws for some records only, or
# seeds torch's generator, neither changes it nor can draw it again (a mask made of the same numbers would reveal it).
#
# In the first run the parameters after the layer are constants. Their gradient is therefore that of the second run
# alone, a function of rows, labels and coins, for any path of a record through the model: the labels are copied before
# the first run, and the draws of the second are numbered from a fixed number, independent of the first. State that the
# first run leaves in the model or in the losses is removed before the second, or raises (`hush.sanitize.side_effects`).

HEAD = 1 << 20  # the number of the first draw after the layer


@dataclass(frozen=True)
class SplitLoss:
    """Losses whose examples, all of one public ``shape``, reach the head only through the rows of ``layer``, of shape
    ``width``; ``behind`` are the parameters after the layer."""

    losses: Losses
    layer: FrozenLayer
    behind: frozenset[str]
    shape: torch.Size
    width: torch.Size

    def check_shape(self, content: Any) -> None:
        """Raise on a batch that was padded to its longest record: that record would influence all rows, and its length
        would bypass the layer."""
        if first_of(content).shape[1:] != self.shape:
            raise UnsupportedModelError(
                "sanitize-hybrid needs records of one shape, but the shape of these data changes with the batch, so a "
                "record would influence the rows of others: pad every record to the same length"
            )

    def __call__(self, model: nn.Module, content: Any) -> Tensor:
        """One loss per example; the content includes the noise of each row."""
        own, noise = content
        hidden = to_each(torch.clone, hide_inputs(own))  # a copy, before the first run can write into the labels
        rows = self.layer.release(self._reach(model, own), noise)
        number_from(HEAD)
        with replacing_forwards({self.layer.layer: lambda _: rows}):
            return self.losses(model, hidden)

    def _reach(self, model: nn.Module, content: Any) -> Tensor:
        """The input of the layer; its gradient depends only on the parameters before the layer."""
        fixed = {id(p): p.detach() for name, p in model.named_parameters() if name in self.behind}
        with restoring_state(model, self.losses), recording(model, fixed):
            return forward_to_layer(partial(self.losses, model), self.layer.layer, content)


def find_engine(cut: SplitModel, losses: SplitLoss) -> str:
    """How each example is computed in its own batch: mapped by torch.func, or one by one if that fails. Synthetic
    inputs decide, so no record does."""
    device = next(cut.model.parameters()).device
    try:
        with seeded(0), evaluating(cut.model, True), torch.enable_grad():
            noise = torch.randn(PROBES, *cut.shape, dtype=torch.float64, device=device)
            per_example_gradients(cut.model, losses, (make_synthetic(cut.like, device), noise), engine="functional")
    except Exception as stop:  # any error; one that is not caused by the mapping occurs again later
        why = type(stop).__name__
        warnings.warn(
            f"torch.func cannot map this model ({why}): it is computed with one backward pass per example, slowly",
            GradientWarning,
            stacklevel=2,
        )
        return "one by one"
    return "functional"


# Checks on synthetic inputs before a run starts, for models that would not train as intended.
#
# Synthetic inputs show only the paths they happen to take. Only one proof relies on them: that no trained parameter
# changes the rows of `sanitize-once` and `sanitize-frozen` (`check_frozen`); there the rows are computed before the
# first step and kept. That a record is processed alone, and reaches the head only through its row, holds by
# construction (`hush.sanitize.privatised`, `SplitLoss`).


def check_frozen(cut: SplitModel) -> None:
    """Raise on a trained parameter before the layer: it would learn from the raw features. A parameter that has an
    effect but no gradient counts too: rows would be recomputed by another function with the same noise."""
    found = cut.before or _find_movers(cut)
    if found:
        names = ", ".join(sorted(found)[:3])
        raise UnsupportedModelError(
            f"'{names}' is trained and lies before the sanitisation layer at '{cut.name}', so it would learn from the "
            "raw features without noise: freeze all parameters before the layer (requires_grad_(False)), or use method "
            "sanitize-hybrid, which adds noise to their gradients too"
        )


def check_independent(cut: SplitModel, *, training: bool) -> None:
    """Raise if a record's row differs between a batch of one and a larger batch."""
    device = next(cut.model.parameters()).device
    with seeded(0):
        one, others = (first_of(make_synthetic(cut.like, device)) for _ in range(2))
        others[0] = one[0]
    if not _are_same(*(_reach(cut, inputs, {}, training)[0] for inputs in (one, others))):
        raise UnsupportedModelError(
            f"the input of the sanitisation layer at '{cut.name}' for one example depends on the other examples of a "
            "batch, so a record would influence the rows of others, which its noise does not cover: compute every "
            "example independently (batch statistics are the most frequent cause)"
        )
    alone = _reach(cut, one[:1], {}, training)
    if alone.shape != (1, *cut.shape):
        raise InvalidInputError(
            f"every record is computed in a batch of its own, and one example reaches the sanitisation layer at "
            f"'{cut.name}' as {tuple(alone.shape)}, not as {(1, *cut.shape)}: keep the first dimension (squeeze() "
            "without a dimension takes it away)"
        )


def find_head_parameters(cut: SplitModel, losses: Losses) -> frozenset[str]:
    """The trained parameters that learn by the rows that the layer hands on, and by nothing before it."""
    params, device = trainable(cut.model), next(cut.model.parameters()).device
    with seeded(0), evaluating(cut.model), torch.enable_grad():
        rows = torch.randn(PROBES, *cut.shape, device=device, dtype=cut.dtype)
        with returning_rows(cut.layer, rows):
            total = losses(cut.model, make_synthetic(cut.like, device)).sum()
        found = torch.autograd.grad(total, list(params.values()), allow_unused=True) if total.requires_grad else ()
    seen = {name for name, grad in zip(params, found, strict=False) if grad is not None}
    return frozenset(seen - cut.before)


def check_used_once(cut: SplitModel, losses: Losses) -> None:
    """Refuse a loss that sends an example through the layer several times: each time is a release of its own."""
    device = next(cut.model.parameters()).device
    with seeded(0), evaluating(cut.model, True), torch.no_grad():
        check_uses(cut.layer, lambda: losses(cut.model, make_synthetic(cut.like, device)), "losses call", cut.name)


def check_stateless(cut: SplitModel, losses: Losses) -> None:
    """Refuse early what a record would be refused for: a model or losses that keep something before the layer."""
    device = next(cut.model.parameters()).device
    with seeded(0), evaluating(cut.model, True), torch.no_grad(), restoring_state(cut.model, losses):
        forward_to_layer(partial(losses, cut.model), cut.layer, make_synthetic(cut.like, device))


def check_no_bypass(cut: SplitModel, losses: Losses) -> None:
    """Refuse a model or a loss that sees the inputs by another way than the layer: with the layer's rows held fixed,
    other inputs must not change a single loss, in training or in evaluation. In a run it would see zeros."""
    device = next(cut.model.parameters()).device
    with seeded(0):
        content = make_synthetic(cut.like, device)
        rows = torch.randn(PROBES, *cut.shape, device=device, dtype=cut.dtype)
        others = [make_synthetic(cut.like, device)[0], *_list_unusual(content[0])]
    for training in (True, False):

        def compute(inputs: Tensor, training: bool = training) -> Tensor:
            with (
                restoring(losses, cut.model),
                seeded(0),
                evaluating(cut.model, training),
                torch.no_grad(),
                returning_rows(cut.layer, rows),
            ):
                return losses(cut.model, with_inputs(content, inputs))

        usual = compute(content[0])
        for place, inputs in enumerate(others):
            try:
                found = compute(inputs)
            except Exception:  # a model may reject values that may never occur
                if not place:
                    raise
                continue
            if not _are_same(usual, found):
                raise UnsupportedModelError(
                    f"the model or its loss uses the inputs without passing the sanitisation layer at '{cut.name}' (a "
                    "shortcut around it, a mask, or a loss that compares with the inputs), and what bypasses the layer "
                    "has no noise: put the layer where everything passes through it"
                )


def _list_unusual(like: Tensor) -> list[Tensor]:
    """Inputs that masks and thresholds test for: zeros, large positive and negative numbers, and NaN."""
    if not like.is_floating_point():
        return [torch.zeros_like(like)]
    return [torch.zeros_like(like), 1e4 * like, -1e4 * like, like.new_full(like.shape, torch.nan)]


def _find_movers(cut: SplitModel) -> frozenset[str]:
    """Trained parameters that change the layer's input without having a gradient there."""
    with seeded(0):
        inputs = first_of(make_synthetic(cut.like, next(cut.model.parameters()).device))
        others = {name: (value, torch.randn_like(value)) for name, value in trainable(cut.model).items()}
    fixed = _reach(cut, inputs, {})
    if not _are_same(fixed, _reach(cut, inputs, {})):
        raise UnsupportedModelError(
            f"the input of the sanitisation layer at '{cut.name}' changes from call to call, as with numbers from "
            "numpy or from a private generator: draw with torch.rand, torch.randn or dropout, which are reproducible"
        )
    return frozenset(
        name for name, (old, new) in others.items() if not _are_same(_reach(cut, inputs, {id(old): new}), fixed)
    )


def _reach(cut: SplitModel, inputs: Tensor, others: Mapping[int, Tensor], training: bool = False) -> Tensor:
    """The layer's input with replaced parameters (by id), with the same random numbers each time and without state from
    earlier calls."""
    with seeded(0), evaluating(cut.model, training), torch.no_grad(), recording(cut.model, others):
        return forward_to_layer(cut.model, cut.layer, inputs)


def _are_same(one: Tensor, other: Tensor) -> bool:
    """Whether all bits are equal; NaN equals NaN."""
    return torch.equal(one.isnan(), other.isnan()) and torch.equal(one.nan_to_num(), other.nan_to_num())
