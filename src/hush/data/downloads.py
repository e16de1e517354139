"""Downloads that may be interrupted: each mirror in turn, kept only if the bytes are right.

pooch does the fetching, through a downloader that continues where an interrupted download stopped: what has arrived
stays in a partial file, and the rest is asked for by an HTTP range request (RFC 9110, section 14), tied to the server's
version of the file by If-Range where the server names one. A file enters the cache unpacked, and only after its SHA-256
agrees with the pin; anything else is deleted.
"""

from __future__ import annotations

import hashlib
import logging
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import pooch
import requests
import urllib3

from hush.data import pinned
from hush.data.dataset import Archive, Dataset, File, Mirror
from hush.errors import BadInput, HushError
from hush.files import explain, move_atomic, take_turn

Progress = Callable[[str, int, int | None], None]
"""Told (file, bytes so far, bytes in all or None) as a download goes on."""

ATTEMPTS = 3
"""How often in a row an address may break off without delivering anything new."""

_CHUNK = 1 << 16
_TIMEOUT = 30.0


class DownloadError(HushError):
    """No mirror delivered the right bytes; the text says why, in one sentence."""


def fetch_missing(dataset: Dataset, missing: Sequence[File], cache: Path, progress: Progress) -> None:
    """Download these files of a dataset into ``cache``/name, unless another process has done so meanwhile."""
    target = cache / dataset.name
    try:
        target.mkdir(parents=True, exist_ok=True)
        with take_turn(target, prove=False):  # two downloads at once spoil nothing that the checksum lets through
            _fetch_from_mirrors(dataset, missing, target, progress)
    except requests.exceptions.RequestException as error:
        raise DownloadError(f"the download of {dataset.name} failed: {_complaint(error)}") from error
    except OSError as error:
        raise BadInput(f"the cache '{cache}' cannot be used: {explain(error)}") from error


def _fetch_from_mirrors(dataset: Dataset, missing: Sequence[File], target: Path, progress: Progress) -> None:
    wanted = [file for file in missing if not (target / file.name).exists()]
    complaints: dict[str, int] = {}
    for mirror in dataset.mirrors:
        for url, inside, expected in _addresses(mirror, wanted):
            try:
                for file, content in _download(url, expected, inside, target, progress):
                    pinned.store(content, target / file.name)
                    wanted.remove(file)
            except (pinned.Altered, requests.exceptions.RequestException) as error:
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
    if isinstance(error, pinned.Altered):
        return "the bytes are not the official ones"
    if isinstance(error, requests.exceptions.HTTPError) and error.response is not None:
        return f"the server answers {error.response.status_code}"
    if isinstance(error, requests.exceptions.Timeout):
        return "the server does not answer in time"
    if "broke off" in str(error):
        return _shorten(error)
    return "the server cannot be reached"


def _addresses(mirror: Mirror, wanted: Sequence[File]) -> list[tuple[str, str | None, list[File]]]:
    """What to ask a mirror for: (address, folder inside an archive or None, the files expected there)."""
    if not wanted:
        return []
    if isinstance(mirror, Archive):
        return [(mirror.url, mirror.inside, list(wanted))]
    return [(f"{mirror.url}{file.name}{mirror.suffix}", None, [file]) for file in wanted]


def _download(
    url: str, expected: list[File], inside: str | None, target: Path, progress: Progress
) -> Iterator[tuple[File, bytes]]:
    """The verified contents of what lies at ``url``; the packed file itself is removed whatever happens."""
    packed = target / f".{short_name(url)}.packed"
    pooch.get_logger().setLevel(logging.WARNING)
    try:
        pooch.retrieve(url, known_hash=None, fname=packed.name, path=target, downloader=Resuming(target, progress))
        if inside is None:
            yield expected[0], pinned.read_verified(packed, expected[0], shown=url)
        else:
            yield from _members(packed, {inside + file.name: file for file in expected}, url)
    finally:
        packed.unlink(missing_ok=True)


def _members(packed: Path, expected: dict[str, File], url: str) -> Iterator[tuple[File, bytes]]:
    """The verified members of a tar or zip archive, in one pass; nothing is extracted to a path of its choosing."""
    try:
        for name, content in _tar(packed, expected) if not zipfile.is_zipfile(packed) else _zip(packed, expected):
            yield expected[name], pinned.verify_bytes(content, f"{url}#{name}", expected.pop(name))
    except (tarfile.TarError, zipfile.BadZipFile, EOFError, zlib.error) as error:
        raise pinned.Altered(f"'{url}' is not a whole archive: {error}") from error
    if expected:
        raise pinned.Altered(f"'{url}' lacks {', '.join(expected)}")


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


def _shorten(error: Exception) -> str:
    return " ".join(str(error).split())[:160]


def short_name(url: str) -> str:
    """A short file name for an address."""
    return hashlib.sha256(url.encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Resuming:
    """Downloads into a partial file in ``folder``, which outlives an interruption, and then moves it into place."""

    folder: Path
    progress: Progress

    def __call__(self, url: str, output_file: str, pooch: Any = None) -> None:
        """Download ``url`` to ``output_file``."""
        part, best, left = self.folder / f".{short_name(url)}.part", 0, ATTEMPTS
        while not self._continue(url, part):
            left = ATTEMPTS if _size(part) > best else left - 1
            best = max(best, _size(part))
            if not left:
                raise requests.exceptions.ConnectionError(f"the connection broke off {ATTEMPTS} times in a row")
        move_atomic(part, Path(output_file))
        _version(part).unlink(missing_ok=True)

    def _continue(self, url: str, part: Path) -> bool:
        """Whether the file is whole now; False if the connection broke off."""
        have = _size(part)
        try:
            with requests.get(url, stream=True, timeout=_TIMEOUT, headers=_headers(part, have)) as response:
                if response.status_code == 416:  # there is nothing after the partial file: begin again
                    part.unlink(missing_ok=True)
                    return False
                response.raise_for_status()
                have = have if response.status_code == 206 else 0
                _version(part).write_text(response.headers.get("ETag", ""))
                with part.open("ab" if have else "wb") as out:
                    return self._receive(response, out, url.rsplit("/", 1)[-1], have)
        except (requests.exceptions.ConnectionError, requests.exceptions.Timeout):
            if _size(part) == 0:
                raise  # nobody there: the next mirror
            return False

    def _receive(self, response: requests.Response, out: IO[bytes], name: str, have: int) -> bool:
        length = response.headers.get("Content-Length")
        total = have + int(length) if length else None
        self.progress(name, have, total)
        try:
            for block in response.raw.stream(_CHUNK, decode_content=False):
                out.write(block)
                have += len(block)
                self.progress(name, have, total)
        except urllib3.exceptions.HTTPError:
            return False
        return total is None or have >= total


def _headers(part: Path, have: int) -> dict[str, str]:
    headers = {"Accept-Encoding": "identity"}
    if have:
        headers["Range"] = f"bytes={have}-"
        version = _version(part).read_text() if _version(part).exists() else ""
        if version and not version.startswith("W/"):
            headers["If-Range"] = version
    return headers


def _version(part: Path) -> Path:
    return part.with_suffix(".version")


def _size(part: Path) -> int:
    return part.stat().st_size if part.exists() else 0
