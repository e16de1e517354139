"""Prepare a command from its options: the problem, the arguments of a method, defaults for a table, and the device."""

from __future__ import annotations

import json
import math
import typing
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import torch

from hush._internal import validate
from hush._internal.settings import CLASS_SHARE, PlanSettings, list_settings
from hush._internal.tensors import Losses
from hush._internal.text import translate
from hush.accounting.guarantee import EXACT, HELD
from hush.cli.console import delayed_status, say, show_table
from hush.cli.options import (
    DEFAULT_EPSILON,
    DirectoryOptions,
    PlanOptions,
    TaskOptions,
    Training,
    split_pair,
)
from hush.data_source import as_source
from hush.datasets import catalogue
from hush.datasets.images import View, mirrored, shifted
from hush.datasets.problem import Problem
from hush.distributed.group import find_own_device
from hush.errors import InvalidInputError, nearest
from hush.methods import Candidate, ClippingOptions, PlanConfig, SGDOptions, find, options, recommend
from hush.per_example.augmentation import Augmented
from hush.plan import Plan
from hush.privacy_unit import ROWS_PER_UNIT
from hush.release.folder import PRIVATE_PART
from hush.tabular.defaults import LOGISTIC, choose_numbers
from hush.tabular.problem import EARLIER, TASKS, TEST, from_files

PUBLIC_ROWS = "the rows that were tested on are public"
WEIGHT_SHARE = 0.05
TABLE_METHOD = "dp-sgd"  # the method for which a table has default numbers

# The plan: the method and its options, the candidates of `--method auto`, δ and the batch size.

Same = TypeVar("Same", bound=PlanOptions)
Trained = TypeVar("Trained", bound=Training)


def default_epsilon(given: Same) -> Same:
    """Set ε = 3 if neither ε nor noise was given."""
    asked = (given.epsilon, given.noise_multiplier, given.node_noise)
    if given.method == "sgd" or any(value is not None for value in asked):
        return given
    return replace(given, epsilon=DEFAULT_EPSILON)


def read_method_options(method: str, pairs: list[str] | None, **given: Any) -> dict[str, Any]:
    """The method's keyword arguments from `--set` pairs and from options with their own flags (None: not given)."""
    known = options(find(method))
    chosen = {key: value for key, value in given.items() if value is not None}
    for key in chosen:
        _check_known(method, key, known)
    for key, text in map(split_pair, pairs or []):
        _check_known(method, key, known)
        if given.get(key) is not None:
            raise InvalidInputError(f"'{key}' is given twice: leave out --{key.replace('_', '-')} or --set {key}")
        if key in chosen:
            raise InvalidInputError(f"'{key}' is given twice: leave out one --set {key}")
        chosen[key] = _read_value(key, text, known[key].annotation)
    return chosen


def _check_known(method: str, key: str, known: Collection[str]) -> None:
    if key in known:
        return
    meant = translate(key)
    if meant not in known and meant in list_settings(PlanSettings):
        raise InvalidInputError(f"'{key}' is an option of every method: give it as --{meant.replace('_', '-')}")
    raise InvalidInputError(f"method '{method}' has no option '{key}': {nearest(key, known)}")


def _read_value(key: str, text: str, hint: Any) -> Any:
    if text in typing.get_args(hint):  # one of the values of a Literal, such as "none"
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
    raise InvalidInputError(f"option '{key}' takes {' or '.join(t.__name__ for t in wanted)}, got '{text}'")


def compare_candidates(method: str, setting: PlanConfig, chosen: dict[str, Any]) -> tuple[Candidate, ...]:
    """The candidates of `--method auto`, the best first; none for any other method."""
    if method != "auto":
        return ()
    descent = SGDOptions(**{key: chosen[key] for key in vars(SGDOptions()) if key in chosen})
    gradients = ClippingOptions(**{key: chosen[key] for key in vars(ClippingOptions()) if key in chosen})
    with delayed_status("comparing methods") as notify:
        return recommend(setting, descent, gradients, notify)


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
    """Raise for δ ≥ 1/N, which permits publishing a whole record; warn if the user accepted it."""
    if delta < 1 / examples:
        return
    if accepted:
        warn_delta(delta, examples)
        return
    raise InvalidInputError(
        f"{validate.describe_large_delta(delta, examples)}: give --delta {validate.suggest_delta(examples):g}, or "
        "--accept-delta if you intend this"
    )


