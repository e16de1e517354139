"""A module imports only from modules listed above it, and nothing but randomness/ makes a generator."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[1] / "src" / "hush"
ORDER = [
    "synonyms",
    "errors",
    "printable",
    "version",
    "validate",
    "files",
    "imports",
    "named",
    "checksum",
    "identity",
    "randomness",
    "data",
    "draws",
    "privacy",
    "ledger",
    "officer",
    "textbook",
    "figures",
    "matrices",
    "sampling",
    "arithmetic",
    "loading",
    "source",
    "number_types",
    "units",
    "gradients",
    "release",
    "histograms",
    "private_figures",
    "queries",
    "noise",
    "proofs",
    "rules",
    "sanitize",
    "artefact",
    "attempts",
    "company",
    "beside",
    "before",
    "ranges",
    "class_counts",
    "mechanism",
    "claims",
    "card",
    "digests",
    "bystanders",
    "stepping",
    "ranks",
    "standing",
    "summing",
    "noising",
    "run",
    "plan",
    "settings",
    "methods",
    "tuning",
    "checkpoint",
    "charging",
    "loop",
    "problems",
    "handover",
    "prediction_file",
    "predicting",
    "exchange",
    "audit",
    "bench",
    "report",
    "cli",
    "__main__",
]
PICKLING = ("pickle", "cloudpickle", "dill", "joblib", "shelve", "marshal")
FILES = sorted(path for path in SOURCE.rglob("*.py") if path != SOURCE / "__init__.py")


def _part(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def _imports(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "hush":
            parts = node.module.split(".")
            found |= {parts[1]} if len(parts) > 1 else {alias.name for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {a.name.split(".")[1] for a in node.names if a.name.startswith("hush.")}
    return found


def _typing_only(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            for inner in ast.walk(node):
                if isinstance(inner, ast.ImportFrom) and inner.module and inner.module.startswith("hush."):
                    found.add(inner.module.split(".")[1])
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_imports_point_upwards(path: Path) -> None:
    part = _part(path)
    assert part in ORDER, f"{part} has no place in the order"
    later = {name for name in _imports(path) - _typing_only(path) if ORDER.index(name) > ORDER.index(part)}
    assert not later, f"{part} imports {later}, which come after it"


@pytest.mark.parametrize("part", ["privacy", "ledger", "textbook", "matrices"])
def test_mathematics_needs_no_torch(part: str) -> None:
    for path in (SOURCE / part).rglob("*.py"):
        tree = ast.parse(path.read_text())
        names = {a.name for n in ast.walk(tree) if isinstance(n, ast.Import) for a in n.names}
        names |= {n.module or "" for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)}
        assert not any(name.split(".")[0] == "torch" for name in names), path


def test_generators_are_made_in_one_place() -> None:
    makers = ("default_rng", "torch.Generator", "np.random.Generator(", "manual_seed", "random.seed", "np.random.seed")
    for path in FILES:
        if _part(path) != "randomness":
            text = path.read_text()
            assert not [m for m in makers if m in text], path


def _unsafe(node: ast.AST) -> bool:
    """An import of a pickling module, torch.load, a call of eval or exec, or allow_pickle=True."""
    if isinstance(node, ast.Import):
        return any(alias.name.split(".")[0] in PICKLING for alias in node.names)
    if isinstance(node, ast.ImportFrom):
        return (node.module or "").split(".")[0] in PICKLING
    if isinstance(node, ast.Attribute):
        return ast.unparse(node) == "torch.load"
    if isinstance(node, ast.Call):
        allowed = any(k.arg == "allow_pickle" and ast.unparse(k.value) != "False" for k in node.keywords)
        return allowed or (isinstance(node.func, ast.Name) and node.func.id in ("eval", "exec"))
    return False


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_nothing_is_unpickled(path: Path) -> None:
    assert not [ast.unparse(node) for node in ast.walk(ast.parse(path.read_text())) if _unsafe(node)]


def test_no_two_test_files_share_a_name() -> None:
    """pytest imports them by their bare names, and the second would stop the whole suite."""
    names = [path.name for path in SOURCE.parents[1].joinpath("tests").rglob("test_*.py")]
    assert sorted(names) == sorted(set(names))
