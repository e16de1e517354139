"""A problem: data, model, loss and metric, and what about the data is taken to be public."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from hush._internal.settings import CLASS_SHARE as CLASS_SHARE
from hush._internal.settings import LAYER_CLIP as LAYER_CLIP
from hush._internal.settings import LAYER_WIDTH as LAYER_WIDTH
from hush._internal.settings import DropoutPlace, Initialisation
from hush._internal.tensors import Losses
from hush._internal.validate import is_finite
from hush.data_source import as_source
from hush.datasets.splits import Owners, Rows, Split, hold_out, hold_out_units, pick
from hush.errors import InvalidInputError
from hush.release.description import STATE_ONLY, Architecture, Description, Inputs, describe_table
from hush.tabular.rows import RowSubset
from hush.tabular.schema import Schema

Range = tuple[float, float]
HUBER = 0.1  # where Huber's loss turns from a square to a line: a twentieth of the target's range
WEIGHTED = "the class weights were chosen without looking at the rows"

UNUSED = -1e30  # the score of an output that is no class: its probability and its gradient are 0

Metric = Literal["accuracy", "loss"]


@dataclass(frozen=True)
class Notes:
    """What the owner of a table should know of it: how many values are missing, which says something about the rows and
    is private, and what to be warned of."""

    private: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class PendingClasses:
    """Classes that are released with noise before training (`hush.statistics.classes`).

    ``labels`` are all labels of the rows, in the order of their text: private. An example's label is a place among
    them. ``slots`` says which output of the model each label is, −1 for one that is no class, and ``used`` which
    outputs are classes; both are written before the first step. ``build`` gives the architecture and the factory of a
    model for so many classes, under a schema."""

    labels: tuple[str, ...] = field(repr=False)
    slots: Tensor = field(repr=False)
    used: Tensor
    build: Callable[[int, Schema | None], tuple[Architecture, Callable[[], nn.Module]]] = field(repr=False)

    @classmethod
    def of(
        cls,
        labels: Sequence[str],
        outputs: int,
        build: Callable[[int, Schema | None], tuple[Architecture, Callable[[], nn.Module]]],
    ) -> PendingClasses:
        """Before the release: no label is a class."""
        return cls(tuple(labels), torch.full((len(labels),), -1), torch.zeros(outputs, dtype=torch.bool), build)

    def mark_updated(self, classes: Sequence[str]) -> None:
        """Give the first outputs to the classes that were released."""
        places = {name: place for place, name in enumerate(classes)}
        self.slots.copy_(torch.tensor([places.get(label, -1) for label in self.labels]))
        self.used.copy_(torch.arange(len(self.used)) < len(classes))

    def keep_known(self, rows: Rows) -> Rows:
        """The rows whose label is a class, by its output."""
        labels = (rows.tensors[-1][rows.rows] if isinstance(rows, RowSubset) else rows[-1]).long()
        kept = pick(rows, torch.nonzero(self.slots[labels] >= 0).reshape(-1))
        return _change_labels(kept, lambda codes: self.slots[codes.long()])


@dataclass(frozen=True)
class Problem:
    """Data, model, loss and metric of a run. ``assumptions`` are added to the guarantee: what is taken to be public.

    ``architecture`` and ``inputs`` describe how ``model`` is built and what an example is, for the users of a released
    model; without them only the weights are released, to be loaded into a module that the user builds.

    ``target`` is the column or array of the labels, where they have a name. ``target_range`` is the public range of a
    target that is a number (regression); the data holds it mapped to [−1, 1]. ``class_weights`` are for training alone;
    ``awaited_weights`` hold those that are released with noise before training (`hush.statistics.releases`). ``owners``
    has the unit of each row, if all rows of one unit are one example (:mod:`hush.privacy_unit`). ``notes`` are for the
    owner of the data. Where ``pending_classes`` are released before training, ``classes`` counts the outputs of the
    model that is trained; `settle_classes` gives the problem with the classes, and `trim` the model."""

    name: str
    summary: str
    train: Any
    test: Any
    validation: Any | None
    model: Callable[[], nn.Module]
    losses: Losses
    metric: Metric = "accuracy"
    classes: int | None = None
    class_names: tuple[str, ...] | None = None
    assumptions: tuple[str, ...] = ()
    schema: Schema | None = None
    architecture: Architecture = STATE_ONLY
    inputs: Inputs | None = None
    target: str | None = None
    target_range: Range | None = None
    class_weights: tuple[float, ...] | None = None
    notes: Notes | None = None
    awaited_weights: Tensor | None = None
    owners: Owners | None = None
    pending_classes: PendingClasses | None = None

    @property
    def unit(self) -> str:
        """What one example is: a row, unless rows have owners."""
        return "example" if self.owners is None else self.owners.unit

    @property
    def whose(self) -> Any:
        """The unit of each training row; None if an example is a row."""
        return None if self.owners is None else self.owners.train

    @property
    def examples(self) -> int:
        """How many examples there are to train on: units where rows have owners."""
        return len(as_source(self.train)) if self.owners is None else self.owners.count

    @property
    def classes_by_name(self) -> tuple[str, ...]:
        """What the classes are called in the order of their labels: by these if they have no names; none where there
        are no classes."""
        return () if self.classes is None else self.class_names or tuple(map(str, range(self.classes)))

    @property
    def training_losses(self) -> Losses:
        """The losses that are trained on: those of the problem, weighted by class where weights were given or will
        be."""
        if self.awaited_weights is not None:
            return LateWeighted(self.losses, self.awaited_weights)
        return self.losses if self.class_weights is None else Weighted(self.losses, self.class_weights)

    def awaiting_weights(self) -> Problem:
        """The same with weights of the classes that are released with noise before training."""
        if self.classes is None:
            raise InvalidInputError(f"class weights need classes, and '{self.name}' has none")
        return replace(self, awaited_weights=torch.ones(self.classes, dtype=torch.float64))

    def settle_classes(self, names: Sequence[str]) -> Problem:
        """The problem with the classes that were released, whose losses of training know them from now on. Rows to
        train on stay, and count zero where their label is no class; rows to test on are those of the classes."""
        pending = self.pending_classes
        if pending is None:
            raise InvalidInputError(f"the classes of '{self.name}' are known: there are none to settle")
        pending.mark_updated(names)
        schema = None if self.schema is None else replace(self.schema, classes=tuple(names))
        architecture, model = pending.build(len(names), schema)
        held = None if self.validation is None else pending.keep_known(self.validation)
        known = replace(self, classes=len(names), class_names=tuple(names), schema=schema, pending_classes=None)
        return replace(
            known,
            model=model,
            architecture=architecture,
            losses=cross_entropy,
            test=pending.keep_known(self.test),
            validation=held,
        )

    def trim(self, trained: nn.Module) -> nn.Module:
        """The trained model with the outputs of the classes alone; itself where it has no others."""
        own = dict(trained.named_parameters()) | dict(trained.named_buffers())
        trimmed = self.model().to(next(trained.parameters()).device)
        theirs = dict(trimmed.named_parameters()) | dict(trimmed.named_buffers())
        if all(own[name].shape == value.shape for name, value in theirs.items() if name in own):
            return trained
        with torch.no_grad():
            for name, value in theirs.items():
                value.copy_(own[name][: len(value)] if value.shape != own[name].shape else own[name])
        return trimmed.train(trained.training)

    def with_class_weights(self, weights: Sequence[float]) -> Problem:
        """The same with a public weight for each class."""
        if self.classes is None:
            raise InvalidInputError(f"class weights need classes, and '{self.name}' has none")
        if len(weights) != self.classes:
            raise InvalidInputError(
                f"'{self.name}' has {self.classes} classes and needs as many weights, not {len(weights)}"
            )
        if not all(is_finite(weight) and weight > 0 for weight in weights):
            raise InvalidInputError("class weights must be finite numbers above 0")
        return replace(self, class_weights=tuple(weights), assumptions=(*self.assumptions, WEIGHTED))

    def initialised(self, kind: Initialisation) -> Problem:
        """The same with other initial weights: torch's own, or those of the published experiments."""
        if kind == "torch":
            return self
        from hush.datasets.models import initialise

        return replace(self, model=lambda: initialise(self.model()))

    def describe(self) -> Description:
        """The public description of a released model of this problem."""
        classes = self.classes_by_name
        inputs = self.inputs if self.schema is None else describe_table(self.schema)
        return Description(
            "classification" if classes else "other" if self.target_range is None else "regression",
            self.architecture,
            inputs,
            classes,
            self.target if self.schema is None else self.schema.target,
            self.target_range,
        )


