"""The identity of a plan: a digest of everything that decides what it computes, from declarations alone.

A seeded secret is bound to the identity, and a checkpoint can be resumed only under the plan it was made with. Two
plans with the same identity would share their noise, or report the ε of one for the steps of the other. Nothing is
guessed:

- numbers, text, arrays, tensors and containers of them count by value; a subclass of one is a different kind;
- a dataclass counts by its fields and all other attributes; a field marked `PER_STEP` may hold a function of the step,
  which counts by its values;
- any other object declares itself (`Declares`): an optimizer given as a function does so by what it builds;
- everything else has no identity. Its plan runs, but takes no seed and cannot be resumed.

A class is identified by the name under which it is imported. Its code is not part of the identity: the log of sums
(`hush.checkpointing.sum_log`) detects changes of what is computed.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import sys
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from hush._internal.tensors import Named
from hush.errors import InvalidInputError

PER_STEP = {"per step": True}
"""Metadata of a dataclass field that holds a number or a function of the step, identified by its values."""


STABLE_NAMES = {
    "hush.clipping.base.Channel": "hush.queries.query.Channel",
    "hush.matrix_factorization.blt.BLT": "hush.matrices.blt.BLT",
    "hush.optimizers.ftrl.FTRL": "hush.rules.ftrl.FTRL",
    "hush.optimizers.sgd.SGD": "hush.rules.sgd.SGD",
    "hush.clipping.adaptive.Adaptive": "hush.queries.adaptive.Adaptive",
    "hush.clipping.adaptive.Quantile": "hush.queries.adaptive.Quantile",
    "hush.clipping.clipped.Clipped": "hush.queries.clipped.Clipped",
    "hush.clipping.clipped.ClippedSum": "hush.queries.clipped.ClippedSum",
    "hush.clipping.clipped.ClippedWeights": "hush.queries.clipped.Weighed",
    "hush.clipping.clipped.Clipping": "hush.queries.clipped.Clipping",
    "hush.clipping.error_feedback.ErrorFeedback": "hush.queries.error_feedback.ErrorFeedback",
    "hush.clipping.two_point.TwoPoint": "hush.queries.two_point.TwoPoint",
    "hush.clipping.unclipped.PlainSum": "hush.queries.plain.PlainSum",
    "hush.data_release.ComposedRelease": "hush.beside.Beside",
    "hush.data_release.Covered": "hush.before.Covered",
    "hush.data_release.DataRelease": "hush.before.Before",
    "hush.data_release.HasComposedReleases": "hush.before.HasBeside",
    "hush.matrix_factorization.banded.BandedMatrix": "hush.matrices.banded.Banded",
    "hush.matrix_factorization.dense.Dense": "hush.matrices.dense.Dense",
    "hush.matrix_factorization.identity.Diagonal": "hush.matrices.diagonal.Diagonal",
    "hush.matrix_factorization.strategy.Strategy": "hush.matrices.structure.Structure",
    "hush.matrix_factorization.toeplitz.LowerToeplitz": "hush.matrices.toeplitz.OneColumn",
    "hush.matrix_factorization.toeplitz.Toeplitz": "hush.matrices.toeplitz.Toeplitz",
    "hush.matrix_factorization.tree.Tree": "hush.matrices.tree.Tree",
    "hush.matrix_factorization.tree.TreeStep": "hush.matrices.tree.TreeStep",
    "hush.noise.correlated.BLTNoise": "hush.noise.streams.BLTNoise",
    "hush.noise.correlated.BandedNoise": "hush.noise.streams.BandedNoise",
    "hush.noise.correlated.DenseNoise": "hush.noise.dense.DenseNoise",
    "hush.noise.correlated.TreeNoise": "hush.noise.streams.TreeNoise",
    "hush.noise.correlated.WindowNoise": "hush.noise.streams.WindowNoise",
    "hush.optimizers.adam.Adam": "hush.rules.adam.Adam",
    "hush.optimizers.adam.AdamBC": "hush.rules.adam_bc.AdamBC",
    "hush.optimizers.base.Cosine": "hush.rules.rule.Cosine",
    "hush.optimizers.base.Linear": "hush.rules.rule.Linear",
    "hush.optimizers.torch_optim.TorchOptim": "hush.rules.torch_optim.TorchOptim",
    "hush.optimizers.wrappers.EMA": "hush.rules.averaged.Averaged",
    "hush.optimizers.wrappers.TailAverage": "hush.rules.averaged.Averaged",
    "hush.optimizers.wrappers.ClipUnits": "hush.rules.clip_units.ClipUnits",
    "hush.optimizers.wrappers.Grouped": "hush.rules.grouped.Grouped",
    "hush.optimizers.wrappers.KalmanFilter": "hush.rules.kalman.Kalman",
    "hush.per_example.augmentation.Augmented": "hush.gradients.points.Augmented",
    "hush.per_example.augmentation.Point": "hush.gradients.points.Point",
    "hush.sampling.participation.CyclicPoissonSampled": "hush.sampling.participation.CyclicPoisson",
    "hush.sampling.samplers.CyclicPoisson": "hush.sampling.samplers.Cyclic",
    "hush.sanitize.adaptive.AdaptiveThreshold": "hush.sanitize.threshold.AdaptiveThreshold",
    "hush.sanitize.early_stopping.EpochSpreads": "hush.sanitize.stopping.EpochSpreads",
    "hush.sanitize.early_stopping.Stop": "hush.sanitize.stopping.Stop",
    "hush.sanitize.labels.ResponseTable": "hush.sanitize.response.Table",
    "hush.statistics.histogram.HistogramNoise": "hush.histograms.HistogramNoise",
}
"""The name of a class in fingerprints where it is not the path it is imported from. A seeded secret is bound to the
fingerprint, so a class that moves gets a line here and keeps its name."""

STABLE_FIELDS = {
    ("hush.plan", "optimizer"): "rule",
    ("hush.plan", "composed"): "beside",
    ("hush.optimizers.wrappers", "optimizer"): "rule",
}
"""The name of a field in fingerprints and privacy cards where it is not its name in the code, by module."""

PLAIN = (dict, OrderedDict, MappingProxyType, tuple, list)
PARENTS = (str, int, float, Mapping, tuple, list)


class NoIdentity(InvalidInputError):
    """An object without an identity: it cannot be distinguished from another."""


@dataclass(frozen=True)
class IdentityScope:
    """What a declaration may depend on: the plan's number of steps and the trained parameters."""

    steps: int
    params: Named | None = None


