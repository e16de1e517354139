"""Any ``torch.optim`` optimizer, with its scheduler and parameter groups, as a rule on private gradients.

The optimizer receives the released gradient as ``.grad`` and nothing else. Those that ask for the loss, or for a
closure that would compute gradients on the raw data again, are refused.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from hush.errors import BadInput, Refused
from hush.named import Named, State
from hush.release import Release


@dataclass(frozen=True)
class TorchOptim:
    """``TorchOptim(lambda params: torch.optim.AdamW(params.values(), lr=1e-3))``.

    ``optimizer`` gets the trainable parameters by name, so it can sort them into groups. ``scheduler`` gets the
    optimizer; it is stepped after every step.
    """

    optimizer: Callable[[Named], torch.optim.Optimizer]
    scheduler: Callable[[torch.optim.Optimizer], Any] | None = None

    def init(self, params: Named) -> State:
        """The live optimizer and scheduler; a checkpoint keeps their ``state_dict``."""
        optimizer = self.optimizer(params)
        _check_optimizer(optimizer, params)
        state: State = {"optimizer": optimizer}
        if self.scheduler is not None:
            scheduler = self.scheduler(optimizer)
            if isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau):
                raise Refused(
                    "ReduceLROnPlateau reads the training loss, which is private: use a schedule that depends on the "
                    "step alone, such as CosineAnnealingLR"
                )
            state["scheduler"] = scheduler
        return state

    def step(self, params: Named, release: Release, state: State) -> Named:
        """Hand the released gradient to the optimizer, and take its step."""
        before = {name: p.detach().clone() for name, p in params.items()}
        for name, parameter in params.items():
            parameter.grad = release.gradient[name].clone()
        state["optimizer"].step()
        if "scheduler" in state:
            state["scheduler"].step()
        for parameter in params.values():
            parameter.grad = None
        return {name: p.detach() - before[name] for name, p in params.items()}


def _check_optimizer(optimizer: torch.optim.Optimizer, params: Named) -> None:
    if isinstance(optimizer, torch.optim.LBFGS):
        raise Refused(
            "LBFGS evaluates the loss again on the raw data through a closure, outside the privacy boundary: "
            "use an optimizer that takes one gradient a step"
        )
    ours = {id(p) for p in params.values()}
    theirs = {id(p) for group in optimizer.param_groups for p in group["params"]}
    if not theirs <= ours:
        raise BadInput("the optimizer holds parameters that this run does not train: build it from those it is given")
