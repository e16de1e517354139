"""Any ``torch.optim`` optimizer, with its scheduler and parameter groups, on noisy gradients.

The optimizer receives the noisy gradient as ``.grad`` and nothing else. Optimizers and schedulers that need the loss,
or a closure that computes gradients on the raw data, raise `NotProvenError`.
"""

from __future__ import annotations

import copy
import hashlib
import json
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from hush._internal.identity import IdentityScope, NoIdentity, declared
from hush._internal.tensors import Named, State
from hush.errors import HushError, InvalidInputError, NotProvenError
from hush.noise.base import NoisyGradient

MOST_CHECKED = 100_000  # steps for which a scheduler is tried before the run, about 20 µs each
SCHEDULED = ("step", "_opt_called", "_step_count")  # attributes that a scheduler adds to its optimizer


@dataclass(frozen=True)
class TorchOptim:
    """``TorchOptim(lambda params: torch.optim.AdamW(params.values(), lr=1e-3))``.

    ``optimizer`` receives the trainable parameters by name, so it can form groups. ``scheduler`` receives the
    optimizer and is stepped after every step.
    """

    optimizer: Callable[[Named], torch.optim.Optimizer]
    scheduler: Callable[[torch.optim.Optimizer], Any] | None = None

    def declared(self, scope: IdentityScope) -> dict[str, Any]:
        """What the functions build for the model's parameters: class, settings and groups, and with a scheduler the
        settings of every step."""
        if scope.params is None:
            raise NoIdentity("the optimizer is built for a model's parameters: give the parameters")
        twins: Named = {name: nn.Parameter(torch.zeros_like(p)) for name, p in scope.params.items()}
        try:
            state = self.init(twins)
            found = {"optimizer": type(state["optimizer"]), "defaults": dict(state["optimizer"].defaults)}
            found["groups"] = _settings(state["optimizer"], twins)
            found["beside"] = _extra_attributes(state["optimizer"])
            if "scheduler" in state:
                found |= {"scheduler": type(state["scheduler"]), "every step": _digest_schedule(state, scope)}
        except (HushError, MemoryError):
            raise
        except Exception as error:  # code of another library, on parameters without gradients
            why = f"{type(error).__name__}: {error}"
            raise NoIdentity(f"the optimizer cannot be described without training ({why})") from error
        return found

    def init(self, params: Named) -> State:
        """The live optimizer and scheduler; a checkpoint stores their ``state_dict``."""
        optimizer = self.optimizer(params)
        _check_optimizer(optimizer, params)
        state: State = {"optimizer": optimizer}
        if self.scheduler is not None:
            scheduler = self.scheduler(optimizer)
            if isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau):
                raise NotProvenError(
                    "ReduceLROnPlateau reads the training loss, which is private: use a schedule that depends on the "
                    "step alone, such as CosineAnnealingLR"
                )
            state["scheduler"] = scheduler
        return state

    def step(self, params: Named, release: NoisyGradient, state: State) -> Named:
        before = {name: p.detach().clone() for name, p in params.items()}
        for name, parameter in params.items():
            parameter.grad = release.gradient[name].clone()
        state["optimizer"].step()
        if "scheduler" in state:
            state["scheduler"].step()
        for parameter in params.values():
            parameter.grad = None
        return {name: p.detach() - before[name] for name, p in params.items()}


def check_schedule(state: Any, params: Named, steps: int) -> None:
    """Raise if a scheduler in ``state``, at any depth, fails before the plan ends: an error during the run would waste
    the budget spent so far. A copy is stepped that shares only the parameters."""
    if not isinstance(state, dict) or steps > MOST_CHECKED:
        return
    for part in state.values():
        check_schedule(part, params, steps)
    if _is_repeatable(scheduler := state.get("scheduler")):
        _step_through(copy.deepcopy(scheduler, {id(p): p for p in params.values()}), steps)


def runs_user_code(optimizer: Any, state: Any) -> bool:
    """Whether code of neither hush nor torch changes the weights: an optimizer or a scheduler of another module, or a
    function in a schedule. It could read what a model or a loss left somewhere, and no noise is added after it."""
    parts = state if isinstance(state, dict) else {}
    own = parts.get("optimizer")
    theirs = [part for part in (optimizer, own if isinstance(own, torch.optim.Optimizer) else None) if part is not None]
    if any(type(part).__module__.partition(".")[0] not in ("hush", "torch") for part in theirs):
        return True
    if "scheduler" in parts and not _is_repeatable(parts["scheduler"]):
        return True
    return any(runs_user_code(None, part) for part in parts.values())


def _is_repeatable(scheduler: Any) -> bool:
    """Whether it is a scheduler of torch without functions: functions may have state that a copy would share."""
    if not isinstance(scheduler, torch.optim.lr_scheduler.LRScheduler):
        return False
    held = vars(scheduler)
    own = type(scheduler).__module__ == "torch.optim.lr_scheduler"
    functions = held.get("lr_lambdas") or held.get("_scale_fn_custom")
    return own and not functions and all(map(_is_repeatable, held.get("_schedulers", ())))


def _step_through(scheduler: Any, steps: int) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # stepped without its optimizer
        for step in range(steps):
            try:
                scheduler.step()
            except Exception as error:
                raise InvalidInputError(
                    f"{type(scheduler).__name__} fails after {step} of the plan's {steps} steps ({error}): make it for "
                    f"{steps} steps"
                ) from error


def _settings(optimizer: torch.optim.Optimizer, params: Named) -> list[dict[str, Any]]:
    """Every group's settings, and which parameters are in it."""
    names = {id(p): name for name, p in params.items()}
    return [{**group, "params": [names[id(p)] for p in group["params"]]} for group in optimizer.param_groups]


def _extra_attributes(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Attributes of a third-party optimizer other than its settings; raises on hooks, which have no identity."""
    held = vars(optimizer)
    if any(content for name, content in held.items() if name.endswith("_hooks")):
        raise NoIdentity("the optimizer has hooks, which have no identity: remove them")
    if type(optimizer).__module__.startswith("torch."):
        return {}
    usual = vars(torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)).keys()
    return {name: content for name, content in held.items() if name not in usual and name not in SCHEDULED}


def _digest_schedule(state: State, scope: IdentityScope) -> str:
    """A digest of the settings at every step of the plan, as the scheduler changes them."""
    total = hashlib.blake2b(digest_size=16)
    for _ in range(scope.steps):
        state["optimizer"].step()  # without gradients it changes nothing
        state["scheduler"].step()
        groups = [{k: v for k, v in group.items() if k != "params"} for group in state["optimizer"].param_groups]
        total.update(json.dumps(declared(groups, scope)).encode())
    return total.hexdigest()


def _check_optimizer(optimizer: torch.optim.Optimizer, params: Named) -> None:
    if isinstance(optimizer, torch.optim.LBFGS):
        raise NotProvenError(
            "LBFGS evaluates the loss again on the raw data through a closure, outside the privacy boundary: "
            "use an optimizer that takes one gradient per step"
        )
    ours = {id(p) for p in params.values()}
    theirs = {id(p) for group in optimizer.param_groups for p in group["params"]}
    if not theirs <= ours:
        raise InvalidInputError(
            "the optimizer holds parameters that this run does not train: build it from the given parameters"
        )
