"""The reference engine: torch.func computes each example's gradient as if it were alone in its batch.

gᵢ = ∇ lossᵢ by vmap(grad) over a batch of one. It holds n gradients at once and is slow, but correct by construction:
nothing in one example can reach another's gradient. All other engines are compared with it. A model with its own rule
for vmap (``vmap`` of an autograd Function) is not mapped, because such a rule sees all examples at once.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field
from importlib import import_module
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch._functorch import autograd_function as rules
from torch.func import grad_and_value, vmap
from torch.overrides import TorchFunctionMode

from hush._internal.tensors import Losses, Named, check_losses, trainable
from hush.data_source import tensors_of, to_each
from hush.errors import UnsupportedModelError
from hush.per_example.augmentation import Point, make_rewinder
from hush.per_example.decompositions import find_substitutes, padding, replacing_forwards
from hush.per_example.model_rng import computing_again, drawing, drawing_only, is_by_place
from hush.per_example.reads import differentiate
from hush.per_example.result import MaterializedGradients

# The model during one recording: other tensors replace its parameters, and everything is restored exactly afterwards.
#
# torch.func's ``functional_call`` leaves wrong tensors in a module that is registered under two names, and cannot
# report that a forward assigned a buffer; so the tensors are swapped here, for every engine.

NOTHING = nullcontext()
_DOUBLE = {torch.complex32: torch.complex128, torch.complex64: torch.complex128}


@contextmanager
def recording(model: nn.Module, others: Mapping[int, Any], *, alone: bool = False) -> Iterator[None]:
    """The model as an engine runs it: ``others`` replace its parameters (by id), the forwards are those of
    :mod:`hush.per_example.decompositions`, and nothing is compiled; sequences are packed only if an example is
    ``alone``."""
    parts = parts_of(model)
    ours = parts.substitutes
    with _without_compiling(), replacing_forwards(ours), padding(ours, alone), _swapping(parts, others):
        yield


def _without_compiling() -> Any:
    """Disable torch.compile, which would trace through the replaced tensors; compiled parts run uncompiled."""
    return torch.compiler.set_stance("force_eager") if "torch._dynamo" in sys.modules else NOTHING


def is_compiled(model: nn.Module) -> bool:
    """Whether the model, or a part of it, was compiled by torch.compile."""
    return "torch._dynamo" in sys.modules and any(
        module._compiled_call_impl is not None or isinstance(module, torch._dynamo.OptimizedModule)
        for module in model.modules()
    )


@dataclass(frozen=True)
class _Contents:
    """The parameters, buffers and attributes of a module."""

    module: nn.Module
    params: dict[str, Any]
    buffers: dict[str, Any]
    attributes: dict[str, Any]
    writes: dict[str, int]  # how often each tensor in an attribute was written

    @staticmethod
    def of(module: nn.Module) -> _Contents:
        attributes = dict(module.__dict__)
        writes = {key: value._version for key, value in attributes.items() if isinstance(value, Tensor)}
        return _Contents(module, dict(module._parameters), dict(module._buffers), attributes, writes)

    def find_assigned(self, others: Mapping[int, Any]) -> list[str]:
        """Names whose tensor is neither the original nor its replacement."""
        found: list[str] = []
        for before, now in ((self.params, self.module._parameters), (self.buffers, self.module._buffers)):
            if before or now:
                expected = {key: others.get(id(tensor), tensor) for key, tensor in before.items()}
                found += _find_different(expected, now)
        return found

    def find_remembered(self) -> list[str]:
        """Attributes whose number a forward changed, or whose tensor it wrote to. Integers may count forwards, and
        attributes that are new are removed again."""
        before, now = self.attributes, self.module.__dict__
        other = [key for key in _find_different(before, now) if before.get(key) is not None and key in now]
        changed = [key for key in other if _holds_numbers(now[key]) and repr(now[key]) != repr(before[key])]
        return changed + [key for key, writes in self.writes.items() if before[key]._version != writes]

    def restore(self) -> None:
        """Restore the exact contents, without tensors and numbers that a forward left in attributes.

        They derive from this batch and would carry it into a later one. Integers and strings are removed along with a
        tensor, because they may describe it, such as the length of a table made for a longer input."""
        for before, now in ((self.params, self.module._parameters), (self.buffers, self.module._buffers)):
            if before or now:
                now.clear()
                now.update(before)
        attributes, before = self.module.__dict__, self.attributes
        if "_flat_weights" in before:
            attributes["_flat_weights"] = before["_flat_weights"]
        different = _find_different(before, attributes)
        with_tensors = any(_holds_tensors(attributes.get(key)) for key in different)
        for key in different:
            value = attributes.get(key)
            goes = with_tensors if isinstance(value, (int, str)) else _holds_tensors(value) or _holds_numbers(value)
            if not goes:
                continue
            if key in before:
                attributes[key] = before[key]
            else:
                del attributes[key]


@dataclass(eq=False)
class ModelParts:
    """The modules of a model and its trained parameters, found once for the recordings of a run (`keeping_parts`)."""

    model: nn.Module
    modules: list[nn.Module]
    params: Named
    modes: tuple[bool, ...]  # which modules are training
    substitutes: dict[nn.Module, Any]  # forwards that replace torch's
    tables: list[tuple[dict[str, Any], dict[str, Any]]]  # every module's parameters, now and when they were found
    flags: list[bool] = field(default_factory=list)
    contents: list[_Contents] | None = None  # before a recording, unless the last one changed them
    memo: dict[Any, Any] = field(default_factory=dict)  # what other modules compute from the above

    @staticmethod
    def of(model: nn.Module) -> ModelParts:
        """Find them."""
        modules = list_modules(model)
        tables = [(m._parameters, dict(m._parameters)) for m in modules]
        modes = tuple([m.training for m in modules])
        found = ModelParts(model, modules, trainable(model), modes, find_substitutes(modules), tables)
        found.flags = found._read_flags()
        return found

    def are_those_of(self, model: nn.Module) -> bool:
        """Whether they are the parts of this model, with the same parameters, in the same modes."""
        if self.model is not model:
            return False
        for module, mode, (now, before) in zip(self.modules, self.modes, self.tables, strict=True):
            if module.training is not mode or len(now) != len(before):
                return False
            if not all(map(operator.is_, now.values(), before.values())):
                return False
        return True

    def _read_flags(self) -> list[bool]:
        """Which parameters are trained, and which modules have a forward of their own."""
        own = ["forward" in module.__dict__ for module in self.modules]
        return own + [p.requires_grad for table, _ in self.tables for p in table.values() if p is not None]

    def renewed(self) -> ModelParts:
        """These parts, or those of the model as it is between two steps, if anything is different."""
        if self.contents is not None and not _are_untouched(self.contents, {}):
            self.contents = None
        same = self.are_those_of(self.model) and self.modules == list_modules(self.model)
        return self if same and self.flags == self._read_flags() else ModelParts.of(self.model)

    def read_contents(self) -> list[_Contents]:
        """The contents of the modules before a recording; raises for modules of torch.jit."""
        if self.contents is None:
            for module in self.modules:
                if not isinstance(module._parameters, dict):  # torch.jit has its own container
                    raise UnsupportedModelError(explain_jit(_find_name(self.model, module)))
            self.contents = [_Contents.of(module) for module in self.modules]
        return self.contents


_PARTS: ContextVar[ModelParts | None] = ContextVar("the parts of the model", default=None)


@contextmanager
def keeping_parts(parts: ModelParts) -> Iterator[None]:
    """Within it, recordings of their model use these parts; nothing else changes the model meanwhile."""
    token = _PARTS.set(parts)
    try:
        yield
    finally:
        _PARTS.reset(token)


def parts_of(model: nn.Module) -> ModelParts:
    """The parts of a model: those that are kept, if they are its own."""
    kept = _PARTS.get()
    return kept if kept is not None and kept.are_those_of(model) else ModelParts.of(model)


def list_modules(model: nn.Module) -> list[nn.Module]:
    """Every module of a model once, in the order of ``model.modules()``, without a call for each."""
    found: dict[nn.Module, None] = {}
    waiting: list[nn.Module | None] = [model]
    while waiting:
        module = waiting.pop()
        if module is not None and module not in found:
            found[module] = None
            waiting.extend(reversed(module._modules.values()))
    return list(found)


def _replace_tensors(contents: Iterable[_Contents], others: Mapping[int, Any]) -> None:
    """Replace tensors by id."""
    for each in contents:
        module = each.module
        for place in (module._parameters, module._buffers):
            for key, tensor in place.items():
                if id(tensor) in others:
                    place[key] = others[id(tensor)]
        if isinstance(module, nn.RNNBase):  # keeps a second list of its parameters, which torch's kernels read
            weights = module._flat_weights
            module.__dict__["_flat_weights"] = [others.get(id(w), w) for w in weights]


def _are_untouched(contents: Iterable[_Contents], others: Mapping[int, Any]) -> bool:
    """Whether the modules have the contents from before, with the ``others`` in their places."""
    for each in contents:
        module, attributes = each.module, each.module.__dict__
        if len(attributes) != len(each.attributes):
            return False
        if not all(map(operator.is_, attributes.values(), each.attributes.values())):
            return False
        for before, now in ((each.params, module._parameters), (each.buffers, module._buffers)):
            if len(before) != len(now):
                return False
            for key, tensor in before.items():
                if now.get(key) is not others.get(id(tensor), tensor):
                    return False
        for key, writes in each.writes.items():
            if each.attributes[key]._version != writes:
                return False
    return True


@contextmanager
def _swapping(parts: ModelParts, others: Mapping[int, Any]) -> Iterator[None]:
    """Replace parameters and buffers by other tensors; raise for a forward that assigns any of them itself."""
    model, contents = parts.model, parts.read_contents()
    assigned: list[str] = []
    remembered: list[str] = []
    parts.contents = None  # unless nothing was changed
    try:
        _replace_tensors(contents, others)
        yield
        if _are_untouched(contents, others):
            parts.contents = contents
        else:
            for each in contents:
                assigned += [_find_name(model, each.module, key) for key in each.find_assigned(others)]
                remembered += [_find_name(model, each.module, key) for key in each.find_remembered()]
    finally:
        for each in contents:
            if parts.contents is None:
                each.restore()
            else:
                each.module._parameters.update(each.params)
                each.module._buffers.update(each.buffers)
    if assigned:
        raise UnsupportedModelError(
            f"'{assigned[0]}' of the {type(model).__name__} is assigned in a training forward, which would bypass the "
            "noise: do not store what a forward computes in buffers or parameters, or fill them before training starts"
        )
    if remembered:
        raise UnsupportedModelError(
            f"'{remembered[0]}' of the {type(model).__name__} changes in a training forward, which would carry one "
            "batch's data into later ones without noise: do not store what a forward computes in attributes; set them "
            "between steps (an integer may count forwards)"
        )


def _find_name(model: nn.Module, module: nn.Module, key: str = "") -> str:
    """A module's name in the model, or that of an attribute of it."""
    found: str = next(name for name, each in model.named_modules() if each is module)
    return f"{found}.{key}".strip(".")