def check_delta_range(delta: float, *, accepted: bool) -> None:
    """Before reading data: δ must be in (0, 1), and below 1/2, because any dataset has at least two rows."""
    validate.probability(delta=delta)
    if not accepted:
        check_delta(delta, 2, accepted=False)


def warn_delta(delta: float, examples: int) -> None:
    """Warn if δ is 1/N or more."""
    if delta >= 1 / examples:
        say(
            f"warning: {validate.describe_large_delta(delta, examples)}; {validate.suggest_delta(examples):g} would not"
        )


def fit_batch(given: Same, examples: int) -> Same:
    """A quarter of the examples if the batch size was not chosen and its default exceeds the number of examples."""
    if not given.batch_may_shrink or given.batch_size <= examples:
        return given
    batch = max(1, examples // 4)
    say(f"batch size {batch}, a quarter of {examples} examples, because the default of {given.batch_size} exceeds them")
    return replace(given, batch_size=batch)


# The problem: by name, or from the user's own data.


def load_task(given: TaskOptions) -> Problem:
    """The named problem, or one made from files, with class weights and the assumption about its test rows."""
    if given.unit is None and given.rows_per_unit is not None:
        raise InvalidInputError("--rows-per-unit needs a unit: give its column with --unit")
    if given.rows_per_unit is not None:
        validate.positive_int(rows_per_unit=given.rows_per_unit)
    found = _load(given)
    if found.pending_classes is not None and (given.class_weights is not None or given.private_metrics is not None):
        raise InvalidInputError(
            "--class-weights and --private-metrics need the classes: name them in a schema (classes = […]), or declare "
            "them public (--public classes)"
        )
    if _read_weight_share(given.class_weights) is not None:
        found = found.awaiting_weights()
    elif given.class_weights is not None:
        found = found.with_class_weights(read_weights(given.class_weights, found))
    return replace(found, assumptions=_say_of_test_rows(given, found.assumptions))


def _read_weight_share(text: str | None) -> float | None:
    """The share of ε for noisy class counts, if `--class-weights` requests them."""
    word, colon, share = (text or "").partition(":")
    if word.strip() != "private":
        return None
    try:
        return float(share) if colon else WEIGHT_SHARE
    except ValueError as error:
        raise InvalidInputError(
            f"--class-weights private:SHARE takes a share of ε such as 0.05, got '{share}'"
        ) from error


def read_weights(text: str, task: Problem) -> list[float]:
    """The class weights of a problem: one per class in order, or some by name and 1 for the others."""
    names = task.classes_by_name
    pairs = [part.rpartition("=") for part in text.split(",")]
    try:
        weights = [float(number) for _, _, number in pairs]
    except ValueError as error:
        raise InvalidInputError(f"--class-weights takes numbers, 1,2.5 or name=2.5, got '{text}'") from error
    if all(not equals for _, equals, _ in pairs):
        return weights
    for name, _, _ in pairs:
        if name.strip() not in names:
            raise InvalidInputError(
                f"--class-weights names a class that '{task.name}' does not have: {nearest(name, names)}"
            )
    chosen = {name.strip(): weight for (name, _, _), weight in zip(pairs, weights, strict=True)}
    return [chosen.get(name, 1.0) for name in names]


def _say_of_test_rows(given: TaskOptions, assumptions: tuple[str, ...]) -> tuple[str, ...]:
    if given.public_test and given.private_metrics is not None:
        raise InvalidInputError("--public-test declares the test rows public: leave --private-metrics out")
    others = tuple(text for text in assumptions if text != HELD)
    if given.public_test:
        return (*others, PUBLIC_ROWS)
    return assumptions if given.private_metrics is None else (*others, EXACT)


def check_described(given: TaskOptions) -> None:
    """Raise for options that describe the user's own data if there is none."""
    described = (given.target, given.model, given.schema, given.test_data, given.public)
    numbers = (given.target_range, given.loss, None if given.task == TASKS[0] else given.task, given.unit)
    if given.unit_normalise or any(
        value is not None for value in (*described, *numbers, given.private_ranges, given.private_classes)
    ):
        own = "--target, --model, --schema, --test-data, --public, --private-ranges, --private-classes, --task"
        raise InvalidInputError(
            f"{own}, --target-range, --loss, --unit and --unit-normalise describe your own data: give it with --data"
        )


def _find_private(given: TaskOptions) -> Path | None:
    """The private folder of the run, if there is one already."""
    out = getattr(given, "out", None)
    return None if out is None or not (Path(out) / PRIVATE_PART).is_dir() else Path(out) / PRIVATE_PART


def _load(given: TaskOptions) -> Problem:
    """The named problem, or one made from files; prints what was inferred about the files to stderr."""
    if given.data is None:
        check_described(given)
        return catalogue.load(given.problem or catalogue.DEFAULT, seed=given.seed, validation=given.validation)
    if given.problem is not None:
        raise InvalidInputError("give --problem or --data, not both")
    found = from_files(
        given.data,
        target=given.target,
        model=EARLIER if given.model is None and given.resumed else given.model,
        schema=given.schema,
        public=tuple(given.public.split("+")) if given.public is not None else (),
        test=TEST if given.test_data is None else given.test_data,
        seed=given.seed,
        validation=given.validation,
        task=given.task,
        target_range=given.target_range,
        loss=given.loss,
        private_ranges=given.private_ranges is not None,
        private_classes=getattr(given, "method", TABLE_METHOD) != "sgd",
        unit=given.unit,
        unit_normalise=given.unit_normalise,
        private_folder=_find_private(given),
        notify=say,
    )
    _say_classes(given, found)
    say(found.summary)
    _say_whose(given)
    if found.schema is not None:
        for line in found.schema.lines():
            say(f"  {line}")
    if found.notes is not None:
        warnings = found.notes.warnings if given.unit is None else ()  # they are about repeated ids
        for line in (*found.notes.private, *(f"warning: {text}" for text in warnings)):
            say(line)
    return found


def _say_classes(given: TaskOptions, found: Problem) -> None:
    """Show how the classes of a table are obtained, if they are released with noise."""
    if found.pending_classes is None:
        if given.private_classes is not None:
            raise InvalidInputError(
                "--private-classes has no effect, because the classes are in the schema or public: leave it out"
            )
        return
    share = CLASS_SHARE if given.private_classes is None else given.private_classes
    say(
        f"the classes are released with noise before training, for {share:g} of ε (--private-classes); a schema or "
        "--public classes names them at no cost"
    )


def _say_whose(given: TaskOptions) -> None:
    """Show the privacy unit, if one was given."""
    if given.unit is not None:
        most = given.rows_per_unit or ROWS_PER_UNIT
        say(f"one example is all rows of one {given.unit}, at most {most} of them at a time (--rows-per-unit)")


def with_views(task: Problem, augment: str | None, views: int | None) -> Losses:
    """The problem's losses, averaged over views of each image if requested."""
    if augment is None:
        if views is not None:
            raise InvalidInputError("--views needs --augment, which makes the views: give both")
        return task.training_losses
    known: dict[str, View] = {"shift": shifted(), "mirror": mirrored}
    kinds = augment.split("+")
    for kind in kinds:
        validate.choice(known, augment=kind)
    images = as_source(task.train).take(torch.tensor([0]))[0]
    if images.dim() != 4:
        raise InvalidInputError(
            f"--augment needs images, but an example of '{task.name}' has shape {tuple(images.shape[1:])}"
        )

    def augmented(content: Any) -> Any:
        first, *rest = content
        for kind in kinds:
            first = known[kind](first)
        return (first, *rest)

    return Augmented(task.training_losses, augmented, 4 if views is None else views)


# Numbers for tables: filled in if not given, and printed.


def apply_table_defaults(given: Trained, task: Problem) -> Trained:
    """Fill in the model's name and a table's numbers if they were not given: a run keeps its first values."""
    if given.data is None:
        return given
    asked = default_epsilon(given).epsilon
    epsilon = DEFAULT_EPSILON if asked is None else asked
    chosen = _choose_for_table(task, given.method, epsilon, given.left_open)
    return replace(given, **{"model": _name_model(task), **chosen})


def _choose_for_table(task: Problem, method: str, epsilon: float, left_open: Collection[str]) -> dict[str, Any]:
    """The open numbers, for a table with classes, DP-SGD and a model of hush; nothing for other data, methods or
    models."""
    known = task.schema is not None and task.classes is not None and task.architecture.source == "shipped"
    if not known or method != TABLE_METHOD or not left_open or not 0 < epsilon < math.inf:  # the plan refuses such an ε
        return {}
    numbers = choose_numbers(task.examples, epsilon, linear=task.architecture.name == LOGISTIC)
    filled = {name: value for name, value in vars(numbers).items() if name in left_open}
    words = ", ".join(f"{name.replace('_', '-')} {value}" for name, value in filled.items())
    say(f"chosen for {task.examples} examples at ε = {epsilon:g}: {words}")
    return filled


def _name_model(task: Problem) -> str:
    """The value of `--model` for the architecture, so that a run keeps it if defaults change later."""
    shown = task.architecture
    if shown.name != "mlp" or shown.source != "shipped":
        return shown.name
    return "-".join(["mlp", *map(str, shown.arguments["widths"][1:-1])])


# The device to train on.

KINDS = ("cpu", "cuda", "mps")


def find_device(name: str) -> torch.device:
    """The named device, with several processes the one of this process; raises if it does not exist."""
    try:
        device = find_own_device(name)
    except RuntimeError as error:
        raise InvalidInputError(f"unknown device '{name}': use cpu, cuda, cuda:0 or mps") from error
    if device.type not in KINDS:
        raise InvalidInputError(f"unknown device '{name}': use cpu, cuda, cuda:0 or mps")
    if (device.index or 0) >= _count(device.type):
        raise InvalidInputError(
            f"device '{device}' does not exist: this machine has {_list_devices()}; leave --device out for cpu"
        )
    return device


def _count(kind: str) -> int:
    counts = {"cuda": torch.cuda.device_count, "mps": torch.mps.device_count}
    return counts[kind]() if kind in counts else 1


def _list_devices() -> str:
    found = ["cpu", *(f"cuda:{place}" for place in range(_count("cuda")))]
    return ", ".join([*found, "mps"] if _count("mps") else found)


# What is kept.


def check_out(given: DirectoryOptions, *, data: Path | None, private: bool) -> None:
    """Raise if a private model of the user's own data would not be saved, because its ε would be spent for nothing."""
    if data is not None and private and given.out is None:
        raise InvalidInputError(
            "--data without --out would spend ε on a model that is not saved: give a folder with --out DIR"
        )


def warn_not_saved(given: DirectoryOptions) -> None:
    """Warn that the trained model was not saved, or its spend not entered."""
    if given.out is None:
        say("the model was not saved, and training it again costs the same ε again: give --out DIR to save it")
    if given.ledger is None and not given.resume and (given.dataset is not None or given.new_dataset):
        say("nothing was entered in a ledger: give --ledger FILE together with the name of the data")


SANITIZE = "--sanitize-at, --sanitize-width, --sanitize-clip and --sanitize-dropout"


def sanitise_task(task: Problem, plan: Plan, given: Training) -> Problem:
    """The problem with the layer in its model, if the method releases rows, and with the requested initial weights."""
    at, width = given.sanitize_at, given.sanitize_width
    if plan.trains_on is None or not hasattr(plan.trains_on, "nonnegative"):  # the range of the layer, if there is one
        if any(value is not None for value in (at, width, given.sanitize_clip, given.sanitize_dropout)):
            raise InvalidInputError(f"{SANITIZE} need a method that releases activations: use --method sanitize-once")
        return task.initialised(given.initialisation)
    from hush.sanitize.problem import place_layer

    found = place_layer(task, plan.trains_on, given, at=at, width=width)
    inner, at = (found.architecture.arguments[name] for name in ("inner", "at"))
    say(f"sanitization layer after module '{at}' of a network '{inner}'")
    return found.initialised(given.initialisation)


def read_shares(given: TaskOptions) -> dict[str, float]:
    """The requested shares of ε for releases before training, as `compose_plan` takes them."""
    weights = _read_weight_share(given.class_weights)
    shares = {"range_share": given.private_ranges, "weight_share": weights, "class_share": given.private_classes}
    return {name: share for name, share in shares.items() if share is not None}
