"""`hush train`: train a model privately, print its guarantee, and write a release."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import typer
from torch import nn

from hush._internal.progress import CHECKING
from hush._internal.text import make_printable
from hush.accounting.guarantee import rounded_up
from hush.checkpointing.checkpoint import LOG
from hush.cli import prepare as t
from hush.cli.console import (
    Interruption,
    be_silent,
    delayed_status,
    explain_os_error,
    note_interrupts,
    say,
    show,
    show_json,
    show_progress,
    show_text,
)
from hush.cli.options import (
    DirectoryOptions,
    Training,
    name_flags,
    read_recipes,
    write_settings,
)
from hush.cli.prepare import (
    apply_table_defaults,
    check_delta,
    check_delta_range,
    check_out,
    compare_candidates,
    default_epsilon,
    find_device,
    fit_batch,
    list_candidates,
    read_method_options,
    read_shares,
    sanitise_task,
    warn_not_saved,
)
from hush.data_release import DataRelease
from hush.datasets.problem import Problem
from hush.distributed.group import (
    ProcessGroup,
    init_distributed,
    on_rank_zero,
    shutdown_distributed,
)
from hush.errors import BudgetExceededError, FormatError, HushError, InvalidInputError, LostRank, Stopped
from hush.ledger.book import DATASET, Ledger
from hush.ledger.entries import check_name
from hush.ledger.run_account import fit_budget
from hush.methods import Candidate, explain_choice, make_plan
from hush.plan import Plan
from hush.randomness import seeded
from hush.run import Run
from hush.run_directory import DAMAGED, FINISHED, RunDirectory
from hush.training import Execution, ProblemRun, open_first, take_steps

if TYPE_CHECKING:
    from hush.sanitize.early_stopping import EarlyStopping, Stop

# `hush train` on several processes: process 0 saves, charges, prints and releases; the others take the same steps.


@contextmanager
def join(device: str) -> Iterator[ProcessGroup]:
    """The processes of this run. Only process 0 prints; errors of other processes go to stderr."""
    ranks = init_distributed(device)
    if ranks.rank:
        be_silent()
    try:
        yield ranks
    except HushError as error:
        if ranks.rank and not isinstance(error, Stopped):
            sys.stderr.write(f"process {ranks.rank}: error: {error}\n")
        raise
    finally:
        shutdown_distributed()


def _open_kept(stack: ExitStack, ranks: ProcessGroup, given: DirectoryOptions) -> RunDirectory:
    """The run directory that the options name."""
    return open_first(
        stack,
        ranks,
        given.out,
        resume=given.resume,
        overwrite=given.overwrite,
        ledger=given.ledger,
        dataset=given.dataset,
        new_dataset=given.new_dataset,
        notify=say,
        flags=name_flags(type(given)),
    )


# `hush train --stop`: the early stopping rule of the published sanitization layer, and how its ε is reported.


def _describe_stop(stop: Mapping[str, Any]) -> str:
    """The stop as a sentence."""
    return (
        f"stopped after {stop['after_epochs']} epochs by --stop; that this costs only ε = {stop['epsilon_there']:.2f} "
        f"is {stop['status']}, so all planned steps are counted"
    )


# The training loop of `hush train`, with progress.


EPOCHS_SHOWN = 20  # the most epochs shown, evenly spread: each needs an evaluation and an account


def _show_epochs(job: ProblemRun, batch_size: int) -> Callable[[], None]:
    """A callback after every step: at the end of an epoch it prints ε of the steps so far, and loss and
    accuracy on the test rows, which are for the owner of the data."""
    run, problem = job.run, job.problem
    per_epoch = -(-run.plan.sampler.examples // batch_size)
    ends = [*range(per_epoch, run.plan.steps, per_epoch), run.plan.steps]
    shown = {*ends[:: -(-len(ends) // EPOCHS_SHOWN)], ends[-1]}

    def show_epoch() -> None:
        if run.ranks.rank or run.next not in shown:
            return
        from hush.datasets.evaluation import evaluate_problem

        found = evaluate_problem(problem.trim(run.model) if "private_classes" in job.before else run.model, problem)
        spent = f"ε = {rounded_up(run.spent.epsilon)} so far, " if run.plan.has_guarantee else ""
        accuracy = "" if found.accuracy is None else f", test accuracy {100 * found.accuracy:.2f} %"
        say(f"epoch {ends.index(run.next) + 1} of {len(ends)}: {spent}test loss {found.loss:.4f}{accuracy}")

    return show_epoch


ALONE = 2  # steps after which an interrupted process ends on its own, if process 0 was not interrupted


def take_all(
    name: str,
    run: Run,
    directory: RunDirectory,
    watch: EarlyStopping | None,
    *,
    every: int,
    quiet: bool,
    after_step: Callable[[], None] = lambda: None,
) -> None:
    """Train to the end or until ``watch`` stops, or exit cleanly: interrupted (exit 130), out of budget or after losing
    a process (exit 1)."""
    stopped: str | None = None
    asked_for, alone = False, 0
    with note_interrupts() as asked, show_progress(quiet) as bar:
        shown = bar.add_task(
            f"training {make_printable(name)} with {run.plan.method}", total=run.plan.steps, completed=run.next
        )
        try:
            over = watch is not None and watch.after is not None
            if not over and run.next < run.plan.steps:
                with bar.showing(CHECKING):
                    run.check_arithmetic()
            steps = () if over else take_steps(run, checkpoints=directory.checkpoints, every=every)
            for record in steps:
                bar.advance(shown)
                after_step()
                if watch is not None and watch.update([record.numbers()]):
                    break
                if run.next < run.plan.steps and run.ranks.broadcast(asked()):  # all processes stop at the same step
                    stopped, asked_for = "as requested", True
                    break
                alone += bool(run.ranks.rank and asked())
                if alone > ALONE:
                    stopped, asked_for = "as requested of this process only", True
                    break
            if watch is not None and watch.after is not None:
                directory.save(run)
        except (BudgetExceededError, LostRank, Stopped) as why:
            stopped = f"{why}"
        if stopped is not None:
            directory.save(run)
    if stopped is not None:
        message = f"stopped at step {run.next} of {run.plan.steps}: {stopped}; {directory.describe_resume()}"
        if asked_for:
            raise Interruption(message)
        say(message)
        raise typer.Exit(1)


# What the user sees of the metrics. Exact metrics of held-out rows go to stdout and to ``private/figures.json``.

FEW = 3  # number of classes whose recall is printed
DIVERGED = "the model's outputs are not finite: training has diverged"


def list_lines(result: dict[str, Any], took: str) -> list[str]:
    """The metrics as lines of text; the first has the most important one and the time."""
    if "test_mae" in result:
        from hush.statistics.metrics import NO_USE

        if result["test_mae"] is None:
            return [f"{DIVERGED}  {took}"]
        r2 = "R² does not exist" if result["test_r2"] is None else f"R² {result['test_r2']:.3f}"
        message = f"test MAE {result['test_mae']:.4g}, RMSE {result['test_rmse']:.4g}, {r2}  {took}"
        return [message, *([NO_USE] if (result["test_r2"] or 0.0) < 0 else [])]
    if "test_accuracy" not in result:
        return [f"test loss {math.nan if result['test_loss'] is None else result['test_loss']:.4f}  {took}"]
    if result["test_log_loss"] is None:
        return [f"{DIVERGED}  {took}", *_list_noisy(result)]
    lines = [f"test accuracy {100 * result['test_accuracy']:.2f} %  {took}", _describe_others(result)]
    low = sorted((r, name) for name, r in result["test_recall"].items() if r is not None)[:FEW]
    lines.append("lowest recall: " + ", ".join(f"{100 * recall:.1f} % of '{name}'" for recall, name in low))
    lines += _list_noisy(result)
    useless = result["test_accuracy"] <= result["test_commonest_accuracy"]
    return [*lines, result["verdict"]] if useless else lines


def _describe_others(result: dict[str, Any]) -> str:
    auc = "does not exist" if result["test_auc"] is None else f"{result['test_auc']:.3f}"
    return (
        f"always the commonest class {100 * result['test_commonest_accuracy']:.2f} %, balanced accuracy "
        f"{100 * result['test_balanced_accuracy']:.2f} %, AUC {auc}, log-loss {result['test_log_loss']:.3f}"
    )


def _list_noisy(result: dict[str, Any]) -> list[str]:
    """The noisy metrics in one line, if there are any."""
    released = result.get("private_metrics")
    if not released:
        return []
    metrics = released["figures"]
    message = (
        f"released with noise: accuracy {100 * metrics['accuracy']:.1f} % ± {100 * released['accuracy_std']:.1f} % (a "
        f"standard deviation of the noise), always the commonest class {100 * metrics['commonest']:.1f} %"
    )
    return [f"{message}; {released['weighed']}" if "weighed" in released else message]


def _say_releases(released: Mapping[str, Mapping[str, Any]]) -> None:
    """Show the releases before training."""
    classes = released.get("private_classes", {})
    if classes:
        say(f"{len(classes)} classes, released with noise: {', '.join(classes)}")
    for name, (low, high) in released.get("private_ranges", {}).items():
        say(f"column '{name}': range {low:.4g} … {high:.4g}, released with noise")
    for name, weight in released.get("private_class_weights", {}).items():
        say(f"class '{name}': weight {weight:.3g}, by a count released with noise")


def train(given: Training) -> None:
    """Run `hush train`."""
    if given.dataset is not None:
        check_name(given.dataset)
    check_out(given, data=given.data, private=given.method != "sgd")
    check_delta_range(given.delta, accepted=given.accept_delta or given.method == "sgd")
    with join(given.device) as ranks, ExitStack() as stack:
        directory = _open_kept(stack, ranks, given)
        if (answer := on_rank_zero(ranks, lambda: directory.read_finished(write_settings(given)))) is not None:
            try:
                _answer(answer, given)
            except (LookupError, TypeError, ValueError, AttributeError) as error:
                raise FormatError(f"'{given.out}/private/{FINISHED}' {DAMAGED}") from error
            return
        task = t.load_task(_with_own_data(given))
        losses = t.with_views(task, given.augment, given.views)
        given = fit_batch(apply_table_defaults(given, task), task.examples)
        plan, parts, candidates = _plan(given, task, directory)
        _read_stop(given.stop, plan)
        task = sanitise_task(task, plan, given)
        if plan.has_guarantee:
            check_delta(given.delta, plan.sampler.examples, accepted=given.accept_delta)
        with seeded(given.seed):
            network = task.model().to(find_device(given.device))
        if given.fit_budget and not given.resumed:
            given = _fit_budget(given, task, directory, network, ranks)
            plan, parts, candidates = _plan(given, task, directory)
        execution = Execution(ranks, given.noise_shards, given.microbatch)
        shared: dict[str, Any] = {"secret": given.secret_seed, "rows_per_unit": given.rows_per_unit}
        job = ProblemRun.start(
            task, plan, network, losses, directory=directory, dataset=given.dataset, execution=execution, **shared
        )
        try:
            job.begin(write_settings(given), parts)
            _say_releases(job.before)
            result = _train(job, given)
            if result is None:
                return
            result |= {"candidates": list_candidates(candidates)} if candidates else {}
            directory.finish(result, keep_secret=given.keep_secret)
        except HushError:
            directory.forget_unless_begun(job.run)
            raise
        except OSError as error:
            say(
                f"stopped at step {job.run.next} of {plan.steps}: {explain_os_error(error)}; "
                f"{directory.describe_resume()}"
            )
            raise typer.Exit(1) from error
    _answer(result, given)
    if plan.has_guarantee:
        warn_not_saved(given)


def _answer(result: dict[str, Any], given: Training) -> None:
    if given.as_json:
        show_json(result)
    else:
        _notify(result)


def _with_own_data(given: Training) -> Training:
    """The options with --data in place of the problem of a recipe."""
    theirs = read_recipes().get(given.recipe or "", {}).get("problem")
    if given.data is not None and theirs is not None and given.problem == theirs:
        return replace(given, problem=None)
    return given


def _plan(
    given: Training, task: Problem, directory: RunDirectory, *, quiet: bool = False
) -> tuple[Plan, tuple[DataRelease, ...], tuple[Candidate, ...]]:
    """The plan for the task, its releases before training, and the candidates that `--method auto` chose from."""
    chosen = read_method_options(given.method, given.settings, lr=given.lr, clip=given.clip, clip_mode=given.clip_mode)
    setting = default_epsilon(given).setting(task.examples, counted=True, assumptions=task.assumptions, unit=task.unit)
    candidates = compare_candidates(given.method, setting, chosen)
    if candidates and not quiet:
        say(explain_choice(candidates))
    if task.training_losses is not task.losses and chosen.get("clip_mode") == "automatic":
        raise InvalidInputError(
            "automatic clipping divides every gradient by its norm, which undoes --class-weights: use plain"
        )
    with delayed_status(f"computing the noise of {given.method}"), directory.keep_matrices():
        shares = read_shares(given)
        others = given.private_metrics is not None or bool(shares) or task.pending_classes is not None
        plan = make_plan(given.method, setting, calibrate=not others, **chosen)
        if not others:
            return plan, (), candidates
        from hush.statistics.releases import compose_plan

        return *compose_plan(plan, task, setting.epsilon, metrics=given.private_metrics, **shares), candidates


def _fit_budget(
    given: Training, task: Problem, directory: RunDirectory, network: nn.Module, ranks: ProcessGroup
) -> Training:
    """The options with the largest ε, up to the requested one, that fits the ledger's budget."""
    asked = default_epsilon(given).epsilon
    assert asked is not None
    assert given.ledger is not None

    def fit() -> float:
        return fit_budget(
            lambda epsilon: _plan(replace(given, epsilon=epsilon), task, directory, quiet=True)[0],
            asked,
            Ledger(given.ledger or ""),
            DATASET if given.dataset is None else given.dataset,
            coordinates=max(1, sum(p.numel() for p in network.parameters() if p.requires_grad)),
            new_dataset=given.new_dataset,
        )

    found = float(on_rank_zero(ranks, fit))
    if found < asked:
        say(f"the budget has room for ε = {found:.4g} of the requested {asked:g}: training with more noise")
    return replace(given, epsilon=found)


