"""Parameter groups for any rule: each parameter follows the first rule whose pattern fits its name.

``Grouped((("*.bias", SGD(0.1)), ("*", AdamBC(1e-4, weight_decay=0.01))))`` decays weights and leaves biases alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase

from hush.errors import BadInput
from hush.named import Named, State
from hush.release import Release
from hush.rules.rule import Rule


@dataclass(frozen=True)
class Grouped:
    """Pairs of a pattern (``*`` and ``?`` as in file names) and a rule; every parameter must fit one."""

    groups: tuple[tuple[str, Rule], ...]

    def init(self, params: Named) -> State:
        """One state a group, by its pattern."""
        parts = self._split(params)
        return {pattern: rule.init(parts[pattern]) for pattern, rule in self.groups if parts[pattern]}

    def step(self, params: Named, release: Release, state: State) -> Named:
        """Every group's own step."""
        update: Named = {}
        parts = self._split(params)
        for pattern, rule in self.groups:
            if parts[pattern]:
                gradient = {name: release.gradient[name] for name in parts[pattern]}
                own = Release(release.step, release.values | {"gradient": gradient}, release.std)
                update |= rule.step(parts[pattern], own, state[pattern])
        return {name: update[name] for name in params}

    def _split(self, params: Named) -> dict[str, Named]:
        parts: dict[str, Named] = {pattern: {} for pattern, _ in self.groups}
        if len(parts) < len(self.groups):
            raise BadInput("two parameter groups have the same pattern: give each its own")
        for name, parameter in params.items():
            fits = next((pattern for pattern, _ in self.groups if fnmatchcase(name, pattern)), None)
            if fits is None:
                raise BadInput(f"parameter '{name}' fits no group: end with a group for '*'")
            parts[fits][name] = parameter
        return parts
