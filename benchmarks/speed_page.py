"""Measures the step times of docs/speed.md and docs/results/step-time.md, and writes them there.

    python benchmarks/speed_page.py measure               # all benchmarks, one after the other, then the pages
    python benchmarks/speed_page.py measure --parts peers
    python benchmarks/speed_page.py measure --quick DIR   # try it: one model once, with the results and pages in DIR
    python benchmarks/speed_page.py                       # the pages again, from docs/results

Measure on a machine that does nothing else. hush, ordinary SGD and peers take turns in the same run of step_time.py. A
test checks that the pages are what the JSON files give.
"""

from __future__ import annotations

import argparse
import json
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from step_time import mean, rows, summary

DOCS = Path(__file__).resolve().parents[1] / "docs"
FIGURES, ARITHMETIC = DOCS / "results" / "step-time.json", DOCS / "results" / "arithmetic.json"
PAGES = (DOCS / "speed.md", DOCS / "results" / "step-time.md")
MODELS = "MLP,LeNet-5,P1,P2,P3"
COMMON = f"--models {MODELS}"
FAMILIES = "BERT,RoBERTa,DistilBERT,GPT-2,Llama,Qwen2,T5 encoder,ViT"
SIZES = (32, 128)
PARTS = {  # the flags of step_time.py, or of fine_tuning.py
    "peers": f'--engines "plain SGD,hush,Opacus ghost,torch.func" {COMMON} --batches 256 --threads 1 --repeats 5 '
    "--patience 0.5",
    "batches": f'--engines "plain SGD,hush" {COMMON} --batches 64,1024 --threads 1 --repeats 4 --patience 5',
    "threads": f'--engines "plain SGD,hush" {COMMON} --batches 256 --threads 2 --repeats 5',
    "transformers": f'--models "{FAMILIES}" --batches {",".join(map(str, SIZES))} --rounds 2',
}
SCRIPTS = {"arithmetic": "arithmetic.py", "transformers": "fine_tuning.py"}
QUICK = {"arithmetic": "--models MLP --rounds 1 --steps 2", "transformers": "--models BERT --batches 32 --rounds 1"}
Results = list[dict[str, Any]]


def read() -> dict[str, Results]:
    """The parts that were measured."""
    found: dict[str, Results] = json.loads(FIGURES.read_text()) if FIGURES.exists() else {}
    return found


def measure(parts: list[str], quick: bool) -> None:
    """Run the benchmarks of these parts and save each when it is complete."""
    ours = Path(__file__).parent
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "part.json"
        for part in parts:
            flags = PARTS.get(part, COMMON)
            few = QUICK.get(part, "--models MLP --repeats 1") if quick else ""  # the last of two equal flags counts
            _run([str(ours / SCRIPTS.get(part, "step_time.py")), *shlex.split(f"{flags} {few}")], path)
            if part == "arithmetic":
                shutil.copy(path, ARITHMETIC)
                continue
            FIGURES.write_text(json.dumps(read() | {part: json.loads(path.read_text())}, indent=1) + "\n")


def _run(command: list[str], path: Path) -> None:
    """Raise if a model is missing, or has no time of hush or of the ordinary step; a peer may fail on a model."""
    print("python", *command, file=sys.stderr, flush=True)
    subprocess.run([sys.executable, *command, "--json", str(path)], check=True)
    found = json.loads(path.read_text())
    wanted = command[len(command) - command[::-1].index("--models")].split(",")
    times = [result["seconds"].get(name, 0.0) for result in found for name in ("hush", "plain SGD")]
    if {result["model"] for result in found} != set(wanted) or not all(isinstance(each, float) for each in times):
        raise SystemExit(f"{command[0]} has no time of some model: see its messages")


def render(page: Path) -> str:
    """The page with what stands between its marks made anew."""
    text = page.read_text()
    for name, make in SECTIONS.items():
        begin, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->"
        before, found, rest = text.partition(begin)
        if found and end not in rest:
            raise SystemExit(f"'{page}' has no mark '{end}'")
        if found:
            text = f"{before}{begin}\n{make()}\n\n{end}{rest.partition(end)[2]}"
    return text


def show_peers() -> str:
    """hush and the fastest peers, and how they compare."""
    return _with_command("peers", rows(read()["peers"]))


def show_mean() -> str:
    """The means over the models, in words."""
    ours, peers = (line.strip().partition(": ")[2] or line.strip() for line in summary(read()["peers"]))
    return f"Together: {ours}, {peers}."


