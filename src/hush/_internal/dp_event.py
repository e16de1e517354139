"""The events of dp-accounting without its accountants, whose import takes as long as that of torch.

`import dp_accounting.dp_event` runs the package's ``__init__`` first, which imports every accountant and scipy.stats.
Here an empty package stands in for it while the module is imported; the accountants that need the real one import it.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec, module_from_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dp_accounting import dp_event as dp_event


def _import_alone(package: str, module: str) -> Any:
    spec = find_spec(package)
    if package in sys.modules or spec is None:
        return import_module(f"{package}.{module}")
    sys.modules[package] = module_from_spec(spec)  # not executed
    try:
        return import_module(f"{package}.{module}")
    finally:
        del sys.modules[package]


if not TYPE_CHECKING:
    dp_event = _import_alone("dp_accounting", "dp_event")
