"""A problem's releases before training (`hush.data_release`): the ranges of its columns and the weights of its classes.

    problem = from_files("my.csv", target="y", public=("classes",), private_ranges=True).awaiting_weights()
    setting = {"examples": problem.examples, "counted": True, "batch_size": 64, "epochs": 20, "epsilon": 3}
    parts = plan_releases(problem, make_plan("dp-sgd", **setting), 3, range_share=0.1, weight_share=0.05)
    plan = make_plan("dp-sgd", **setting, composed=tuple(part.composed for part in parts))
    run = plan.start(problem.model(), problem.training_losses, problem.train)
    problem, released = take_releases(problem, run, make_releases(run, parts))

A share s of ε means: the release alone costs s·ε at a tenth of δ. Together with training it costs what the composed
event costs, which is less than the sum: σ is calibrated for that.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from numpy.typing import ArrayLike
from torch import nn

from hush.data_release import DataRelease, Values
from hush.datasets.problem import CLASS_SHARE, Problem
from hush.errors import InvalidInputError, NotProvenError
from hush.plan import Plan
from hush.run import Run
from hush.statistics import classes, ranges
from hush.tabular.columns import Encoder
from hush.tabular.schema import Schema, pending_columns, with_limits

OF_DELTA = 0.1  # share of δ at which the ε of a release is stated
ALONE = 0.1  # of δ: the probability with which a label of a single unit may become a class

KNOWN = "name them in a schema (classes = […]), or say that they are public (--public classes)"


def compose_plan(
    plan: Plan,
    task: Problem,
    total: float | None,
    *,
    range_share: float | None = None,
    weight_share: float | None = None,
    class_share: float | None = None,
    metrics: float | None = None,
) -> tuple[Plan, tuple[DataRelease, ...]]:
    """The plan composed with the releases before training and with noisy ``metrics`` of that ε, and the former.

    σ is such that all stays within the ``total`` ε, if given. Otherwise the releases cost their share of the ε of
    training, in addition to it. Classes that are not known are released for `CLASS_SHARE` of ε unless it is given."""
    parts: tuple[DataRelease, ...] = ()
    unknown = task.pending_classes is not None
    if unknown or any(share is not None for share in (range_share, weight_share, class_share)):
        if unknown and plan.trains_on is not None:
            raise NotProvenError(f"method '{plan.method}' needs the classes before anything is released: {KNOWN}")
        parts = plan_releases(
            task,
            plan,
            plan.guarantee().epsilon if total is None else total,
            range_share=range_share,
            weight_share=weight_share,
            class_share=(CLASS_SHARE if class_share is None else class_share) if unknown else None,
            units=task.whose,
        )
        plan = replace(plan, composed=(*plan.composed, *(part.composed for part in parts)))
        plan = plan if total is None else plan.with_epsilon(total)
    if metrics is not None:
        from hush.statistics.private_metrics import plan_metrics

        plan = plan_metrics(plan, task, metrics, total)
    return plan, parts


def plan_releases(
    task: Problem,
    plan: Plan,
    epsilon: float,
    *,
    range_share: float | None = None,
    weight_share: float | None = None,
    class_share: float | None = None,
    units: ArrayLike | None = None,
) -> tuple[DataRelease, ...]:
    """The releases before training under a plan, each of which alone costs its share of ``epsilon``; ``units`` gives
    the unit of every row, if the plan's unit is not a row."""
    _check_shares(range_share, weight_share, class_share)
    if (class_share is None) != (task.pending_classes is None):
        raise InvalidInputError(
            f"the classes of '{task.name}' are released with noise exactly where they are not known: give class_share "
            "for a problem with private_classes=True, and for no other"
        )
    if not plan.has_guarantee:
        raise NotProvenError(
            f"method '{plan.method}' adds no noise, so noisy releases before it would give no protection: use "
            "dp-sgd or another private method"
        )
    if (units is None) != (plan.unit == "example"):
        raise NotProvenError(
            f"the plan protects one {plan.unit}, and each must weigh 1 in a release before training: give the units of "
            "the rows exactly where the plan has a unit"
        )
    delta, near, population = OF_DELTA * plan.delta, plan.neighbours, plan.sampler.examples
    shared: dict[str, Any] = {"population": population, "units": units}
    parts: list[DataRelease] = []
    if range_share is not None:
        places = [] if task.schema is None else pending_columns(task.schema)
        noise = ranges.calibrate_ranges(range_share * epsilon, delta, columns=max(1, len(places)), adjacency=near)
        parts.append(ranges.plan_ranges(task.train, places, noise, **shared))
    if task.pending_classes is not None and class_share is not None:
        if weight_share is not None:
            raise InvalidInputError(f"class weights need the classes of '{task.name}': {KNOWN}")
        named = classes.calibrate_class_names(class_share * epsilon, delta, alone=ALONE * plan.delta, adjacency=near)
        parts.append(classes.plan_class_names(task.train, task.pending_classes.labels, named, **shared))
    if weight_share is not None:
        if task.classes is None:
            raise InvalidInputError(f"class weights need classes, and '{task.name}' has none")
        noise = classes.calibrate_class_counts(weight_share * epsilon, delta, classes=task.classes, adjacency=near)
        parts.append(classes.plan_class_weights(task.train, task.classes, noise, **shared))
    return tuple(parts)


def _check_shares(*shares: float | None) -> None:
    """Raise for shares of ε outside (0, 1), or whose sum leaves nothing for training."""
    given = [share for share in shares if share is not None]
    if not all(0 < share < 1 for share in given):
        raise InvalidInputError(
            f"a release before training takes a share of ε in (0, 1), got {', '.join(map(str, given))}: give one such "
            "as 0.1"
        )
    if sum(given) >= 1:
        raise InvalidInputError(
            f"the releases before training take {sum(given):g} of ε and leave nothing for it: give less"
        )


def take_releases(task: Problem, run: Run, values: Mapping[str, Values]) -> tuple[Problem, dict[str, dict[str, Any]]]:
    """The problem with the released values, and these as public plain data. The values are also set in the run's model
    and in the weights that its losses read."""
    released: dict[str, dict[str, Any]] = {}
    if (found := values.get(classes.NAMES_KEY)) is not None:
        counts = classes.unpack_classes(found)
        task = task.settle_classes(tuple(counts))
        released["private_classes"] = counts
        run.prepare(lambda model: None)  # its losses have changed
    if (found := values.get(ranges.KEY)) is not None and task.schema is not None:
        limits = [(float(low), float(high)) for low, high in found["limits"].tolist()]
        names = [task.schema.features[place].name for place in pending_columns(task.schema)]
        schema = with_limits(task.schema, limits)
        run.prepare(lambda model: _set_ranges(model, schema))
        task = replace(task, schema=schema)
        released["private_ranges"] = {name: list(pair) for name, pair in zip(names, limits, strict=True)}
    if (found := values.get(classes.COUNTS_KEY)) is not None and task.awaited_weights is not None:
        task.awaited_weights.copy_(found["weights"])
        released["private_class_weights"] = dict(zip(task.classes_by_name, found["weights"].tolist(), strict=True))
    return task, released


def _set_ranges(model: nn.Module, schema: Schema) -> None:
    """Set the ranges of this schema in the model's encoding of its columns."""
    for module in model.modules():
        if isinstance(module, Encoder):
            for name, value in Encoder(schema.features).named_buffers():
                module.get_buffer(name).copy_(value)
