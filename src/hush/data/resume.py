"""A downloader for pooch that continues where an interrupted download stopped.

What has arrived stays in a partial file; the rest is asked for by an HTTP range request (RFC 9110, section 14), tied to
the server's version of the file by If-Range where the server names one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import requests
import urllib3

Progress = Callable[[str, int, int | None], None]
"""Told (file, bytes so far, bytes in all or None) as a download goes on."""

ATTEMPTS = 3
"""How often in a row an address may break off without delivering anything new."""

_CHUNK = 1 << 16
_TIMEOUT = 30.0


def key(url: str) -> str:
    """A short file name for an address."""
    return hashlib.sha256(url.encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Resuming:
    """Downloads into a partial file in ``folder``, which outlives an interruption, and then moves it into place."""

    folder: Path
    progress: Progress

    def __call__(self, url: str, output_file: str, pooch: Any = None) -> None:
        """Download ``url`` to ``output_file``."""
        part, best, left = self.folder / f".{key(url)}.part", 0, ATTEMPTS
        while not self._continued(url, part):
            left = ATTEMPTS if _size(part) > best else left - 1
            best = max(best, _size(part))
            if not left:
                raise requests.exceptions.ConnectionError(f"the connection broke off {ATTEMPTS} times in a row")
        part.replace(output_file)
        _version(part).unlink(missing_ok=True)

    def _continued(self, url: str, part: Path) -> bool:
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
                    return self._received(response, out, url.rsplit("/", 1)[-1], have)
        except (requests.exceptions.ConnectionError, requests.exceptions.Timeout):
            if _size(part) == 0:
                raise  # nobody there: the next mirror
            return False

    def _received(self, response: requests.Response, out: IO[bytes], name: str, have: int) -> bool:
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
