"""docs/reproduction.md: the answers first, then every table with its pictures, as far as there are records."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

from hush.bench.spec import read_spec
from published import records
from published.answers import render_answers
from published.blocks import render_blocks, render_tuned
from published.faults import render_faults
from published.mnist import render_dpsgd, render_ftrl, render_plain, render_versus
from published.pictures import draw_all
from published.records import read, table, wrap
from published.setups import render_many, render_one_pass, render_rules

PAGE = records.ROOT / "docs" / "reproduction.md"
PICTURES = records.ROOT / "docs" / "pictures" / "reproduction"
SWEPT = "of every run of the sweep, first seed, over its learning rate; rates are chosen on held-out rows, not by this"
PARTS: tuple[tuple[str, Callable[[], list[str]], dict[str, str]], ...] = (
    ("mnist-plain", render_plain, {}),
    (
        "mnist-dpsgd",
        render_dpsgd,
        {
            "curves-dpsgd": "Test accuracy over epochs, without privacy and at three noises, mean and deviation over "
            "seeds, from 80 % on",
            "confusion-dpsgd-mlp": "What the MLP takes each digit for, percent of it; colour shows mistakes up to 10 %",
            "confusion-dpsgd-lenet": "The same for LeNet",
        },
    ),
    (
        "mnist-ftrl",
        render_ftrl,
        {
            "curves-ftrl": "Test accuracy over epochs of DP-FTRL, mean and deviation over seeds, from 80 % on",
            "confusion-ftrl": "What DP-FTRL's LeNet takes each digit for, in the same colours",
        },
    ),
    (
        "mnist-versus",
        render_versus,
        {
            "curves-versus": "Test accuracy over epochs at equal ε, mean and deviation over seeds, from 80 % on",
            "confusion-versus": "What each takes a digit for, in the same colours; DP-FTRL by plain sums on all images",
        },
    ),
    (
        "setup-2",
        render_one_pass,
        {"rates-setup-2": f"Test accuracy {SWEPT}"},
    ),
    (
        "setup-3-reduced",
        render_many,
        {
            "rates-setup-3": f"Test figure {SWEPT}",
            "curves-setup-3": "Test figure over epochs at the chosen rates, mean and deviation over seeds",
        },
    ),
    (
        "setup-1-reduced",
        render_rules,
        {
            "rates-setup-1": f"Test figure {SWEPT}",
            "curves-setup-1": "Test figure over epochs at the chosen rates, mean and deviation over seeds",
        },
    ),
    ("building-blocks", render_blocks, {}),
    ("building-blocks-tuned", render_tuned, {}),
)
MORE = (
    *("mnist-versus-whole", "setup-2-finer", "setup-2-winners", "setup-3-winners", "setup-1-winners", "rates-tried"),
)
WHAT = (
    "Accuracies and ε that were published for private training, compared with what hush gets on the same data with the "
    "published settings, as far as they are given (what differs is said at each table), with ε by hush's accountant. "
    "Tables I to IV are numbered as they were published. First what follows from it, then every table, last what was "
    "[wrong](#what-is-wrong-in-published-results)."
)
HOW = (
    "Every figure of a run comes from the records in [results](../results/README.md): one line a run, with settings, "
    "seed and versions. `hush bench specs/NAME.toml --store STORE` makes the runs, `benchmarks/reproduction.py "
    "collect` the records, and `benchmarks/reproduction.py render` this page and its pictures. Noise is from a fixed "
    "secret, as the data are public; seeds differ in initial weights, sampling and noise. ε here is for one example's "
    "contribution becoming zero, by the accountant that [accounting](accounting.md) describes; it is rounded up. All "
    "private runs were made in [fast arithmetic](sharp-edges.md#arithmetic), so their ε is claimed; the same settings "
    "in rigorous arithmetic, today's default, have the same ε, proven."
)

RUNS = (
    "## What has been run",
    "",
    *wrap(
        "A run that two specs share is counted in both: the first seed of a winner is the run by which it was chosen. "
        "What is planned for winners grows with the rates that are in."
    ),
    "",
)


def render() -> str:
    """The page. A part whose spec has not been run is left out, and the list of runs says so."""
    drawn = draw_all()
    lines = ["# Published results, run again", "", *wrap(WHAT), "", *render_answers(), *_render_runs(), *wrap(HOW), ""]
    for name, part, pictures in PARTS:
        if read(name):
            lines += part()
            for picture, told in pictures.items():
                if f"{picture}.svg" in drawn:
                    lines += [f"![{told}](pictures/reproduction/{picture}.svg)", "", f"*{told}.*", ""]
    return "\n".join([*lines, *render_faults()]).rstrip() + "\n"


def _render_runs() -> list[str]:
    rows = []
    for name in (*(part[0] for part in PARTS), *MORE):
        spec = records.SPECS / f"{name}.toml"
        planned = f"{len(read_spec(spec).trials)}" if spec.exists() else "not chosen yet"
        counts = Counter(record["outcome"] for record in read(name))
        bad = "".join(f", of them {counts[how]} {how}" for how in ("diverged", "failed") if counts[how])
        told = f"{counts.total()}{bad}" if counts else "not run yet"
        rows.append((f"`{name}`", told, planned))
    return [*RUNS, *table(("spec", "runs in", "planned"), rows)]


def write_page() -> list[Path]:
    """The page and its pictures; a picture that is drawn no more goes."""
    PICTURES.mkdir(parents=True, exist_ok=True)
    drawn = draw_all()
    for path in PICTURES.glob("*.svg"):
        if path.name not in drawn:
            path.unlink()
    for name, svg in drawn.items():
        (PICTURES / name).write_text(svg)
    PAGE.write_text(render())
    return [PAGE, *(PICTURES / name for name in drawn)]
