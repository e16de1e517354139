"""One run of a benchmark as plain data: what is trained, how, and with which seeds.

Its key is a digest of the resolved configuration, hush's major version, the schema number and the versions of others'
packages, so that a store never holds the same run twice and never takes an old result for a new one.
"""

from __future__ import annotations

import hashlib
import json
import math
import platform
import shutil
import time
import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import save
from torch import Tensor, nn

from hush._internal.identity import NoIdentity
from hush._internal.imports import read_own_version, read_versions
from hush._internal.settings import ModelSettings, PlanSettings, list_axes
from hush._internal.storage import recall
from hush._internal.tensors import Losses, State, trainable
from hush._internal.text import as_json_data
from hush.bench.store import DISK, RUN, Result, Store
from hush.checkpointing.checkpoint import Checkpoints
from hush.data_source import as_source, to_each
from hush.datasets import catalogue
from hush.datasets.evaluation import Evaluation, evaluate_problem
from hush.datasets.problem import Problem
from hush.errors import HushError, InvalidInputError, ResumeError, RunStateError
from hush.guarantees import find_composed_delta
from hush.methods import PlanConfig, make_plan
from hush.optimizers import SGD
from hush.per_example.result import find_examples
from hush.plan import Plan
from hush.randomness import Secret, seeded, streams
from hush.run import Run
from hush.training import ProblemRun, describe_run, take_steps

if TYPE_CHECKING:
    from hush.sanitize.early_stopping import EarlyStopping

MAJOR = read_own_version().split(".")[0]
SCHEMA = 2  # raise it when a run of the same configuration would give another result; 2: noise in float64
REVISED: dict[str, int] = {}  # the same for the runs of one method alone

MODEL_AXES = list_axes(ModelSettings)
AXES = list_axes(PlanSettings) | MODEL_AXES
"""What can be varied with every method, and the types of its values; any other parameter is an option of the method."""


