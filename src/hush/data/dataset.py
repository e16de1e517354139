"""What a public dataset is made of: its official files, the SHA-256 of the bytes inside, and where to get them.

The pins are of the unpacked bytes, which are the same whichever mirror, packing or system package they come from. Each
dataset is written down beside its loader.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class File:
    """One official file: its name, its size and its SHA-256, both unpacked."""

    name: str
    size: int
    sha256: str


@dataclass(frozen=True)
class Folder:
    """A mirror that holds the files one by one, at ``url`` + name + ``suffix``."""

    url: str
    suffix: str = ""


@dataclass(frozen=True)
class Archive:
    """A mirror that holds them all in one tar or zip archive, each at ``inside`` + name."""

    url: str
    inside: str = ""


Mirror = Folder | Archive


@dataclass(frozen=True)
class Dataset:
    """A dataset; one without files comes inside ``package``, which is imported by that name."""

    name: str
    summary: str
    licence: str
    files: tuple[File, ...] = ()
    mirrors: tuple[Mirror, ...] = ()
    package: str = ""

    @property
    def size(self) -> int:
        """Bytes of all files, unpacked."""
        return sum(file.size for file in self.files)

    def file(self, name: str) -> File:
        """The file of that name."""
        return next(file for file in self.files if file.name == name)
