"""A schema as a .toml file for a person to edit, written from what a table looks like.

It holds kinds and formats, which were read off private rows, and says so at its top. Classes, categories and ranges are
values: they are in it only where somebody said that they are public.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any

from hush.data.inspection import Finding, Inspection
from hush.data.schema import describe_column

HEADER = """\
# Written by `hush data inspect`, which looked at private rows: what `read_off` lists was read off them, and a guarantee
# takes it to be public. Whoever may not know it may not have this file. Check every line, and add what is public:
# classes, ranges (low, high) and categories (values), from knowledge of the subject and not from the rows.
"""
HINTS = {
    "number": "# low = …, high = …: a public range makes a better input than none",
    "date": "# low = …, high = …: a public range of years",
    "category": '# values = ["…"]: a public list makes a better input than hashing',
}


def write_toml(
    found: Inspection,
    *,
    target: str | None,
    classes: Collection[str] = (),
    target_range: Collection[float] = (),
    public: Collection[str] = (),
) -> str:
    """The text of the schema. Columns with a problem are commented out, for somebody to decide about them."""
    read_off = f"read_off = {spell(['kinds', *public])}"
    lines = [HEADER, read_off, "# target = …" if target is None else f"target = {spell(target)}"]
    if target_range:
        lines.append(f"target_range = {spell(list(target_range))}")
    elif target is not None:
        lines.append(f"classes = {spell(list(classes))}" if classes else '# classes = ["…", "…"]: the labels in order')
    for finding in found.findings:
        if finding.column.name != target:
            lines += ["", *_write_column(finding)]
    return "\n".join(lines) + "\n"


def _write_column(finding: Finding) -> list[str]:
    facts = [f"{key} = {spell(value)}" for key, value in describe_column(finding.column).items()]
    lines = [f"[columns.{spell(finding.column.name)}]", *facts]
    if finding.problem:
        return [f"# {_flatten(finding.problem)}", *(f"# {line}" for line in lines)]
    column = finding.column
    hint = HINTS.get(column.kind, "") if column.low is None and not column.values else ""
    return [*lines, hint] if hint else lines


def spell(value: Any) -> str:
    """A text, number, truth value or list of them in TOML, whose texts are those of JSON but for one character."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _flatten(text: str) -> str:
    """A text that ends no comment before its time."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())
