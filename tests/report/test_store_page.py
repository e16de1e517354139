"""The page of a store: complete, self-contained, and with escaped names."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest

from hush.accounting.guarantee import AuditFinding
from hush.cli import main
from hush.report import summary
from hush.report.page import embed_json, render_report
from hush.report.paper import escape_latex, render_latex, render_markdown
from hush.report.rows import read_results
from hush.report.store_page import make_store_page
from pages import read_data
from synthetic_stores import make_many, make_record, write_plainly, write_store

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"'&\u202e"


class Tags(HTMLParser):
    """Which tags a page has, with their attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_plainly(tmp_path_factory.mktemp("report") / "store", make_many(400))


@pytest.fixture(scope="module")
def page(store: Path) -> str:
    return render_report(make_store_page(read_results(store)))


def test_every_section_of_the_report_is_there(page: str) -> None:
    wanted = {"utility", "heat-batch", "heat-epochs", "curves", "spending", "confusion", "settings", "times"}
    assert wanted <= {section["id"] for section in read_data(page)["sections"]}
    ids = {attributes.get("id") for tag, attributes in Tags(page).found if tag == "section"}
    assert {"overview", "troubles", "runs", *wanted} <= ids


def test_nothing_is_fetched(page: str) -> None:
    addresses = set(re.findall(r"https?://[^\s\"'<\\]+", page))
    assert addresses <= {"http://www.w3.org/2000/svg"}  # a name, which no browser fetches
    for tag, attributes in Tags(page).found:
        assert tag not in ("link", "iframe", "img", "object", "embed")
        assert "src" not in attributes


def test_the_runs_of_the_page_are_the_store(page: str, store: Path) -> None:
    runs = read_data(page)["runs"]
    rows = {row[0]: dict(zip(runs["columns"], row, strict=True)) for row in runs["rows"]}
    records = [json.loads(path.read_bytes()) for path in store.glob("runs/*/record.json")]
    assert len(rows) == len(records) == 400
    for record in records:
        row = rows[record["key"]]
        for name in (
            "outcome",
            "epsilon",
            "delta",
            "status",
            "test_accuracy",
            "test_loss",
            "validation_loss",
            "train_seconds",
        ):
            assert row[name] == record.get(name)
        assert row["target_epsilon"] == record["config"].get("epsilon")
        assert row["lr"] == record["config"]["options"]["lr"]
        assert row["seed"] == record["config"]["seed"]


def test_every_figure_is_whole_and_its_axes_have_titles(page: str) -> None:
    charts = [figure for section in read_data(page)["sections"] for figure in section["figures"]]
    assert len(charts) > 50
    for figure in charts:
        picture = ElementTree.fromstring(figure["svg"])
        titles = [e.text for e in picture.iter() if "-title" in e.get("class", "")]
        assert len(titles) == 2, figure["title"]
        assert all(titles), figure["title"]
        assert all(len(row) == len(figure["columns"]) for row in figure["rows"])
        assert figure["rows"]


def test_a_heatmap_marks_its_best_cell_names_its_runs_and_hatches_what_diverged(tmp_path: Path) -> None:
    runs = [make_record(n, lr=lr) for n, lr in enumerate((0.01, 0.1))] + [make_record(7, lr=10.0, outcome="diverged")]
    made = make_store_page(read_results(write_store(tmp_path / "store", runs)))
    (figure,) = next(section for section in made.sections if section.id == "heat-batch").charts
    picture = ElementTree.fromstring(figure.svg)
    cells = [e for e in picture.iter() if e.get("class") == "pt"]
    texts = ["".join(t.itertext()) for cell in cells for t in cell if t.tag.endswith("title")]
    assert [f"{n:032x}" in text for n, text in zip((0, 1, 7), texts, strict=True)] == [True] * 3
    best = [any(part.get("class") == "best" for part in cell) for cell in cells]
    hatched = [any(part.get("class") == "hatch" for part in cell) for cell in cells]
    assert best == [False, True, False]
    assert hatched == [False, False, True]


def test_a_loss_is_shown_by_its_logarithm(tmp_path: Path) -> None:
    runs = [
        make_record(n, lr=lr, metric="loss", test_loss=loss) for n, (lr, loss) in enumerate([(0.1, 100.0), (1.0, 1e3)])
    ]
    made = make_store_page(read_results(write_store(tmp_path / "store", runs)))
    (figure,) = next(section for section in made.sections if section.id == "heat-batch").charts
    assert "log₁₀" in figure.title
    assert {"2.00", "3.00"} <= {t.strip("★ ") for t in ElementTree.fromstring(figure.svg).itertext()}


