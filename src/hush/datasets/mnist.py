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

from hush.datasets.registry import Dataset, File, Folder, read_files
from hush.datasets.splits import Arrays, Split
from hush.errors import InvalidInputError

_UNSIGNED_BYTE = 8


def _pin_files(train_images: str, train_labels: str, test_images: str, test_labels: str) -> tuple[File, ...]:
    return (
        File("train-images-idx3-ubyte", 16 + 60_000 * 784, train_images),
        File("train-labels-idx1-ubyte", 8 + 60_000, train_labels),
        File("t10k-images-idx3-ubyte", 16 + 10_000 * 784, test_images),
        File("t10k-labels-idx1-ubyte", 8 + 10_000, test_labels),
    )


MNIST = Dataset(
    "mnist",
    "60 000 + 10 000 handwritten digits 28×28",
    "© LeCun & Cortes, CC BY-SA 3.0",
    _pin_files(
        "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
        "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
        "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
        "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
    ),
    (
        Folder("https://ossci-datasets.s3.amazonaws.com/mnist/", ".gz"),
        Folder("https://storage.googleapis.com/cvdf-datasets/mnist/", ".gz"),
    ),
)
FASHION = Dataset(
    "fashion-mnist",
    "60 000 + 10 000 pieces of clothing 28×28",
    "MIT (Zalando SE)",
    _pin_files(
        "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
        "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
        "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
        "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
    ),
    (
        Folder("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/", ".gz"),
        Folder("https://github.com/zalandoresearch/fashion-mnist/raw/master/data/fashion/", ".gz"),
    ),
)
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
