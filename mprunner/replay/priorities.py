"""Prioritised sampling, proportional: Schaul et al., "Prioritized Experience Replay", 2016.

The caller holds the memory's lock.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from mprunner.errors import ConfigurationError
from mprunner.experience import Array
from mprunner.replay.index import TransitionIndex
from mprunner.replay.rings import Rings
from mprunner.replay.sampling import Picked, check_enough, located
from mprunner.rows import CLOSING

_FAN_OUT = 16
#: So many sums are searched in one piece.
_MOST_AT_TOP = 4096
#: More updates than these are worth a sort, to make each sum once.
_MANY = 1024


@dataclass(frozen=True)
class Priority:
    """How a memory prioritises; the names are those of the paper.

    Attributes:
        alpha: in [0, 1]: a transition of priority ``p`` is drawn in proportion to
            ``(p + epsilon) ** alpha``; 0 is uniform.
        beta: in [0, 1]: how far the importance weights make up for it, 1 fully; `sample_batch`
            can be given another one.
        epsilon: positive; keeps transitions of priority 0 in play.
    """

    alpha: float = 0.6
    beta: float = 0.4
    epsilon: float = 1e-6

    def __post_init__(self) -> None:
        if not 0 <= self.alpha <= 1:
            raise ConfigurationError(f"alpha is {self.alpha!r}; expected a number in [0, 1]")
        if not 0 < self.epsilon < float("inf"):
            raise ConfigurationError(f"epsilon is {self.epsilon!r}; expected a positive number")
        checked_beta(self.beta)


def checked_beta(beta: float) -> float:
    """Return ``beta`` if it is in [0, 1].

    Raises:
        ConfigurationError: it is not.
    """
    if not 0 <= beta <= 1:
        raise ConfigurationError(f"beta is {beta!r}; expected a number in [0, 1]")
    return beta


class SumTree:
    """Weights of slots, and sums over 16 of them, over 16 of those, and so on.

    Sums are always made anew from what they sum, so no rounding piles up.
    """

    def __init__(self, size: int) -> None:
        self._levels: list[Array] = []
        while True:
            padded = -(-size // _FAN_OUT) * _FAN_OUT
            self._levels.append(np.zeros(padded))
            size = padded // _FAN_OUT
            if size <= _MOST_AT_TOP:
                break
        self._top = np.zeros(size)

    @property
    def nbytes(self) -> int:
        """Bytes of the tree."""
        return int(sum(level.nbytes for level in self._levels) + self._top.nbytes)

    def get(self, slots: Array) -> Array:
        """Return the weights of slots, ``(N,)`` float64."""
        weights: Array = self._levels[0][slots]
        return weights

    def set(self, slots: Array, weights: Array | float) -> None:
        """Give slots new weights; of a slot that comes twice the last one counts."""
        self._levels[0][slots] = weights
        nodes = slots
        for level, above in zip(self._levels, [*self._levels[1:], self._top]):
            nodes = nodes // _FAN_OUT
            if len(nodes) > _MANY:
                nodes = np.unique(nodes)
            above[nodes] = level.reshape(-1, _FAN_OUT).take(nodes, axis=0).sum(axis=1)

    def find(self, shares: Array) -> Array:
        """Find slots in proportion to their weights.

        Args:
            shares: ``(N,)`` float64 in [0, 1), of the total weight, which is not 0.

        Returns:
            ``(N,)`` int64: for each share the slot whose weight it falls on; never one of
            weight 0.
        """
        bounds = np.cumsum(self._top)
        rest = np.minimum(shares * bounds[-1], np.nextafter(bounds[-1], 0))
        node: Array = bounds.searchsorted(rest, side="right")
        rest = rest - (bounds - self._top).take(node)
        each = np.arange(len(node))
        for level in reversed(self._levels):
            weights = level.reshape(-1, _FAN_OUT).take(node, axis=0)
            bounds = np.cumsum(weights, axis=1)
            # Sums are rounded: what is left may lie a little outside of the node.
            rest = np.maximum(np.minimum(rest, np.nextafter(bounds[:, -1], 0)), 0)
            child = (bounds > rest[:, None]).argmax(axis=1)
            rest -= bounds[each, child] - weights[each, child]
            node = node * _FAN_OUT + child
        return node


class PriorityPicker:
    """Draws transitions in proportion to their priorities, one from each equal share.

    A transition enters with the largest priority that was ever given; one that can no longer
    be sampled has weight 0. Both happen when the index takes in new rows.

    Args:
        config: how to prioritise.
        rings: the memory's.
        meta: ``(max_size,)`` records of dtype `ROW`.
        index: of the same rings; it must have seen no rows yet.
        history_len: frames in a stack.
        rng: draws.
        previous: of the same slots with other rings, or records; its priorities are kept.
    """

    def __init__(
        self,
        config: Priority,
        rings: Rings,
        meta: Array,
        index: TransitionIndex,
        history_len: int,
        rng: np.random.Generator,
        previous: PriorityPicker | None = None,
    ) -> None:
        self._config = config
        self._rings = rings
        self._flags = meta["flags"]
        self._meta = meta
        self._index = index
        self._rng = rng
        self._window = np.arange(history_len - 1)
        self._tree = SumTree(rings.max_size)
        self._top = 1.0
        if previous is not None:
            self._keep(previous)
        index.on_rows = self._take_in

    @property
    def nbytes(self) -> int:
        """Bytes of the priorities."""
        return self._tree.nbytes

    def _keep(self, previous: PriorityPicker) -> None:
        # Both indices take in their rows first: what is a row now has its priority already.
        previous._index.update()
        self._index.update()
        self._top = previous._top
        every = np.arange(self._rings.max_size)
        self._tree.set(every, np.where(self._flags < CLOSING, previous._tree.get(every), 0))

    def _take_in(self, dirty: Array) -> None:
        _, slot, _ = self._index.unseen(dirty)
        weights = np.where(self._flags[slot] < CLOSING, self._weight(self._top), 0.0)
        end, cap = self._rings.ends[dirty], self._rings.caps[dirty]
        row = np.maximum(end - cap, 0)[:, None] + self._window
        gone = (row % cap[:, None] + self._rings.offsets[dirty][:, None])[
            row < self._index.first_rows(dirty)[:, None]
        ]
        self._tree.set(
            np.concatenate([slot, gone]), np.concatenate([weights, np.zeros(len(gone))])
        )

    def _weight(self, priority: Any) -> Any:
        return (priority + self._config.epsilon) ** self._config.alpha

    def pick(self, num: int, beta: float | None) -> Picked:
        """Draw ``num`` transitions, with replacement.

        Raises:
            NotEnoughRows: fewer than ``num`` transitions can be sampled.
            ConfigurationError: ``beta`` is not in [0, 1].
        """
        beta = self._config.beta if beta is None else checked_beta(beta)
        check_enough(num, self._index.count())
        slots = self._tree.find((np.arange(num) + self._rng.random(num)) / num)
        weights = self._tree.get(slots)
        weights = (weights / weights.min()) ** -beta
        stream, row = self._rings.rows_of_slots(slots)
        return located(self._rings, self._meta, stream, row, weights)

    def update(self, names: Array, priorities: Array) -> None:
        """Give transitions new priorities; see `ReplayMemory.update_priorities`."""
        names = np.asarray(names)
        priorities = np.asarray(priorities, np.float64)
        if names.ndim != 1 or names.shape != priorities.shape or names.dtype.kind not in "iu":
            raise ConfigurationError(
                f"indices and priorities have shapes {names.shape} and {priorities.shape} and "
                f"indices dtype {names.dtype}; expected (N,) both, and integers"
            )
        # Finite, and so small that a sum of them is.
        if not (np.isfinite(priorities) & (priorities >= 0) & (priorities < 1e200)).all():
            raise ConfigurationError(
                f"priorities are {priorities}; expected finite numbers that are not negative"
            )
        self._index.update()
        slots, kept = self._rings.rows_of_names(names.astype(np.int64))
        # What lies behind the write head by now stays at 0.
        alive = self._tree.get(slots) > 0
        if alive.any():
            self._top = max(self._top, float(priorities[kept[alive]].max()))
            self._tree.set(slots[alive], self._weight(priorities[kept[alive]]))
