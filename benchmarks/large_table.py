"""A table of ten million rows: how long hush takes to read it and how much memory, beside pandas on the same file.

python benchmarks/large_table.py FOLDER                          # makes the table in FOLDER, measures, removes it
python benchmarks/large_table.py FOLDER --rows 1000000 --keep    # a shorter one, left there
python benchmarks/large_table.py FOLDER --out results/large-table.json

Twenty columns: numbers (some missing), whole numbers, categories, dates and a label. Every measurement is a process of
its own; its CPU time and its peak memory, the largest resident set, are what the operating system counted, mapped files
included. ``train`` is measured for one epoch and for two: the difference is what an epoch's own steps take. Times are
comparable within one file of results only, and are read from the page cache.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import shutil
import subprocess
import sys
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet

ROWS, CHUNK, SEED = 10_000_000, 500_000, 16
MISSING = 0.03
WORDS = {"ward": 12, "region": 40, "device": 300}
READ = (
    "from hush.tabular.problem import from_files; "
    "p = from_files({path!r}, target='label', public=('classes',), tell=print); print(p.summary)"
)
PANDAS = (
    "import time; import pandas as pd; t = time.process_time(); pd.read_{kind}({path!r}); "
    "print('cpu seconds of reading alone', round(time.process_time() - t, 2))"
)
RUN = "from hush.cli.main import run; run()"
TRAIN = (
    "--target",
    "label",
    "--public",
    "classes",
    "--epsilon",
    "3",
    "--model",
    "logistic",
    "--batch-size",
    "65536",
    "--delta",
    "1e-8",
    "--json",
)


def make_chunk(rows: int, start: int, missing: float = MISSING) -> pa.Table:
    """Some rows, a function of their place alone."""
    draw = np.random.Generator(np.random.Philox(key=SEED + start))
    columns: dict[str, Any] = {}
    for place in range(9):
        values = np.round(draw.normal(10.0**place / 1e3, 10.0**place / 1e3, rows), 4)
        columns[f"measure{place}"] = pa.array(values, mask=draw.random(rows) < missing * (place % 3 == 0))
    for place in range(4):
        columns[f"count{place}"] = draw.integers(0, 10 ** (place + 1), rows)
    for name, many in WORDS.items():
        words = pa.array([f"{name} {k}" for k in range(many)])
        picked = pa.array(draw.integers(0, many, rows), mask=draw.random(rows) < missing)
        columns[name] = words.take(picked)
    for name in ("admitted", "born"):
        days = pa.array(draw.integers(0, 20_000, rows).astype("int32"), pa.date32())
        columns[name] = pc.strftime(days, format="%Y-%m-%d")
    columns["smoker"] = pa.array(["no", "yes"]).take(pa.array(draw.integers(0, 2, rows)))
    sick = draw.random(rows) < 1 / (1 + np.exp(-(columns["count0"] - 4.5)))
    columns["label"] = pa.array(["well", "ill"]).take(pa.array(sick.astype(np.int64)))
    return pa.table(columns)


def make_files(folder: Path, rows: int, missing: float) -> dict[str, Path]:
    """The same table as text and as parquet, written chunk by chunk."""
    paths = {"csv": folder / "large.csv", "parquet": folder / "large.parquet"}
    like = make_chunk(1, 0).schema
    with (
        pyarrow.csv.CSVWriter(paths["csv"], like) as text,
        pyarrow.parquet.ParquetWriter(paths["parquet"], like) as binary,
    ):
        for start in range(0, rows, CHUNK):
            chunk = make_chunk(min(CHUNK, rows - start), start, missing)
            text.write_table(chunk)
            binary.write_table(chunk)
    return paths


def measure(command: list[str], cache: Path) -> dict[str, Any]:
    """Seconds and peak memory of a process, and the last line that it printed."""
    began = time.perf_counter()
    environment = os.environ | {"HUSH_CACHE": str(cache)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        said = process.stdout.read() if process.stdout else ""
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{command} ended with {process.returncode}")
    taken = {"seconds": round(time.perf_counter() - began, 1), "cpu_seconds": round(used.ru_utime + used.ru_stime, 1)}
    taken |= {"peak_gb": round(_in_gb(used), 2)}
    print(" ".join(command[1:])[:100], taken, file=sys.stderr)
    return taken | {"said": said.strip().splitlines()[-1:]}


def _in_gb(used: resource.struct_rusage) -> float:
    return used.ru_maxrss * (1 if sys.platform == "darwin" else 1024) / 1e9


def measure_all(paths: dict[str, Path], cache: Path, epochs: float) -> dict[str, Any]:
    """Every measurement by its name."""
    found: dict[str, Any] = {"python with torch and hush alone": measure([sys.executable, "-c", "import hush"], cache)}
    for kind, path in paths.items():
        found[f"hush {kind}"] = measure([sys.executable, "-c", READ.format(path=str(path))], cache)
        if _find("pandas") is not None:
            found[f"pandas {kind}"] = measure([sys.executable, "-c", PANDAS.format(kind=kind, path=str(path))], cache)
    command = [sys.executable, "-c", RUN, "train", "--data", str(next(iter(paths.values()))), *TRAIN]
    for times in (1, 2):
        out = ["--out", str(cache.with_name(f"run{times}"))]
        trained = measure([*command, *out, "--epochs", str(times * epochs)], cache)
        found[f"hush train, {times * epochs:g} epochs"] = {k: v for k, v in trained.items() if k != "said"}
    return found


def _find(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def main() -> None:
    """Make, measure, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--kinds", default="csv,parquet", help="the files that are read")
    parser.add_argument("--missing", type=float, default=MISSING, help="share of cells without a value")
    parser.add_argument("--epochs", type=float, default=1)
    parser.add_argument("--keep", action="store_true", help="leave the table where it is")
    parser.add_argument("--out", type=Path, help="write the figures to this file")
    given = parser.parse_args()
    work = given.folder / "large-table"
    work.mkdir(parents=True, exist_ok=True)
    try:
        paths = make_files(work, given.rows, given.missing)
        result = {
            "rows": given.rows,
            "missing": given.missing,
            "columns": len(make_chunk(1, 0).schema.names),
            "bytes": {kind: path.stat().st_size for kind, path in paths.items()},
            "cores": os.cpu_count(),
            "machine": platform.machine(),
            "versions": {name: _find(name) for name in ("torch", "numpy", "pyarrow", "pandas")},
            "measured": measure_all(
                {kind: paths[kind] for kind in given.kinds.split(",")}, work / "cache", given.epochs
            ),
        }
    finally:
        if not given.keep:
            shutil.rmtree(work)
    text = json.dumps(result, indent=2) + "\n"
    print(text, end="")
    if given.out is not None:
        given.out.write_text(text)


if __name__ == "__main__":
    main()
