"""`hush noise show`: a page that shows a method's noise over the steps."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

import typer

from hush._internal.storage import check_page, write_page
from hush.cli.console import delayed_status, say, show, show_json
from hush.cli.options import (
    EPSILON_OR_THREE,
    KEEPING,
    PlanOptions,
    compare_candidates,
    default_epsilon,
    read_method_options,
    take,
)
from hush.methods import PlanConfig, explain_choice, make_plan
from hush.methods.config import LENGTH, option, same_option

app = typer.Typer(help="Show the noise of a method.", no_args_is_help=True)


@dataclass(frozen=True, kw_only=True)
class NoiseOptions(PlanOptions):
    """Options of `hush noise show`."""

    out: Path = field(default=Path("noise.html"), metadata=option("The page to write.", KEEPING))
    method: str = field(default="dp-matrix-me", metadata=same_option(PlanOptions, "method"))
    epsilon: float | None = field(default=None, metadata=EPSILON_OR_THREE)
    examples: int = field(default=6000, metadata=same_option(PlanConfig, "examples"))
    batch_size: int = field(default=100, metadata=same_option(PlanOptions, "batch_size"))
    epochs: float | None = field(
        default=None,
        metadata=option(
            "Passes over the data, ⌈N/L⌉ steps each; 4 by default, 1 for dp-matrix-se and dp-matrix-se-lambda.", LENGTH
        ),
    )


@app.callback()
def _noise() -> None:
    """Show the noise of a method."""


@app.command("show")
@take(NoiseOptions, without=("average",))
def show_noise(given: NoiseOptions) -> None:
    """Show C, C⁻¹ and the noise accumulated over steps, compared with independent noise at the same ε.

    Example: `hush noise show --method dp-blt --examples 60000 --batch-size 500 --epochs 10 --epsilon 3`
    """
    from hush.report.noise_page import render_page, view_noise

    if given.epochs is None and given.steps is None:
        given = replace(given, epochs=1.0 if given.method.startswith("dp-matrix-se") else 4.0)
    setting = default_epsilon(given).setting(given.examples)
    check_page(given.out)
    chosen = read_method_options(given.method, given.settings)
    if candidates := compare_candidates(given.method, setting, chosen):
        say(explain_choice(candidates))
    with delayed_status(f"computing the noise of {given.method}") as notify:
        plan = make_plan(given.method, setting, **chosen)
        notify("drawing")
        view = view_noise(plan)
        write_page(given.out, render_page(view))
    found = {
        "method": plan.method,
        "epsilon": plan.guarantee().epsilon,
        "delta": plan.delta,
        "steps": plan.steps,
        "noise_multiplier": plan.sigma,
        "sensitivity": plan.sensitivity,
        **view.errors,
        "out": str(given.out),
    }
    if given.as_json:
        show_json(found)
        return
    own, same, sampled = view.errors.values()
    show(
        f"noise in a weight, in lr × clip / batch size: {plan.method} {own:.4g}, independent noise on the same batches"
    )
    show(f"{same:.4g}, DP-SGD on Poisson batches {sampled:.4g} (root mean square over {plan.steps} steps)")
    show(f"written: {given.out}")
