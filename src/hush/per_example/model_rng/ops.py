"""torch's random operations, implemented with numbers by place; others raise an error with the remedy.

Each function takes the operation's own arguments after ``numbers(shape, device)``, which starts one draw.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hush.errors import UnsupportedModelError
from hush.per_example.model_rng.numbers import Numbers, find_full_range

Start = Callable[[Sequence[int], torch.device], Numbers]
aten = torch.ops.aten


def _start_for(start: Start, x: Tensor) -> Numbers:
    return start(tuple(x.shape), x.device)


def bernoulli_(start: Start, x: Tensor, p: float | Tensor = 0.5) -> Tensor:
    """Ones with probability p."""
    numbers = _start_for(start, x)
    return numbers.draw_masks(p, x) if isinstance(p, Tensor) else numbers.draw_mask(p, x)


def bernoulli(start: Start, x: Tensor, p: float | Tensor | None = None) -> Tensor:
    """Ones with the probability in x, or p."""
    return bernoulli_(start, torch.empty_like(x), x if p is None else p)


def uniform_(start: Start, x: Tensor, low: float = 0.0, high: float = 1.0) -> Tensor:
    """Uniform on [low, high)."""
    return x.copy_(_start_for(start, x).draw_uniform(x.dtype).mul_(high - low).add_(low))


def normal_(start: Start, x: Tensor, mean: float = 0.0, std: float = 1.0) -> Tensor:
    """Normal."""
    return x.copy_(_start_for(start, x).draw_normal(x.dtype).mul_(std).add_(mean))


def log_normal_(start: Start, x: Tensor, mean: float = 1.0, std: float = 2.0) -> Tensor:
    """The exponential of a normal number."""
    return normal_(start, x, mean, std).exp_()


def exponential_(start: Start, x: Tensor, rate: float = 1.0) -> Tensor:
    """−ln u/λ, never 0."""
    return x.copy_(_start_for(start, x).draw_open_uniform(x.dtype).log_().neg_().div_(rate))


def cauchy_(start: Start, x: Tensor, median: float = 0.0, sigma: float = 1.0) -> Tensor:
    """median + σ tan(π(u − ½))."""
    return x.copy_(
        _start_for(start, x).draw_open_uniform(x.dtype).sub_(0.5).mul_(math.pi).tan_().mul_(sigma).add_(median)
    )


def geometric_(start: Start, x: Tensor, p: float) -> Tensor:
    """⌈ln u/ln(1 − p)⌉: the number of trials up to the first success."""
    dtype = x.dtype if x.is_floating_point() else torch.float64
    return x.copy_(_start_for(start, x).draw_open_uniform(dtype).log_().div_(math.log1p(-p)).ceil_().clamp_(min=1))


def random_(start: Start, x: Tensor, *bounds: int | None) -> Tensor:
    """Integers: random_(), random_(high) or random_(low, high)."""
    low = bounds[0] if len(bounds) == 2 else 0
    high = bounds[-1] if bounds else None
    return x.copy_(
        _start_for(start, x).draw_range(low or 0, find_full_range(x.dtype) if high is None else high, torch.int64)
    )


def _draw_new(kind: str, start: Start, size: Sequence[int], dtype: Any, device: Any) -> Tensor:
    dtype = dtype or torch.get_default_dtype()
    numbers = start(tuple(size), torch.device(device or torch.get_default_device()))
    return numbers.draw_uniform(dtype) if kind == "uniform" else numbers.draw_normal(dtype)


def rand(start: Start, size: Sequence[int], *, dtype: Any = None, device: Any = None, **_: Any) -> Tensor:
    """Uniform on [0, 1)."""
    return _draw_new("uniform", start, size, dtype, device)


def randn(start: Start, size: Sequence[int], *, dtype: Any = None, device: Any = None, **_: Any) -> Tensor:
    """Standard normal."""
    return _draw_new("normal", start, size, dtype, device)


def rand_like(start: Start, x: Tensor, *, dtype: Any = None, device: Any = None, **_: Any) -> Tensor:
    """Uniform on [0, 1)."""
    return _draw_new("uniform", start, x.shape, dtype or x.dtype, device or x.device)


def randn_like(start: Start, x: Tensor, *, dtype: Any = None, device: Any = None, **_: Any) -> Tensor:
    """Standard normal."""
    return _draw_new("normal", start, x.shape, dtype or x.dtype, device or x.device)


def randint(start: Start, *bounds_and_size: Any, dtype: Any = None, device: Any = None, **_: Any) -> Tensor:
    """Integers: randint(high, size) or randint(low, high, size)."""
    *bounds, size = bounds_and_size
    low, high = (0, *bounds) if len(bounds) == 1 else bounds
    return start(tuple(size), torch.device(device or torch.get_default_device())).draw_range(
        low, high, dtype or torch.int64
    )


def randint_like(start: Start, x: Tensor, *bounds: Any, dtype: Any = None, device: Any = None, **_: Any) -> Tensor:
    """Integers in the shape of x."""
    return randint(start, *map(int, bounds), x.shape, dtype=dtype or x.dtype, device=device or x.device)


def _normal_with_moments(start: Start, mean: Any, std: Any = 1.0, size: Any = None, **options: Any) -> Tensor:
    """mean + std·z, where either may be a tensor."""
    if size is not None:
        return randn(start, size, **options).mul_(std).add_(mean)
    shape = np.broadcast_shapes(*(tuple(torch.as_tensor(v).shape) for v in (mean, std)))
    dtype = next(v.dtype for v in (mean, std) if isinstance(v, Tensor))
    device = next(v.device for v in (mean, std) if isinstance(v, Tensor))
    return start(shape, device).draw_normal(dtype).mul_(std).add_(mean)


def dropout(start: Start, input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """torch's own steps with fewer Python calls, because this is by far the most frequent draw."""
    if not 0 < p < 1 or not training or not input.is_floating_point():
        return torch.dropout_(input, p, training) if inplace else torch.dropout(input, p, training)
    mask = bernoulli_(start, torch.empty_like(input, requires_grad=False), 1 - p).div_(1 - p)
    return input.mul_(mask) if inplace else input * mask


