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

from hush.data.shelf import contents
from hush.data.splits import Split
from hush.errors import BadInput

_UNSIGNED_BYTE = 8


def parse(content: bytes, dimensions: int, name: str = "the file") -> Tensor:
    """The array of an IDX file of unsigned bytes with that many dimensions."""
    magic = bytes([0, 0, _UNSIGNED_BYTE, dimensions])
    if content[:4] != magic:
        raise BadInput(f"{name} starts with the bytes {content[:4].hex()} where IDX {magic.hex()} was expected")
    start = 4 + 4 * dimensions
    header = content[4:start].ljust(start - 4, b"\xff")  # a header that ends early promises more than there is
    shape = tuple(int(n) for n in np.frombuffer(header, dtype=">u4"))
    if len(content) - start != math.prod(shape):
        raise BadInput(f"{name} is truncated: its header says {'×'.join(map(str, shape))} bytes of values")
    return torch.from_numpy(np.frombuffer(content, dtype=np.uint8, offset=start).reshape(shape).copy())


def labels(content: bytes, classes: int, name: str = "the file") -> Tensor:
    """The labels of an IDX file, each below ``classes``."""
    values = parse(content, 1, name).long()
    if len(values) and int(values.max()) >= classes:
        raise BadInput(f"{name} holds a label outside 0 … {classes - 1}")
    return values


def load(name: str, data_dir: Path | None = None) -> Split:
    """``mnist`` or ``fashion-mnist``: unsigned bytes (n, 1, 28, 28) and labels 0 … 9."""
    parts = []
    for part in ("train", "t10k"):
        names = [f"{part}-images-idx3-ubyte", f"{part}-labels-idx1-ubyte"]
        images, marks = contents(name, names, data_dir)
        parts.append((parse(images, 3, names[0]).unsqueeze(1), labels(marks, 10, names[1])))
    return Split(*parts)