def _train(job: ProblemRun, given: Training) -> dict[str, Any] | None:
    """Train, then evaluate, release and answer on process 0."""
    run, directory, watch = job.run, job.directory, None
    if (stop := _read_stop(given.stop, run.plan)) is not None:
        from hush.sanitize.early_stopping import watch_run

        log = None if directory.checkpoints is None else directory.checkpoints.directory / LOG
        watch = watch_run(stop, run, given.batch_size, log)
    started = time.perf_counter()
    after = {} if given.as_json else {"after_step": _show_epochs(job, given.batch_size)}
    take_all(job.problem.name, run, directory, watch, every=given.checkpoint_every, quiet=given.as_json, **after)
    seconds = time.perf_counter() - started
    if run.ranks.rank:
        return None
    stopped = None if watch is None else watch.describe(run.plan, run.next)
    outcome = job.conclude(public_test=given.public_test, stopped=stopped)
    if directory.release is not None:
        outcome.release(directory.release)
    return {**outcome.to_json(), "seconds": round(seconds, 3)}


def _read_stop(text: str | None, plan: Plan) -> Stop | None:
    if text is None:
        return None
    from hush.sanitize.early_stopping import read_stop

    return read_stop(text, plan)


def _notify(result: dict[str, Any]) -> None:
    stop = result.get("stopped")
    steps = f"{stop['steps']} of {result['steps']}" if stop else f"{result['steps']}"
    for line in list_lines(result, f"({steps} steps, {result['seconds']:.1f} s)"):
        show(line)
    if stop:
        show(_describe_stop(stop))
    show_text(result["statement"])
    if result["ledger"]:
        show(result["ledger"]["sentence"])
    if result["out"]:
        show(f"released, may be published: {result['release']}")
        say(f"private, do not publish: {result['out']}/private")
