"""Run every shell command of README.md with an installed hush, away from the checkout: `readme.py README.md BIN`.

BIN is the folder of the environment's programs. Each block of commands runs in a folder of its own that holds what the
commands name: a table, rows to predict, a small spec. `make` is for the checkout and is left out.
"""

from __future__ import annotations

import json
import os
import random
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SPEC = """
[[grid]]
problem = "digits-logistic"
method = "dp-sgd"
epsilon = 8.0
batch_size = 256
epochs = 1
lr = [0.1, 0.5]
"""


def list_commands(text: str) -> list[list[str]]:
    """The commands of every block of shell, without comments."""
    blocks = re.findall(r"^```sh\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    found = [[shlex.join(shlex.split(line, comments=True)) for line in block.splitlines()] for block in blocks]
    kept = [[line for line in block if line and not line.startswith("make ")] for block in found]
    return [block for block in kept if block]


def write_files(folder: Path) -> None:
    """What the commands name."""
    numbers = random.Random(0)
    rows = [(f"{numbers.gauss(0, 1):.4f}", numbers.choice("ab"), str(number // 3)) for number in range(900)]
    lines = [f"{x},{c},{who},{'yes' if float(x) + (c == 'a') > 0.5 else 'no'}" for x, c, who in rows]
    for name, part in (("my.csv", lines[:600]), ("test.csv", lines[600:])):
        (folder / name).write_text("\n".join(["x,colour,patient_id,label", *part]) + "\n")
    unlabelled = [line.rpartition(",")[0] for line in lines[600:]]
    (folder / "new.csv").write_text("\n".join(["x,colour,patient_id", *unlabelled]) + "\n")
    (folder / "specs").mkdir()
    (folder / "specs" / "setup-1-small.toml").write_text(SPEC)


def run(command: str, folder: Path, programs: Path, *, code: int = 0) -> str:
    """Run one command and check how it ends; what it printed."""
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")}
    environment |= {"PATH": f"{programs}{os.pathsep}{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}
    started = time.monotonic()
    done = subprocess.run(shlex.split(command), cwd=folder, env=environment, capture_output=True, text=True)
    sys.stdout.write(f"{time.monotonic() - started:6.1f} s  {command}\n")
    sys.stdout.flush()
    if done.returncode != code:
        raise SystemExit(f"exit {done.returncode} in place of {code}\n{done.stdout}{done.stderr}")
    return done.stdout + done.stderr


def main(readme: Path, programs: Path) -> None:
    """Every block in a folder of its own."""
    where = run(f"{programs / 'python'} -c 'import hush; print(hush.__file__)'", Path("/"), programs)
    if str(programs.parent) not in where:
        raise SystemExit(f"hush comes from {where.strip()} and not from the installed wheel")
    with tempfile.TemporaryDirectory() as scratch:
        for number, block in enumerate(list_commands(readme.read_text(encoding="utf-8"))):
            folder = Path(scratch) / str(number)
            folder.mkdir()
            write_files(folder)
            for command in block:
                run(command, folder, programs)
                if (folder / "run" / "release").is_dir() and not (folder / "release").exists():
                    shutil.copytree(folder / "run" / "release", folder / "release")
        check_results(folder, programs)


def check_results(folder: Path, programs: Path) -> None:
    """The last block trains, predicts and exports a table; a format that needs an extra names it."""
    for name in ("run/release/privacy.json", "predictions.csv", "model.pt2"):
        if not (folder / name).is_file():
            raise SystemExit(f"no '{name}' was written")
    if len((folder / "predictions.csv").read_text().splitlines()) != 301:
        raise SystemExit("predictions.csv does not have a line for each of the 300 rows")
    said = json.loads(run("hush verify release --json", folder, programs))
    if not said["verified"]:
        raise SystemExit("the release does not verify")
    if "hush-dp[onnx]" not in run("hush export release --format onnx --out model.onnx", folder, programs, code=2):
        raise SystemExit("the missing extra is not named")


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve(), Path(sys.argv[2]).absolute())
