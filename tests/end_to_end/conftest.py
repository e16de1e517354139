"""A browser for the tests of pages: Playwright drives the system's Chromium. Without either they are skipped."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from typing import Any

import pytest

HOW = "install the system's chromium (apt-get install chromium), then run `make test-browser`"


def find_chromium() -> str | None:
    """Its path: what CHROMIUM names, or what is installed."""
    names = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
    found = [path for name in names if (path := shutil.which(name))]
    return os.environ.get("CHROMIUM") or next(iter(found), None)


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    driver = pytest.importorskip("playwright.sync_api", reason=f"Playwright is not installed: {HOW}")
    path = find_chromium()
    if path is None:
        pytest.skip(f"there is no Chromium: {HOW}")
    with driver.sync_playwright() as started:
        try:
            opened = started.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        except driver.Error as error:
            pytest.skip(f"'{path}' does not start ({str(error).splitlines()[0]}): {HOW}")
        yield opened
        opened.close()
