"""``hush data list|verify|fetch``: rows of plain data."""

from __future__ import annotations

import gzip
import hashlib
from pathlib import Path

import pytest

from hush.datasets import registry
from hush.datasets.mnist import MNIST
from hush.datasets.registry import Dataset, File

CONTENT = b"the official bytes" * 100
PIN = File("rows", len(CONTENT), hashlib.sha256(CONTENT).hexdigest())
TOY = Dataset("toy", "a toy", "CC0", (PIN,))


@pytest.fixture
def toy(tmp_path: Path) -> Path:
    """A folder that holds the one dataset."""
    folder = tmp_path / "data"
    (folder / "toy").mkdir(parents=True)
    (folder / "toy" / "rows.gz").write_bytes(gzip.compress(CONTENT))
    return folder


def test_a_whole_folder_verifies(toy: Path) -> None:
    path = str(toy / "toy" / "rows.gz")
    assert registry.verify([TOY], toy) == [
        {"dataset": "toy", "file": "rows", "path": path, "status": "ok", "problem": None}
    ]


def test_one_changed_byte_is_found_and_named(toy: Path) -> None:
    path = toy / "toy" / "rows.gz"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.write_bytes(content)
    (row,) = registry.verify([TOY], toy)
    assert row["status"] == "altered"
    assert "rows.gz" in row["problem"]


def test_a_change_in_the_packing_alone_is_found_through_the_folders_own_list(toy: Path) -> None:
    path = toy / "toy" / "rows.gz"
    content = bytearray(path.read_bytes())
    (toy / "SHA256SUMS").write_text(f"{hashlib.sha256(content).hexdigest()}  toy/rows.gz\n")
    assert registry.verify([TOY], toy)[0]["status"] == "ok"
    content[4] ^= 1  # the time stamp in the gzip header: the bytes inside stay the same
    path.write_bytes(content)
    assert registry.verify([TOY], toy)[0]["status"] == "altered"


def test_verify_looks_at_every_copy(toy: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HUSH_DATA", str(toy))
    (own_cache / "toy").mkdir()
    (own_cache / "toy" / "rows").write_bytes(CONTENT[:-1])
    assert [row["status"] for row in registry.verify([TOY])] == ["ok", "altered"]


def test_what_is_missing_is_said(tmp_path: Path) -> None:
    rows = registry.verify([MNIST], tmp_path)
    assert [row["status"] for row in rows] == ["missing"] * 4
    assert "mnist/train-images-idx3-ubyte" in rows[0]["problem"]


def test_the_list_is_plain_data(toy: Path) -> None:
    (row,) = registry.list_datasets([TOY], toy)
    assert row["where"] == str(toy / "toy")
    assert row["bytes"] == len(CONTENT)
    assert registry.list_datasets([TOY])[0]["where"] is None
