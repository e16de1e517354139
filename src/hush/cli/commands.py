"""The options of the commands that make a plan, and those commands: what they run is imported when it runs.

Nothing here imports torch, numpy or the accountants, so that help and errors in options are shown at once.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path

import typer

from hush._internal import validate
from hush._internal.settings import (
    LAYER_CLIP,
    LAYER_WIDTH,
    LENGTH,
    METHOD,
    MICROBATCH,
    PRIVACY,
    Adjacency,
    PlanSettings,
    list_settings,
    option,
    same_option,
)
from hush.cli.options import (
    EPSILON_OR_THREE,
    EXAMPLES,
    KEEPING,
    MACHINE,
    DirectoryOptions,
    Given,
    OutputOptions,
    PlanOptions,
    TaskOptions,
    allow_smaller_batch,
    check_names,
    read_settings,
    split_pair,
    take,
    unset_options,
)
from hush.errors import InvalidInputError

# `hush account`


@dataclass(frozen=True, kw_only=True)
class AccountOptions(PlanOptions):
    """Options of `hush account`."""

    examples: int = field(metadata=EXAMPLES)


@take(AccountOptions, without=("average",))
def account(given: AccountOptions) -> None:
    """Compute what a plan costs (give the noise), or how much noise an ε needs (give `--epsilon`).

    Example: `hush account --examples 60000 --batch-size 256 --epochs 20 --noise-multiplier 1.0`
    """
    check_names(given)
    from hush.cli.account import account as run

    run(given)


# `hush noise show`

noise = typer.Typer(help="Show the noise of a method.", no_args_is_help=True)


@dataclass(frozen=True, kw_only=True)
class NoiseOptions(PlanOptions):
    """Options of `hush noise show`."""

    out: Path = field(default=Path("noise.html"), metadata=option("The page to write.", KEEPING))
    method: str = field(default="dp-matrix-me", metadata=same_option(PlanOptions, "method"))
    epsilon: float | None = field(default=None, metadata=EPSILON_OR_THREE)
    examples: int = field(default=6000, metadata=EXAMPLES)
    batch_size: int = field(default=100, metadata=same_option(PlanOptions, "batch_size"))
    epochs: float | None = field(
        default=None,
        metadata=option(
            "Passes over the data, ⌈N/L⌉ steps each; 4 by default, 1 for dp-matrix-se and dp-matrix-se-lambda.", LENGTH
        ),
    )


@noise.callback()
def _noise() -> None:
    """Show the noise of a method."""


@noise.command("show")
@take(NoiseOptions, without=("average",))
def show_noise(given: NoiseOptions) -> None:
    """Show C, C⁻¹ and the noise accumulated over steps, compared with independent noise at the same ε.

    Example: `hush noise show --method dp-blt --examples 60000 --batch-size 500 --epochs 10 --epsilon 3`
    """
    check_names(given)
    from hush.cli.noise import show_noise as run

    run(given)


# `hush plan`

LIST = "A,B,…"


@dataclass(frozen=True, kw_only=True)
class Planning(TaskOptions, OutputOptions):
    """Options of `hush plan`."""

    examples: int | None = field(
        default=None,
        metadata=option("Number of examples N, a public number; counted if --data or --problem is given.", LENGTH),
    )
    parameters: int | None = field(
        default=None,
        metadata=option("Number of trained weights; counted if --data or --problem is given.", LENGTH),
    )
    batch_size: str | None = field(
        default=None, metadata=option("Batch sizes; by default powers of two up to 4096.", LENGTH, metavar=LIST)
    )
    epochs: str = field(default="5,20,50", metadata=option("Numbers of passes over the data.", LENGTH, metavar=LIST))
    epsilon: str = field(default="1,3,8", metadata=option("Values of ε to calibrate to.", PRIVACY, metavar=LIST))
    delta: float = field(default=1e-5, metadata=same_option(PlanSettings, "delta"))
    method: str = field(default="dp-sgd", metadata=option("One of `hush methods`, or your own.", METHOD))
    settings: list[str] | None = field(default=None, metadata=same_option(PlanOptions, "settings"))
    out: Path | None = field(default=None, metadata=option("Page to write, such as plan.html.", KEEPING))


@take(Planning, without=("augment", "views"))
def plan(given: Planning) -> None:
    """Compare ε, batch sizes and epochs before training: noise, and minutes if the data are given.

    Example: `hush plan --examples 60000 --epsilon 1,3 --batch-size 256,1024 --epochs 10,30`
    """
    check_names(given)
    from hush.cli.plan import plan as run

    run(given)


# `hush train`


@dataclass(frozen=True, kw_only=True)
class StopOptions:
    """When training ends before all planned steps are taken."""

    stop: str | None = field(
        default=None,
        metadata=option(
            "Method sanitize: stop early once the deviation of the noisy outputs was flat for WINDOW epochs, up to "
            "slope LIMIT, such as 10:1.2e-4; or none. It saves time; ε is still that of all planned steps.",
            LENGTH,
        ),
    )


@dataclass(frozen=True, kw_only=True)
class LayerOptions:
    """Position and width of the layer."""

    sanitize_at: str | None = field(
        default=None,
        metadata=option("Methods sanitize…: put the layer after this module of the problem's model.", METHOD),
    )
    sanitize_width: int | None = field(
        default=None,
        metadata=option(f"Methods sanitize…: number of values released per record, {LAYER_WIDTH} by default.", METHOD),
    )
    sanitize_clip: float | None = field(
        default=None,
        metadata=option(f"Methods sanitize…: clip every value to ± this, {LAYER_CLIP} by default.", METHOD),
    )


MOST_SEED = 2**63  # torch's limit


def read_recipes() -> dict[str, Given]:
    """Named sets of recommended settings, from a file that ships with hush."""
    return tomllib.loads(resources.files("hush.datasets").joinpath("recipes.toml").read_text(encoding="utf-8"))


@dataclass(frozen=True, kw_only=True)
class Training(TaskOptions, LayerOptions, PlanOptions, StopOptions, DirectoryOptions):
    """Options of `hush train`."""

    recipe: str | None = field(
        default=None,
        metadata=option(
            f"Recommended settings: {', '.join(read_recipes())}. Options that you give override them.", METHOD
        ),
    )
    lr: float | None = field(
        default=None,
        metadata=option(
            "Learning rate; by default that of the method, √(Nε)/80 up to 3 for dp-sgd on a table, half of it for "
            "logistic.",
            METHOD,
        ),
    )
    batch_size: int = field(
        default=256,
        metadata=option("Expected number of examples per step; N/16 up to 4096 for dp-sgd on a table.", LENGTH),
    )
    average: str | None = field(
        default=None,
        metadata=option(
            "Release averaged weights: ema:0.999, tail:0.25 for the last quarter, or none. By default tail:0.5 for "
            "dp-sgd on a table.",
            LENGTH,
        ),
    )
    left_open: frozenset[str] = frozenset()  # numbers that the user did not give
    clip: float | None = field(default=None, metadata=option("Clip norm c of one example's gradient.", METHOD))
    clip_mode: str | None = field(
        default=None,
        metadata=option("Clipping: plain, normalised (divided by c), or automatic (divided by its own norm).", METHOD),
    )
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
        metadata=option("Seed of sampling and noise, for reproduction only; must stay secret.", MACHINE, saved=False),
    )
    device: str = field(default="cpu", metadata=option("Device to train on: cpu, cuda, cuda:0 or mps.", MACHINE))
    microbatch: int = field(
        default=MICROBATCH, metadata=option("Largest number of examples computed at a time; 4096 for a table.", MACHINE)
    )
    noise_shards: bool = field(
        default=False,
        metadata=option(
            "Under torchrun: each process generates and keeps one slice of the noise.",
            MACHINE,
            flag="--noise-shards",
            saved=False,
        ),
    )

    def __post_init__(self) -> None:
        validate.positive_int(checkpoint_every=self.checkpoint_every)
        if self.dataset is not None:
            from hush.ledger.entries import check_name

            check_name(self.dataset)
        if self.fit_budget and not self.resumed and (self.ledger is None or self.noise_multiplier is not None):
            raise InvalidInputError(
                "--fit-budget lowers ε to the budget of a ledger: give a --ledger, and no --noise-multiplier"
            )
        if not 0 <= self.seed < MOST_SEED:
            raise InvalidInputError(f"seed must be an integer of at least 0 and below {MOST_SEED}, got {self.seed}")


IMPORTED = ("method", "problem", "model")  # options that may name code as package.module:attribute
KEPT_WITH = {
    *list_settings(DirectoryOptions),
    *list_settings(OutputOptions),
    "secret_seed",
}  # no part of a plan


def recall(given: Given) -> Given:
    """The given options, over those of the recipe, over those of the run to be resumed."""
    recipe: Given = {}
    if (name := given.get("recipe")) is not None:
        validate.choice(read_recipes(), recipe=name)
        recipe = read_recipes()[name]
    if not given.get("resume") or "out" not in given:
        return _put_over(recipe, given)
    from hush.release.folder import RELEASE, was_begun
    from hush.run_directory import OPTIONS

    path = given["out"] / "private" / OPTIONS
    if path.is_file():
        if given.get("fit_budget"):  # the run's ε is already chosen
            given = {name: value for name, value in given.items() if name != "epsilon"}
        return _put_over(_check_trusted(read_settings(path, Training), given) | recipe, given) | {"resumed": True}
    if not given["out"].exists() and not given.keys() - KEPT_WITH:
        raise InvalidInputError(f"'{given['out']}' does not exist: nothing to resume")
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


@take(Training, resolve=lambda given: allow_smaller_batch(unset_options(recall(given))))
def train(given: Training) -> None:
    """Train a model. With no flags: digits, DP-SGD, ε = 3, in seconds.

    Example: `hush train --problem digits-mlp --method dp-sgd --epsilon 3 --epochs 10 --lr 0.5 --clip 1 --out run`
    """
    check_names(given)
    from hush.cli.train import train as run

    run(given)


# `hush tune`

LEFT_OUT = (
    "resume",
    "trust_code",
    "keep_secret",
    "checkpoint_every",
    "secret_seed",
    "recipe",
    "overwrite",
    "batch_may_shrink",
    "stop",
    "noise_shards",
    "fit_budget",
)


@dataclass(frozen=True, kw_only=True)
class Tuning(Training):
    """Options of `hush tune`."""

    search: list[str] | None = field(
        default=None,
        metadata=option(
            "What to search: lr=0.1..2 (uniform in the logarithm) or clip=0.5,1,2; lr=0.05..5 by default.",
            METHOD,
            metavar="NAME=VALUES",
        ),
    )
    mean_trials: float = field(default=10.0, metadata=option("Average number of trials.", METHOD))
    shape: float = field(
        default=1.0,
        metadata=option(
            "Distribution of the number of trials: 1 geometric, 0 logarithmic (less ε), inf Poisson.", PRIVACY
        ),
    )
    strategy: str = field(
        default="random", metadata=option("How candidates are drawn: random, the only one with a proof.", METHOD)
    )


def _note_open(given: Given) -> Given:
    """The given options, with the names of the numbers that are still open. The learning rate is not among them: it is
    searched, or chosen for the searched settings."""
    noted = unset_options(given)
    return allow_smaller_batch({**noted, "left_open": noted["left_open"] - {"lr"}})


@take(Tuning, without=LEFT_OUT, resolve=_note_open)
def tune(given: Tuning) -> None:
    """Search for good settings at a proven cost: only the best of a secret number of trials is released.

    Example: `hush tune --problem digits-mlp --epsilon 3 --search lr=0.1..2 --search clip=0.5,1 --public-test --out run`
    """
    check_names(given)
    from hush.cli.tune import tune as run

    run(given)