@dataclass(frozen=True)
class Trial:
    """A problem, a method, its settings and options, and seeds. ``seed`` fixes the initial weights, ``split_seed`` the
    validation part, which is the same for all trials of a spec so that they can be compared on it."""

    problem: str
    method: str
    settings: dict[str, Any]
    options: dict[str, Any]
    seed: int
    split_seed: int = 0
    validation: float = 0.1
    evaluate_every: float = 1.0
    secret_seed: int | None = field(default=None, repr=False)
    versions: dict[str, str] = field(default_factory=dict)  # of third-party code that declares one

    def config(self) -> dict[str, Any]:
        """The configuration as plain data; the secret seed is not in it."""
        return {
            "problem": self.problem,
            "method": self.method,
            **self.settings,
            "options": self.options,
            "seed": self.seed,
            "split_seed": self.split_seed,
            "validation": self.validation,
            "evaluate_every": self.evaluate_every,
        }

    @property
    def of_plan(self) -> dict[str, Any]:
        """The settings of the plan."""
        return {name: value for name, value in self.settings.items() if name not in MODEL_AXES}

    @property
    def of_model(self) -> ModelSettings:
        """The settings of the model."""
        return ModelSettings(**{name: value for name, value in self.settings.items() if name in MODEL_AXES})

    @cached_property
    def key(self) -> str:
        """Thirty-two hexadecimal digits."""
        stated = {"schema": SCHEMA, "hush": MAJOR, "secret": self.secret_seed, "others": self.versions, **self.config()}
        stated |= {"revised": REVISED[self.method]} if self.method in REVISED else {}
        text = json.dumps(_canonical(stated), sort_keys=True, ensure_ascii=False, allow_nan=False)
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _canonical(value: Any) -> Any:
    """Equal configurations as equal data: 1.0 and 1 are the same number."""
    if isinstance(value, dict):
        return {str(key): _canonical(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_canonical(item) for item in value]
    if isinstance(value, float):
        return int(value) if value.is_integer() else value if math.isfinite(value) else str(value)
    return value


# Metrics of a run while it trains: correct answers are counted, and checkpoints carry the metrics so far.
#
# The training accuracy of every step costs nothing: the model's scores are read on their way to the loss. What is
# counted here is private.


class WatchedLosses:
    """The losses of a problem, which count right answers as they pass; the labels are the content's last part."""

    def __init__(self, losses: Losses, classes: int | None) -> None:
        self.losses, self._classes = losses, classes
        self._scores: Tensor | None = None
        self._seen: Any = None
        self._counted: list[tuple[Tensor, Tensor]] = []  # right answers, examples; one entry a forward

    def watch(self, model: nn.Module) -> None:
        """Listen to the model's outputs from now on."""
        if self._classes is not None:
            model.register_forward_hook(lambda module, inputs, output: self._note_output(output))

    def __call__(self, model: nn.Module, content: Any) -> Tensor:
        """The losses, unchanged."""
        values = self.losses(model, content)
        if self._classes is not None and model.training:
            self._count(content)
        return values

    def accuracy(self, examples: int) -> float:
        """The share of correct answers in a step of this number of examples; NaN if they could not be counted.

        Before its first step a run evaluates synthetic inputs, and an engine evaluates some examples again: the counted
        calls are the last ones, one per example."""
        counted, self._counted, self._seen = self._counted, [], None
        right, left = 0, examples
        while counted and left > 0:
            found, size = counted.pop()
            right, left = right + int(found), left - int(size)
        return right / examples if examples and left == 0 else math.nan

    def _note_output(self, output: Any) -> None:
        self._scores = output.detach() if isinstance(output, Tensor) else None

    def _count(self, content: Any) -> None:
        """A second gradient at the same examples (DiSK's) is not counted again; inside torch.func nothing can be."""
        scores, self._scores = self._scores, None
        first = _first(content)
        if scores is None or first is self._seen or torch._C._functorch.is_functorch_wrapped_tensor(scores):
            return
        if scores.dim() == 2 and scores.shape[1] == self._classes:
            labels, there = content[-1], find_examples(len(content[-1]))
            right, size = scores.argmax(1) == labels, torch.tensor(len(labels))
            if there is not None:
                right, size = right & there.to(right.device), there.sum()  # no number is read into Python here
            self._counted.append((right.sum(), size))
            self._seen = first


@dataclass
class TrialMetrics:
    """The metrics of a run so far: private ones for every step (``curves``), public ones for evaluated epochs."""

    curves: dict[str, list[float]] = field(default_factory=dict)
    epochs: list[dict[str, Any]] = field(default_factory=list)
    seconds: float = 0.0
    evaluation_seconds: float = 0.0
    resumed: int = 0

    def step(self, numbers: dict[str, float], accuracy: float) -> None:
        """Add one step: loss and accuracy per example, and the other private metrics of the query."""
        examples = numbers.get("examples", 0.0)
        metrics = {name: value for name, value in numbers.items() if name != "loss"}
        if "loss" in numbers:
            metrics["loss"] = numbers["loss"] / examples if examples else float("nan")
        for name, value in (metrics | {"accuracy": accuracy}).items():
            self.curves.setdefault(name, []).append(value)

    def state(self) -> State:
        """As a checkpoint carries them."""
        curves = {name: torch.tensor(values, dtype=torch.float64) for name, values in self.curves.items()}
        return {**vars(self), "curves": curves}

    @classmethod
    def restore(cls, state: State | None, step: int) -> TrialMetrics:
        """The metrics that a checkpoint of this step carries; NaN for its steps if it carries none."""
        if state is None:
            return cls({name: [math.nan] * step for name in ("loss", "accuracy", "examples")}, resumed=1)
        curves = {name: values.tolist() for name, values in state["curves"].items()}
        return cls(**{**state, "curves": curves, "resumed": state["resumed"] + 1})


def _first(content: Any) -> Any:
    found: list[Tensor] = []
    to_each(found.append, content)
    return found[0] if found else None


# Calibrated noise and ε by step, computed once for all runs with the same privacy event.
#
# In a sweep over learning rates and seeds the event does not change, and calibrating it takes longer than everything
# else that the benchmark adds to a run. The rule is post-processing and takes no part. What is kept is σ and the ε of
# some numbers of steps; the guarantee in a record is always computed again from the plan that was run.

VERSIONS_ACCOUNTS = tuple(read_versions("hush", "dp-accounting").values())
POINTS = 64  # numbers of steps whose ε is computed; an accountant takes up to a second for each


@dataclass(frozen=True)
class Accounts:
    """A directory of small JSON files, one a privacy event."""

    directory: Path | None

    def calibrated(self, plan: Plan, epsilon: float) -> Plan:
        """The plan with the smallest σ for ε, read from the directory if it was computed before."""
        sigma = self._recall(f"sigma for {epsilon!r}", plan, lambda: plan.with_epsilon(epsilon).sigma)
        return replace(plan, sigma=float(sigma), target=epsilon)

    def epsilons(self, plan: Plan, steps: Sequence[int]) -> dict[int, float]:
        """ε after some of these numbers of steps, the last always among them; for at most ``POINTS`` of them."""
        if not plan.has_guarantee:
            return {}
        some = pick_steps(steps)
        found = self._recall(f"epsilon after {some}", plan, lambda: [plan.guarantee(t).epsilon for t in some])
        return dict(zip(some, found, strict=True))

    def _recall(self, what: str, plan: Plan, compute: Any) -> Any:
        stated = None if self.directory is None else _identity(plan)
        if self.directory is None or stated is None:
            return compute()
        name = hashlib.blake2b(f"{what}\0{VERSIONS_ACCOUNTS}\0{stated!r}".encode(), digest_size=16).hexdigest()

        def pack(value: Any) -> bytes:
            return json.dumps({"what": what, "method": plan.method, "value": value}).encode()

        return recall(self.directory / f"{name}.json", lambda file: json.load(file)["value"], compute, pack)


def _identity(plan: Plan) -> str | None:
    """The identity of the plan's event with the precision of its noise, for any optimizer; None if it has none."""
    try:
        return f"{replace(plan, optimizer=SGD()).fingerprint()} {plan.tails!r} {plan.precision!r}"
    except NoIdentity:
        return None


def pick_steps(steps: Sequence[int]) -> list[int]:
    """At most ``POINTS`` of the numbers, evenly spread, the first and the last among them."""
    if len(steps) <= POINTS:
        return list(steps)
    last = len(steps) - 1
    return [steps[round(i * last / (POINTS - 1))] for i in range(POINTS)]


# One trial → one result: train it, measure it after every epoch, and write down what happened.
#
# Choosing is for the validation part; the test part is measured to be reported. Whether a run has diverged is decided
# from released values alone (its parameters, and the loss on rows outside the training data), because a stop that reads
# the training loss would leak it.

TRACE = "private/traceback.txt"
CLAIMED = ("epsilon", "status", "reason")
VERSIONS = ("hush", "torch", "dp-accounting", "numpy")


def _nothing() -> None:
    pass


@dataclass(frozen=True)
class RunOptions:
    """How runs are carried out; nothing here changes a result."""

    device: str = "cpu"
    weights: bool = True
    checkpoint_seconds: float = 30.0
    pulse: Callable[[], None] = _nothing  # called after every step; raises to stop


class Diverged(Exception):
    """The run has non-finite numbers; the message names where."""


def run_trial(trial: Trial, store: Store, conditions: RunOptions) -> Result:
    """Run a trial to its end; failure and divergence are results with a reason. A full disk is an OSError.

    Of the store only the trial's working directory and the accounting are used. `InUse` if another process has the
    former."""
    started = time.time()
    try:
        checkpoints = Checkpoints(store.working(trial.key) / RUN)
    except OSError as error:
        if error.errno in DISK:
            raise
        return record_failure(trial, started, error)
    tried = bool(checkpoints.files())
    begun: _Trial | None = None
    try:
        with warnings.catch_warnings(record=True) as heard:
            begun = _Trial(trial, store, conditions, checkpoints)
            result = begun.result(started)
        return _with_warnings(result, heard)
    except OSError as error:
        if error.errno in DISK:
            raise
        return record_failure(trial, started, error, _describe_spent(begun, tried))
    except Exception as error:
        return record_failure(trial, started, error, _describe_spent(begun, tried))
    finally:
        checkpoints.close()


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
    return Result(as_json_data(record), private={TRACE.partition("/")[2]: trace})


def _describe_spent(begun: _Trial | None, tried: bool) -> dict[str, Any]:
    """The cost of a failed run in a selection: its whole plan once it was started, nothing before unless it was
    ``tried`` earlier. The step in which it failed may reveal whose batch that was, and is not reported."""
    if begun is None:
        return {} if tried else {"begun": False}
    try:
        return {name: value for name, value in begun.describe_privacy().items() if name != "steps_taken"}
    except Exception:
        return {}


def _with_warnings(result: Result, heard: list[warnings.WarningMessage]) -> Result:
    """Write warnings to the private part, as they may quote data, and not to the terminal of a sweep."""
    texts = list(dict.fromkeys(f"{warning.category.__name__}: {warning.message}" for warning in heard))
    return replace(result, private={**result.private, "warnings.txt": "\n".join(texts).encode()}) if texts else result


def make_trial_plan(trial: Trial, problem: Problem, accounts: Accounts) -> Plan:
    """The trial's plan, that of ``make_plan``, its noise calibrated through the accounts."""
    epsilon = trial.settings.get("epsilon")
    setting = PlanConfig(
        problem.examples, counted=True, unit=problem.unit, assumptions=problem.assumptions, **trial.of_plan
    )
    plan = make_plan(trial.method, setting, calibrate=False, **trial.options)
    return plan if epsilon is None else accounts.calibrated(plan, float(epsilon))


LAYER = {"sanitize_width", "sanitize_clip", "sanitize_dropout"}


def configure_problem(trial: Trial, problem: Problem, plan: Plan) -> Problem:
    """The problem with the initial weights and the sanitisation layer of the trial; unchanged if it has none."""
    if given := sorted(LAYER & trial.settings.keys()):
        if plan.trains_on is None or not hasattr(plan.trains_on, "nonnegative"):
            raise InvalidInputError(f"'{given[0]}' needs a method that releases activations, not '{plan.method}'")
        from hush.sanitize.problem import place_layer

        problem = place_layer(problem, plan.trains_on, trial.of_model, width=trial.settings.get("sanitize_width"))
    return problem.initialised(trial.of_model.initialisation)


@lru_cache(maxsize=2)
def load_problem(name: str, seed: int, validation: float) -> Problem:
    """A problem, kept while the next trial needs it too; its data is checked once."""
    found = catalogue.load(name, seed=seed, validation=validation)
    held = None if found.validation is None else as_source(found.validation)
    return replace(found, train=as_source(found.train), test=as_source(found.test), validation=held)


class _Trial:
    """One trial on its way."""

    def __init__(self, trial: Trial, store: Store, conditions: RunOptions, checkpoints: Checkpoints) -> None:
        self.trial, self.conditions, self.checkpoints = trial, conditions, checkpoints
        self.folder = store.working(trial.key)
        self.problem = load_problem(trial.problem, trial.split_seed, trial.validation)
        self.accounts = Accounts(store.root / "accounting")
        self.plan = make_trial_plan(trial, self.problem, self.accounts)
        self.problem = configure_problem(trial, self.problem, self.plan)
        self.ends = _epoch_ends(self.plan, trial)
        self.losses = WatchedLosses(self.problem.training_losses, self.problem.classes)
        with seeded(trial.seed):
            self.model = self.problem.model().to(conditions.device)
        self.losses.watch(self.model)
        self.metrics, self.lost = TrialMetrics(), False
        self.run = self._resume()
        self.last: Evaluation | None = None
        self.watch = self._watch()

    def result(self, started: float) -> Result:
        """Take the steps that remain, then write it all down."""
        outcome, reason = "finished", ""
        try:
            self._train()
        except Diverged as stop:
            outcome, reason = "diverged", str(stop)
        record = _record(self.trial, started, outcome, reason) | self._told()
        private = {"steps.safetensors": self._steps()}
        epochs = tuple(as_json_data(line) for line in self.metrics.epochs)
        return Result(as_json_data(record), epochs, private, self._release() if self.conditions.weights else {})

    def _release(self) -> dict[str, bytes]:
        """The files of the release."""
        folder = self.run.release(self.folder / "result.release", description=self.problem.describe())
        content = {path.name: path.read_bytes() for path in folder.iterdir()}
        shutil.rmtree(folder)
        return content

    def _start(self) -> Run:
        seed, secret = self.trial.secret_seed, None
        if seed is not None:
            secret = Secret.from_seed(seed, streams.BENCH, self.trial.key, self.plan.fingerprint())
        return ProblemRun.start(self.problem, self.plan, self.model, self.losses, secret=secret).run

    def _resume(self) -> Run:
        """The run from its checkpoint, or from the start if there is no usable one."""
        self.checkpoints.metrics = lambda: self.metrics.state()
        run, found = self._start(), self.checkpoints.newest().saved
        if found is not None:
            try:
                self.checkpoints.restore(run, found)
            except (ResumeError, RunStateError):  # of another version of the data or of hush
                run = self._start()
            else:
                self.metrics = TrialMetrics.restore(found.metrics, found.step)
                return run
        self.lost = bool(self.checkpoints.files())  # an earlier try, whose spend is counted in addition
        self.checkpoints.begin(run)
        return run

    def _watch(self) -> EarlyStopping | None:
        """The early stopping of the run, which has seen the steps that were taken before."""
        if (text := self.trial.of_model.stop) is None:
            return None
        from hush.sanitize.early_stopping import EarlyStopping, EpochSpreads, read_stop

        if (stop := read_stop(text, self.plan)) is None:
            return None
        watch = EarlyStopping(stop, EpochSpreads(_per_epoch(self.plan, self.trial)))
        if self.run.next and "spread" not in self.metrics.curves:
            raise ResumeError("the checkpoint of this run has no metrics, which its early stopping needs")
        spreads, examples = (self.metrics.curves.get(name, []) for name in ("spread", "examples"))
        watch.update({"spread": s, "examples": n} for s, n in zip(spreads, examples, strict=True))
        return watch

    def _train(self) -> None:
        saved = clock = time.perf_counter()
        ends = set(self.ends)
        for record in () if self.watch and self.watch.after else take_steps(self.run):
            numbers = record.numbers()
            self.metrics.step(numbers, self.losses.accuracy(int(numbers.get("examples", 0))))
            self.metrics.seconds += time.perf_counter() - clock
            stopped = self.watch is not None and self.watch.update([numbers])
            if stopped or self.run.next in ends:
                self._measure()
            if stopped:
                self.checkpoints.save(self.run)
                break
            if self.run.next < self.plan.steps and time.perf_counter() - saved >= self.conditions.checkpoint_seconds:
                self.checkpoints.save(self.run)
                saved = time.perf_counter()
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
        self.metrics.epochs.append(line)
        self.metrics.evaluation_seconds += time.perf_counter() - clock
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
        curves, since = self.metrics.curves, self.metrics.epochs[-1]["step"] if self.metrics.epochs else 0
        if "spread" not in curves:
            return {}
        total, examples = sum(curves["spread"][since:]), sum(curves["examples"][since:])
        return {"spread": total / examples} if examples and math.isfinite(total) else {}

    def _told(self) -> dict[str, Any]:
        """Everything public that is known at the end; ε after the evaluated epochs goes into their lines."""
        measured = [line["step"] for line in self.metrics.epochs]
        epsilons = {} if self.run.history.again else self.accounts.epsilons(self.run.plan, measured)
        for line in self.metrics.epochs:
            line["epsilon"] = epsilons.get(line["step"])
        if self.last is None:  # resumed after its last step
            self._figures("test")
        final = {k: v for k, v in self.metrics.epochs[-1].items() if k.startswith(("test_", "validation_"))}
        stopped = None if self.watch is None else self.watch.describe(self.run.plan, self.run.next)
        return {**final, **self.describe_privacy(), **({"stopped": stopped} if stopped else {}), **self._effort()}

    def describe_privacy(self) -> dict[str, Any]:
        """The guarantee, the plan and the claims of the run."""
        plan, run = self.run.plan, self.run
        guarantee, left = run.guarantee, find_composed_delta(plan, run.history, run.coordinates)
        shared = describe_run(run)
        return {
            **{name: shared[name] for name in ("epsilon", "delta", "status", "protects", "noise_multiplier", "steps")},
            "arithmetic": plan.arithmetic,
            "adjacency": guarantee.adjacency,
            "accountant": guarantee.accountant,
            "guarantee": shared["sentence"],
            "event": guarantee.to_json()["event_json"],
            "lost_delta": guarantee.delta - left if plan.has_guarantee else 0.0,
            "assumptions": list(guarantee.assumptions),
            "claims": [{name: claim.to_json()[name] for name in CLAIMED} for claim in run.claims()],
            "planned_method": plan.method,  # what auto has chosen
            "sensitivity": plan.sensitivity,
            "noise_std": plan.noise_std if plan.has_guarantee else 0.0,
            "steps_taken": run.next,
            "examples": plan.sampler.examples,
            "sample_rate": getattr(plan.sampler.participation, "rate", None),
            **({"tried_before": True} if self.lost else {}),
        }

    def _effort(self) -> dict[str, Any]:
        assert self.last is not None
        return {
            "metric": self.problem.metric,
            "confusion": self.last.to_json()["confusion"],
            "per_class": self.last.to_json()["per_class"],
            "class_names": None if self.problem.class_names is None else list(self.problem.class_names),
            "parameters": sum(p.numel() for p in trainable(self.model).values()),
            "train_seconds": self.metrics.seconds,
            "evaluation_seconds": self.metrics.evaluation_seconds,
            "inference_seconds": self.last.seconds / self.last.examples,
            "resumed": self.metrics.resumed,
            "device": self.conditions.device,
        }

    def _steps(self) -> bytes:
        return save({name: torch.tensor(values) for name, values in self.metrics.curves.items()})


def _epoch_ends(plan: Plan, trial: Trial) -> list[int]:
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
