"""`hush train`: a model trained privately, its guarantee, and the artefact that may be released."""

from __future__ import annotations

import time
import tomllib
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from importlib import resources
from typing import Any

import typer

from hush import validate
from hush.artefact.folder import RELEASE, was_begun
from hush.before import Before
from hush.cli import task as t
from hush.cli.console import be_patient, say, show, show_json
from hush.cli.devices import find_device
from hush.cli.early import StopOptions, begin_watch, read_stop, tell_stop
from hush.cli.keeper import Keeper, KeepingOptions, say_unkept
from hush.cli.measuring import choose_released, keep_figures, keep_notes, list_lines, make_fields, plan_metrics
from hush.cli.planning import (
    EPSILON_OR_THREE,
    PlanOptions,
    check_delta,
    compare_candidates,
    default_to_three,
    fit_batch,
    let_batch_fit,
    list_candidates,
    read_method_options,
    split_pair,
)
from hush.cli.preparing import asks_for_releases, plan_before, release_before
from hush.cli.run_folder import OPTIONS
from hush.cli.sanitizing import LayerOptions, sanitise_task
from hush.cli.shell import MACHINE, Given, OutputOptions, read_settings, take
from hush.cli.stopping import explain_os_error
from hush.cli.table_numbers import fill_in, note_open
from hush.cli.taking import take_all
from hush.cli.together import attach_first, join, open_first
from hush.errors import BadInput, HushError
from hush.methods import Candidate, explain_choice, make_plan
from hush.plan import Plan
from hush.privacy.accounting import Adjacency
from hush.problems import Problem
from hush.problems.evaluation import evaluate_problem
from hush.randomness import seeded
from hush.run import Run
from hush.settings import LENGTH, METHOD, PRIVACY, list_settings, option
from hush.stepping import MICROBATCH, ask_first

MOST_SEED = 2**63  # what torch takes


def read_recipes() -> dict[str, Given]:
    """Settings that are known to work, by name, from a file that ships with hush."""
    return tomllib.loads(resources.files("hush.cli").joinpath("recipes.toml").read_text(encoding="utf-8"))


@dataclass(frozen=True, kw_only=True)
class Training(t.TaskOptions, LayerOptions, PlanOptions, StopOptions, KeepingOptions):
    """What `hush train` takes."""

    recipe: str | None = field(
        default=None,
        metadata=option(
            f"Settings that are known to work: {', '.join(read_recipes())}. Flags given beside it win.", METHOD
        ),
    )
    lr: float | None = field(
        default=None,
        metadata=option(
            "Learning rate; the method's own by default, √(Nε)/80 up to 3 for dp-sgd on a table, half of it for "
            "logistic.",
            METHOD,
        ),
    )
    batch_size: int = field(
        default=256,
        metadata=option("Expected number of examples a step; N/16 up to 4096 for dp-sgd on a table.", LENGTH),
    )
    average: str | None = field(
        default=None,
        metadata=option(
            "Release averaged weights: ema:0.999, or tail:0.25 for the last quarter; or none. For dp-sgd on a table "
            "tail:0.5.",
            LENGTH,
        ),
    )
    left_open: frozenset[str] = frozenset()  # numbers that nobody gave
    clip: float | None = field(default=None, metadata=option("Clip norm c of one example's gradient.", METHOD))
    clip_mode: str | None = field(
        default=None,
        metadata=option("plain, normalised (divided by c), or automatic (divided by its own norm).", METHOD),
    )
    epsilon: float | None = field(default=None, metadata=EPSILON_OR_THREE)
    adjacency: Adjacency | None = field(
        default=None,
        metadata=option(
            "zero-out or replace; the sampler's own by default. Not add-remove: examples are counted.", PRIVACY
        ),
    )
    accept_delta: bool = field(
        default=False,
        metadata=option("Train with a δ of 1/N or more, which permits releasing a whole record.", PRIVACY),
    )
    secret_seed: int | None = field(
        default=None,
        metadata=option("Fixes sampling and noise, for reproduction only; must stay secret.", MACHINE, saved=False),
    )
    device: str = field(default="cpu", metadata=option("Where to train: cpu, cuda, cuda:0 or mps.", MACHINE))
    microbatch: int = field(
        default=MICROBATCH, metadata=option("Most examples held in memory at a time; 4096 rows of a table.", MACHINE)
    )
    noise_shards: bool = field(
        default=False,
        metadata=option(
            "Under torchrun: each process makes and keeps a slice of the noise.",
            MACHINE,
            flag="--noise-shards",
            saved=False,
        ),
    )

    def __post_init__(self) -> None:
        validate.whole(checkpoint_every=self.checkpoint_every)
        if not 0 <= self.seed < MOST_SEED:
            raise BadInput(f"seed must be a whole number of at least 0 and below {MOST_SEED}, got {self.seed}")


