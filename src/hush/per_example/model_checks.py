"""Checks of a model before and during training; a model that fails raises an error with the remedy.

Before: no layer mixes examples, no buffer learns from a batch (:func:`check_model`). During: nothing may be written to
a buffer or a parameter in a forward, because it would bypass the noise (:class:`ModelStateGuard`). Running statistics,
an embedding with ``max_norm`` or a memory of past features would be released with the model, or influence other
examples in a later step, without clipping and noise. The same holds for weights changed between two steps: only the
plan's optimizer may write them.
"""

from __future__ import annotations

import copy
import hashlib
import operator
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import FunctionType, MethodType
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor, nn
from torch.nn.modules import module as everywhere
from torch.overrides import _get_current_function_mode_stack
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from hush._internal.tensors import WIDTH, Named, fold_words
from hush.errors import ExamplesNotIndependent, RunStateError, UnsupportedModelError
from hush.per_example.functional import explain_jit, list_modules

_PRECISE = (torch.float32, torch.float64)
_MIXING = (nn.modules.batchnorm._BatchNorm,)
_SUSPECT = (*_MIXING, nn.modules.instancenorm._InstanceNorm, torch.jit.ScriptModule)
LEAST_CHANNELS = 4  # smallest number of channels in a group of `to_group_norm`


def check_model(model: nn.Module) -> None:
    """Raise for layers that mix examples, buffers that a training forward changes, and low-precision parameters."""
    if _needs_explanation(list_modules(model)):
        _refuse_model(model)


def _needs_explanation(modules: list[nn.Module]) -> bool:
    """Whether a model of these modules may be refused; every step asks this, so it makes no calls for a module."""
    for module in modules:
        if isinstance(module, _SUSPECT) or "weight_u" in module._buffers or "weight_u" in module.__dict__:
            return True
        if type(module).__name__ == "_SpectralNorm":
            return True
        for parameter in module._parameters.values():
            if parameter is not None and parameter.dtype not in _PRECISE and parameter.requires_grad:
                return True
    return False


def _refuse_model(model: nn.Module) -> None:
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and parameter.is_complex():
            raise UnsupportedModelError(
                f"parameter '{name}' is complex, but clipping and noise are proven for real numbers only: store its "
                "real and imaginary parts as two real parameters and join them in forward with torch.complex"
            )
        if parameter.requires_grad and parameter.dtype not in _PRECISE:
            raise UnsupportedModelError(
                f"parameter '{name}' is {str(parameter.dtype).removeprefix('torch.')}, which is too coarse for the "
                "proof: rounding moves a sum by more than one example may, and leaves gaps in the noise; use "
                "model.float()"
            )
    for name, module in model.named_modules():
        if isinstance(module, torch.jit.ScriptModule):
            raise UnsupportedModelError(explain_jit(name))
        where = f"layer '{name}' ({type(module).__name__})"
        if isinstance(module, _MIXING) and (module.training or not module.track_running_stats):
            raise UnsupportedModelError(
                f"{where} mixes the examples of a batch, so per-example gradients are not defined: convert it with "
                "model = hush.to_group_norm(model)"
            )
        if isinstance(module, nn.modules.instancenorm._InstanceNorm) and module.track_running_stats and module.training:
            raise UnsupportedModelError(
                f"{where} keeps running statistics, which are released without noise: create it with "
                "track_running_stats=False, or convert it with model = hush.to_group_norm(model)"
            )
        if hasattr(module, "weight_u") or type(module).__name__ == "_SpectralNorm":
            raise UnsupportedModelError(
                f"{where} uses spectral normalisation, whose buffers change in every training forward: remove it"
            )


def is_known_separate(model: nn.Module, losses: Any) -> bool:
    """Whether model and loss consist of parts of hush and of torch layers that treat every row separately, without
    hooks: a hook can replace the inputs and outputs of a layer."""
    return _is_ours(losses, set()) and not list_hooks(model) and all(map(_is_row_wise, model.modules()))


def has_known_augmentation(losses: Any) -> bool:
    """Whether every augmentation of these losses is one of hush. An augmentation sees a whole chunk, even where the
    model is computed one example at a time."""
    while losses is not None:
        if not _is_ours(getattr(losses, "augment", None), set()):
            return False
        losses = getattr(losses, "losses", None)
    return True


