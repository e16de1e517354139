"""Data as hush reads it: a length, and the content of any set of indices."""

from __future__ import annotations

import copy
from collections import UserDict, deque
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.data import (
    ConcatDataset,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    Subset,
    TensorDataset,
    default_collate,
)

from hush._internal.tensors import Losses
from hush.errors import DataError, HushError, InvalidInputError, UnsupportedModelError

# A torch ``DataLoader`` as hush uses it: its dataset, collate function and workers, with batches drawn by the plan.
#
# The sampler decides which examples are in a batch, because the guarantee depends on it: the loader's own sampler,
# batch size, shuffle and drop_last are not used.

Future = Callable[[], Iterator[Tensor]]
"""The indices that will be requested from now on, one tensor per batch, in order."""


def _check_map_style(dataset: Any) -> None:
    """Raise for an IterableDataset: private batches are drawn from all examples by index."""
    if isinstance(dataset, IterableDataset):
        raise InvalidInputError(
            f"{type(dataset).__name__} is an IterableDataset without length and random access, but private batches are "
            "drawn from all examples by index: read it into a list or a map-style Dataset first"
        )


def _check_loader(loader: DataLoader[Any]) -> None:
    """Raise if the loader's dataset is iterable-style, or if the loader does not collate single examples."""
    _check_map_style(loader.dataset)
    if loader.batch_size is None and loader.batch_sampler is None:
        raise InvalidInputError(
            "this DataLoader does not collate (batch_size=None), so it does not define how examples become a batch: "
            "give it any batch_size; the plan's batch size replaces it"
        )


def collates_by_itself(loader: DataLoader[Any]) -> bool:
    """Whether the loader has a collate function other than torch's defaults."""
    return loader.collate_fn is not default_collate


def describe_replaced(loader: DataLoader[Any]) -> str:
    """One sentence: which parts of a loader are used, and which are replaced."""
    shuffles = isinstance(loader.sampler, RandomSampler)
    theirs = "its own batch_sampler" if loader.batch_size is None else f"batch_size={loader.batch_size}"
    workers = (
        f", the collate function and {loader.num_workers} workers" if loader.num_workers else " and collate function"
    )
    return (
        f"the DataLoader's dataset{workers} are used; its batches ({theirs}{', shuffle=True' if shuffles else ''}) are "
        "replaced by those that the plan draws, because the guarantee depends on them"
    )


@dataclass(frozen=True)
class _Items(Dataset[Any]):
    """A dataset without all but its length and items: a worker would call ``__getitems__``, if there is one, which may
    mix the items of a batch and which neither the checks nor `Collated` call."""

    dataset: Any

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Any:
        return self.dataset[index]


class Prefetch:
    """A loader's workers, prefetching batches that will be requested: they are used in order, or not at all."""

    def __init__(self, loader: DataLoader[Any]) -> None:
        self._loader = loader
        self._future: Future | None = None
        self._coming: Iterator[Any] | None = None
        self._promised: deque[list[int]] = deque()

    def follow(self, future: Future) -> None:
        """Prefetch these batches from now on."""
        self._future = future
        self.stop()

    def stop(self) -> None:
        """Stop the workers."""
        self._coming = None
        self._promised.clear()

    def find(self, indices: list[int]) -> Any:
        """The content of these indices from the workers; None if it is not the next one."""
        if not self._comes_next(indices):
            self._start()
        if not self._comes_next(indices):
            self.stop()
            return None
        assert self._coming is not None
        content = next(self._coming)
        self._promised.popleft()
        if not self._promised:  # the workers are always ahead, so none are left
            self.stop()
        return content

    def _comes_next(self, indices: list[int]) -> bool:
        return bool(self._promised) and self._promised[0] == indices

    def _start(self) -> None:
        self.stop()
        if self._future is None:
            return
        theirs, here = self._loader, torch.random.fork_rng(devices=[])
        with here:  # a loader seeds its workers from the global generator, which belongs to the user
            self._coming = iter(
                DataLoader(
                    _Items(theirs.dataset),
                    batch_sampler=_Noted(self._future(), self._promised),
                    collate_fn=theirs.collate_fn,
                    num_workers=theirs.num_workers,
                    pin_memory=pins(theirs),
                    timeout=theirs.timeout,
                    worker_init_fn=theirs.worker_init_fn,
                    multiprocessing_context=theirs.multiprocessing_context,
                    prefetch_factor=theirs.prefetch_factor,
                )
            )


