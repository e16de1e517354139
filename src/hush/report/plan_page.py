"""The page of `hush plan --out`: what batch size, epochs and ε buy, as pictures in one file that works offline."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import plotly.graph_objects as go

from hush.methods import Setting
from hush.printable import make_printable
from hush.report.figure_page import FONT, render_figures
from hush.report.prospects import CORRELATED, Outlook, Prospect
from hush.report.prospects_words import explain_outlook, explain_row, name_columns

COLOURS = ("#1f4e79", "#c0504d", "#4f8f4f", "#8064a2", "#d08a2e", "#3c9da8", "#7f7f7f")
DASHES = ("solid", "dash", "dot", "dashdot")


def render_plan(rows: Sequence[Prospect], outlook: Outlook, setting: Setting) -> str:
    """The whole page."""
    best = outlook.chosen
    columns, meaning = name_columns(best)
    return render_figures(
        "plan_page.html",
        _figures(rows, outlook),
        rows=rows,
        best=best,
        setting=setting,
        method=make_printable(best.plan.method),
        why=explain_row(best, rows).removeprefix("→ "),
        sentences=explain_outlook(outlook),
        meaning=meaning,
        columns=columns[1:],
    )


def _figures(rows: Sequence[Prospect], outlook: Outlook) -> dict[str, go.Figure]:
    unit = "length of the noise, in clips" if outlook.chosen.weights else "noise in a weight, in clips"
    share = "noise of the run / signal" if outlook.chosen.weights else "run noise in a weight / signal"
    return {
        "batch": _over_batches(rows, outlook.chosen, lambda row: row.run_noise, share),
        "step": _over_batches(rows, outlook.chosen, lambda row: row.step_noise, unit),
        "correlated": _over_epsilon(outlook, share),
    }


def _over_batches(rows: Sequence[Prospect], best: Prospect, value: Any, title: str) -> go.Figure:
    """A colour for each ε, a dash for each number of epochs; the recommended row is marked."""
    epsilons, epochs = sorted({r.epsilon for r in rows}), sorted({r.epochs for r in rows})
    curves = []
    for i, epsilon in enumerate(epsilons):
        for j, passes in enumerate(epochs):
            some = [row for row in rows if (row.epsilon, row.epochs) == (epsilon, passes)]
            line = {"color": COLOURS[i % len(COLOURS)], "dash": DASHES[j % len(DASHES)], "width": 2}
            name = f"ε = {epsilon:g}, {passes:g} epochs"
            x, y = [row.batch_size for row in some], [value(row) for row in some]
            curves.append(go.Scatter(x=x, y=y, name=name, line=line, mode="lines+markers", marker={"size": 5}))
    curves.append(_mark(best.batch_size, value(best)))
    figure = go.Figure(curves, _layout("batch size, examples a step (log scale)", f"{title}, log"))
    figure.update_xaxes(type="log", tickvals=sorted({row.batch_size for row in rows}), tickformat="d")
    figure.update_yaxes(type="log", exponentformat="power")
    return figure


def _over_epsilon(outlook: Outlook, title: str) -> go.Figure:
    epsilons, own, correlated = zip(*outlook.curve, strict=True)
    method = make_printable(outlook.chosen.plan.method)
    curves = [
        go.Scatter(x=epsilons, y=own, name=method, line={"color": COLOURS[0]}, mode="lines+markers"),
        go.Scatter(
            x=epsilons,
            y=correlated,
            name=f"noise that cancels over steps ({CORRELATED})",
            line={"color": COLOURS[1]},
            mode="lines+markers",
        ),
        _mark(outlook.chosen.epsilon, outlook.chosen.run_noise),
    ]
    figure = go.Figure(curves, _layout("ε (log scale)", f"{title}, log"))
    figure.update_xaxes(type="log", tickvals=list(epsilons), ticktext=[f"{e:g}" for e in epsilons])
    figure.update_yaxes(type="log", exponentformat="power")
    return figure


def _mark(x: float, y: float) -> go.Scatter:
    ring = {"size": 16, "symbol": "circle-open", "color": "#222", "line": {"width": 2}}
    return go.Scatter(x=[x], y=[y], mode="markers", marker=ring, name="recommended")


def _layout(across: str, down: str) -> dict[str, Any]:
    axis = {"gridcolor": "#e6e6e6", "linecolor": "#999", "ticks": "outside", "automargin": True}
    return {
        "font": FONT,
        "height": 480,
        "paper_bgcolor": "white",
        "plot_bgcolor": "white",
        "margin": {"l": 60, "r": 20, "t": 10, "b": 50},
        "legend": {"orientation": "h", "y": -0.2, "yanchor": "top", "x": 0},
        "xaxis": {"title": {"text": across}, **axis},
        "yaxis": {"title": {"text": down}, **axis},
    }