_PLAIN = (bool, int, float, str, bytes, type(None), Tensor, torch.dtype, torch.device)


def _is_ours(thing: Any, seen: set[int]) -> bool:
    """Whether a loss or an augmentation is code of hush, and so is everything that it holds: attributes, the object of
    a bound method, the closure of a function. Unknown objects are not. `functools.wraps` copies only a name, so the
    module of a function's code decides."""
    if isinstance(thing, _PLAIN) or id(thing) in seen:
        return True
    seen.add(id(thing))
    held: list[Any]
    if isinstance(thing, Mapping):
        held = [*thing.keys(), *thing.values()]
    elif isinstance(thing, (list, tuple, set, frozenset)):
        held = [*thing]
    elif isinstance(thing, MethodType):
        held = [thing.__func__, thing.__self__]
    elif isinstance(thing, FunctionType):
        if not _is_of_hush(str(thing.__globals__.get("__name__"))):
            return False
        held = [
            *_list_closure(thing),
            *(thing.__defaults__ or ()),
            *(thing.__kwdefaults__ or {}).values(),
            *vars(thing).values(),
        ]
    elif isinstance(thing, type):
        return _is_of_hush(thing.__module__)
    elif _is_of_hush(type(thing).__module__):
        held = list(getattr(thing, "__dict__", {}).values())
    else:
        return False
    return all(_is_ours(part, seen) for part in held)


def _is_of_hush(module: str) -> bool:
    return module.partition(".")[0] == "hush"


def _list_closure(function: FunctionType) -> list[Any]:
    found = []
    for cell in function.__closure__ or ():
        try:
            found.append(cell.cell_contents)
        except ValueError:  # a name that has no value yet
            continue
    return found


def _is_row_wise(module: nn.Module) -> bool:
    kind = type(module)
    if any(callable(getattr(kind, name, None)) for name in vars(module)):  # a method replaced on the object
        return False
    if module._compiled_call_impl is not None:
        return False
    if not _is_known(kind.forward):  # a method replaced on the class
        return False
    if isinstance(module, (nn.Flatten, nn.Unflatten)):
        first = module.start_dim if isinstance(module, nn.Flatten) else module.dim
        return kind in _ROW_WISE and isinstance(first, int) and first >= 1
    return kind in _ROW_WISE or _is_of_hush(kind.__module__)


def check_surroundings() -> None:
    """Raise if code outside of the model would take part in a step: modes that see every operation of torch, hooks that
    replace the tensors saved for the backward pass, and inference mode."""
    if torch.is_inference_mode_enabled():
        raise RunStateError("a step cannot be taken inside torch.inference_mode(): use torch.no_grad() or leave it out")
    functions: Any = _get_current_function_mode_stack
    modes = [*functions(), *_get_current_dispatch_mode_stack()]
    others = [type(mode) for mode in modes if not _is_defined_in(type(mode), ("torch", "hush"))]
    if others:
        raise UnsupportedModelError(
            f"the mode {others[0].__name__} is active around a step and could mix examples: take steps outside of it"
        )
    if torch._C._autograd._top_saved_tensors_default_hooks(False) is not None:
        raise UnsupportedModelError(
            "saved_tensors_hooks are active around a step and could mix examples: take steps outside of them"
        )


_ROW_WISE = {nn.Sequential, nn.Linear, nn.ReLU, nn.Sigmoid, nn.Tanh, nn.Dropout, nn.Flatten, nn.Unflatten}
_ROW_WISE |= {nn.Conv2d, nn.ConvTranspose2d, nn.MaxPool2d, nn.AdaptiveAvgPool2d, nn.GroupNorm, nn.LayerNorm}


def to_group_norm(model: nn.Module, groups: int = 32) -> nn.Module:
    """A copy of the model with GroupNorm in place of every BatchNorm (and InstanceNorm with running statistics).

    BatchNorm1d becomes one group, because an example may have a single row. Otherwise the number of groups is the
    largest divisor of the channels up to ``groups`` that leaves at least 4 channels per group: a group of one value is
    normalized to 0, one of two to ±1, and feature maps may be 1 × 1 after pooling. Scale and shift are kept.
    """
    return _convert(copy.deepcopy(model), groups)


