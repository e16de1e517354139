"""The privacy page: every section, the numbers of hush.accounting.tradeoff, warnings where nothing is proven, and
escaped names."""

from __future__ import annotations

import copy
import html
import json
import re
import runpy
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hush.accounting import guarantee
from hush.accounting.guarantee import Guarantee
from hush.accounting.tradeoff import best_odds, curve_of_event, curve_of_guarantee, curve_of_points, describe_curve
from hush.errors import InvalidInputError
from hush.guarantees import make_card
from hush.methods import make_plan
from hush.release.statement import (
    EXPLAINED,
    escape_markdown,
    one_in,
    page_of_card,
    read_facts,
    render_privacy_page,
    render_privacy_text,
    text_of_card,
)

COUNT = "the number of rows is public"
SMALL = {"examples": 600, "batch_size": 60, "epochs": 2, "counted": True, "assumptions": (COUNT,)}
DIGESTS = {"model.safetensors": "9d75c1" + 58 * "0", "privacy.json": "d08872" + 58 * "1"}
GIVEN: dict[str, Any] = {"dataset": "patients 2025", "date": "2026-11-16", "digests": DIGESTS}
HEADINGS = [
    "In short",
    "Who is protected, and against what?",
    "How sure is it? What it means for one example",
    "What is not covered?",
    "On which conditions does it rest?",
    "How was it done?",
    "Which files does it speak of?",
    "To check and to sign",
]


def card_of(method: str = "dp-sgd", **options: Any) -> dict[str, Any]:
    """A card as it is read from a file."""
    given = {"epsilon": 3.0} if method != "sgd" else {}
    plan = make_plan(method, **{**SMALL, **given, **options}).with_arithmetic()
    read: dict[str, Any] = json.loads(json.dumps(make_card(plan, steps_taken=plan.steps)))
    return read


