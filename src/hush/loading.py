"""A torch ``DataLoader`` as hush reads one: its items, its collate function and its workers, in batches of our own.

Which examples are in a batch is the sampler's to decide, for the guarantee rests on it: the loader's own sampler, batch
size, shuffle and drop_last are not used.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, RandomSampler, default_collate

from hush.errors import BadInput

Future = Callable[[], Iterator[Tensor]]
"""The indices that will be asked for from now on, one tensor for each content, in order."""


def check_map_style(dataset: Any) -> None:
    """Refuse a stream: a batch that the guarantee covers is drawn from all examples, by their number."""
    if isinstance(dataset, IterableDataset):
        raise BadInput(
            f"{type(dataset).__name__} is an IterableDataset, a stream without length and random access, and private "
            "batches are drawn among all examples by their number: read it into a list or a map-style Dataset first"
        )


def check_loader(loader: DataLoader[Any]) -> None:
    """Refuse a loader whose dataset is a stream, or that does not collate single examples."""
    check_map_style(loader.dataset)
    if loader.batch_size is None and loader.batch_sampler is None:
        raise BadInput(
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