def test_kinds_of_epsilon_differ_without_colour(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(summary, "findings", lambda: (AuditFinding("dp-ftrl", 1.0, 7.5, 1e-5, 0.95, "proven"),))
    methods = ("dp-sgd", "dp-dice", "dp-ftrl")
    runs = [
        make_record(3 * n + k, method=m, epsilon=e) for n, m in enumerate(methods) for k, e in enumerate((1.0, 3.0))
    ]
    made = make_store_page(read_results(write_store(tmp_path / "store", runs)))
    badges = {row.method: row.cells[2].badge for row in made.table}
    assert badges == {"dp-sgd": "proven", "dp-dice": "claimed", "dp-ftrl": "refuted"}
    assert {row.cells[3].text for row in made.table if row.method == "dp-ftrl"} == {"ε ≥ 7.5"}
    svg = next(section for section in made.sections if section.id == "utility").charts[0].svg
    for word in ("dp-dice (claimed)", "dp-ftrl (refuted)", 'class="curve claimed"', 'class="curve refuted"'):
        assert word in svg


def test_names_with_html_in_them_are_text(tmp_path: Path) -> None:
    hostile = make_record(0, problem=HOSTILE, method=f"m{HOSTILE}", reason=HOSTILE)
    failed = make_record(1, problem=HOSTILE, outcome="failed", reason=HOSTILE)
    names = make_record(2, problem=HOSTILE, lr=1.0, class_names=[HOSTILE + str(i) for i in range(10)])
    text = render_report(make_store_page(read_results(write_store(tmp_path / "store", [hostile, failed, names]))))
    plain = Tags(text).found
    charts = sum(len(section["figures"]) for section in read_data(text)["sections"])
    assert [tag for tag, _ in plain].count("script") == 2 + charts
    assert not [tag for tag, attributes in plain if tag == "img" or "onerror" in attributes]
    assert "\u202e" not in text
    for section in read_data(text)["sections"]:
        for figure in section["figures"]:
            tags = {e.tag.rpartition("}")[2] for e in ElementTree.fromstring(figure["svg"]).iter()}
            assert tags <= {"svg", "g", "path", "rect", "circle", "polyline", "text", "title"}


def test_json_in_a_page_cannot_end_its_script() -> None:
    text = embed_json({"a": "</script><!--\u2028&", "b": float("nan")})
    assert not set("<>&\u2028") & set(text)
    assert json.loads(text) == {"a": "</script><!--\u2028&", "b": None}


def test_a_store_of_broken_records_renders_and_says_so(tmp_path: Path) -> None:
    runs = [
        make_record(0),
        make_record(1, format=7),
        make_record(2, outcome="failed"),
        make_record(3, outcome="diverged"),
    ]
    root = write_store(tmp_path / "store", runs)
    (root / "working" / "half").mkdir()
    (root / "runs" / "nothing").mkdir()
    made = make_store_page(read_results(root))
    assert sorted(row["outcome"] for row in made.troubles) == [
        "diverged", "failed", "unfinished", "unknown version", "unreadable"
    ]  # fmt: skip
    assert "1 unfinished" in made.findings[1]
    assert "format 7" in render_report(made)


def test_an_empty_store_renders(tmp_path: Path) -> None:
    made = make_store_page(read_results(write_store(tmp_path / "store", [])))
    assert made.findings == ["No run has finished, so nothing can be compared.", "Of 0 runs: none."]
    assert "Overview" in render_report(made)


def test_thousands_of_runs_stay_below_fifteen_megabytes(tmp_path: Path) -> None:
    root = write_plainly(tmp_path / "store", make_many(2476))
    text = render_report(make_store_page(read_results(root)))
    assert len(read_data(text)["runs"]["rows"]) == 2476
    assert len(text.encode()) < 15e6


def test_correlated_noise_is_drawn_where_the_plan_can_be_made_again(tmp_path: Path) -> None:
    from hush.methods import make_plan

    plan = make_plan("dp-blt", examples=1280, batch_size=64, epochs=2, noise_multiplier=2.0)
    told = {"steps": plan.steps, "sensitivity": plan.sensitivity, "noise_multiplier": 2.0, "accountant": "gdp"}
    record, curve = make_record(0, method="dp-blt", epochs=2, **told)
    record["config"]["options"] = {"lr": 0.1}
    found = [
        record,
        record
        | {"key": "f" * 32, "sensitivity": 1.01 * plan.sensitivity, "test_accuracy": 0.1, "validation_accuracy": 0.1},
    ]
    for number, one in enumerate(found):
        root = write_store(tmp_path / str(number), [(one, curve)])
        sections = {section.id: section for section in make_store_page(read_results(root)).sections}
        assert ("noise" in sections) == (number == 0)  # a record that is not of this plan gets no picture
        if number == 0:
            titles = [chart.title for chart in sections["noise"].charts]
            assert [title.split(":")[0].split(",")[0] for title in titles] == [
                "Noise that adds up in a weight",
                "C",
                "C⁻¹",
            ]
            last = sections["noise"].charts[0].rows[-1]
            assert last[0] == plan.steps
            assert last[1] == pytest.approx(plan.noise_std * plan.noise.structure.prefix_variances()[-1] ** 0.5)


def test_a_method_of_others_is_not_called_for_a_picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "stranger.py").write_text("raise SystemExit('called')\n")
    monkeypatch.syspath_prepend(tmp_path)
    record = make_record(0, method="stranger:make", accountant="gdp", sensitivity=1.0)
    make_store_page(read_results(write_store(tmp_path / "store", [record])))


