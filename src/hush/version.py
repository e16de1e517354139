"""The versions of hush and of what it stands on, by the names under which files keep them."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

DISTRIBUTION = "hush-dp"  # what is installed; it is imported, and called in the shell, as hush
BEFORE = "hush"  # the distribution's name up to 0.1.0, where an installation was not made anew


def read_own_version() -> str:
    """The version of the installed hush."""
    try:
        return version(DISTRIBUTION)
    except PackageNotFoundError:
        return version(BEFORE)


def read_versions(*names: str) -> dict[str, str]:
    """The installed versions by name; ``hush`` is this project, whatever its distribution is called."""
    return {name: read_own_version() if name == "hush" else version(name) for name in names}
