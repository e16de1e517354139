"""CIFAR-10 in its binary form: 3 073 bytes a record, one label and then the red, green and blue planes.

Krizhevsky, "Learning Multiple Layers of Features from Tiny Images", 2009. The other official form is a pickle, which
could run code when read; this one cannot.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from hush.datasets.registry import Archive, Dataset, File, read_files
from hush.datasets.splits import Split
from hush.errors import InvalidInputError

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
_RECORD = 1 + 3 * 32 * 32
_PINS = {
    "data_batch_1.bin": "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
    "data_batch_2.bin": "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
    "data_batch_3.bin": "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
    "data_batch_4.bin": "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
    "data_batch_5.bin": "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
    "test_batch.bin": "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
}
CIFAR10 = Dataset(
    "cifar-10",
    "50 000 + 10 000 colour photographs 32×32 in ten classes",
    "none stated; cite Krizhevsky 2009",
    tuple(File(name, 10_000 * _RECORD, sha256) for name, sha256 in _PINS.items()),
    (
        Archive("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz", "cifar-10-batches-bin/"),
        Archive(
            "https://mindspore-website.obs.cn-north-4.myhuaweicloud.com/notebook/datasets/cifar-10-binary.tar.gz",
            "cifar-10-batches-bin/",
        ),
        Archive(
            "https://storage.googleapis.com/s4tf-hosted-binaries/datasets/CIFAR10/cifar-10-binary.tar.gz",
            "cifar-10-batches-bin/",
        ),
    ),
)


def parse_batch(content: bytes, name: str = "the file") -> tuple[Tensor, Tensor]:
    """(unsigned bytes (n, 3, 32, 32), labels 0 … 9) of one batch file."""
    if len(content) == 0 or len(content) % _RECORD:
        raise InvalidInputError(
            f"{name} is truncated: {len(content)} bytes are not a whole number of {_RECORD}-byte records"
        )
    records = np.frombuffer(content, dtype=np.uint8).reshape(-1, _RECORD)
    labels = records[:, 0]
    if int(labels.max()) >= len(CLASSES):
        raise InvalidInputError(f"{name} holds a label outside 0 … {len(CLASSES) - 1}")
    images = records[:, 1:].reshape(-1, 3, 32, 32)
    return torch.from_numpy(images.copy()), torch.from_numpy(labels.astype(np.int64))


def load(data_dir: Path | None = None) -> Split:
    """50 000 images to train on, 10 000 to test on."""
    names = list(_PINS)
    batches = [
        parse_batch(content, name) for name, content in zip(names, read_files(CIFAR10, names, data_dir), strict=True)
    ]
    images, labels = zip(*batches[:5], strict=True)
    return Split((torch.cat(images), torch.cat(labels)), batches[5])