def explain_jit(name: str) -> str:
    """Why a module compiled by torch.jit cannot be used."""
    return (
        f"{f'layer {name!r}' if name else 'the model'} was compiled by torch.jit, which hides the uses of its "
        "parameters, so per-example gradients cannot be computed: pass the Python module that it was made from"
    )


def _find_different(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """The keys whose objects differ."""
    if len(before) == len(now) and all(map(operator.is_, before.values(), now.values())):
        return []  # the same objects in the same order; keys are never renamed
    return [key for key in {**before, **now} if key not in now or key not in before or now[key] is not before[key]]


def _holds_tensors(value: Any) -> bool:
    return isinstance(value, Tensor) or (isinstance(value, (tuple, list)) and any(map(_holds_tensors, value)))


def _holds_numbers(value: Any) -> bool:
    """A number that is not an integer, a numpy scalar, or a container of such."""
    if isinstance(value, (tuple, list, dict)):
        return any(map(_holds_numbers, value.values() if isinstance(value, dict) else value))
    return isinstance(value, (float, complex, np.generic, np.ndarray))


class _FloatsAreDouble(TorchFunctionMode):
    """Tensors created without a dtype are float64. torch's default dtype is not changed, because all threads share it;
    a mode is local to its thread."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func in _EXPLICIT or not isinstance(result, Tensor) or result.dtype != torch.get_default_dtype():
            return result
        given = list(_list_inside([args, kwargs or {}]))
        typed = any(isinstance(g, torch.dtype) or (isinstance(g, Tensor) and _has_fraction(g)) for g in given)
        return result if typed else result.double()


_EXPLICIT = frozenset((Tensor.float, Tensor.type, Tensor.type_as, Tensor.half, Tensor.bfloat16))


def _has_fraction(tensor: Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def _list_inside(value: Any) -> Iterator[Any]:
    if isinstance(value, (list, tuple)):
        for one in value:
            yield from _list_inside(one)
    elif isinstance(value, dict):
        yield from _list_inside(list(value.values()))
    else:
        yield value


@contextmanager
def computing_in_float64(model: nn.Module) -> Iterator[None]:
    """The model in float64: every parameter and buffer, including shared ones, and what its forward creates."""
    tensors = [*model.parameters(), *model.buffers()]
    others = {id(t): _make_parameter_like(t, widen(t)) for t in tensors}
    with _FloatsAreDouble(), _swapping(ModelParts.of(model), others):
        yield


def widen(tensor: Tensor) -> Tensor:
    """A tensor in double precision; integers are kept."""
    if tensor.is_complex():
        return tensor.detach().to(_DOUBLE.get(tensor.dtype, tensor.dtype))
    return tensor.detach().double() if tensor.is_floating_point() else tensor


def _make_parameter_like(old: Tensor, new: Tensor) -> Tensor:
    return nn.Parameter(new, requires_grad=old.requires_grad) if isinstance(old, nn.Parameter) else new


def compute_gradients(
    values: Tensor, inputs: Sequence[Tensor], start: Tensor, *, watched: bool = False
) -> tuple[Tensor | None, ...]:
    """autograd's gradients of these inputs, None for an input that the values do not depend on; ``watched`` if the
    examples are computed together, so that their reads are logged."""
    try:
        return differentiate(values, inputs, start, watched=watched)
    except RuntimeError as error:
        if not _has_reentrant_checkpoint(values):
            raise
        raise UnsupportedModelError(
            "reentrant checkpointing reruns a part of the model where per-example gradients cannot be tracked: use "
            "torch.utils.checkpoint.checkpoint(…, use_reentrant=False)"
        ) from error


def _has_reentrant_checkpoint(values: Tensor) -> bool:
    waiting, seen = [values.grad_fn], set()
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        if node.name() == "CheckpointFunctionBackward":
            return True
        seen.add(node)
        waiting += [parent for parent, _ in node.next_functions]
    return False


def refuse_unseen(params: Named, gradients: Iterable[Tensor | None]) -> None:
    """Raise if autograd reached an original parameter instead of its replacement.

    That gradient would be missing from every sum, and the parameter trained as if it were unused."""
    unseen = [name for name, gradient in zip(params, gradients, strict=True) if gradient is not None]
    if unseen:
        owner, _, key = unseen[0].rpartition(".")
        way = f"model.get_submodule('{owner}').{key}" if owner else f"model.{key}"
        raise UnsupportedModelError(
            f"parameter '{unseen[0]}' is used outside its module (kept in a list, in functools.partial or in a "
            f"closure), where its per-example gradients cannot be tracked: access it through the model, as {way}"
        )


def record_functional(
    model: nn.Module, losses: Losses, content: Any, n: int, points: Sequence[Point]
) -> MaterializedGradients:
    """Per-example gradients by torch.func, one vmap per point, all points under the same model randomness."""
    own = {name: p.detach() for name, p in trainable(model).items()}
    total: Named = {}
    first: Tensor | None = None
    rewind = make_rewinder(next(iter(own.values())).device)
    for point in points:
        rewind()
        seen = content if point.content is None else point.content
        values, gradients = _record_point(model, losses, own | (point.params or {}), seen)
        first = values if first is None else first
        for name, g in gradients.items():
            term = g if point.coefficient == 1.0 else g * point.coefficient
            total[name] = total[name] + term if name in total else term
    assert first is not None
    return MaterializedGradients(first, total)


def _record_point(model: nn.Module, losses: Losses, params: Named, content: Any) -> tuple[Tensor, Named]:
    originals = trainable(model)
    one_loss = _isolate_loss(model, losses, originals, content)
    batched = tensors_of(content)
    in_dims = (None, *[0] * len(batched))
    with torch.enable_grad(), drawing(), _without_own_rules(), _without_loading_the_compiler():
        gradients, values = vmap(grad_and_value(one_loss), in_dims=in_dims, randomness="different")(params, *batched)
    if values.requires_grad:  # nothing above requires it, so the loss uses original parameters
        refuse_unseen(originals, compute_gradients(values, list(originals.values()), torch.ones_like(values)))
    return values.detach(), {name: g.detach() for name, g in gradients.items()}


class _NoCompiler(ModuleType):
    """Replaces `torch._dynamo` where it is not loaded: torch.func disables compiled autograd around every gradient,
    and loading the compiler for that takes seconds. Any other use loads it."""

    compiled_autograd = SimpleNamespace(_disable=nullcontext)

    def __getattr__(self, name: str) -> Any:
        vars(torch).pop("_dynamo", None)
        return getattr(import_module("torch._dynamo"), name)


@contextmanager
def _without_loading_the_compiler() -> Iterator[None]:
    if "torch._dynamo" in sys.modules:
        yield
        return
    stub = _NoCompiler("torch._dynamo")
    vars(torch)["_dynamo"] = stub
    try:
        yield
    finally:
        if vars(torch).get("_dynamo") is stub:
            del vars(torch)["_dynamo"]


@contextmanager
def _without_own_rules() -> Iterator[None]:
    """Raise where vmap would call a rule of an autograd Function, which gets the rows of all examples."""
    used = vars(rules)
    usual = used["VmapInfo"]  # what every such rule is called with

    def refuse(**_: Any) -> Any:
        raise RuntimeError("the model has its own rule for vmap, which sees all examples at once")

    used["VmapInfo"] = refuse
    try:
        yield
    finally:
        used["VmapInfo"] = usual


def _isolate_loss(model: nn.Module, losses: Losses, originals: Named, content: Any) -> Callable[..., Tensor]:
    """The loss of one example, in a batch of one, as a function of the parameters and the example's tensors."""

    def one_loss(current: Named, *example: Tensor) -> Tensor:
        rows = iter(example)
        alone = to_each(lambda _: next(rows).unsqueeze(0), content)
        with recording(model, {id(p): current[name] for name, p in originals.items()}):
            loss = losses(model, alone)
        check_losses(loss, 1)
        single: Tensor = loss.squeeze(0)
        return single

    return one_loss


@torch.no_grad()
def compute_losses_alone(model: nn.Module, losses: Losses, content: Any, params: Named | None = None) -> Tensor:
    """Each example's loss as if it were alone in its batch, with the model randomness that it has in the batch."""
    originals, batched = trainable(model), tensors_of(content)
    at = {name: p.detach() for name, p in originals.items()} | (params or {})
    one_loss, in_dims = _isolate_loss(model, losses, originals, content), (None, *[0] * len(batched))
    with drawing(), _without_own_rules():
        values: Tensor = vmap(one_loss, in_dims=in_dims, randomness="different")(at, *batched)
    return values


def record_one_by_one(
    model: nn.Module, losses: Losses, content: Any, n: int, points: Sequence[Point]
) -> MaterializedGradients:
    """Per-example gradients by one ordinary backward pass per example, for what torch.func cannot map.

    Each example has the model randomness of its own place; without places, what torch's generator draws for
    one after the other. Its row is a copy: a view shares its memory with all other rows, which a model can reach by
    ``_base``, ``as_strided``, its storage or a pickle."""
    originals = trainable(model)
    own = {name: p.detach() for name, p in originals.items()}
    rewind = make_rewinder(next(iter(own.values())).device)
    rows: dict[str, list[Tensor]] = {name: [torch.zeros_like(p)] * n for name, p in own.items()}
    values: list[Tensor] = []
    for number, point in enumerate(points):
        rewind()
        leaves = {name: p.clone().requires_grad_() for name, p in (own | (point.params or {})).items()}
        places = {id(p): leaves[name] for name, p in originals.items()}
        seen = content if point.content is None else point.content
        for i in range(n):
            if is_by_place():
                rewind()
            single = to_each(lambda t, i=i: t[i : i + 1].clone(), seen)
            with torch.enable_grad(), recording(model, places, alone=True), drawing_only(torch.tensor([i])):
                with drawing(again=True):
                    loss = losses(model, single)
                check_losses(loss, 1)
                with computing_again():
                    found = _name_gradients(loss, leaves, originals)
            values += [loss.detach()] if number == 0 else []
            for name, g in found.items():
                rows[name][i] = rows[name][i] + point.coefficient * g
    return MaterializedGradients(torch.cat(values), {name: torch.stack(each) for name, each in rows.items()})


def _name_gradients(loss: Tensor, leaves: Named, originals: Named) -> Named:
    """The gradients of one loss, by name."""
    if not loss.requires_grad:
        return {}
    found = compute_gradients(loss, [*leaves.values(), *originals.values()], torch.ones_like(loss))
    refuse_unseen(originals, found[len(leaves) :])
    return {name: g for name, g in zip(leaves, found, strict=False) if g is not None}
