"""Train a model with differential privacy: `train` does everything, `start` returns a run for your own loop.

>>> import tempfile, torch, hush
>>> from torch.nn.functional import cross_entropy
>>> x, y = torch.rand(200, 4), torch.randint(0, 2, (200,))
>>> def losses(model, batch):  # one loss per example
...     return cross_entropy(model(batch[0]), batch[1], reduction="none")
>>> result = hush.train(torch.nn.Linear(4, 2), losses, (x, y), epsilon=3, epochs=2, batch_size=50, lr=1.0)
>>> result.guarantee.status, result.guarantee.epsilon <= 3
('proven', True)

`start` returns the run itself:

>>> plan = hush.make_plan("dp-sgd", examples=200, batch_size=50, epochs=2, epsilon=3, lr=1.0)
>>> run = hush.start(plan, torch.nn.Linear(4, 2), losses, (x, y), directory=f"{tempfile.mkdtemp()}/run")
>>> for record in run:  # one private step per iteration
...     print(record.step, run.spent.status)
0 proven
1 proven
2 proven
3 proven
4 proven
5 proven
6 proven
7 proven
>>> run.release().name
'release'
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from safetensors.torch import load, load_file, save
from torch import Tensor, nn

from hush._internal import validate
from hush._internal.identity import NoIdentity
from hush._internal.progress import CHECKING, ProgressBar
from hush._internal.settings import CHECKPOINT_EVERY
from hush._internal.tensors import Losses, trainable
from hush._internal.text import as_json_data
from hush.accounting.guarantee import Guarantee
from hush.checkpointing.checkpoint import Checkpoints, share_state
from hush.data_release import ComposedRelease, DataRelease, Values, make_releases
from hush.data_source import as_source
from hush.distributed.group import MICROBATCH, ProcessGroup, Record, SingleProcess, on_rank_zero
from hush.errors import InvalidInputError, ResumeError
from hush.ledger.book import Ledger
from hush.methods import find, make_plan
from hush.methods import options as list_options
from hush.plan import Plan
from hush.privacy_unit import Units
from hush.release.description import Description
from hush.release.folder import CARD, WEIGHTS, read_json
from hush.run import Run
from hush.run_directory import RunDirectory, open_run_directory

if TYPE_CHECKING:
    from hush.datasets.problem import Problem

BATCH_SIZE = 256
FIGURES, NOTES = "figures.json", "columns.json"  # in the private part of a run: exact metrics, counts of empty cells
MEMORY_ONLY = "the trained model is not saved, and training it again costs the same ε again: give directory="
_log = logging.getLogger("hush")


@dataclass(frozen=True)
class Execution:
    """Settings that cannot change privacy. The run uses the model's device.

    ``processes`` share the run (`hush.init_distributed`); with ``noise_shards`` each process generates one slice of the
    noise. ``microbatch`` is the largest number of examples computed at a time."""

    processes: ProcessGroup | None = None
    noise_shards: bool = False
    microbatch: int = MICROBATCH


@dataclass(frozen=True)
class TrainingResult:
    """The trained model, its guarantee, the plan, and the run directory (None if nothing was saved)."""

    model: nn.Module
    guarantee: Guarantee
    plan: Plan
    directory: Path | None


def train(
    model: nn.Module,
    losses: Losses,
    data: Any,
    *,
    epsilon: float,
    delta: float = 1e-5,
    method: str = "dp-sgd",
    epochs: float | None = None,
    steps: int | None = None,
    batch_size: int | None = None,
    lr: float | None = None,
    clip: float = 1.0,
    optimizer: Any = None,
    scheduler: Any = None,
    sampling: str | None = None,
    unit: str = "example",
    groups: Any = None,
    directory: str | Path | None = None,
    resume: bool = False,
    ledger: str | Path | Ledger | None = None,
    dataset: str | None = None,
    on_epoch: Callable[[int, Run], None] | None = None,
    execution: Execution | None = None,
    **options: Any,
) -> TrainingResult:
    """Train ``model`` with differential privacy at (``epsilon``, ``delta``).

    Args:
        losses: ``losses(model, batch)``, one loss per example.
        data: tensors, arrays, a map-style Dataset or a DataLoader. The examples are counted; the guarantee has the
            condition that their number is public.
        method: one of ``hush methods``; further ``options`` are those of `hush.make_plan` and of the method.
        delta: the probability with which ε may not hold; below one over the number of examples.
        epochs, steps: how long to train; by default 30 epochs, or what suits the method.
        batch_size: the expected number of examples in a batch, 256 by default.
        lr, clip: the learning rate and the clip norm.
        optimizer: by default that of the method; else one of `hush.optimizers`, or a factory of a torch optimizer.
        scheduler: a learning rate by step (`hush.optimizers`).
        sampling: how batches are drawn, by its name in `hush.make_plan`; by default what suits the method.
        groups: one value per row: all rows of one value are one privacy unit, called ``unit`` in the guarantee.
        directory: the run directory. It holds checkpoints and private logs, and ``directory/release``, which may be
            published. A directory that holds a run raises `ResumeError` unless ``resume`` is set; a finished run is
            then returned at no cost.
        ledger: a path or a `hush.Ledger`, with ``dataset`` as the name of the data. The whole plan is charged before
            the first step.
        on_epoch: called as ``on_epoch(epoch, run)`` after every epoch. It may log, evaluate on public data and save; it
            cannot stop the run.
        execution: settings that cannot change privacy.
    """
    if lr is not None:
        options["lr"] = lr
    rows_per_unit = options.get("rows_per_unit")
    plan = plan_for_data(
        data,
        method,
        epsilon=epsilon,
        delta=delta,
        epochs=epochs,
        steps=steps,
        batch_size=batch_size,
        clip=clip,
        optimizer=optimizer,
        scheduler=scheduler,
        sampling=sampling,
        unit=unit,
        groups=groups,
        **options,
    )
    examples = plan.sampler.examples
    if directory is None:
        _log.warning(MEMORY_ONLY)
    elif resume and (finished := _read_finished(Path(directory), plan, model)) is not None:
        return finished
    run = start(
        plan,
        model,
        losses,
        data,
        directory=directory,
        resume=resume,
        ledger=ledger,
        dataset=dataset,
        groups=groups,
        rows_per_unit=rows_per_unit,
        execution=execution,
    )
    per_epoch = -(-examples // round(plan.divisor)) if plan.divisor >= 1 else plan.steps
    model.train()
    try:
        _take_with_progress(run, per_epoch, on_epoch)
    except BaseException:
        run.close()
        raise
    model.eval()
    guarantee = run.guarantee
    if directory is not None:
        run.release()
    run.close()
    return TrainingResult(model, guarantee, run.plan, None if directory is None else Path(directory))


def plan_for_data(
    data: Any,
    method: str,
    *,
    epochs: float | None = None,
    steps: int | None = None,
    batch_size: int | None = None,
    clip: float = 1.0,
    unit: str = "example",
    groups: Any = None,
    rows_per_unit: int | None = None,
    assumptions: tuple[str, ...] = (),
    **settings: Any,
) -> Plan:
    """The plan that `train` makes: for as many examples, or groups, as ``data`` holds, on the condition that their
    number is public."""
    rows = as_source(data)
    examples = len(rows if groups is None else Units.of(rows, groups, rows_per_unit))
    named = "group" if groups is not None and unit == "example" else unit
    if settings.get("delta", 0.0) >= 1 / max(1, examples):
        _log.warning("%s", validate.describe_large_delta(settings["delta"], examples))
    if "clip" in list_options(find(method)):
        settings["clip"] = clip
    return make_plan(
        method,
        examples=examples,
        counted=True,
        epochs=epochs,
        steps=steps,
        batch_size=min(BATCH_SIZE, examples) if batch_size is None else batch_size,
        unit=named,
        assumptions=(f"the number of {named}s is public", *assumptions),
        **settings,
    )


def _take_with_progress(run: Run, per_epoch: int, on_epoch: Callable[[int, Run], None] | None) -> None:
    console = Console(stderr=True)
    hidden = not console.is_terminal or bool(run.ranks.rank)
    with ProgressBar(console=console, transient=True, auto_refresh=False, disable=hidden) as bar:
        if run.next < run.plan.steps:
            with bar.showing(CHECKING):
                run.check_arithmetic()
        shown = bar.add_task(f"training with {run.plan.method}", total=run.plan.steps, completed=run.next)
        for _ in run:
            bar.advance(shown)
            if on_epoch is not None and (run.next % per_epoch == 0 or run.next == run.plan.steps):
                on_epoch(-(-run.next // per_epoch), run)


def start(
    plan: Plan,
    model: nn.Module,
    losses: Losses,
    data: Any,
    *,
    directory: str | Path | None = None,
    resume: bool = False,
    ledger: str | Path | Ledger | None = None,
    dataset: str | None = None,
    new_dataset: bool = False,
    groups: Any = None,
    rows_per_unit: int | None = None,
    secret: Any = None,
    checkpoint_every: int = CHECKPOINT_EVERY,
    execution: Execution | None = None,
) -> Run:
    """Start a run of ``plan``, saved in ``directory`` and charged to ``ledger`` if these are given.

    Iterate over the run, or call ``run.step()``: every step is logged, and a checkpoint is written every
    ``checkpoint_every`` steps. ``run.release()`` writes ``directory/release``, deletes the secret and ends the run;
    ``run.close()`` ends it without a release, so that it can be resumed. See `train` for the other arguments."""
    validate.positive_int(checkpoint_every=checkpoint_every)
    if ledger is not None and dataset is None:
        raise InvalidInputError("a ledger needs the name of the data: give dataset='…'")
    execution = execution or Execution()
    ranks = execution.processes or SingleProcess()
    with ExitStack() as stack:
        kept = open_first(
            stack,
            ranks,
            Path(directory) if directory is not None else None,
            resume=resume,
            ledger=ledger.path if isinstance(ledger, Ledger) else None if ledger is None else Path(ledger),
            dataset=dataset,
            new_dataset=new_dataset,
            notify=_log.warning,
        )
        options = _identify(plan, model)
        if on_rank_zero(ranks, lambda: kept.read_finished(options)) is not None:
            raise ResumeError(
                f"the run in '{directory}' is finished: load '{kept.release}' with hush.load, or start a new run in "
                "another directory"
            )
        shared: dict[str, Any] = {"secret": secret, "groups": groups, "rows_per_unit": rows_per_unit}
        run = _start_in(kept, plan, model, losses, data, execution=execution, **shared)
        _attach_first(ranks, kept, run, options)
        kept.follow(run, checkpoint_every, stack.pop_all())
    return run


def _start_in(
    directory: RunDirectory,
    plan: Plan,
    model: nn.Module,
    losses: Losses,
    data: Any,
    *,
    execution: Execution,
    secret: Any,
    groups: Any,
    rows_per_unit: int | None,
    description: Description | None = None,
    dataset: str = "",
) -> Run:
    """The run before its first step; raises for anything that would prevent it from being released there."""
    with directory.keep_matrices():
        run = plan.start(
            model,
            losses,
            data,
            secret=secret,
            unit=groups,
            rows_per_unit=rows_per_unit,
            microbatch=execution.microbatch,
            ranks=execution.processes,
            noise_shards=execution.noise_shards,
        )
    on_rank_zero(run.ranks, lambda: directory.check_release(run, description, dataset))
    return run


def take_steps(run: Run, *, checkpoints: Checkpoints | None = None, every: int = CHECKPOINT_EVERY) -> Iterator[Record]:
    """Take every remaining step, with a checkpoint every ``every`` steps and after the last; the records are
    private."""
    validate.positive_int(every=every)
    run.model.train()
    for record in run:
        if checkpoints is not None:
            checkpoints.log(run, record, every)
        yield record
    run.model.eval()


def train_in_memory(run: Run) -> None:
    """Take every remaining step, in memory."""
    for _ in take_steps(run):
        pass


def open_first(stack: ExitStack, ranks: ProcessGroup, path: Path | None, **settings: Any) -> RunDirectory:
    """Open the run directory on process 0 until the stack is closed; the other processes write nothing."""
    opened: list[RunDirectory] = []
    on_rank_zero(ranks, lambda: opened.append(stack.enter_context(open_run_directory(path, **settings))))
    return opened[0] if opened else RunDirectory(None, False)


def _attach_first(ranks: ProcessGroup, kept: RunDirectory, run: Run, options: bytes) -> None:
    """Begin or restore the run on process 0, then broadcast its state to all processes."""
    on_rank_zero(ranks, lambda: kept.attach(run, options))
    share_state(run)


def release_first(ranks: ProcessGroup, release: Callable[[], Mapping[str, Values]]) -> Mapping[str, Values]:
    """The releases before training, by key and name: process 0 charges, makes and saves them, or reads them when the
    run is resumed, and broadcasts the values."""
    made: dict[str, Values] = {}
    on_rank_zero(ranks, lambda: made.update(release()))
    if ranks.world == 1:
        return made
    flat = {f"{key}/{name}": value.cpu().contiguous() for key, named in made.items() for name, value in named.items()}
    found: dict[str, dict[str, Tensor]] = {}
    for text, value in load(ranks.broadcast_bytes(b"" if ranks.rank else save(flat))).items():
        key, _, name = text.partition("/")
        found.setdefault(key, {})[name] = value
    return found


@dataclass
class ProblemRun:
    """A run of a problem: the service behind `hush train`, a trial of `hush tune` and a run of `hush bench`.

    `begin` attaches it to its directory and makes the releases before training. Then the caller takes the steps
    (`take_steps`), and `conclude` evaluates the model. ``before`` holds these releases as fields of an answer."""

    problem: Problem
    run: Run
    directory: RunDirectory
    dataset: str = ""
    before: dict[str, dict[str, Any]] = field(default_factory=dict)

    @classmethod
    def start(
        cls,
        problem: Problem,
        plan: Plan,
        model: nn.Module,
        losses: Losses,
        *,
        directory: RunDirectory | None = None,
        dataset: str | None = None,
        secret: Any = None,
        rows_per_unit: int | None = None,
        execution: Execution | None = None,
    ) -> ProblemRun:
        """The run before its first step. Raises for anything that would prevent it from being released."""
        directory, named = directory or RunDirectory(None, False), dataset or problem.name
        run = _start_in(
            directory,
            plan,
            model,
            losses,
            problem.train,
            execution=execution or Execution(),
            secret=secret,
            groups=problem.whose,
            rows_per_unit=rows_per_unit,
            description=problem.describe(),
            dataset=named,
        )
        return cls(problem, run, directory, named)

    def begin(self, options: bytes, releases: Sequence[DataRelease] = ()) -> None:
        """Begin or restore the run in its directory; charge and make its releases before training, or read them."""
        run, directory = self.run, self.directory
        _attach_first(run.ranks, directory, run, options)
        if releases:
            from hush.statistics.releases import take_releases

            folder = None if directory.checkpoints is None else directory.checkpoints.directory
            if run.next == 0:
                run.check_arithmetic()  # a model that is refused must not cost the releases
            values = release_first(run.ranks, lambda: make_releases(run, releases, folder))
            self.problem, self.before = take_releases(self.problem, run, values)
        if self._find_private_metrics() is not None:
            on_rank_zero(run.ranks, lambda: directory.check_metrics_kept(run))

    def conclude(self, *, public_test: bool, stopped: Mapping[str, Any] | None = None) -> Outcome:
        """Evaluate the model on the test rows, and choose what of it is released: exact metrics of rows that are
        declared public, or noisy ones for which the plan pays."""
        from hush.datasets.evaluation import evaluate_problem, list_metrics

        run, problem = self.run, self.problem
        run.model.eval()
        model = problem.trim(run.model) if "private_classes" in self.before else run.model
        evaluation = evaluate_problem(model, problem)
        measured = list_metrics(evaluation, problem)
        self.directory.save_private(FIGURES, measured)
        if problem.notes is not None:
            self.directory.save_private(NOTES, {"columns": list(problem.notes.private)})
        noisy, released = self._find_private_metrics(), {}
        if public_test:
            released = {"test_figures": as_json_data({**measured, "rows": evaluation.examples})}
        elif noisy is not None:
            from hush.statistics.private_metrics import draw_metrics

            first = run.secret.first
            found = self.directory.release_metrics(run, lambda: draw_metrics(problem, evaluation, noisy, first))
            released = {"private_metrics": found}
        return Outcome(self, model, measured, released, {} if stopped is None else {"stopped": dict(stopped)})

    def _find_private_metrics(self) -> ComposedRelease | None:
        if not self.run.plan.composed:
            return None
        from hush.statistics.private_metrics import find_metrics

        return find_metrics(self.run.plan)


@dataclass(frozen=True)
class Outcome:
    """The result of a `ProblemRun`. ``measured`` are exact metrics of the test rows, which are private unless the rows
    are; ``released`` are the metrics on the card, and ``ended`` says whether the run stopped early."""

    job: ProblemRun
    model: nn.Module
    measured: dict[str, Any]
    released: dict[str, Any]
    ended: dict[str, Any]

    def release(self, folder: Path, more: Mapping[str, Any] | None = None) -> Path:
        """Write the release, with ``more`` on its card."""
        job = self.job
        return job.run.release(
            folder,
            description=job.problem.describe(),
            overwrite=job.directory.replaces,
            dataset=job.dataset,
            metrics={**job.before, **self.released, **self.ended, **(more or {}), **job.directory.total_for_card()},
            model=self.model,
        )

    def summarize(self) -> dict[str, Any]:
        """The guarantee and its plan, as fields of every command's answer."""
        return {"problem": self.job.problem.name, **describe_run(self.job.run)}

    def to_json(self) -> dict[str, Any]:
        """The fields of `hush train --json`."""
        run, directory = self.job.run, self.job.directory
        return {
            **self.summarize(),
            **self.measured,
            **{name: value for name, value in self.released.items() if name == "private_metrics"},
            **self.job.before,
            **self.ended,
            "out": None if directory.out is None else str(directory.out),
            "release": None if directory.release is None else str(directory.release),
            "resumed_from": directory.resumed_from,
            "taken_again": [[attempt.start + 1, attempt.taken] for attempt in run.history.again],
            "ledger": directory.summarize_ledger(),
        }


