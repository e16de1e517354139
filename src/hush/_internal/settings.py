"""Settings as fields of dataclasses, and the settings that every plan has.

The command line makes its options from them, so this module imports nothing that takes time.
"""

from __future__ import annotations

import types
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from hush._internal import validate

Adjacency = Literal["add-remove", "replace", "zero-out"]
NoiseScale = Literal["published", "per-number"]
DropoutPlace = Literal["after", "before"]
Initialisation = Literal["torch", "published"]

# Defaults that the help of a command states, here once for the command line and the modules that use them.
TASKS = ("classification", "regression")
ROWS_PER_UNIT = 8
CHECKPOINT_EVERY = 50  # steps between two checkpoints
MICROBATCH = 400  # rows computed before their gradients are summed; in rigorous arithmetic never more than 384
CLASS_SHARE = 0.2  # of ε for noisy classes on their own; composed with training it takes about its square of the noise
LAYER_WIDTH, LAYER_CLIP = 50, 0.5  # of a sanitisation layer

# What can be set on a plan, each setting once: its type, its default, its help, and whether a spec may vary it.
#
# :func:`hush.make_plan` takes these fields by name, the command line makes its options from them, and a spec's axes are
# the fields marked ``axis``. A setting is added as one field here.

# The groups of settings are what a user decides.
DATA, MODEL, PRIVACY, OPTIMISATION, OUTPUT = "Data", "Model", "Privacy", "Optimisation", "Output"


@dataclass(frozen=True)
class Option:
    """What a field says of itself. ``flag`` and ``metavar`` are the shell's, where they do not follow from the name."""

    help: str
    group: str | None = None
    axis: bool = False  # whether a spec may vary it
    flag: str | None = None
    metavar: str | None = None
    saved: bool = True  # whether a run keeps it, for the command that resumes the run


def option(help: str, group: str | None = None, **more: Any) -> Mapping[str, Option]:
    """The metadata of a field: ``x: int = field(default=1, metadata=option("…", GROUP))``."""
    return {"option": Option(help, group, **more)}


def same_option(kind: type, name: str) -> Mapping[str, Option]:
    """The metadata of a field of another class, for a field of the same name that has another default."""
    return {"option": list_settings(kind)[name].option}


@dataclass(frozen=True)
class SettingField:
    """One field of a class of settings: its type without Literals, and what it says of itself."""

    name: str
    hint: Any
    default: Any
    option: Option


def list_settings(kind: type) -> dict[str, SettingField]:
    """The fields of a dataclass that carry an :class:`Option`, by name."""
    hints = get_type_hints(kind)
    return {
        f.name: SettingField(f.name, _plain_hint(hints[f.name]), f.default, f.metadata["option"])
        for f in fields(kind)
        if "option" in f.metadata
    }


def _plain_hint(hint: Any) -> Any:
    """The type with str for a Literal of words: which words are known is checked where they are used."""
    if get_origin(hint) is Literal:
        return str
    if get_origin(hint) in (Union, types.UnionType):
        return Union[tuple(_plain_hint(part) for part in get_args(hint))]  # noqa: UP007
    return hint


def _plain_types(hint: Any) -> tuple[type, ...]:
    """The types of a value that is given: without None, and a whole number will do for a float."""
    parts = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    given = tuple(part for part in parts if part is not type(None))
    return (*given, int) if float in given else given


def list_axes(kind: type) -> dict[str, tuple[type, ...]]:
    """What a spec may vary, and the types that its values have."""
    return {name: _plain_types(found.hint) for name, found in list_settings(kind).items() if found.option.axis}


def write_help(kind: type) -> str:
    """The settings of a class with their help, as lines of a docstring."""
    return "\n".join(f"- ``{name}``: {found.option.help}" for name, found in list_settings(kind).items())


