"""A synthetic hospital table: 8 000 visits of 4 098 patients, deterministic for a seed.

It has the usual defects: gaps, rare categories, two date formats, free text, a repeated id, stray words among numbers.
About one target in six is positive. Age, sex, smoking and diagnosis belong to the patient, measurements to the visit.
"""

from __future__ import annotations

import csv
from datetime import date, timedelta
from pathlib import Path

import numpy as np

ROWS, PATIENTS = 8_000, 4_098
NAMES = [
    "patient_id",
    "visit_date",
    "birth_date",
    "age",
    "sex",
    "smoker",
    "ward",
    "diagnosis",
    "crp",
    "creatinine",
    "heart_rate",
    "prior_admissions",
    "note",
    "y",
]
SICK = {"I50": 1.1, "J44": 0.7, "N18": 0.9, "Z00": -1.0, "M54": -0.6}
WARDS = ("medicine", "surgery", "outpatient", "emergency", "geriatrics", "palliative")
STRAY = ("pending", "n.m.", "see report", "haemolysed")
PHRASES = (
    "patient feels better since the last visit",
    "reports pain in the left knee when walking",
    "short of breath on the stairs",
    "asked for a letter to the insurance",
    "blood was taken fasting",
    "daughter came along and helped to translate",
    "no complaints at the moment",
    "sleeps badly and wakes up early",
)


def write_patients(path: str | Path, seed: int = 0) -> Path:
    """Write the table to a .csv file; a row's order says nothing of its patient."""
    random = np.random.default_rng(seed)
    people = [_make_person(random, place) for place in range(PATIENTS)]
    visits = np.concatenate([np.arange(PATIENTS), _choose_returning(random)])
    with Path(path).open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(NAMES)
        for place in random.permutation(visits):
            table.writerow(_make_visit(random, people[place]))
    return Path(path)


def _choose_returning(random: np.random.Generator) -> np.ndarray:
    """Who came again: few come often."""
    often = random.gamma(0.7, size=PATIENTS)
    return random.choice(PATIENTS, size=ROWS - PATIENTS, p=often / often.sum())


def _make_person(random: np.random.Generator, place: int) -> dict:
    rare = [f"R{code:02d}" for code in range(60)]
    common = ["I50", "J44", "N18", "Z00", "M54", "E11", "K21"]
    born = date(1930, 1, 1) + timedelta(days=int(random.beta(2.0, 1.6) * 27_000))
    return {
        "patient_id": 100_000 + (place * 7919) % 899_981,
        "born": born,
        "sex": str(random.choice(["f", "m", "x"], p=[0.52, 0.475, 0.005])),
        "smoker": bool(random.random() < 0.27),
        "diagnosis": str(random.choice(common)) if random.random() < 0.85 else str(random.choice(rare)),
    }


def _make_visit(random: np.random.Generator, person: dict) -> list[str]:
    day = date(2016, 1, 1) + timedelta(days=int(random.integers(0, 3_000)))
    age = (day - person["born"]).days / 365.25
    crp, creatinine = float(np.exp(random.normal(1.6, 1.2))), float(np.exp(random.normal(4.4, 0.45)))
    rate, prior = float(random.normal(78, 12)), int(random.poisson(np.exp(random.normal(0.0, 0.8))))
    score = (
        -2.9
        + 0.75 * (np.log(crp) - 1.6)
        + 1.2 * (np.log(creatinine) - 4.4)
        + 0.55 * np.log1p(prior)
        + 0.8 * person["smoker"]
        + 0.02 * (age - 50)
        + 0.3 * (day.month in (12, 1, 2))
        + SICK.get(person["diagnosis"], 0.0)
    )
    y = int(random.random() < 1 / (1 + np.exp(-score)))
    ward = str(random.choice(WARDS, p=[0.4, 0.25, 0.2, 0.1, 0.045, 0.005]))
    note = "; ".join(random.choice(PHRASES, size=int(random.integers(2, 5)), replace=False))
    return [
        str(person["patient_id"]),
        day.isoformat(),
        person["born"].strftime("%d.%m.%Y"),
        _with_gaps(random, f"{age:.0f}", gaps=0.04),
        _with_gaps(random, person["sex"], gaps=0.01),
        _with_gaps(random, "yes" if person["smoker"] else "no", gaps=0.06),
        ward,
        person["diagnosis"],
        _with_gaps(random, f"{crp:.1f}", gaps=0.08, strays=0.01),
        _with_gaps(random, f"{creatinine:.0f}", gaps=0.05, strays=0.005),
        _with_gaps(random, f"{rate:.0f}", gaps=0.02),
        str(prior),
        _with_gaps(random, note, gaps=0.1),
        str(y),
    ]


def _with_gaps(random: np.random.Generator, cell: str, *, gaps: float, strays: float = 0.0) -> str:
    chance = float(random.random())
    if chance < gaps:
        return str(random.choice(["", "NA"]))
    return str(random.choice(STRAY)) if chance < gaps + strays else cell
