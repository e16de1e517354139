"""The layers of the source tree and forbidden operations: upward or cyclic imports, seeding, unpickling."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "hush"
LAYERS = [
    {"errors", "randomness", "accounting", "matrix_factorization", "textbook", "_internal"},
    {"sampling", "clipping", "noise", "optimizers", "per_example", "data_source", "privacy_unit"},
    {"plan", "guarantees", "run", "aggregation", "noise_addition", "data_release", "distributed"},
    {
        "training",
        "run_directory",
        "methods",
        "checkpointing",
        "ledger",
        "release",
        "statistics",
        "tabular",
        "datasets",
        "sanitize",
        "tuning",
    },
    {"cli", "audit", "bench", "report", "__main__"},
]
PICKLING = ("pickle", "cloudpickle", "dill", "joblib", "shelve", "marshal")
TREES = {path: ast.parse(path.read_text(encoding="utf-8")) for path in sorted(SOURCE.rglob("*.py"))}
MODULES = {
    ".".join(path.relative_to(SOURCE.parent).with_suffix("").parts).removesuffix(".__init__"): path for path in TREES
}


def _layer(module: str) -> int:
    part = module.split(".")[1]
    found = [number for number, names in enumerate(LAYERS) if part in names]
    assert found, f"{part} is in no layer"
    return found[0]


def _at_import(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes that run when the module is imported: no function bodies, nothing under TYPE_CHECKING."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            continue
        if isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING":
            continue
        yield child
        yield from _at_import(child)


def _imports(path: Path) -> set[str]:
    found: set[str] = set()
    for node in _at_import(TREES[path]):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "hush":
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                found.add(whole if whole in MODULES else node.module)
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names if alias.name.startswith("hush.")}
    return found


def test_no_module_imports_from_a_higher_layer() -> None:
    upwards = [
        f"{module} imports {other}"
        for module, path in MODULES.items()
        if module != "hush"
        for other in _imports(path)
        if other != "hush" and _layer(other) > _layer(module)
    ]
    assert not upwards


def test_imports_have_no_cycle() -> None:
    graph = {module: _imports(path) - {module} for module, path in MODULES.items() if module != "hush"}
    TopologicalSorter(graph).prepare()  # raises CycleError


def test_mathematics_needs_no_torch() -> None:
    for path in (path for part in ("accounting", "textbook", "matrix_factorization") for path in _under(part)):
        tree = TREES[path]
        names = {a.name for n in ast.walk(tree) if isinstance(n, ast.Import) for a in n.names}
        names |= {n.module or "" for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)}
        assert not any(name.split(".")[0] == "torch" for name in names), path


def _under(part: str) -> list[Path]:
    return [path for path in TREES if path.relative_to(SOURCE).parts[0] == part]


def test_generators_are_made_in_one_place() -> None:
    makers = ("default_rng", "torch.Generator", "np.random.Generator(", "manual_seed", "random.seed", "np.random.seed")
    for path in TREES:
        if path.relative_to(SOURCE).parts[0] != "randomness":
            text = path.read_text(encoding="utf-8")
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


def test_nothing_is_unpickled() -> None:
    found = {path: [ast.unparse(n) for n in ast.walk(tree) if _unsafe(n)] for path, tree in TREES.items()}
    assert not {path: calls for path, calls in found.items() if calls}


def test_tests_mirror_the_source() -> None:
    """tests/PACKAGE/test_MODULE.py or test_MODULE_ASPECT.py; and no test imports another."""
    tests = {path.relative_to(ROOT / "tests"): path for path in (ROOT / "tests").rglob("test_*.py")}
    for name, path in tests.items():
        imports = [n.module or "" for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.ImportFrom)]
        assert not [module for module in imports if module.startswith(("test_", "tests"))], name
        if name.parts[0] in ("end_to_end", "repository") or name.name == "test_api.py":
            continue
        words = name.stem.removeprefix("test_").split("_")
        modules = ["_".join(words[:n]) + ".py" for n in range(1, len(words) + 1)]
        assert any((ROOT / "src" / "hush" / name.parent / module).is_file() for module in modules), name