def _convert(module: nn.Module, groups: int) -> nn.Module:
    if isinstance(module, nn.modules.batchnorm._BatchNorm) or (
        isinstance(module, nn.modules.instancenorm._InstanceNorm) and module.track_running_stats
    ):
        return _make_group_norm(module, groups)
    for name, child in module.named_children():
        setattr(module, name, _convert(child, groups))
    return module


def _make_group_norm(old: nn.modules.batchnorm._NormBase, groups: int) -> nn.GroupNorm:
    channels = old.num_features
    most = 1 if isinstance(old, nn.BatchNorm1d) else max(1, min(groups, channels // LEAST_CHANNELS))
    count = max(g for g in range(1, most + 1) if channels % g == 0)
    if isinstance(old, nn.modules.instancenorm._InstanceNorm):
        count = channels
    new = nn.GroupNorm(count, channels, eps=old.eps, affine=old.affine).train(old.training)
    if old.affine:
        new.weight, new.bias = old.weight, old.bias
        new = new.to(old.weight.device, old.weight.dtype)
    return new


class ModelStateGuard:
    """Detects changes to buffers and frozen parameters; only the trained parameters may change.

    Every step compares torch's version counters, which costs nothing; `complete` compares the bits. The trained
    parameters may be set until the first step. From then on their bits are compared after the optimizer has written
    them and again after the next forward, because ``weight.data`` has no version counter of its own: twice 0.15 ns per
    weight, a twentieth of the cost of its noise.
    """

    def __init__(self, model: nn.Module, params: Named) -> None:
        self._model, self._params = model, params
        self._every: list[Tensor | None] = []
        self._others: Named = {}
        self._known = {name: (_count_writes(t), _digest(t)) for name, t in self._find_others().items()}
        self._left, self._since = _Bits.of(params), ""  # since when only the run may write the trained parameters
        self._why = ""

    def note_written(self) -> None:
        """Accept the trained parameters as the optimizer wrote them; any later change is detected."""
        self._left, self._since = _Bits.of(self._params), "the last step"

    def _find_others(self) -> Named:
        """All tensors of the model that are not trained, under all their names."""
        model, modules = self._model, list_modules(self._model)
        now = [t for m in modules for t in (*m._parameters.values(), *m._buffers.values())]
        if not now or len(now) != len(self._every) or not all(map(operator.is_, now, self._every)):
            trained = {id(p) for p in self._params.values()}
            every = [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]
            self._every, self._others = now, {name: t for name, t in every if id(t) not in trained}
        return self._others

    @contextmanager
    def during_forward(self, *, complete: bool) -> Iterator[None]:
        """Raise if a forward writes into the model; everything after it, including a release, raises too."""
        if not self._since:
            self.note_written()
        before = [(p.data_ptr(), p._version) for p in self._params.values()]
        try:
            yield
        except ExamplesNotIndependent as stop:
            self._why = str(stop)
            raise
        finally:
            for (name, p), known in zip(self._params.items(), before, strict=True):
                if (p.data_ptr(), p._version) != known:
                    self._why = self._why or _explain_change(f"parameter '{name}'")
        self.check(complete=complete)

    def check(self, *, complete: bool) -> None:
        """Raise if something changed that is not trained, or something trained that the optimizer did not write."""
        others = self._find_others()
        changed = [name for name in self._params if name in others]  # the parameter object was replaced
        changed += self._left.find_changed(self._params) if self._since else []
        if changed and not self._why:
            self._why = (
                f"parameter '{changed[0]}' was changed since {self._since or 'the last step'}, but not by this run's "
                "optimizer (by another optimizer, load_state_dict or weight.data), which the guarantee does not cover: "
                "let only the run change the weights, or start a new run from weights that do not depend on these data"
            )
        if self._why:
            raise UnsupportedModelError(self._why)
        for name, tensor in others.items():
            writes, digest = self._known.get(name, (None, ""))
            if (complete or writes != _count_writes(tensor)) and digest != _digest(tensor):
                self._why = _explain_change(f"{'parameter' if isinstance(tensor, nn.Parameter) else 'buffer'} '{name}'")
                raise UnsupportedModelError(self._why)

    def check_release(self) -> None:
        """Raise unless the model holds only its trained parameters and what it began with.

        If no step was taken, the trained parameters must be those that the run was started with."""
        self._since = self._since or "the run was started"
        self.check(complete=True)
        names = {name for name, _ in self._model.named_parameters(remove_duplicate=False)} | set(self._known)
        for name in self._model.state_dict():
            if name not in names:
                raise UnsupportedModelError(
                    f"'{name}' of the model's state is neither a parameter nor a buffer: it cannot be released"
                )


def _explain_change(what: str) -> str:
    return (
        f"{what} changes in a training forward, which would bypass the noise: use a layer without running statistics, "
        "such as GroupNorm (model = hush.to_group_norm(model)), or an embedding without max_norm"
    )


def _count_writes(tensor: Tensor) -> tuple[int, int]:
    return tensor.data_ptr(), tensor._version


SMALL = 4 * WIDTH  # tensors with fewer values are compared directly


@dataclass(frozen=True)
class _Bits:
    """A snapshot of parameters: copies of the small ones, digests of the large ones."""

    octets: Tensor
    sizes: list[int]

    @staticmethod
    def of(params: Named) -> _Bits:
        kept = [p.detach() if p.numel() < SMALL else fold_words(p) for p in params.values()]
        octets = [t.contiguous().reshape(-1).view(torch.uint8) for t in kept]
        return _Bits(torch.cat(octets), [t.numel() for t in octets])

    def find_changed(self, params: Named) -> list[str]:
        """The parameters that differ from the snapshot."""
        now = _Bits.of(params)
        if torch.equal(now.octets, self.octets):
            return []
        parts = zip(params, *(torch.split(bits.octets, bits.sizes) for bits in (self, now)), strict=True)
        return [name for name, before, after in parts if not torch.equal(before, after)]


def _digest(tensor: Tensor) -> str:
    data = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    return hashlib.blake2b(data.numpy().data, digest_size=16).hexdigest()


# Other users of a run's model: hooks, which see values without noise, and earlier runs.

_KINDS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
_PARAMETERS = ("_backward_hooks", "_post_accumulate_grad_hooks")
_trained: WeakSet[nn.Module] = WeakSet()


def list_hooks(model: nn.Module) -> dict[int, Any]:
    """The hooks that are called with the model, including global module hooks, except those of torch (such as
    weight_norm's) and hush."""
    tables = [getattr(part, kind) for part in model.modules() for kind in _KINDS]
    tables += [getattr(everywhere, f"_global{kind}") for kind in _KINDS]
    tables += [getattr(parameter, kind, None) for parameter in model.parameters() for kind in _PARAMETERS]
    found = [hook for table in tables if table for hook in table.values()]
    return {id(hook): hook for hook in found if not _is_known(hook)}


def _is_known(hook: Any) -> bool:
    """Whether a hook or a method is code of torch or hush. A module as a hook may hold modules of others, and a
    decorator of torch (``@torch.no_grad()``) holds the function of others in its closure."""
    own = getattr(hook, "__self__", hook)  # the object of a bound method
    if isinstance(own, FunctionType):
        modules = (own.__globals__.get("__name__"), own.__module__)
        ours = all(str(module).split(".")[0] in ("torch", "hush") for module in modules)
        return ours and all(map(_is_known, filter(callable, _list_closure(own))))
    return not isinstance(own, nn.Module) and _is_defined_in(type(own), ("torch", "hush"))


def _is_defined_in(kind: type, packages: tuple[str, ...]) -> bool:
    """Whether a class is what one of these packages has under its name."""
    found: Any = sys.modules.get(kind.__module__)
    for name in kind.__qualname__.split("."):
        found = getattr(found, name, None)
    return found is kind and kind.__module__.split(".")[0] in packages


def refuse_new_hooks(model: nn.Module, known: dict[int, Any]) -> None:
    """Raise if the optimizer added hooks to the model: they would see activations without noise."""
    if list_hooks(model).keys() - known.keys():
        raise UnsupportedModelError(
            "the optimizer adds hooks to the model, which see inputs and activations of single examples without noise, "
            "so its updates are not covered: use an optimizer that reads gradients only"
        )


def note_training(model: nn.Module) -> None:
    """Mark the trainable parts of this model as trained by a run of this process."""
    _trained.update(part for part in model.modules() if any(p.requires_grad for p in part.parameters(recurse=False)))


def was_trained(model: nn.Module) -> bool:
    """Whether a run of this process has taken a step with this model or a part of it."""
    return any(part in _trained for part in model.modules())
