"""Problems whose model has a sanitisation layer: which layer, where, and what comes before it."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from hush._internal.settings import ModelSettings
from hush.data_release import PrivatisedData
from hush.data_source import as_source
from hush.datasets.models import build_shipped, shipped
from hush.datasets.problem import LAYER_CLIP, LAYER_WIDTH, LayerPlace, Problem
from hush.errors import InvalidInputError
from hush.release.description import Architecture
from hush.sanitize.front import take_nothing, trace_front
from hush.sanitize.privatised import SanitizedFeatures
from hush.tabular.columns import Encoder

ENDS = {"funnel": "body"}  # where a shipped network has its layer unless another place is named


def insert_layer(task: Problem, place: LayerPlace, *, frozen: bool) -> Problem:
    """The problem with a sanitised network; ``frozen`` keeps what is before the layer as it was initialised."""
    inner, at = _choose_network(task, place, frozen)
    clip = task.architecture.arguments.get("clip", LAYER_CLIP) if place.clip is None else place.clip
    settings: dict[str, Any] = {"clip": clip, "nonnegative": place.nonnegative}
    if place.dropout is not None:
        settings |= {"dropout": place.dropout, "dropout_place": place.dropout_place}
    made = shipped("sanitized", inner=inner.name, arguments=dict(inner.arguments), at=at, **settings)
    architecture = replace(made, encoder=task.architecture.encoder)

    def build() -> nn.Module:
        network: nn.Module = build_shipped(architecture)
        if task.schema is not None and architecture.encoder:
            network = nn.Sequential(Encoder(task.schema.features), network)
        return _freeze_before(network, task.train) if frozen else network

    return replace(task, model=build, architecture=architecture)


def place_layer(
    task: Problem, releases: PrivatisedData, model: ModelSettings, *, at: str | None = None, width: int | None = None
) -> Problem:
    """The problem with the layer of a plan that trains on sanitised features, as the settings of its model say."""
    nonnegative = bool(getattr(releases, "nonnegative", False))
    place = LayerPlace(at, width, model.sanitize_clip, nonnegative, model.sanitize_dropout, model.dropout_place)
    return insert_layer(task, place, frozen=isinstance(releases, SanitizedFeatures))


def _freeze_before(model: nn.Module, data: Any) -> nn.Module:
    """The model with everything before its layer frozen, found by tracing it on a synthetic record."""
    params = dict(model.named_parameters())
    for name in trace_front(model, take_nothing(as_source(data))).names:
        params[name].requires_grad_(False)
    return model


def _choose_network(task: Problem, place: LayerPlace, frozen: bool) -> tuple[Architecture, str]:
    own, has = _take_layer_out(task.architecture)
    if has is not None and frozen != (own.name == "projection"):
        has = None  # a network whose layers before it are trained is no start for a method that needs them frozen
    at = place.at or has or (ENDS.get(own.name) if not frozen else None)
    if at is None:
        return _make_small(task, place.width or LAYER_WIDTH, frozen)
    if own.source != "shipped":
        raise InvalidInputError(
            f"'{task.name}' has a model that does not come with hush: put the layer into it in Python"
        )
    if place.width is not None and own.name in ("funnel", "projection"):
        return replace(own, arguments={**own.arguments, "width": place.width}), at
    return own, at


def _take_layer_out(architecture: Architecture) -> tuple[Architecture, str | None]:
    """The network without its layer, and where it had one."""
    if architecture.name != "sanitized":
        return architecture, None
    given = architecture.arguments
    return replace(architecture, name=given["inner"], arguments=given["arguments"]), given["at"]


def _make_small(task: Problem, width: int, frozen: bool) -> tuple[Architecture, str]:
    """Random directions, or two trained layers, and a linear head."""
    outputs = task.classes or (1 if task.target_range is not None else None)
    if outputs is None:
        raise InvalidInputError(
            f"'{task.name}' has no labels, and sanitised features are trained on with public labels"
        )
    inputs = as_source(task.train).take(torch.empty(0, dtype=torch.int64))[0]
    features = math.prod(inputs.shape[1:])
    if task.schema is not None and task.architecture.encoder:
        features = Encoder(task.schema.features).width
    if frozen:
        return shipped("projection", features=features, width=width, outputs=outputs), "3"
    if inputs.dtype == torch.float16:
        raise InvalidInputError(f"'{task.name}' keeps features in half precision: use sanitize-once on them")
    return shipped("mlp", widths=[features, 2 * width, width, outputs]), "3"
