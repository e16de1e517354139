"""The whole statement, section by section, from a card and the three facts that are not in it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hush.officer.blocks import Block, Paragraph, Points, Section, Signature, Statement, Table
from hush.officer.limits import tell_assumptions, tell_not_covered
from hush.officer.meaning import sum_up, tell_odds, tell_who
from hush.officer.phrases import WHOSE
from hush.officer.procedure import STATUS, tell_claims, tell_method
from hush.officer.reading import Read, as_hush_writes_it, read_card

MAY_BE_PUBLIC = {
    "example": (),
    "features": ("The labels, and who is in the data, are public, or may become so (section 1).",),
    "labels": ("All entries but the labels, and who is in the data, are public, or may become so (section 1).",),
}


def make_statement(card: Mapping[str, Any], *, dataset: str, date: str, digests: Mapping[str, str]) -> Statement:
    """All that the page says, before it is HTML or Markdown."""
    with as_hush_writes_it():
        read = read_card(card)
        facts = (
            ("dataset", dataset or "not named"),
            ("date of this statement", date or "not stated"),
            ("method", str(card["method"])),
            ("protected unit", _name_unit(read) if read.proven else "none"),
            ("status", "proven, on conditions" if read.proven else STATUS[read.guarantee.status]),
        )
        sections = (
            sum_up(read),
            tell_who(read),
            tell_odds(read),
            tell_not_covered(read),
            tell_assumptions(read),
            tell_method(read),
            *tell_claims(read),
            _tell_files(read, digests),
            _ask_to_sign(read),
        )
        return Statement("Privacy statement for a trained model", facts, sections)


def _name_unit(read: Read) -> str:
    named = f"one {read.unit} (all rows of it)" if read.whole_unit else "one example (one row)"
    return f"{WHOSE[read.protects]}{named}"


def _tell_files(read: Read, digests: Mapping[str, str]) -> Section:
    title = "Which files does it speak of?"
    if not digests:
        return Section(title, (Paragraph("The released files were not named when this page was made."),))
    covered = "It covers these, privacy.json and this page, whoever gets them, and no others. "
    text = (
        "A digest is a fingerprint: it changes with the file. “hush verify” compares the files with privacy.json; "
        "compare that with this page by eye."
    )
    table = Table(("file", "digest"), tuple(digests.items()), "files")
    return Section(title, (Paragraph(covered * read.proven + text), table))


def _ask_to_sign(read: Read) -> Section:
    proven = (
        *MAY_BE_PUBLIC[read.protects],
        f"It is known whether one person can have more than one {read.unit}, and that is acceptable (section 2).",
        "The odds in section 3 are acceptable for these data.",
        "What section 4 does not cover is dealt with in another way.",
        "Those who trained the model have confirmed section 5 in writing; what nobody can confirm there is accepted.",
        "They have confirmed that the data have no other uses, or all are counted and the total is acceptable.",
        "Only the files named above are handed over, nothing of the folder “private”; the digests agree.",
    )
    warned = (
        "I have read the warning in section 1.",
        "Whoever receives the files may see the training data.",
        "The folder “private” is not handed over; the digests agree.",
    )
    fields: Block = Signature(("name and office", "place", "date", "signature"))
    text = "My signature confirms that I checked the ticked points or had them confirmed in writing, and nothing else."
    points = Points(proven if read.proven else warned, "boxes")
    return Section("To check and to sign", (points, Paragraph(text), fields))
