"""Records of runs: from a store to results/, and what a table says of a few of them."""

from __future__ import annotations

import itertools
import json
import math
import re
import statistics
import textwrap
from collections.abc import Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
RESULTS, SPECS = ROOT / "results", ROOT / "specs"
KEPT = (
    *("key", "outcome", "reason", "config", "versions", "test_loss", "test_accuracy", "validation_loss"),
    *("validation_accuracy", "epsilon", "delta", "status", "protects", "adjacency", "accountant"),
    *("noise_multiplier", "sensitivity", "noise_std", "steps", "steps_taken", "examples", "parameters"),
    *("train_seconds", "evaluation_seconds", "inference_seconds", "stopped", "confusion"),
)
CURVE = ("epoch", "test_accuracy", "test_loss", "validation_accuracy", "epsilon", "spread")
Record = dict[str, Any]


def collect(store: Path, spec: Path) -> Path:
    """The runs of a spec that a store has finished, compact, in the order of the spec; those that were collected
    before, from another store perhaps, stay."""
    from hush.bench.spec import read_spec

    before = {record["key"]: record for record in read(spec.stem)}
    lines = []
    for trial in read_spec(spec).trials:
        folder = store / "runs" / trial.key
        record = compact(folder) if (folder / "record.json").exists() else before.get(trial.key)
        if record is not None:
            lines.append(json.dumps(record))
    out = RESULTS / f"{spec.stem}.jsonl"
    RESULTS.mkdir(exist_ok=True)
    out.write_text("".join(f"{line}\n" for line in lines))
    return out


def compact(folder: Path) -> Record:
    """What is kept of one run in a store."""
    record = json.loads((folder / "record.json").read_text())
    curve = [json.loads(line) for line in (folder / "epochs.jsonl").read_text().splitlines()]
    shown = [{k: e[k] for k in CURVE if k in e} for e in curve]
    return {k: record[k] for k in KEPT if k in record} | {"curve": shown}


def restore(store: Path, spec: Path) -> int:
    """Put the records of a spec back into a store, so that a sweep elsewhere goes on after them; how many there are."""
    from hush.bench.spec import read_spec
    from hush.bench.store import Result, open_store

    opened, wanted = open_store(store), {trial.key for trial in read_spec(spec).trials}
    found = [record for record in read(spec.stem) if record["key"] in wanted]
    for record in (one for one in found if not opened.has(one["key"])):
        told = {k: v for k, v in record.items() if k != "curve"} | {"seconds": record.get("train_seconds", 0.0)}
        opened.finish(record["key"], Result(told, tuple(record["curve"])))
    return len(found)


def read(name: str) -> list[Record]:
    """The records of one spec; none where it has not been run."""
    path = RESULTS / f"{name}.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def pick(records: Iterable[Record], **wanted: Any) -> list[Record]:
    """The finished runs whose settings or options are these."""

    def value(record: Record, name: str) -> Any:
        config = record["config"]
        return config[name] if name in config else config["options"].get(name)

    return [r for r in records if r["outcome"] == "finished" and all(value(r, k) == v for k, v in wanted.items())]


def list_percent(records: Iterable[Record], figure: str = "test_accuracy") -> list[float]:
    """A figure of every run, in percent."""
    return [100 * r[figure] for r in records]


def list_moves(records: Iterable[Record], figure: str, last: int = 4) -> list[float]:
    """How far a figure moves from one epoch to the next, over the last epochs of every run."""
    return [
        abs(later[figure] - earlier[figure])
        for record in records
        for earlier, later in itertools.pairwise(record["curve"][-last - 1 :])
    ]


def tell_values(values: list[float], digits: int = 2) -> str:
    """Mean ± standard deviation, and of how many."""
    if not values:
        return "not run"
    deviation = f" ± {statistics.stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.{digits}f}{deviation} ({len(values)})"


def spread(records: list[Record], figure: str = "test_accuracy") -> str:
    """Mean ± standard deviation over seeds in percent, and how many."""
    return tell_values(list_percent(records, figure))


def is_fast(record: Record) -> bool:
    """Whether its ε is claimed for no other reason than fast arithmetic, which a page says once for all of its runs."""
    config = record.get("config", {})
    fast = record["status"] == "claimed" and config.get("arithmetic") == "fast"
    return fast and not config.get("accept_claimed", False)


def epsilon(records: list[Record]) -> str:
    """ε by our accountant, rounded up, with its status where that is neither proven nor claimed for fast arithmetic."""
    if not records or records[0]["epsilon"] is None:
        return "none"
    found = max(r["epsilon"] for r in records)
    status = "" if records[0]["status"] == "proven" or is_fast(records[0]) else f", {records[0]['status']}"
    return f"{math.ceil(found * 100 - 1e-9) / 100:.2f}{status}"


def table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> list[str]:
    """A Markdown table."""
    return [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}", *(f"| {' | '.join(row)} |" for row in rows), ""]


def link(heading: str) -> str:
    """The anchor of a heading on a page."""
    return "#" + re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def wrap(text: str) -> list[str]:
    """A paragraph in lines of a page's width."""
    return textwrap.wrap(text, 118, break_long_words=False, break_on_hyphens=False)


def wrap_item(text: str, width: int = 118) -> list[str]:
    """An entry of a list in lines of a page's width."""
    return textwrap.wrap(
        text, width, initial_indent="- ", subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
    )
