"""The tables of `tables.py`: those that the defaults were chosen on, and those that they are reported on."""

from __future__ import annotations

import csv
import gzip
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "helpers"))

ADULT = (
    "age workclass fnlwgt education education_num marital_status occupation relationship race sex capital_gain "
    "capital_loss hours_per_week native_country income"
)


@dataclass(frozen=True)
class Table:
    """A file with its target, its unit and its test rows, where it has them."""

    path: Path
    target: str
    unit: str | None = None
    test: Path | None = None

    @property
    def flags(self) -> list[str]:
        """What `hush train` is told of it."""
        flags = ["--data", str(self.path), "--target", self.target]
        flags += [] if self.unit is None else ["--unit", self.unit]
        return flags if self.test is None else [*flags, "--test-data", str(self.test)]


def write_adult(work: Path) -> Table:
    """UCI Adult, its own training and test part, with names and without the spaces and points of its files."""
    for part in ("data", "test"):
        with gzip.open(Path(os.environ["HUSH_DATA"]) / "adult" / f"adult.{part}.gz", "rt") as file:
            lines = [[cell.strip() for cell in line.strip().rstrip(".").split(",")] for line in file]
        _write(work / f"adult-{part}.csv", ADULT.split(), [line for line in lines if len(line) == len(ADULT.split())])
    return Table(work / "adult-data.csv", "income", test=work / "adult-test.csv")


def make_patients(seed: int) -> Callable[[Path], Table]:
    """The made-up patients of the tests."""

    def write(work: Path) -> Table:
        from patients import write_patients

        return Table(write_patients(work / f"patients-{seed}.csv", seed), "y", unit="patient_id")

    return write


def write_cancer(work: Path) -> Table:
    """Breast cancer Wisconsin as it comes with scikit-learn: 569 rows, 30 numbers."""
    from sklearn.datasets import load_breast_cancer

    found = load_breast_cancer()
    return _write_numbers(work / "breast-cancer.csv", found.data, found.target)


def write_digits(work: Path) -> Table:
    """scikit-learn's digits, 64 columns, ten classes, 1 797 rows."""
    from sklearn.datasets import load_digits

    found = load_digits()
    return _write_numbers(work / "digits.csv", found.data, found.target)


def write_clusters(work: Path) -> Table:
    """Two classes in 20 columns of one scale, 5 000 rows."""
    from sklearn.datasets import make_classification

    kind = {"n_informative": 8, "n_redundant": 4, "flip_y": 0.05, "class_sep": 0.8, "random_state": 1}
    return _write_numbers(work / "clusters.csv", *make_classification(5_000, 20, **kind))


def write_scales(work: Path) -> Table:
    """Three classes in 12 columns whose scales differ by up to 10⁵, 20 000 rows."""
    from sklearn.datasets import make_classification

    kind = {"n_informative": 6, "n_redundant": 2, "flip_y": 0.05, "class_sep": 0.9, "random_state": 2}
    x, y = make_classification(20_000, 12, n_classes=3, n_clusters_per_class=2, **kind)
    return _write_numbers(work / "scales.csv", x * np.logspace(-2, 3, 12), y)


def write_regions(work: Path) -> Table:
    """Two numbers and three categories, of which one has 40 values, 20 000 rows."""
    random, rows = np.random.default_rng(5), 20_000
    job, region, sex = (random.integers(0, most, rows) for most in (14, 40, 2))
    income, age = np.exp(random.normal(10, 0.7, rows)), random.uniform(18, 90, rows)
    by_job, by_region = random.normal(0, 0.8, 14), random.normal(0, 0.5, 40)
    score = by_job[job] + by_region[region] + 0.6 * sex + 0.9 * (np.log(income) - 10) / 0.7 - 1.8
    score += 1.2 * np.sin((age - 18) / 72 * np.pi) + 0.5 * sex * (age > 50)
    y = random.random(rows) < 1 / (1 + np.exp(-score))
    cells = zip(income.round(), age.round(1), job, region, sex, y, strict=True)
    lines = [
        [f"{i:.0f}", f"{a}", f"job {j}", f"region {r}", "fm"[s], "yes" if t else "no"] for i, a, j, r, s, t in cells
    ]
    _write(work / "regions.csv", ["income", "age", "job", "region", "sex", "y"], lines)
    return Table(work / "regions.csv", "y")


def _write_numbers(path: Path, x: np.ndarray, y: np.ndarray) -> Table:
    lines = [[*(f"{value:.5g}" for value in row), f"class {label}"] for row, label in zip(x, y, strict=True)]
    _write(path, [*(f"f{i}" for i in range(x.shape[1])), "y"], lines)
    return Table(path, "y")


def _write(path: Path, names: Sequence[str], lines: Sequence[Sequence[str]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(names)
        table.writerows(lines)


TABLES: dict[str, Callable[[Path], Table]] = {
    "patients": make_patients(0),
    "breast cancer": write_cancer,
    "adult": write_adult,
    "patients, another seed": make_patients(1),
    "digits": write_digits,
    "clusters": write_clusters,
    "scales": write_scales,
    "regions": write_regions,
}
DEVELOPMENT = ("patients, another seed", "digits", "clusters", "scales", "regions")
