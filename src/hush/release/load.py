"""A release as a module that predicts: `load` rebuilds the network from public data alone.

>>> model = hush.load("run/release")  # doctest: +SKIP
>>> model.predict("new.csv").names, model.guarantee.epsilon  # doctest: +SKIP
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as unpack
from torch import Tensor, nn

from hush._internal.imports import call_factory, find_version
from hush._internal.storage import explain
from hush.accounting.guarantee import Guarantee
from hush.datasets.models import build_shipped
from hush.datasets.problem import to_units
from hush.errors import FormatError, InvalidInputError
from hush.release.description import Architecture, Description
from hush.release.folder import CARD, MODEL, WEIGHTS, find_release, read_description, read_json
from hush.release.rows import encode_rows
from hush.tabular.columns import Encoder

BATCH = 1000
Weights = dict[str, Tensor]


@dataclass(frozen=True)
class Predictions:
    """The predictions of a model for n rows. Classification: ``labels`` (n,) are indices into ``classes``,
    ``probabilities`` (n, classes) the softmax of the scores. Regression: ``values`` (n,). The others are None."""

    classes: tuple[str, ...] = ()
    labels: Tensor | None = None
    probabilities: Tensor | None = None
    values: Tensor | None = None

    @property
    def names(self) -> list[str]:
        """The class of every row, by its name."""
        return [] if self.labels is None else [self.classes[place] for place in self.labels.tolist()]


class ReleasedModel(nn.Module):
    """A released model. It is called like the trained network (``network``), on encoded inputs."""

    def __init__(self, network: nn.Module, description: Description, card: Mapping[str, Any], folder: Path) -> None:
        super().__init__()
        self.network = network
        self.description, self.card, self.folder = description, card, folder

    @property
    def guarantee(self) -> Guarantee:
        """The guarantee that the card states; `hush.verify` recomputes it."""
        return Guarantee.from_json(self.card["guarantee"])

    def forward(self, inputs: Tensor) -> Tensor:
        """The output of the network."""
        outputs: Tensor = self.network(inputs)
        return outputs

    def encode(self, rows: Any) -> Tensor:
        """Encode rows as inputs of the network; `hush.release.rows.encode_rows` lists the kinds of ``rows``."""
        return encode_rows(rows, self.description)

    @torch.no_grad()
    def predict(self, rows: Any, *, batch_size: int = BATCH) -> Predictions:
        """Classes and probabilities, or values, for rows without labels.

        Unknown categories and missing values are treated as in training. The target is not needed, and is
        ignored."""
        if self.description.task == "other":
            raise InvalidInputError(
                "this model is neither for classification nor for regression: call it on a tensor for its outputs"
            )
        inputs = self.encode(rows)
        before = self.training
        self.eval()
        try:
            scores = torch.cat([self.network(part) for part in torch.split(inputs, batch_size)])
        finally:
            self.train(before)
        if self.description.task == "regression":
            return Predictions(values=_in_units(scores.reshape(len(scores)), self.description))
        classes = self.description.classes
        if scores.shape != (len(inputs), len(classes)):
            raise InvalidInputError(
                f"the network returns scores of shape {tuple(scores.shape[1:])} for {len(classes)} classes: check its "
                "module"
            )
        return Predictions(classes, scores.argmax(1), torch.softmax(scores.double(), 1))


def _in_units(outputs: Tensor, description: Description) -> Tensor:
    limits = description.target_range
    return outputs if limits is None else to_units(outputs.double(), limits)


def load(directory: str | Path, *, model: nn.Module | None = None, trust_code: bool = False) -> ReleasedModel:
    """The released model in a folder, a run's or a release's, ready to predict.

    >>> model = hush.load("run/release")  # doctest: +SKIP
    >>> model.predict("new.csv").names  # doctest: +SKIP
    >>> model.guarantee.epsilon, model.card["method"]  # doctest: +SKIP

    Nothing in a release is run: a network of hush's own is built by name, and a third-party one is given as ``model``
    (what its factory builds), or built by importing and calling the factory that the description names, which requires
    ``trust_code=True``."""
    folder = find_release(directory)
    described = model is None or (folder / MODEL).is_file()
    description = read_description(folder) if described else Description("other")
    weights = read_weights(folder)
    network = _build_network(description, weights, folder, model=model, trust_code=trust_code)
    return ReleasedModel(network, description, read_json(folder / CARD), folder).eval()


def read_weights(folder: Path) -> Weights:
    """The weights of a release by their names."""
    try:
        return unpack((folder / WEIGHTS).read_bytes())
    except OSError as error:
        raise InvalidInputError(f"'{folder / WEIGHTS}' cannot be read: {explain(error)}") from error
    except (SafetensorError, LookupError, ValueError, TypeError, RuntimeError, OverflowError) as error:
        raise FormatError(f"'{folder / WEIGHTS}' is not a whole file of weights") from error


def _build_network(
    description: Description, weights: Weights, folder: Path, *, model: nn.Module | None, trust_code: bool
) -> nn.Module:
    """The network with the release's weights, whose names and shapes must be its own."""
    if model is None and description.architecture.source == "shipped":
        network = _put_behind_encoder(build_empty(description, weights, folder), description)
        network.load_state_dict(weights, assign=True)
        return network
    network = _put_behind_encoder(
        _import_model(description.architecture, folder, trust_code) if model is None else model, description
    )
    _check_weights(network, weights, folder)
    network.load_state_dict(weights)
    return network


