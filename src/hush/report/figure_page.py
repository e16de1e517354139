"""Pages of plotly's figures that open from disk: one frame, a template for each page's words."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import jinja2
import plotly.offline
from plotly import graph_objects as go

FONT = {"family": "system-ui, -apple-system, 'Segoe UI', sans-serif", "size": 13, "color": "#222"}


def render_figures(page: str, figures: Mapping[str, go.Figure], **words: Any) -> str:
    """The page of this name with its figures, each in the element that has its name as id."""
    loader = jinja2.PackageLoader("hush.report", "")
    environment = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True, loader=loader)
    drawn = {name: json.loads(figure.to_json()) for name, figure in figures.items()}
    return environment.get_template(page).render(figures=drawn, plotly=plotly.offline.get_plotlyjs(), **words)
