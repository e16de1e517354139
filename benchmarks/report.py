"""What a report of thousands of runs costs: seconds to make it, its size, and how fast it answers in a browser.

    python benchmarks/report.py [RUNS]

Seconds of making are of CPU time; an answer is wall time from a click to the next painted frame, the longest of several
clicks, where Playwright and a Chromium are there (`make test-browser` installs the first).
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "helpers"))

from hush.report.page import render_report
from hush.report.rows import read_results
from hush.report.store_page import make_store_page
from synthetic_stores import make_many, write_plainly

RUNS = 2476
CLICK = """(selector) => new Promise((done) => {
  const start = performance.now();
  document.querySelector(selector).click();
  requestAnimationFrame(() => setTimeout(() => done(performance.now() - start), 0));
})"""
CLICKS = (
    '#filters [data-value="dp-sgd"]',
    '#filters [data-value="digits-mlp"]',
    '#filters [data-value="3"]',
    "#everything",
    "#heat-batch .more button",
    "#runs .more button",
    "#theme",
)


def main() -> None:
    """Make a store of made-up runs and report it."""
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else RUNS
    with tempfile.TemporaryDirectory() as folder:
        root = write_plainly(Path(folder) / "store", make_many(runs))
        started = time.process_time()
        text = render_report(make_store_page(read_results(root)))
        seconds = time.process_time() - started
        path = Path(folder) / "report.html"
        path.write_text(text, encoding="utf-8")
        print(f"{runs} runs: made in {seconds:.1f} s of CPU time, {len(text.encode()) / 1e6:.1f} MB")
        time_answers(path)


def time_answers(path: Path) -> None:
    """How long the page takes to answer clicks."""
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        chromium = None
    if chromium is None:
        print("answers are not timed: that needs Playwright and Chromium")
        return
    with sync_playwright() as started:
        browser = started.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1440, "height": 900})
        page.goto(path.as_uri())
        for selector in CLICKS:
            print(f"{page.evaluate(CLICK, selector):6.0f} ms  {selector}")
        browser.close()


if __name__ == "__main__":
    main()
