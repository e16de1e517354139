"""Stream names are data: they never change, and no call site spells one itself."""

from __future__ import annotations

import ast
from pathlib import Path

import hush
from hush.randomness import streams

CONSTANTS = {
    "AUDIT_COINS": "coins",
    "AUDIT_ONE_RUN": "audit/one run",
    "AUDIT_SECOND": "second",
    "BATCH_EFFECT": "company",
    "BENCH": "bench",
    "CANARIES": "canaries",
    "CONSISTENCY": "standing",
    "HISTOGRAMS": "histograms2",
    "LABELS_FIRST": "labels/first",
    "METRICS_CONTENT": "figures content",
    "NOISE_PREVIEW": "noise show",
    "ORDER": "order",
    "ROW_ORDER": "row order",
    "PREVIEW_ROWS": "noise",
    "RELEASE_CONTENT": "before content",
    "ROWS": "rows2",
    "SAMPLED_DIGEST": "digest",
    "SAMPLING": "sampling",
    "SECRET_NAME": "name",
    "SPLIT": "split",
    "SPOT_CHECK": "spot check",
    "SUMS": "digest/sums",
    "TEST": "test",
    "TRIALS": "trials",
    "UNITS": "units",
    "VALIDATION": "validation",
}


def test_names_never_change() -> None:
    found = {name: value for name, value in vars(streams).items() if name.isupper()}
    assert found == CONSTANTS
    assert len(set(found.values())) == len(found)
    assert streams.noise("gradient") == "noise2/gradient"
    assert streams.private_metrics("matrix") == "figures2 matrix"
    assert streams.data_release("ranges") == "before ranges"
    assert (streams.model_draw(True, 3), streams.model_draw(False, 3)) == ("model/shared/3", "model/place/3")
    assert streams.unit_rows(8) == "rows of a unit/8"
    assert streams.digest("data") == "digest/data"
    assert streams.split_units("test") == "test of units"
    assert streams.audit_run("dp-sgd", "white-box", 7) == "audit/dp-sgd/white-box/7"


def test_no_call_site_spells_a_stream() -> None:
    spelt = []
    for path in sorted(Path(hush.__file__).parent.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and _is_literal(_find_stream(node)):
                spelt.append(f"{path.name}:{node.lineno}")
    assert spelt == []


def _find_stream(call: ast.Call) -> ast.expr | None:
    """The argument that names a stream, of calls that take one."""
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    named = next((k.value for k in call.keywords if k.arg == "stream" and name != "get"), None)
    place = {"derive": 0, "child": 0, "generator": 1, "normal": 1, "draw_integers": 1}.get(name)
    return named if place is None or len(call.args) <= place else call.args[place]


def _is_literal(value: ast.expr | None) -> bool:
    return isinstance(value, ast.JoinedStr) or (isinstance(value, ast.Constant) and isinstance(value.value, str))
