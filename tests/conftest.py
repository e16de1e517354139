"""What all tests share: one thread (or HUSH_TEST_THREADS), no deadlines, and where real data lies."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from hypothesis import settings

torch.set_num_threads(int(os.environ.get("HUSH_TEST_THREADS", "1")))
settings.register_profile("untimed", deadline=None)  # no test passes or fails by the clock
settings.load_profile("untimed")


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The real datasets: HUSH_DATA, else ../shared/data beside the project; skipped where there is neither."""
    beside = Path(__file__).resolve().parents[2] / "shared" / "data"
    found = Path(os.environ["HUSH_DATA"]) if "HUSH_DATA" in os.environ else beside
    if not found.is_dir():
        pytest.skip("no real data: set HUSH_DATA to a folder with mnist, fashion-mnist, cifar-10 and adult")
    return found
