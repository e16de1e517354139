"""The page of `hush audit --page`: what an audit saw, as pictures, in one file that works offline."""

from __future__ import annotations

from typing import Any

import numpy as np
import plotly.graph_objects as go

from hush._internal.text import make_printable
from hush.accounting.gaussian import gaussian_epsilon
from hush.accounting.guarantee import Guarantee, rounded_down, rounded_up
from hush.accounting.tradeoff import curve_of_guarantee
from hush.audit.audit import CHOOSING, Audit, Scores
from hush.audit.bounds import PRINTED, SMALLEST_P, WOLF, Errors, Vector, Verdict, bound_epsilon, bound_mu, count_errors
from hush.report.page import FONT, render_figures

INSIDE, OUTSIDE, CLAIMED, MEASURED = "#c0504d", "#1f4e79", "#222222", "#2e8b57"
BINS = 40
POINTS = 12  # numbers of runs at which the bound is drawn


def render_audit(audit: Audit, method: str) -> str:
    """The whole page, about the last claim: the claimed one if there is one in addition to the proven."""
    verdict, claim = audit.verdicts[-1], audit.claims[-1]
    figures = {
        "scores": _draw_scores(audit.scores),
        "curve": _draw_curve(audit.scores, claim, verdict),
        "growth": _draw_growth(audit.scores, claim),
    }
    return render_figures(
        "audit_page.html",
        figures,
        method=make_printable(method),
        verdict=verdict,
        others=audit.verdicts[:-1],
        claimed=rounded_up(verdict.claimed_epsilon),
        delta=rounded_up(verdict.delta),
        lower=rounded_down(verdict.epsilon_lower),
        estimate=_down(verdict.epsilon_estimate),
        p_value=f"{verdict.p_value:.2g}" if verdict.p_value > SMALLEST_P else f"at most {SMALLEST_P:g}",
        needed=f"{100 * (1 - WOLF):g} %",
    )


def _down(value: float) -> str:
    return rounded_down(value) if np.isfinite(value) else "∞"


def _draw_scores(scores: Scores) -> go.Figure:
    both = np.concatenate([scores.inside, scores.outside])
    finite = both[np.isfinite(both)]
    edges = np.linspace(finite.min(), max(finite.max(), finite.min() + 1e-9), BINS + 1)
    bars = [
        _bars(np.histogram(values, edges)[0], edges, color, name)
        for values, color, name in (
            (scores.outside, OUTSIDE, "runs without the canary"),
            (scores.inside, INSIDE, "runs with the canary"),
        )
    ]
    figure = go.Figure(bars, _layout("score: high where the canary seems to be in", "runs"))
    return figure.update_layout(barmode="overlay", showlegend=True, legend=_legend())


def _bars(counts: Any, edges: Vector, color: str, name: str) -> go.Bar:
    middles = 0.5 * (edges[1:] + edges[:-1])
    return go.Bar(x=middles, y=counts, width=np.diff(edges), name=name, marker={"color": color, "opacity": 0.55})


def _draw_curve(scores: Scores, claim: Guarantee, verdict: Verdict) -> go.Figure:
    alphas = np.concatenate([[0.0], np.geomspace(1e-4, 1.0, 200)])
    claimed = curve_of_guarantee(claim).beta(alphas)
    seen, errors = _count_later(scores), scores.count_for_verdict()
    regions = [
        (1 - WOLF / verdict.comparisons, "rgba(46,139,87,0.15)", "measured region, at the verdict's confidence"),
        (PRINTED, "rgba(46,139,87,0.35)", f"measured region, {PRINTED:.0%}"),
    ]
    drawn = [_region(errors, confidence, color, name) for confidence, color, name in regions]
    drawn += [
        _line(alphas, claimed, CLAIMED, f"claimed: ε = {rounded_up(claim.epsilon)}, with its event"),
        _line(seen.false_positives / seen.outside, seen.false_negatives / seen.inside, MEASURED, "counted", "dot"),
    ]
    figure = go.Figure(drawn, _layout("false positives: accused, and was not there", "false negatives: missed"))
    figure.update_xaxes(range=[-0.02, 1.02])
    figure.update_yaxes(range=[-0.02, 1.02])
    return figure.update_layout(showlegend=True, legend=_legend())


def _count_later(scores: Scores) -> Errors:
    """The errors at every threshold, of the scores that did not choose one."""
    inside, outside = (values[len(values) // CHOOSING :] for values in (scores.inside, scores.outside))
    return count_errors(inside, outside, np.unique(np.concatenate([[-np.inf], inside, outside])))


def _region(errors: Errors, confidence: float, color: str, name: str) -> go.Scatter:
    alpha, beta = (float(side) for side in errors.region(confidence))
    x, y = [0, alpha, alpha, 0, 0], [0, 0, beta, beta, 0]
    return go.Scatter(x=x, y=y, fill="toself", fillcolor=color, line={"width": 0}, name=name, mode="lines")


def _draw_growth(scores: Scores, claim: Guarantee) -> go.Figure:
    most = min(len(scores.inside), len(scores.outside))
    counts = np.unique(np.linspace(max(CHOOSING, most // POINTS), most, POINTS).astype(int))
    parts = [Scores(scores.inside[:count], scores.outside[:count]) for count in counts]
    lower = [float(bound_epsilon(part.count_for_bound(claim.delta), claim.delta, PRINTED)) for part in parts]
    shaped = [gaussian_epsilon(claim.delta, float(bound_mu(part.count_for_verdict(), PRINTED))) for part in parts]
    runs = 2 * counts
    drawn = [
        _line(runs, lower, MEASURED, "at least (95 %), whatever the mechanism"),
        _line(runs, shaped, INSIDE, "at least (95 %), if the curve is a Gaussian's", "dash"),
        _line(runs[[0, -1]], [claim.epsilon] * 2, CLAIMED, "claimed"),
    ]
    figure = go.Figure(drawn, _layout("runs, each with one canary or none", "ε"))
    figure.update_yaxes(rangemode="tozero")
    return figure.update_layout(showlegend=True, legend=_legend())


def _line(x: Any, y: Any, color: str, name: str, dash: str = "solid") -> go.Scatter:
    return go.Scatter(x=x, y=y, name=name, mode="lines", line={"color": color, "dash": dash, "width": 2})


def _legend() -> dict[str, Any]:
    return {"orientation": "h", "y": -0.2, "yanchor": "top", "x": 0}


def _layout(across: str, down: str) -> dict[str, Any]:
    axis = {
        "gridcolor": "#e6e6e6",
        "zerolinecolor": "#bbb",
        "linecolor": "#999",
        "ticks": "outside",
        "automargin": True,
    }
    return {
        "font": FONT,
        "height": 430,
        "paper_bgcolor": "white",
        "plot_bgcolor": "white",
        "margin": {"l": 60, "r": 20, "t": 10, "b": 50},
        "xaxis": {"title": {"text": across}, **axis},
        "yaxis": {"title": {"text": down}, **axis},
    }