def restate(card: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """The card with another guarantee."""
    found = copy.deepcopy(card)
    found["guarantee"] |= changes
    found["claims"][0] = found["guarantee"]
    return found


class Shown(HTMLParser):
    """What a reader of the page sees, and the tags and attributes that it is made of."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.titles: list[str] = []
        self.parts: list[str] = []
        self._inside = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}
        self._inside = tag
        if tag == "h2":
            self.titles.append("")

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside == "style":
            return
        self.parts.append(data)
        if self._inside == "h2":
            self.titles[-1] += data

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.parts).split())


@pytest.fixture(scope="module")
def card() -> dict[str, Any]:
    return card_of()


@pytest.fixture(scope="module")
def page(card: dict[str, Any]) -> str:
    return render_privacy_page(card, **GIVEN)


@pytest.fixture(scope="module")
def text(card: dict[str, Any]) -> str:
    return render_privacy_text(card, **GIVEN)


def test_every_section_is_there(page: str, text: str) -> None:
    numbered = [f"{number}. {title}" for number, title in enumerate(HEADINGS, 1)]
    assert Shown(page).titles == numbered
    assert re.findall(r"^## (.*)$", text, re.MULTILINE) == numbered


def test_both_say_the_facts(page: str, text: str) -> None:
    shown = Shown(page).text
    for said in ("patients 2025", "2026-11-16", "dp-sgd", "one example (one row)", *DIGESTS, *DIGESTS.values()):
        assert said in shown
        assert said in text
    for where in (shown, text.replace("**", "")):
        assert "Rows that were held back to test the model are not covered." in where
        assert "The folder “private”. It holds the figures of the training" in where
        assert "This statement counts this one training only" in where
        assert "whether one given example was used or counted for nothing" in where
        assert where.count(COUNT) == 1
        assert "status" in where
        assert "proven, on conditions" in where
        assert "whatever section 5 calls public, is not hidden" in where
        assert "predict the random numbers of the training" in where
        assert "It covers these, privacy.json and this page" in where
        assert "My signature confirms" in where
    for name in ("name and office", "place", "date", "signature"):
        assert f"<div>{name}</div>" in page
    assert "| name and office | place | date | signature |" in text


def test_a_card_may_name_the_facts_itself(card: dict[str, Any], page: str, text: str) -> None:
    assert page_of_card({**card, **GIVEN}) == page
    assert text_of_card({**card, **GIVEN}) == text
    unnamed = text_of_card(card)
    assert "| dataset | not named |" in unnamed
    assert "| date of this statement | not stated |" in unnamed
    assert "The released files were not named when this page was made." in unnamed


def test_the_numbers_are_those_of_the_odds(card: dict[str, Any], page: str, text: str) -> None:
    plan = make_plan("dp-sgd", **SMALL, epsilon=3.0).with_arithmetic()
    words = describe_curve(curve_of_guarantee(plan.guarantee()), adjacency="zero-out", unit="example")
    shown = Shown(page).text
    person = describe_curve(curve_of_guarantee(plan.guarantee()), adjacency="zero-out", unit="person")
    for sentence in (words.sentences[0], words.sentences[-1], person.sentences[0]):
        assert sentence in shown
        assert sentence in text
    for row in words.rows:
        assert f"| {' | '.join(row)} |" in text
        assert "".join(f"<td>{cell}</td>" for cell in row) in page


@pytest.mark.parametrize("adjacency", ["zero-out", "add-remove", "replace"])
def test_the_worst_case_is_rare_and_not_ruled_out(card: dict[str, Any], adjacency: Any) -> None:
    """Two beliefs of the odds, never rounded down; the first is that of the table."""
    other = restate(card, adjacency=adjacency)
    curve, text = read_facts(other).curve, render_privacy_text(other, **GIVEN)
    assert curve is not None
    (told,) = re.findall(r"^- \*\*The worst case\.\*\* (.*)$", text, re.MULTILINE)
    assert "That is made rare, not ruled out" in told
    beliefs = [float(found) for found in re.findall(r"more than ([\d.]+) % likely", told)]
    true = [100 * best_odds(curve, 0.5, exception=rare).belief for rare in (0.01, 0.0001)]
    assert all(0 <= shown - exact <= 0.1 for shown, exact in zip(beliefs, true, strict=True))
    assert told.endswith(("at most 1 in 10\u00a0000.", "at most 1 in 10 000."))
    assert describe_curve(curve, adjacency=adjacency, unit="example").rows[-1][-1] == f"{beliefs[0]:g} %"


def test_a_delta_that_allows_certainty_is_told() -> None:
    text = render_privacy_text(card_of(delta=1 / 700), **GIVEN)
    assert "and they become as good as certain with a chance that may be more than 1 in 10" in text


def test_the_curve_is_the_event_s_and_never_above_it(card: dict[str, Any]) -> None:
    plan = make_plan("dp-sgd", **SMALL, epsilon=3.0)
    exact = curve_of_event(plan.event(), adjacency="zero-out")
    found = read_facts(card).curve
    assert found is not None
    rates = np.linspace(0.0, 1.0, 21)
    assert np.all(found.beta(rates) <= exact.beta(rates))
    assert np.allclose(found.beta(rates), exact.beta(rates), atol=1e-3)


def test_a_card_without_event_falls_back_to_its_two_numbers(card: dict[str, Any]) -> None:
    old = copy.deepcopy(card)
    del old["guarantee"]["event_json"]
    shown = Shown(render_privacy_page(old, **GIVEN)).text
    stated = curve_of_points([(card["guarantee"]["epsilon"], 1e-5)])
    assert describe_curve(stated, adjacency="zero-out", unit="example").sentences[0] in shown
    assert "computed from the two numbers below alone and rounded up. The true ones may be far lower." in shown


def test_an_event_that_cannot_be_written_down_leaves_points_of_its_curve() -> None:
    plan = make_plan("dp-dice", **SMALL, epsilon=3.0)
    card = json.loads(json.dumps(make_card(plan, steps_taken=plan.steps)))
    assert card["guarantee"]["event_json"] is None
    true = curve_of_guarantee(plan.guarantee())
    found, alone = read_facts(card).curve, curve_of_points([(plan.guarantee().epsilon, plan.delta)])
    assert found is not None
    rates = np.linspace(0.0, 1.0, 21)
    assert np.all(found.beta(rates) <= true.beta(rates) + 1e-12)
    assert best_odds(found, 0.5).right == pytest.approx(best_odds(true, 0.5).right, abs=2e-3)
    assert best_odds(alone, 0.5).right > best_odds(found, 0.5).right + 0.1


def test_every_claim_is_listed_with_its_status() -> None:
    text = render_privacy_text(card_of("dp-dice"), **GIVEN)
    assert "## 7. What is said about this method" in text
    rows = [line for line in text.splitlines() if "error memory" in line and line.startswith("|")]
    assert [row.split(" | ")[1] for row in rows] == ["proven, on conditions", "refuted: does not hold"]


@pytest.mark.parametrize(
    ("status", "warning"),
    [
        ("claimed", "Warning: not a guarantee"),
        ("refuted", "Warning: the claim is refuted"),
        ("none", "Warning: no protection"),
    ],
)
def test_what_is_not_proven_is_a_warning_and_gives_no_odds(card: dict[str, Any], status: str, warning: str) -> None:
    other = restate(card, status=status, reason="a reason")
    page, text = render_privacy_page(other, **GIVEN), render_privacy_text(other, **GIVEN)
    assert '<div class="box warning"' in page
    assert 'class="box good"' not in page
    assert "<svg" not in page
    for shown in (Shown(page).text, text.replace("**", "")):
        assert warning in shown
        assert "no protection" in shown
        assert "Nothing is covered" in shown
        assert "right when accusing" not in shown
        assert "at best be right" not in shown
        assert "Proven" not in shown
        assert "each row is protected" not in shown


def test_ordinary_training_is_a_warning() -> None:
    page = render_privacy_page(card_of("sgd"), **GIVEN)
    shown = Shown(page).text
    assert "Warning: no protection" in shown
    assert "No random noise was added." in shown
    assert "noise multiplier" not in shown
    assert "no protection ordinary training: no clipping and no noise" in shown


def test_a_proven_limit_that_rules_out_little_is_a_warning(page: str) -> None:
    wide = render_privacy_page(card_of(epsilon=30.0), **GIVEN)
    assert "Warning: a wide limit" in wide
    assert 'class="box good"' not in wide
    assert "more than 100 %" not in wide
    assert "Warning" not in page
    assert 'class="box good"' in page


def test_a_delta_that_leaves_one_of_the_rows_out_is_a_warning() -> None:
    page = render_privacy_page(card_of(delta=1 / 500), **GIVEN)
    assert "Warning: the limit leaves too much out" in page
    assert "1 in 500" in page


def test_numbers_are_rounded_up(card: dict[str, Any]) -> None:
    other = restate(card, epsilon=2.9911, delta=1.04e-5)
    shown = Shown(render_privacy_page(other, **GIVEN)).text
    assert "(epsilon, here 3)" in shown
    assert "at most 19.91 times as likely" in shown  # e^2.9911 = 19.907
    assert "here 1.04e-5, that is 1 in 96 153)" in shown  # 1/1.04e-5 = 96153.8
    assert (one_in(1e-5), one_in(3e-6), one_in(1.0)) == ("1 in 100\u00a0000", "1 in 333\u00a0333", "1 in 1")


@pytest.mark.parametrize(
    ("epsilon", "said"), [(10.0, "22\u00a0100 times"), (50.0, "so many times (a number of 22 digits)")]
)
def test_large_factors_can_be_read(card: dict[str, Any], epsilon: float, said: str) -> None:
    assert f"at most {said} as likely" in render_privacy_page(restate(card, epsilon=epsilon), **GIVEN)


def test_no_letter_before_it_is_explained(text: str) -> None:
    assert text.index("ε") == text.index("**ε** (epsilon, here 3)") + 2
    assert text.index("δ") == text.index("**δ** (delta, here 1e-5") + 2
    assert text.index("σ") > text.index("For an expert")


def test_assumptions_that_need_it_are_explained(text: str) -> None:
    texts = {said for said in guarantee.CONDITIONS if said not in (None, guarantee.KEPT)}
    texts -= {said for said in texts if said.startswith("the model and its loss")}
    texts |= {guarantee.KEPT.format(kind, "Mine") for kind in ("sampler", "query", "noise")}
    assert all(any(said.startswith(start) for start in EXPLAINED) for said in texts)
    assert f"2. {guarantee.INDEPENDENT_ROWS}. In other words: Computers round numbers" in text


@pytest.mark.parametrize(
    ("method", "options", "said"),
    [
        ("dp-sgd", {}, "a random selection was drawn, every example with a chance of 10 in 100"),
        ("dp-sgd", {"sampling": "fixed-size"}, "a random selection of 60 examples was drawn"),
        ("dp-ftrl", {}, "The noise of different steps is related"),
        ("dp-bandmf", {"epochs": 4}, "fixed groups had its turn"),
        ("dp-sgd", {"clip_quantile": 0.5}, "adjusted from step to step by counts with noise of their own"),
    ],
)
def test_the_method_in_words(method: str, options: dict[str, Any], said: str) -> None:
    text = render_privacy_text(card_of(method, **options), **GIVEN)
    assert said in text
    assert text.index(said) < text.index("noise multiplier σ")


def test_each_adjacency_asks_its_own_question() -> None:
    added = render_privacy_text(card_of(counted=False), **GIVEN)
    assert "whether one given example is in the training data or not" in added
    assert "if that example were not in the data" in added
    replaced = render_privacy_text(card_of(sampling="fixed-size"), **GIVEN)
    assert "which of two possible values one given example has" in replaced


def test_another_unit_has_its_own_words(card: dict[str, Any]) -> None:
    shown = Shown(render_privacy_page(restate(card, unit="patient"), **GIVEN)).text
    assert "All that one patient contributed counts together as one." in shown
    assert "How sure is it? What it means for one patient" in shown
    assert "one row" not in shown.split("Test rows")[0]


def test_a_ledger_s_total_is_told(card: dict[str, Any]) -> None:
    total = {"dataset": "patients", "epsilon": 5.5511, "delta": 1e-5, "status": "proven"}
    text = render_privacy_text({**card, "ledger": total}, **GIVEN)
    assert "together, ε is at most 5.56 at δ = 1e-5 (proven, if the conditions of each hold" in text
    assert "Section 3 counts this one only." in text
    for other in ({"status": "claimed"}, {"epsilon": None}):
        text = render_privacy_text({**card, "ledger": total | other}, **GIVEN)
        assert "there is no guarantee" in text
        assert "5.56" not in text


def test_a_run_that_stopped_counts_whole(card: dict[str, Any]) -> None:
    text = render_privacy_text({**card, "steps_taken": 7}, **GIVEN)
    assert "planned as 20 steps; 7 of them were taken, and all are counted" in text


HOSTILE = '<script>alert("x")</script>|![a](http://evil)`\u202e\x1b[31m\n# heading'


def poison(value: Any) -> Any:
    """Every text of a card but the words that hush itself looks up."""
    if isinstance(value, dict):
        kept = ("status", "protects", "adjacency", "accountant", "kind", "event_json", "plan")
        return {key: item if key in kept else poison(item) for key, item in value.items()}
    if isinstance(value, list):
        return [poison(item) for item in value]
    return HOSTILE if isinstance(value, str) else value


def test_hostile_names_stay_text(card: dict[str, Any], page: str, text: str) -> None:
    given: dict[str, Any] = {"dataset": HOSTILE, "date": HOSTILE, "digests": {HOSTILE: HOSTILE}}
    shown = Shown(render_privacy_page(poison(card), **given))
    assert shown.tags == Shown(page).tags
    assert shown.attributes == Shown(page).attributes
    assert '<script>alert("x")</script>' in shown.text  # as text
    assert "\u202e" not in shown.text
    assert "\x1b" not in shown.text
    written = render_privacy_text(poison(card), **given)
    assert "\u202e" not in written
    assert "<script" not in written.replace("\\<script", "")
    assert "![a](" not in written.replace("!\\[a\\](", "")
    assert "http://" not in written
    assert len(re.findall(r"^#", written, re.MULTILINE)) == len(re.findall(r"^#", text, re.MULTILINE))
    for line in written.splitlines():
        if line.startswith("|") and "evil" in line:
            assert len(re.findall(r"(?<!\\)\|", line)) == 3


@pytest.mark.parametrize(
    ("given", "escaped"),
    [
        ("a|b", "a\\|b"),
        ("*b* _c_ `d`", "\\*b\\* \\_c\\_ \\`d\\`"),
        ("[a](b)", "\\[a\\](b)"),
        ("back\\slash", "back\\\\slash"),
        ("- a", "\\- a"),
        ("1. a", "1\\. a"),
        ("2025 b", "2025 b"),
        ("see www.x.org", "see www\\.x.org"),
        ("two\nlines", "two\\\\nlines"),
        ("   much   space ", "much space"),
    ],
)
def test_markdown_is_escaped(given: str, escaped: str) -> None:
    assert escape_markdown(given) == escaped


def test_the_page_needs_no_network_and_draws_its_curve(page: str) -> None:
    assert "http" not in page
    assert not re.search(r"<(link|img|iframe|script)\b|\bsrc=|url\(", page)
    assert "@page { size: A4" in page
    assert "prefers-color-scheme: dark" in page
    assert "overflow-wrap: anywhere" in page  # long names wrap
    for title in ("false alarms, in 100", "misses, in 100", "guessing"):
        assert f">{title}</text>" in page
    points = re.search(r'<polyline class="best" points="([^"]*)"', page)
    assert points
    heights = [float(pair.split(",")[1]) for pair in points.group(1).split()]
    assert heights == sorted(heights)  # misses fall as false alarms rise


def test_a_card_that_is_none_is_refused(card: dict[str, Any]) -> None:
    for broken in ({}, {**card, "guarantee": None}, {**card, "steps": "many"}, {**card, "versions": 3}):
        with pytest.raises(InvalidInputError):
            render_privacy_page(broken, **GIVEN)
    with pytest.raises(InvalidInputError, match="event"):
        render_privacy_page(restate(card, event_json={"kind": "Evil"}), **GIVEN)


def test_the_docs_example_runs(card: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    docs = Path(__file__).resolve().parents[2] / "docs" / "privacy-page.md"
    (block,) = re.findall(r"^```python\n(.*?)^```$", docs.read_text(), re.MULTILINE | re.DOTALL)
    monkeypatch.chdir(tmp_path)
    Path("privacy.json").write_text(json.dumps(card))
    Path("example.py").write_text(block)
    runpy.run_path("example.py")
    assert "patients 2025" in Path("page.html").read_text()
    assert "| model.safetensors | 9d75c109… |" in Path("page.md").read_text()


def test_the_event_comes_back_from_the_card(card: dict[str, Any]) -> None:
    plan = make_plan("dp-sgd", **SMALL, epsilon=3.0)
    assert Guarantee.from_json(card["guarantee"]).event == plan.event()


BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@pytest.mark.skipif(BROWSER is None, reason="no Chromium to print with")
@pytest.mark.parametrize("method", ["dp-sgd", "dp-dice"])
def test_it_prints_on_two_sides(method: str, tmp_path: Path) -> None:
    digests = {f"file-{number}.json": 64 * "a" for number in range(7)}
    made = tmp_path / "page.html"
    made.write_text(render_privacy_page(card_of(method), **{**GIVEN, "digests": digests}), encoding="utf-8")
    printed = tmp_path / "page.pdf"
    flags = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}"]
    order = [str(BROWSER), *flags, "--no-pdf-header-footer", f"--print-to-pdf={printed}", made.as_uri()]
    subprocess.run(order, check=False, capture_output=True)
    if not printed.exists():
        pytest.skip("the browser does not run here")
    assert len(re.findall(rb"/Type\s*/Page\b(?!s)", printed.read_bytes())) in (1, 2)


def test_the_text_of_the_page_is_that_of_the_markdown(page: str, text: str) -> None:
    """Both come from one statement: every paragraph of the one is in the other."""
    shown = Shown(page).text
    for line in text.splitlines():
        if line.startswith("- **") or re.match(r"^[A-Z]", line):
            plain = html.unescape(re.sub(r"^- \*\*(.*?)\*\*", r"\1", line)).replace("\\", "")
            assert " ".join(plain.split()) in shown


# What is protected, and for whom: features or labels only, and all rows of one unit.


GIVEN_PARTS: dict[str, Any] = {"dataset": "visits", "date": "2026-11-16", "digests": {"model.safetensors": 64 * "0"}}
BOTH_HALVES = ("features", "labels")


@pytest.fixture(scope="module")
def card_parts() -> dict[str, Any]:
    plan = make_plan("dp-sgd", examples=600, batch_size=60, epochs=2, epsilon=3.0).with_arithmetic()
    read: dict[str, Any] = json.loads(json.dumps(make_card(plan, steps_taken=plan.steps)))
    return read


def restate_parts(card: dict[str, Any], rows: int | None = None, **changes: Any) -> dict[str, Any]:
    found = copy.deepcopy(card)
    found["guarantee"] |= changes
    found["claims"] = [found["guarantee"]]
    return found if rows is None else {**found, "rows_per_unit": rows}


def text_of(card: dict[str, Any]) -> str:
    return " ".join(render_privacy_text(card, **GIVEN_PARTS).replace("\\", "").split())


@pytest.mark.parametrize(
    ("half", "public", "asked"),
    [
        ("features", "The labels, what it is to predict, and who is in the data, were taken to be public", "features"),
        ("labels", "All other entries, and who is in the data, were taken to be public", "labels"),
    ],
)
def test_a_half_is_named_and_the_other_is_warned_of(card_parts, half: str, public: str, asked: str) -> None:
    other = next(part for part in BOTH_HALVES if part != half)
    shown = text_of(restate_parts(card_parts, protects=half, adjacency="replace"))
    assert f"Warning: {other} are not protected" in shown
    assert public in shown
    assert f"the {asked} of one example (one row)" in shown
    assert f"can reveal about the {asked} of any one example is limited" in shown
    assert f"The {asked} of every example that was used for training" in shown
    assert f"everybody else and your {other}" in shown
    assert f"limits how much the result depends on the {asked} of one example" in shown
    assert "or may become so (section 1)" in shown
    assert f"Warning: {half} are not protected" not in shown


def test_whole_examples_are_warned_of_nothing(card_parts) -> None:
    shown = text_of(restate_parts(card_parts, adjacency="replace"))
    assert "are not protected" not in shown
    assert "may become so" not in shown


def test_the_page_is_the_text(card_parts) -> None:
    half = restate_parts(card_parts, protects="features", adjacency="replace")
    for said in ("Warning: labels are not protected", "the features of one example (one row)"):
        assert said in render_privacy_page(half, **GIVEN_PARTS)


def test_a_patient_is_all_of_its_rows(card_parts) -> None:
    shown = text_of(restate_parts(card_parts, 8, unit="patient_id"))
    assert "| one patient_id (all rows of it) |" in shown
    assert (
        "One patient_id is all rows of the training data that belong to it, of which at most 8 are looked at in one "
        "step. All that one patient_id contributed counts together as one." in shown
    )
    assert "Where every person is one patient_id, that is one person." in shown
    assert "every patient_id with a chance of 10 in 100" in shown
    assert "averaged over its rows (over 8 of them" in shown
    assert "To a person who is one patient_id one may say" in shown
    assert "whether one person can have more than one patient_id" in shown
    assert "one example" not in shown


def test_the_cap_is_not_made_up(card_parts) -> None:
    shown = text_of(restate_parts(card_parts, unit="patient_id"))
    assert "One patient_id is all rows of the training data that belong to it. All that one patient_id" in shown
    assert "are looked at in one step" not in shown


def test_nothing_proven_is_nothing_protected(card_parts) -> None:
    shown = text_of(restate_parts(card_parts, status="claimed", protects="features", adjacency="replace"))
    assert "no protection" in shown
    assert "Warning: not a guarantee" in shown
    assert "the features of one" not in shown


@pytest.mark.parametrize("half", BOTH_HALVES)
def test_an_attacker_knows_the_other_half(half: Any) -> None:
    plan = make_plan("dp-sgd", examples=600, batch_size=60, epochs=2, epsilon=3.0)
    curve = curve_of_guarantee(plan.guarantee())
    whole, part = (describe_curve(curve, adjacency="replace", unit="patient", protects=p) for p in ("example", half))
    assert whole.rows == part.rows  # the numbers are the curve's
    other = "labels" if half == "features" else "features"
    assert f"every other patient and this one's {other}" in part.sentences[0]
    assert "which of two possible" in part.sentences[0]


@pytest.mark.parametrize(
    ("adjacency", "protects", "said"),
    [
        ("add-remove", "example", ("were not in the data", "it is in the data", "those not in the data")),
        ("zero-out", "example", ("counted for nothing", "it was used", "those not used")),
        ("replace", "example", ("had any other value", "it has the first value", "those with the second value")),
        ("replace", "features", ("had any other features", "the first set of features", "the second set of features")),
        ("replace", "labels", ("had any other label", "it has the first label", "those with the second label")),
    ],
)
def test_every_question_has_all_its_phrases(card_parts, adjacency: str, protects: str, said: tuple[str, ...]) -> None:
    shown = text_of(restate_parts(card_parts, adjacency=adjacency, protects=protects))
    assert all(words in shown for words in said)


def test_a_question_without_phrases_is_refused(card_parts) -> None:
    with pytest.raises(InvalidInputError):
        text_of(restate_parts(card_parts, adjacency="unheard-of"))


def test_the_ledgers_total_says_whose_it_is(card_parts) -> None:
    total = {"epsilon": 5.5, "delta": 1e-5, "status": "proven", "unit": "patient_id", "protects": "features"}
    assert "ε is at most 5.5 at δ = 1e-5 for the features of one patient_id" in text_of({**card_parts, "ledger": total})
    del total["unit"], total["protects"]
    assert "ε is at most 5.5 at δ = 1e-5 (proven" in text_of({**card_parts, "ledger": total})


@pytest.mark.parametrize("kind", ["Released", "Hybrid", "Published", "RandomisedLabels"])
def test_what_is_released_in_place_of_gradients_is_told(card_parts, kind: str) -> None:
    other = restate_parts(card_parts, protects="features", adjacency="replace")
    other["plan"]["query"]["kind"] = kind
    shown = text_of(other)
    assert ("Each label was replaced, once," if kind == "RandomisedLabels" else "What one layer of the model") in shown
    assert "section 3 says how well" in shown
