"""Solver results go to a directory of the test session, never to the user's cache."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session", autouse=True)
def solver_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HUSH_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield
