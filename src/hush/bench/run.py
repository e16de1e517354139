"""One trial → one result: train it, measure it after every epoch, and write down what happened.

Choosing is for the validation part; the test part is measured to be reported. Whether a run has diverged is decided
from released values alone (its parameters, and the loss on rows outside the training data), because a stop that reads
the training loss would leak it.
"""

from __future__ import annotations

import math
import platform
import time
import traceback
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save

from hush import problems
from hush.bench.accounts import Accounts
from hush.bench.figures import TrialCheckpoint, WatchedLosses
from hush.bench.store import DISK, Result, Store
from hush.bench.trial import Trial
from hush.claims import find_composed_delta
from hush.errors import HushError
from hush.loop import train
from hush.methods import Setting, make_plan
from hush.named import trainable
from hush.plan import Plan
from hush.printable import as_json_data
from hush.problems import Problem
from hush.problems.evaluation import Evaluation, evaluate_problem
from hush.problems.sanitized import hide_clip
from hush.randomness import Secret, seeded
from hush.run import Run
from hush.source import as_source
from hush.version import read_versions

TRACE = "private/traceback.txt"
VERSIONS = ("hush", "torch", "dp-accounting", "numpy")


def _nothing() -> None:
    pass


@dataclass(frozen=True)
class Conditions:
    """How runs are carried out; nothing here changes a result."""

    device: str = "cpu"
    weights: bool = True
    checkpoint_seconds: float = 30.0
    pulse: Callable[[], None] = _nothing  # called after every step; raises to stop


class Diverged(Exception):
    """The run has left the finite numbers; its text says where."""


def perform(trial: Trial, store: Store, conditions: Conditions) -> Result:
    """Run a trial to its end; failure and divergence are results with a reason. A full disk is an OSError."""
    started = time.time()
    saved = TrialCheckpoint(store.working(trial.key), conditions.checkpoint_seconds)
    begun: _Trial | None = None
    try:
        with warnings.catch_warnings(record=True) as heard:
            begun = _Trial(trial, store, conditions, saved)
            result = begun.result(started)
        return _with_warnings(result, heard)
    except OSError as error:
        if error.errno in DISK:
            raise
        return record_failure(trial, started, error, _tell_spent(begun, saved))
    except Exception as error:
        return record_failure(trial, started, error, _tell_spent(begun, saved))
    finally:
        saved.close()


def record_failure(
    trial: Trial, started: float, error: Exception | str, spent: Mapping[str, Any] | None = None
) -> Result:
    """The result of a run that could not be finished, with what it has ``spent`` as far as that is known. The texts of
    errors that are not hush's own may quote data or the size of a batch (a shape): they are private, and the public
    reason is their kind."""
    if isinstance(error, str):
        return Result(_record(trial, started, "failed", error))
    reason = str(error) if isinstance(error, HushError) else f"{type(error).__name__} (see {TRACE})"
    record = _record(trial, started, "failed", reason) | dict(spent or {})
    trace = "".join(traceback.format_exception(error)).encode()
    return Result(as_json_data(record), private=((TRACE.partition("/")[2], trace),))


def _tell_spent(begun: _Trial | None, saved: TrialCheckpoint) -> dict[str, Any]:
    """What a run that failed costs whoever chooses among runs: its whole plan once it was begun, nothing before. In
    which step it failed may tell whose batch that was, and is not said."""
    if begun is None:
        return {} if saved.begun else {"begun": False}
    try:
        return {name: value for name, value in begun.tell_privacy().items() if name != "steps_taken"}
    except Exception:
        return {}


def _with_warnings(result: Result, heard: list[warnings.WarningMessage]) -> Result:
    """What was warned of goes to the private part, as it may quote data, and not to the terminal of a sweep."""
    texts = list(dict.fromkeys(f"{warning.category.__name__}: {warning.message}" for warning in heard))
    return replace(result, private=(*result.private, ("warnings.txt", "\n".join(texts).encode()))) if texts else result


