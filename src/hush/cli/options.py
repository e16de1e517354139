"""The options of the commands that take many, and how they become options of the command line.

A command is a class here, whose docstring is its help and whose fields are its options, and a function of one object of
that class in a separate module. An option that is not given keeps the default of its field. To add an option, add a
field and use it in that function. Nothing here imports torch or numpy: help and mistakes are shown at once.
"""

from __future__ import annotations

import glob
import inspect
import json
import tomllib
import typing
from collections.abc import Callable
from dataclasses import MISSING, dataclass, field, fields
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self, TypeVar

import typer

from hush._internal import validate
from hush._internal.settings import (
    CHECKPOINT_EVERY,
    CLASS_SHARE,
    DATA,
    MICROBATCH,
    MODEL,
    OPTIMISATION,
    OUTPUT,
    PRIVACY,
    ROWS_PER_UNIT,
    TASKS,
    Adjacency,
    ModelSettings,
    PlanSettings,
    SettingField,
    list_settings,
    option,
    same_option,
)
from hush.errors import InvalidInputError

if TYPE_CHECKING:
    from hush.methods import PlanConfig

GROUPS = (DATA, MODEL, PRIVACY, OPTIMISATION, OUTPUT)  # in the order of --help
MOST_USED = ("data", "target", "problem", "method", "epsilon", "epochs", "batch_size", "lr", "clip", "out")
Given = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class CommandOptions:
    """The options of every command here."""

    hidden: ClassVar[tuple[str, ...]] = ()  # inherited fields that are no options of this command

    as_json: bool = field(default=False, metadata=option("Print JSON on stdout.", OUTPUT, flag="--json", saved=False))

    @classmethod
    def read(cls, given: Given) -> Self:
        """The options of a command, from those given on the command line."""
        return cls(**given)


Kind = TypeVar("Kind", bound=CommandOptions)