def build_empty(description: Description, weights: Weights, folder: Path) -> nn.Module:
    """A network of hush's own on the meta device, without its encoder: no memory is taken before it is known that the
    weights are those of the network, and that it takes what the description says and gives what that names."""
    width = 0 if description.schema is None else sum(column.width for column in description.schema.features)
    if description.architecture.encoder and not any(width in value.shape for value in weights.values()):
        raise FormatError(f"the schema in '{folder}' has {width} inputs, for which there are no weights")
    with torch.device("meta"):
        inner = build_shipped(description.architecture)
        network = _put_behind_encoder(inner, description)
        _check_weights(network, weights, folder)
        _check_shapes(network, description, folder)
    return inner


@torch.no_grad()
def _check_shapes(network: nn.Module, description: Description, folder: Path) -> None:
    inputs, training = description.inputs, network.training
    if inputs is None:
        return
    network.eval()
    try:
        outputs = network(torch.zeros(2, *inputs.shape, device="meta"))
        shape = None if not isinstance(outputs, Tensor) else tuple(outputs.shape)
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        raise FormatError(f"the network in '{folder}' does not take inputs of the shape {inputs.shape}") from error
    finally:
        network.train(training)
    wanted: dict[str, list[tuple[int, ...]]] = {
        "classification": [(2, len(description.classes))],
        "regression": [(2,), (2, 1)],
    }
    if description.task in wanted and shape not in wanted[description.task]:
        raise FormatError(
            f"the network in '{folder}' gives outputs of the shape {shape} for two rows, which is no {description.task}"
        )


def _check_weights(network: nn.Module, weights: Weights, folder: Path) -> None:
    """Refuse weights that are not, by name, shape and type, those of the network."""
    own = {name: (tuple(value.shape), value.dtype) for name, value in network.state_dict().items()}
    found = {name: (tuple(value.shape), value.dtype) for name, value in weights.items()}
    differs = sorted(name for name in own.keys() | found.keys() if own.get(name) != found.get(name))
    if differs:
        raise InvalidInputError(
            f"the weights in '{folder}' are not those of the network that its description names: they differ in "
            f"'{differs[0]}'" + (f" and {len(differs) - 1} more" if len(differs) > 1 else "")
        )


def _put_behind_encoder(inner: nn.Module, description: Description) -> nn.Module:
    """The trained network, after the encoding of the table's columns if the model is for a table."""
    schema = description.schema
    if not description.architecture.encoder or schema is None:
        return inner
    return nn.Sequential(Encoder(schema.features), inner)


def _import_model(architecture: Architecture, folder: Path, trust_code: bool) -> nn.Module:
    if architecture.source == "state only":
        raise InvalidInputError(
            f"'{folder}' holds weights of a module that hush cannot build: give it with hush.load(…, model=…)"
        )
    if not trust_code:
        raise InvalidInputError(
            f"the model in '{folder}' is made by the code '{architecture.name}', which is not run unless you trust it: "
            "give trust_code=True (--trust-code), or the module itself with model=…"
        )
    _compare_version(architecture)
    built = call_factory(architecture.name, _as_called(architecture.arguments))
    if not isinstance(built, nn.Module):
        raise InvalidInputError(
            f"'{architecture.name}' returned {type(built).__name__} where a torch.nn.Module was expected"
        )
    return built


def _as_called(arguments: Mapping[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in arguments.items()}


def _compare_version(architecture: Architecture) -> None:
    installed = find_version(architecture.name)
    if architecture.version is not None and installed is not None and architecture.version != installed:
        warnings.warn(
            f"the model was made with version {architecture.version} of '{architecture.name}', and {installed} is "
            "installed",
            stacklevel=2,
        )
