"""Programs of several processes: a process that dies stops the run, which goes on, and no thread outlives one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

ENDS = """
import atexit, weakref
import torch.distributed as dist
from hush.distributed.group import init_distributed as join_ranks

def tell():
    print(dist.is_initialized(), group() is None)

atexit.register(tell)  # what was registered first is called last
join_ranks()
group = weakref.ref(dist.group.WORLD)
import torch.distributed.nn  # functions whose default argument is the group that there is
"""


def test_no_thread_of_a_group_outlives_the_program() -> None:
    """It would abort a process whose run is finished."""
    alone = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    ended = subprocess.run([sys.executable, "-c", ENDS], env={**os.environ, **alone}, capture_output=True, text=True)
    assert ended.stdout.split() == ["False", "True"], ended.stderr


def launch(out: Path, *more: str, world: int = 2) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(world)]
    command += ["-m", "hush", "train", "--problem", "digits-logistic", "--json", "--out", str(out), *more]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})


def find_process(launcher: int, rank: int) -> int:
    """The process of a rank among the children of its launcher."""
    children = Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split()
    for child in children:
        told = Path(f"/proc/{child}/environ").read_bytes().split(b"\0")
        if f"RANK={rank}".encode() in told:
            return int(child)
    raise AssertionError("no such process")


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="finds the process to kill through /proc")
def test_a_killed_process_stops_the_run_which_goes_on_to_the_same_result(tmp_path: Path) -> None:
    """With noise in slices, of which the killed process has its own."""
    given = ["--secret-seed", "7", "--steps", "300", "--checkpoint-every", "20", "--noise-multiplier", "4"]
    given += ["--method", "dp-bandmf", "--set", "bands=4", "--noise-shards"]
    whole = launch(tmp_path / "whole", *given)
    told, _ = whole.communicate()
    assert whole.returncode == 0
    broken = launch(tmp_path / "broken", *given)
    private = tmp_path / "broken" / "private"
    while broken.poll() is None and not list(private.glob("checkpoint-00000000[2-9]0*")):
        time.sleep(0.01)
    os.kill(find_process(broken.pid, 1), signal.SIGKILL)
    _, said = broken.communicate()
    assert broken.returncode != 0
    assert "process 0 of" in said
    assert "resume with: hush train" in said
    again = launch(tmp_path / "broken", "--resume", "--secret-seed", "7", "--noise-shards")
    answer, said = again.communicate()
    assert again.returncode == 0, said
    first, second = json.loads(told), json.loads(answer)
    assert 20 <= second["resumed_from"] < 300
    assert second["taken_again"] == []
    assert second["epsilon"] == first["epsilon"]
    kept = [load_file(tmp_path / name / "release" / "model.safetensors") for name in ("whole", "broken")]
    assert all(torch.equal(kept[0][name], kept[1][name]) for name in kept[0])
