"""Reads of tensor values into Python while a model and its loss run.

A tensor program that treats examples separately does so for every input. Python does not: ``if x.abs().max() > 100``
is another program for another batch, and what decides is a value of one example. So every value that a forward, a
loss, an augmentation or their backward pass reads into Python is logged: ``bool``, ``item``, ``tolist``, ``numpy``,
``equal``, whatever decides a shape (``nonzero``, ``unique``, ``to_sparse``, indexing with a mask), and every error that
torch raises, because a model may catch it (an index that is out of range, a matrix without an inverse). Between two
reads the same operations run on the same shapes, so a batch that reads the same values as a batch of empty rows (zeros,
at the same weights and with the same random numbers) runs a program that no example decided. A batch that reads
anything else stops the run before its noise is drawn (`hush.per_example.gradients`).

What empty rows read mostly depends on neither weights nor random numbers (is any position of a mask padded?). Then what
they read at the start of the run, which is public, is all that a batch may read, and no empty rows are computed later.

Two modes detect reads. The function mode sees each call of torch from Python; it costs about a microsecond per call and
is always on in a run. The dispatch mode also sees the operations inside such calls (``x[:t]``, a check inside a loss of
torch), but doubles the time of a small model: it is on while a run starts, and later only where it is needed. The
program is fixed up to its first read: a model that reads nothing on one batch reads nothing on any other, and if the
function mode sees all reads of empty rows, a batch has no other reads as long as these agree.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

Read = tuple[str, str]
"""The function that read, and a digest of what it read: values of the data are not stored."""


@dataclass(eq=False)
class ReadLog:
    """The reads of one recording, in order."""

    thorough: bool
    reads: list[Read] = field(default_factory=list)
    within: bool = False  # inside a call that is logged as a whole
    hidden: bool = False  # some read is detected by the dispatch mode only

    def note(self, name: str, value: Any) -> None:
        """Add one read."""
        self.reads.append((name, _digest(value)))

    def find_difference(self, others: Sequence[Read]) -> str:
        """The first function whose read differs in value or order from these; empty if there is none."""
        for mine, theirs in zip(self.reads, others, strict=False):
            if mine != theirs:
                return mine[0]
        longer = max(self.reads, others, key=len)
        return "" if len(self.reads) == len(others) else longer[min(len(self.reads), len(others))][0]


@dataclass(eq=False)
class ReadChecks:
    """What is known about the reads of one run's model, loss and augmentation.

    ``deciding``: synthetic inputs still decide how the model is computed. ``found``: it reads values, so every chunk
    holds an empty row. ``settled``: it is known whether it reads. ``batched``: examples were computed together, by an
    engine that does not isolate them. ``constant``: empty rows read the same at all weights and random numbers that
    were tried, which are then the only reads that a batch may have; ``usual`` has them, by the number of rows."""

    deciding: bool = False
    found: bool = False
    settled: bool = False
    batched: bool = False
    constant: bool = False
    hidden: bool = False  # empty rows read something that only the dispatch mode detects
    usual: dict[int, tuple[list[Read], list[Read]]] = field(default_factory=dict)
    tried: list[tuple[list[Read], list[Read]]] = field(default_factory=list)  # what empty rows read while deciding

    def settle(self) -> None:
        """End the trials on synthetic inputs: are the reads of empty rows always the same?"""
        self.constant = len(self.tried) > 1 and all(any(one) and one == self.tried[0] for one in self.tried)
        self.deciding = self.batched = False
        self.tried.clear()

    def start_log(self) -> ReadLog:
        """The log of the next recording."""
        return ReadLog(thorough=not self.settled or (self.found and (self.hidden or not self.constant)))


_CHECKS: ContextVar[ReadChecks | None] = ContextVar("the checks of reads", default=None)
_LOG: ContextVar[ReadLog | None] = ContextVar("the log of reads", default=None)


@contextmanager
def checking_reads(checks: ReadChecks | None) -> Iterator[None]:
    """Within it, recordings use these checks."""
    token = _CHECKS.set(checks)
    try:
        yield
    finally:
        _CHECKS.reset(token)


def current_checks() -> ReadChecks | None:
    """The checks of the run that is recording; None outside a run."""
    return _CHECKS.get()


@contextmanager
def logging_to(log: ReadLog | None) -> Iterator[None]:
    """Within it, code under `watching_reads` logs its reads here; nowhere if None."""
    token = _LOG.set(log)
    try:
        yield
    finally:
        _LOG.reset(token)


def start_again() -> None:
    """Begin a recording of all examples together: discard the reads of an earlier attempt."""
    log, checks = _LOG.get(), _CHECKS.get()
    if log is not None:
        log.reads.clear()
        if checks is not None:
            checks.batched = True


_NOTHING = nullcontext()


def watching_reads(draws: AbstractContextManager[Any] | None = None) -> AbstractContextManager[Any]:
    """Log the reads of user code, if there is a log; ``draws`` is the context of its random draws."""
    log = _LOG.get()
    if log is None:
        return draws or _NOTHING
    return _watch(log, draws if isinstance(draws, TorchFunctionMode) else None)


def _watch(log: ReadLog, draws: TorchFunctionMode | None = None) -> AbstractContextManager[Any]:
    return _watch_all(log, draws) if log.thorough else _Functions(log, draws)


@contextmanager
def _watch_all(log: ReadLog, draws: TorchFunctionMode | None) -> Iterator[None]:
    with _Operations(log), _Functions(log, draws):
        yield


def differentiate(
    values: Tensor, inputs: Sequence[Tensor], start: Tensor, *, watched: bool = False
) -> tuple[Tensor | None, ...]:
    """The result of ``torch.autograd.grad``; ``watched`` if user functions and hooks may read values too.

    It calls the engine directly: ``torch.autograd.grad`` disables the current function mode, and imports sympy, which
    takes a second."""
    log = _LOG.get() if watched else None
    run: Any = torch.autograd.graph._engine_run_backward
    with _NOTHING if log is None else _watch(log):
        found: tuple[Tensor | None, ...] = run(
            (values,), (start,), False, False, tuple(inputs), True, accumulate_grad=False
        )
        return found


def _digest(value: Any) -> str:
    """A bit-exact digest of a value."""
    if isinstance(value, np.ndarray):
        head, body = repr((value.shape, value.dtype.str)), np.ascontiguousarray(value).tobytes()
    else:
        head, body = type(value).__name__, repr(value).encode()
    return hashlib.blake2b(head.encode() + body, digest_size=16).hexdigest()


def _read_all(tensor: Any) -> Any:
    """All values of a tensor."""
    with torch._C.DisableTorchFunction():
        plain = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous().reshape(-1)
        return np.asarray([*tensor.shape]), plain.view(torch.uint8).numpy().tobytes()


def _count_rows(mask: Tensor) -> Any:
    """The number of entries per row of a mask: it decides the shape of the selection, and which entry belongs where."""
    with torch._C.DisableTorchFunction():
        chosen = (mask.detach() != 0).reshape(mask.shape[0] if mask.dim() else 1, -1).sum(1)
        return tuple(mask.shape), chosen.cpu().numpy().tobytes()


def _list_masks(index: Any) -> Iterable[Tensor]:
    """The boolean masks of an index."""
    if isinstance(index, Tensor):
        return (index,) if index.dtype in (torch.bool, torch.uint8) else ()
    if isinstance(index, (tuple, list)):
        return [mask for each in index for mask in _list_masks(each)]
    return ()


def _collect(owner: Any, names: str) -> list[Any]:
    return [getattr(owner, name) for name in names.split() if hasattr(owner, name)]


VALUES = frozenset(
    [
        *_collect(
            Tensor,
            "__bool__ __float__ __int__ __index__ __complex__ __contains__ __format__ __repr__ item tolist numpy "
            "__array__ is_nonzero equal allclose",
        ),
        *_collect(torch, "is_nonzero equal allclose"),
    ]
)
"""Functions whose result is a Python or numpy value."""

CONTENTS = frozenset(
    _collect(
        Tensor,
        "storage untyped_storage _typed_storage __dlpack__ __reduce_ex__ apply_ map_ map2_ __array_interface__ "
        "__cuda_array_interface__",
    )
)
"""Functions that pass all values of a tensor to other code."""

SHAPES = frozenset(
    [
        *_collect(Tensor, "unique unique_consecutive bincount coalesce"),
        *_collect(torch, "unique unique_consecutive bincount _unique _unique2 sparse_coo_tensor"),
    ]
)
"""Functions whose result has a shape that depends on values."""

SIZES = frozenset(
    [
        *_collect(Tensor, "repeat_interleave tensor_split"),
        *_collect(torch, "repeat_interleave tensor_split _pack_padded_sequence"),
    ]
)
"""Functions that take sizes, which may be tensors."""

_PACK: Any = torch._C._VariableFunctions._pack_padded_sequence  # reads no lengths where a recording replaces it
_SLICED = (Tensor.__getitem__, Tensor.__setitem__)  # x[:t] reads t inside the call
_ONE_HOT = torch.nn.functional.one_hot

MASKS = frozenset(
    [
        *_collect(
            Tensor, "nonzero argwhere masked_select masked_scatter masked_scatter_ where to_sparse to_sparse_coo"
        ),
        *_collect(Tensor, "to_sparse_csr to_sparse_csc to_sparse_bsr to_sparse_bsc"),
        *_collect(torch, "nonzero argwhere masked_select masked_scatter where"),
    ]
)
"""Functions whose mask decides the shape or the order of the result."""

INDEXED = frozenset(
    [
        *_collect(Tensor, "__getitem__ __setitem__ index_put index_put_"),
        *_collect(torch, "index_put index_put_"),
    ]
)
"""Functions that do so only if the index is a mask."""

READS = VALUES | CONTENTS | SHAPES | SIZES | MASKS | INDEXED | {_ONE_HOT}
COMPARED = frozenset(
    [
        *_collect(Tensor, "__gt__ __lt__ __ge__ __le__ __eq__ __ne__ gt lt ge le eq ne isfinite isnan isinf"),
        *_collect(torch, "gt lt ge le eq ne isfinite isnan isinf"),
    ]
)
"""Comparisons of a parameter that precede a read; they have no gradient."""


class _Functions(TorchFunctionMode):
    """Logs reads in calls of torch from Python."""

    def __init__(self, log: ReadLog, draws: TorchFunctionMode | None = None) -> None:
        super().__init__()
        self.log = log
        self._draws = draws  # another mode, which is not entered: each mode costs several calls per call of torch

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        super().__exit__(kind, error, trace)  # type: ignore[no-untyped-call]
        if kind is None and self._draws is not None:
            self._draws.check()  # type: ignore[attr-defined]

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        try:
            if func not in READS:
                if self._draws is not None:
                    return self._draws.__torch_function__(func, types, args, kwargs)  # type: ignore[no-untyped-call]
                return func(*args, **kwargs) if kwargs else func(*args)
            return self._read(func, args, kwargs or {})
        except Exception as error:  # a model that catches it knows that a value of some example is not allowed
            self.log.note(getattr(func, "__name__", type(func).__name__), (type(error).__name__, str(error)))
            raise

    def _read(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        name = func.__name__
        if func in CONTENTS:
            self.log.note(name, _read_all(args[0]))
        elif func in MASKS:
            self._note_masks(name, args, kwargs)
        elif func in INDEXED:
            self._note_index(name, args, kwargs)
        elif func in SIZES and func is not _PACK:
            self._note_sizes(name, args, kwargs)
        outer, self.log.within = self.log.within, func not in _SLICED
        try:
            found = func(*args, **kwargs)
        finally:
            self.log.within = outer
        if func is _PACK and isinstance(found[0], Tensor):
            self._note_sizes(name, args, kwargs)
        if func in VALUES:
            # a read-only copy: numpy shares the tensor's memory, and would show later writes
            if isinstance(found, np.ndarray):
                found = found.copy()
                found.setflags(write=False)
            self.log.note(name, found)
        elif func in SHAPES or (func is _ONE_HOT and (args[1] if len(args) > 1 else kwargs.get("num_classes", -1)) < 0):
            self.log.note(name, _list_shapes(found))
        return found

    def _note_masks(self, name: str, args: Any, kwargs: dict[str, Any]) -> None:
        given = [*args, *kwargs.values()]
        if name == "where" and len(given) > 1:
            return  # selects elementwise
        mask = given[0] if len(args) < 2 else args[1]
        mask = kwargs.get("mask", mask)
        self.log.note(name, _count_rows(mask if isinstance(mask, Tensor) else given[0]))

    def _note_sizes(self, name: str, args: Any, kwargs: dict[str, Any]) -> None:
        sizes = [v for v in (*args[1:], *kwargs.values()) if isinstance(v, Tensor)]
        for given in sizes or (args if len(args) + len(kwargs) == 1 else ()):
            self.log.note(name, _read_all(given))

    def _note_index(self, name: str, args: Any, kwargs: dict[str, Any]) -> None:
        index = args[1] if len(args) > 1 else kwargs.get("indices")
        value = args[2] if len(args) > 2 else kwargs.get("values")
        if value is not None and not (isinstance(value, Tensor) and value.dim()):
            return  # one number for all selected entries, so their order does not matter
        for mask in _list_masks(index):
            self.log.note(name, _count_rows(mask))


def _list_shapes(found: Any) -> Any:
    if isinstance(found, (tuple, list)):
        return [_list_shapes(each) for each in found]
    if not isinstance(found, Tensor):
        return found if isinstance(found, (bool, int, float)) else ()
    return (*found.shape, found._nnz()) if found.is_sparse else tuple(found.shape)


class _Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Logs reads in the operations inside calls of torch."""

    def __init__(self, log: ReadLog) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.log = log

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """False: nothing is compiled here, and torch would load its compiler, which takes seconds."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        try:
            found = func(*args, **(kwargs or {}))
        except Exception as error:
            if not self.log.within:
                self._note(func, (type(error).__name__, str(error)))
            raise
        kind = "" if self.log.within else _find_kind(func)
        if kind == "value":
            self._note(func, found)
        elif kind == "shape":
            self._note(func, _list_shapes(found))
        elif kind == "index" and not (len(args) > 2 and not args[2].dim()):
            for mask in _list_masks(args[1]):
                self._note(func, _count_rows(mask))
        return found

    def _note(self, func: Any, value: Any) -> None:
        self.log.hidden = True
        self.log.note(str(func), value)


@functools.cache
def _find_kind(func: Any) -> str:
    if func.overloadpacket in (torch.ops.aten.index, torch.ops.aten.index_put, torch.ops.aten.index_put_):
        return "index"
    if torch.Tag.data_dependent_output in func.tags:
        return "value"
    own = func.namespace not in ("aten", "prims", "prim")  # whoever wrote it may read values and need not say so
    return "shape" if own or torch.Tag.dynamic_output_shape in func.tags else ""


_READ_ERRORS = ("data-dependent control flow", ".item() on a Tensor")


def is_read_error(error: BaseException) -> bool:
    """Whether torch.func reports that values of an example were read into Python."""
    return isinstance(error, RuntimeError) and any(part in str(error) for part in _READ_ERRORS)
