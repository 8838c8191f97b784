"""What a memory is given one by one (`Experience`), and what learners get (`Batch`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from mprunner.errors import MissingExtraError

Array = npt.NDArray[Any]


class Experience(NamedTuple):
    """One step as the thread-based original stores it.

    Attributes:
        state: the observation *before* the action, ``state_shape``.
        action: int.
        reward: float.
        isOver: True if the episode (or a life) ended with this step.
    """

    state: Array
    action: int
    reward: float
    isOver: bool


@dataclass(frozen=True, eq=False)
class Batch:
    """Transitions drawn from a replay memory, as struct of arrays.

    With ``n_step=k`` a transition spans up to ``k`` steps of one episode: ``reward`` is their
    discounted sum, ``next_state`` what was observed after the last of them. Fewer steps are
    used where the episode, or what is stored of it, ends earlier.

    Attributes:
        frames: ``(B, L, *state_shape)``, the memory's dtype, contiguous: the one gather behind
            ``state`` and ``next_state``. ``L`` is ``history_len + 1`` for one step (the two
            stacks share all but one frame), else ``2 * history_len``. Oldest frame first;
            frames from before the episode's start are zero.
        state: ``(B, *state_shape, history_len)``, a view of ``frames``: newest frame last.
        next_state: as ``state``, after the transition. Of a truncated episode it is the true
            final observation.
        action: ``(B,)`` int64.
        reward: ``(B,)`` float32.
        terminated: ``(B,)`` bool: the episode ended by the rules, there is nothing to bootstrap.
        truncated: ``(B,)`` bool: the episode was cut; the bootstrap from ``next_state`` is right.
        discount: ``(B,)`` float32, the factor of the value of ``next_state``: ``discount ** k``
            after ``k`` steps, 0 after a terminal.
        version: ``(B,)`` uint32, of the weights that chose the action; 0 if none were published.
        indices: ``(B,)`` int64, names of the transitions, for
            `ReplayMemory.update_priorities`.
        weights: ``(B,)`` float32 in (0, 1], importance weights; all 1 if sampling is uniform.
    """

    frames: Array
    state: Array
    next_state: Array
    action: Array
    reward: Array
    terminated: Array
    truncated: Array
    discount: Array
    version: Array
    indices: Array
    weights: Array

    def __len__(self) -> int:
        return len(self.action)

    @classmethod
    def empty(
        cls,
        batch_size: int,
        num_frames: int,
        history_len: int,
        state_shape: tuple[int, ...],
        dtype: np.dtype[Any],
    ) -> Batch:
        """Return a batch with room for ``batch_size`` transitions and nothing in it yet."""
        frames = np.empty((batch_size, num_frames, *state_shape), dtype)
        history_last = (0, *range(2, frames.ndim), 1)
        return cls(
            frames=frames,
            state=frames[:, :history_len].transpose(history_last),
            next_state=frames[:, num_frames - history_len :].transpose(history_last),
            action=np.empty(batch_size, np.int64),
            reward=np.empty(batch_size, np.float32),
            terminated=np.empty(batch_size, np.bool_),
            truncated=np.empty(batch_size, np.bool_),
            discount=np.empty(batch_size, np.float32),
            version=np.empty(batch_size, np.uint32),
            indices=np.empty(batch_size, np.int64),
            weights=np.empty(batch_size, np.float32),
        )

    def as_torch(self, device: Any = None, non_blocking: bool = False) -> TorchBatch:
        """Return the batch as tensors, history first as convolutions want it.

        Args:
            device: where the tensors go; the CPU by default, where they share this batch's
                memory.
            non_blocking: do not wait for the copy to the device. The batch must not be
                overwritten (``out=``) before the copy has ended.

        Returns:
            A `TorchBatch`. The frames travel to the device once, in one piece.

        Raises:
            MissingExtraError: torch is not installed.
        """
        try:
            import torch
        except ImportError:
            raise MissingExtraError("Batch.as_torch", "torch", "torch") from None

        def move(array: Array) -> Any:
            tensor = torch.from_numpy(array)
            return tensor if device is None else tensor.to(device, non_blocking=non_blocking)

        frames = move(self.frames)
        history_len = self.state.shape[-1]
        return TorchBatch(
            state=frames[:, :history_len],
            next_state=frames[:, -history_len:],
            action=move(self.action),
            reward=move(self.reward),
            terminated=move(self.terminated),
            truncated=move(self.truncated),
            discount=move(self.discount),
            version=move(self.version.astype(np.int64)),
            indices=self.indices,
            weights=move(self.weights),
        )


class TorchBatch(NamedTuple):
    """A `Batch` as tensors on one device.

    Attributes:
        state, next_state: ``(B, history_len, *state_shape)``, the memory's dtype: history first.
            Both are views of one tensor.
        action, version: ``(B,)`` int64.
        reward, discount, weights: ``(B,)`` float32.
        terminated, truncated: ``(B,)`` bool.
        indices: ``(B,)`` int64, still an array: it goes back to the memory.
    """

    state: Any
    next_state: Any
    action: Any
    reward: Any
    terminated: Any
    truncated: Any
    discount: Any
    version: Any
    indices: Array
    weights: Any
