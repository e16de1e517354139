"""`hush train`: a model trained privately, its guarantee, and the artefact that may be released."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from hush import validate
from hush.cli import options as o
from hush.cli import task as t
from hush.cli.account import warn_delta
from hush.cli.comparing import compared, listed, patient
from hush.cli.console import progress, say, show, show_json
from hush.cli.kept import Kept, interrupts, kept, reason, recalled
from hush.cli.recipes import Recipe, recipes
from hush.errors import BadInput, HushError
from hush.ledger.account import BudgetSpent
from hush.loop import EVERY
from hush.loop import train as take_steps
from hush.methods import make_plan
from hush.methods import reason as why
from hush.printable import make_printable
from hush.privacy.accounting import Adjacency
from hush.problems import Problem
from hush.problems.evaluation import evaluate_problem
from hush.randomness import seeded
from hush.run import Run
from hush.source import as_source
from hush.stepping import MICROBATCH

DEFAULT_EPSILON = 3.0
MOST_SEED = 2**63  # what torch takes


def train(
    context: typer.Context,
    recipe: Recipe = None,
    problem: t.ProblemName = None,
    data: t.DataPath = None,
    target: t.Target = None,
    model: t.Model = None,
    schema: t.SchemaPath = None,
    test_data: t.TestData = None,
    public: t.Public = None,
    method: o.MethodName = "dp-sgd",
    epsilon: o.EpsilonOrThree = None,
    delta: o.Delta = 1e-5,
    noise_multiplier: o.NoiseMultiplier = None,
    node_noise: o.NodeNoise = None,
    epochs: o.Epochs = None,
    steps: o.Steps = None,
    batch_size: o.BatchSize = 256,
    lr: Annotated[float | None, typer.Option(help="Learning rate; the method's own by default.")] = None,
    clip: Annotated[float | None, typer.Option(help="Clip norm c of one example's gradient.")] = None,
    clip_mode: Annotated[
        str | None, typer.Option(help="plain, normalised (divided by c), or automatic (divided by its own norm).")
    ] = None,
    sampling: o.Sampling = None,
    sample_rate: o.SampleRate = None,
    accountant: o.Accountant = "auto",
    adjacency: Annotated[
        str | None,
        typer.Option(help="zero-out or replace; the sampler's own by default. Not add-remove: examples are counted."),
    ] = None,
    accept_claimed: o.AcceptClaimed = False,
    arithmetic: o.Arithmetic = "default",
    settings: o.Settings = None,
    average: Annotated[
        str | None, typer.Option(help="Release averaged weights: ema:0.999, or tail:0.25 for the last quarter.")
    ] = None,
    augment: t.Augment = None,
    views: t.Views = None,
    validation: t.Validation = 0.0,
    seed: Annotated[int, typer.Option(help="Fixes initial weights and splits (public).")] = 0,
    secret_seed: Annotated[
        int | None, typer.Option(help="Fixes sampling and noise, for reproduction only; must stay secret.")
    ] = None,
    microbatch: Annotated[int, typer.Option(help="Most examples held in memory at a time.")] = MICROBATCH,
    out: Annotated[Path | None, typer.Option(help="Directory for the released model and its privacy card.")] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the run in --out, with its own options.")
    ] = False,
    checkpoint_every: Annotated[int, typer.Option(help="Steps between two checkpoints.")] = EVERY,
    ledger: Annotated[Path | None, typer.Option(help="File in which the spend on the data is entered.")] = None,
    dataset: Annotated[str | None, typer.Option(help="The data's name in the ledger; 'default' if not given.")] = None,
    new_dataset: Annotated[
        bool, typer.Option("--new-dataset", help="Needed where the ledger has a budget and does not know the name yet.")
    ] = False,
    as_json: o.AsJson = False,
) -> None:
    """Train a model. With no flags: digits, DP-SGD, ε = 3, in seconds.

    Example: `hush train --problem digits-mlp --method dp-sgd --epsilon 3 --epochs 10 --lr 0.5 --clip 1 --out run`
    """
    if resume and out is not None and context.obj is None and context.command.callback is not None:
        context.obj = recalled(context, out)
        context.command.callback(**context.obj)
        return
    validate.whole(checkpoint_every=checkpoint_every)
    if not 0 <= seed < MOST_SEED:
        raise BadInput(f"seed must be a whole number of at least 0 and below {MOST_SEED}, got {seed}")
    with kept(out, resume=resume) as keep:
        if data is not None and recipe is not None and problem == recipes()[recipe]["problem"]:
            problem = None  # the data beside a recipe wins
        task = t.load_task(problem, data, target, model, schema, test_data, public, seed=seed, validation=validation)
        losses = t.with_views(task, augment, views)
        chosen = o.method_options(method, settings, lr=lr, clip=clip, clip_mode=clip_mode)
        noise: dict[str, Any] = {"epsilon": epsilon, "noise_multiplier": noise_multiplier, "node_noise": node_noise}
        if all(v is None for v in noise.values()) and method != "sgd":
            noise["epsilon"] = DEFAULT_EPSILON
        asked: dict[str, Any] = {
            "examples": len(as_source(task.train)),
            "batch_size": batch_size,
            "epochs": epochs,
            "steps": steps,
            "sample_rate": sample_rate,
            "sampling": sampling,
            "delta": delta,
            "epsilon": noise.pop("epsilon"),
            "adjacency": cast("Adjacency | None", adjacency),
            "accountant": accountant,
            "accept_claimed": accept_claimed,
            "arithmetic": arithmetic,
            "assumptions": task.assumptions,
            "counted": True,
        }
        candidates = compared(method, chosen, **asked)
        if candidates:
            say(why(candidates))
        with patient(f"computing the noise of {method}"), keep.matrices():
            plan = make_plan(method, average=average, **asked, **noise, **chosen)
        if plan.private:
            warn_delta(delta, plan.sampler.examples)
        with seeded(seed):
            network = task.model()
        run = plan.start(network, losses, task.train, secret=secret_seed, microbatch=microbatch)
        try:
            keep.attach(run, context.obj or context.params, ledger, dataset)
            result = _trained(task, run, keep, every=checkpoint_every, quiet=as_json)
        except HushError:
            keep.failed(run)
            raise
        except OSError as error:
            say(f"stopped at step {run.next} of {plan.steps}: {reason(error)}; {keep.how_to_go_on(run)}")
            raise typer.Exit(1) from error
    if candidates:
        result["candidates"] = listed(candidates)
    if as_json:
        show_json(result)
    else:
        _tell(result, str(run.guarantee))


def _trained(task: Problem, run: Run, keep: Kept, *, every: int, quiet: bool) -> dict[str, Any]:
    started = time.perf_counter()
    _take_steps(task.name, run, keep, every, quiet)
    seconds = time.perf_counter() - started
    run.model.eval()
    evaluation = evaluate_problem(run.model, task)
    if keep.out is not None:
        run.release(keep.out)
    measured: dict[str, float | None] = {"test_loss": evaluation.loss}
    if task.metric == "accuracy":
        measured["test_accuracy"] = evaluation.accuracy
    guarantee = run.guarantee
    return {
        "problem": task.name,
        "method": run.plan.method,
        "epsilon": guarantee.epsilon,
        "delta": guarantee.delta,
        "status": guarantee.status,
        "noise_multiplier": run.plan.sigma if run.plan.private else 0.0,
        "steps": run.plan.steps,
        **measured,
        "seconds": round(seconds, 3),
        "out": None if keep.out is None else str(keep.out),
        "resumed_from": keep.resumed_from,
        "taken_again": [[attempt.start + 1, attempt.taken] for attempt in run.history.again],
        "ledger": keep.spent(),
    }


def _take_steps(name: str, run: Run, keep: Kept, every: int, quiet: bool) -> None:
    """Train to the end, or stop cleanly: asked to (exit 130), or out of budget (exit 1)."""
    stopped: str | None = None
    code = 130
    with interrupts() as asked, progress(quiet) as bar:
        shown = bar.add_task(
            f"training {make_printable(name)} with {run.plan.method}", total=run.plan.steps, completed=run.next
        )
        try:
            for _ in take_steps(run, checkpoints=keep.checkpoints, every=every):
                bar.advance(shown)
                if asked() and run.next < run.plan.steps:
                    stopped = "as asked"
                    break
        except BudgetSpent as spent:
            stopped, code = f"{spent}", 1
        if stopped is not None:
            keep.save(run)
    if stopped is not None:
        say(f"stopped at step {run.next} of {run.plan.steps}: {stopped}; {keep.how_to_go_on(run)}")
        raise typer.Exit(code)


def _tell(result: dict[str, Any], sentence: str) -> None:
    took = f"({result['steps']} steps, {result['seconds']:.1f} s)"
    if "test_accuracy" in result:
        show(f"test accuracy {100 * result['test_accuracy']:.2f} %  {took}")
    else:
        show(f"test loss {result['test_loss']:.4f}  {took}")
    show(sentence)
    if result["ledger"]:
        show(result["ledger"]["sentence"])
    if result["out"]:
        show(f"released: {result['out']}/model.safetensors, privacy.json, PRIVACY.md")
        say(f"private, keep to yourself: {result['out']}/private")
