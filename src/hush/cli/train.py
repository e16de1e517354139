"""`hush train`: train a model privately, print its guarantee, and write a release."""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import typer
from safetensors.torch import load, save
from torch import Tensor, nn

from hush._internal import validate
from hush._internal.storage import PRIVATE, write_atomic
from hush._internal.text import as_json_data, dump_json, make_printable
from hush.checkpointing import LOG, Checkpoints
from hush.checkpointing.noise_reuse_guard import RELEASES, read_releases
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
    CLASS_SHARE,
    DirectoryOptions,
    TaskOptions,
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
    read_weight_share,
    warn_not_saved,
)
from hush.data_release import ComposedRelease, DataRelease, Values, make_releases
from hush.datasets.evaluation import Evaluation, evaluate_problem
from hush.datasets.problem import LayerPlace, Problem
from hush.distributed.group import (
    ProcessGroup,
    init_distributed,
    on_rank_zero,
    shutdown_distributed,
)
from hush.errors import (
    BudgetExceededError,
    FormatError,
    HushError,
    InvalidInputError,
    LostRank,
    NotProvenError,
    ResumeError,
    Stopped,
)
from hush.ledger.book import DATASET, Ledger
from hush.ledger.entries import check_name
from hush.ledger.run_account import fit_budget
from hush.methods import Candidate, explain_choice, make_plan
from hush.plan import Plan
from hush.randomness import Secret, seeded
from hush.release.folder import CARD, WEIGHTS, digest_files, pack_weights, read_json
from hush.run import Run
from hush.run_directory import DAMAGED, FINISHED, RunDirectory
from hush.statistics.metrics import NO_USE, Counts, from_counts
from hush.statistics.private_metrics import ASSUMPTIONS, CountNoise, add_count_noise, calibrate_counts, noise_stds
from hush.statistics.releases import check_shares, plan_releases, take_releases
from hush.training import attach_first, open_first, take_steps

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


def open_kept(stack: ExitStack, ranks: ProcessGroup, given: DirectoryOptions) -> RunDirectory:
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


def release_first(ranks: ProcessGroup, release: Callable[[], Mapping[str, Values]]) -> Mapping[str, Values]:
    """The releases before training, by key and name: process 0 charges, makes and saves them, or reads them when the
    run is resumed, and broadcasts the values."""
    made: dict[str, Values] = {}
    on_rank_zero(ranks, lambda: made.update(release()))
    if ranks.world == 1:
        return made
    flat = {f"{key}/{name}": value.cpu().contiguous() for key, named in made.items() for name, value in named.items()}
    heard: dict[str, dict[str, Tensor]] = {}
    for text, value in load(ranks.broadcast_bytes(b"" if ranks.rank else save(flat))).items():
        key, _, name = text.partition("/")
        heard.setdefault(key, {})[name] = value
    return heard


# `hush train --stop`: the early stopping rule of the published sanitization layer, and how its ε is reported.

NONE = "none"


