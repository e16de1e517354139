"""What `hush train --data` reaches on tables with its defaults, beside scikit-learn without privacy and Opacus.

    python benchmarks/tables.py run [--only adult] [--who hush] [--work DIR]  # results/tables/runs.jsonl, each run once
    python benchmarks/tables.py render                                        # docs/tables.md

A run that is in the file is not made again, so the command can be stopped at any time. Adult comes from $HUSH_DATA;
every other table is made here or comes with scikit-learn. A test holds that the page is what the file gives.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import sys
import tempfile
import warnings
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from hush.cli.main import main as run_hush
from hush.tabular.columns import Encoder
from hush.tabular.defaults import choose_numbers
from hush.tabular.problem import from_files
from render_tables import PAGE, RECORDS, render
from table_files import DEVELOPMENT, TABLES, Table

EPSILONS, SEEDS, DELTA = (1.0, 3.0, 8.0), (0, 1, 2), 1e-5
PUBLIC = "public ranges and categories"
WAYS: dict[str, tuple[str, ...]] = {
    "no schema": (),
    "private ranges": ("--private-ranges", "0.1"),
    PUBLIC: ("--public", "ranges+categories"),
}
SAME_FOR_ALL = ("--model", "mlp", "--batch-size", "256", "--lr", "1", "--average", "none")
HIDDEN = 32


@dataclass(frozen=True)
class Job:
    """One run: a table, what trains on it and how, and for private ones ε; the seed fixes weights and noise."""

    table: str
    who: str  # hush, one size for all, logistic regression, boosting, Opacus
    way: str
    epsilon: float | None = None
    seed: int = 0


def list_jobs() -> Iterator[Job]:
    """All runs, those that are reported first."""
    reported = [name for name in TABLES if name not in DEVELOPMENT]
    for name in reported:
        ways = WAYS if name == "adult" else ("no schema",)
        yield from (Job(name, "logistic regression", way) for way in ("no schema", PUBLIC))
        yield Job(name, "boosting", PUBLIC)
        for seed in SEEDS:
            yield from (Job(name, "hush", way, epsilon, seed) for epsilon in EPSILONS for way in ways)
    yield from (Job("adult", "Opacus", "no schema", epsilon, seed) for seed in SEEDS for epsilon in EPSILONS)
    for name in DEVELOPMENT:
        yield Job(name, "logistic regression", "no schema")
        for epsilon in EPSILONS:
            yield from (Job(name, who, "no schema", epsilon) for who in ("hush", "one size for all"))


FAST = "fast"


def make_run(job: Job, work: Path) -> dict[str, Any]:
    """Accuracy and AUC on rows that were not trained on, and what was run."""
    table = TABLES[job.table](work)
    if job.who == "Opacus":
        return train_opacus(table, job.epsilon or 0.0, job.seed)
    if job.epsilon is None:
        return fit_without_privacy(table, job)
    return train_hush(table, job)


def train_hush(table: Table, job: Job) -> dict[str, Any]:
    """The command line, with no flag but those of the way, and the arithmetic of the runs that are in the file."""
    seeds = ("--seed", str(job.seed), "--secret-seed", str(job.seed))
    flags = SAME_FOR_ALL if job.who != "hush" else WAYS[job.way]
    told, said = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(told), contextlib.redirect_stderr(said):
        command = [
            "train",
            *table.flags,
            "--epsilon",
            f"{job.epsilon:g}",
            *seeds,
            *flags,
            "--arithmetic",
            FAST,
            "--json",
        ]
        if run_hush(command) != 0:
            raise RuntimeError(said.getvalue())
    found = json.loads(told.getvalue())
    chosen = [line for line in said.getvalue().splitlines() if line.startswith("chosen for ")]
    kept = ("epsilon", "delta", "unit", "noise_multiplier", "steps", "test_accuracy", "test_auc", "test_log_loss")
    return {name: found[name] for name in kept} | {"chosen": chosen[0] if chosen else "", "arithmetic": FAST}


Numbers = tuple[np.ndarray, np.ndarray]


def read_features(table: Table, *, encoded: bool, public: tuple[str, ...] = ()) -> tuple[Numbers, Numbers]:
    """Features and labels to train and to test on: the encoder's inputs, or the columns' own numbers and codes."""
    found = from_files(
        table.path, target=table.target, unit=table.unit, test=table.test or 0.2, public=(*public, "classes")
    )
    encode = Encoder(found.schema.features) if encoded and found.schema is not None else nn.Identity()
    train, test = ((encode(x).numpy(), y.numpy()) for x, y in (found.train, found.test))
    return train, test


def fit_without_privacy(table: Table, job: Job) -> dict[str, Any]:
    """scikit-learn's logistic regression on the inputs that hush's encoder makes, standardised, or its boosted trees on
    the columns as they are."""
    from sklearn.ensemble import HistGradientBoostingClassifier
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    linear = job.who == "logistic regression"
    public = ("ranges", "categories") if job.way == PUBLIC else ()
    (x, y), (held, labels) = read_features(table, encoded=linear, public=public)
    model = (
        make_pipeline(StandardScaler(), LogisticRegression(max_iter=2000))
        if linear
        else HistGradientBoostingClassifier(random_state=0)
    )
    return measure(model.fit(x, y).predict_proba(held), labels)


def measure(chances: np.ndarray, labels: np.ndarray) -> dict[str, Any]:
    """Accuracy and AUC; of more than two classes the mean of each against the others."""
    from sklearn.metrics import roc_auc_score

    scores = chances[:, 1] if chances.shape[1] == 2 else chances
    area = roc_auc_score(labels, scores, multi_class="ovr")
    return {"test_accuracy": float((chances.argmax(1) == labels).mean()), "test_auc": float(area)}


class Batches(torch.utils.data.TensorDataset):
    """Tensors from which a whole batch is taken at once, so that a comparison does not take hours."""

    def __init__(self, tensors: tuple[torch.Tensor, ...]) -> None:
        super().__init__(*tensors)

    def __getitems__(self, rows: list[int]) -> tuple[torch.Tensor, ...]:
        """These rows, in their order."""
        return tuple(tensor[rows] for tensor in self.tensors)


def train_opacus(table: Table, epsilon: float, seed: int) -> dict[str, Any]:
    """Opacus with its own noise and its own (PRV) accountant, on hush's encoding, model and numbers."""
    from opacus import PrivacyEngine
    from torch.utils.data import DataLoader

    (x, y), (held, labels) = read_features(table, encoded=True)
    numbers = choose_numbers(len(x), epsilon, linear=False)
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(x.shape[1], HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 2))
    rows = DataLoader(Batches((torch.from_numpy(x), torch.from_numpy(y))), numbers.batch_size, collate_fn=tuple)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        engine = PrivacyEngine(accountant="prv")
        private, optimizer, batches = engine.make_private_with_epsilon(
            module=model,
            optimizer=torch.optim.SGD(model.parameters(), lr=numbers.lr),
            data_loader=rows,
            target_epsilon=epsilon,
            target_delta=DELTA,
            epochs=30,
            max_grad_norm=1.0,
        )
        for _ in range(30):
            for features, targets in batches:
                optimizer.zero_grad()
                nn.functional.cross_entropy(private(features), targets).backward()
                optimizer.step()
        spent = engine.get_epsilon(DELTA)
    with torch.no_grad():
        chances = torch.softmax(private(torch.from_numpy(held)), 1).numpy()
    return measure(chances, labels) | {"epsilon": spent, "noise_multiplier": optimizer.noise_multiplier}


