"""What is checked of a model before training and during it; a model that fails is refused, with the remedy.

Before: no layer mixes examples, no buffer learns from a batch (:func:`check_model`). During: whatever a forward writes
into a buffer or a parameter carries the batch past the noise (:class:`ModelStateGuard`). Running statistics, an
embedding
with ``max_norm``, a memory of past features: each of them would be released with the model, or meet other examples in a
later step, without clipping and without noise. The same holds for weights that somebody changes between two steps: only
what the plan's rule wrote is covered.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor, nn
from torch.nn.modules import module as everywhere

from hush._internal.tensors import WIDTH, Named, fold_words
from hush.errors import Refused, UnsupportedModelError
from hush.per_example.engine import ExamplesNotIndependent
from hush.per_example.functional import explain_jit

_PRECISE = (torch.float32, torch.float64)
_MIXING = (nn.modules.batchnorm._BatchNorm,)
LEAST_CHANNELS = 4  # in a group of `to_group_norm`


def check_model(model: nn.Module) -> None:
    """Refuse layers that mix examples, buffers that a training forward changes and coarse numbers; say what to do."""
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and parameter.is_complex():
            raise Refused(
                f"parameter '{name}' is complex, and clipping and noise are proven for real numbers only: keep its "
                "real and imaginary parts as two real parameters and join them in forward with torch.complex"
            )
        if parameter.requires_grad and parameter.dtype not in _PRECISE:
            raise Refused(
                f"parameter '{name}' is {str(parameter.dtype).removeprefix('torch.')}, too coarse for the proof: "
                "rounding moves a sum by more than one example may, and leaves gaps in the noise; use model.float()"
            )
    for name, module in model.named_modules():
        if isinstance(module, torch.jit.ScriptModule):
            raise Refused(explain_jit(name))
        where = f"layer '{name}' ({type(module).__name__})"
        if isinstance(module, _MIXING) and (module.training or not module.track_running_stats):
            raise Refused(
                f"{where} mixes the examples of a batch, so no example has a gradient of its own to clip: "
                "convert it with model = hush.to_group_norm(model)"
            )
        if isinstance(module, nn.modules.instancenorm._InstanceNorm) and module.track_running_stats and module.training:
            raise Refused(
                f"{where} keeps running statistics, which leave the batch without noise: "
                "make it with track_running_stats=False, or convert it with model = hush.to_group_norm(model)"
            )
        if hasattr(module, "weight_u") or type(module).__name__ == "_SpectralNorm":
            raise Refused(
                f"{where} uses spectral normalisation, whose buffers change in every training forward: remove it"
            )


def is_known_separate(model: nn.Module, losses: Any) -> bool:
    """Whether model and loss are of hush's own making, or of such layers of torch as treat every row by itself."""
    while hasattr(losses, "losses"):
        if not _is_ours(type(losses)) or not _is_ours(getattr(losses, "augment", type(losses))):
            return False
        losses = losses.losses
    return _is_ours(losses) and all(map(_is_row_wise, model.modules()))


def _is_ours(thing: Any) -> bool:
    return (getattr(thing, "__module__", None) or "").split(".")[0] == "hush"


def _is_row_wise(module: nn.Module) -> bool:
    if "forward" in module.__dict__:
        return False
    if isinstance(module, (nn.Flatten, nn.Unflatten)):
        first = module.start_dim if isinstance(module, nn.Flatten) else module.dim
        return type(module) in _ROW_WISE and isinstance(first, int) and first >= 1
    return type(module) in _ROW_WISE or _is_ours(type(module))


_ROW_WISE = {nn.Sequential, nn.Linear, nn.ReLU, nn.Sigmoid, nn.Tanh, nn.Dropout, nn.Flatten, nn.Unflatten}
_ROW_WISE |= {nn.Conv2d, nn.ConvTranspose2d, nn.MaxPool2d, nn.AdaptiveAvgPool2d, nn.GroupNorm, nn.LayerNorm}


