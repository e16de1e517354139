"""The folder of a release: its files, and how it is written and read as a whole.

    model.safetensors   the weights
    model.json          the description (`hush.release.description`)
    schema.json         the columns, if the model is for a table
    privacy.json        the privacy card, with the SHA-256 digest of every other file and of itself
    and the pages for people, by `PAGES`

It contains nothing private: no secret, seed, batch or loss. The card's own digest is that of its bytes with zeros in
the digest's place. Digests detect accidents; they are not a signature, as a person who edits a file can edit them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor, nn

from hush._internal.storage import explain, make_directory, write_folder
from hush._internal.text import dump_json
from hush.errors import InvalidInputError, ReleaseError
from hush.release.description import Description
from hush.release.statement import page_of_card, text_of_card

WEIGHTS, MODEL, SCHEMA, CARD = "model.safetensors", "model.json", "schema.json", "privacy.json"
PAGE, WEB_PAGE = "PRIVACY.md", "privacy.html"
RELEASE, PRIVATE_PART = "release", "private"  # the two parts of a run's folder
UNSIGNED = "0" * 64

PAGES: Mapping[str, Callable[[Mapping[str, Any]], str]] = {PAGE: text_of_card, WEB_PAGE: page_of_card}
"""The pages for people: each is made from the card, which names the digests of the files before it."""

NAMES = frozenset((WEIGHTS, MODEL, SCHEMA, CARD, *PAGES))
"""Every file that a release may have."""


def write_release(
    directory: Path, model: nn.Module, card: Mapping[str, Any], description: Description, *, overwrite: bool = False
) -> Path:
    """Write a release atomically: after a kill at any time the folder is missing or complete, and never mixes two."""
    check_room(directory, overwrite=overwrite)
    content = pack_release(model, card, description)
    try:
        make_directory(directory.resolve().parent)
        write_folder(directory, content, replace=overwrite)
    except (FileExistsError, NotADirectoryError, PermissionError) as error:
        raise InvalidInputError(f"cannot write to '{directory}': {explain(error)}") from error
    return directory


def pack_release(model: nn.Module, card: Mapping[str, Any], description: Description) -> dict[str, bytes]:
    """The files of a release by their names."""
    content = {WEIGHTS: pack_weights(model), MODEL: _pack(description.to_json())}
    if description.schema is not None:
        content[SCHEMA] = _pack(description.schema.to_json())
    stated = {**card, "digests": digest_files(content)}
    content |= {name: page(stated).encode() for name, page in PAGES.items()}
    content[CARD] = _sign(_pack({**card, "digests": digest_files(content), "own_digest": UNSIGNED}))
    return content


def pack_weights(model: nn.Module) -> bytes:
    """The content of ``model.safetensors``: the same bytes for the same weights."""
    tensors = dict(model.named_parameters(remove_duplicate=False)) | dict(model.named_buffers(remove_duplicate=False))
    state = {name: value.detach().cpu().contiguous().clone() for name, value in model.state_dict().items()}
    for name, value in state.items():
        own = tensors.get(name)
        if own is not None and not _have_same_bits(value, own.detach().cpu()):
            raise ReleaseError(
                f"the state_dict of the model gives another '{name}' than the model has, as a state_dict hook can: "
                "remove the hook, which the guarantee does not cover"
            )
    return save(state)


def _have_same_bits(one: Tensor, other: Tensor) -> bool:
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    return torch.equal(one.reshape(-1).view(torch.uint8), other.contiguous().reshape(-1).view(torch.uint8))


def check_room(directory: Path, *, overwrite: bool) -> None:
    """Raise if a release would be replaced without ``overwrite``, or a file that hush did not write in any case."""
    if not directory.exists() and not directory.is_symlink():
        return
    if not directory.is_dir():
        raise InvalidInputError(
            f"'{directory}' is a file, where a folder for the release was expected: give another name"
        )
    there = sorted(directory.iterdir())
    strange = [path for path in there if path.name not in NAMES or (path.is_dir() and not path.is_symlink())]
    if strange:
        raise InvalidInputError(
            f"'{directory}' holds '{strange[0].name}', which is not a file of a release and would be lost: give "
            "another folder"
        )
    if there and not overwrite:
        raise InvalidInputError(f"'{directory}' holds a release already: pass overwrite=True or another folder")


def find_release(directory: str | Path) -> Path:
    """The folder of the release, given that folder or the run's.

    A folder that holds any file of a release is that release, even when it has a subfolder named ``release``: otherwise
    its own files could be changed and the subfolder would be verified in their place."""
    given = Path(directory)
    for folder in (given, given / RELEASE):
        if any((folder / name).exists() for name in NAMES):
            return folder
    if not given.exists():
        raise InvalidInputError(f"there is no folder '{given}'")
    if not (given / PRIVATE_PART).is_dir():
        raise InvalidInputError(f"'{given}' holds no release")
    if not was_begun(given):
        raise InvalidInputError(
            f"'{given}' holds no release, as nothing was begun in it: train with --out {given} first"
        )
    raise InvalidInputError(f"'{given}' holds no release, as its run is not finished: continue it with --resume")


def was_begun(run: Path) -> bool:
    """Whether a run was begun in this folder: its private part has more than a lock and solved matrices."""
    try:
        return any(path.name not in ("lock", "matrices") for path in (run / PRIVATE_PART).iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:  # a folder of another user, who may have permission
        return True


def read_description(folder: Path) -> Description:
    """The description of the release in a folder."""
    if not (folder / MODEL).is_file():
        raise InvalidInputError(f"'{folder}' has no {MODEL}, which describes the network: give its module with model=…")
    schema = read_json(folder / SCHEMA) if (folder / SCHEMA).is_file() else None
    try:
        return Description.from_json(read_json(folder / MODEL), schema)
    except InvalidInputError as error:
        raise InvalidInputError(f"the description in '{folder}' cannot be used: {error}") from error


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file of a release."""
    try:
        found = json.loads(path.read_bytes())
    except OSError as error:
        raise InvalidInputError(f"'{path}' cannot be read: {explain(error)}") from error
    except (ValueError, RecursionError) as error:
        raise InvalidInputError(f"'{path}' is not valid JSON") from error
    if not isinstance(found, dict):
        raise InvalidInputError(f"'{path}' must hold a JSON object")
    return found


def digest_files(content: Mapping[str, bytes]) -> dict[str, str]:
    """The SHA-256 digest of every file."""
    return {name: hashlib.sha256(data).hexdigest() for name, data in content.items()}


def is_own_digest(card: bytes, digest: str) -> bool:
    """Whether a card's own digest matches its bytes."""
    named = f'"own_digest": "{digest}"'.encode()
    blank = card.replace(named, f'"own_digest": "{UNSIGNED}"'.encode())
    return card.count(named) == 1 and hashlib.sha256(blank).hexdigest() == digest


def _sign(card: bytes) -> bytes:
    blank = f'"own_digest": "{UNSIGNED}"'.encode()
    return card.replace(blank, f'"own_digest": "{hashlib.sha256(card).hexdigest()}"'.encode())


def _pack(value: Any) -> bytes:
    return (dump_json(value, indent=2) + "\n").encode()