def native_dropout(start: Start, x: Tensor, p: float, train: bool | None = True) -> tuple[Tensor, Tensor]:
    """Dropout and its mask."""
    if train is False or p == 0:
        return x.clone(), torch.ones_like(x, dtype=torch.bool)
    mask = bernoulli_(start, torch.empty_like(x), 1 - p)
    return x * mask * (1 / (1 - p) if p < 1 else 0.0), mask.bool()


def rrelu_with_noise_(
    start: Start, x: Tensor, noise: Tensor, lower: float = 1 / 8, upper: float = 1 / 3, training: bool = False
) -> Tensor:
    """A random slope for negative values; a slope is drawn for every value, used or not."""
    if not training:
        return x.copy_(torch.nn.functional.leaky_relu(x, (lower + upper) / 2))
    slope = uniform_(start, torch.empty_like(x), lower, upper)
    noise.copy_(torch.where(x <= 0, slope, 1.0))
    return x.mul_(noise)


def rrelu_with_noise(start: Start, x: Tensor, *rest: Any) -> Tensor:
    """The same, into a new tensor."""
    return rrelu_with_noise_(start, x.clone(), *rest)


def randperm(start: Start, n: int, *, dtype: Any = None, device: Any = None, **_: Any) -> Tensor:
    """The argsort of n 64-bit integers."""
    order = (
        start((n,), torch.device(device or torch.get_default_device())).draw_integers(torch.int64).argsort(stable=True)
    )
    return order.to(dtype or torch.int64)


def _draw_into_new(fill: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def draw_like(start: Start, x: Tensor, *args: Any) -> Tensor:
        return fill(start, torch.empty_like(x), *args)

    return draw_like


FILLS: dict[str, Callable[..., Tensor]] = {
    "uniform": uniform_,
    "normal": normal_,
    "bernoulli": bernoulli_,
    "exponential": exponential_,
    "cauchy": cauchy_,
    "log_normal": log_normal_,
    "geometric": geometric_,
    "random": random_,
}
"""The operations that fill a tensor in place, without the underscore."""
OPERATIONS: dict[Any, Callable[..., Any]] = {
    **{getattr(aten, f"{name}_"): fill for name, fill in FILLS.items()},
    **{getattr(aten, name): _draw_into_new(fill) for name, fill in FILLS.items()},
    aten.normal: _normal_with_moments,
    aten.bernoulli: bernoulli,
    aten.randperm: randperm,
    aten.rand: rand,
    aten.randn: randn,
    aten.rand_like: rand_like,
    aten.randn_like: randn_like,
    aten.randint: randint,
    aten.randint_like: randint_like,
    aten.native_dropout: native_dropout,
    aten.rrelu_with_noise: rrelu_with_noise,
    aten.rrelu_with_noise_: rrelu_with_noise_,
}
COUNTED = "takes a number of random bits that depends on the data"
_REFUSED = {
    "poisson": f"{COUNTED}: draw from a normal or a Bernoulli distribution instead",
    "binomial": f"{COUNTED}: add up torch.bernoulli instead",
    "_standard_gamma": f"{COUNTED} (gamma, beta, Student's t): reparameterise with torch.randn or torch.rand",
    "_sample_dirichlet": f"{COUNTED}: reparameterise with torch.randn or torch.rand",
    "multinomial": f"{COUNTED}: use torch.nn.functional.gumbel_softmax or an argmax of Gumbel noise instead",
}
FUSED = (
    "draws inside one fused kernel, where no example has its own numbers: run the model under "
    "torch.nn.attention.sdpa_kernel(SDPBackend.MATH), or set its dropout to 0"
)


def make_refusal(name: str) -> UnsupportedModelError:
    """The error for a random operation that cannot be used in private training."""
    return UnsupportedModelError(f"the model uses the random operation '{name}', which {_REFUSED.get(name, FUSED)}")


def is_refused(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    """Whether an operation draws random numbers and is not supported above."""
    if func.overloadpacket.__name__ in _REFUSED:
        return True
    if torch.Tag.nondeterministic_seeded not in func.tags:
        return False
    names = [a.name for a in func._schema.arguments]
    if "dropout_p" in names:  # fused attention is random only with dropout
        given = dict(zip(names, args, strict=False)) | kwargs
        return bool(given.get("dropout_p", 0.0))
    return True
