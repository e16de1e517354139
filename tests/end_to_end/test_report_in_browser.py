"""The report in a browser: opens offline, filters, answers, downloads, and is accessible."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hush.cli import main
from hush.report.page import render_report
from hush.report.rows import read_results
from hush.report.store_page import make_store_page
from synthetic_stores import make_many, make_record, write_plainly

THEMES, WIDTHS = ("light", "dark"), (390, 768, 1440)
HOSTILE = "</script><script>document.title='taken'</script><img src=x onerror=\"document.title='taken'\">"
Runs = list[tuple[dict[str, Any], list[dict[str, Any]]]]


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    more: Runs = [make_record(9000, problem=HOSTILE, method="<b>bold</b>"), make_record(9001, format=9)]
    return write_plainly(tmp_path_factory.mktemp("browser") / "store", iter([*make_many(300), *more]))


@pytest.fixture(scope="session")
def address(store: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(render_report(make_store_page(read_results(store))), encoding="utf-8")
    return path.as_uri()


@pytest.fixture
def page(browser: Any, address: str) -> Iterator[Any]:
    context = browser.new_context(viewport={"width": 1440, "height": 900}, accept_downloads=True)
    opened = context.new_page()
    opened.goto(address)
    yield opened
    context.close()


def show_all(page: Any) -> None:
    """Scroll through the page, so that every figure is drawn; what is out of sight is laid out too."""
    page.add_style_tag(content="main > section { content-visibility: visible !important }")
    top = 0
    while top < page.evaluate("document.documentElement.scrollHeight"):
        page.evaluate(f"scrollTo(0, {top})")
        page.wait_for_timeout(20)
        top += 600
    page.evaluate("scrollTo(0, 0)")
    page.wait_for_timeout(50)


def press(page: Any, kind: str, value: str) -> None:
    page.click(f'#filters button[data-kind="{kind}"][data-value="{value}"]')


def count_rows(page: Any) -> int:
    found: int = page.locator("#overview tbody tr:visible").count()
    return found


def test_it_opens_alone_and_without_a_complaint(browser: Any, address: str) -> None:
    context = browser.new_context()
    opened = context.new_page()
    asked: list[str] = []
    said: list[str] = []
    opened.on("request", lambda request: asked.append(request.url))
    opened.on("console", lambda message: said.append(message.text))
    opened.on("pageerror", lambda error: said.append(str(error)))
    opened.goto(address)
    show_all(opened)
    assert [url for url in asked if not url.startswith(("file:", "blob:"))] == []
    assert asked == [address]
    assert said == []
    context.close()


def test_names_with_html_are_shown_as_text(page: Any) -> None:
    show_all(page)
    assert page.title() == "Runs of store"
    assert HOSTILE in page.inner_text("#overview")
    assert page.locator("main img, main b").count() == 0


def test_filters_change_what_is_shown_and_live_in_the_address(page: Any, address: str, browser: Any) -> None:
    everything = count_rows(page)
    press(page, "problem", "digits-mlp")
    some = count_rows(page)
    press(page, "method", "dp-sgd")
    few = count_rows(page)
    assert everything > some > few > 0
    assert set(page.locator("#overview tbody tr:visible td:nth-child(2)").all_inner_texts()) == {"dp-sgd"}
    captions = page.locator("#heat-batch figcaption").all_inner_texts()
    assert captions
    assert all("dp-sgd on digits-mlp" in caption for caption in captions)
    linked = page.url
    assert "problem=digits-mlp" in linked
    assert "method=dp-sgd" in linked
    page.go_back()
    assert count_rows(page) == some
    page.go_back()
    assert count_rows(page) == everything
    page.go_forward()
    assert count_rows(page) == some
    other = browser.new_page()
    other.goto(linked)
    assert count_rows(other) == few
    assert other.get_attribute('#filters button[data-value="dp-sgd"]', "aria-pressed") == "true"
    other.close()


def test_a_filter_on_methods_hides_the_other_lines(page: Any) -> None:
    press(page, "method", "dp-sgd")
    show_all(page)
    shown = page.locator("#utility svg g[data-method]:visible")
    assert shown.count() > 0
    assert {shown.nth(i).get_attribute("data-method") for i in range(shown.count())} == {"dp-sgd"}


def test_a_cell_of_a_heatmap_names_its_run(page: Any, store: Path) -> None:
    page.locator("#heat-batch").scroll_into_view_if_needed()
    cell = page.locator("#heat-batch svg .pt").first
    cell.hover()
    said = page.inner_text("#tip")
    keys = [path.name for path in (store / "runs").iterdir() if path.name in said]
    assert keys
    assert "learning rate" in said


def test_the_arrow_keys_read_the_points(page: Any) -> None:
    page.locator("#heat-batch").scroll_into_view_if_needed()
    page.locator("#heat-batch svg").first.focus()
    page.keyboard.press("ArrowRight")
    first = page.inner_text("#live")
    page.keyboard.press("ArrowRight")
    assert "learning rate" in first
    assert page.inner_text("#live") != first


def read_download(page: Any, action: Any) -> str:
    with page.expect_download() as waited:
        action()
    return Path(waited.value.path()).read_text(encoding="utf-8")


def test_the_csv_of_the_runs_is_the_store(page: Any, store: Path) -> None:
    text = read_download(page, lambda: page.click('button[data-csv="runs"]'))
    rows = {row["key"]: row for row in csv.DictReader(io.StringIO(text))}
    records = [json.loads(path.read_bytes()) for path in store.glob("runs/*/record.json")]
    assert len(rows) == len(records)
    for record in records:
        row = rows[record["key"]]
        assert row["problem"] == record["config"]["problem"]
        assert row["method"] == record["config"]["method"]
        for name in ("test_loss", "test_accuracy", "epsilon", "delta", "train_seconds", "noise_multiplier"):
            given = record.get(name)
            assert (float(row[name]) if row[name] else None) == given, (name, record["key"])


def test_a_figure_downloads_as_csv_svg_and_png(page: Any) -> None:
    figure = page.locator("#utility figure").first
    text = read_download(page, lambda: figure.get_by_role("button", name="CSV").click())
    rows = list(csv.DictReader(io.StringIO(text)))
    assert rows
    assert {"problem", "method", "epsilon", "status"} <= rows[0].keys()
    svg = read_download(page, lambda: figure.get_by_role("button", name="SVG").click())
    assert svg.startswith("<svg xmlns")
    assert "var(--" not in svg
    with page.expect_download() as waited:
        figure.get_by_role("button", name="PNG").click()
    assert Path(waited.value.path()).read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


@pytest.fixture(scope="session")
def addresses(address: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """One page of each kind."""
    folder = tmp_path_factory.mktemp("pages")
    size = ("--examples", "2000", "--epsilon", "3")
    assert main(["plan", "--examples", "60000", "--out", str(folder / "plan.html")]) == 0
    assert main(["noise", "show", "--method", "dp-blt", *size, "--out", str(folder / "noise.html")]) == 0
    assert main(["audit", "--method", "dp-sgd", "--runs", "40", "--page", str(folder / "audit.html")]) == 0
    return {"report": address} | {path.stem: path.as_uri() for path in folder.iterdir()}


@pytest.mark.parametrize("kind", ["plan", "noise", "audit"])
@pytest.mark.parametrize("width", [390, 1440])
def test_pages_of_commands_open_alone_and_their_points_can_be_read(
    browser: Any, addresses: dict[str, str], kind: str, width: int
) -> None:
    opened = browser.new_page(viewport={"width": width, "height": 900})
    said: list[str] = []
    asked: list[str] = []
    opened.on("request", lambda request: asked.append(request.url))
    opened.on("console", lambda message: said.append(message.text))
    opened.on("pageerror", lambda error: said.append(str(error)))
    opened.goto(addresses[kind])
    show_all(opened)
    assert asked == [addresses[kind]]
    assert said == []
    for number in range(opened.locator(".picture svg").count()):
        opened.locator(".picture svg").nth(number).focus()
        opened.keyboard.press("ArrowRight")
        assert opened.inner_text("#live")
    opened.close()


@pytest.mark.parametrize("kind", ["report", "plan", "noise", "audit"])
@pytest.mark.parametrize("width", WIDTHS)
def test_nothing_overflows(browser: Any, addresses: dict[str, str], kind: str, width: int) -> None:
    opened = browser.new_page(viewport={"width": width, "height": 900})
    opened.goto(addresses[kind])
    show_all(opened)
    assert opened.evaluate("document.documentElement.scrollWidth") <= width
    wide = """() => [...document.querySelectorAll('main *, header *, form *')].filter((element) =>
      !element.closest('.scroll') && !element.closest('svg') && !element.matches('.unseen') &&
      element.getBoundingClientRect().right > innerWidth + 1).map((element) => element.outerHTML.slice(0, 120))"""
    assert opened.evaluate(wide) == []
    opened.close()


@pytest.mark.parametrize("kind", ["report", "plan", "noise", "audit"])
def test_text_in_figures_stays_inside_them(browser: Any, addresses: dict[str, str], kind: str) -> None:
    page = browser.new_page(viewport={"width": 1440, "height": 900})
    page.goto(addresses[kind])
    show_all(page)
    outside = """() => [...document.querySelectorAll('.picture svg')].flatMap((svg) => {
      const box = svg.getBoundingClientRect();
      return [...svg.querySelectorAll('text')].filter((text) => {
        const own = text.getBoundingClientRect();
        return own.width && (own.left < box.left - 1 || own.right > box.right + 1 || own.top < box.top - 1 ||
          own.bottom > box.bottom + 1);
      }).map((text) => `${text.textContent} in ${svg.getAttribute('aria-label')}`);
    })"""
    assert page.locator(".picture svg").count() > 2
    assert page.evaluate(outside) == []
    over = """() => [...document.querySelectorAll('.picture svg')].flatMap((svg) => {
      const all = [...svg.querySelectorAll('text:not([transform])')];
      const texts = all.map((text) => [text, text.getBoundingClientRect()]);
      return texts.flatMap(([one, a], i) => texts.slice(i + 1).filter(([_, b]) => a.width && b.width &&
        a.left < b.right - 1 && b.left < a.right - 1 && a.top < b.bottom - 2 && b.top < a.bottom - 2).map(([other]) =>
        `${one.textContent} over ${other.textContent} in ${svg.getAttribute('aria-label')}`));
    })"""
    assert page.evaluate(over) == []
    page.close()


def test_every_axis_has_a_title(page: Any) -> None:
    show_all(page)
    metrics = page.locator(".picture svg")
    assert metrics.count() > 20
    for number in range(metrics.count()):
        for name in ("x-title", "y-title"):
            assert metrics.nth(number).locator(f".{name}").text_content().strip()


@pytest.mark.parametrize("kind", ["report", "plan", "noise", "audit"])
@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("width", [390, 1440])
def test_axe_finds_nothing(browser: Any, addresses: dict[str, str], kind: str, theme: str, width: int) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe is not installed: make test-browser")
    context = browser.new_context(
        color_scheme=theme, viewport={"width": width, "height": 900}, bypass_csp=True, reduced_motion="reduce"
    )
    opened = context.new_page()
    opened.goto(addresses[kind])
    show_all(opened)
    opened.locator("main figure summary").first.click()
    found = axe.Axe().run(opened)
    told = [(v["id"], [node["html"][:160] for node in v["nodes"]][:3]) for v in found.response["violations"]]
    assert told == []
    context.close()


def test_the_theme_can_be_chosen(page: Any) -> None:
    def ground() -> str:
        colour: str = page.evaluate("getComputedStyle(document.body).backgroundColor")
        return colour

    before = ground()
    page.click("#theme")
    assert ground() != before
    page.click("#theme")
    assert ground() == before


def test_printing_shows_the_figures_and_no_buttons(page: Any) -> None:
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    page.emulate_media(media="print")
    assert page.locator("#filters").is_hidden()
    assert page.locator("#utility svg").first.is_visible()
    empty = "[...document.querySelectorAll('.picture')].filter((place) => !place.firstElementChild).length"
    assert page.evaluate(empty) == 0
