"""How near an audit of dp-sgd comes to its ε: ``python benchmarks/audits.py`` (it goes on where it was stopped).

Twenty audits at each of ε = 4, 10 and 1, every run of each with a secret of its own. Written down: the Gaussian-fit
estimates, the bounds at 95 % and the verdicts, and of each ε the median estimate, how many bounds were above it (of 20,
at 95 %, chance allows `ALLOWED`) and how many verdicts refuted it (none may).
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from statistics import median
from typing import Any

import typer
from scipy.stats import binom

from hush._internal.storage import write_atomic
from hush.audit.audit import audit_claims, make_audit_plan, make_audit_setup
from hush.audit.bounds import PRINTED

ROOT = Path(__file__).resolve().parents[1]
EPSILONS, AUDITS, DELTA = (4.0, 10.0, 1.0), 20, 1e-5
ALLOWED = int(binom.ppf(0.999, AUDITS, 1 - PRINTED))  # bounds above ε: misses at the 99.9 % quantile of the stated rate


def run_audit(epsilon: float, number: int, runs: int) -> dict[str, Any]:
    """One audit, as plain data."""
    plan = make_audit_plan("dp-sgd", epsilon, DELTA)
    (verdict,) = audit_claims(
        plan, make_audit_setup(plan), runs=runs, seed=1000 * (1 + EPSILONS.index(epsilon)) + number
    ).verdicts
    return {"epsilon": epsilon, "number": number, **verdict.to_json()}


def summarise(audits: Iterable[dict[str, Any]], epsilon: float) -> dict[str, Any]:
    """What the audits at one ε say together."""
    mine = [audit for audit in audits if audit["epsilon"] == epsilon]
    fits = [audit["epsilon_estimate"] for audit in mine]
    return {
        "epsilon": epsilon,
        "audits": len(mine),
        "median_estimate": median(fits),
        "share": median(fits) / epsilon,
        "median_bound": median(audit["epsilon_lower"] for audit in mine),
        "bounds_above": sum(audit["epsilon_lower"] > epsilon for audit in mine),
        "bounds_allowed_above": ALLOWED,
        "refuted": sum(audit["verdict"] == "refuted" for audit in mine),
    }


def main(out: Path = ROOT / "results" / "audits" / "dp-sgd.json", runs: int = 400, audits: int = AUDITS) -> None:
    """Run what is missing, and write everything after each audit."""
    known = json.loads(out.read_text(encoding="utf-8"))["audits"] if out.exists() else []
    done = {(audit["epsilon"], audit["number"]) for audit in known if audit["runs"] == runs}
    found = [audit for audit in known if audit["runs"] == runs]
    for epsilon in EPSILONS:
        for number in range(audits):
            if (epsilon, number) in done:
                continue
            found.append(run_audit(epsilon, number, runs))
            seen = [value for value in EPSILONS if any(audit["epsilon"] == value for audit in found)]
            kept = {"runs": runs, "summary": [summarise(found, value) for value in seen], "audits": found}
            write_atomic(out, (json.dumps(kept, indent=1, allow_nan=False) + "\n").encode())
            typer.echo(f"ε = {epsilon:g}, audit {number + 1} of {audits}: {found[-1]['epsilon_estimate']:.2f}")


if __name__ == "__main__":
    typer.run(main)