KEPT_WITH = {*list_settings(KeepingOptions), *list_settings(OutputOptions), "secret_seed"}  # that say nothing of a plan


def recall(given: Given) -> Given:
    """What was given, over the recipe that it names, over what the run to be resumed was begun with."""
    recipe: Given = {}
    if (name := given.get("recipe")) is not None:
        validate.one_of(read_recipes(), recipe=name)
        recipe = read_recipes()[name]
    if not given.get("resume") or "out" not in given:
        return _put_over(recipe, given)
    path = given["out"] / "private" / OPTIONS
    if path.is_file():
        return _put_over(read_settings(path, Training) | recipe, given) | {"resumed": True}
    if not given["out"].exists() and not given.keys() - KEPT_WITH:
        raise BadInput(f"there is no run in '{given['out']}' to go on with, and nothing says what to train instead")
    if given["out"].exists() and not {"problem", "data", "recipe"} & given.keys():
        if not was_begun(given["out"]) and not (given["out"] / RELEASE).exists():
            raise BadInput(f"nothing was begun in '{given['out']}': give the options again")
        raise BadInput(
            f"the run in '{given['out']}' cannot go on, as its options are gone: say what to train with --problem or "
            "--data"
        )
    return _put_over(recipe, given)


def _put_over(before: Given, given: Given) -> Given:
    """What was given over what was known before; a flag that a --set names anew is given by it alone."""
    named = {split_pair(pair)[0] for pair in given.get("settings", ())}
    return {name: value for name, value in before.items() if name not in named} | given


@take(Training, resolve=lambda given: let_batch_fit(note_open(recall(given))))
def train(given: Training) -> None:
    """Train a model. With no flags: digits, DP-SGD, ε = 3, in seconds.

    Example: `hush train --problem digits-mlp --method dp-sgd --epsilon 3 --epochs 10 --lr 0.5 --clip 1 --out run`
    """
    with join(given.device) as ranks, ExitStack() as stack:
        keeper = open_first(stack, ranks, given)
        if (answer := ask_first(ranks, lambda: keeper.recall_finished(given))) is not None:
            _answer(answer, given)
            return
        task = t.load_task(_with_own_data(given))
        losses = t.with_views(task, given.augment, given.views)
        given = fit_batch(fill_in(given, task), task.examples)
        plan, parts, candidates = _plan(given, task, keeper)
        read_stop(given.stop, plan)
        task = sanitise_task(task, plan, given)
        if plan.private:
            check_delta(given.delta, plan.sampler.examples, accepted=given.accept_delta)
        with seeded(given.seed):
            network = task.model().to(find_device(given.device))
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
        try:
            attach_first(ranks, keeper, run, given)
            task, told = release_before(run, task, parts, keeper)
            result = _train_and_measure(task, run, keeper, given, told)
            if result is None:
                return
            result |= {"candidates": list_candidates(candidates)} if candidates else {}
            keeper.finish(result, keep_secret=given.keep_secret)
        except HushError:
            keeper.forget_unless_begun(run)
            raise
        except OSError as error:
            say(f"stopped at step {run.next} of {plan.steps}: {explain_os_error(error)}; {keeper.how_to_go_on(run)}")
            raise typer.Exit(1) from error
    _answer(result, given)
    if plan.private:
        say_unkept(given)


def _answer(result: dict[str, Any], given: Training) -> None:
    if given.as_json:
        show_json(result)
    else:
        _tell(result)