@runtime_checkable
class Declares(Protocol):
    """An object that declares its own identity."""

    def declared(self, scope: IdentityScope) -> Any:
        """Everything that decides what it does, as plain data; raises `NoIdentity` if that is unknown."""
        ...


@runtime_checkable
class Described(Protocol):
    """A configuration whose entry in the privacy card differs from its fields."""

    def described(self) -> dict[str, Any]:
        """The fields of the entry."""
        ...


def declared(value: Any, scope: IdentityScope, path: str = "") -> Any:
    """``value`` as JSON with everything that decides what it does; `NoIdentity` names the part without an identity."""
    if value is None or type(value) in (str, bool, int):
        return value
    if type(value) in (float, np.float64):
        return float(value) if math.isfinite(value) else str(value)
    if isinstance(value, (np.ndarray, np.generic)):
        return _array(np.asarray(value))
    if isinstance(value, Tensor):
        return {"device": value.device.type, **_array(value.detach().cpu().numpy())}
    if isinstance(value, (torch.dtype, torch.device)):
        return str(value)
    if isinstance(value, Mapping) and type(value) in PLAIN:
        return {str(key): declared(item, scope, _joined(path, key)) for key, item in value.items()}
    if type(value) in PLAIN:
        return [declared(item, scope, _joined(path, place)) for place, item in enumerate(value)]
    if isinstance(value, type):
        return _class_name(value, path)
    if isinstance(value, Declares):
        return _self_declared(value, scope, path)
    if dataclasses.is_dataclass(value):
        return {
            "kind": _class_name(type(value), path),
            **_fields(value, scope, path),
            **_extra_attributes(value, scope, path),
        }
    if isinstance(value, PARENTS):
        return {
            "kind": _class_name(type(value), path),
            **_inherited(value, scope, path),
            **_extra_attributes(value, scope, path),
        }
    raise NoIdentity(
        f"{path or 'it'} is a {_shown(value)}, which has no identity: use an object with declared fields (a frozen "
        "dataclass), or give it a method `declared`"
    )


def digest(tree: Any) -> str:
    """Thirty-two hexadecimal digits of a declaration."""
    text = json.dumps(tree, sort_keys=True, allow_nan=False)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def per_step(function: Callable[[int], float], steps: int) -> dict[str, Any]:
    """A function of the step as its values at every step of a plan."""
    values = np.array([float(function(step)) for step in range(steps)])
    return {"kind": "per step", "steps": steps, "first": values[:3].tolist(), "values": _hash(values)}


