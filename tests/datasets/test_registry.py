"""Verified bytes: any packing is read, anything else than the official bytes is refused in one sentence."""

from __future__ import annotations

import gzip
import hashlib
import lzma
from pathlib import Path

import pytest

from hush.datasets import registry
from hush.datasets import registry as shelf_registry
from hush.datasets.adult import ADULT
from hush.datasets.cifar import CIFAR10
from hush.datasets.mnist import FASHION, MNIST
from hush.datasets.registry import Dataset, File
from hush.errors import InvalidInputError

CONTENT = bytes(range(256)) * 40
PIN = File("train-labels", len(CONTENT), hashlib.sha256(CONTENT).hexdigest())
TOY = Dataset("toy", "a toy", "none", (PIN,))

PACKED = {"": CONTENT, ".gz": gzip.compress(CONTENT), ".xz": lzma.compress(CONTENT)}


def test_the_pins_are_those_of_the_official_files() -> None:
    # sha256sum of the unpacked official files
    assert MNIST.file("train-images-idx3-ubyte").sha256.startswith("ba891046e6505d7a")
    assert FASHION.file("t10k-labels-idx1-ubyte").sha256.startswith("0402a96d92fd2663")
    assert CIFAR10.file("test_batch.bin").sha256.startswith("8e2eb146ae340b09")
    assert ADULT.file("adult.names").sha256.startswith("c248284c0b5de30c")
    assert CIFAR10.size == 6 * 30_730_000
    assert all(len(each.mirrors) >= 2 for each in (MNIST, FASHION, CIFAR10, ADULT))


@pytest.mark.parametrize("suffix", PACKED)
def test_raw_gzip_and_xz_give_the_same_bytes(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"train-labels{suffix}"
    path.write_bytes(PACKED[suffix])
    assert registry.read_verified(path, PIN) == CONTENT


def test_the_packing_is_told_by_the_content_not_the_name(tmp_path: Path) -> None:
    path = tmp_path / "train-labels"
    path.write_bytes(PACKED[".xz"])
    assert registry.read_verified(path, PIN) == CONTENT


@pytest.mark.parametrize("suffix", PACKED)
def test_a_truncated_file_is_named(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"train-labels{suffix}"
    path.write_bytes(PACKED[suffix][:-30])
    with pytest.raises(registry.ChecksumMismatch, match="labels"):
        registry.read_verified(path, PIN)


@pytest.mark.parametrize("suffix", PACKED)
def test_every_altered_byte_of_the_content_is_noticed(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"train-labels{suffix}"
    whole = PACKED[suffix]
    for place in range(20, len(whole), 37):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(registry.ChecksumMismatch, match="labels"):
            registry.read_verified(path, PIN)


def test_bytes_after_the_end_are_noticed(tmp_path: Path) -> None:
    path = tmp_path / "train-labels"
    path.write_bytes(CONTENT + b"x")
    with pytest.raises(registry.ChecksumMismatch):
        registry.read_verified(path, PIN)


def test_a_folder_in_place_of_a_file_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="directory"):
        registry.read_verified(tmp_path, PIN)


def test_the_order_of_places(tmp_path: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given, environment = tmp_path / "given", tmp_path / "environment"
    for place in (given, environment):
        (place / "toy").mkdir(parents=True)
        (place / "toy" / "train-labels.gz").write_bytes(PACKED[".gz"])
    monkeypatch.setenv("HUSH_DATA", str(environment))
    assert registry.find_file(TOY, PIN, given) == given / "toy" / "train-labels.gz"
    assert registry.find_file(TOY, PIN, None) == environment / "toy" / "train-labels.gz"
    (own_cache / "toy").mkdir()
    (own_cache / "toy" / "train-labels").write_bytes(CONTENT)
    assert registry.find_file(TOY, PIN, given) == own_cache / "toy" / "train-labels"  # raw: nothing to unpack


def test_a_data_folder_that_is_none_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HUSH_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(InvalidInputError, match="HUSH_DATA '.*nowhere'"):
        registry.find_file(TOY, PIN, None)


def test_an_unreadable_cache_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocked = tmp_path / "cache"
    blocked.write_text("a file where the folder should be")
    monkeypatch.setenv("HUSH_CACHE", str(blocked))
    with pytest.raises(InvalidInputError, match="directory"):
        registry.find_file(TOY, PIN, None)
    with pytest.raises(InvalidInputError, match="directory"):
        shelf_registry.list_datasets([TOY])
