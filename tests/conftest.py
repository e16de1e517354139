"""What all tests share: one thread (or HUSH_TEST_THREADS), no deadlines, a short check at the start of a run (a test
marked ``full_start_check`` has the whole one), and where real data lies."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from hypothesis import settings

from hush.per_example import chunks

torch.set_num_threads(int(os.environ.get("HUSH_TEST_THREADS", "1")))
settings.register_profile("untimed", deadline=None)  # no test passes or fails by the clock
settings.load_profile("untimed")


ROOT = Path(__file__).parent
MARKED = {  # the folders and files of tests with a marker
    "slow": ("audit", "bench", "cli", "handover", "officer", "problems", "sanitize", "test_attacks", "test_before",
             "test_beside", "test_building_blocks", "test_checkpoint", "test_crash", "test_docs", "test_example",
             "test_exchange", "test_loading", "test_one_example_more", "test_patients", "test_private_figures",
             "test_rank", "test_release", "test_reproduction", "test_run", "test_same_noise", "test_tuning"),
    "repo": ("repository", "test_docs", "test_figures", "test_reproduction", "test_scale_page", "test_speed_page",
             "test_tables_page"),
    "browser": ("browser",),
    "ray": ("bench/test_ray_cluster",),
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
        monkeypatch.setattr(chunks, "list_shifts", lambda rows: range(1, min(rows, 2)))
        monkeypatch.setattr(chunks, "list_contents", lambda rows: ())


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The real datasets: HUSH_DATA, else ../shared/data beside the project; skipped where there is neither."""
    beside = Path(__file__).resolve().parents[2] / "shared" / "data"
    found = Path(os.environ["HUSH_DATA"]) if "HUSH_DATA" in os.environ else beside
    if not found.is_dir():
        pytest.skip("no real data: set HUSH_DATA to a folder with mnist, fashion-mnist, cifar-10 and adult")
    return found