def take(kind: type[Kind], run: Callable[[Kind], None]) -> Callable[..., None]:
    """The command that calls ``run`` with an object of ``kind``: an option for each field, and its docstring as help.

    The most used options and those without a default come first, then the groups."""
    known = [found for name, found in list_settings(kind).items() if name not in kind.hidden]
    parameters = [_parameter(found) for found in sorted(known, key=_place)]
    context = inspect.Parameter("context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)

    def command(context: typer.Context, **values: Any) -> None:
        run(kind.read({name: value for name, value in values.items() if _is_given(context, name)}))

    command.__doc__ = kind.__doc__
    command.__signature__ = inspect.Signature([context, *parameters])  # type: ignore[attr-defined]
    return command


def _parameter(found: SettingField) -> inspect.Parameter:
    """The field as a typer option; required if it has no default."""
    about = found.option
    flags = () if about.flag is None else (about.flag,)
    panel = None if _is_first(found) else about.group  # None: the panel at the top
    shown = typer.Option(*flags, help=about.help, metavar=about.metavar, rich_help_panel=panel)
    default = inspect.Parameter.empty if found.default is MISSING else found.default
    place = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(found.name, place, default=default, annotation=Annotated[found.hint, shown])


def _is_first(found: SettingField) -> bool:
    return found.name in MOST_USED or found.default is MISSING


def _place(found: SettingField) -> tuple[bool, int]:
    if found.name in MOST_USED:
        return False, MOST_USED.index(found.name)
    return (False, len(MOST_USED)) if _is_first(found) else (True, GROUPS.index(found.option.group or OUTPUT))


def _is_given(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name != "DEFAULT"


def name_flags(kind: type) -> dict[str, str]:
    """The flag of every setting of a command."""
    return {name: found.option.flag or f"--{name.replace('_', '-')}" for name, found in list_settings(kind).items()}


def split_pair(pair: str) -> tuple[str, str]:
    """The name and the text of one `--set` pair."""
    key, equals, text = pair.partition("=")
    if not equals:
        raise InvalidInputError(f"--set takes key=value, got '{pair}'")
    return key.strip().replace("-", "_"), text.strip()


def check_exists(path: Path | None, what: str = "file or folder") -> None:
    """Raise for a path that does not exist and is no pattern of names."""
    if path is not None and not path.exists() and not glob.has_magic(str(path)):
        raise InvalidInputError(f"there is no {what} '{path}'")


# The file of settings from which a run is resumed.


def write_settings(settings: Any) -> bytes:
    """The saved settings of a run, as JSON."""
    known = list_settings(type(settings))
    values = {name: getattr(settings, name) for name, found in known.items() if found.option.saved}
    plain = {n: {"path": str(v.resolve())} if isinstance(v, Path) else v for n, v in values.items()}
    return (json.dumps(plain, indent=2) + "\n").encode()


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


# Options that several commands share: the data and the model, the plan, and the files of a run.

DEFAULT_EPSILON = 3.0
EPSILON_OR_THREE = option("Calibrate the noise to this ε; 3 by default if no noise is given.", PRIVACY)
EXAMPLES = option("Number of examples N, a public number.", OPTIMISATION)


@dataclass(frozen=True, kw_only=True)
class TaskOptions:
    """The data, the model, and releases of the data other than the model."""

    # Data
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
    validation: float = field(
        default=0.0,
        metadata=option("Fraction of the training data to hold out; neither trained on nor reported.", DATA),
    )
    public_test: bool = field(
        default=False,
        metadata=option("The test rows are public: release exact metrics of them.", DATA, flag="--public-test"),
    )
    augment: str | None = field(
        default=None,
        metadata=option("Train on views of each image: shift, mirror or shift+mirror; no privacy cost.", DATA),
    )
    views: int | None = field(
        default=None,
        metadata=option("Number of views of an image that are averaged before clipping; 4 by default.", DATA),
    )

    # Model
    model: str | None = field(
        default=None,
        metadata=option(
            "Your own data: model mlp, mlp-64-32 (widths of hidden layers), logistic, lenet, cnn, or your own as "
            "`module:factory`. By default cnn for images; for a table logistic below 5000 examples, otherwise mlp-32.",
            MODEL,
        ),
    )
    loss: str | None = field(
        default=None, metadata=option("Regression: loss, squared (default) or huber (robust to outliers).", MODEL)
    )
    class_weights: str | None = field(
        default=None,
        metadata=option(
            "Public class weights, a,b,c or name=weight,… (others 1). They multiply an example's loss before clipping, "
            "so ε does not change; they have no effect on gradients that are clipped. Or 'private': from noisy class "
            "counts, which on their own cost a share of --epsilon, 0.05 or as in 'private:0.1'.",
            MODEL,
            metavar="WEIGHTS",
        ),
    )

    # Privacy
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

    # Optimisation
    seed: int = field(default=0, metadata=option("Public seed of initial weights and splits.", OPTIMISATION))

    resumed: bool = False  # the settings were read from a saved run

    def check_files(self) -> None:
        """Raise for a file that does not exist."""
        for path in (self.data, self.test_data, self.schema):
            check_exists(path)


@dataclass(frozen=True, kw_only=True)
class PlanOptions(PlanSettings, CommandOptions):
    """The method, its options and the settings of its plan."""

    method: str = field(
        default="dp-sgd",
        metadata=option(
            "Training method: one of `hush methods`, `auto`, or your own as `module:factory`.", OPTIMISATION
        ),
    )
    settings: list[str] | None = field(
        default=None,
        metadata=option(
            "Set an option of the method; see `hush methods`.", OPTIMISATION, flag="--set", metavar="KEY=VALUE"
        ),
    )
    batch_size: int = field(default=256, metadata=same_option(PlanSettings, "batch_size"))
    batch_may_shrink: bool = False  # to fit the data, if the user did not choose the batch size

    def setting(self, examples: int, **data: Any) -> PlanConfig:
        """The settings of a plan for ``examples`` examples, with further facts about the data."""
        from hush.methods import PlanConfig

        return PlanConfig(examples, **{f.name: getattr(self, f.name) for f in fields(PlanSettings)}, **data)


@dataclass(frozen=True, kw_only=True)
class DirectoryOptions:
    """What is kept of a run, and where its spend is entered."""

    out: Path | None = field(
        default=None,
        metadata=option("Folder of the run: release/ may be published, private/ may not.", OUTPUT, saved=False),
    )
    resume: bool = field(
        default=False,
        metadata=option("Resume the run in --out, with its own options.", OUTPUT, flag="--resume", saved=False),
    )
    trust_code: bool = field(
        default=False,
        metadata=option(
            "With --resume: import and call the code that the run's saved options name.",
            OUTPUT,
            flag="--trust-code",
            saved=False,
        ),
    )
    overwrite: bool = field(
        default=False,
        metadata=option("Replace the finished run in --out.", OUTPUT, flag="--overwrite", saved=False),
    )
    keep_secret: bool = field(
        default=False,
        metadata=option(
            "Keep the secret, which can subtract the noise, when the run is finished; by default it is deleted.",
            OUTPUT,
            flag="--keep-secret",
        ),
    )
    checkpoint_every: int = field(
        default=CHECKPOINT_EVERY, metadata=option("Number of steps between checkpoints.", OUTPUT)
    )
    ledger: Path | None = field(
        default=None, metadata=option("Ledger file in which the spend on the data is entered.", OUTPUT, saved=False)
    )
    dataset: str | None = field(
        default=None,
        metadata=option("Name of the data in the ledger; 'default' if not given.", OUTPUT, saved=False),
    )
    fit_budget: bool = field(
        default=False,
        metadata=option(
            "Lower --epsilon to what is left of the ledger's budget, if that is less.",
            OUTPUT,
            flag="--fit-budget",
            saved=False,
        ),
    )
    new_dataset: bool = field(
        default=False,
        metadata=option("Confirm a name that is new to a ledger with a budget.", OUTPUT, flag="--new-dataset"),
    )


# `hush train`

MOST_SEED = 2**63  # torch's limit


def read_recipes() -> dict[str, Given]:
    """Named sets of recommended settings, from a file that ships with hush."""
    return tomllib.loads(resources.files("hush.datasets").joinpath("recipes.toml").read_text(encoding="utf-8"))


@dataclass(frozen=True, kw_only=True)
class Training(TaskOptions, PlanOptions, DirectoryOptions, ModelSettings):
    """Train a model. With no flags: digits, DP-SGD, ε = 3, in seconds.

    Example: `hush train --problem digits-mlp --method dp-sgd --epsilon 3 --epochs 10 --lr 0.5 --clip 1 --out run`
    """

    # Model
    sanitize_at: str | None = field(
        default=None,
        metadata=option("Methods sanitize…: put the layer after this module of the problem's model.", MODEL),
    )

    # Privacy
    epsilon: float | None = field(default=None, metadata=EPSILON_OR_THREE)
    adjacency: Adjacency | None = field(
        default=None,
        metadata=option(
            "Adjacency: zero-out or replace; by default that of the sampler. Not add-remove: examples are counted.",
            PRIVACY,
        ),
    )
    accept_delta: bool = field(
        default=False,
        metadata=option("Accept a δ of 1/N or more, which permits releasing a whole record.", PRIVACY),
    )
    secret_seed: int | None = field(
        default=None,
        metadata=option("Seed of sampling and noise, for reproduction only; must stay secret.", PRIVACY, saved=False),
    )

    # Optimisation
    recipe: str | None = field(
        default=None,
        metadata=option(
            f"Recommended settings: {', '.join(read_recipes())}. Options that you give override them.", OPTIMISATION
        ),
    )
    lr: float | None = field(
        default=None,
        metadata=option(
            "Learning rate; by default that of the method, √(Nε)/80 up to 3 for dp-sgd on a table, half of it for "
            "logistic.",
            OPTIMISATION,
        ),
    )
    clip: float | None = field(default=None, metadata=option("Clip norm c of one example's gradient.", OPTIMISATION))
    clip_mode: str | None = field(
        default=None,
        metadata=option(
            "Clipping: plain, normalised (divided by c), or automatic (divided by its own norm).", OPTIMISATION
        ),
    )
    batch_size: int = field(
        default=256,
        metadata=option("Expected number of examples per step; N/16 up to 4096 for dp-sgd on a table.", OPTIMISATION),
    )
    average: str | None = field(
        default=None,
        metadata=option(
            "Release averaged weights: ema:0.999, tail:0.25 for the last quarter, or none. By default tail:0.5 for "
            "dp-sgd on a table.",
            OPTIMISATION,
        ),
    )
    device: str = field(default="cpu", metadata=option("Device to train on: cpu, cuda, cuda:0 or mps.", OPTIMISATION))
    microbatch: int = field(
        default=MICROBATCH,
        metadata=option("Largest number of examples computed at a time; 4096 for a table.", OPTIMISATION),
    )
    noise_shards: bool = field(
        default=False,
        metadata=option(
            "Under torchrun: each process generates and keeps one slice of the noise.",
            OPTIMISATION,
            flag="--noise-shards",
            saved=False,
        ),
    )

    left_open: frozenset[str] = frozenset()  # numbers that the user did not give

    @classmethod
    def read(cls, given: Given) -> Self:
        """The given options, over those of the recipe, over those of the run to be resumed."""
        return super().read(note_open(recall(given)))

    def __post_init__(self) -> None:
        ModelSettings.__post_init__(self)
        validate.positive_int(checkpoint_every=self.checkpoint_every)
        if self.fit_budget and not self.resumed and (self.ledger is None or self.noise_multiplier is not None):
            raise InvalidInputError(
                "--fit-budget lowers ε to the budget of a ledger: give a --ledger, and no --noise-multiplier"
            )
        if not 0 <= self.seed < MOST_SEED:
            raise InvalidInputError(f"seed must be an integer of at least 0 and below {MOST_SEED}, got {self.seed}")
        if not self.resume:  # a finished run is reported again without its files
            self.check_files()


CHOSEN = ("batch_size", "lr", "average", "microbatch")  # numbers that a table has defaults for
FOR_RATE = ("clip", "clip_mode", "settings")  # a default learning rate fits only the default clipping and momentum
IMPORTED = ("method", "problem", "model")  # options that may name code as package.module:attribute
KEPT_WITH = {*list_settings(DirectoryOptions), *list_settings(CommandOptions), "secret_seed"}  # no part of a plan


def note_open(given: Given) -> Given:
    """The given options, with the names of the numbers that are still open."""
    blocked = {"lr"} if any(name in given for name in FOR_RATE) else set()
    blocked |= {"batch_size"} if "sample_rate" in given else set()
    return {
        **given,
        "left_open": frozenset(CHOSEN) - given.keys() - blocked,
        "batch_may_shrink": given.get("batch_may_shrink", "batch_size" not in given),
    }


def recall(given: Given) -> Given:
    """The given options, over those of the recipe, over those of the run to be resumed."""
    recipe: Given = {}
    if (name := given.get("recipe")) is not None:
        validate.choice(read_recipes(), recipe=name)
        recipe = read_recipes()[name]
    if not given.get("resume") or "out" not in given:
        return _put_over(recipe, given)
    if not given["out"].exists() and not given.keys() - KEPT_WITH:
        raise InvalidInputError(f"'{given['out']}' does not exist: nothing to resume")
    from hush.release.folder import RELEASE, was_begun
    from hush.run_directory import OPTIONS

    path = given["out"] / "private" / OPTIONS
    if path.is_file():
        if given.get("fit_budget"):  # the run's ε is already chosen
            given = {name: value for name, value in given.items() if name != "epsilon"}
        return _put_over(_check_trusted(read_settings(path, Training), given) | recipe, given) | {"resumed": True}
    if given["out"].exists() and not {"problem", "data", "recipe"} & given.keys():
        if not was_begun(given["out"]) and not (given["out"] / RELEASE).exists():
            raise InvalidInputError(f"no run was begun in '{given['out']}': give the options again")
        raise InvalidInputError(
            f"the run in '{given['out']}' cannot be resumed, because its options are missing: give --problem or --data"
        )
    return _put_over(recipe, given)


def _check_trusted(kept: Given, given: Given) -> Given:
    """The saved options of a run; code that they name needs --trust-code, as anyone may have written the file."""
    for name in IMPORTED:
        code = kept.get(name)
        if isinstance(code, str) and ":" in code and given.get(name) != code and not given.get("trust_code"):
            raise InvalidInputError(
                f"the run in '{given['out']}' imports and calls '{code}' as its {name}: if you trust that code, add "
                "--trust-code"
            )
    return kept


def _put_over(before: Given, given: Given) -> Given:
    """The given options over earlier ones; a --set overrides the flag of the same setting."""
    named = {split_pair(pair)[0] for pair in given.get("settings", ())}
    return {name: value for name, value in before.items() if name not in named} | given


# The other commands.


@dataclass(frozen=True, kw_only=True)
class Tuning(Training):
    """Search for good settings at a proven cost: only the best of a secret number of trials is released.

    Example: `hush tune --problem digits-mlp --epsilon 3 --search lr=0.1..2 --search clip=0.5,1 --public-test --out run`
    """

    hidden = (
        "resume",
        "trust_code",
        "keep_secret",
        "checkpoint_every",
        "secret_seed",
        "recipe",
        "overwrite",
        "stop",
        "noise_shards",
        "fit_budget",
    )

    search: list[str] | None = field(
        default=None,
        metadata=option(
            "What to search: lr=0.1..2 (uniform in the logarithm) or clip=0.5,1,2; lr=0.05..5 by default.",
            OPTIMISATION,
            metavar="NAME=VALUES",
        ),
    )
    mean_trials: float = field(default=10.0, metadata=option("Average number of trials.", OPTIMISATION))
    shape: float = field(
        default=1.0,
        metadata=option(
            "Distribution of the number of trials: 1 geometric, 0 logarithmic (less ε), inf Poisson.", PRIVACY
        ),
    )
    strategy: str = field(
        default="random", metadata=option("How candidates are drawn: random, the only one with a proof.", OPTIMISATION)
    )

    @classmethod
    def read(cls, given: Given) -> Self:
        """The learning rate is not left open: it is searched, or chosen for the searched settings."""
        noted = note_open(given)
        return cls(**{**noted, "left_open": noted["left_open"] - {"lr"}})


@dataclass(frozen=True, kw_only=True)
class Planning(TaskOptions, CommandOptions):
    """Compare ε, batch sizes and epochs before training: noise, and minutes if the data are given.

    Example: `hush plan --examples 60000 --epsilon 1,3 --batch-size 256,1024 --epochs 10,30`
    """

    hidden = ("augment", "views")

    examples: int | None = field(
        default=None,
        metadata=option(
            "Number of examples N, a public number; counted if --data or --problem is given.", OPTIMISATION
        ),
    )
    parameters: int | None = field(
        default=None,
        metadata=option("Number of trained weights; counted if --data or --problem is given.", MODEL),
    )
    batch_size: str | None = field(
        default=None,
        metadata=option("Batch sizes; by default powers of two up to 4096.", OPTIMISATION, metavar="A,B,…"),
    )
    epochs: str = field(
        default="5,20,50", metadata=option("Numbers of passes over the data.", OPTIMISATION, metavar="A,B,…")
    )
    epsilon: str = field(default="1,3,8", metadata=option("Values of ε to calibrate to.", PRIVACY, metavar="A,B,…"))
    delta: float = field(default=1e-5, metadata=same_option(PlanSettings, "delta"))
    method: str = field(default="dp-sgd", metadata=option("One of `hush methods`, or your own.", OPTIMISATION))
    settings: list[str] | None = field(default=None, metadata=same_option(PlanOptions, "settings"))
    out: Path | None = field(default=None, metadata=option("Page to write, such as plan.html.", OUTPUT))

    def __post_init__(self) -> None:
        self.check_files()


@dataclass(frozen=True, kw_only=True)
class AccountOptions(PlanOptions):
    """Compute what a plan costs (give the noise), or how much noise an ε needs (give `--epsilon`).

    Example: `hush account --examples 60000 --batch-size 256 --epochs 20 --noise-multiplier 1.0`
    """

    hidden = ("average",)

    examples: int = field(metadata=EXAMPLES)


@dataclass(frozen=True, kw_only=True)
class NoiseOptions(PlanOptions):
    """Show C, C⁻¹ and the noise accumulated over steps, compared with independent noise at the same ε.

    Example: `hush noise show --method dp-blt --examples 60000 --batch-size 500 --epochs 10 --epsilon 3`
    """

    hidden = ("average", "sanitize_width", "sanitize_scale")

    out: Path = field(default=Path("noise.html"), metadata=option("The page to write.", OUTPUT))
    method: str = field(default="dp-matrix-me", metadata=same_option(PlanOptions, "method"))
    epsilon: float | None = field(default=None, metadata=EPSILON_OR_THREE)
    examples: int = field(default=6000, metadata=EXAMPLES)
    batch_size: int = field(default=100, metadata=same_option(PlanOptions, "batch_size"))
    epochs: float | None = field(
        default=None,
        metadata=option(
            "Passes over the data, ⌈N/L⌉ steps each; 4 by default, 1 for dp-matrix-se and dp-matrix-se-lambda.",
            OPTIMISATION,
        ),
    )
