"""What a guarantee protects is said in its sentence, its JSON and its table."""

from __future__ import annotations

from typing import Any

import pytest

from hush.accounting.guarantee import Guarantee
from hush.errors import InvalidInputError


def test_the_whole_example_is_protected_unless_something_else_is_said() -> None:
    assert Guarantee(1.0, 1e-5).protects == "example"
    assert Guarantee(1.0, 1e-5).to_json()["protects"] == "example"


@pytest.mark.parametrize(("half", "words"), [("features", "the features of one patient"), ("labels", "the label of")])
def test_half_a_guarantee_reads_as_one(half: Any, words: str) -> None:
    guarantee = Guarantee(1.0, 1e-5, "replace", unit="patient", protects=half)
    assert words in guarantee.sentence()
    assert "taken to be public" in guarantee.sentence()
    assert words in guarantee.to_markdown()
    assert Guarantee.from_json(guarantee.to_json()) == guarantee


def test_a_guarantee_written_without_the_field_is_for_the_example() -> None:
    written = Guarantee(1.0, 1e-5).to_json()
    del written["protects"]
    assert Guarantee.from_json(written).protects == "example"


def test_nothing_else_is_protected() -> None:
    with pytest.raises(InvalidInputError):
        Guarantee(1.0, 1e-5, protects="half")  # type: ignore[arg-type]
