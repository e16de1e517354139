"""`hush noise show`: what a method's noise looks like over steps, as one page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, cast

import typer

from hush.cli import options as o
from hush.cli.comparing import compared, patient
from hush.cli.console import say, show, show_json
from hush.files import writable_directory, write_atomic
from hush.methods import make_plan, reason
from hush.privacy.accounting import Adjacency

app = typer.Typer(help="Look at noise.", no_args_is_help=True)

DEFAULT_EPSILON = 3.0


@app.callback()
def _noise() -> None:
    """Look at noise."""


@app.command("show")
def show_noise(
    out: Annotated[Path, typer.Option(help="The page to write.")] = Path("noise.html"),
    method: o.MethodName = "dp-matrix-me",
    examples: Annotated[int, typer.Option(help="Number of examples N, a public number.")] = 6000,
    batch_size: o.BatchSize = 100,
    epochs: Annotated[
        float | None,
        typer.Option(
            help="Passes over the data, ⌈N/L⌉ steps each; 4 by default, 1 for dp-matrix-se and dp-matrix-se-lambda."
        ),
    ] = None,
    steps: o.Steps = None,
    epsilon: o.EpsilonOrThree = None,
    delta: o.Delta = 1e-5,
    noise_multiplier: o.NoiseMultiplier = None,
    node_noise: o.NodeNoise = None,
    sampling: o.Sampling = None,
    accountant: o.Accountant = "auto",
    adjacency: o.Adjacent = None,
    accept_claimed: o.AcceptClaimed = False,
    settings: o.Settings = None,
    as_json: o.AsJson = False,
) -> None:
    """Show C, C⁻¹ and the noise that adds up over steps, against independent noise at the same ε.

    Example: `hush noise show --method dp-blt --examples 60000 --batch-size 500 --epochs 10 --epsilon 3`
    """
    from hush.report.noise_page import render_page
    from hush.report.noise_view import view_noise

    if epochs is None and steps is None:
        epochs = 1.0 if method.startswith("dp-matrix-se") else 4.0
    noise: dict[str, Any] = {"noise_multiplier": noise_multiplier, "node_noise": node_noise}
    if epsilon is None and noise_multiplier is None and node_noise is None and method != "sgd":
        epsilon = DEFAULT_EPSILON
    public: dict[str, Any] = {
        "examples": examples,
        "batch_size": batch_size,
        "epochs": epochs,
        "steps": steps,
        "sampling": sampling,
        "delta": delta,
        "epsilon": epsilon,
        "adjacency": cast("Adjacency | None", adjacency),
        "accountant": accountant,
        "accept_claimed": accept_claimed,
    }
    writable_directory(out.parent)
    chosen = o.method_options(method, settings)
    candidates = compared(method, chosen, **public)
    if candidates:
        say(reason(candidates))
    with patient(f"computing the noise of {method}") as tell:
        plan = make_plan(method, **public, **noise, **chosen)
        tell("drawing")
        view = view_noise(plan)
        write_atomic(out, render_page(view).encode())
    found = {
        "method": plan.method,
        "epsilon": plan.guarantee().epsilon,
        "delta": plan.delta,
        "steps": plan.steps,
        "noise_multiplier": plan.sigma,
        "sensitivity": plan.sensitivity,
        **view.errors,
        "out": str(out),
    }
    if as_json:
        show_json(found)
        return
    own, same, sampled = view.errors.values()
    show(
        f"noise in a weight, in lr × clip / batch size: {plan.method} {own:.4g}, independent noise on the same batches"
    )
    show(f"{same:.4g}, DP-SGD on Poisson batches {sampled:.4g} (root mean square over {plan.steps} steps)")
    show(f"written: {out}")
