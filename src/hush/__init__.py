"""Train neural networks on private data, and state truthfully how private the result is.

Train a network; ``losses`` gives one loss per example:

>>> import torch, hush
>>> from torch.nn.functional import cross_entropy
>>> x, y, model = torch.rand(200, 4), torch.randint(0, 2, (200,)), torch.nn.Linear(4, 2)
>>> def losses(model, batch):
...     return cross_entropy(model(batch[0]), batch[1], reduction="none")
>>> result = hush.train(model, losses, (x, y), epsilon=3, epochs=2, batch_size=50, lr=1.0)
>>> print(str(result.guarantee).splitlines()[0])
(ε = 3, δ = 1e-5)-differentially private per example (zeroing one example's contribution), proven, on conditions:

Keep your own loop; ``directory=``, ``ledger=`` and ``dataset=`` of `hush.start` keep the run and charge a ledger:

>>> plan = hush.make_plan("dp-sgd", examples=200, batch_size=50, epochs=2, epsilon=3, lr=1.0, clip=1.0)
>>> run = hush.start(plan, torch.nn.Linear(4, 2), losses, (x, y))
>>> for record in run:  # one private step per iteration
...     if record.step % 4 == 0:
...         print(record.step, run.spent.epsilon < 3)
0 True
4 True

Compose the parts (`hush.sampling`, `hush.clipping`, `hush.noise`, `hush.optimizers`); what has no proof is a
`NotProvenError`:

>>> from hush import Plan, clipping, noise, optimizers, sampling
>>> plan = Plan.calibrated(
...     sampler=sampling.CyclicPoisson(examples=6_000, batch_size=100, groups=4, steps=60),
...     query=clipping.ClippedSum(clip=1.0),
...     noise=noise.Banded(bands=4),
...     optimizer=optimizers.chain(optimizers.SGD(lr=1.0, momentum=0.9), optimizers.EMA(0.999)),
...     epsilon=3,
... )

Around a model:

- `load`, `predict`, `evaluate`, `verify`, `export`: what a release is used for
- `Ledger`: what all runs on a dataset cost together, and its budget
- `tune`, `run_bench`, `write_report`, `audit_plan`: what the commands of these names do
- `explain`, `to_group_norm`: which gradient path a model takes; BatchNorm replaced
- `accounting`: ε and δ of privacy events, calibration, trade-off curves
- `init_distributed`: joins the processes of torchrun

Names are imported when they are used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hush.accounting.guarantee import Guarantee
    from hush.audit.audit import audit_plan
    from hush.bench.sweep import BenchResult, run_bench
    from hush.clipping import ClippedSum
    from hush.distributed.group import Batch, Record, init_distributed
    from hush.errors import (
        BudgetExceededError,
        DataError,
        DistributedError,
        FormatError,
        HushError,
        InvalidInputError,
        MissingDependencyError,
        NotProvenError,
        ReleaseError,
        ResumeError,
        RunStateError,
        UnsupportedModelError,
    )
    from hush.ledger.book import Ledger
    from hush.methods import make_plan
    from hush.noise import Independent
    from hush.optimizers import SGD, Adam, TorchOptim
    from hush.per_example.gradients import GradientPath, explain
    from hush.per_example.model_checks import to_group_norm
    from hush.plan import Plan
    from hush.randomness import Secret
    from hush.release.description import Architecture, Description, Inputs
    from hush.release.export import export
    from hush.release.load import Predictions, load
    from hush.release.predict import evaluate, predict
    from hush.release.verify import verify
    from hush.report import WrittenReport, write_report
    from hush.run import Run
    from hush.sampling import FixedSize, Partitioned, Poisson, Shuffled
    from hush.training import Execution, TrainingResult, start, train
    from hush.tuning import TuningResult, tune

_HOMES = {
    "accounting.guarantee": ("Guarantee",),
    "audit.audit": ("audit_plan",),
    "bench.sweep": ("BenchResult", "run_bench"),
    "clipping": ("ClippedSum",),
    "distributed.group": ("Batch", "Record", "init_distributed"),
    "errors": (
        "BudgetExceededError",
        "DataError",
        "DistributedError",
        "FormatError",
        "HushError",
        "InvalidInputError",
        "MissingDependencyError",
        "NotProvenError",
        "ReleaseError",
        "ResumeError",
        "RunStateError",
        "UnsupportedModelError",
    ),
    "ledger.book": ("Ledger",),
    "methods": ("make_plan",),
    "noise": ("Independent",),
    "optimizers": ("SGD", "Adam", "TorchOptim"),
    "per_example.gradients": ("GradientPath", "explain"),
    "per_example.model_checks": ("to_group_norm",),
    "plan": ("Plan",),
    "randomness": ("Secret",),
    "release.description": ("Architecture", "Description", "Inputs"),
    "release.export": ("export",),
    "release.load": ("Predictions", "load"),
    "release.predict": ("evaluate", "predict"),
    "release.verify": ("verify",),
    "report": ("WrittenReport", "write_report"),
    "run": ("Run",),
    "sampling": ("FixedSize", "Partitioned", "Poisson", "Shuffled"),
    "training": ("Execution", "TrainingResult", "start", "train"),
    "tuning": ("TuningResult", "tune"),
}
_MODULES = {name: module for module, names in _HOMES.items() for name in names}
_PACKAGES = ("accounting", "clipping", "methods", "noise", "optimizers", "sampling", "textbook")

__all__ = [
    "SGD",
    "Adam",
    "Architecture",
    "Batch",
    "BenchResult",
    "BudgetExceededError",
    "ClippedSum",
    "DataError",
    "Description",
    "DistributedError",
    "Execution",
    "FixedSize",
    "FormatError",
    "GradientPath",
    "Guarantee",
    "HushError",
    "Independent",
    "Inputs",
    "InvalidInputError",
    "Ledger",
    "MissingDependencyError",
    "NotProvenError",
    "Partitioned",
    "Plan",
    "Poisson",
    "Predictions",
    "Record",
    "ReleaseError",
    "ResumeError",
    "Run",
    "RunStateError",
    "Secret",
    "Shuffled",
    "TorchOptim",
    "TrainingResult",
    "TuningResult",
    "UnsupportedModelError",
    "WrittenReport",
    "__version__",
    "audit_plan",
    "evaluate",
    "explain",
    "export",
    "init_distributed",
    "load",
    "make_plan",
    "predict",
    "run_bench",
    "start",
    "to_group_norm",
    "train",
    "tune",
    "verify",
    "write_report",
]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from hush._internal.imports import read_own_version

        return read_own_version()
    if name in _MODULES:
        return getattr(import_module(f"hush.{_MODULES[name]}"), name)
    if name in _PACKAGES:
        return import_module(f"hush.{name}")
    raise AttributeError(f"module 'hush' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_PACKAGES})