def list_done() -> list[dict[str, Any]]:
    """The jobs of the runs in the file."""
    return [json.loads(line)["job"] for line in RECORDS.read_text().splitlines()] if RECORDS.exists() else []


def run_missing(only: str | None, who: str | None, work: Path) -> None:
    """Make the runs that are not in the file yet, and add each as soon as it is finished."""
    RECORDS.parent.mkdir(parents=True, exist_ok=True)
    for job in list_jobs():
        if asdict(job) in list_done() or only not in (None, job.table) or who not in (None, job.who):
            continue
        found = make_run(job, work)
        with RECORDS.open("a") as file:
            file.write(json.dumps({"job": asdict(job), **found}) + "\n")
        print(job, f"{100 * found['test_accuracy']:.2f} % {found['test_auc']:.4f}", flush=True)


def read_arguments() -> argparse.Namespace:
    """What was asked for."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("what", choices=("run", "render"))
    parser.add_argument("--only", choices=tuple(TABLES), help="this table alone")
    parser.add_argument("--who", choices=sorted({job.who for job in list_jobs()}), help="these runs alone")
    parser.add_argument("--work", type=Path, help="where tables are written; a temporary folder by default")
    return parser.parse_args()


if __name__ == "__main__":
    asked = read_arguments()
    torch.set_num_threads(1)
    if asked.what == "render":
        PAGE.write_text(render())
        sys.exit()
    with tempfile.TemporaryDirectory() as temporary:
        run_missing(asked.only, asked.who, asked.work or Path(temporary))
