"""Where the statement ends: what is not covered, and what it rests on."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from hush.officer.blocks import Block, Paragraph, Points, Section
from hush.officer.procedure import STATUS
from hush.officer.reading import Read
from hush.privacy.guarantee import rounded_up

EXPLAINED = {
    "rounding that varies with the size of a batch gives nothing away": (
        "Computers round numbers, and how they round can depend on how many examples are computed together. The effect "
        "is tiny, but it is not proven that it reveals nothing. Training with rigorous arithmetic removes the condition"
    ),
    "the secret seed that was chosen for sampling and noise stays secret and is used for no other run": (
        "The random numbers follow from a number that a person chose. Whoever learns it can take the noise away"
    ),
    "nobody decided where to break off and what to change by looking at what had been released": (
        "The training was interrupted and parts of it were run again, for reasons that have nothing to do with the data"
    ),
}
COUNTED = {
    "add-remove": "The number of examples in privacy.json was given by those who trained the model, and is taken to be "
    "no secret.",
    "zero-out": "How many examples there are is taken to be public.",
    "replace": "How many examples there are is taken to be public.",
}


def tell_not_covered(read: Read) -> Section:
    """What no figure on the page covers."""
    if not read.proven:
        return Section("What is not covered?", (Paragraph("Nothing is covered: see section 1."),))
    unit = read.unit
    found = {
        "Test rows.": "Rows that were held back to test the model are not covered. Figures measured on them, such "
        "as an accuracy, are exact unless privacy.json says that they have noise, and can reveal something about them.",
        "The folder “private”.": "It holds the figures of the training and, until they are deleted, the secret random "
        "numbers. Nothing protects against somebody who has it: it must not be handed over.",
        "Other uses of the same data.": f"{_tell_runs(read)}",
        "Choices made beforehand.": "Cleaning the data, choosing columns or trying several settings on the same data "
        "are uses of the data, too. They are covered only where they were counted as runs.",
        "Facts about people in general.": "What the model learns about a group (say, that smokers fall ill more often) "
        "can be applied to a person of that group, whether or not they are in the data.",
        "Others who share a person's data.": f"Protected is one {unit}. What other rows say about the same person "
        "(copies, relatives, the same household) is not hidden by it.",
        "The number of rows.": f"{COUNTED[read.guarantee.adjacency]}",
        "The original data.": "Their storage, access to them and their deletion are another matter, as is whether the "
        "model is accurate, fair or lawful.",
    }
    return Section("What is not covered?", (Points(tuple(found.values()), names=tuple(found)),))


def tell_assumptions(read: Read) -> Section:
    """Every assumption once."""
    title = "On which conditions does it rest?"
    own = tuple(_explain(text) for text in dict.fromkeys(read.guarantee.assumptions))
    if not read.proven:
        text = "On none: nothing is promised." if not own else "The claim was made on these conditions:"
        blocks: tuple[Block, ...] = (Paragraph(text), *((Points(own, "numbered"),) if own else ()))
        return Section(title, blocks)
    always = (
        "the secret random numbers of the training (in the folder “private”, until they are deleted) reach nobody",
        "the program works as it is described (its version is in section 6)",
    )
    return Section(
        title,
        (Paragraph("The statement holds only if every one of these is true:"), Points((*own, *always), "numbered")),
    )


def _explain(text: str) -> str:
    meaning = next((words for start, words in EXPLAINED.items() if text.startswith(start)), None)
    return text if meaning is None else f"{text}. In other words: {meaning}."


def _tell_runs(read: Read) -> str:
    """That other runs add up, and to what, where the card has a ledger's total."""
    ledger = read.card.get("ledger")
    adds = "Every further training or publication on the same data adds to what can be found out."
    if not isinstance(ledger, Mapping):
        return f"{adds} This statement counts this one training only, and no record of others (a ledger) came with it."
    return f"{adds} {_tell_total(ledger)}"


def _tell_total(ledger: Mapping[str, Any]) -> str:
    epsilon, status = ledger["epsilon"], ledger["status"]
    if status != "proven" or epsilon is None or not math.isfinite(epsilon):
        return f"For all that the ledger of these data records together there is no guarantee ({STATUS[status]})."
    pair = f"ε is at most {rounded_up(epsilon)} at δ = {rounded_up(ledger['delta'])} (proven)"
    return (
        f"For all that the ledger of these data records up to this date together, {pair}; what "
        "it does not record is left out."
    )
