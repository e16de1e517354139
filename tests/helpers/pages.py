"""Pages of hush as a test reads them: nothing is fetched, and every chart with its data."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any
from xml.etree import ElementTree

MOST_BYTES = 300_000  # of a page about one run, one plan, one noise or one audit


@dataclass(frozen=True)
class DrawnChart:
    """A chart of a page."""

    section: str
    svg: ElementTree.Element
    columns: list[str]
    rows: list[list[Any]]


def read_data(page: str) -> dict[str, Any]:
    """The data of a page, each chart with its picture in place of the name of that."""
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    data: dict[str, Any] = json.loads(found[1])
    drawn = dict(re.findall(r'<script type="image/svg\+xml" id="([\w-]+)">(.*?)</script>', page, re.DOTALL))
    for section in data["sections"]:
        for chart in section["figures"]:
            chart["svg"] = drawn.pop(chart["svg"])
    assert not drawn
    return data


def read_charts(page: str) -> dict[str, DrawnChart]:
    """The charts by their titles. Each has axes with titles, points that can be read, and data."""
    addresses = set(re.findall(r"https?://[^\s\"'<\\]+", page))
    assert addresses <= {"http://www.w3.org/2000/svg"}  # a name, which no browser fetches
    assert not re.search(r"<(link|img|iframe)\b|\bsrc=", page)
    charts = {}
    for section in read_data(page)["sections"]:
        for told in section["figures"]:
            svg = ElementTree.fromstring(told["svg"])
            axes = [e.text for e in svg.iter() if "-title" in e.get("class", "")]
            assert len(axes) == 2, told["title"]
            assert all(axes), told["title"]
            assert [e for e in svg.iter() if e.tag.endswith("}title") and e.text], told["title"]
            assert told["rows"], told["title"]
            assert all(len(row) == len(told["columns"]) for row in told["rows"]), told["title"]
            charts[told["title"]] = DrawnChart(section["id"], svg, told["columns"], told["rows"])
    return charts
