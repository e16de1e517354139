"""Command-line options built from dataclasses of settings, and the file of settings from which a run is resumed.

A command is a function of one object, ``@take(Kind) def command(given: Kind)``. Its options, their help, order and
defaults come from the fields of ``Kind``; an option that is not given keeps its default.
"""

from __future__ import annotations

import inspect
import json
import math
import typing
from collections.abc import Callable, Collection
from dataclasses import MISSING, dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import torch
import typer

from hush._internal import validate
from hush._internal.tensors import Losses
from hush._internal.text import translate
from hush.accounting.guarantee import EXACT, HELD
from hush.cli.console import delayed_status, say, show_table
from hush.data_source import as_source
from hush.datasets import catalogue
from hush.datasets.images import View, mirrored, shifted
from hush.datasets.problem import CLASS_SHARE, Problem
from hush.distributed.group import find_own_device
from hush.errors import InvalidInputError, nearest
from hush.methods import Candidate, ClippingOptions, PlanConfig, SGDOptions, find, options, recommend
from hush.methods.config import DATA, LENGTH, PRIVACY, PlanSettings, SettingField, list_settings, option, same_option
from hush.methods.config import METHOD as METHOD_PLANNING
from hush.methods.config import METHOD as METHOD_SHELL
from hush.per_example.augmentation import Augmented
from hush.privacy_unit import ROWS_PER_UNIT
from hush.release.folder import PRIVATE_PART
from hush.tabular.defaults import LOGISTIC, choose_numbers
from hush.tabular.problem import EARLIER, TASKS, TEST, from_files
from hush.training import EVERY

if TYPE_CHECKING:
    from hush.cli.train import Training


KEEPING, MACHINE = "Output, resuming and the ledger", "Randomness and memory"
GROUPS = (None, DATA, METHOD_SHELL, PRIVACY, LENGTH, KEEPING, MACHINE)  # in the order of --help
Kind = TypeVar("Kind")
Given = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class OutputOptions:
    """Options for the output of a command."""

    as_json: bool = field(default=False, metadata=option("Print JSON on stdout.", flag="--json", saved=False))


