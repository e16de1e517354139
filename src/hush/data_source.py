"""Data as hush reads it: a length, and the content of any set of indices."""

from __future__ import annotations

import copy
from collections import UserDict, deque
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    Subset,
    TensorDataset,
    default_collate,
)

from hush._internal.tensors import Losses
from hush.errors import DataError, HushError, InvalidInputError, Refused

# A torch ``DataLoader`` as hush reads one: its items, its collate function and its workers, in batches of our own.
#
# Which examples are in a batch is the sampler's to decide, for the guarantee rests on it: the loader's own sampler,
# batch size, shuffle and drop_last are not used.

Future = Callable[[], Iterator[Tensor]]
"""The indices that will be asked for from now on, one tensor for each content, in order."""


def check_map_style(dataset: Any) -> None:
    """Refuse a stream: a batch that the guarantee covers is drawn from all examples, by their number."""
    if isinstance(dataset, IterableDataset):
        raise InvalidInputError(
            f"{type(dataset).__name__} is an IterableDataset, a stream without length and random access, and private "
            "batches are drawn among all examples by their number: read it into a list or a map-style Dataset first"
        )


def check_loader(loader: DataLoader[Any]) -> None:
    """Refuse a loader whose dataset is a stream, or that does not collate single examples."""
    check_map_style(loader.dataset)
    if loader.batch_size is None and loader.batch_sampler is None:
        raise InvalidInputError(
            "this DataLoader does not collate (batch_size=None), so it does not say how examples become a batch: "
            "give it a batch_size; the plan's own takes its place"
        )


def collates_by_itself(loader: DataLoader[Any]) -> bool:
    """Whether a function of the user's own makes a batch of examples; torch's puts them side by side."""
    return loader.collate_fn is not default_collate


def describe_replaced(loader: DataLoader[Any]) -> str:
    """In one sentence: what of a loader is used, and what is not."""
    shuffles = isinstance(loader.sampler, RandomSampler)
    theirs = "its own batch_sampler" if loader.batch_size is None else f"batch_size={loader.batch_size}"
    workers = (
        f", the collate function and {loader.num_workers} workers" if loader.num_workers else " and collate function"
    )
    return (
        f"the DataLoader's dataset{workers} are used; its batches ({theirs}{', shuffle=True' if shuffles else ''}) are "
        "replaced by those that the plan draws, which the guarantee is about"
    )