def to_group_norm(model: nn.Module, groups: int = 32) -> nn.Module:
    """A copy of the model with GroupNorm in place of every BatchNorm (and InstanceNorm with running statistics).

    BatchNorm1d becomes one group, as a row may be all that an example has. Elsewhere the number of groups is the
    largest divisor of the channels up to ``groups`` that leaves at least 4 channels in each: a group of one number is
    normalised to 0, one of two to ±1, and maps may be of 1 × 1 after pooling. Scale and shift are kept.
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
    """The buffers and frozen parameters of a model as they are now; nothing but the trained parameters may change.

    Every step is checked by torch's own count of writes, which costs nothing; `complete` compares the bits. The trained
    parameters may be set until the first step. From then on they are looked at when the rule has written them and again
    after the next forward, since ``weight.data`` has no count of writes of its own: twice 0.15 ns a weight, a twentieth
    of what its noise costs.
    """

    def __init__(self, model: nn.Module, params: Named) -> None:
        self._model, self._params = model, params
        self._known = {name: (_count_writes(t), _digest(t)) for name, t in self._find_others().items()}
        self._left, self._since = _Bits.of(params), ""  # since when nobody else may write the trained parameters
        self._why = ""

    def note_written(self) -> None:
        """The rule has written the trained parameters; any other change from now on is noticed."""
        self._left, self._since = _Bits.of(self._params), "the last step"

    def _find_others(self) -> Named:
        """Everything of the model that is not trained, under all its names."""
        trained = {id(p) for p in self._params.values()}
        model = self._model
        every = [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]
        return {name: t for name, t in every if id(t) not in trained}

    @contextmanager
    def during_forward(self, *, complete: bool) -> Iterator[None]:
        """Refuse a forward (and all that follows, a release too) that writes into the model."""
        if not self._since:
            self.note_written()
        before = {name: _count_writes(p) for name, p in self._params.items()}
        try:
            yield
        except ExamplesNotIndependent as stop:
            self._why = str(stop)
            raise
        finally:
            for name, p in self._params.items():
                if _count_writes(p) != before[name]:
                    self._why = self._why or _explain_change(f"parameter '{name}'")
        self.check(complete=complete)

    def check(self, *, complete: bool) -> None:
        """Refuse where something changed that is not trained, or something trained that the rule did not write."""
        others = self._find_others()
        changed = [name for name in self._params if name in others]  # another one stands in its place
        changed += self._left.find_changed(self._params) if self._since else []
        if changed and not self._why:
            self._why = (
                f"parameter '{changed[0]}' was changed since {self._since or 'the last step'} by something else than "
                "this run's rule (an optimizer, load_state_dict, weight.data), which no guarantee covers: let the run "
                "alone change the weights, or start a new run from weights that were not made from these data"
            )
        if self._why:
            raise UnsupportedModelError(self._why)
        for name, tensor in others.items():
            writes, digest = self._known.get(name, (None, ""))
            if (complete or writes != _count_writes(tensor)) and digest != _digest(tensor):
                self._why = _explain_change(f"{'parameter' if isinstance(tensor, nn.Parameter) else 'buffer'} '{name}'")
                raise UnsupportedModelError(self._why)

    def check_release(self) -> None:
        """Refuse to release a model that holds more than its trained parameters and what it began with. Where no step
        was taken, the trained ones are what the run was started with."""
        self._since = self._since or "the run was started"
        self.check(complete=True)
        names = {name for name, _ in self._model.named_parameters(remove_duplicate=False)} | set(self._known)
        for name in self._model.state_dict():
            if name not in names:
                raise Refused(
                    f"'{name}' of the model's state is no parameter and no buffer: nothing covers its release"
                )


def _explain_change(what: str) -> str:
    return (
        f"{what} changes in a training forward, so it would carry the data past the noise: use a layer without running "
        "statistics, such as GroupNorm (model = hush.to_group_norm(model)), or an embedding without max_norm"
    )


def _count_writes(tensor: Tensor) -> tuple[int, int]:
    return tensor.data_ptr(), tensor._version


SMALL = 4 * WIDTH  # tensors of fewer numbers are compared as they are


@dataclass(frozen=True)
class _Bits:
    """What parameters are at one moment: each of the small ones itself, and of a large one the fold of its words."""

    octets: Tensor
    sizes: list[int]

    @staticmethod
    def of(params: Named) -> _Bits:
        kept = [_view_octets(p if p.numel() < SMALL else fold_words(p)) for p in params.values()]
        return _Bits(torch.cat(kept), list(map(len, kept)))

    def find_changed(self, params: Named) -> list[str]:
        """The parameters that are something else now."""
        now = _Bits.of(params)
        if torch.equal(now.octets, self.octets):
            return []
        parts = zip(params, *(torch.split(bits.octets, bits.sizes) for bits in (self, now)), strict=True)
        return [name for name, before, after in parts if not torch.equal(before, after)]


def _view_octets(tensor: Tensor) -> Tensor:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)


def _digest(tensor: Tensor) -> str:
    data = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    return hashlib.blake2b(data.numpy().data, digest_size=16).hexdigest()


# Who else has to do with the model of a run: hooks, which see what no noise was added to, and runs before this one.

_KINDS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
_PARAMETERS = ("_backward_hooks", "_post_accumulate_grad_hooks")
_trained: WeakSet[nn.Module] = WeakSet()


def list_hooks(model: nn.Module) -> dict[int, Any]:
    """The hooks that are called when the model is, those of all modules included, but for torch's own (such as those of
    weight_norm) and hush's."""
    tables = [getattr(part, kind) for part in model.modules() for kind in _KINDS]
    tables += [getattr(everywhere, f"_global{kind}") for kind in _KINDS]
    tables += [getattr(parameter, kind, None) for parameter in model.parameters() for kind in _PARAMETERS]
    found = [hook for table in tables if table for hook in table.values()]
    return {id(hook): hook for hook in found if not _is_known(hook)}


def _is_known(hook: Any) -> bool:
    own = getattr(hook, "__self__", hook)  # whose method it is
    where = getattr(own, "__module__", None) or type(own).__module__
    return str(where).split(".")[0] in ("torch", "hush")


def refuse_new_hooks(model: nn.Module, known: dict[int, Any]) -> None:
    """Refuse what the optimizer has put on the model: it would see activations, which have no noise."""
    if list_hooks(model).keys() - known.keys():
        raise Refused(
            "the optimizer puts hooks on the model, which see inputs and activations of single examples without noise, "
            "and what is updated by them is not covered: use an optimizer that reads gradients alone"
        )


def note_training(model: nn.Module) -> None:
    """The parts of this model that learn are trained by a run of this process."""
    _trained.update(part for part in model.modules() if any(p.requires_grad for p in part.parameters(recurse=False)))


def was_trained(model: nn.Module) -> bool:
    """Whether a run of this process has taken a step with it, or with a part of it."""
    return any(part in _trained for part in model.modules())
