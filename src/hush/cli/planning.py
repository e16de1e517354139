"""The settings of a plan in the shell: the method and its options, and the candidates of `--method auto`."""

from __future__ import annotations

import json
import typing
from collections.abc import Collection
from dataclasses import dataclass, field, fields, replace
from typing import Any, TypeVar

from hush.cli.console import be_patient, say, show_table
from hush.cli.shell import OutputOptions
from hush.errors import BadInput, Refused, nearest
from hush.methods import Candidate, Descent, Gradients, Setting, find, options, recommend
from hush.settings import METHOD, PRIVACY, PlanSettings, list_settings, option, same_option
from hush.synonyms import translate

DEFAULT_EPSILON = 3.0
EPSILON_OR_THREE = option("Calibrate the noise to this ε; 3 by default if no noise is given.", PRIVACY)
Same = TypeVar("Same", bound="PlanOptions")


@dataclass(frozen=True, kw_only=True)
class PlanOptions(PlanSettings, OutputOptions):
    """What every command takes that makes a plan."""

    method: str = field(
        default="dp-sgd", metadata=option("One of `hush methods`, `auto`, or your own as `module:factory`.", METHOD)
    )
    settings: list[str] | None = field(
        default=None,
        metadata=option("An option of the method; see `hush methods`.", METHOD, flag="--set", metavar="KEY=VALUE"),
    )
    batch_size: int = field(default=256, metadata=same_option(PlanSettings, "batch_size"))
    batch_may_shrink: bool = False  # to fit the data, as nobody chose it

    def setting(self, examples: int, **data: Any) -> Setting:
        """The setting of a plan for so many examples, and whatever else is known of the data."""
        return Setting(examples, **{f.name: getattr(self, f.name) for f in fields(PlanSettings)}, **data)


def default_to_three(given: Same) -> Same:
    """ε = 3 where no noise was asked for."""
    asked = (given.epsilon, given.noise_multiplier, given.node_noise)
    if given.method == "sgd" or any(value is not None for value in asked):
        return given
    return replace(given, epsilon=DEFAULT_EPSILON)


def read_method_options(method: str, pairs: list[str] | None, **given: Any) -> dict[str, Any]:
    """The method's keyword arguments from `--set` pairs and from options of their own (None: not given)."""
    known = options(find(method))
    chosen = {key: value for key, value in given.items() if value is not None}
    for key in chosen:
        _check_known(method, key, known)
    for key, text in map(split_pair, pairs or []):
        _check_known(method, key, known)
        if given.get(key) is not None:
            raise BadInput(f"'{key}' is given twice: leave out --{key.replace('_', '-')} or --set {key}")
        if key in chosen:
            raise BadInput(f"'{key}' is given twice: leave out one --set {key}")
        chosen[key] = _read_value(key, text, known[key].annotation)
    return chosen


def split_pair(pair: str) -> tuple[str, str]:
    """The name and the text of one `--set` pair."""
    key, equals, text = pair.partition("=")
    if not equals:
        raise BadInput(f"--set takes key=value, got '{pair}'")
    return key.strip().replace("-", "_"), text.strip()


def _check_known(method: str, key: str, known: Collection[str]) -> None:
    if key in known:
        return
    meant = translate(key)
    if meant not in known and meant in list_settings(PlanSettings):
        raise BadInput(f"'{key}' is set on every method alike: give it as --{meant.replace('_', '-')}")
    raise BadInput(f"method '{method}' has no option '{key}': {nearest(key, known)}")


def _read_value(key: str, text: str, hint: Any) -> Any:
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


def compare_candidates(method: str, setting: Setting, chosen: dict[str, Any]) -> tuple[Candidate, ...]:
    """The candidates of `--method auto`, the best first; none for any other method."""
    if method != "auto":
        return ()
    descent = Descent(**{key: chosen[key] for key in vars(Descent()) if key in chosen})
    gradients = Gradients(**{key: chosen[key] for key in vars(Gradients()) if key in chosen})
    with be_patient("comparing methods") as tell:
        return recommend(setting, descent, gradients, tell)


def list_candidates(candidates: tuple[Candidate, ...]) -> list[dict[str, Any]]:
    """The candidates as JSON."""
    return [
        {
            "method": c.method,
            "options": c.options,
            "sampling": c.sampling,
            "noise_multiplier": c.sigma,
            "sensitivity": c.sensitivity,
            "rmse": c.rmse,
            "expected_error": c.error,
        }
        for c in candidates
    ]


def show_candidates(candidates: tuple[Candidate, ...]) -> None:
    """The candidates as a table, the best first."""
    rows = ((c.name, c.sampling, f"{c.sigma:.4g}", f"{c.sensitivity:.4g}", f"{c.error:.4g}") for c in candidates)
    columns = ("method", "sampling", "σ", "sensitivity", "expected error")
    title = (
        "noise that each candidate leaves in a weight, root mean square over steps, in units of lr × clip / batch size"
    )
    show_table(title, columns, rows)


def check_delta(delta: float, examples: int, *, accepted: bool) -> None:
    """δ of 1/N or more allows publishing somebody's record outright: refused, or a warning where it was accepted."""
    if delta < 1 / examples:
        return
    if accepted:
        warn_delta(delta, examples)
        return
    raise Refused(
        f"{_tell_large_delta(delta, examples)}: give --delta {suggest_delta(examples):g}, or --accept-delta if that is "
        "what you mean"
    )


def warn_delta(delta: float, examples: int) -> None:
    """Say so where δ is 1/N or more."""
    if delta >= 1 / examples:
        say(f"warning: {_tell_large_delta(delta, examples)}; {suggest_delta(examples):g} would not")


def suggest_delta(examples: int) -> float:
    """The largest power of ten that is at most a tenth of 1/N."""
    return float(f"1e-{len(str(10 * examples - 1))}")


def _tell_large_delta(delta: float, examples: int) -> str:
    return f"δ = {delta:g} is not below 1/N = {1 / examples:.2g}, so it permits releasing a whole record"


def let_batch_fit(given: dict[str, Any]) -> dict[str, Any]:
    """What was given on the command line, marked where the batch size was not."""
    return given if "batch_size" in given else {**given, "batch_may_shrink": True}


def fit_batch(given: Same, examples: int) -> Same:
    """A quarter of the examples a step where nobody chose a batch size and the default is more than there are."""
    if not given.batch_may_shrink or given.batch_size <= examples:
        return given
    batch = max(1, examples // 4)
    say(f"batch size {batch}, a quarter of {examples} examples, as the default of {given.batch_size} is more than all")
    return replace(given, batch_size=batch)