@dataclass(frozen=True)
class Weighted:
    """Losses times a public weight of each example's class, which is the last part of the content.

    A weight multiplies an example's gradient *before* it is clipped. Clipping then bounds the weighted gradient by the
    same c, so one example moves the sum by no more than without weights: sensitivity, σ and ε do not change. It also
    means that weights act on the gradients that are shorter than c, and lose their effect on those that are cut."""

    losses: Losses
    weights: tuple[float, ...]

    def __call__(self, model: nn.Module, content: Any) -> Tensor:
        """One weighted loss per example."""
        values, labels = self.losses(model, content), content[-1]
        weighted: Tensor = values * torch.tensor(self.weights, dtype=values.dtype, device=values.device)[labels]
        return weighted


@dataclass(frozen=True, eq=False)
class LateWeighted:
    """The same with weights that are written into the tensor before the first step."""

    losses: Losses
    weights: Tensor

    def __call__(self, model: nn.Module, content: Any) -> Tensor:
        """One weighted loss per example."""
        values, labels = self.losses(model, content), content[-1]
        weighted: Tensor = values * self.weights.to(values.device, values.dtype)[labels]
        return weighted


@dataclass(frozen=True, eq=False)
class PendingLosses:
    """Cross-entropy over the outputs that are classes. An example whose label is no class has the loss 0 and so the
    gradient 0: it stays in the data and adds nothing to any sum."""

    slots: Tensor
    used: Tensor

    def __call__(self, model: nn.Module, content: tuple[Tensor, Tensor]) -> Tensor:
        """One loss per example."""
        features, labels = content
        scores = model(features)
        place = self.slots.to(scores.device)[labels]
        scores = scores.masked_fill(~self.used.to(scores.device), UNUSED)
        values = functional.cross_entropy(scores, place.clamp(min=0), reduction="none")
        return values * (place >= 0).to(values.dtype)


