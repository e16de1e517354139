"""`hush noise show`: a page that shows a method's noise over the steps."""

from __future__ import annotations

from dataclasses import replace

from hush._internal.storage import check_page, write_page
from hush.cli.console import delayed_status, say, show, show_json
from hush.cli.options import NoiseOptions
from hush.cli.prepare import compare_candidates, default_epsilon, read_method_options
from hush.methods import explain_choice, make_plan


def show_noise(given: NoiseOptions) -> None:
    """Run `hush noise show`."""
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