class Prefetch:
    """A loader's workers, at work on contents that will be asked for: they come in order, or are not used at all."""

    def __init__(self, loader: DataLoader[Any]) -> None:
        self._loader = loader
        self._future: Future | None = None
        self._coming: Iterator[Any] | None = None
        self._promised: deque[list[int]] = deque()

    def follow(self, future: Future) -> None:
        """From now on, this is what will be asked for."""
        self._future = future
        self.stop()

    def stop(self) -> None:
        """Let the workers go."""
        self._coming = None
        self._promised.clear()

    def find(self, indices: list[int]) -> Any:
        """The content of these indices from the workers; None where it is not what comes next."""
        if not self._comes_next(indices):
            self._start()
        if not self._comes_next(indices):
            self.stop()
            return None
        assert self._coming is not None
        content = next(self._coming)
        self._promised.popleft()
        if not self._promised:  # the workers are always ahead, so nothing is left to come
            self.stop()
        return content

    def _comes_next(self, indices: list[int]) -> bool:
        return bool(self._promised) and self._promised[0] == indices

    def _start(self) -> None:
        self.stop()
        if self._future is None:
            return
        theirs, here = self._loader, torch.random.fork_rng(devices=[])
        with here:  # a loader takes its workers' seed from the global generator, which is the user's
            self._coming = iter(
                DataLoader(
                    theirs.dataset,
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
    """Whether contents are to lie in pinned memory: asked for, and of use."""
    return bool(loader.pin_memory) and torch.cuda.is_available()


class _Noted:
    """What the workers are asked for, noted down; an empty batch is never asked of them."""

    def __init__(self, future: Iterator[Tensor], promised: deque[list[int]]) -> None:
        self._future, self._promised = future, promised

    def __iter__(self) -> Iterator[list[int]]:
        for indices in self._future:
            if len(indices):
                self._promised.append(indices.tolist())
                yield self._promised[-1]


Parts = dict[str, str]
TENSOR = "a tensor"  # how the part of a tensor begins; its shape without the examples and its type follow
PLAIN = (type(None), bool, int, float, complex, str, bytes, np.generic, torch.dtype, torch.device)
PROBED, TIMES = 4, 4  # examples that are looked at, and how often: a coin that flips an image shows, but for 1 in 4096


@runtime_checkable
class Source(Protocol):
    """Data with a length that gives the content of some indices.

    What is relied on, for sampling, for a resume and for the digest of the data:

    1. ``len(source)`` is the number of examples, at least 1, and does not change during a run.
    2. ``take(indices)`` is a pure function of the indices. Row j of the content is example ``indices[j]`` and depends
       on no other index: in any order, in any company, at any time it is the same.
    3. Every tensor of the content has the examples in dimension 0, and the same type and other dimensions in every
       batch. A private run compares each batch with the empty one, and refuses another shape before noise is drawn:
       padding to the longest example of a batch would let one example change the gradients of all the others.
    4. No indices give a content of no rows, its other dimensions as always: a Poisson batch can be empty. Its shape is
       the public one, which the guarantee lists as a condition.
    5. What is no tensor (a word, a number, None) is the same in every batch: it reaches the losses of all its examples.
    """

    def __len__(self) -> int: ...

    def take(self, indices: Tensor) -> Any:
        """The content of these examples: what ``losses(model, content)`` receives."""
        ...


@dataclass(frozen=True)
class Tensors:
    """Tensors that share their first dimension; the content is the tuple (or the one tensor) indexed."""

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
    """A map-style torch Dataset, its items collated by torch's default or by another function of a list of items.

    With ``workers`` the content of a batch comes from them where they were told of it in time, else from here: it is
    the same content.
    """

    dataset: Any
    collate: Callable[[list[Any]], Any] = default_collate
    workers: Prefetch | None = None
    pin: bool = False

    def __len__(self) -> int:
        return len(self.dataset)

    def take(self, indices: Tensor) -> Any:
        """The collated items; no items give an empty batch of the right shape."""
        if len(indices) == 0:
            return to_each(lambda t: t[:0], self.collate([self.dataset[0]]))
        wanted = indices.tolist()
        found = None if self.workers is None else self.workers.find(wanted)
        return self._take_here(wanted) if found is None else found

    def _take_here(self, indices: list[int]) -> Any:
        content = self.collate([self.dataset[i] for i in indices])
        return to_each(Tensor.pin_memory, content) if self.pin else content

    def follow(self, future: Future) -> None:
        """Have the workers, if there are any, fetch what will be asked for."""
        if self.workers is not None:
            self.workers.follow(future)


def as_source(data: Any) -> Source:
    """Tensors or numpy arrays, a tuple of them, a map-style Dataset or a DataLoader, as a Source."""
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
        check_map_style(data)
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
    """Refuse what has a length and items that are not its examples: columns by name, or side by side."""
    if isinstance(data, Mapping) and 0 not in data:
        inside = type(next(iter(data.values()), None)).__name__
        raise InvalidInputError(
            f"the data is a {type(data).__name__} of {inside}, which has no examples by number: give a tuple of "
            "tensors, or a Dataset whose items are dicts"
        )
    parts = data if isinstance(data, (tuple, list)) else (data,)
    if any(isinstance(part, (Tensor, np.ndarray)) or _is_frame(part) for part in parts):
        names = ", ".join(type(part).__name__ for part in parts[:3]) + (", …" if len(parts) > 3 else "")
        raise InvalidInputError(
            f"the data is {f'({names})' if parts is data else f'a {names}'}, and each part must be a tensor or a numpy "
            "array: give such as frame.to_numpy('float32'), torch.tensor(numbers)"
        )


def _is_frame(part: Any) -> bool:
    """Whether this is a table or a column of pandas, or of another library with the same words."""
    return hasattr(part, "to_numpy") and hasattr(part, "shape")


def _of_loader(loader: DataLoader[Any]) -> Collated:
    check_loader(loader)
    workers = Prefetch(loader) if loader.num_workers else None
    return Collated(loader.dataset, loader.collate_fn, workers, pins(loader))


def _as_tensor(array: Tensor | np.ndarray) -> Tensor:
    """A tensor on the array's memory where that can be written to, else on a copy."""
    if isinstance(array, Tensor):
        return array
    try:
        return torch.from_numpy(array if array.flags.writeable else array.copy())
    except (TypeError, ValueError) as error:  # text and objects, or strides that torch does not have
        raise InvalidInputError(
            f"a numpy array of {array.dtype} is no data for a model: make it contiguous numbers, such as "
            "np.ascontiguousarray(array, dtype='float32')"
        ) from error


def _count(source: Source) -> int:
    try:
        return len(source)
    except TypeError as error:  # a Dataset need not have one
        raise InvalidInputError(
            "the data does not say how many examples it holds, and private batches are drawn among all of them: give "
            "the dataset a __len__"
        ) from error


def is_made_by_user_code(source: Source) -> bool:
    """Whether code that is not hush's or torch's makes the examples, so that nothing is known about how."""
    if isinstance(source, Collated):
        dataset = source.dataset
        while type(dataset) is Subset:
            dataset = dataset.dataset
        return type(dataset) is not TensorDataset or source.collate is not default_collate
    return type(source).__module__.partition(".")[0] != "hush"


def is_drawn_again(source: Source) -> bool:
    """Whether a dataset gives its first examples differently every time, as random transforms do; torch's generator is
    left as it was."""
    if not isinstance(source, Collated):
        return False
    some = torch.arange(min(PROBED, len(source)))
    with torch.random.fork_rng(devices=[]):
        first, *again = [source.take(some) for _ in range(TIMES)]
    return not all(_same(first, other) for other in again)


def check_rows(source: Source) -> None:
    """Refuse items that are another content every time, or in other company: the guarantee bounds what one example can
    change, and with such items it would change what is computed of the others."""
    if isinstance(source, Tensors):
        return
    some = torch.arange(min(PROBED, len(source)))
    together, *again = [source.take(some) for _ in range(TIMES)]
    if any(t.dim() == 0 or len(t) != len(some) for t in tensors_of(together)):
        raise InvalidInputError(
            "a tensor of the collated batch does not have the examples in its first dimension: put them there"
        )
    if not all(_same(together, other) for other in again):
        raise Refused(
            "the dataset gives an example differently every time, as random transforms do, and whoever is in a batch "
            "would shift the randomness of the others: leave them out, and augment with "
            "hush.per_example.augmentation.Augmented, "
            "which draws for each example by itself"
        )
    for place in some.tolist():
        row = to_each(lambda t, place=place: t[place : place + 1], together)
        if not _same(row, source.take(some[place : place + 1]), padded=True):  # shapes: `check_parts`
            raise Refused(
                "the collate function, or the data's own `take`, makes an example's row from other examples too (as "
                "mixup does), so one example would count for more than its clip: let it stack or pad, and nothing else"
            )


def take_nothing(source: Source) -> Any:
    """The content of no examples, whose shape is the public one; torch's generator is left as it was."""
    with torch.random.fork_rng(devices=[]):  # a dataset may draw, and nothing is to draw otherwise because of this
        try:
            return source.take(torch.empty(0, dtype=torch.int64))
        except HushError:
            raise
        except Exception as error:  # of the data's own code
            raise DataError(
                f"the data give no empty batch ({type(error).__name__}), which random batches need: return tensors "
                "without rows for no indices, with the other dimensions as in every batch"
            ) from error


def check_parts(source: Source) -> None:
    """Refuse data whose first examples have another shape, or something else that others have not; torch's generator is
    left as it was."""
    known = list_parts(take_nothing(source))
    some = torch.arange(min(PROBED, len(source)))
    for few in (some, *(some[i : i + 1] for i in range(len(some)))):
        with torch.random.fork_rng(devices=[]):
            content = source.take(few)
        refuse_other_parts(known, content, len(few))


def refuse_other_parts(known: Parts, content: Any, rows: int) -> None:
    """Refuse a batch of ``rows`` examples whose tensors have other shapes or types than those of all batches, or that
    holds other things beside tensors than all batches do."""
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
            "example would change the gradients of all the others: pad every example to one declared length, in "
            "batches of one example and of none too"
        )
    why = "cannot be compared with that of other batches" if own == usual else "depends on the examples in it"
    raise Refused(
        f"something in a batch that is no tensor, at content{changed[0]}, {why}: it reaches the losses of all its "
        "examples, so that one of them would count for more than its clip. Leave it out, or make it a tensor with the "
        "examples in its first dimension"
    )


def list_parts(content: Any, place: str = "") -> Parts:
    """What stands at every place of a nested content, in a form that can be compared: a tensor's type and its shape
    without the examples, how many things a container has, or the word or number itself; "" for anything else, which
    cannot be compared."""
    if isinstance(content, Tensor):
        return {place: f"{TENSOR} of {content.dtype}, {content.layout}, {tuple(content.shape[1:])}"}
    if isinstance(content, Mapping):
        inside = [(f"[{key!r}]", value) for key, value in content.items()]
    elif isinstance(content, Sequence) and not isinstance(content, (str, bytes)):
        inside = [(f"[{at}]", value) for at, value in enumerate(content)]
    else:
        return {place: repr(content) if isinstance(content, PLAIN) else ""}
    parts = {place: f"{len(inside)} things"} | _list_hidden(content, place)
    for key, value in inside:
        parts |= list_parts(value, f"{place}{key}")
    return parts


def _list_hidden(container: Any, place: str) -> Parts:
    """What a container has as attributes, such as a tokenizer's batch: no tensor there is cut into examples."""
    own = {"data"} if isinstance(container, UserDict) else set()
    hidden: Parts = {}
    for name, value in getattr(container, "__dict__", {}).items():
        hidden |= {} if name in own else list_parts(value, f"{place}.{name}")
    return {where: "" if part.startswith(TENSOR) else part for where, part in hidden.items()}


def _same(one: Any, other: Any, *, padded: bool = False) -> bool:
    """Whether all tensors hold the same bits; with ``padded``, those of other shapes are left out."""
    pairs = list(zip(tensors_of(one), tensors_of(other), strict=True))
    if padded:
        pairs = [(a, b) for a, b in pairs if a.shape == b.shape]
    return all(a.shape == b.shape and torch.equal(a.nan_to_num(), b.nan_to_num()) for a, b in pairs)


def to_each(function: Any, content: Any) -> Any:
    """Apply a function to every tensor of a nested content; named tuples and mappings keep their type."""
    if isinstance(content, Tensor):
        return function(content)
    if isinstance(content, Mapping):
        return _mapping_like(content, {key: to_each(function, value) for key, value in content.items()})
    if isinstance(content, Sequence) and not isinstance(content, (str, bytes)):
        made = [to_each(function, value) for value in content]
        named = isinstance(content, tuple) and getattr(type(content), "_make", None)
        return named(made) if named else tuple(made)
    return content


def _mapping_like(old: Mapping[Any, Any], values: dict[Any, Any]) -> Any:
    """A mapping of the old one's type (such as a tokenizer's batch, read by attribute as well) with other values."""
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


# Numbers of two types: data in float64 under a model in float32, which torch refuses in words of its own.


def check_number_types(model: nn.Module, losses: Losses, rows: Source) -> None:
    """Refuse tensors whose floating numbers are of another type than the model's where, and only where, the model
    cannot work with them: it is tried on zeros, in a copy, and only if the types differ."""
    own = next((p.dtype for p in model.parameters() if p.is_floating_point()), None)
    if own not in (torch.float32, torch.float64) or not isinstance(rows, Tensors):  # coarser ones are refused by a run
        return
    others = [t.dtype for t in rows.tensors if _differs(t, own)]
    if not others:
        return
    zeros = tuple(torch.zeros_like(t[:1]) for t in rows.tensors)
    alike = tuple(t.to(own) if _differs(t, own) else t for t in zeros)
    if _works(model, losses, alike, rows.single) and not _works(model, losses, zeros, rows.single):
        data, network = (str(kind).removeprefix("torch.") for kind in (others[0], own))
        other = ", or the model, as with model.double()" if others[0] == torch.float64 else ""
        raise InvalidInputError(
            f"the data is {data} and the model {network}: turn the data into {network}, as with x.to({own}){other}"
        )


def _differs(tensor: Tensor, own: torch.dtype) -> bool:
    return tensor.is_floating_point() and tensor.dtype != own


def _works(model: nn.Module, losses: Losses, tensors: tuple[Tensor, ...], single: bool) -> bool:
    device = next(model.parameters()).device
    content = tuple(t.to(device) for t in tensors)
    with torch.no_grad(), torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        try:
            losses(copy.deepcopy(model), content[0] if single else content)
        except Exception:  # of the model or of the losses, in words of their own
            return False
    return True