def take(
    kind: type[Kind], *, without: tuple[str, ...] = (), resolve: Callable[[Given], Given] = dict
) -> Callable[[Callable[[Kind], None]], Callable[..., None]]:
    """Turn a function of one ``kind`` into a command, with an option for each field except those in ``without``.

    ``resolve`` gets the options given on the command line and may add values from other sources.
    """
    known = [found for name, found in list_settings(kind).items() if name not in without]
    parameters = [_parameter(found) for found in sorted(known, key=lambda found: GROUPS.index(found.option.group))]
    context = inspect.Parameter("context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)

    def decorate(run: Callable[[Kind], None]) -> Callable[..., None]:
        def command(context: typer.Context, **values: Any) -> None:
            run(kind(**resolve({name: value for name, value in values.items() if _is_given(context, name)})))

        command.__name__, command.__doc__ = run.__name__, run.__doc__
        command.__signature__ = inspect.Signature([context, *parameters])  # type: ignore[attr-defined]
        return command

    return decorate


def _parameter(found: SettingField) -> inspect.Parameter:
    """The field as a typer option; required if it has no default."""
    about = found.option
    flags = () if about.flag is None else (about.flag,)
    shown = typer.Option(*flags, help=about.help, metavar=about.metavar, rich_help_panel=about.group)
    default = inspect.Parameter.empty if found.default is MISSING else found.default
    place = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(found.name, place, default=default, annotation=Annotated[found.hint, shown])


def _is_given(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name != "DEFAULT"


def write_settings(settings: Any) -> bytes:
    """The saved settings of a run, as JSON."""
    known = list_settings(type(settings))
    values = {name: getattr(settings, name) for name, found in known.items() if found.option.saved}
    plain = {n: {"path": str(v.resolve())} if isinstance(v, Path) else v for n, v in values.items()}
    return (json.dumps(plain, indent=2) + "\n").encode()


def name_flags(kind: type) -> dict[str, str]:
    """The flag of every setting of a command."""
    return {name: found.option.flag or f"--{name.replace('_', '-')}" for name, found in list_settings(kind).items()}


def read_settings(path: Path, kind: type) -> Given:
    """Read the saved settings of a run and check their types; raises if the file is damaged."""
    known = list_settings(kind)
    try:
        found = {name: _from_json(value) for name, value in json.loads(path.read_bytes()).items()}
        for name, value in found.items():
            if name in known and not _is_a(value, known[name].hint):
                raise ValueError(name)
    except (OSError, ValueError, AttributeError, KeyError, TypeError, RecursionError) as error:
        raise InvalidInputError(
            f"'{path}' is damaged: remove it, and give the run's original options together with --resume"
        ) from error
    return {name: value for name, value in found.items() if name in known}


def _from_json(value: Any) -> Any:
    if isinstance(value, list) and value and not any(isinstance(item, str) for item in value):
        return tuple(value)  # a range
    return Path(value["path"]) if isinstance(value, dict) else value


def _is_a(value: Any, hint: Any) -> bool:
    parts = (hint, *typing.get_args(hint))
    if isinstance(value, tuple):
        return tuple[float, float] in parts and len(value) == 2 and all(_is_a(item, float) for item in value)
    if isinstance(value, list):
        return list[str] in parts and all(isinstance(item, str) for item in value)
    if isinstance(value, int) and not isinstance(value, bool):
        return int in parts or float in parts
    if isinstance(value, Path):
        return Path in parts
    return type(value) in parts


# The settings of a plan: the method and its options, and the candidates of `--method auto`.

DEFAULT_EPSILON = 3.0
EPSILON_OR_THREE = option("Calibrate the noise to this ε; 3 by default if no noise is given.", PRIVACY)
Same = TypeVar("Same", bound="PlanOptions")


@dataclass(frozen=True, kw_only=True)
class PlanOptions(PlanSettings, OutputOptions):
    """Options of every command that makes a plan."""

    method: str = field(
        default="dp-sgd",
        metadata=option(
            "Training method: one of `hush methods`, `auto`, or your own as `module:factory`.", METHOD_PLANNING
        ),
    )
    settings: list[str] | None = field(
        default=None,
        metadata=option(
            "Set an option of the method; see `hush methods`.", METHOD_PLANNING, flag="--set", metavar="KEY=VALUE"
        ),
    )
    batch_size: int = field(default=256, metadata=same_option(PlanSettings, "batch_size"))
    batch_may_shrink: bool = False  # to fit the data, if the user did not choose the batch size

    def setting(self, examples: int, **data: Any) -> PlanConfig:
        """The settings of a plan for ``examples`` examples, with further facts about the data."""
        return PlanConfig(examples, **{f.name: getattr(self, f.name) for f in fields(PlanSettings)}, **data)


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


def split_pair(pair: str) -> tuple[str, str]:
    """The name and the text of one `--set` pair."""
    key, equals, text = pair.partition("=")
    if not equals:
        raise InvalidInputError(f"--set takes key=value, got '{pair}'")
    return key.strip().replace("-", "_"), text.strip()


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
    """δ ≥ 1/N permits publishing a whole record: raise, or warn if the user accepted it."""
    if delta < 1 / examples:
        return
    if accepted:
        warn_delta(delta, examples)
        return
    raise InvalidInputError(
        f"{_describe_large_delta(delta, examples)}: give --delta {suggest_delta(examples):g}, or --accept-delta if you "
        "intend this"
    )


def check_delta_range(delta: float, *, accepted: bool) -> None:
    """Before reading data: δ must be in (0, 1), and below 1/2, because any dataset has at least two rows."""
    validate.probability(delta=delta)
    if not accepted:
        check_delta(delta, 2, accepted=False)


def warn_delta(delta: float, examples: int) -> None:
    """Warn if δ is 1/N or more."""
    if delta >= 1 / examples:
        say(f"warning: {_describe_large_delta(delta, examples)}; {suggest_delta(examples):g} would not")


def suggest_delta(examples: int) -> float:
    """The largest power of ten that is at most 1/(10 N)."""
    return float(f"1e-{len(str(10 * examples - 1))}")


def _describe_large_delta(delta: float, examples: int) -> str:
    return f"δ = {delta:g} is not below 1/N = {1 / examples:.2g}, so it permits releasing a whole record"


def allow_smaller_batch(given: dict[str, Any]) -> dict[str, Any]:
    """The given options, marked if the batch size is not among them."""
    return given if "batch_size" in given else {**given, "batch_may_shrink": True}


def fit_batch(given: Same, examples: int) -> Same:
    """A quarter of the examples if the batch size was not chosen and its default exceeds the number of examples."""
    if not given.batch_may_shrink or given.batch_size <= examples:
        return given
    batch = max(1, examples // 4)
    say(f"batch size {batch}, a quarter of {examples} examples, because the default of {given.batch_size} exceeds them")
    return replace(given, batch_size=batch)


# What to train on: a problem by name, or the user's own data.

PUBLIC_ROWS = "the rows that were tested on are public"


WEIGHT_SHARE = 0.05


@dataclass(frozen=True, kw_only=True)
class TaskOptions:
    """What to train on, and how to prepare it."""

    problem: str | None = field(
        default=None,
        metadata=option("Problem: one of `hush problems`, or your own as `module:factory`; digits by default.", DATA),
    )
    data: Path | None = field(
        default=None,
        metadata=option(
            "Your own data: .csv, .parquet, a folder or 'pattern*' of them, .npz, or class folders of images.", DATA
        ),
    )
    target: str | None = field(
        default=None, metadata=option("Your own data: the column or array that holds the labels.", DATA)
    )
    model: str | None = field(
        default=None,
        metadata=option(
            "Your own data: model mlp, mlp-64-32 (widths of hidden layers), logistic, lenet, cnn, or your own as "
            "`module:factory`. By default cnn for images; for a table logistic below 5000 examples, otherwise mlp-32.",
            DATA,
        ),
    )
    schema: Path | None = field(
        default=None,
        metadata=option("Your own data: file of public facts (types, ranges, categories), .toml or .json.", DATA),
    )
    test_data: Path | None = field(
        default=None,
        metadata=option(
            "Your own data: a file of the same kind to test on; by default a fifth of the rows is held out.", DATA
        ),
    )
    public: str | None = field(
        default=None,
        metadata=option(
            "Your own data: public facts that may be read from the rows: ranges, categories, classes, or several "
            "joined by +.",
            DATA,
        ),
    )
    task: str = field(
        default=TASKS[0],
        metadata=option("Your own data: classification, or regression (--target is a number with a range).", DATA),
    )
    target_range: tuple[float, float] | None = field(
        default=None,
        metadata=option("Regression: public range of the target; targets are clipped to it.", DATA, metavar="LOW HIGH"),
    )
    loss: str | None = field(
        default=None, metadata=option("Regression: loss, squared (default) or huber (robust to outliers).", DATA)
    )
    class_weights: str | None = field(
        default=None,
        metadata=option(
            "Public class weights, a,b,c or name=weight,… (others 1). They multiply an example's loss before clipping, "
            "so ε does not change; they have no effect on gradients that are clipped. Or 'private': from noisy class "
            "counts, which on their own cost a share of --epsilon, 0.05 or as in 'private:0.1'.",
            DATA,
            metavar="WEIGHTS",
        ),
    )
    public_test: bool = field(
        default=False,
        metadata=option("The test rows are public: release exact metrics of them.", DATA, flag="--public-test"),
    )
    private_metrics: float | None = field(
        default=None,
        metadata=option(
            "Release noisy metrics of the held-out rows, and spend this much of --epsilon on them.",
            PRIVACY,
            metavar="EPS",
        ),
    )
    private_ranges: float | None = field(
        default=None,
        metadata=option(
            "Your own data: release noisy ranges of numeric columns without a range before training, which on their "
            "own cost this share of --epsilon.",
            PRIVACY,
            metavar="EPS_SHARE",
        ),
    )
    private_classes: float | None = field(
        default=None,
        metadata=option(
            "Your own data: release the classes of a table with noise before training, which on its own costs this "
            f"share of --epsilon; {CLASS_SHARE:g} if they are neither in the schema nor public.",
            PRIVACY,
            metavar="EPS_SHARE",
        ),
    )
    unit: str | None = field(
        default=None,
        metadata=option(
            "Your own data: the column or array with the privacy unit of each row. All rows with the same value are "
            "one example, which the guarantee protects.",
            PRIVACY,
            metavar="COLUMN",
        ),
    )
    unit_normalise: bool = field(
        default=False,
        metadata=option(
            "With --unit: ids that differ only in Unicode form, case, spaces, invisible characters or a trailing '.0' "
            "are one unit; without it they are refused.",
            PRIVACY,
            flag="--unit-normalise",
        ),
    )
    rows_per_unit: int | None = field(
        default=None,
        metadata=option(
            f"Average at most this many randomly chosen rows of a unit before clipping; {ROWS_PER_UNIT} by default. It "
            "changes time and accuracy, not ε.",
            PRIVACY,
            metavar="M",
        ),
    )
    augment: str | None = field(
        default=None,
        metadata=option("Train on views of each image: shift, mirror or shift+mirror; no privacy cost.", DATA),
    )
    views: int | None = field(
        default=None,
        metadata=option("Number of views of an image that are averaged before clipping; 4 by default.", DATA),
    )
    validation: float = field(
        default=0.0,
        metadata=option("Fraction of the training data to hold out; neither trained on nor reported.", DATA),
    )
    resumed: bool = False  # the settings were read from a saved run
    seed: int = field(default=0, metadata=option("Public seed of initial weights and splits.", MACHINE))


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
    if read_weight_share(given.class_weights) is not None:
        found = found.awaiting_weights()
    elif given.class_weights is not None:
        found = found.with_class_weights(read_weights(given.class_weights, found))
    return replace(found, assumptions=_say_of_test_rows(given, found.assumptions))


def read_weight_share(text: str | None) -> float | None:
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
        private_classes=getattr(given, "method", METHOD) != "sgd",
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
    """Say how the classes of a table are obtained, if they are released with noise."""
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
    """Say what one example is, if a unit was given."""
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


# Default numbers for tables in `hush train` and `hush tune`: filled in if not given, and printed.

METHOD = "dp-sgd"
CHOSEN = ("batch_size", "lr", "average", "microbatch")
FOR_RATE = ("clip", "clip_mode", "settings")  # a default learning rate fits only the default clipping and momentum
TableNumbersSame = TypeVar("TableNumbersSame", bound="Training")


def unset_options(given: Given) -> Given:
    """The given options, with the names of the numbers that are still open."""
    blocked = {"lr"} if any(name in given for name in FOR_RATE) else set()
    blocked |= {"batch_size"} if "sample_rate" in given else set()
    return {**given, "left_open": frozenset(CHOSEN) - given.keys() - blocked}


def apply_table_defaults(given: TableNumbersSame, task: Problem) -> TableNumbersSame:
    """Fill in the model's name and a table's numbers if they were not given: a run keeps what it began with."""
    if given.data is None:
        return given
    asked = default_epsilon(given).epsilon
    epsilon = DEFAULT_EPSILON if asked is None else asked
    chosen = choose_for_table(task, given.method, epsilon, given.left_open)
    return replace(given, **{"model": name_model(task), **chosen})


def choose_for_table(task: Problem, method: str, epsilon: float, left_open: Collection[str]) -> dict[str, Any]:
    """The open numbers, for a table with classes, DP-SGD and a model of hush; nothing for other data, methods or
    models."""
    known = task.schema is not None and task.classes is not None and task.architecture.source == "shipped"
    if not known or method != METHOD or not left_open or not 0 < epsilon < math.inf:  # the plan refuses such an ε
        return {}
    numbers = choose_numbers(task.examples, epsilon, linear=task.architecture.name == LOGISTIC)
    filled = {name: value for name, value in vars(numbers).items() if name in left_open}
    words = ", ".join(f"{name.replace('_', '-')} {value}" for name, value in filled.items())
    say(f"chosen for {task.examples} examples at ε = {epsilon:g}: {words}")
    return filled


def name_model(task: Problem) -> str:
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


# Options of the run directory and the ledger.


@dataclass(frozen=True, kw_only=True)
class DirectoryOptions:
    """What to save of a run, and where to enter its spend."""

    out: Path | None = field(
        default=None,
        metadata=option("Folder of the run: release/ may be published, private/ may not.", KEEPING, saved=False),
    )
    resume: bool = field(
        default=False,
        metadata=option("Resume the run in --out, with its own options.", KEEPING, flag="--resume", saved=False),
    )
    trust_code: bool = field(
        default=False,
        metadata=option(
            "With --resume: import and call the code that the run's saved options name.",
            KEEPING,
            flag="--trust-code",
            saved=False,
        ),
    )
    overwrite: bool = field(
        default=False,
        metadata=option("Replace the finished run in --out.", KEEPING, flag="--overwrite", saved=False),
    )
    keep_secret: bool = field(
        default=False,
        metadata=option(
            "Keep the secret, which can subtract the noise, when the run is finished; by default it is deleted.",
            KEEPING,
            flag="--keep-secret",
        ),
    )
    checkpoint_every: int = field(default=EVERY, metadata=option("Number of steps between checkpoints.", KEEPING))
    ledger: Path | None = field(
        default=None, metadata=option("Ledger file in which the spend on the data is entered.", KEEPING, saved=False)
    )
    dataset: str | None = field(
        default=None,
        metadata=option("Name of the data in the ledger; 'default' if not given.", KEEPING, saved=False),
    )
    fit_budget: bool = field(
        default=False,
        metadata=option(
            "Lower --epsilon to what is left of the ledger's budget, if that is less.",
            KEEPING,
            flag="--fit-budget",
            saved=False,
        ),
    )
    new_dataset: bool = field(
        default=False,
        metadata=option("Confirm a name that is new to a ledger with a budget.", KEEPING, flag="--new-dataset"),
    )


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