def describe_run(run: Run) -> dict[str, Any]:
    """The guarantee of a run and what its plan is, as plain data."""
    plan, guarantee = run.plan, run.guarantee
    return {
        "method": plan.method,
        "epsilon": guarantee.epsilon,
        "delta": guarantee.delta,
        "unit": guarantee.unit,
        "status": guarantee.status,
        "protects": guarantee.protects,
        "noise_multiplier": plan.sigma if plan.has_guarantee else 0.0,
        "steps": plan.steps,
        "sentence": guarantee.sentence(),
        "statement": str(guarantee),
    }


def _identify(plan: Plan, model: nn.Module) -> bytes:
    """The content of options.json for a run started from Python: the plan's fingerprint."""
    try:
        found: str | None = plan.fingerprint(trainable(model))
    except NoIdentity:
        found = None
    return (json.dumps({"plan": found}) + "\n").encode()


def _read_finished(directory: Path, plan: Plan, model: nn.Module) -> TrainingResult | None:
    """The result of a finished run, with its released weights in ``model``; None if the run is not finished."""
    if not directory.exists():
        return None
    with open_run_directory(directory, resume=True, notify=_log.warning) as kept:
        if kept.read_finished(_identify(plan, model)) is None:
            return None
    release = directory / "release"
    if not release.is_dir():
        raise ResumeError(f"the run in '{directory}' is finished but its release is missing: use another directory")
    model.load_state_dict(load_file(release / WEIGHTS))
    model.eval()
    return TrainingResult(model, Guarantee.from_json(read_json(release / CARD)["guarantee"]), plan, directory)
