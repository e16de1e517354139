"""A report for papers and READMEs: Markdown with static charts as files, and a LaTeX table."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from hush._internal.storage import MARK
from hush._internal.text import make_printable
from hush.report.page import Page, TableRow
from hush.report.rows import Reading
from hush.report.summary import Group, format_epsilon, make_groups
from hush.report.svg import make_standalone

LATEX = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "$": r"\$",
    "&": r"\&",
    "#": r"\#",
    "_": r"\_",
    "%": r"\%",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "ε": r"$\varepsilon$",
    "δ": r"$\delta$",
    "±": r"$\pm$",
    "∞": r"$\infty$",
}
STATUS = {"claimed": r"\textsuperscript{claimed}", "refuted": r"\textsuperscript{refuted}", "none": ""}


def render_markdown(page: Page, folder: str) -> tuple[str, dict[str, str]]:
    """The text, and the pictures in ``folder`` by the names that the text calls them by."""
    pictures: dict[str, str] = {}
    lines = [f"# {_escape_text(page.title)}", "", *_paragraphs(page.findings), *_paragraphs([page.warning])]
    lines += [f"## {_escape_text(page.table_title)}", "", _escape_text(page.table_say), "", *_draw_table(page), ""]
    for section in page.sections:
        lines += [f"## {_escape_text(section.title)}", "", _escape_text(section.say), ""]
        for number, chart in enumerate(section.charts, start=1):
            name = f"{folder}/{section.id}-{number}.svg"
            pictures[name] = f"{make_standalone(chart.svg)}\n<!-- {MARK} -->\n"
            lines += [f"![{_escape_text(chart.title)}]({name})", ""]
    if page.troubles:
        lines += [
            "## Runs that did not finish",
            "",
            "| run | outcome | problem | method | ε | why |",
            "|---|---|---|---|---|---|",
        ]
        names = ("key", "outcome", "problem", "method", "epsilon", "reason")
        lines += [f"| {' | '.join(_escape_text(row[name]) for name in names)} |" for row in page.troubles] + [""]
    if page.notes:
        lines += ["## About this report", "", *(f"- {_escape_text(note)}" for note in page.notes), ""]
    return "\n".join(lines).rstrip() + f"\n\n<!-- {MARK} -->\n", pictures


def _escape_text(text: str) -> str:
    """Escape text for a line or cell of Markdown: it starts no tag, link or emphasis."""
    shown = make_printable(text).replace("&", "&amp;").replace("<", "&lt;")
    return re.sub(r"([\\`*_\[\]#|])", r"\\\1", shown)


def _paragraphs(texts: Sequence[str]) -> list[str]:
    return [line for text in texts if text for line in (_escape_text(text), "")]


def _draw_table(page: Page) -> list[str]:
    head = f"| {' | '.join(_escape_text(name) for name in page.table_columns)} |"
    return [head, "|---" * len(page.table_columns) + "|", *(_draw_row(row) for row in page.table)]


def _draw_row(row: TableRow) -> str:
    cells = []
    for cell in row.cells:
        text = _escape_text(cell.text) + (f" ({_escape_text(cell.badge)})" if cell.badge else "")
        cells.append(text + (f"<br><sub>{_escape_text(cell.under)}</sub>" if cell.under else ""))
    return f"| {' | '.join(cells)} |"


def render_latex(reading: Reading) -> str:
    """A table as papers print it: methods down, problems and ε across; mean ± std, the best proven one of each column
    in bold, and what is not proven named as such."""
    groups = [group for group in make_groups(reading) if group.chosen is not None]
    places = list(dict.fromkeys((group.problem, group.epsilon) for group in groups))
    methods = sorted({group.method for group in groups})
    by_place = {(group.method, group.problem, group.epsilon): group for group in groups}
    lines = [
        f"% {MARK}; needs \\usepackage{{booktabs}}",
        r"\begin{tabular}{l" + "r" * len(places) + "}",
        r"\toprule",
        f"problem & {' & '.join(escape_latex(problem) for problem, _ in places)} \\\\",
        f"method & {' & '.join(_head_epsilon(epsilon) for _, epsilon in places)} \\\\",
        r"\midrule",
    ]
    best = {place: _find_best([g for g in groups if (g.problem, g.epsilon) == place]) for place in places}
    for method in methods:
        cells = [_draw_mean(by_place.get((method, *place)), best[place]) for place in places]
        lines.append(f"{escape_latex(method)} & {' & '.join(cells)} \\\\")
    lines += [r"\bottomrule", r"\end{tabular}"]
    return "\n".join([*lines, *_list_footnotes(groups)]) + "\n"


def _head_epsilon(epsilon: str) -> str:
    return "not private" if epsilon == "none" else rf"$\varepsilon = {escape_latex(epsilon)}$"


def _find_best(groups: Sequence[Group]) -> Group | None:
    """The best of the groups with a proven ε; of all groups without privacy if none is proven."""
    fair = [g for g in groups if g.status == "proven"] or [g for g in groups if g.status == "none"]
    sign = 1.0 if groups and groups[0].metric == "accuracy" else -1.0
    return max(fair, key=lambda g: sign * (g.chosen.mean or 0.0) if g.chosen else -math.inf, default=None)


def _draw_mean(group: Group | None, best: Group | None) -> str:
    if group is None or group.chosen is None or group.chosen.mean is None:
        return "--"
    scale = 100.0 if group.metric == "accuracy" else 1.0
    mean, spread = scale * group.chosen.mean, group.chosen.spread
    number = rf"{mean:.2f}" if spread is None else rf"{mean:.2f} \pm {scale * spread:.2f}"
    shown = rf"$\mathbf{{{number}}}$" if group is best else f"${number}$"
    return shown + STATUS.get(group.status, "" if group.status == "proven" else r"\textsuperscript{unknown}")


def _list_footnotes(groups: Sequence[Group]) -> list[str]:
    """Comments with the precision of the numbers and what they were chosen from."""
    units = "% test accuracy in %, or test loss; mean ± standard deviation over seeds of the best setting"
    lines = [units, "% an ε is that of one run alone and proven, unless a superscript says otherwise"]
    for g in groups:
        cost = "unknown" if g.price.epsilon is None else f"{g.price.epsilon:.4g}"
        place = make_printable(f"{g.method} on {g.problem}, ε = {format_epsilon(g)} ({g.status})")
        lines.append(f"% {place}: chosen from {g.price.runs} runs, which together cost ε = {cost}")
    return lines


def escape_latex(text: str) -> str:
    """Escape text for LaTeX."""
    return "".join(LATEX.get(character, character) for character in make_printable(text))
