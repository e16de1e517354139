"""Options that several commands share, and how `--set key=value` becomes a method's keyword argument."""

from __future__ import annotations

import json
import typing
from typing import Annotated, Any

import typer

from hush.errors import BadInput, nearest
from hush.methods import find, options

MethodName = Annotated[
    str, typer.Option("--method", help="One of `hush methods`, `auto`, or your own as `module:factory`.")
]
BatchSize = Annotated[int, typer.Option(help="Expected number of examples a step.")]
Epochs = Annotated[
    float | None,
    typer.Option(
        help="Passes over the data, ⌈N/L⌉ steps each; 30 by default, 1 for methods that take one (dp-matrix-se)."
    ),
]
Delta = Annotated[float, typer.Option(help="δ of the guarantee; keep it below 1/N.")]
Epsilon = Annotated[float | None, typer.Option(help="Calibrate the noise to this ε.")]
EpsilonOrThree = Annotated[
    float | None, typer.Option(help="Calibrate the noise to this ε; 3 by default if no noise is given.")
]
NoiseMultiplier = Annotated[float | None, typer.Option(help="σ of the privacy event.")]
NodeNoise = Annotated[float | None, typer.Option(help="Noise of a tree node, in clip units: σ times the sensitivity.")]
SampleRate = Annotated[float | None, typer.Option(help="Poisson rate q; the batch size over the examples by default.")]
Steps = Annotated[int | None, typer.Option(help="Number of steps; overrides the epochs.")]
Sampling = Annotated[
    str | None, typer.Option(help="poisson, fixed-size, shuffled or same-order; the method's own by default.")
]
Accountant = Annotated[str, typer.Option(help="pld, rdp or gdp; auto takes the tightest that holds.")]
Adjacent = Annotated[
    str | None, typer.Option("--adjacency", help="add-remove, replace or zero-out; the sampler's own by default.")
]
AcceptClaimed = Annotated[bool, typer.Option(help="Run a method whose ε is claimed by a paper and not proven.")]
Settings = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="An option of the method; see `hush methods`.")
]
Arithmetic = Annotated[
    str,
    typer.Option(
        help="default, or rigorous: the same number of rows at every step, so that nothing is assumed about rounding; "
        "slower."
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON on stdout.")]


def method_options(method: str, pairs: list[str] | None, **given: Any) -> dict[str, Any]:
    """The method's keyword arguments from `--set` pairs and from options of their own (None: not given)."""
    factory = find(method)
    known = options(factory)
    chosen = {key: value for key, value in given.items() if value is not None}
    for pair in pairs or []:
        key, equals, text = pair.partition("=")
        key = key.strip().replace("-", "_")
        if not equals:
            raise BadInput(f"--set takes key=value, got '{pair}'")
        if key not in known:
            raise BadInput(f"method '{method}' has no option '{key}': {nearest(key, known)}")
        chosen[key] = _value(key, text.strip(), known[key].annotation)
    return chosen


def _value(key: str, text: str, hint: Any) -> Any:
    if text in typing.get_args(hint):  # one of the words of a Literal, such as "none"
        return text
    try:
        value = json.loads(text.lower() if text.lower() in ("true", "false", "none") else text)
    except json.JSONDecodeError:
        value = None if text.lower() == "none" else text
    wanted = [t for t in (hint, *typing.get_args(hint)) if t in (int, float, bool, str)]
    stray = isinstance(value, bool) and bool not in wanted
    if not wanted or value is None or (isinstance(value, tuple(wanted)) and not stray):
        return value
    if float in wanted and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    raise BadInput(f"option '{key}' takes {' or '.join(t.__name__ for t in wanted)}, got '{text}'")
