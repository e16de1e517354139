"""Interception of torch's random operations while a model runs.

A function mode sees every call of torch from Python, at about a microsecond per call, and knows the few that draw
random numbers. Only these run under a dispatch mode, which sees the operation itself: below autograd and below
torch.func, where the mapped examples are the first dimension of one tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import Any, Protocol

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from hush.errors import UnsupportedModelError
from hush.per_example.model_rng.numbers import Numbers
from hush.per_example.model_rng.ops import FILLS, OPERATIONS, dropout, is_refused, make_refusal, rand, randn, randperm


class Drawer(Protocol):
    """Provides the random numbers."""

    def start(self, shape: Sequence[int], device: torch.device, mapped: bool) -> Numbers:
        """Start a draw; ``mapped`` if the first dimension is torch.func's map over the examples."""
        ...

    def shares(self, shape: Sequence[int]) -> bool:
        """Whether the next draw, of this shape for one example, is shared by all examples."""
        ...

    def check(self) -> None:
        """Raise if something was drawn from torch's own generators."""
        ...


_TORCH = """rand rand_like randn randn_like randint randint_like randperm normal bernoulli multinomial poisson binomial
_standard_gamma _sample_dirichlet dropout dropout_ alpha_dropout alpha_dropout_ feature_dropout feature_dropout_
feature_alpha_dropout feature_alpha_dropout_ native_dropout _fused_dropout rrelu rrelu_ lstm gru rnn_tanh rnn_relu"""
_TENSOR = "uniform_ normal_ bernoulli bernoulli_ random_ exponential_ cauchy_ log_normal_ geometric_ multinomial"
_FUNCTIONAL = """dropout dropout1d dropout2d dropout3d alpha_dropout feature_alpha_dropout gumbel_softmax rrelu
multi_head_attention_forward fractional_max_pool2d_with_indices fractional_max_pool3d_with_indices
_fractional_max_pool2d _fractional_max_pool3d scaled_dot_product_attention"""


def _find_all(owner: Any, names: str) -> Iterable[Any]:
    return [getattr(owner, name) for name in names.split() if hasattr(owner, name)]


RANDOM = frozenset(
    [
        *_find_all(torch, _TORCH),
        *_find_all(Tensor, _TENSOR),
        *_find_all(F, _FUNCTIONAL),
        *_find_all(torch._C._nn, "rrelu_with_noise rrelu_with_noise_ scaled_dot_product_attention"),
        *_find_all(torch.nn.init, "uniform_ normal_ trunc_normal_ kaiming_uniform_ constant_"),
    ]
)


OUTSIDE: dict[Any, Callable[..., Tensor]] = {
    torch.randperm: randperm,  # torch.func would call it once per example
    torch.rand: rand,  # torch.func draws these per example, even if all examples share one draw
    torch.randn: randn,
    **{getattr(Tensor, f"{name}_"): fill for name, fill in FILLS.items()},  # torch.func cannot fill unmapped tensors
}


class Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Replaces the random operations of one call."""

    def __init__(self, drawer: Drawer) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.drawer, self.mapped = drawer, False

    def start_draw(self, shape: Sequence[int], device: torch.device) -> Numbers:
        """Start a draw."""
        return self.drawer.start(shape, device, self.mapped)

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """False: nothing is compiled here, and torch would load its compiler, which takes seconds."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        options = dict(kwargs or {})
        operation = OPERATIONS.get(func.overloadpacket)
        if operation is not None:
            _check_options(func, options)
            return operation(self.start_draw, *args, **options)
        if is_refused(func, args, options):
            with self:
                parts = func.decompose(*args, **options)
            if parts is NotImplemented:
                raise make_refusal(func.overloadpacket.__name__)
            return parts
        return func(*args, **options)


class Functions(TorchFunctionMode):
    """Intercepts the calls that draw random numbers."""

    def __init__(self, drawer: Drawer) -> None:
        super().__init__()
        self.drawer = drawer

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        super().__exit__(kind, error, trace)  # type: ignore[no-untyped-call]
        if kind is None:
            self.drawer.check()

    @cached_property
    def operations(self) -> Operations:
        """The dispatch mode, created at the first draw."""
        return Operations(self.drawer)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func not in RANDOM:
            return func(*args, **kwargs) if kwargs else func(*args)
        maps = _count_maps()
        if maps > 1:
            raise UnsupportedModelError(
                "the model draws random numbers inside its own torch.func.vmap, where they cannot be assigned to "
                "examples: draw them before the map"
            )
        self.operations.mapped = maps == 1
        options = dict(kwargs or {})
        if func is F.dropout and not maps and type(args[0]) is Tensor:
            return dropout(self.operations.start_draw, *args, **options)
        directly = OUTSIDE.get(func)
        if directly is not None and maps and self._is_outside(func, args, options):
            _check_options(func, options)
            self.operations.mapped = False
            args = (_read_size(args),) if func in (torch.rand, torch.randn) else args
            return directly(self.operations.start_draw, *args, **options)
        with self.operations:
            return func(*args, **options)

    def _is_outside(self, func: Any, args: Any, options: dict[str, Any]) -> bool:
        """Under torch.func: whether the draw is shared by all examples and not part of the map."""
        if func is torch.randperm:
            return True
        if options.keys() - {"dtype", "device", "generator"} or not args:
            return False
        if func in (torch.rand, torch.randn):
            return self.drawer.shares(_read_size(args))
        x = args[0]
        return not torch._C._functorch.is_batchedtensor(x) and self.drawer.shares(tuple(x.shape))


def _read_size(args: Any) -> tuple[int, ...]:
    """rand(2, 3) and rand((2, 3))."""
    return tuple(args[0]) if isinstance(args[0], Sequence) else tuple(args)


def _check_options(func: Any, options: dict[str, Any]) -> None:
    if options.pop("generator", None) is not None:
        raise UnsupportedModelError(
            f"the model draws from its own generator ('{func.__name__}' with generator=…), whose numbers do not belong "
            "to examples: leave generator out, and the numbers come from the run's secret"
        )
    if options.pop("out", None) is not None:
        raise UnsupportedModelError(f"the model calls '{func.__name__}' with out=…: use its result instead")


def _count_maps() -> int:
    """The number of active torch.func maps."""
    stack = torch._C._functorch.get_interpreter_stack()
    return sum(each.key() == torch._C._functorch.TransformType.Vmap for each in stack or ())
