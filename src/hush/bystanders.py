"""Who else has to do with the model of a run: hooks, which see what no noise was added to, and runs before this one."""

from __future__ import annotations

from typing import Any
from weakref import WeakSet

from torch import nn
from torch.nn.modules import module as everywhere

from hush.errors import Refused

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