def pins(loader: DataLoader[Any]) -> bool:
    """Whether batches should use pinned memory: requested, and CUDA is available."""
    return bool(loader.pin_memory) and torch.cuda.is_available()


class _Noted:
    """Records which batches are requested from the workers; empty batches are skipped."""

    def __init__(self, future: Iterator[Tensor], promised: deque[list[int]]) -> None:
        self._future, self._promised = future, promised

    def __iter__(self) -> Iterator[list[int]]:
        for indices in self._future:
            if len(indices):
                self._promised.append(indices.tolist())
                yield self._promised[-1]


Parts = dict[str, str]
TENSOR = "a tensor"  # prefix of a tensor's description; its type and its shape without the examples follow
PLAIN = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device)
PROBED, TIMES = 4, 4  # examples that are read, and how often: a random flip goes unnoticed with probability 1 in 4096


@runtime_checkable
class Source(Protocol):
    """Data with a length that gives the content of some indices.

    Sampling, resuming and the digest of the data rely on these properties:

    1. ``len(source)`` is the number of examples, at least 1, and does not change during a run.
    2. ``take(indices)`` is a pure function of the indices. Row j of the content is example ``indices[j]`` and does not
       depend on any other index, on their order or on the time of the call.
    3. Every tensor of the content has the examples in dimension 0, and the same type and other dimensions in every
       batch. A private run compares each batch with the empty one, and raises if the shape differs before noise is
       drawn: padding to the longest example of a batch would let one example change the gradients of all the others.
    4. An empty index tensor gives a content with zero rows and the usual other dimensions: a Poisson batch can be
       empty. This shape is the public one, which the guarantee lists as a condition.
    5. Values that are not tensors (a string, a number, None) are the same in every batch: they reach the losses of all
       its examples.
    """

    def __len__(self) -> int: ...

    def take(self, indices: Tensor) -> Any:
        """The content of these examples: the argument of ``losses(model, content)``."""
        ...


@dataclass(frozen=True)
class Tensors:
    """Tensors that share their first dimension; the content is the tuple (or the single tensor), indexed."""

    tensors: tuple[Tensor, ...]
    single: bool = False

    def __post_init__(self) -> None:
        lengths = {len(t) for t in self.tensors}
        if len(lengths) != 1:
            raise InvalidInputError(
                f"the tensors of a dataset must share their first dimension, got lengths {sorted(lengths)}"
            )
        for place, tensor in enumerate(self.tensors):
            if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
                raise InvalidInputError(
                    f"tensor {place} of the data holds values that are not finite (NaN or infinity)"
                )

    def __len__(self) -> int:
        return len(self.tensors[0])

    def take(self, indices: Tensor) -> Any:
        """The rows of every tensor."""
        rows = tuple(tensor[indices.to(tensor.device)] for tensor in self.tensors)
        return rows[0] if self.single else rows


@dataclass(frozen=True)
class Collated:
    """A map-style torch Dataset whose items are collated by torch's default or by another function of a list of items.

    With ``workers``, batches that were announced in time come from them; other batches are computed here. The content
    is the same.
    """

    dataset: Any
    collate: Callable[[list[Any]], Any] = default_collate
    workers: Prefetch | None = None
    pin: bool = False

    def __len__(self) -> int:
        return len(self.dataset)

    def take(self, indices: Tensor) -> Any:
        """The collated items; an empty index gives an empty batch of the right shape."""
        if len(indices) == 0:
            return to_each(lambda t: t[:0], self.collate([self.dataset[0]]))
        wanted = indices.tolist()
        found = None if self.workers is None else self.workers.find(wanted)
        return self._take_here(wanted) if found is None else found

    def _take_here(self, indices: list[int]) -> Any:
        content = self.collate([self.dataset[i] for i in indices])
        return to_each(Tensor.pin_memory, content) if self.pin else content

    def follow(self, future: Future) -> None:
        """Let the workers, if any, prefetch these batches."""
        if self.workers is not None:
            self.workers.follow(future)


