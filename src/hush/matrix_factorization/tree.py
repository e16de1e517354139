"""Binary trees of noise: every complete node of a binary tree over the steps is released with independent noise.

A prefix sum adds the nodes of its binary decomposition (Dwork et al. 2010, Chan et al. 2011; DP-FTRL: Kairouz et al.
2021).

The strategy C is tall, a row per node: 1 where the leaf lies under the node. Sensitivity² = S_max, the largest
Σ_nodes (times a batch enters the node)². The noise of a step is the increment of the prefix estimate. Honaker's online
estimate (2015) averages each node with the sum of its children: 1/v_h = 1 + 1/(2 v_{h−1}), v₀ = 1.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from hush._internal.validate import choice, positive_int
from hush.errors import InvalidInputError
from hush.matrix_factorization import sensitivity
from hush.matrix_factorization.dense import Dense, from_gram
from hush.matrix_factorization.sensitivity import Array
from hush.matrix_factorization.strategy import Strategy
from hush.matrix_factorization.workloads import Workload, check_dense

Complete = Literal["none", "all-but-last", "all"]
Estimate = Literal["plain", "honaker"]
Nodes = Literal["complete", "read"]

_EXACT_LIMIT = 1024  # up to this T the separated bound is also computed from X


@dataclass(frozen=True)
class TreeStep:
    """One step of the stream, over a stack of node estimates by level.

    estimate = Σ a·z(row) + Σ b·stack[level]; noise = estimate − Σ stack[level] over the same merged levels. Then the
    merged levels leave the stack and the estimate enters at `level`; if `ends`, the stack is emptied instead.
    """

    rows: tuple[tuple[int, float], ...]
    merged: tuple[tuple[int, float], ...]
    level: int
    ends: bool


@dataclass(frozen=True)
class Tree(Strategy):
    """A tree over all steps, or a new one every `restart` steps.

    `complete` pads trees with empty steps to a power of two, so that a finished tree counts as one node: "none",
    "all-but-last" or "all". `nodes`: "complete" counts every complete node in the sensitivity, as published; "read"
    only those that the plain estimate ever reads (left children and completed roots): tighter, and as sound.
    """

    steps: int
    restart: int | None = None
    complete: Complete = "none"
    estimate: Estimate = "plain"
    nodes: Nodes = "complete"

    def __post_init__(self) -> None:
        positive_int(steps=self.steps)
        if self.restart is not None:
            positive_int(restart=self.restart)
        choice(("none", "all-but-last", "all"), complete=self.complete)
        choice(("plain", "honaker"), estimate=self.estimate)
        choice(("complete", "read"), nodes=self.nodes)
        if self.nodes == "read" and self.estimate != "plain":
            raise InvalidInputError("Honaker's estimate reads every complete node: leave nodes at 'complete'")

    @property
    def bands(self) -> int | None:
        """The length of a tree: steps further apart share no node. None for one tree over all steps."""
        return self.restarts

    @property
    def restarts(self) -> int | None:
        """`restart`, or None for one tree over all steps."""
        return self.restart if self.restart is not None and self.restart < self.steps else None

    def first(self, steps: int) -> Tree:
        """The same noise over its first steps; a tree completed by then stays completed."""
        cut = Tree(steps, self.restart, self.complete, self.estimate, self.nodes)
        if self.complete == "all-but-last" and steps < self.steps and steps % self.leaves == 0:
            return Tree(steps, self.restart, "all", self.estimate, self.nodes)
        if self.complete == "all" and steps < self.steps and steps % self.leaves:
            return Tree(steps, self.restart, "all-but-last", self.estimate, self.nodes)
        return cut

    @property
    def leaves(self) -> int:
        """Steps of one tree."""
        return min(self.restart or self.steps, self.steps)

    @property
    def buffers(self) -> int:
        """The largest number of node estimates held at once while streaming."""
        return self.leaves.bit_length()

    @property
    def draws(self) -> int:
        """Plain: the largest node of every step. Honaker: all nodes."""
        return self.steps if self.estimate == "plain" else self._last_row() + 1

    def step(self, step: int) -> TreeStep:
        """The noise of this step as a combination of fresh rows of Z and the stack."""
        if not 0 <= step < self.steps:
            raise InvalidInputError(f"step must be at least 0 and below {self.steps}, got {step}")
        tree, position = divmod(step, self.leaves)
        size = self._size(tree)
        ends = position + 1 == size
        top = _height(size) if ends and self._completed(tree) else 0
        row = tree * _rows(self.leaves) + 2 * position - position.bit_count()
        node, level, variance = position, 0, 1.0
        rows, merged = [(row, 1.0)], []
        while node % 2 or level < top:
            below = variance
            if node % 2:
                merged.append((level, 1.0))
                below += self._variances[level]
            own, children = self._weights(below)
            rows = [(index, weight * children) for index, weight in rows] + [(row + level + 1, own)]
            merged = [(index, weight * children) for index, weight in merged]
            variance = own if self.estimate == "honaker" else 1.0
            node, level = node // 2, level + 1
        return TreeStep(tuple(pair for pair in rows if pair[1]), tuple(merged), level, ends)

    def column_norms(self) -> Array:
        """√ of the nodes over every leaf."""
        entered = np.zeros(self.steps, dtype=np.int64)
        for _, read in self._levels():
            entered += read
        return np.sqrt(entered)

    def single(self) -> float:
        """√ of the largest number of nodes over one leaf."""
        return float(self.column_norms().max())

    def same_order(self, per_epoch: int) -> float:
        """√S_max = √ of the largest Σ_nodes (times a batch enters the node)²."""
        positive_int(per_epoch=per_epoch)
        batch = np.arange(self.steps) % per_epoch
        total = np.zeros(min(per_epoch, self.steps))
        for node, read in self._levels():
            keys, counts = np.unique(node[read] * per_epoch + batch[read], return_counts=True)
            total += np.bincount(keys % per_epoch, weights=counts.astype(np.float64) ** 2, minlength=len(total))
        return math.sqrt(total.max())

    def separated(self, times: int, apart: int) -> float:
        """Bound level by level: a node over 2^l leaves is entered at most m = ⌈2^l/apart⌉ times, all nodes k times."""
        count = sensitivity.participations(self.steps, times, apart)
        total = 0
        for level, (_, read) in enumerate(self._levels()):
            most = min(count, -(-min(2**level, self.leaves) // apart))
            total += (count // most * most**2 + (count % most) ** 2) * bool(read.any())
        bound = math.sqrt(total)
        return min(bound, sensitivity.separated(self.gram, times, apart)) if self.steps <= _EXACT_LIMIT else bound

    def inverse_norms(self) -> Array:
        """Standard deviation of the noise of every step; it depends only on the merges, so few values are computed."""
        position = np.arange(self.steps) % self.leaves + 1
        merges = np.log2(position & -position).astype(np.int64)
        table = np.array([self._std(2**level - 1) for level in range(int(merges.max()) + 1)])
        result: Array = table[merges]
        for step in {*range(self.leaves - 1, self.steps, self.leaves), self.steps - 1}:
            result[step] = self._std(step)
        return result

    def rmse(self, workload: Workload | None = None) -> float:
        """Root mean square of the noise in the prefix sums (or in another workload, from the map itself)."""
        if workload is not None and workload != Workload(self.steps):
            return float(np.linalg.norm(workload.accumulate(self.noise_map()))) / math.sqrt(self.steps)
        return math.sqrt(float(self.prefix_variances().mean()))

    def prefix_variances(self) -> Array:
        """A prefix is the sum of the nodes on the stack, one for each bit of its length. They cover disjoint steps, so
        their variances add."""
        position = np.arange(self.steps) % self.leaves + 1
        variance: Array = np.zeros(self.steps)
        for level, value in enumerate(self._variances):
            variance += ((position >> level) & 1) * value
        finished = 0.0
        for tree in range(-(-self.steps // self.leaves)):
            start, last = tree * self.leaves, tree * self.leaves + self._size(tree) - 1
            if self._completed(tree):
                variance[last] = self._root_variance(tree)
            variance[start : last + 1] += finished
            finished = variance[last]
        return variance

    def strategy(self) -> Array:
        """C: a row for every row of Z, 1 where the step lies under the node (rows that are not counted are zero)."""
        check_dense(self.steps)
        result = np.zeros((self._last_row() + 1, self.steps))
        for level, (_, read) in enumerate(self._levels()):
            for step in np.flatnonzero(read):
                tree, position = divmod(int(step), self.leaves)
                last = min(((position >> level) + 1) << level, self._size(tree)) - 1
                result[tree * _rows(self.leaves) + 2 * last - last.bit_count() + level, step] = 1.0
        return result

    def noise_map(self) -> Array:
        """M: the noise of every step in rows of Z, by the stream itself."""
        check_dense(self.steps)
        Z = np.eye(self._last_row() + 1)
        stack: dict[int, Array] = {}
        result = np.zeros((self.steps, len(Z)))
        for index in range(self.steps):
            now = self.step(index)
            estimate = sum((a * Z[row] for row, a in now.rows), np.zeros(len(Z)))
            estimate = sum((b * stack[level] for level, b in now.merged), estimate)
            result[index] = estimate - sum((stack.pop(level) for level, _ in now.merged), np.zeros(len(Z)))
            stack = {} if now.ends else {**stack, now.level: estimate}
        return result

    def pseudo_inverse(self) -> Dense:
        """The best use of the same nodes: noise of covariance (CᵀC)⁻¹, from a square lower-triangular C."""
        return from_gram(self.gram)

    def _size(self, tree: int) -> int:
        return min(self.leaves, self.steps - tree * self.leaves)

    def _completed(self, tree: int) -> bool:
        last = (tree + 1) * self.leaves >= self.steps
        return self.complete == "all" or (self.complete == "all-but-last" and not last)

    def _weights(self, below: float) -> tuple[float, float]:
        """Weights of a node's own noise and of its children's sum (of variance `below`) in the node's estimate."""
        if self.estimate == "plain":
            return 1.0, 0.0
        own = 1 / (1 + 1 / below)
        return own, own / below

    @cached_property
    def _variances(self) -> list[float]:
        """Variance of the estimate of a complete node, by level."""
        result = [1.0]
        for _ in range(self.leaves.bit_length()):
            result.append(self._weights(2 * result[-1])[0])
        return result

    def _std(self, step: int) -> float:
        now = self.step(step)
        fresh = sum(a**2 for _, a in now.rows)
        return math.sqrt(fresh + sum((b - 1) ** 2 * self._variances[level] for level, b in now.merged))

    def _root_variance(self, tree: int) -> float:
        now = self.step(tree * self.leaves + self._size(tree) - 1)
        return sum(a**2 for _, a in now.rows) + sum(b**2 * self._variances[level] for level, b in now.merged)

    def _last_row(self) -> int:
        tree, position = divmod(self.steps - 1, self.leaves)
        return tree * _rows(self.leaves) + 2 * position - position.bit_count() + _height(self.leaves)

    def _levels(self) -> Iterator[tuple[NDArray[np.int64], NDArray[np.bool_]]]:
        """For every level: the node above each step, and whether the step enters a node that counts."""
        tree, position = np.divmod(np.arange(self.steps), self.leaves)
        size = np.minimum(self.leaves, self.steps - tree * self.leaves)
        count = -(-self.steps // self.leaves)
        whole_tree = np.array([self._completed(index) for index in range(count)])[tree]
        height = np.array([_height(self._size(index)) for index in range(count)])[tree]
        for level in range(_height(self.leaves) + 1):
            node = position >> level
            end = (node + 1) << level
            read = (end <= size) | (whole_tree & (level <= height))
            if self.nodes == "read":
                replaced = whole_tree & (end >= size)  # the last step of a completed tree reads the root instead
                read &= (node % 2 == 0) & (~replaced | (level == height))
            yield tree * self.leaves + node, read


def _height(leaves: int) -> int:
    """Levels above the leaves of the smallest complete tree that holds them."""
    return (leaves - 1).bit_length()


def _rows(leaves: int) -> int:
    """Rows of Z set aside for one tree: its complete nodes and those that completion adds."""
    return 2 * leaves + _height(leaves)
