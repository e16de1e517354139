"""The architectures that come with hush, by name: what a released description may ask for without anybody's trust."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from torch import nn

from hush.artefact.description import Architecture
from hush.errors import BadInput, nearest
from hush.problems.models import VAE, Funnel, ResNet18, Single, lenet5, logistic, mlp, p1, p2, projection, small_cnn
from hush.sanitize.layer import Sanitize, insert


def linear(features: int, classes: int) -> nn.Sequential:
    """A linear model on features that may be kept in half precision."""
    return nn.Sequential(Single(), logistic(features, classes))


def sanitized(
    inner: str, arguments: Mapping[str, Any], at: str, clip: float, nonnegative: bool = False, dropout: float = 0.0
) -> nn.Module:
    """A shipped architecture with a sanitisation layer behind its module ``at``; a run gives the layer its noise, and
    without one it only clamps."""
    layer = Sanitize(clip, 1.0, floor=0.0 if nonnegative else None, dropout=dropout)
    return insert(build_shipped(Architecture("shipped", inner, arguments)), at, layer)


SHIPPED: Mapping[str, Callable[..., nn.Module]] = {
    "mlp": mlp,
    "logistic": logistic,
    "linear": linear,
    "projection": projection,
    "sanitized": sanitized,
    "lenet": lenet5,
    "cnn": small_cnn,
    "p1": p1,
    "p2": p2,
    "funnel": Funnel,
    "resnet18": ResNet18,
    "vae": VAE,
}


def shipped(name: str, **arguments: Any) -> Architecture:
    """One of `SHIPPED`, with arguments in plain data."""
    return Architecture("shipped", name, arguments)


def build_shipped(architecture: Architecture) -> nn.Module:
    """The network, with fresh weights; a name or an argument that is not known is refused."""
    if architecture.name not in SHIPPED:
        raise BadInput(
            f"the description names the architecture '{architecture.name}', which does not come with hush: "
            f"{nearest(architecture.name, SHIPPED)}"
        )
    factory = SHIPPED[architecture.name]
    arguments = {key: tuple(v) if isinstance(v, list) else v for key, v in architecture.arguments.items()}
    try:
        inspect.signature(factory).bind(**arguments)
        return factory(**arguments)
    except BadInput:
        raise
    except (TypeError, ValueError, RuntimeError, OverflowError, IndexError, ZeroDivisionError, MemoryError) as error:
        raise BadInput(f"the arguments of the architecture '{architecture.name}' do not fit it") from error