def as_source(data: Any) -> Source:
    """Convert tensors or numpy arrays, a tuple of them, a map-style Dataset or a DataLoader to a Source."""
    arrays = data if isinstance(data, (tuple, list)) else (data,)
    if arrays and all(isinstance(a, (Tensor, np.ndarray)) for a in arrays):
        source: Source = Tensors(tuple(map(_as_tensor, arrays)), single=arrays is not data)
    elif isinstance(data, DataLoader):
        source = _of_loader(data)
    elif isinstance(data, Source):
        source = data
    elif isinstance(data, Dataset) or (hasattr(data, "__getitem__") and hasattr(data, "__len__")):
        if not isinstance(data, Dataset):
            _check_items(data)
        _check_map_style(data)
        source = Collated(data)
    else:
        raise InvalidInputError(
            "data must be a tensor or numpy array, a tuple of them, a Dataset with a length or a DataLoader, got "
            f"{type(data).__name__}"
        )
    if _count(source) == 0:
        raise InvalidInputError("the data holds no examples")
    return source


def _check_items(data: Any) -> None:
    """Raise for data with a length whose items are not its examples: dicts of columns, lists of columns, frames."""
    if isinstance(data, Mapping) and 0 not in data:
        inside = type(next(iter(data.values()), None)).__name__
        raise InvalidInputError(
            f"the data is a {type(data).__name__} of {inside}, which cannot be indexed by example: give a tuple of "
            "tensors, or a Dataset whose items are dicts"
        )
    parts = data if isinstance(data, (tuple, list)) else (data,)
    if any(isinstance(part, (Tensor, np.ndarray)) or _is_frame(part) for part in parts):
        names = ", ".join(type(part).__name__ for part in parts[:3]) + (", …" if len(parts) > 3 else "")
        raise InvalidInputError(
            f"the data is {f'({names})' if parts is data else f'a {names}'}, but each part must be a tensor or a numpy "
            "array: convert it, for example with frame.to_numpy('float32') or torch.tensor(numbers)"
        )


def _is_frame(part: Any) -> bool:
    """Whether this is a pandas-like table or column."""
    return hasattr(part, "to_numpy") and hasattr(part, "shape")


def _of_loader(loader: DataLoader[Any]) -> Collated:
    _check_loader(loader)
    workers = Prefetch(loader) if loader.num_workers else None
    return Collated(loader.dataset, loader.collate_fn, workers, pins(loader))


def _as_tensor(array: Tensor | np.ndarray) -> Tensor:
    """A tensor that shares the array's memory if that is writable, otherwise a copy."""
    if isinstance(array, Tensor):
        _check_dense(array, "the data")
        if type(array) not in (Tensor, nn.Parameter):
            raise DataError(
                f"the data is a tensor of type {type(array).__name__}, which may compute in its own way, also across "
                "examples: convert it with data.as_subclass(torch.Tensor)"
            )
        return array
    try:
        return torch.from_numpy(array if array.flags.writeable else array.copy())
    except (TypeError, ValueError) as error:  # text and objects, or strides that torch does not support
        raise InvalidInputError(
            f"a numpy array of {array.dtype} cannot be used as data: convert it to contiguous numbers, for example "
            "with np.ascontiguousarray(array, dtype='float32')"
        ) from error


