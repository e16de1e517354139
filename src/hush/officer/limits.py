"""Where the statement ends: what is not covered, and what it rests on."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from hush.officer.blocks import Block, Paragraph, Points, Section
from hush.officer.phrases import WHOSE
from hush.officer.procedure import STATUS
from hush.officer.reading import Read
from hush.privacy import assumptions
from hush.privacy.guarantee import rounded_up

EXPLAINED = {
    assumptions.ROUNDING: (
        "Computers round numbers, and how they round can depend on how many examples are computed together. The effect "
        "is tiny, but it is not proven that it reveals nothing. Nobody can confirm this: accept it, or ask for "
        "rigorous arithmetic, which avoids it"
    ),
    assumptions.SECRET_SEED: (
        "The random numbers follow from a number that a person chose. Whoever learns it can take the noise away"
    ),
    assumptions.SECRET_GIVEN: (
        "The random numbers follow from a key that was handed to the program. Whoever has it, or sees another training "
        "with it, can take the noise away"
    ),
    assumptions.FIXED: "It was settled beforehand how long to train, and not by watching how well the model did",
    assumptions.BLINDLY: (
        "The training was interrupted and parts of it were run again, for reasons that have nothing to do with the data"
    ),
    assumptions.HOOKED: (
        "The model came with code of its own that sees the data while it is trained. Whoever wrote it has to confirm "
        "that it keeps nothing"
    ),
    **{
        assumptions.KEPT.format(kind, "").partition("(")[0]: (
            "A part of the procedure was written for this training. What it does to a single person's share was "
            "declared by whoever wrote it, and is not checked here"
        )
        for kind in ("sampler", "query", "noise")
    },
    assumptions.TRAINED: (
        "The model had been trained before. If that was on the same people's data, it has to be counted too, and this "
        "statement alone says too little"
    ),
}
COUNTED = {
    "add-remove": "The number of examples in privacy.json was given by those who trained the model. It, and whatever "
    "section 5 calls public, is not hidden: it must do no harm if known.",
    "zero-out": "The number of examples, and whatever section 5 calls public, is not hidden: it must be harmless.",
    "replace": "The number of examples, and whatever section 5 calls public, is not hidden: it must be harmless.",
}

NOT_PROTECTED: dict[str, dict[str, str]] = {
    "example": {},
    "features": {"The labels.": "These, and who is in the data, were taken to be public (section 1)."},
    "labels": {"All but the labels.": "That, and who is in the data, was taken to be public (section 1)."},
}


def tell_not_covered(read: Read) -> Section:
    """What no figure on the page covers."""
    if not read.proven:
        return Section("What is not covered?", (Paragraph("Nothing is covered: see section 1."),))
    unit = read.unit
    found = {
        **NOT_PROTECTED[read.protects],
        "Test rows.": "Rows that were held back to test the model are not covered. Figures measured on them (an "
        "accuracy, say) can reveal something of them unless privacy.json says that they have noise: pass none on.",
        "The folder “private”.": "It holds the figures of the training and, until they are deleted, the secret random "
        "numbers. Nothing protects against somebody who has it: it must not be handed over.",
        "Other uses of the same data.": f"{_tell_runs(read)}",
        "Choices made beforehand.": "Cleaning the data, choosing columns or trying several settings on the same data "
        "are uses of the data, too. They are covered only where they were counted like a training.",
        "Facts about people in general.": "What the model learns about a group (say, that smokers fall ill more often) "
        "can be applied to a person of that group, whether or not they are in the data.",
        "Others who share a person's data.": f"Protected is one {unit} at a time. What the rest of the data says about "
        "the same person (copies, relatives, the same household) is not hidden.",
        "What is public.": f"{COUNTED[read.guarantee.adjacency].replace('examples', f'{unit}s')}",
        "The law, and the original data.": "Whether the released files count as anonymous, and whether the model is "
        "lawful, fair or accurate, is not answered here; nor who may see the original data, and when they are deleted.",
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
        "nobody can predict the random numbers of the training, which a program computes from a secret; and the secret "
        "(in the folder “private”, until it is deleted) reaches only those who may see the training data anyway",
        "the program works as it is described, and was not altered (its version is in section 6)",
    )
    lead = "The statement holds only if every one of these is true. Ask those who trained the model to confirm them:"
    return Section(title, (Paragraph(lead), Points((*own, *always), "numbered")))


def _explain(text: str) -> str:
    meaning = next((words for start, words in EXPLAINED.items() if text.startswith(start)), None)
    return text if meaning is None else f"{text}. In other words: {meaning}."


def _tell_runs(read: Read) -> str:
    """That other runs add up, and to what, where the card has a ledger's total."""
    ledger = read.card.get("ledger")
    adds = "Every further training or publication on them adds to what can be found out, and needs its own statement."
    if not isinstance(ledger, Mapping):
        return f"{adds} This statement counts this one training only; no ledger (record of uses) is with it."
    return f"{adds} {_tell_total(ledger)}"


def _tell_total(ledger: Mapping[str, Any]) -> str:
    epsilon, status = ledger["epsilon"], ledger["status"]
    if status != "proven" or epsilon is None or not math.isfinite(epsilon):
        return f"For all uses in the ledger (record of uses) together there is no guarantee ({STATUS[status]})."
    whose = f"{WHOSE[ledger.get('protects', 'example')]}one {ledger.get('unit', 'example')}"
    about = "" if whose == "one example" else f" for {whose}"
    pair = f"ε is at most {rounded_up(epsilon)} at δ = {rounded_up(ledger['delta'])}{about}"
    return (
        "Section 3 counts this one only. For all uses that the ledger (record of uses) lists to date together, "
        f"{pair} (proven, if the conditions of each hold and none was planned by another's result)."
    )
