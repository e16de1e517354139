"""The page of `hush noise show`: a plan's noise as pictures, in one file that works offline."""

from __future__ import annotations

import html
from typing import Any

import numpy as np
import plotly.graph_objects as go

from hush.matrices.series import Array
from hush.printable import make_printable
from hush.report.figure_page import FONT, render_figures
from hush.report.noise_view import NoiseView, Picture

OWN, SAME, POISSON = "#1f4e79", "#c0504d", "#7f7f7f"


def render_page(view: NoiseView) -> str:
    """The whole page."""
    figures = {
        "strategy": _matrix(view.strategy, *_names(view, "C")),
        "inverse": _matrix(view.inverse, *_names(view, "inverse")),
        "histogram": _histogram(view.entries),
        "accumulated": _accumulated(view),
        "each": _each(view),
    }
    return render_figures(
        "noise_page.html",
        figures,
        view=view,
        plan=view.plan,
        method=make_printable(view.plan.method),
        guarantee=make_printable(view.plan.guarantee().sentence()),
        gain=_gain(view),
        tree=view.strategy.shape[0] != view.strategy.shape[1],
        reduced=max(view.strategy.block + view.inverse.block) > 1,
        **view.errors,
    )


def _shown(view: NoiseView) -> str:
    """The method's name inside a figure, whose texts may hold tags."""
    return html.escape(make_printable(view.plan.method))


def _gain(view: NoiseView) -> str:
    errors = view.errors
    own = errors["expected_error"]
    return f"{_times(errors['independent_error'] / own)} independent noise on the same batches, and " + (
        f"{_times(errors['dp_sgd_error'] / own)} DP-SGD, which gains from Poisson sampling"
    )


def _times(ratio: float) -> str:
    if 0.995 < ratio < 1.005:
        return "as much as"
    return f"{ratio:.3g} times less than" if ratio > 1 else f"{1 / ratio:.3g} times more than"


def _names(view: NoiseView, which: str) -> tuple[str, str]:
    drawn = "independent normal vector z" if view.strategy.shape[0] == view.strategy.shape[1] else "node of the tree"
    return ("step", drawn) if which == "C" else (drawn, "step")


def _matrix(picture: Picture, across: str, down: str) -> go.Figure:
    """Square roots of the entries' sizes as colours, so that small ones are seen; true values on hover and scale."""
    values = picture.values.astype(np.float32)
    top = float(np.abs(values).max()) or 1.0
    ticks = _ticks(float(values.min()), float(values.max()), top)
    heat = go.Heatmap(
        z=_root(values),
        x=np.arange(values.shape[1]) * picture.block[1] + 1,
        y=np.arange(values.shape[0]) * picture.block[0] + 1,
        customdata=values,
        hovertemplate=f"{across} %{{x}}, {down} %{{y}}<br>%{{customdata:.4g}}<extra></extra>",
        colorscale=[[0, "#8c2d2a"], [0.25, "#dd8a80"], [0.5, "#ffffff"], [0.75, "#7fa8d1"], [1, "#123a66"]],
        zmid=0.0,
        zmin=-(top**0.5),
        zmax=top**0.5,
        colorbar={"tickvals": [_root(t) for t in ticks], "ticktext": [f"{t:g}" for t in ticks], "thickness": 12},
    )
    figure = go.Figure(heat, _layout(across, down, height=430))
    figure.update_yaxes(autorange="reversed", constrain="domain", showgrid=False)
    figure.update_xaxes(constrain="domain", showgrid=False)
    if picture.shape[0] == picture.shape[1]:
        figure.update_yaxes(scaleanchor="x")
    return figure


def _root(value: Any) -> Any:
    return np.sign(value) * np.sqrt(np.abs(value))


def _ticks(low: float, high: float, top: float) -> list[float]:
    """Round values from zero outwards, as many as the scale has room for."""
    sizes = [digit * 10.0**power for power in range(-4, 5) for digit in (1, 2, 5)]
    kept = [0.0]
    for size in sorted(sizes):
        if size <= top and size**0.5 - kept[-1] ** 0.5 > 0.12 * top**0.5:
            kept.append(size)
    return [t for t in [-t for t in reversed(kept[1:])] + kept if 1.02 * low <= t <= 1.02 * high]


