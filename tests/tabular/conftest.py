"""A cache of its own for every test, so that none reads or fills the user's."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    cache = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("HUSH_CACHE", str(cache))
    monkeypatch.delenv("HUSH_DATA", raising=False)
    return cache