def _with_own_data(given: Training) -> Training:
    """Data beside a recipe takes the place of the recipe's problem."""
    theirs = read_recipes().get(given.recipe or "", {}).get("problem")
    if given.data is not None and theirs is not None and given.problem == theirs:
        return replace(given, problem=None)
    return given


def _plan(given: Training, task: Problem, keeper: Keeper) -> tuple[Plan, tuple[Before, ...], tuple[Candidate, ...]]:
    """The plan for the task, the releases before training that it holds, and the candidates that `--method auto` took
    it from."""
    chosen = read_method_options(given.method, given.settings, lr=given.lr, clip=given.clip, clip_mode=given.clip_mode)
    setting = default_to_three(given).setting(task.examples, counted=True, assumptions=task.assumptions, unit=task.unit)
    candidates = compare_candidates(given.method, setting, chosen)
    if candidates:
        say(explain_choice(candidates))
    if task.training_losses is not task.losses and chosen.get("clip_mode") == "automatic":
        raise BadInput("automatic clipping divides every gradient by its norm, which undoes --class-weights: use plain")
    with be_patient(f"computing the noise of {given.method}"), keeper.keep_matrices():
        others = given.private_metrics is not None or asks_for_releases(given)
        plan = make_plan(given.method, setting, calibrate=not others, **chosen)
        plan, parts = plan_before(plan, task, given, setting.epsilon)
        if given.private_metrics is not None:
            plan = plan_metrics(plan, task, given.private_metrics, setting.epsilon)
        return plan, parts, candidates


def _train_and_measure(
    task: Problem, run: Run, keeper: Keeper, given: Training, before: dict[str, Any]
) -> dict[str, Any] | None:
    """Of several processes the first one measures, releases and answers."""
    watch = begin_watch(given.stop, run, given.batch_size, keeper.checkpoints)
    started = time.perf_counter()
    take_all(task.name, run, keeper, watch, every=given.checkpoint_every, quiet=given.as_json)
    seconds = time.perf_counter() - started
    if run.ranks.rank:
        return None
    run.model.eval()
    evaluation = evaluate_problem(run.model, task)
    measured = make_fields(evaluation, task)
    keep_figures(keeper, measured)
    keep_notes(keeper, task)
    ended = {} if (stop := watch.tell(run.plan, run.next)) is None else {"stopped": stop}
    released = choose_released(run, task, evaluation, keeper, public=given.public_test, fields=measured)
    if keeper.release is not None:
        named, told = given.dataset or task.name, {**before, **released, **ended, **keeper.total_for_card()}
        run.release(keeper.release, description=task.describe(), overwrite=keeper.replaces, dataset=named, figures=told)
    guarantee = run.guarantee
    return {
        "problem": task.name,
        "method": run.plan.method,
        "epsilon": guarantee.epsilon,
        "delta": guarantee.delta,
        "unit": guarantee.unit,
        "status": guarantee.status,
        "protects": guarantee.protects,
        "noise_multiplier": run.plan.sigma if run.plan.private else 0.0,
        "steps": run.plan.steps,
        **measured,
        **{name: value for name, value in released.items() if name == "private_metrics"},
        **before,
        **ended,
        "seconds": round(seconds, 3),
        "out": None if keeper.out is None else str(keeper.out),
        "release": None if keeper.release is None else str(keeper.release),
        "resumed_from": keeper.resumed_from,
        "taken_again": [[attempt.start + 1, attempt.taken] for attempt in run.history.again],
        "ledger": keeper.sum_up_ledger(),
        "sentence": str(guarantee),
    }


def _tell(result: dict[str, Any]) -> None:
    stop = result.get("stopped")
    steps = f"{stop['steps']} of {result['steps']}" if stop else f"{result['steps']}"
    for line in list_lines(result, f"({steps} steps, {result['seconds']:.1f} s)"):
        show(line)
    if stop:
        show(tell_stop(stop))
    show(result["sentence"])
    if result["ledger"]:
        show(result["ledger"]["sentence"])
    if result["out"]:
        show(f"released, may be copied: {result['release']}")
        say(f"private, keep to yourself: {result['out']}/private")
