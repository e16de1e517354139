"""Downloads that may be interrupted: each mirror in turn, kept only if the bytes are right.

pooch does the fetching, through a downloader that continues a partial file. A file enters the cache unpacked, and only
after its SHA-256 agrees with the pin; anything else is deleted.
"""

from __future__ import annotations

import logging
import os
import tarfile
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pooch
import requests

from hush.data import files
from hush.data.catalog import Archive, Dataset, File, Mirror
from hush.data.resume import Progress, Resuming, key
from hush.errors import BadInput, HushError

try:
    import fcntl
except ImportError:  # Windows: two downloads at once may then spoil each other, which the checksum notices
    fcntl = None  # type: ignore[assignment]


class DownloadError(HushError):
    """No mirror delivered the right bytes; the text says why, in one sentence."""


def fetch_missing(dataset: Dataset, missing: Sequence[File], cache: Path, progress: Progress) -> None:
    """Download these files of a dataset into ``cache``/name, unless another process has done so meanwhile."""
    target = cache / dataset.name
    try:
        target.mkdir(parents=True, exist_ok=True)
        with _alone(target):
            _fetch(dataset, missing, target, progress)
    except requests.exceptions.RequestException as error:
        raise DownloadError(f"the download of {dataset.name} failed: {_complaint(error)}") from error
    except OSError as error:
        raise BadInput(f"the cache '{cache}' cannot be used: {(error.strerror or str(error)).lower()}") from error


def _fetch(dataset: Dataset, missing: Sequence[File], target: Path, progress: Progress) -> None:
    wanted = [file for file in missing if not (target / file.name).exists()]
    complaints: dict[str, int] = {}
    for mirror in dataset.mirrors:
        for url, inside, expected in _requests(mirror, wanted):
            try:
                for file, content in _downloaded(url, expected, inside, target, progress):
                    files.store(content, target / file.name)
                    wanted.remove(file)
            except (files.Altered, requests.exceptions.RequestException) as error:
                complaint = _complaint(error)
                complaints[complaint] = complaints.get(complaint, 0) + 1
    if wanted:
        why = ", ".join(sorted(complaints, key=lambda text: -complaints[text]))
        raise DownloadError(
            f"no mirror of {dataset.name} delivered {', '.join(file.name for file in wanted)} ({why}): try again later,"
            " or put the files into a folder and name it by HUSH_DATA"
        )


def _complaint(error: Exception) -> str:
    """What went wrong in a few words, without the address."""
    if isinstance(error, files.Altered):
        return "the bytes are not the official ones"
    if isinstance(error, requests.exceptions.HTTPError) and error.response is not None:
        return f"the server answers {error.response.status_code}"
    if isinstance(error, requests.exceptions.Timeout):
        return "the server does not answer in time"
    if "broke off" in str(error):
        return _short(error)
    return "the server cannot be reached"


def _requests(mirror: Mirror, wanted: Sequence[File]) -> list[tuple[str, str | None, list[File]]]:
    """What to ask a mirror for: (address, folder inside an archive or None, the files expected there)."""
    if not wanted:
        return []
    if isinstance(mirror, Archive):
        return [(mirror.url, mirror.inside, list(wanted))]
    return [(f"{mirror.url}{file.name}{mirror.suffix}", None, [file]) for file in wanted]


def _downloaded(
    url: str, expected: list[File], inside: str | None, target: Path, progress: Progress
) -> Iterator[tuple[File, bytes]]:
    """The verified contents of what lies at ``url``; the packed file itself is removed whatever happens."""
    packed = target / f".{key(url)}.packed"
    pooch.get_logger().setLevel(logging.WARNING)
    try:
        pooch.retrieve(url, known_hash=None, fname=packed.name, path=target, downloader=Resuming(target, progress))
        if inside is None:
            yield expected[0], files.read(packed, expected[0], shown=url)
        else:
            yield from _members(packed, {inside + file.name: file for file in expected}, url)
    finally:
        packed.unlink(missing_ok=True)


def _members(packed: Path, expected: dict[str, File], url: str) -> Iterator[tuple[File, bytes]]:
    """The verified members of a tar or zip archive, in one pass; nothing is extracted to a path of its choosing."""
    try:
        for name, content in _tar(packed, expected) if not zipfile.is_zipfile(packed) else _zip(packed, expected):
            yield expected[name], files.checked(content, f"{url}#{name}", expected.pop(name))
    except (tarfile.TarError, zipfile.BadZipFile, EOFError, zlib.error) as error:
        raise files.Altered(f"'{url}' is not a whole archive: {error}") from error
    if expected:
        raise files.Altered(f"'{url}' lacks {', '.join(expected)}")


def _tar(packed: Path, expected: dict[str, File]) -> Iterator[tuple[str, bytes]]:
    with tarfile.open(packed) as archive:
        for member in archive:
            stream = archive.extractfile(member) if member.name in expected else None
            if stream is not None:
                yield member.name, stream.read(expected[member.name].size + 1)


def _zip(packed: Path, expected: dict[str, File]) -> Iterator[tuple[str, bytes]]:
    with zipfile.ZipFile(packed) as archive:
        for name in archive.namelist():
            if name in expected:
                with archive.open(name) as stream:
                    yield name, stream.read(expected[name].size + 1)


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """One process at a time in this folder, by a lock that ends with the process."""
    if fcntl is None:
        yield
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _short(error: Exception) -> str:
    return " ".join(str(error).split())[:160]