@dataclass(frozen=True, kw_only=True)
class PlanSettings:
    """What can be set on every method's plan, before anything is known of the data."""

    epsilon: float | None = field(default=None, metadata=option("Calibrate the noise to this ε.", PRIVACY, axis=True))
    delta: float = field(default=1e-5, metadata=option("δ of the guarantee; keep it below 1/N.", PRIVACY, axis=True))
    noise_multiplier: float | None = field(default=None, metadata=option("σ of the privacy event.", PRIVACY, axis=True))
    node_noise: float | None = field(
        default=None,
        metadata=option("Noise of a tree node, in clip units: σ times the sensitivity.", PRIVACY, axis=True),
    )
    accountant: str = field(
        default="auto", metadata=option("pld, rdp or gdp; auto takes the tightest that holds.", PRIVACY, axis=True)
    )
    adjacency: Adjacency | None = field(
        default=None,
        metadata=option("add-remove, replace or zero-out; the sampler's own by default.", PRIVACY, axis=True),
    )
    accept_claimed: bool = field(
        default=False,
        metadata=option("Run a method whose ε is claimed by a paper and not proven.", PRIVACY, axis=True),
    )
    arithmetic: str = field(
        default="rigorous",
        metadata=option(
            "rigorous: rows are computed in chunks of one size, so that ε is proven; or fast: all at once, and ε is "
            "claimed, because rounding that depends on their number is not bounded.",
            PRIVACY,
            axis=True,
        ),
    )
    batch_size: int = field(metadata=option("Expected number of examples a step.", OPTIMISATION, axis=True))
    epochs: float | None = field(
        default=None,
        metadata=option(
            "Passes over the data, ⌈N/L⌉ steps each; 30 by default, 1 for methods that take one (dp-matrix-se).",
            OPTIMISATION,
            axis=True,
        ),
    )
    steps: int | None = field(
        default=None, metadata=option("Number of steps; overrides the epochs.", OPTIMISATION, axis=True)
    )
    sampling: str | None = field(
        default=None,
        metadata=option(
            "poisson, fixed-size, shuffled or same-order; the method's own by default.", OPTIMISATION, axis=True
        ),
    )
    sample_rate: float | None = field(
        default=None,
        metadata=option("Poisson rate q; the batch size over the examples by default.", OPTIMISATION, axis=True),
    )
    average: str | None = field(
        default=None,
        metadata=option(
            "Release averaged weights: ema:0.999, or tail:0.25 for the last quarter; or none.", OPTIMISATION, axis=True
        ),
    )
    sanitize_width: int | None = field(
        default=None,
        metadata=option(
            f"Methods sanitize…: number n of values released per record, {LAYER_WIDTH} by default.", MODEL, axis=True
        ),
    )
    sanitize_scale: NoiseScale = field(
        default="published",
        metadata=option(
            "Method sanitize: standard deviation of the noise of a value: published (Cσ√n), or per-number (Cσ), which "
            "is accounted as σ/√n and needs the width n.",
            PRIVACY,
            axis=True,
        ),
    )


@dataclass(frozen=True, kw_only=True)
class ModelSettings:
    """What can be set on every model, and on a sanitisation layer in it; none of this changes what a plan costs."""

    initialisation: Initialisation = field(
        default="torch",
        metadata=option(
            "Initial weights: torch's own, or published: Kaiming for convolutions, Xavier for linear layers.",
            MODEL,
            axis=True,
        ),
    )
    sanitize_clip: float | None = field(
        default=None,
        metadata=option(f"Methods sanitize…: clip every value to ± this, {LAYER_CLIP} by default.", MODEL, axis=True),
    )
    sanitize_dropout: float | None = field(
        default=None, metadata=option("Methods sanitize…: dropout in the layer, none by default.", MODEL, axis=True)
    )
    dropout_place: DropoutPlace = field(
        default="after",
        metadata=option("Methods sanitize…: dropout after the noise, or before it.", MODEL, axis=True),
    )
    stop: str | None = field(
        default=None,
        metadata=option(
            "Method sanitize: stop early once the deviation of the noisy outputs was flat for WINDOW epochs, up to "
            "slope LIMIT, such as 10:1.2e-4; or none. It saves time; ε is still that of all planned steps.",
            OPTIMISATION,
            axis=True,
        ),
    )

    def __post_init__(self) -> None:
        validate.choice(get_args(Initialisation), initialisation=self.initialisation)
        validate.choice(get_args(DropoutPlace), dropout_place=self.dropout_place)
        if self.sanitize_clip is not None:
            validate.positive(sanitize_clip=self.sanitize_clip)
        if self.sanitize_dropout:
            validate.probability(sanitize_dropout=self.sanitize_dropout)