def describe(value: Any) -> Any:
    """A frozen configuration as plain, readable data, for the privacy card; not an identity."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        kind = type(value)
        name = STABLE_NAMES.get(f"{kind.__module__}.{kind.__qualname__}", kind.__name__).rpartition(".")[2]
        if isinstance(value, Described):
            return {"kind": name, **describe(value.described())}
        fields = {stable_field(kind, f.name): describe(getattr(value, f.name)) for f in dataclasses.fields(value)}
        return {"kind": name, **fields}
    if isinstance(value, Mapping):
        return {str(key): describe(item) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return [describe(item) for item in value]
    if isinstance(value, (np.ndarray, np.generic)):
        return _array(np.asarray(value))
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if value is None or isinstance(value, (str, int, float, bool)):
        return value
    return _shown(value)


def _self_declared(value: Any, scope: IdentityScope, path: str) -> dict[str, Any]:
    """The object's own declaration. If a parent class declares it, the class and the fields it adds are included."""
    kind = type(value)
    own = {"kind": _class_name(kind, path), **declared(value.declared(scope), scope, path)}
    parent = next((k for k in kind.__mro__ if "declared" in vars(k)), kind)
    if parent is kind or not dataclasses.is_dataclass(parent):
        return own
    known = {field.name for field in dataclasses.fields(parent)}
    added = [f.name for f in dataclasses.fields(kind) if f.name not in known]
    more = {stable_field(kind, name): declared(getattr(value, name), scope, _joined(path, name)) for name in added}
    return {**own, "kind": _class_name(kind, path), **more, **_extra_attributes(value, scope, path)}


def _fields(value: Any, scope: IdentityScope, path: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for field in dataclasses.fields(value):
        held = getattr(value, field.name)
        name = stable_field(type(value), field.name)
        if callable(held) and field.metadata.get("per step"):
            found[name] = per_step(held, scope.steps)
        else:
            found[name] = declared(held, scope, _joined(path, name))
    return found


def stable_field(kind: type, name: str) -> str:
    """The name of a field in a fingerprint."""
    return STABLE_FIELDS.get((kind.__module__, name), name)


def _extra_attributes(value: Any, scope: IdentityScope, path: str) -> dict[str, Any]:
    """Attributes that are not fields, as a subclass may add them; cached properties are left out."""
    kinds = type(value).__mro__
    computed = {name for kind in kinds for name, held in vars(kind).items() if isinstance(held, cached_property)}
    slots = {name for kind in kinds for name in _slots(kind)} & set(dir(value))
    fields = {field.name for field in dataclasses.fields(value)} if dataclasses.is_dataclass(value) else set()
    names = sorted((set(getattr(value, "__dict__", ())) | slots) - computed - fields)
    held = {name: declared(getattr(value, name), scope, _joined(path, name)) for name in names}
    return {"beside": held} if held else {}


def _slots(kind: type) -> tuple[str, ...]:
    found = vars(kind).get("__slots__", ())
    return tuple(n for n in ((found,) if isinstance(found, str) else found) if n not in ("__dict__", "__weakref__"))


def _inherited(value: Any, scope: IdentityScope, path: str) -> dict[str, Any]:
    """The value that a subclass of a number, a text or a container inherits."""
    for parent in (str, int, float):
        if isinstance(value, parent):
            return {"value": parent.__repr__(value)}
    items = dict(value) if isinstance(value, Mapping) else list(value)
    return {"items": declared(items, scope, path)}


def _array(value: np.ndarray) -> dict[str, Any]:
    if value.dtype.hasobject:
        raise NoIdentity("an array of Python objects has no identity: use an array of numbers")
    return {"kind": "array", "dtype": value.dtype.str, "shape": list(value.shape), "digest": _hash(value)}


def _hash(value: np.ndarray) -> str:
    return hashlib.blake2b(np.ascontiguousarray(value).tobytes(), digest_size=16).hexdigest()


def _class_name(kind: type, path: str) -> str:
    """The import path of a class. Classes defined inside a function are rejected: many can share one name."""
    found: Any = sys.modules.get(kind.__module__)
    for part in kind.__qualname__.split("."):
        found = getattr(found, part, None)
    if found is not kind:
        raise NoIdentity(
            f"{path or 'it'} is of the class {kind.__qualname__}, which is defined inside a function and has no "
            "identity: define it at the top of a module"
        )
    name = f"{kind.__module__}.{kind.__qualname__}"
    return STABLE_NAMES.get(name, name)


def _shown(value: Any) -> str:
    return str(getattr(value, "__qualname__", type(value).__qualname__))


def _joined(path: str, key: object) -> str:
    return f"{path}.{key}" if path else str(key)
