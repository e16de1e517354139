"""`hush train --stop`: the published layer's early stop, and what may be said of a run that took it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from hush.checkpoint import LOG, Checkpoints
from hush.claims import account_steps
from hush.errors import BadInput
from hush.mechanism import Mechanism
from hush.run import Run
from hush.sanitize import Stop, state_stop
from hush.sanitize.adapting import Adapting
from hush.sanitize.published import Published
from hush.sanitize.stopping import EpochSpreads
from hush.settings import LENGTH, option

NONE = "none"


@dataclass(frozen=True, kw_only=True)
class StopOptions:
    """When training ends before all planned steps are taken."""

    stop: str | None = field(
        default=None,
        metadata=option(
            "Method sanitize: end once the deviation of the noisy outputs was flat for so many epochs, to so small a "
            "slope: 10:1.2e-4; or none. Saves time. What counts is the ε of all planned steps.",
            LENGTH,
        ),
    )


@dataclass
class Watch:
    """The series that a stop looks at, and after how many epochs it said so; a watch without ``rule`` never does."""

    rule: Stop | None
    spreads: EpochSpreads
    after: int | None = None

    def hear(self, steps: Iterable[Mapping[str, float]]) -> bool:
        """Whether the run is over after these steps too."""
        if self.rule is None or self.after is not None:
            return self.after is not None
        for figures in steps:
            if self.spreads.add(figures):
                self.after = self.rule.find(self.spreads.series)
        return self.after is not None

    def tell(self, plan: Mechanism, steps: int) -> dict[str, Any] | None:
        """The stop as fields of the answer and of the privacy card; None where there was none. ``steps`` were taken: a
        run that went on before it was watched has taken more than the epochs after which its flag is raised."""
        if self.after is None:
            return None
        early = state_stop(account_steps(plan)[0], account_steps(plan, steps)[0])[1]
        said = {"epsilon_there": early.epsilon, "status": early.status, "reason": early.reason}
        return {"after_epochs": self.after, "steps": steps, **said}


def begin_watch(text: str | None, run: Run, batch_size: int, checkpoints: Checkpoints | None) -> Watch:
    """The watch of a run; one that goes on has its first steps from its log."""
    watch = Watch(read_stop(text, run.plan), EpochSpreads(-(-len(run.source) // batch_size)))
    if watch.rule is None:
        return watch
    if run.ranks.world > 1:
        raise BadInput("--stop is for one process: leave it out under torchrun")
    if run.next:
        watch.hear(_recall(checkpoints, run.next))
    return watch


def read_stop(text: str | None, plan: Mechanism) -> Stop | None:
    """WINDOW:LIMIT as a stop for the plan's kind of threshold."""
    if text is None or text == NONE:
        return None
    if not isinstance(plan.query, Published | Adapting):
        raise BadInput(f"--stop is for method sanitize, and this is {plan.method}: give fewer --epochs instead")
    window, _, limit = text.partition(":")
    try:
        stop = Stop(int(window), float(limit), adaptive=isinstance(plan.query, Adapting))
    except ValueError as error:
        raise BadInput(f"--stop takes epochs and a slope such as 10:1.2e-4, or none; got '{text}'") from error
    stop.flag([])  # refuses a window or a limit that no series could have
    return stop


def _recall(checkpoints: Checkpoints | None, steps: int) -> list[dict[str, float]]:
    path = None if checkpoints is None else checkpoints.directory / LOG
    lines = path.read_text().splitlines() if path is not None and path.exists() else []
    if len(lines) < steps:
        raise BadInput("the log of this run's steps is gone, and a stop looks at them: go on with --stop none")
    return [json.loads(line) for line in lines[:steps]]


def tell_stop(stop: Mapping[str, Any]) -> str:
    """The stop for people."""
    return (
        f"stopped after {stop['after_epochs']} epochs by --stop; that this costs only ε = {stop['epsilon_there']:.2f} "
        f"is {stop['status']}, and all planned steps are counted"
    )