def _check_dense(tensor: Tensor, where: str) -> None:
    if tensor.is_nested or tensor.layout is not torch.strided:
        layout = f"{'nested, ' if tensor.is_nested else ''}{tensor.layout}"
        raise DataError(
            f"{where} is a sparse or nested tensor ({layout}), so its examples have no common shape: convert it to a "
            "dense tensor"
        )


def _count(source: Source) -> int:
    try:
        return len(source)
    except TypeError as error:  # __len__ is optional for a Dataset
        raise InvalidInputError(
            "the data has no length, but private batches are drawn from all examples: give the dataset a __len__"
        ) from error


def is_made_by_user_code(source: Source) -> bool:
    """Whether code outside hush and torch produces the examples."""
    if isinstance(source, Collated):
        dataset = source.dataset
        while type(dataset) is Subset:
            dataset = dataset.dataset
        return type(dataset) is not TensorDataset or source.collate is not default_collate
    return type(source).__module__.partition(".")[0] != "hush"


Places = dict[tuple[int, ...], list[NDArray[np.int64]]]


def check_repeats(source: Source) -> None:
    """Raise if a Subset or ConcatDataset holds an example several times, as for oversampling: it would contribute
    several times."""
    dataset = source.dataset if isinstance(source, Collated) else None
    if not isinstance(dataset, (Subset, ConcatDataset)):
        return
    found: Places = {}
    _trace(dataset, np.arange(len(dataset)), found)
    different = sum(len(np.unique(np.concatenate(places))) for places in found.values())
    if different < len(dataset):
        raise DataError(
            f"the {len(dataset)} examples of a {type(dataset).__name__} are {different} different ones, and one that "
            "is repeated would count for more than its clip norm: list every example once, or make all copies of an "
            "example one unit by giving its index as their unit"
        )


def _trace(dataset: Any, places: NDArray[np.int64], found: Places) -> None:
    """Find, for each dataset that holds examples itself, which of them are at these places."""
    if (places < 0).any():
        places = np.where(places < 0, places + len(dataset), places)
    if isinstance(dataset, Subset):
        _trace(dataset.dataset, np.asarray(list(map(int, dataset.indices)), np.int64)[places], found)
    elif isinstance(dataset, ConcatDataset):
        ends = np.asarray(dataset.cumulative_sizes, np.int64)
        whose = np.searchsorted(ends, places, side="right")
        for number, part in enumerate(dataset.datasets):
            start = ends[number - 1] if number else 0
            _trace(part, places[whose == number] - start, found)
    else:
        whole = dataset.tensors if type(dataset) is TensorDataset else (dataset,)
        found.setdefault(tuple(map(id, whole)), []).append(places)


def is_drawn_again(source: Source) -> bool:
    """Whether a dataset gives its first examples differently every time, as random transforms do; the state of torch's
    generator is preserved."""
    if not isinstance(source, Collated):
        return False
    some = torch.arange(min(PROBED, len(source)))
    with torch.random.fork_rng(devices=[]):
        first, *again = [source.take(some) for _ in range(TIMES)]
    return not all(_same(first, other) for other in again)


def check_rows(source: Source) -> None:
    """Raise for items that differ between calls or depend on the other items of a batch.

    The guarantee bounds what one example can change; such an item would also change what is computed of the others."""
    if isinstance(source, Tensors):
        return
    some = torch.arange(min(PROBED, len(source)))
    together, *again = [source.take(some) for _ in range(TIMES)]
    list_parts(together)  # raises for tensors without one shape per example
    if any(t.dim() == 0 or len(t) != len(some) for t in tensors_of(together)):
        raise InvalidInputError(
            "a tensor of the collated batch does not have the examples in its first dimension: put them there"
        )
    if not all(_same(together, other) for other in again):
        raise UnsupportedModelError(
            "the dataset gives an example differently every time, as random transforms do, so the examples in a batch "
            "would shift the randomness of each other: remove the transforms and augment with "
            "hush.per_example.augmentation.Augmented, "
            "which draws separately for each example"
        )
    for place in some.tolist():
        row = to_each(lambda t, place=place: t[place : place + 1], together)
        if not _same(row, source.take(some[place : place + 1]), padded=True):  # `check_parts` compares shapes
            raise UnsupportedModelError(
                "the collate function, or the data's own `take`, computes an example's row from other examples too (as "
                "mixup does), so one example would count for more than its clip norm: only stack or pad there"
            )