def _histogram(entries: Array) -> go.Figure:
    counts, edges = np.histogram(entries, bins=81)
    bars = go.Bar(
        x=(edges[1:] + edges[:-1]) / 2,
        y=counts,
        width=np.diff(edges),
        marker={"color": OWN, "line": {"width": 0}},
        hovertemplate="near %{x:.3g}: %{y} entries<extra></extra>",
    )
    figure = go.Figure(bars, _layout("value of the entry", "number of entries, log scale", height=360))
    figure.update_yaxes(type="log", dtick=1)
    return figure


def _accumulated(view: NoiseView) -> go.Figure:
    steps = view.steps.astype(np.float64)
    same, sampled = view.independent.noise_std * np.sqrt(steps), view.poisson.noise_std * np.sqrt(steps)
    curves = [
        _band(steps, same, SAME),
        _band(steps, view.accumulated, OWN),
        _line(steps, same, SAME, "independent noise on the same batches: ± standard deviation"),
        _line(steps, -same, SAME),
        _line(steps, sampled, POISSON, "DP-SGD on Poisson batches: ± standard deviation", "dash"),
        _line(steps, -sampled, POISSON, dash="dash"),
        _line(steps, view.accumulated, OWN, f"{_shown(view)}: ± standard deviation"),
        _line(steps, -view.accumulated, OWN),
    ]
    if len(view.path):
        curves += [
            _line(view.path_steps, view.independent_path, SAME, "one weight, independent noise", width=1),
            _line(view.path_steps, view.path, OWN, f"one weight, {_shown(view)}", width=1),
        ]
    figure = go.Figure(curves, _layout("step", "accumulated noise, in lr × clip / batch size", height=480))
    figure.update_layout(showlegend=True, legend={"orientation": "h", "y": -0.16, "yanchor": "top", "x": 0})
    return figure


def _each(view: NoiseView) -> go.Figure:
    steps = view.steps.astype(np.float64)
    own = _line(steps, view.each, OWN, view.plan.method)
    same = _line(steps, np.full(len(steps), view.independent.noise_std), SAME, "independent, same batches")
    sampled = _line(steps, np.full(len(steps), view.poisson.noise_std), POISSON, "DP-SGD, Poisson batches", "dash")
    figure = go.Figure([own, same, sampled], _layout("step", "standard deviation, in clips", height=360))
    figure.update_yaxes(rangemode="tozero")
    figure.update_layout(showlegend=True, legend={"orientation": "h", "y": -0.22, "yanchor": "top", "x": 0})
    return figure


def _line(x: Any, y: Any, color: str, name: str = "", dash: str = "solid", width: float = 2) -> go.Scatter:
    line = {"color": color, "dash": dash, "width": width}
    return go.Scatter(x=x, y=np.asarray(y, np.float32), line=line, name=name, showlegend=bool(name), mode="lines")


def _band(x: Array, size: Array, color: str) -> go.Scatter:
    both, values = np.concatenate([x, x[::-1]]), np.concatenate([size, -size[::-1]]).astype(np.float32)
    red, green, blue = (int(color[i : i + 2], 16) for i in (1, 3, 5))
    fill = f"rgba({red},{green},{blue},0.10)"
    return go.Scatter(
        x=both, y=values, fill="toself", fillcolor=fill, line={"width": 0}, hoverinfo="skip", showlegend=False
    )


def _layout(across: str, down: str, *, height: int) -> dict[str, Any]:
    axis = {
        "gridcolor": "#e6e6e6",
        "zerolinecolor": "#bbb",
        "linecolor": "#999",
        "ticks": "outside",
        "automargin": True,
    }
    return {
        "font": FONT,
        "height": height,
        "paper_bgcolor": "white",
        "plot_bgcolor": "white",
        "margin": {"l": 60, "r": 20, "t": 10, "b": 50},
        "xaxis": {"title": {"text": across}, **axis},
        "yaxis": {"title": {"text": down}, **axis},
    }
