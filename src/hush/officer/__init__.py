"""The data-protection officer's page: what a privacy card means, for somebody who knows no mathematics.

Everything is said from the card's JSON and three more facts (dataset, date, digests of the released files), so the page
can be made again wherever a card is. No torch in here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hush.officer.html_page import render_privacy_page
from hush.officer.markdown_page import render_privacy_text

__all__ = ["page_of_card", "render_privacy_page", "render_privacy_text", "text_of_card"]


def page_of_card(card: Mapping[str, Any]) -> str:
    """The HTML page of a card that names dataset, date and digests itself."""
    return render_privacy_page(card, **_named(card))


def text_of_card(card: Mapping[str, Any]) -> str:
    """The Markdown of a card that names dataset, date and digests itself."""
    return render_privacy_text(card, **_named(card))


def _named(card: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "dataset": str(card.get("dataset") or ""),
        "date": str(card.get("date") or ""),
        "digests": card.get("digests") or {},
    }
