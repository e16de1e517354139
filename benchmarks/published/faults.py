"""What is wrong in published results, each with the figure that is right and the test or audit that shows it."""

from __future__ import annotations

import json
from dataclasses import dataclass

from hush.accounting.guarantee import rounded_up
from published import records
from published.records import Record, table, wrap

HEAD = ("published", "true", "shown by")


@dataclass(frozen=True)
class Fault:
    """What was said, what is true, and the files that show it."""

    said: str
    true: str
    shown: tuple[str, ...]

    def cells(self) -> tuple[str, str, str]:
        """Its line of a table."""
        return self.said, self.true, ", ".join(_link(path) for path in self.shown)


def _link(path: str) -> str:
    name = path.rpartition("/")[2]
    return f"[{name.removesuffix('.md')}]({name})" if path.startswith("docs/") else f"[{name}](../{path})"


def read_audit(method: str, status: str) -> Record:
    """The audit of a method's claim."""
    lines = (records.ROOT / "results" / "audits" / "methods.jsonl").read_text().splitlines()
    found = [json.loads(line) for line in lines]
    return next(one for one in found if (one["method"], one["status"]) == (method, status))


def read_refuted(method: str) -> Record:
    """What hush prints of a claim that was refuted."""
    found = json.loads((records.ROOT / "src" / "hush" / "accounting" / "refuted.json").read_text())
    return next(one for one in found if one["method"] == method)


def list_too_little() -> list[Fault]:
    """Less privacy than was said."""
    claimed, proven = (rounded_up(read_audit("dp-dice", s)["claimed_epsilon"]) for s in ("claimed", "proven"))
    layer = read_refuted("sanitize")
    measured = f"{rounded_up(layer['claimed_epsilon'])}, measured at least {layer['epsilon_lower']:.2f}"
    return [
        Fault(
            "A public benchmark's λ factorisation injects differences of Λ A C⁻¹ Z in the place of C⁻¹Z, at ε = 1. "
            "That λ wins at ε = 1 rests on this.",
            "Its sensitivity is 38.8 at T = 938, where 1 is claimed: ε is about 98. An audit of it "
            "over 16 steps, at a claimed ε of 4, refutes it.",
            (
                "tests/matrix_factorization/test_single_epoch.py",
                "tests/noise/test_correlated.py",
                "tests/audit/test_audit.py",
                "tests/repository/test_published_results.py",
            ),
        ),
        Fault(
            "DiceSGD has DP-SGD's ε with noise σC₁√(1 + 2C₂/C₁).",
            f"What clipping cuts off comes back in later steps. In the audited run {claimed} is claimed, {proven} is "
            "proven, and the audit refutes the trade-off curve that the claim implies.",
            ("docs/audit.md", "tests/clipping/test_error_feedback.py"),
        ),
        Fault(
            "A sanitisation layer has DP-SGD's ε for Poisson batches: 98 % on MNIST at ε = 1.",
            f"The layers before it learn from raw features. Claimed {measured} at 95 %. What is proven for rows that "
            "are released once from frozen layers: 10.00 at σ = 1, 1.56 at σ = 5 (δ = 1e-5).",
            ("docs/sanitize.md", "tests/sanitize/test_privatised.py", "tests/methods/test_sanitized.py"),
        ),
        Fault(
            "A refined Gaussian calibration is sometimes printed with 2ε^(−3/2) in the place of 1/√(2ε).",
            "Too little noise where ε is large: at ε = 20 it gives 21 times the δ = 1e-5 that was asked for.",
            ("tests/textbook/test_gaussian.py", "tests/repository/test_published_results.py"),
        ),
        Fault(
            "The sensitivity of a factorisation over several passes, by trying signs ±1.",
            "Unsound for vectors: 1.9494 where 2.0494 can be reached (3 × 3, unit diagonal, −0.4 elsewhere). hush "
            "takes 2.3238.",
            ("tests/matrix_factorization/test_sensitivity.py",),
        ),
        Fault(
            "dp-accounting 0.6, one example replaced: its PLD doubles the sensitivity and its RDP does not.",
            "Gaussian(2): 4.377 is right, RDP's 2.166 too small. hush writes every event for its adjacency's own "
            "sensitivity.",
            ("tests/accounting/test_accountant.py",),
        ),
    ]


TOO_MUCH = (
    Fault(
        "Table III: ε = 2.65/3.41/5.84/9.92/23.80, by Rényi orders.",
        "Exactly 2.445/3.147/5.413/9.236/22.36 for all nodes, and 2.117/2.720/4.659/7.901/18.86 for those that its "
        "sums read.",
        ("tests/matrix_factorization/test_tree.py",),
    ),
    Fault(
        "Table IV: σ = 0.872 for ε = 3.41 (batch 500 of 54 000, 20 epochs).",
        "0.862 is enough.",
        ("tests/repository/test_published_results.py",),
    ),
    Fault(
        "Table IV: DP-FTRL at the ε = 3.41/5.71/13.14 of DP-SGD, by Rényi orders.",
        "Its printed noise is worth about 3.15/5.30/12.26, so it is compared at a smaller ε than DP-SGD.",
        ("tests/repository/test_published_results.py",),
    ),
    Fault(
        "σ = 322 for 100 steps at ε = 1, δ = 1e-6, by advanced composition.",
        "42.25 is enough.",
        ("docs/building-blocks.md", "tests/textbook/test_composition.py"),
    ),
)


def render_faults() -> list[str]:
    """Both lists."""
    return [
        "## What is wrong in published results",
        "",
        "Less privacy than was said:",
        "",
        *table(HEAD, [fault.cells() for fault in list_too_little()]),
        "Safe, but more noise or a larger ε than need be:",
        "",
        *table(HEAD, [fault.cells() for fault in TOO_MUCH]),
        *wrap(
            "And in no published table is the choice of settings counted in ε, nor is it in those tables here that "
            "choose. It is not small: the best of a fixed grid of 60 runs, each with ε = 1.57, has 16.45 by "
            "composition ([test_selection.py](../tests/accounting/test_selection.py)). [tune](tune.md) has a cheaper "
            "way."
        ),
        "",
    ]
