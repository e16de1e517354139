"""What a total is about: whose data (its unit) and which part of them, and how a spend about one counts for another.

Every spend compares two datasets that differ in one change of its own kind: one row or all rows of one person, and of
these everything, the features alone or the labels alone. A total compares datasets that differ in one change of its
kind. Where that is k changes of the spend's kind, one after another, group privacy gives (Vadhan 2017, lemma 2.2)

    (ε, δ) becomes (kε, δ·Σ_{j<k} e^{jε}).

Proof: with P_0 … P_k the distributions along the way, P_0(A) ≤ e^ε P_1(A) + δ ≤ … ≤ e^{kε} P_k(A) + δ·Σ_{j<k} e^{jε}.
So all there is to know of a spend is k, or that no such way exists and its ε is ∞. Spends with the same k are composed
first: the ways they go need not be the same, for at every place each of them, whatever the others have released, is
compared with itself one change of its own kind farther.

**Which part.** A spend about features alone takes the labels, and who is in the data, to be public: two datasets that
differ in a label may be told apart by it with certainty. So it is ∞ in a total about labels and in one about whole
examples; and a spend about labels alone is ∞ in the other two. A spend about whole examples covers a part of them:
changing the features of an example is replacing it. So totals about a part are stated for `replace`.

**Replace.** One replacement is one removal and one addition (or one example zeroed and another filled in): a spend of
another relation counts twice in a total for `replace`.

**A spend per row in a total per person.** Without a bound on a person's rows there is no k. If every person is known to
have at most m rows, removing or adding a person is at most m such changes of a row, and zeroing one is too: k = m.
Replacing a person's rows by as many others is m replacements, or 2m removals and additions. For replacements by fewer
or more rows a spend that compares under `replace` or `zero-out` says nothing, for it takes the number of rows to be
public; then that is written down as an assumption. The m is a public fact that somebody declares (`Ledger.cap`), not
one that is read off the data: with one person more it could be another.

**A spend per person in a total per row.** One row more for somebody who is in the data is that person replaced: one
removal, and one addition of the person with that row: k = 2. (The row of somebody new is one addition.) The factor is
not for nothing: a person's clipped mean can turn around when a row is added, which is twice what it can do when the
person goes. Zeroing a row is zeroing the person and filling the other rows in: k = 2. Under `replace` a row that
becomes another row of the same person is one replacement of the person, k = 1; whose a row is, is then taken to be
public, which is written down. A unit is made of whole rows: this holds for no other.

**A spend per one unit in a total per another**, per patient and per household say: nothing is known about how many of
the one are in one of the other. It is ∞.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from hush.errors import BadInput
from hush.privacy.accounting import Adjacency
from hush.privacy.guarantee import PROTECTED, WHAT, Protects
from hush.validate import one_of

ROW = "example"  # the unit that is one row
HALF = {
    "features": "features only, and takes the labels, and who is in the data, to be public",
    "labels": "labels only, and takes the features, and who is in the data, to be public",
}
Caps = Mapping[str, int]  # by unit: how many rows one has at most, as somebody declared


@dataclass(frozen=True)
class Scope:
    """Whose data, and which part of them: what a spend, a total or a budget is about."""

    unit: str = ROW
    protects: Protects = "example"

    def __post_init__(self) -> None:
        one_of(PROTECTED, protects=self.protects)
        if not isinstance(self.unit, str) or not self.unit.strip() or len(self.unit) > 200:
            raise BadInput("a unit needs a name of at most 200 printable characters, such as a column's")
        if not self.unit.isprintable():
            raise BadInput(f"a unit needs a name of at most 200 printable characters, got {self.unit!r}")

    def in_words(self) -> str:
        """As it stands after "for": "the features of one patient_id"."""
        return f"{WHAT[self.protects]}one {self.unit}"


WHOLE_ROW = Scope()


def tell_unbounded(spent: Scope, asked: Scope, caps: Caps) -> str:
    """Why a spend's ε is ∞ in a total of this scope, as words that follow "one spend is"; empty where it is not."""
    if spent.protects not in ("example", asked.protects):
        return f"about {HALF[spent.protects]}"
    if spent.unit == asked.unit or asked.unit == ROW or (spent.unit == ROW and asked.unit in caps):
        return ""
    if spent.unit != ROW:
        return f"per {spent.unit}, of which one {asked.unit} may have any number"
    return (
        f"per {ROW}, of which one {asked.unit} may have any number: train with --unit {asked.unit}, or declare with "
        f"`hush ledger cap` how many rows one has at most if that is public"
    )


def list_scopes(spent: Iterable[Scope], caps: Caps) -> Iterator[Scope]:
    """Every scope that has a total of its own: each unit that a spend or a cap names, and rows, as a whole and, where a
    spend is about a part, by its parts."""
    spent = list(spent)
    parts = PROTECTED if any(scope.protects != "example" for scope in spent) else PROTECTED[:1]
    for unit in dict.fromkeys([ROW, *(scope.unit for scope in spent), *caps]):
        yield from (Scope(unit, part) for part in parts)


def count_changes(spent: Scope, asked: Scope, caps: Caps, adjacency: Adjacency, relation: Adjacency) -> int:
    """k: how many changes of a spend's kind one change of the total's kind is, where it is finite; the spend compares
    under ``adjacency`` and the total under ``relation``."""
    twice = 2 if relation == "replace" and adjacency != "replace" else 1
    if spent.unit == asked.unit:
        return twice
    if asked.unit == ROW:
        return 1 if adjacency == "replace" else 2
    return twice * caps[asked.unit]


def list_taken(spent: Scope, asked: Scope, caps: Caps, adjacency: Adjacency, relation: Adjacency) -> tuple[str, ...]:
    """What counting a spend of one unit in a total of another takes for granted."""
    if spent.unit == asked.unit:
        return ()
    if asked.unit == ROW:
        return (f"whose a row is (its {spent.unit}) is public",) if relation == "replace" else ()
    capped = f"no {asked.unit} has more than {caps[asked.unit]} rows, which is public and was not counted in the data"
    numbers = f"how many rows each {asked.unit} has is public"
    return (capped, numbers) if relation == "replace" and adjacency != "add-remove" else (capped,)


def grow(delta: float, epsilon: float, changes: int) -> tuple[float, float]:
    """(δ, ε) of so many changes, one after another: (δ·Σ_{j<k} e^{jε}, kε); never rounded below what it is."""
    if changes == 1 or math.isinf(epsilon):
        return delta, epsilon
    if changes == 2:
        return (1 + math.exp(min(epsilon, 700.0))) * delta, 2 * epsilon
    if changes * epsilon > 700:
        return math.inf, changes * epsilon
    if epsilon < 1e-9:  # Σ e^{jε} ≤ k·e^{kε}
        return changes * math.exp(changes * epsilon) * delta, changes * epsilon
    terms = math.expm1(changes * epsilon) / math.expm1(epsilon)
    return (1 + 1e-12) * terms * delta, changes * epsilon
