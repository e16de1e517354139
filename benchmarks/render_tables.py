"""docs/tables.md from results/tables/runs.jsonl."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RECORDS, PAGE = ROOT / "results" / "tables" / "runs.jsonl", ROOT / "docs" / "tables.md"
EPSILONS = (1.0, 3.0, 8.0)
PUBLIC = "public ranges and categories"
Record = dict[str, Any]
Line = tuple[str, str, str]  # its name on the page, who trained, and how

HUSH: Line = ("**hush**, no further flag", "hush", "no schema")
WITHOUT: list[Line] = [
    ("logistic regression on the same inputs", "logistic regression", "no schema"),
    ("logistic regression on exact ranges and categories", "logistic regression", PUBLIC),
    ("boosted trees", "boosting", PUBLIC),
]
ADULT: list[Line] = [
    HUSH,
    ("hush, `--private-ranges 0.1`", "hush", "private ranges"),
    ("hush, `--public ranges+categories`", "hush", PUBLIC),
    ("Opacus on the same inputs", "Opacus", "no schema"),
]
CHOSEN_ON: list[Line] = [
    HUSH,
    ("mlp 128-64, batch 256, learning rate 1", "one size for all", "no schema"),
    WITHOUT[0],
]
REPORTED = {
    "adult": (
        "Adult",
        "UCI Adult: 32 561 rows to train on, 16 281 to test on, `--target income --test-data adult-test.csv`.",
        [*ADULT, *WITHOUT],
    ),
    "patients": (
        "Patients",
        "A made-up table of 8 000 visits of 4 098 patients (tests/helpers/patients.py): gaps, stray words, rare "
        "categories, dates, free text, one target in six positive; another draw of the script that made one of the "
        "five. "
        "`--target y --unit patient_id`: ε is per patient.",
        [HUSH, *WITHOUT],
    ),
    "breast cancer": (
        "Breast cancer",
        "The table of that name in scikit-learn, 456 rows to train on and 113 to test on: very few for privacy.",
        [HUSH, *WITHOUT],
    ),
}
DEVELOPMENT = {
    "patients, another seed": "patients of another seed, 3 285 units to train on",
    "digits": "scikit-learn's digits as 64 columns, ten classes, 1 438 rows to train on",
    "clusters": "`make_classification`, 20 columns, two classes, 4 000 rows to train on",
    "scales": "`make_classification`, 12 columns of scales up to 10⁵ apart, three classes, 16 000 rows to train on",
    "regions": "two numbers and three categories, of 14, 40 and 2 values, 16 000 rows to train on",
}
INTRODUCTION = """# What the defaults reach on tables

`hush train --data my.csv --target y --epsilon 3 --out run` with no further flag takes what
[own-data](own-data.md#what-a-table-trains-with) describes. Batch size, learning rate, average and model were chosen
on five tables, and on these alone; the figures to go by are of the three others. Every cell is the accuracy in
percent and the AUC on rows that were not trained on, mean ± standard deviation over (seeds), one run where there is
no deviation, at δ = 1e-5. "No privacy" is scikit-learn; its logistic regression is on inputs that are standardised by
their exact means and deviations. Opacus has the encoding, model, batch size, epochs, learning rate and clip of hush,
its own noise and its own PRV accountant, and releases its last weights. The runs of hush were made in
[fast arithmetic](sharp-edges.md#arithmetic), so their ε is claimed; in rigorous arithmetic, today's default, the same
settings have the same ε, proven.

`python benchmarks/tables.py run` makes all runs, each once, into `results/tables/runs.jsonl`, and `… render` this page.
"""


def read() -> list[Record]:
    """All runs."""
    return [json.loads(line) for line in RECORDS.read_text().splitlines()]


def pick(records: list[Record], table: str, line: Line, epsilon: float | None) -> list[Record]:
    """The runs of one cell."""
    wanted = {"table": table, "who": line[1], "way": line[2], "epsilon": epsilon}
    return [r for r in records if all(r["job"][name] == value for name, value in wanted.items())]


def write_cell(records: list[Record]) -> str:
    """Accuracy, AUC and how many seeds."""
    if not records:
        return "not run"
    accuracies, areas = ([r[name] for r in records] for name in ("test_accuracy", "test_auc"))
    shown = f"{_spread([100 * a for a in accuracies], 1)}, {_spread(areas, 3)}"
    return shown if len(records) == 1 else f"{shown} ({len(records)})"


def _spread(values: list[float], digits: int) -> str:
    deviation = f" ± {statistics.stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.{digits}f}{deviation}"


def write_table(records: list[Record], table: str, lines: list[Line]) -> list[str]:
    """One line for each way to train, one column for each ε."""
    shown = ["| | ε = 1 | ε = 3 | ε = 8 | no privacy |", "|---|---|---|---|---|"]
    for line in lines:
        private = [pick(records, table, line, epsilon) for epsilon in EPSILONS]
        plain = pick(records, table, line, None)
        cells = [""] * len(EPSILONS) if plain else [write_cell(found) for found in private]
        shown.append(f"| {' | '.join([line[0], *cells, write_cell(plain) if plain else ''])} |")
    return [*shown, ""]


def render() -> str:
    """The page."""
    records = read()
    page = [INTRODUCTION, "## Reported", ""]
    for table, (title, about, lines) in REPORTED.items():
        page += [f"### {title}", "", about, "", *write_table(records, table, lines)]
    page += ["## Chosen on", "", "One seed each, for comparison with what every problem of hush has by default.", ""]
    for table, about in DEVELOPMENT.items():
        page += [f"**{table}**: {about}.", "", *write_table(records, table, CHOSEN_ON)]
    return "\n".join(page)
