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
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from safetensors.torch import load_file
from torch import nn

from hush._internal import validate
from hush._internal.identity import NoIdentity
from hush._internal.progress import ProgressBar
from hush._internal.settings import CHECKPOINT_EVERY
from hush._internal.tensors import Losses, trainable
from hush.accounting.guarantee import Guarantee
from hush.checkpointing import Checkpoints, share_state
from hush.data_source import as_source
from hush.distributed.group import MICROBATCH, ProcessGroup, Record, SingleProcess, on_rank_zero
from hush.errors import InvalidInputError, ResumeError
from hush.ledger.book import Ledger
from hush.methods import find, make_plan
from hush.methods import options as list_options
from hush.plan import Plan
from hush.privacy_unit import Units
from hush.release.folder import CARD, WEIGHTS, read_json
from hush.run import Run
from hush.run_directory import RunDirectory, open_run_directory

BATCH_SIZE, EPOCHS = 256, 20
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
        epochs, steps: how long to train; 20 epochs unless one of them is given.
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
        _take_all(run, per_epoch, on_epoch)
    except BaseException:
        if run.directory is not None and run.next < plan.steps:
            run.directory.save_if_whole(run)
        run.close()
        raise
    model.eval()
    guarantee = run.guarantee
    if directory is not None:
        run.release()
    run.close()
    return TrainingResult(model, guarantee, plan, None if directory is None else Path(directory))


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
    if "clip" in list_options(find(method)):
        settings["clip"] = clip
    return make_plan(
        method,
        examples=examples,
        counted=True,
        epochs=EPOCHS if epochs is None and steps is None else epochs,
        steps=steps,
        batch_size=min(BATCH_SIZE, examples) if batch_size is None else batch_size,
        unit=named,
        assumptions=(f"the number of {named}s is public", *assumptions),
        **settings,
    )


def _take_all(run: Run, per_epoch: int, on_epoch: Callable[[int, Run], None] | None) -> None:
    console = Console(stderr=True)
    hidden = not console.is_terminal or bool(run.ranks.rank)
    with ProgressBar(console=console, transient=True, auto_refresh=False, disable=hidden) as bar:
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
        with kept.keep_matrices():
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
        on_rank_zero(ranks, lambda: kept.check_release(run))
        attach_first(ranks, kept, run, options)
        kept.follow(run, checkpoint_every, stack.pop_all())
    return run


def take_steps(run: Run, *, checkpoints: Checkpoints | None = None, every: int = CHECKPOINT_EVERY) -> Iterator[Record]:
    """Take every remaining step, with a checkpoint every ``every`` steps and after the last; the records are
    private."""
    validate.positive_int(every=every)
    run.model.train()
    for record in run:
        if checkpoints is not None:
            checkpoints.log(record)
            if run.next % every == 0 or run.next == run.plan.steps:
                checkpoints.save(run)
        yield record
    run.model.eval()


def open_first(stack: ExitStack, ranks: ProcessGroup, path: Path | None, **settings: Any) -> RunDirectory:
    """Open the run directory on process 0 until the stack is closed; the other processes write nothing."""
    opened: list[RunDirectory] = []
    on_rank_zero(ranks, lambda: opened.append(stack.enter_context(open_run_directory(path, **settings))))
    return opened[0] if opened else RunDirectory(None, False)


def attach_first(ranks: ProcessGroup, kept: RunDirectory, run: Run, options: bytes) -> None:
    """Begin or restore the run on process 0, then broadcast its state to all processes."""
    on_rank_zero(ranks, lambda: kept.attach(run, options))
    share_state(run)


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
