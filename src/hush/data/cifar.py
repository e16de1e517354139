"""CIFAR-10 in its binary form: 3 073 bytes a record, one label and then the red, green and blue planes.

Krizhevsky, "Learning Multiple Layers of Features from Tiny Images", 2009. The other official form is a pickle, which
could run code when read; this one cannot.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from hush.data.shelf import contents
from hush.data.splits import Split
from hush.errors import BadInput

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
_RECORD = 1 + 3 * 32 * 32


def parse(content: bytes, name: str = "the file") -> tuple[Tensor, Tensor]:
    """(unsigned bytes (n, 3, 32, 32), labels 0 … 9) of one batch file."""
    if len(content) == 0 or len(content) % _RECORD:
        raise BadInput(f"{name} is truncated: {len(content)} bytes are not a whole number of {_RECORD}-byte records")
    records = np.frombuffer(content, dtype=np.uint8).reshape(-1, _RECORD)
    labels = records[:, 0]
    if int(labels.max()) >= len(CLASSES):
        raise BadInput(f"{name} holds a label outside 0 … {len(CLASSES) - 1}")
    images = records[:, 1:].reshape(-1, 3, 32, 32)
    return torch.from_numpy(images.copy()), torch.from_numpy(labels.astype(np.int64))


def load(data_dir: Path | None = None) -> Split:
    """50 000 images to train on, 10 000 to test on."""
    names = [f"data_batch_{i}.bin" for i in range(1, 6)] + ["test_batch.bin"]
    batches = [parse(content, name) for name, content in zip(names, contents("cifar-10", names, data_dir), strict=True)]
    images, labels = zip(*batches[:5], strict=True)
    return Split((torch.cat(images), torch.cat(labels)), batches[5])