def test_markdown_has_its_table_and_static_figures(store: Path) -> None:
    text, pictures = render_markdown(make_store_page(read_results(store)), "report_figures")
    assert text.startswith("# Runs of store\n")
    assert set(re.findall(r"\]\((report_figures/[\w-]+\.svg)\)", text)) == set(pictures)
    for svg in pictures.values():
        assert "var(--" not in svg
        ElementTree.fromstring(svg)


def test_markdown_shows_hostile_names_as_text(tmp_path: Path) -> None:
    runs = [
        make_record(0, problem="<b>|x|`*_[a](javascript:b)", lr=0.1),
        make_record(1, outcome="failed", reason="a|b<i>"),
    ]
    text, _ = render_markdown(make_store_page(read_results(write_store(tmp_path / "store", runs))), "f")
    rest = text.replace("<!-- written by hush -->", "").replace("<br><sub>", "").replace("</sub>", "")
    assert "<" not in rest
    assert "](javascript" not in rest.replace("\\](", "")


def test_a_latex_table_has_mean_and_spread_with_the_best_in_bold(tmp_path: Path) -> None:
    runs = []
    for n, (method, metrics) in enumerate(
        {"dp-sgd": (0.9, 0.92), "dp-adam": (0.7, 0.72), "dp-dice": (0.95, 0.97)}.items()
    ):
        for seed, figure in enumerate(metrics):
            runs.append(make_record(10 * n + seed, method=method, seed=seed, problem="a_b", test_accuracy=figure))
    text = render_latex(read_results(write_store(tmp_path / "store", runs)))
    assert r"problem & a\_b \\" in text
    assert r"method & $\varepsilon = 3$ \\" in text
    assert r"dp-sgd & $\mathbf{91.00 \pm 1.41}$ \\" in text
    assert r"dp-adam & $71.00 \pm 1.41$ \\" in text
    assert r"dp-dice & $96.00 \pm 1.41$\textsuperscript{refuted} \\" in text  # better, and not proven: never bold


def test_latex_is_escaped() -> None:
    assert escape_latex(r"\input{x}_%&#$") == r"\textbackslash{}input\{x\}\_\%\&\#\$"


@pytest.mark.parametrize(("kind", "name"), [("html", "r.html"), ("markdown", "r.md"), ("latex", "r.tex")])
def test_the_command_writes_each_format(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str, name: str
) -> None:
    root = write_store(tmp_path / "store", [make_record(n, lr=10.0**-n) for n in range(3)])
    assert main(["report", str(root), "--out", str(tmp_path / name), "--format", kind, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["runs"] == told["finished"] == 3
    assert Path(told["out"]) == tmp_path / name
    assert (tmp_path / name).stat().st_size > 300


def test_the_command_refuses_what_it_cannot_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(tmp_path / "nowhere")]) == 2
    assert main(["report", str(tmp_path)]) == 2
    assert "Traceback" not in capsys.readouterr().err