def take_nothing(source: Source) -> Any:
    """The content of an empty batch, whose shape is public; the state of torch's generator is preserved."""
    with torch.random.fork_rng(devices=[]):  # a dataset may draw, and this call must not change later draws
        try:
            return source.take(torch.empty(0, dtype=torch.int64))
        except HushError:
            raise
        except Exception as error:  # raised by the data's own code
            raise DataError(
                f"the data raises {type(error).__name__} for an empty batch, which random sampling needs: return "
                "tensors with zero rows for no indices, with the other dimensions as in every batch"
            ) from error


def check_parts(source: Source) -> None:
    """Raise if the first examples differ from an empty batch in shape or in other values; the state of torch's
    generator is preserved."""
    known = list_parts(take_nothing(source))
    some = torch.arange(min(PROBED, len(source)))
    for few in (some, *(some[i : i + 1] for i in range(len(some)))):
        with torch.random.fork_rng(devices=[]):
            content = source.take(few)
        refuse_other_parts(known, content, len(few))


def refuse_other_parts(known: Parts, content: Any, rows: int) -> None:
    """Raise for a batch of ``rows`` examples whose tensors have other shapes or types, or whose other values differ,
    from those in every batch."""
    if any(t.dim() == 0 or len(t) != rows for t in tensors_of(content)):
        raise DataError(
            "a tensor of the batch does not have the examples in its first dimension: put one row there per example"
        )
    found = list_parts(content)
    changed = [place for place in {**known, **found} if found.get(place) != known.get(place) or not known[place]]
    if not changed:
        return
    own, usual = found.get(changed[0], ""), known.get(changed[0], "")
    if own.startswith(TENSOR) and usual.startswith(TENSOR):
        raise DataError(
            f"the shape or type of the tensor at content{changed[0]} changes with the examples in a batch, so one "
            "example would change the gradients of all the others: pad every example to one declared length, also in "
            "batches with one or no example"
        )
    why = "cannot be compared with that of other batches" if own == usual else "depends on the examples in it"
    raise UnsupportedModelError(
        f"a value that is not a tensor, at content{changed[0]}, {why}: it reaches the losses of all examples in the "
        "batch, so one of them would count for more than its clip norm. Leave it out, or make it a tensor with the "
        "examples in its first dimension"
    )


def list_parts(content: Any, place: str = "") -> Parts:
    """A comparable description of every part of a nested content: type and shape (without examples) of a tensor, length
    of a container, or the value itself; "" for anything that cannot be compared."""
    if isinstance(content, Tensor):
        _check_dense(content, f"content{place}")
        kind = type(content)  # a subclass may compute otherwise
        name = "" if kind is Tensor else f", {kind.__module__}.{kind.__qualname__}"
        return {place: f"{TENSOR} of {content.dtype}, {tuple(content.shape[1:])}{name}"}
    if isinstance(content, Mapping):
        inside = [(f"[{key!r}]", value) for key, value in content.items()]
    elif isinstance(content, Sequence) and not isinstance(content, (str, bytes)):
        inside = [(f"[{at}]", value) for at, value in enumerate(content)]
    else:
        return {place: repr(content) if _is_plain(content) else ""}
    parts = {place: f"{len(inside)} things: {', '.join(key for key, _ in inside)}"} | _list_hidden(content, place)
    for key, value in inside:
        parts |= list_parts(value, f"{place}{key}")
    return parts


def _is_plain(content: Any) -> bool:
    """Whether a value is what its text says. A subclass may say anything; NaNs, of many bits, are all called nan."""
    known = type(content) in PLAIN or (isinstance(content, np.generic) and type(content).__module__ == "numpy")
    return known and bool(content == content)