def begin_watch(text: str | None, run: Run, batch_size: int, checkpoints: Checkpoints | None) -> EarlyStopping | None:
    """The early stopping monitor of a run; a resumed run reads its first steps from its log."""
    rule = read_stop(text, run.plan)
    if rule is None:
        return None
    from hush.sanitize.early_stopping import EarlyStopping, EpochSpreads

    watch = EarlyStopping(rule, EpochSpreads(-(-len(run.source) // batch_size)))
    if run.ranks.world > 1:
        raise InvalidInputError("--stop works with one process only: leave it out under torchrun")
    if run.next:
        watch.update(_recall(checkpoints, run.next))
    return watch


def read_stop(text: str | None, plan: Plan) -> Stop | None:
    """Parse WINDOW:LIMIT for the plan's kind of threshold."""
    if text is None or text == NONE:
        return None
    from hush.sanitize.early_stopping import Stop
    from hush.sanitize.privatised import PublishedLayer

    if not isinstance(plan.trains_on, PublishedLayer):
        raise InvalidInputError(f"--stop needs method sanitize, not {plan.method}: give fewer --epochs instead")
    window, _, limit = text.partition(":")
    try:
        stop = Stop(int(window), float(limit), adaptive=plan.trains_on.threshold is not None)
    except ValueError as error:
        raise InvalidInputError(f"--stop takes epochs and a slope such as 10:1.2e-4, or none; got '{text}'") from error
    stop.flag([])  # raises for an invalid window or limit
    return stop


def _recall(checkpoints: Checkpoints | None, steps: int) -> list[dict[str, float]]:
    path = None if checkpoints is None else checkpoints.directory / LOG
    lines = path.read_text().splitlines() if path is not None and path.exists() else []
    if len(lines) < steps:
        raise InvalidInputError("the log of this run's steps, which --stop needs, is missing: resume with --stop none")
    return [json.loads(line) for line in lines[:steps]]


def describe_stop(stop: Mapping[str, Any]) -> str:
    """The stop as a sentence."""
    return (
        f"stopped after {stop['after_epochs']} epochs by --stop; that this costs only ε = {stop['epsilon_there']:.2f} "
        f"is {stop['status']}, so all planned steps are counted"
    )


# The training loop of `hush train`, with progress.


ALONE = 2  # steps after which an interrupted process ends on its own, if process 0 was not interrupted


def take_all(
    name: str, run: Run, directory: RunDirectory, watch: EarlyStopping | None, *, every: int, quiet: bool
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
            steps = () if over else take_steps(run, checkpoints=directory.checkpoints, every=every)
            for record in steps:
                bar.advance(shown)
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
        message = f"stopped at step {run.next} of {run.plan.steps}: {stopped}; {directory.describe_resume(run)}"
        if asked_for:
            raise Interruption(message)
        say(message)
        raise typer.Exit(1)


# The options of `hush train` for the sanitization layer of a model.

NAMES = "--sanitize-at, --sanitize-width and --sanitize-clip"


def sanitise_task(task: Problem, plan: Plan, given: Training) -> Problem:
    """The problem with the layer in its model, if the method releases rows."""
    asked = (given.sanitize_at, given.sanitize_width, given.sanitize_clip)
    nonnegative: bool | None = getattr(plan.trains_on, "nonnegative", None)  # the range of the layer, if there is one
    if nonnegative is None:
        if any(value is not None for value in asked):
            raise InvalidInputError(f"{NAMES} need a method that releases activations: use --method sanitize-once")
        return task
    from hush.sanitize.privatised import SanitizedFeatures
    from hush.sanitize.problem import insert_layer

    if given.sanitize_width is not None:
        validate.positive_int(sanitize_width=given.sanitize_width)
    if given.sanitize_clip is not None:
        validate.positive(sanitize_clip=given.sanitize_clip)
    place = LayerPlace(*asked, nonnegative)
    found = insert_layer(task, place, frozen=isinstance(plan.trains_on, SanitizedFeatures))
    at = found.architecture.arguments["at"]
    say(f"sanitization layer after module '{at}' of a network '{found.architecture.arguments['inner']}'")
    return found


# The metrics of `hush train`: what the user sees, and what may be released.
#
# Exact metrics of held-out rows go to stdout and to ``private/figures.json``. The release gets exact metrics of rows
# declared public (`--public-test`), or noisy counts that the plan's event includes (`--private-metrics`).

NAME = "figures with noise of the held-out rows"
SHARE = 0.1  # share of δ at which the ε of these metrics is stated; their joint cost with training is accounted exactly
FIGURES, METRICS, NOTES = "figures.json", "private_metrics.json", "columns.json"  # in the private part of a run
FEW = 3  # number of classes whose recall is printed
DIVERGED = "the model's outputs are not finite: training has diverged"


def plan_metrics(plan: Plan, task: Problem, epsilon: float, total: float | None) -> Plan:
    """The plan composed with noisy metrics of ``epsilon``, with σ such that both stay within the ``total`` ε, if given.

    Rows without units are split by position, so that one more or fewer row would move others between the parts. So the
    two are composed, also if units are split by identity: parallel composition is not claimed."""
    validate.positive(private_metrics=epsilon)
    if task.classes is None:
        raise InvalidInputError(f"--private-metrics counts classes, but '{task.name}' has none: leave it out")
    if total is not None and epsilon >= total:
        raise InvalidInputError(
            f"--private-metrics {epsilon:g} leaves nothing of --epsilon {total:g} for training: give less to the "
            "metrics, or a larger --epsilon"
        )
    noise = calibrate_counts(epsilon, SHARE * plan.delta, classes=task.classes, adjacency=plan.neighbours)
    release = ComposedRelease(NAME, noise.event, plan.neighbours, noise.lost, ASSUMPTIONS)
    both = replace(plan, composed=(*plan.composed, release))
    return both if total is None else both.with_epsilon(total)


def make_fields(evaluation: Evaluation, task: Problem) -> dict[str, Any]:
    """The exact metrics as fields of the command's answer."""
    fields: dict[str, Any] = {"test_loss": evaluation.loss}
    if evaluation.values is not None:
        values = evaluation.values
        return {**fields, "test_mae": values.mae, "test_rmse": values.rmse, "test_r2": values.r2}
    if task.target_range is not None:
        return {**fields, "test_mae": None, "test_rmse": None, "test_r2": None}
    metrics = evaluation.metrics
    if task.metric != "accuracy" or metrics is None:
        return fields
    message, finite = metrics.to_json(), math.isfinite(evaluation.loss)
    return {
        **fields,
        "test_accuracy": evaluation.accuracy,
        "test_commonest_accuracy": metrics.commonest,
        "test_balanced_accuracy": metrics.balanced_accuracy,
        "test_auc": metrics.auc if finite else None,
        "test_log_loss": metrics.log_loss if finite else None,
        "test_recall": dict(zip(task.classes_by_name, metrics.recall, strict=True)),
        "test_confusion": message["confusion"],
        "verdict": message["verdict"],
    }


def save_metrics(directory: RunDirectory, fields: dict[str, Any]) -> None:
    """Save the exact metrics in the private part of the run."""
    if directory.checkpoints is not None:
        _write(directory.checkpoints.directory / FIGURES, fields)


def save_notes(directory: RunDirectory, task: Problem) -> None:
    """Save the counts of missing values in the private part of the run."""
    if directory.checkpoints is not None and task.notes is not None:
        _write(directory.checkpoints.directory / NOTES, {"columns": list(task.notes.private)})


def choose_released(
    run: Run, task: Problem, evaluation: Evaluation, directory: RunDirectory, *, public: bool, fields: dict[str, Any]
) -> dict[str, Any]:
    """The metrics on the card: none, unless test rows are public or the plan pays for noise."""
    if public:
        metrics: dict[str, Any] = as_json_data({**fields, "rows": evaluation.examples})
        return {"test_figures": metrics}
    release = next((release for release in run.plan.composed if release.name == NAME), None)
    if release is None:
        return {}
    return {"private_metrics": _release_once(run, task, evaluation, directory, release)}


def _release_once(
    run: Run, task: Problem, evaluation: Evaluation, directory: RunDirectory, release: ComposedRelease
) -> dict[str, Any] | None:
    """Release the noisy metrics of a run once, drawn from the run's secret.

    They are saved before they are shown; a repeated report shows the same ones, because other noise on the same counts
    would be a second release. Raises if the run has released metrics that are missing."""
    secret = run.secret.first
    if directory.checkpoints is None:
        return _draw(task, evaluation, release, secret)
    path, weights = directory.checkpoints.directory / METRICS, digest_files({WEIGHTS: pack_weights(run.model)})[WEIGHTS]
    resumed = directory.resumed_from is not None  # a new run has drawn nothing
    before = _read(path) if resumed else None
    if resumed and before is None and (released := _find_released(directory.release, weights)) is not None:
        return released
    if before is not None and before["run"] == directory.checkpoints.name:
        if before["weights"] == weights:
            found: dict[str, Any] = before["metrics"]
            return found
        say("the noisy metrics were drawn for other weights of this run and are paid for once: none are released")
        return None
    if resumed:
        _refuse_second_release(run, path)
    metrics = _draw(task, evaluation, release, secret)
    _write(path, {"run": directory.checkpoints.name, "weights": weights, "metrics": metrics})
    return metrics


def check_metrics_kept(run: Run, directory: RunDirectory) -> None:
    """Raise `ResumeError` before a resumed run takes a step if it has released noisy metrics that are missing."""
    if (
        directory.checkpoints is None
        or directory.resumed_from is None
        or all(r.name != NAME for r in run.plan.composed)
    ):
        return
    path = directory.checkpoints.directory / METRICS
    if not path.exists() and (directory.release is None or not (directory.release / CARD).is_file()):
        _refuse_second_release(run, path)


def _refuse_second_release(run: Run, path: Path) -> None:
    if any(line["noise"] == run.secret.first.name for line in read_releases(path.with_name(RELEASES))):
        raise ResumeError(
            f"this run has released its noisy metrics and '{path}' is missing, so they would be released a second "
            "time: restore the file, or the release"
        )


def _find_released(release: Path | None, weights: str) -> dict[str, Any] | None:
    """The metrics in an existing release of the same weights, even if the private part is missing."""
    if release is None or not (release / CARD).is_file():
        return None
    card = read_json(release / CARD)
    digests, found = card.get("digests"), card.get("private_metrics")
    same = isinstance(digests, dict) and digests.get(WEIGHTS) == weights
    return found if same and isinstance(found, dict) else None


def _draw(task: Problem, evaluation: Evaluation, release: ComposedRelease, secret: Secret) -> dict[str, Any]:
    if evaluation.probabilities is None or evaluation.labels is None:
        raise InvalidInputError(f"--private-metrics counts classes, but '{task.name}' has none: leave it out")
    noise = CountNoise(release.event.noise_multiplier, release.lost, release.adjacency)
    units = None if task.owners is None else task.owners.test
    counts = add_count_noise(evaluation.probabilities, evaluation.labels, noise, units=units, secret=secret)
    there = evaluation.examples if units is None else len(np.unique(units))
    known = None if release.adjacency == "add-remove" else there  # add-remove hides the number of examples
    found = describe_counts(counts, noise, task.classes_by_name, known)
    return found if task.owners is None else {**found, "weighed": f"each {task.unit} counts 1, whatever its rows"}


def describe_counts(counts: Counts, noise: CountNoise, classes: tuple[str, ...], rows: int | None) -> dict[str, Any]:
    """Noisy counts, their noise, and every metric derived from them, as plain data.

    ``rows`` is the number of rows if that is public, or of units if each counts 1. The accuracy is a sum over the
    diagonal, so it has the noise of that many cells."""
    matrix, each_bin = noise_stds(noise.sigma, noise.adjacency, counts.histograms.shape[1])
    metrics = from_counts(counts, rows=rows)
    return {
        "classes": list(classes),
        "figures": metrics.to_json(),
        "accuracy_std": matrix * math.sqrt(len(classes)) / metrics.rows,
        "noisy_confusion": counts.confusion.tolist(),
        "noisy_histograms": counts.histograms.tolist(),
        "noise_std": {"confusion": matrix, "histograms": each_bin},
        "noise_multiplier": noise.sigma,
    }


def list_lines(result: dict[str, Any], took: str) -> list[str]:
    """The metrics as lines of text; the first has the most important one and the time."""
    if "test_mae" in result:
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


def _write(path: Path, value: Any) -> None:
    write_atomic(path, (dump_json(as_json_data(value), indent=2) + "\n").encode(), mode=PRIVATE)


def _read(path: Path) -> dict[str, Any] | None:
    if not path.exists():
        return None
    try:
        found: Any = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise InvalidInputError(
            f"'{path}' is damaged, and noisy metrics are drawn only once: restore the file"
        ) from error
    if not isinstance(found, dict) or not {"run", "weights", "metrics"} <= found.keys():
        raise InvalidInputError(f"'{path}' is damaged, and noisy metrics are drawn only once: restore the file")
    return found


# The noisy releases of `hush train` before training: ranges of columns, class weights.


def asks_for_releases(given: TaskOptions) -> bool:
    """Whether anything is released before training."""
    shares = given.private_ranges, read_weight_share(given.class_weights), given.private_classes
    check_shares(*shares)
    return any(share is not None for share in shares)


def plan_before(
    plan: Plan, task: Problem, given: TaskOptions, total: float | None
) -> tuple[Plan, tuple[DataRelease, ...]]:
    """The plan composed with the releases before training, and these releases; σ such that all stays within the
    ``total`` ε, if given. Otherwise they cost their share of the ε of training, in addition to it."""
    if not asks_for_releases(given) and task.pending_classes is None:
        return plan, ()
    share = None
    if task.pending_classes is not None:
        share = CLASS_SHARE if given.private_classes is None else given.private_classes
        if plan.trains_on is not None:
            raise NotProvenError(
                f"method '{plan.method}' needs the classes before anything is released: name them in a schema (classes "
                "= […]), or declare them public (--public classes)"
            )
    parts = plan_releases(
        task,
        plan,
        plan.guarantee().epsilon if total is None else total,
        range_share=given.private_ranges,
        weight_share=read_weight_share(given.class_weights),
        class_share=share,
        units=task.whose,
    )
    both = replace(plan, composed=(*plan.composed, *(part.composed for part in parts)))
    return both if total is None else both.with_epsilon(total), parts


def release_before(
    run: Run, task: Problem, parts: Sequence[DataRelease], directory: RunDirectory
) -> tuple[Problem, dict[str, dict[str, Any]]]:
    """Charge and make the releases, or read them when the run is resumed; the problem with them, and the answer."""
    if not parts:
        return task, {}
    folder = None if directory.checkpoints is None else directory.checkpoints.directory
    values = release_first(run.ranks, lambda: make_releases(run, parts, folder))
    task, message = take_releases(task, run, values)
    if "private_classes" in message:
        say(f"{len(message['private_classes'])} classes, released with noise: {', '.join(message['private_classes'])}")
    for name, (low, high) in message.get("private_ranges", {}).items():
        say(f"column '{name}': range {low:.4g} … {high:.4g}, released with noise")
    for name, weight in message.get("private_class_weights", {}).items():
        say(f"class '{name}': weight {weight:.3g}, by a count released with noise")
    return task, message


def train(given: Training) -> None:
    """Run `hush train`."""
    if given.dataset is not None:
        check_name(given.dataset)
    check_out(given, data=given.data, private=given.method != "sgd")
    check_delta_range(given.delta, accepted=given.accept_delta or given.method == "sgd")
    with join(given.device) as ranks, ExitStack() as stack:
        directory = open_kept(stack, ranks, given)
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
        read_stop(given.stop, plan)
        task = sanitise_task(task, plan, given)
        if plan.has_guarantee:
            check_delta(given.delta, plan.sampler.examples, accepted=given.accept_delta)
        with seeded(given.seed):
            network = task.model().to(find_device(given.device))
        if given.fit_budget and not given.resumed:
            given = _fit_budget(given, task, directory, network, ranks)
            plan, parts, candidates = _plan(given, task, directory)
        run = plan.start(
            network,
            losses,
            task.train,
            secret=given.secret_seed,
            unit=task.whose,
            rows_per_unit=given.rows_per_unit,
            microbatch=given.microbatch,
            ranks=ranks,
            noise_shards=given.noise_shards,
        )
        on_rank_zero(ranks, lambda: directory.check_release(run, task.describe(), given.dataset or task.name))
        try:
            attach_first(ranks, directory, run, write_settings(given))
            task, message = release_before(run, task, parts, directory)
            result = _train_and_measure(task, run, directory, given, message)
            if result is None:
                return
            result |= {"candidates": list_candidates(candidates)} if candidates else {}
            directory.finish(result, keep_secret=given.keep_secret)
        except HushError:
            directory.forget_unless_begun(run)
            raise
        except OSError as error:
            say(
                f"stopped at step {run.next} of {plan.steps}: {explain_os_error(error)}; "
                f"{directory.describe_resume(run)}"
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
    """--data replaces the problem of a recipe."""
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
        others = given.private_metrics is not None or asks_for_releases(given) or task.pending_classes is not None
        plan = make_plan(given.method, setting, calibrate=not others, **chosen)
        plan, parts = plan_before(plan, task, given, setting.epsilon)
        if given.private_metrics is not None:
            plan = plan_metrics(plan, task, given.private_metrics, setting.epsilon)
        return plan, parts, candidates


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


def _train_and_measure(
    task: Problem, run: Run, directory: RunDirectory, given: Training, before: dict[str, Any]
) -> dict[str, Any] | None:
    """Train, then evaluate, release and answer on process 0."""
    on_rank_zero(run.ranks, lambda: check_metrics_kept(run, directory))
    watch = begin_watch(given.stop, run, given.batch_size, directory.checkpoints)
    started = time.perf_counter()
    take_all(task.name, run, directory, watch, every=given.checkpoint_every, quiet=given.as_json)
    seconds = time.perf_counter() - started
    if run.ranks.rank:
        return None
    run.model.eval()
    model = task.trim(run.model) if "private_classes" in before else run.model
    evaluation = evaluate_problem(model, task)
    measured = make_fields(evaluation, task)
    save_metrics(directory, measured)
    save_notes(directory, task)
    stop = None if watch is None else watch.describe(run.plan, run.next)
    ended = {} if stop is None else {"stopped": stop}
    released = choose_released(run, task, evaluation, directory, public=given.public_test, fields=measured)
    if directory.release is not None:
        named, message = given.dataset or task.name, {**before, **released, **ended, **directory.total_for_card()}
        how: dict[str, Any] = {"overwrite": directory.replaces, "dataset": named, "metrics": message, "model": model}
        run.release(directory.release, description=task.describe(), **how)
    guarantee = run.guarantee
    return {
        "problem": task.name,
        "method": run.plan.method,
        "epsilon": guarantee.epsilon,
        "delta": guarantee.delta,
        "unit": guarantee.unit,
        "status": guarantee.status,
        "protects": guarantee.protects,
        "noise_multiplier": run.plan.sigma if run.plan.has_guarantee else 0.0,
        "steps": run.plan.steps,
        **measured,
        **{name: value for name, value in released.items() if name == "private_metrics"},
        **before,
        **ended,
        "seconds": round(seconds, 3),
        "out": None if directory.out is None else str(directory.out),
        "release": None if directory.release is None else str(directory.release),
        "resumed_from": directory.resumed_from,
        "taken_again": [[attempt.start + 1, attempt.taken] for attempt in run.history.again],
        "ledger": directory.summarize_ledger(),
        "sentence": guarantee.sentence(),
        "statement": str(guarantee),
    }


def _notify(result: dict[str, Any]) -> None:
    stop = result.get("stopped")
    steps = f"{stop['steps']} of {result['steps']}" if stop else f"{result['steps']}"
    for line in list_lines(result, f"({steps} steps, {result['seconds']:.1f} s)"):
        show(line)
    if stop:
        show(describe_stop(stop))
    show_text(result["statement"])
    if result["ledger"]:
        show(result["ledger"]["sentence"])
    if result["out"]:
        show(f"released, may be published: {result['release']}")
        say(f"private, do not publish: {result['out']}/private")
