"""MNIST and Fashion-MNIST: the IDX format.

Bytes 0 0, a type (8: unsigned byte), the number of dimensions; then each dimension as a big-endian 32-bit integer; then
the values.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from hush.datasets.download import Dataset, read_files
from hush.datasets.splits import Arrays, Split
from hush.errors import InvalidInputError

_UNSIGNED_BYTE = 8


CLOTHES = ("T-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot")


def parse_idx(content: bytes, dimensions: int, name: str = "the file") -> Tensor:
    """The array of an IDX file of unsigned bytes with that many dimensions."""
    magic = bytes([0, 0, _UNSIGNED_BYTE, dimensions])
    if content[:4] != magic:
        raise InvalidInputError(
            f"{name} starts with the bytes {content[:4].hex()} where IDX {magic.hex()} was expected"
        )
    start = 4 + 4 * dimensions
    header = content[4:start].ljust(start - 4, b"\xff")  # a header that ends early promises more than there is
    shape = tuple(int(n) for n in np.frombuffer(header, dtype=">u4"))
    if len(content) - start != math.prod(shape):
        raise InvalidInputError(f"{name} is truncated: its header says {'×'.join(map(str, shape))} bytes of values")
    return torch.from_numpy(np.frombuffer(content, dtype=np.uint8, offset=start).reshape(shape).copy())


def parse_labels(content: bytes, classes: int, name: str = "the file") -> Tensor:
    """The labels of an IDX file, each below ``classes``."""
    values = parse_idx(content, 1, name).long()
    if len(values) and int(values.max()) >= classes:
        raise InvalidInputError(f"{name} holds a label outside 0 … {classes - 1}")
    return values


def load(dataset: Dataset, data_dir: Path | None = None) -> Split:
    """``MNIST`` or ``FASHION``: unsigned bytes (n, 1, 28, 28) and labels 0 … 9."""
    return Split(_load_part(dataset, "train", data_dir), _load_part(dataset, "t10k", data_dir))


def _load_part(dataset: Dataset, part: str, data_dir: Path | None) -> Arrays:
    names = [f"{part}-images-idx3-ubyte", f"{part}-labels-idx1-ubyte"]
    images, marks = read_files(dataset, names, data_dir)
    return parse_idx(images, 3, names[0]).unsqueeze(1), parse_labels(marks, 10, names[1])