def make_trial_plan(trial: Trial, problem: Problem, accounts: Accounts) -> Plan:
    """The trial's plan, that of ``make_plan``, its noise calibrated through the accounts."""
    epsilon = trial.settings.get("epsilon")
    setting = Setting(
        problem.examples, counted=True, unit=problem.unit, assumptions=problem.assumptions, **trial.settings
    )
    plan = make_plan(trial.method, setting, calibrate=False, **trial.options)
    return plan if epsilon is None else accounts.calibrated(plan, float(epsilon))


@lru_cache(maxsize=2)
def load_problem(name: str, seed: int, validation: float) -> Problem:
    """A problem, kept while the next trial needs it too; its data is checked once."""
    found = problems.load(name, seed=seed, validation=validation)
    held = None if found.validation is None else as_source(found.validation)
    return replace(found, train=as_source(found.train), test=as_source(found.test), validation=held)


class _Trial:
    """One trial on its way."""

    def __init__(self, trial: Trial, store: Store, conditions: Conditions, saved: TrialCheckpoint) -> None:
        self.trial, self.conditions, self.saved = trial, conditions, saved
        self.problem = load_problem(trial.problem, trial.split_seed, trial.validation)
        self.accounts = Accounts(store.root / "accounting")
        self.plan = make_trial_plan(trial, self.problem, self.accounts)
        self.ends = epoch_ends(self.plan, trial)
        self.losses = WatchedLosses(self.problem.training_losses, self.problem.classes)
        with seeded(trial.seed):
            self.model = self.problem.model().to(conditions.device)
        self.losses.watch(self.model)
        self.run, self.progress = self.saved.resume(self._start)
        self.last: Evaluation | None = None

    def _release(self, folder: Path) -> Path:
        told = hide_clip(self.problem, self.plan.query)
        return self.run.release(folder, description=told.describe())

    def result(self, started: float) -> Result:
        """Take the steps that remain, then write it all down."""
        outcome, reason = "finished", ""
        try:
            self._train()
        except Diverged as stop:
            outcome, reason = "diverged", str(stop)
        record = _record(self.trial, started, outcome, reason) | self._told()
        private = (("steps.safetensors", self._steps()),)
        release = self._release if self.conditions.weights else None
        return Result(
            as_json_data(record), tuple(as_json_data(line) for line in self.progress.epochs), private, release
        )

    def _start(self) -> Run:
        seed = self.trial.secret_seed
        secret = None if seed is None else Secret.from_seed(seed, "bench", self.trial.key, self.plan.fingerprint())
        return self.plan.start(self.model, self.losses, self.problem.train, secret=secret, unit=self.problem.whose)

    def _train(self) -> None:
        clock = time.perf_counter()
        ends = set(self.ends)
        for record in train(self.run):
            numbers = record.numbers()
            self.progress.step(numbers, self.losses.accuracy(int(numbers.get("examples", 0))))
            self.progress.seconds += time.perf_counter() - clock
            if self.run.next in ends:
                self._measure()
            self.saved.keep(self.run, self.progress)
            self.conditions.pulse()
            clock = time.perf_counter()

    def _measure(self) -> None:
        """The figures after an evaluated epoch."""
        clock = time.perf_counter()
        step = self.run.next
        line: dict[str, Any] = {"step": step, "epoch": step / _per_epoch(self.plan, self.trial)}
        line |= self._figures("validation") if self.problem.validation is not None else {}
        line |= self._figures("test")
        line |= self._spread()
        self.progress.epochs.append(line)
        self.progress.evaluation_seconds += time.perf_counter() - clock
        if not all(bool(torch.isfinite(p).all()) for p in trainable(self.model).values()):
            raise Diverged(f"the parameters are not finite after step {step}")
        for name in ("validation_loss", "test_loss"):
            if not math.isfinite(line.get(name, 0.0)):
                raise Diverged(f"the {name.replace('_', ' ')} is not finite after step {step}")

    def _figures(self, part: Any) -> dict[str, Any]:
        found = evaluate_problem(self.model, self.problem, part=part)
        if part == "test":
            self.last = found
        accuracy = {} if found.accuracy is None else {f"{part}_accuracy": found.accuracy}
        return {f"{part}_loss": found.loss, **accuracy}

    def _spread(self) -> dict[str, float]:
        """Of the published sanitisation layer: the mean spread of its noisy outputs since the last evaluated epoch, by
        which its paper stops. It is made of what the paper takes to be released."""
        curves, since = self.progress.curves, self.progress.epochs[-1]["step"] if self.progress.epochs else 0
        if "spread" not in curves:
            return {}
        total, examples = sum(curves["spread"][since:]), sum(curves["examples"][since:])
        return {"spread": total / examples} if examples and math.isfinite(total) else {}

    def _told(self) -> dict[str, Any]:
        """Everything public that is known at the end; ε after the evaluated epochs goes into their lines."""
        epsilons = {} if self.run.history.again else self.accounts.epsilons(self.plan, self.ends)
        for line in self.progress.epochs:
            line["epsilon"] = epsilons.get(line["step"])
        if self.last is None:  # resumed after its last step
            self._figures("test")
        final = {k: v for k, v in self.progress.epochs[-1].items() if k.startswith(("test_", "validation_"))}
        return {**final, **self.tell_privacy(), **self._effort()}

    def tell_privacy(self) -> dict[str, Any]:
        plan = self.run.plan
        guarantee, left = self.run.guarantee, find_composed_delta(plan, self.run.history, self.run.coordinates)
        claims = [claim.to_json() for claim in self.run.claims()]
        return {
            "epsilon": guarantee.epsilon,
            "delta": guarantee.delta,
            "status": guarantee.status,
            "adjacency": guarantee.adjacency,
            "protects": guarantee.protects,
            "accountant": guarantee.accountant,
            "guarantee": guarantee.sentence(),
            "event": guarantee.to_json()["event_json"],
            "lost_delta": guarantee.delta - left if plan.private else 0.0,
            "assumptions": list(guarantee.assumptions),
            "claims": [{name: claim[name] for name in ("epsilon", "status", "reason")} for claim in claims],
            "planned_method": plan.method,  # what auto has chosen
            "noise_multiplier": plan.sigma if plan.private else 0.0,
            "sensitivity": plan.sensitivity,
            "noise_std": plan.noise_std if plan.private else 0.0,
            "steps": plan.steps,
            "steps_taken": self.run.next,
            "examples": plan.sampler.examples,
            "sample_rate": getattr(plan.sampler.participation, "rate", None),
            **({"tried_before": True} if self.saved.lost else {}),
        }

    def _effort(self) -> dict[str, Any]:
        assert self.last is not None
        return {
            "metric": self.problem.metric,
            "confusion": self.last.to_json()["confusion"],
            "per_class": self.last.to_json()["per_class"],
            "class_names": None if self.problem.class_names is None else list(self.problem.class_names),
            "parameters": sum(p.numel() for p in trainable(self.model).values()),
            "train_seconds": self.progress.seconds,
            "evaluation_seconds": self.progress.evaluation_seconds,
            "inference_seconds": self.last.seconds / self.last.examples,
            "resumed": self.progress.resumed,
            "device": self.conditions.device,
        }

    def _steps(self) -> bytes:
        return save({name: torch.tensor(values) for name, values in self.progress.curves.items()})


def epoch_ends(plan: Plan, trial: Trial) -> list[int]:
    """The steps after which the run is measured: every ``evaluate_every`` epochs, and the last."""
    every = max(1, round(trial.evaluate_every * _per_epoch(plan, trial)))
    return [*range(every, plan.steps, every), plan.steps]


def _per_epoch(plan: Plan, trial: Trial) -> int:
    return -(-plan.sampler.examples // int(trial.settings["batch_size"]))


def _record(trial: Trial, started: float, outcome: str, reason: str) -> dict[str, Any]:
    return {
        "format": 1,
        "key": trial.key,
        "outcome": outcome,
        "reason": reason,
        "config": trial.config(),
        "secret": "system" if trial.secret_seed is None else "seed",
        "started": started,
        "seconds": time.time() - started,
        "versions": read_versions(*VERSIONS) | {"python": platform.python_version()} | trial.versions,
        "machine": {"system": platform.system(), "processor": platform.machine(), "threads": torch.get_num_threads()},
    }
