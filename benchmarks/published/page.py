"""docs/reproduction.md: the answers first, then every table with its pictures, as far as there are records."""

from __future__ import annotations

import functools
import json
import tempfile
from collections import Counter
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import sanitize_pictures
import sanitize_table
from hush.bench.spec import read_spec
from published import records, sanitisation
from published.answers import LEGEND, NAMES, list_answers, render_answers, render_summary
from published.blocks import render_blocks, render_tuned
from published.experiments import name_section, render_map
from published.faults import render_faults
from published.mnist import render_dpsgd, render_ftrl, render_plain, render_versus
from published.pictures import draw_all
from published.records import read, table, wrap
from published.setups import render_many, render_one_pass, render_rules

PAGE = records.ROOT / "docs" / "reproduction.md"
PICTURES = records.ROOT / "docs" / "pictures" / "reproduction"
BLOCKS = records.ROOT / "docs" / "pictures" / "building-blocks"
SANITIZE = records.ROOT / "docs" / "sanitize.md"
SWEPT = "of every run of the sweep, first seed, over its learning rate; rates are chosen on held-out rows, not by this"
PARTS: dict[str, tuple[tuple[str, Callable[[], list[str]], dict[str, str]], ...]] = {
    "000": (
        (
            "mnist-plain",
            render_plain,
            {
                "curves-plain": "Test accuracy and loss over epochs without privacy, and what is taken for what",
            },
        ),
        (
            "mnist-dpsgd",
            render_dpsgd,
            {
                "curves-dpsgd": "Test accuracy (from 80 % on) and loss over epochs, without privacy and at three "
                "noises, mean and deviation over seeds",
                "epsilon-dpsgd": "ε after each epoch, and test accuracy over it",
                "confusion-dpsgd-mlp": "What the MLP takes each digit for, percent of it; colour shows mistakes up to "
                "10 %",
                "confusion-dpsgd-lenet": "The same for LeNet",
            },
        ),
        (
            "mnist-ftrl",
            render_ftrl,
            {
                "curves-ftrl": "Test accuracy (from 80 % on) and loss over epochs of DP-FTRL, mean and deviation over "
                "seeds",
                "epsilon-ftrl": "ε after each epoch, and test accuracy over it",
                "confusion-ftrl": "What DP-FTRL's LeNet takes each digit for, in the same colours",
            },
        ),
        (
            "mnist-versus",
            render_versus,
            {
                "curves-versus": "Test accuracy over epochs at equal ε, mean and deviation over seeds, from 80 % on",
                "confusion-versus": "What each takes a digit for, in the same colours; DP-FTRL by plain sums on all "
                "images",
            },
        ),
    ),
    "002": (
        (
            "setup-2",
            render_one_pass,
            {
                "rates-setup-2": f"Test accuracy {SWEPT}",
                "heatmap-setup-2": "Test accuracy by learning rate and batch size, as published: one seed, no rates "
                "between",
            },
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
    ),
    "003": (
        (
            "sanitize",
            sanitisation.render_readings,
            {
                "curves-sanitize": "Test accuracy over epochs by both readings of the noise, with the published "
                "accuracy; of a setting that was run for several numbers of epochs, the longest run",
                "axes-sanitize": "Noise of Cσ on CIFAR-10, 2 epochs: adaptive C at several t, and C = 0.5 at several "
                "widths",
            },
        ),
    ),
    "004": (
        (
            "building-blocks",
            render_blocks,
            {"curves-blocks": "Test accuracy and loss over steps, mean and deviation over seeds"},
        ),
        ("building-blocks-tuned", render_tuned, {}),
    ),
}
MORE = (
    *("mnist-ftrl-initialisation", "mnist-versus-whole", "setup-2-finer", "setup-2-winners", "setup-3-winners"),
    *("setup-1-winners", "rates-tried", "sanitize-readings", "sanitize-axes", "building-blocks-curves"),
    "building-blocks-full",
)
WHAT = (
    "The tables and figures of four publications on private training, run again with hush. ε is by hush's accountant. "
    "`hush reproduce` lists the same, `hush reproduce NAME` runs what is missing, and `hush reproduce --render` writes "
    "this page from [results](../results/README.md)."
)
HOW = (
    "Every record is one run, with settings, seed and versions. Noise is from a fixed secret, as the data are public; "
    "seeds differ in initial weights, sampling and noise. ε here is for one example's contribution becoming zero, by "
    "the accountant that [accounting](accounting.md) describes; it is rounded up. All private runs were made in [fast "
    "arithmetic](sharp-edges.md#arithmetic), so their ε is claimed; the same settings in rigorous arithmetic, today's "
    "default, have the same ε, proven."
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
LISTED = (
    "State and time follow from the records. The time is the wall clock of the training of all runs of an entry, each "
    "on one core of a busy machine; entries that share a spec each have the time of all its runs. The time of the "
    "published size is estimated from the CPU time of a dry run. On a Ray cluster `hush bench SPEC --store STORE "
    "--executor ray` runs it and `hush reproduce NAME --full --store STORE` collects it. Figures without data "
    "(taxonomies, diagrams of programs and networks) and the table of models (002, Table 4.1: problems `cifar10-p1`, "
    "`fashion-p2` and `fashion-vae`) are not listed."
)


def render() -> str:
    """The page. A part whose spec has not been run is left out, and the list of runs says so."""
    drawn, answers = draw_all(), list_answers()
    lines = ["# Published results, run again", "", *wrap(WHAT), "", *render_answers(), *render_summary()]
    lines += ["## Every table and figure", "", *wrap(LISTED), "", *render_map()]
    for publication, parts in PARTS.items():
        lines += [f"## {name_section(publication)}", ""]
        for name, part, pictures in parts:
            if read(name):
                lines += [f"#{line}" if line.startswith("## ") else line for line in part()]
                lines += answers[name].render() if name in answers else []
                for picture, told in pictures.items():
                    if f"{picture}.svg" in drawn:
                        lines += [f"![{told}](pictures/reproduction/{picture}.svg)", "", f"*{told}.*", ""]
    lines += [*render_faults(), "## Terms", "", *wrap(LEGEND), "", *wrap(NAMES), "", *_render_runs(), *wrap(HOW)]
    return "\n".join(lines).rstrip() + "\n"


def _render_runs() -> list[str]:
    rows = []
    for name in (*(part[0] for parts in PARTS.values() for part in parts), *MORE):
        spec = records.SPECS / f"{name}.toml"
        planned = f"{len(read_spec(spec).trials)}" if spec.exists() else "not chosen yet"
        counts = Counter(record["outcome"] for record in read(name))
        bad = "".join(f", of them {counts[how]} {how}" for how in ("diverged", "failed") if counts[how])
        told = f"{counts.total()}{bad}" if counts else "not run yet"
        rows.append((f"`{name}`", told, planned))
    return [*RUNS, *table(("spec", "runs in", "planned"), rows)]


def render_files() -> dict[Path, str]:
    """Every page and picture that follows from the records, as it should be."""
    found = {PICTURES / name: svg for name, svg in draw_all().items()}
    figures = json.loads(sanitize_pictures.DATA.read_text())
    found |= {sanitize_pictures.PICTURES / name: svg for name, svg in sanitize_pictures.draw_all(figures).items()}
    sanitize = sanitize_pictures.rewrite(SANITIZE.read_text(), figures)
    found |= {BLOCKS / name: svg for name, svg in _draw_blocks(records.RESULTS, _state()).items()}
    return found | {SANITIZE: sanitize_table.rewrite(sanitize), PAGE: render()}


def _state() -> tuple[tuple[str, int], ...]:
    """The records as they are now."""
    return tuple((path.name, path.stat().st_mtime_ns) for path in sorted(records.RESULTS.glob("building-blocks*")))


@functools.cache
def _draw_blocks(results: Path, state: tuple[tuple[str, int], ...]) -> dict[str, str]:
    """The pictures of docs/building-blocks.md; none without matplotlib."""
    if find_spec("matplotlib") is None:
        return {}
    import building_blocks

    with tempfile.TemporaryDirectory() as folder:
        return {path.name: path.read_text() for path in building_blocks.draw(Path(folder), results, small=False)}


def find_changes() -> list[Path]:
    """The files that differ from what the records give, and pictures that are drawn no more."""
    wanted = render_files()
    changed = [path for path, text in wanted.items() if not path.exists() or path.read_text() != text]
    return sorted([*changed, *(path for path in PICTURES.glob("*.svg") if path not in wanted)])


def write_page() -> list[Path]:
    """Write what differs; a picture that is drawn no more goes."""
    for folder in (PICTURES, BLOCKS):
        folder.mkdir(parents=True, exist_ok=True)
    for _ in range(2):  # the map says which pictures are there
        changed, wanted = find_changes(), render_files()
        for path in changed:
            if path in wanted:
                path.write_text(wanted[path])
            else:
                path.unlink()
    return list(wanted)
