"""What all tests share: one thread (or HUSH_TEST_THREADS), no deadlines, a short check at the start of a run (a test
marked ``full_start_check`` has the whole one), and where real data lies."""

from __future__ import annotations

import _thread
import os
import threading
from pathlib import Path

import pytest
import torch
from hypothesis import settings

from hush.bench.spec import Spec, read_spec
from hush.per_example import chunks

torch.set_num_threads(int(os.environ.get("HUSH_TEST_THREADS", "1")))
settings.register_profile("untimed", deadline=None)  # no test passes or fails by the clock
settings.load_profile("untimed")

for rows in (1, 2, 3, *chunks.SIZES):  # kept in their cache: a short check must not change the number of rows chosen
    for moving in (True, False):
        chunks._count_passes(rows, moving)

ROOT = Path(__file__).parent
MARKED = {  # the folders and files of tests with a marker
    "slow": (
        "audit/", "bench/", "checkpointing/", "cli/", "distributed/test_group.py", "end_to_end/",
        "methods/test_sanitized.py", "release/", "sanitize/", "statistics/test_private_metrics.py",
        "tabular/test_defaults.py", "tabular/test_problem.py", "test_data_release.py", "test_data_source_loaders.py",
        "test_noise_addition.py", "test_run.py", "test_tuning.py",
    ),
    "repo": (
        "repository/",
    ),
    "browser": (
        "end_to_end/test_report_in_browser.py",
    ),
}  # fmt: skip


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Add the markers of `MARKED`."""
    for item in items:
        place = item.path.relative_to(ROOT).as_posix()
        for marker, starts in MARKED.items():
            if place.startswith(starts):
                item.add_marker(marker)


@pytest.fixture(autouse=True)
def short_start_check(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs in a test's own process begin with a few passes of `check_batch_invariance` in the place of about sixty."""
    if request.node.get_closest_marker("full_start_check") is None:
        every = chunks.separate_rows
        monkeypatch.setattr(chunks, "KINDS", ("random",))
        monkeypatch.setattr(chunks, "separate_rows", lambda rows: every(rows)[:2])
        monkeypatch.setattr(chunks, "list_shifts", lambda rows, _: range(1, min(rows, 2)))
        monkeypatch.setattr(chunks, "list_contents", lambda rows, _: ())


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The real datasets: HUSH_DATA, else ../shared/data beside the project; skipped where there is neither."""
    composed = Path(__file__).resolve().parents[2] / "shared" / "data"
    found = Path(os.environ["HUSH_DATA"]) if "HUSH_DATA" in os.environ else composed
    if not found.is_dir():
        pytest.skip("no real data: set HUSH_DATA to a folder with mnist, fashion-mnist, cifar-10 and adult")
    return found


SMALL = """
name = "small"
secret_seed = 7
[defaults]
problem = "breast-cancer-logistic"
batch_size = 64
epochs = 1
noise_multiplier = 1.0
[[grid]]
method = ["dp-sgd", "dp-adam"]
lr = [0.1, 0.5]
"""


@pytest.fixture
def write_spec(tmp_path: Path):
    """A function from text to the path of a spec."""

    def write(text: str, name: str = "spec.toml") -> Path:
        path = tmp_path / name
        path.write_text(text)
        return path

    return write


@pytest.fixture
def small(write_spec) -> Spec:
    return read_spec(write_spec(SMALL))


@pytest.fixture(params=["refused", "ends at once"])
def no_thread(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no memory for a new thread: it cannot be started, or ends before its first line."""

    def start(*given: object) -> int:
        if request.param == "refused":
            raise RuntimeError("can't start new thread")
        return 0

    for module, name in ((_thread, "start_new_thread"), (threading, "_start_new_thread")):
        monkeypatch.setattr(module, name, start)
    wait, here = threading.Event.wait, threading.current_thread()

    def refuse(event: threading.Event, timeout: float | None = None) -> bool:
        if threading.current_thread() is here:
            pytest.fail("it would wait forever")
        return wait(event, timeout)  # a thread that another test left behind

    monkeypatch.setattr(threading.Event, "wait", refuse)
