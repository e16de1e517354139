"""Train neural networks on private data, and state truthfully how private the result is.

>>> import hush
>>> plan = hush.make_plan("dp-sgd", examples=60_000, batch_size=256, epochs=20, epsilon=3, lr=1.0, clip=1.0)
>>> plan.guarantee().status
'proven'

`hush.train` trains a model on data; `hush.start` gives a run for a loop of your own. Names are imported when they are
used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hush.accounting.guarantee import Guarantee
    from hush.audit.audit import audit_plan
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
        Refused,
        ReleaseError,
        ResumeError,
        RunStateError,
        UnsupportedModelError,
    )
    from hush.ledger.book import Ledger
    from hush.methods import make_plan
    from hush.noise import Independent
    from hush.optimizers import SGD, Adam, TorchOptim
    from hush.per_example.model_checks import to_group_norm
    from hush.plan import Plan
    from hush.randomness import Secret
    from hush.release.description import Architecture, Description, Inputs
    from hush.release.export import export
    from hush.release.load import Predictions, load
    from hush.release.predict import evaluate, predict
    from hush.release.verify import verify_release as verify
    from hush.run import Run
    from hush.sampling import FixedSize, Partitioned, Poisson, Shuffled
    from hush.training import Execution, TrainingResult, start, train

_HOMES = {
    "accounting.guarantee": ("Guarantee",),
    "audit.audit": ("audit_plan",),
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
        "Refused",
        "ReleaseError",
        "ResumeError",
        "RunStateError",
        "UnsupportedModelError",
    ),
    "ledger.book": ("Ledger",),
    "methods": ("make_plan",),
    "noise": ("Independent",),
    "optimizers": ("SGD", "Adam", "TorchOptim"),
    "per_example.model_checks": ("to_group_norm",),
    "plan": ("Plan",),
    "randomness": ("Secret",),
    "release.description": ("Architecture", "Description", "Inputs"),
    "release.export": ("export",),
    "release.load": ("Predictions", "load"),
    "release.predict": ("evaluate", "predict"),
    "release.verify": ("verify",),
    "run": ("Run",),
    "sampling": ("FixedSize", "Partitioned", "Poisson", "Shuffled"),
    "training": ("Execution", "TrainingResult", "start", "train"),
}
_MODULES = {name: module for module, names in _HOMES.items() for name in names}
_RENAMED = {"verify": "verify_release"}
_PACKAGES = ("accounting", "clipping", "methods", "noise", "optimizers", "sampling", "textbook")

__all__ = [
    "SGD",
    "Adam",
    "Architecture",
    "Batch",
    "BudgetExceededError",
    "ClippedSum",
    "DataError",
    "Description",
    "DistributedError",
    "Execution",
    "FixedSize",
    "FormatError",
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
    "Refused",
    "ReleaseError",
    "ResumeError",
    "Run",
    "RunStateError",
    "Secret",
    "Shuffled",
    "TorchOptim",
    "TrainingResult",
    "UnsupportedModelError",
    "__version__",
    "audit_plan",
    "evaluate",
    "export",
    "init_distributed",
    "load",
    "make_plan",
    "predict",
    "start",
    "to_group_norm",
    "train",
    "verify",
]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from hush._internal.imports import read_own_version

        return read_own_version()
    if name in _MODULES:
        return getattr(import_module(f"hush.{_MODULES[name]}"), _RENAMED.get(name, name))
    if name in _PACKAGES:
        return import_module(f"hush.{name}")
    raise AttributeError(f"module 'hush' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_PACKAGES})
