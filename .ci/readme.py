"""Run everything in README.md with an installed hush, away from the checkout: `readme.py README.md BIN`.

BIN is the folder of the environment's programs. All blocks run in one folder: the Python blocks as one script, which
writes the tables, then the commands, in their order. `make` is for the checkout and is left out; a small spec takes the
place of the one that a checkout has.
"""

from __future__ import annotations

import json
import os
import re
import shlex
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


def join_scripts(text: str) -> str:
    """The blocks of Python as one script."""
    return "\n".join(re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL))


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
    """Everything in one folder."""
    where = run(f"{programs / 'python'} -c 'import hush; print(hush.__file__)'", Path("/"), programs)
    if str(programs.parent) not in where:
        raise SystemExit(f"hush comes from {where.strip()} and not from the installed wheel")
    text = readme.read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        (folder / "specs").mkdir()
        (folder / "specs" / "setup-1-small.toml").write_text(SPEC)
        (folder / "readme_script.py").write_text(join_scripts(text), encoding="utf-8")
        said = run(f"{programs / 'python'} readme_script.py", folder, programs)
        if "(ε = 3, δ = 1e-5)-differentially private per example" not in said:
            raise SystemExit(f"the Python of the README does not print its guarantee\n{said}")
        for command in (command for block in list_commands(text) for command in block):
            run(command, folder, programs)
        check_results(folder, programs)


def check_results(folder: Path, programs: Path) -> None:
    """A network and a table were released, and predicted and exported; a format that needs an extra names it."""
    for name in ("run/release/privacy.json", "my-run/release/privacy.json", "predictions.csv", "model.pt2"):
        if not (folder / name).is_file():
            raise SystemExit(f"no '{name}' was written")
    if len((folder / "predictions.csv").read_text().splitlines()) != 301:
        raise SystemExit("predictions.csv does not have a line for each of the 300 rows")
    for release in ("run/release", "my-run/release"):
        if not json.loads(run(f"hush verify {release} --json", folder, programs))["verified"]:
            raise SystemExit(f"'{release}' does not verify")
    if "hush-dp[onnx]" not in run(
        "hush export my-run/release --format onnx --out model.onnx", folder, programs, code=2
    ):
        raise SystemExit("the missing extra is not named")


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve(), Path(sys.argv[2]).absolute())