def _list_hidden(container: Any, place: str) -> Parts:
    """The attributes of a container, such as a tokenizer's batch: tensors there are not split into examples."""
    own = {"data"} if isinstance(container, UserDict) else set()
    hidden: Parts = {}
    for name, value in getattr(container, "__dict__", {}).items():
        hidden |= {} if name in own else list_parts(value, f"{place}.{name}")
    return {where: "" if part.startswith(TENSOR) else part for where, part in hidden.items()}


def _same(one: Any, other: Any, *, padded: bool = False) -> bool:
    """Whether all tensors hold the same bits; with ``padded``, tensors of different shapes are skipped."""
    pairs = list(zip(tensors_of(one), tensors_of(other), strict=True))
    if padded:
        pairs = [(a, b) for a, b in pairs if a.shape == b.shape]
    return all(a.shape == b.shape and torch.equal(a.nan_to_num(), b.nan_to_num()) for a, b in pairs)


def to_each(function: Any, content: Any) -> Any:
    """Apply a function to every tensor of a nested content; named tuples and mappings keep their type."""
    if isinstance(content, Tensor):
        return function(content)
    if type(content) is tuple:
        return tuple([function(v) if isinstance(v, Tensor) else to_each(function, v) for v in content])
    if isinstance(content, Mapping):
        return _mapping_like(content, {key: to_each(function, value) for key, value in content.items()})
    if isinstance(content, Sequence) and not isinstance(content, (str, bytes)):
        made = [to_each(function, value) for value in content]
        named = isinstance(content, tuple) and getattr(type(content), "_make", None)
        return named(made) if named else tuple(made)
    return content


def _mapping_like(old: Mapping[Any, Any], values: dict[Any, Any]) -> Any:
    """A mapping of the old one's type with other values, such as a tokenizer's batch, which also has attributes."""
    if not isinstance(old, MutableMapping) or type(old) is dict:
        return values
    new = copy.copy(old)
    for key, value in values.items():
        new[key] = value
    return new


def tensors_of(content: Any) -> list[Tensor]:
    """Every tensor of a nested content, in the order of `to_each`."""
    found: list[Tensor] = []
    to_each(found.append, content)
    return found


# Mixed number types: data in float64 with a model in float32, for which torch's own error is hard to understand.


def check_number_types(model: nn.Module, losses: Losses, rows: Source) -> None:
    """Raise if the floating-point types of data and model differ and the model fails with them.

    Only if they differ, a copy of the model is tried on zeros."""
    own = next((p.dtype for p in model.parameters() if p.is_floating_point()), None)
    if own not in (torch.float32, torch.float64) or not isinstance(rows, Tensors):  # a run refuses coarser types
        return
    others = [t.dtype for t in rows.tensors if _differs(t, own)]
    if not others:
        return
    zeros = tuple(torch.zeros_like(t[:1]) for t in rows.tensors)
    alike = tuple(t.to(own) if _differs(t, own) else t for t in zeros)
    if _works(model, losses, alike, rows.single) and not _works(model, losses, zeros, rows.single):
        data, network = (str(kind).removeprefix("torch.") for kind in (others[0], own))
        other = ", or the model, as with model.double()" if others[0] == torch.float64 else ""
        raise InvalidInputError(f"the data is {data} and the model {network}: convert the data with x.to({own}){other}")


def _differs(tensor: Tensor, own: torch.dtype) -> bool:
    return tensor.is_floating_point() and tensor.dtype != own


def _works(model: nn.Module, losses: Losses, tensors: tuple[Tensor, ...], single: bool) -> bool:
    device = next(model.parameters()).device
    content = tuple(t.to(device) for t in tensors)
    with torch.no_grad(), torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        try:
            losses(copy.deepcopy(model), content[0] if single else content)
        except Exception:  # any error of the model or of the losses
            return False
    return True
