"""CIFAR-10 in its binary form: 3 073 bytes a record, one label and then the red, green and blue planes.

Krizhevsky, "Learning Multiple Layers of Features from Tiny Images", 2009. The other official form is a pickle, which
could run code when read; this one cannot.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from hush.datasets.download import read_files
from hush.datasets.sources import CIFAR10, CIFAR_RECORD
from hush.datasets.splits import Split
from hush.errors import InvalidInputError

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


def parse_batch(content: bytes, name: str = "the file") -> tuple[Tensor, Tensor]:
    """(unsigned bytes (n, 3, 32, 32), labels 0 … 9) of one batch file."""
    if len(content) == 0 or len(content) % CIFAR_RECORD:
        raise InvalidInputError(
            f"{name} is truncated: {len(content)} bytes are not a whole number of {CIFAR_RECORD}-byte records"
        )
    records = np.frombuffer(content, dtype=np.uint8).reshape(-1, CIFAR_RECORD)
    labels = records[:, 0]
    if int(labels.max()) >= len(CLASSES):
        raise InvalidInputError(f"{name} holds a label outside 0 … {len(CLASSES) - 1}")
    images = records[:, 1:].reshape(-1, 3, 32, 32)
    return torch.from_numpy(images.copy()), torch.from_numpy(labels.astype(np.int64))


def load(data_dir: Path | None = None) -> Split:
    """50 000 images to train on, 10 000 to test on."""
    names = [file.name for file in CIFAR10.files]
    batches = [
        parse_batch(content, name) for name, content in zip(names, read_files(CIFAR10, names, data_dir), strict=True)
    ]
    images, labels = zip(*batches[:5], strict=True)
    return Split((torch.cat(images), torch.cat(labels)), batches[5])
