"""The options of `hush train` that say where the sanitisation layer of a model is."""

from __future__ import annotations

from dataclasses import dataclass, field

from hush import validate
from hush.cli.console import say
from hush.errors import BadInput
from hush.plan import Plan
from hush.problems import Problem
from hush.problems.sanitized import CLIP, WIDTH, LayerPlace, hide_clip, put_layer
from hush.sanitize.adapting import Adapting
from hush.sanitize.hybrid import Hybrid
from hush.sanitize.published import Published
from hush.sanitize.released import Released
from hush.settings import METHOD, option

NAMES = "--sanitize-at, --sanitize-width and --sanitize-clip"


@dataclass(frozen=True, kw_only=True)
class LayerOptions:
    """Where the layer is, and how wide."""

    sanitize_at: str | None = field(
        default=None,
        metadata=option("Methods sanitize…: the layer goes behind this module of the problem's own model.", METHOD),
    )
    sanitize_width: int | None = field(
        default=None,
        metadata=option(f"Methods sanitize…: numbers of a record that are released, {WIDTH} by default.", METHOD),
    )
    sanitize_clip: float | None = field(
        default=None,
        metadata=option(f"Methods sanitize…: every number is cut to ± this, {CLIP} by default.", METHOD),
    )


def sanitise_task(task: Problem, plan: Plan, given: LayerOptions) -> Problem:
    """The problem with a layer in its model, where the method releases rows."""
    asked = (given.sanitize_at, given.sanitize_width, given.sanitize_clip)
    if not isinstance(plan.query, Released | Hybrid | Published | Adapting):
        if any(value is not None for value in asked):
            raise BadInput(f"{NAMES} are for methods that release activations: use --method sanitize-once")
        return task
    if given.sanitize_width is not None:
        validate.whole(sanitize_width=given.sanitize_width)
    if given.sanitize_clip is not None:
        validate.positive(sanitize_clip=given.sanitize_clip)
    place = LayerPlace(*asked, plan.query.nonnegative)
    found = put_layer(task, place, frozen=isinstance(plan.query, Released))
    at = found.architecture.arguments["at"]
    say(f"sanitisation layer behind module '{at}' of a network '{found.architecture.arguments['inner']}'")
    return hide_clip(found, plan.query)
