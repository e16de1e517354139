"""Verified bytes: where a dataset's files lie, and how they are read.

A file is looked for in the folder given, in HUSH_DATA and in the cache, raw or packed by gzip or xz, and told apart by
its first bytes. Whatever the packing, its content must have the pinned SHA-256 before anything looks at it.
"""

from __future__ import annotations

import gzip
import hashlib
import lzma
import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, cast

from hush.data.dataset import Dataset, File
from hush.errors import BadInput
from hush.files import explain, find_cache, write_atomic

SUFFIXES = ("", ".gz", ".xz")


class Altered(BadInput):
    """The bytes of a file are not the official ones."""


def list_folders(data_dir: Path | None) -> list[Path]:
    """The folders to look in, in order: the one given, HUSH_DATA, the cache."""
    named = [("the data folder", data_dir), ("HUSH_DATA", _environment("HUSH_DATA"))]
    found = []
    for what, folder in named:
        if folder is not None:
            if not folder.is_dir():
                raise BadInput(f"{what} '{folder}' is not a folder")
            found.append(folder)
    return [*found, find_cache()]


def find_file(dataset: Dataset, file: File, data_dir: Path | None) -> Path | None:
    """The first place where this file lies, raw or packed; None if nowhere. A raw copy in the cache comes first:
    the pin makes all copies equal, and it needs no unpacking."""
    places = list_folders(data_dir)
    candidates = [places[-1] / dataset.name / file.name]
    candidates += [place / dataset.name / (file.name + suffix) for place in places for suffix in SUFFIXES]
    return next((path for path in candidates if is_present(path)), None)


def is_present(path: Path) -> bool:
    """Whether something lies there; a folder that cannot be looked into is an error of one sentence."""
    try:
        path.stat()
    except FileNotFoundError:
        return False
    except OSError as error:
        raise BadInput(f"'{path.parent}' cannot be read: {explain(error)}") from error
    return True


def read_verified(path: Path, file: File, shown: str | None = None) -> bytes:
    """The unpacked bytes of a file, after checking them against its pin; errors call it ``shown``, or by its path."""
    name = shown or str(path)
    try:
        with open_unpacked(path) as stream:
            content = stream.read(file.size + 1)
    except EOFError as error:
        raise Altered(f"'{name}' is truncated: its packed stream ends early") from error
    except (gzip.BadGzipFile, lzma.LZMAError, zlib.error) as error:
        raise Altered(f"'{name}' is altered: it does not unpack ({error})") from error
    except OSError as error:
        raise BadInput(f"'{name}' cannot be read: {explain(error)}") from error
    return verify_bytes(content, name, file)


def verify_bytes(content: bytes, name: str, file: File) -> bytes:
    """The same bytes, or an error that says how they differ from the official ones."""
    if len(content) < file.size:
        raise Altered(f"'{name}' is truncated: {len(content)} of {file.size} bytes (unpacked)")
    digest = hashlib.sha256(content).hexdigest()
    if digest != file.sha256:
        raise Altered(f"'{name}' is altered: SHA-256 {digest[:12]}… where {file.sha256[:12]}… was expected (unpacked)")
    return content


@contextmanager
def open_unpacked(path: Path) -> Iterator[IO[bytes]]:
    """The unpacked stream of a file that is raw, gzip or xz, recognised by its first bytes."""
    with path.open("rb") as head:
        start = head.read(6)
    if start.startswith(b"\x1f\x8b"):
        with gzip.open(path, "rb") as unzipped:
            yield cast(IO[bytes], unzipped)
    elif start == b"\xfd7zXZ\x00":
        with lzma.open(path, "rb") as unpacked:
            yield cast(IO[bytes], unpacked)
    else:
        with path.open("rb") as raw:
            yield raw


def store(content: bytes, path: Path) -> None:
    """Write a file whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, content)


def _environment(name: str) -> Path | None:
    value = os.environ.get(name)
    return Path(value) if value else None