def show_batches() -> str:
    """Time per example of small and large batches."""
    found: dict[str, dict[int, dict[str, float]]] = {}
    for result in read()["batches"]:
        found.setdefault(result["model"], {})[result["batch"]] = result["seconds"]
    lines = [
        "| model | hush, batch 64, µs per example | batch 1024 | ratio to plain SGD at 64 | at 1024 |",
        "|---|---|---|---|---|",
    ]
    for model, by_batch in found.items():
        small, large = by_batch[64], by_batch[1024]
        each = f"{small['hush'] / 64 * 1e6:.0f} | {large['hush'] / 1024 * 1e6:.0f}"
        ratios = f"{small['hush'] / small['plain SGD']:.2f} | {large['hush'] / large['plain SGD']:.2f}"
        lines.append(f"| {model} | {each} | {ratios} |")
    return _with_command("batches", "\n".join(lines))


def show_others() -> str:
    """Two threads."""
    return _with_command("threads", rows(read()["threads"]))


def show_transformers() -> str:
    """Transformers with all weights, LoRA or a head, at two batch sizes."""
    found: dict[tuple[str, str], dict[int, dict[str, Any]]] = {}
    for result in read()["transformers"]:
        found.setdefault((result["model"], result["trained"]), {})[result["batch"]] = result
    sizes = " / ".join(map(str, SIZES))
    lines = [
        f"| model | trained | SGD, ms | hush, batch {sizes} | Opacus, {sizes} | memory, {sizes} |",
        "|---" * 6 + "|",
    ]
    for (model, trained), by_batch in found.items():
        each = [by_batch.get(size) for size in SIZES]
        seconds = [{} if one is None else one["seconds"] for one in each]
        cells = [_join([1e3 * s["plain SGD"] if s else None for s in seconds], 0)]
        for engine in ("hush", "Opacus ghost"):
            cells.append(_join([s[engine] / s["plain SGD"] if engine in s else None for s in seconds]))
        cells.append(_join([None if one is None else one["memory"] for one in each]))
        lines.append(f"| {model} | {trained} | {' | '.join(cells)} |")
    return "\n".join([f"    python benchmarks/fine_tuning.py {PARTS['transformers']}", "", *lines])


def _join(values: list[float | None], digits: int = 2) -> str:
    return " / ".join("–" if value is None else f"{value:.{digits}f}" for value in values)


def show_arithmetic() -> str:
    """What sound arithmetic costs."""
    found = json.loads(ARITHMETIC.read_text())
    lines = ["| model | batch | plain SGD, ms | fast | rigorous |", "|---|---|---|---|---|"]
    for result in found:
        seconds = result["seconds"]
        cells = [f"{seconds[way] / seconds['plain']:.2f}" for way in ("fast", "rigorous")]
        lines.append(f"| {result['model']} | {result['batch']} | {seconds['plain'] * 1e3:.1f} | {' | '.join(cells)} |")
    means = [mean([r["seconds"][way] / r["seconds"]["plain"] for r in found]) for way in ("fast", "rigorous")]
    return (
        "\n".join(lines)
        + f"\n\nTogether {means[0]:.2f} in fast arithmetic, and {means[1]:.2f} in rigorous arithmetic, the default."
    )


def _with_command(part: str, table: str) -> str:
    return f"    python benchmarks/step_time.py {PARTS[part]}\n\n{table}"


SECTIONS = {
    "peers": show_peers,
    "mean": show_mean,
    "batches": show_batches,
    "others": show_others,
    "transformers": show_transformers,
    "arithmetic": show_arithmetic,
}


def main() -> None:
    """Measure if asked, and write the pages."""
    global FIGURES, ARITHMETIC, PAGES
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", nargs="?", choices=("measure",))
    parser.add_argument("--parts", default=",".join((*PARTS, "arithmetic")))
    parser.add_argument("--quick", type=Path, metavar="DIR", help="one model once, with the results and pages here")
    options = parser.parse_args()
    if unknown := set(options.parts.split(",")) - {*PARTS, "arithmetic"}:
        raise SystemExit(f"there is no part {', '.join(sorted(unknown))}: {', '.join(PARTS)}, arithmetic")
    if options.quick is not None:
        (options.quick / "results").mkdir(parents=True)
        moved = {path: options.quick / path.relative_to(DOCS) for path in (FIGURES, ARITHMETIC, *PAGES)}
        for path, copy in moved.items():
            shutil.copy(path, copy)
        FIGURES, ARITHMETIC, PAGES = moved[FIGURES], moved[ARITHMETIC], tuple(moved[page] for page in PAGES)
    if options.task == "measure":
        measure(options.parts.split(","), options.quick is not None)
    for page in PAGES:
        page.write_text(render(page))


if __name__ == "__main__":
    main()