def squared_error(model: nn.Module, content: tuple[Tensor, Tensor]) -> Tensor:
    """(model(x) − y)², one number per example."""
    features, targets = content
    return functional.mse_loss(model(features).squeeze(1), targets, reduction="none")


def huber(model: nn.Module, content: tuple[Tensor, Tensor]) -> Tensor:
    """½e² for an error |e| ≤ h and h(|e| − ½h) beyond, h = ``HUBER``, one number per example (Huber 1964): an outlier's
    gradient is no longer than h's."""
    features, targets = content
    return functional.huber_loss(model(features).squeeze(1), targets, reduction="none", delta=HUBER)


LOSSES: dict[str, Losses] = {"squared": squared_error, "huber": huber}


def from_units(targets: Tensor, limits: Range) -> Tensor:
    """Targets with their public range mapped to [−1, 1]; those beyond it lie beyond."""
    low, high = limits
    return (targets - low) * (2 / (high - low)) - 1


def to_units(outputs: Tensor, limits: Range) -> Tensor:
    """The inverse of `from_units`: a model's output in the units of the target."""
    low, high = limits
    return low + (outputs + 1) * ((high - low) / 2)


def cross_entropy(model: nn.Module, content: tuple[Tensor, Tensor]) -> Tensor:
    """−log softmax(model(x))_y, one number per example."""
    features, labels = content
    return functional.cross_entropy(model(features), labels, reduction="none")


def make_classification(
    split: Split,
    model: Callable[[], nn.Module],
    *,
    classes: int,
    seed: int,
    validation: float,
    assumptions: tuple[str, ...] = (),
    class_names: tuple[str, ...] | None = None,
) -> Problem:
    """A classification problem from a split, with a validation part of its training rows when asked for. The
    caller gives it a name."""
    train, held, owners = _hold_out(split.train, split.owners, validation, seed)
    return Problem(
        name="",
        summary="",
        train=train,
        owners=owners,
        test=split.test,
        validation=held,
        model=model,
        losses=cross_entropy,
        classes=classes,
        class_names=class_names,
        assumptions=assumptions,
    )


def hold_out_validation(train: Rows, fraction: float, seed: int) -> tuple[Rows, Rows | None]:
    """(training part, validation part or None), deterministic by seed."""
    if fraction == 0:
        return train, None
    return hold_out(train, fraction, seed=seed)


def _hold_out(
    train: Rows, owners: Owners | None, fraction: float, seed: int
) -> tuple[Rows, Rows | None, Owners | None]:
    """The same, by units where rows have owners; and whose the rest is."""
    if owners is None or fraction == 0:
        return *hold_out_validation(train, fraction, seed), owners
    (rest, whose), (held, _) = hold_out_units(train, owners.train, fraction, seed=seed)
    if not len(whose):
        raise InvalidInputError(f"a validation part of {fraction:g} leaves no units to train on: hold out less")
    return rest, held, replace(owners, train=whose)


def _change_labels(rows: Rows, change: Callable[[Tensor], Tensor]) -> Rows:
    """The same examples with other labels; ``change`` must look at each label alone."""
    return rows.change_last(change) if isinstance(rows, RowSubset) else (*rows[:-1], change(rows[-1]))


def make_regression(
    split: Split,
    model: Callable[[], nn.Module],
    *,
    limits: Range,
    losses: Losses,
    seed: int,
    validation: float,
    assumptions: tuple[str, ...] = (),
) -> Problem:
    """A problem whose target is a number with a public range. Targets to train on are clamped to it; those to test on
    are left as they are, so that figures say how far predictions lie from what was true."""
    scaled = _change_labels(split.train, lambda targets: from_units(targets.double().clamp(*limits), limits).float())
    train, held, owners = _hold_out(scaled, split.owners, validation, seed)
    return Problem(
        name="",
        summary="",
        train=train,
        owners=owners,
        test=_change_labels(split.test, lambda truth: from_units(truth.double(), limits).float()),
        validation=held,
        model=model,
        losses=losses,
        metric="loss",
        assumptions=assumptions,
        target_range=limits,
    )


@dataclass(frozen=True)
class LayerPlace:
    """Where a sanitisation layer goes (`hush.sanitize.problem`): its width and clip, and behind which module of the
    problem's own network; without a name it stays where that network has one, and where it has none a small network of
    that width takes its place."""

    at: str | None = None
    width: int | None = None
    clip: float | None = None
    nonnegative: bool = False
    dropout: float | None = None
    dropout_place: DropoutPlace = "after"
