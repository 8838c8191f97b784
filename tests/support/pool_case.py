"""What the parts of the contract share: a pool on the backend under test, and games to play."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mprunner import EnvRunner, EnvRunnerManager, ReplayMemory
from tests.support.tagged import Tag

#: One of each kind: long, one step, cut, both at once, with lives, without an end.
TAGS = [
    Tag(0, 23),
    Tag(1, 1, options={"reuse_buffer": True}),
    Tag(2, 4, "truncated"),
    Tag(3, 7, "both", options={"reuse_buffer": True}),
    Tag(4, 3, lives=3),
    Tag(5, 5, "truncated", lives=3, options={"lives_key": "ale.lives"}),
    Tag(6, 10**9),
]


class PoolCase:
    """A backend under test.

    Attributes:
        options: of the manager, to use the backend.
        synchronous: `step` returns when its steps are done.
        remote: players live in processes of their own.
        thorough: False where the same is proved at a lower price by another class.
    """

    options: dict[str, Any] = {}
    synchronous = False
    remote = False
    thorough = True

    def pool(
        self,
        memory: ReplayMemory,
        players: Sequence[Any],
        predictor: Any = None,
        *,
        staleness: int = 16,
        kind: type[EnvRunner] = EnvRunner,
        **options: Any,
    ) -> EnvRunnerManager:
        """A manager of one runner per player; a list of predictors has one for each."""
        predictors = predictor if isinstance(predictor, list) else [predictor] * len(players)
        runners = [
            kind(player, one, memory, memory.history_len)
            for player, one in zip(players, predictors)
        ]
        return EnvRunnerManager(runners, staleness, **{**self.options, **options})
