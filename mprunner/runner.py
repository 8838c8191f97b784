"""`EnvRunner`: epsilon-greedy on one player.

Whoever runs it gives it a `BlockWriter` for its rows and, for a served predictor, a way to ask.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from mprunner.activity import Activity, Doing
from mprunner.checks import check_exploration
from mprunner.errors import (
    ClosedError,
    ConfigurationError,
    MprunnerError,
    PlayerError,
    PredictorError,
)
from mprunner.experience import Array
from mprunner.history import History
from mprunner.player import Player, check_player
from mprunner.predictors import LocalPredictor, PredictorFn, read_q
from mprunner.rows import (
    TERMINATED,
    TRUNCATED,
    BlockInfo,
    BlockWriter,
    LocalEmitter,
    Rows,
    block_rows,
)
from mprunner.weights import WeightsBoard, WeightsSource

if TYPE_CHECKING:
    from mprunner.replay.memory import ReplayMemory
    from mprunner.replay.streams import StreamWriter

_DRAWS = 256
# As plain numbers: looking up a member of an enumeration costs more than using it.
_STEP, _RUNNING = int(Doing.STEP), int(Doing.RUNNING)
_PREDICTING, _PREDICTION_WAIT = int(Doing.PREDICTING), int(Doing.PREDICTION_WAIT)


class EnvRunner:
    """Plays one simulator epsilon-greedily and writes what happens as rows.

    Args:
        player: a factory (called without arguments in the process that steps it, once per
            start), or an environment (shipped there by cloudpickle).
        predictor: a callable ``(B, *state_shape, history_len) -> Q (B, num_actions)``, or one
            that returns a sequence beginning with Q; it stays in the parent. A
            `LocalPredictor` runs beside the player instead. None: exploration must be 1.
        memory: where rows go, and whose ``state_shape`` and ``dtype`` observations have.
        history_len: frames per state; must be the memory's.
        seed: of its random actions and of the player; None: the manager's, or fresh entropy.

    Raises:
        ConfigurationError: an argument cannot work.
    """

    def __init__(
        self,
        player: Any,
        predictor: PredictorFn | LocalPredictor | None,
        memory: ReplayMemory,
        history_len: int,
        *,
        seed: int | None = None,
    ) -> None:
        check_player(player)
        if predictor is not None and not callable(predictor) and not isinstance(
            predictor, LocalPredictor
        ):
            raise ConfigurationError(
                f"predictor is {type(predictor).__name__}; expected a callable, a "
                "LocalPredictor or None"
            )
        if history_len != memory.history_len:
            raise ConfigurationError(
                f"history_len is {history_len}; the memory's is {memory.history_len}"
            )
        self.player = player
        self.predictor = predictor
        self.memory: ReplayMemory | None = memory
        self.history_len = int(history_len)
        self.state_shape: tuple[int, ...] = tuple(memory.state_shape)
        self.dtype: np.dtype[Any] = memory.dtype
        self.seed = seed
        self._loop: Loop | None = None
        self._writer: StreamWriter | None = None  # of a runner that is used alone
        self._closed = False

    def __getstate__(self) -> dict[str, Any]:
        # What a worker needs: neither the memory nor a predictor that stays in the parent.
        state = self.__dict__.copy()
        state.update(memory=None, _loop=None, _writer=None)
        if not isinstance(self.predictor, LocalPredictor):
            state["predictor"] = None
        return state

    def act(self, state: Array, exploration: float) -> int:
        """Choose an action; override to act otherwise.

        Args:
            state: ``(*state_shape, history_len)``, newest frame last, zeros before the
                episode's start. A view: copy what you keep.
            exploration: epsilon, in [0, 1].

        Returns:
            An action, from 0 to ``num_actions - 1``.
        """
        action = self._running.draw_action(exploration)
        return int(self.q_values(state).argmax()) if action is None else action

    def q_values(self, state: Array) -> Array:
        """Ask the predictor about one state.

        Args:
            state: ``(*state_shape, history_len)``.

        Returns:
            ``(num_actions,)``.

        Raises:
            ConfigurationError: there is no predictor.
            PredictorError: it failed.
        """
        return self._running.q_values(state[None])[0]  # type: ignore[no-any-return]

    @property
    def rng(self) -> np.random.Generator:
        """The runner's own random numbers, for an `act` that needs some."""
        return self._running.rng

    @property
    def num_actions(self) -> int:
        """Of the running player."""
        return self._running.player.num_actions

    def step(self, exploration: float) -> None:
        """One step, alone: no manager, the row goes straight into the memory.

        Args:
            exploration: epsilon, in [0, 1].

        Raises:
            ConfigurationError: `exploration` is outside [0, 1], or below 1 without a predictor.
            ClosedError: the runner was used alone before, and closed.
            PlayerError, PredictorError: what they returned cannot be used.
        """
        exploration = check_exploration(exploration, self.predictor is not None)
        if self._loop is None:
            if self._closed:
                raise ClosedError("the runner is closed")
            self._open_alone()
        loop = self._running
        loop.refresh()
        try:
            loop.step(exploration)
        except BaseException:
            if loop.break_off() and self._writer is not None:
                self._writer.seal()
            raise
        loop.writer.flush()

    def close(self) -> None:
        """Close the player, and give back the stream of a runner used alone; only once."""
        loop, self._loop = self._loop, None
        self._closed = self._writer is not None
        try:
            if loop is not None:
                loop.close()
        finally:
            if self._writer is not None:
                self._writer.release()

    def open(
        self,
        writer: BlockWriter,
        seed: np.random.SeedSequence,
        *,
        activity: Activity | None = None,
        ask: Callable[[Array], Array] | None = None,
        board: WeightsSource | None = None,
    ) -> Loop:
        """Make the player and begin its first episode; for backends.

        Args:
            writer: takes the rows.
            seed: of this start; the runner's own seed, where it has one, goes first.
            activity: is set to what the runner is doing.
            ask: for a served predictor: states ``(1, ...)`` to checked Q ``(1, num_actions)``.
            board: for a `LocalPredictor`: where its weights are published.
        """
        loop = Loop(self, writer, seed, activity or Activity(), ask, board)
        loop.begin()
        self._loop = loop
        return loop

    def _open_alone(self) -> None:
        memory = self.memory
        assert memory is not None
        stream = self._writer = self._writer or memory.claim_stream()

        def store(rows: Rows, info: BlockInfo) -> None:
            stream.extend(rows, info.scores, info.number)

        emitter = LocalEmitter(
            store, block_rows(self.state_shape, self.dtype), self.state_shape, self.dtype
        )
        seed = np.random.SeedSequence(self.seed)
        board = None
        if isinstance(self.predictor, LocalPredictor):
            layout = self.predictor.layout
            board = WeightsBoard(layout, bytearray(WeightsBoard.size_bytes(layout)))
            board.publish(layout.pack(self.predictor.weights), 0)
        self.open(BlockWriter(emitter), seed, ask=self._ask_directly, board=board)

    def _ask_directly(self, states: Array) -> Array:
        assert callable(self.predictor)
        return read_q(self.predictor(states.copy(order="K")), len(states), self.num_actions)

    @property
    def _running(self) -> Loop:
        if self._loop is None:
            raise MprunnerError("the runner has not begun to play; step() begins it")
        return self._loop


class Loop:
    """A runner at play: its player, history, random numbers and score."""

    def __init__(
        self,
        runner: EnvRunner,
        writer: BlockWriter,
        seed: np.random.SeedSequence,
        activity: Activity,
        ask: Callable[[Array], Array] | None,
        board: WeightsSource | None,
    ) -> None:
        own, player_seed = _seeds(runner.seed, seed)
        self.rng = np.random.default_rng(own)
        self._player_seed = int(player_seed.generate_state(1)[0]) >> 1
        self._draws: list[float] = []
        self._action_draws: list[int] = []
        self._runner = runner
        self._ask = ask
        self._board = board
        self._model: Any = None
        self._version = -1
        self._score = 0.0
        self._broken = False  # a step was begun and is not in the rows as a whole
        self._mark = writer.mark()  # where the rows of that step begin
        # Taken apart from act(), which costs views of a state that a random action needs not.
        self._own_act = _is_overridden(runner, "act") or _is_overridden(runner, "q_values")
        seen = self._own_act or runner.predictor is not None or ask is not None
        self._history = History(runner.history_len, runner.state_shape, runner.dtype, seen)
        self.writer = writer
        self.activity = activity
        activity.begin()
        activity.enter(Doing.FACTORY)
        self.player = Player(runner.player, runner.state_shape, runner.dtype)

    def begin(self) -> None:
        """The first reset, and the first weights."""
        try:
            self._restart(self._player_seed)
            self.refresh()
        except BaseException:
            self.player.close()
            raise

    def step(self, exploration: float) -> None:
        """One step in the player, one row (and a closing one) out."""
        if self._broken:
            self._restart(None)
        activity, history = self.activity, self._history
        action = self._choose(exploration)
        self._mark = self.writer.mark()
        self._broken = True
        activity.enter(_STEP)
        observation, reward, terminated, truncated, game_over = self.player.step(action)
        activity.enter(_RUNNING)
        self._score += reward
        flags = (TERMINATED if terminated else 0) | (TRUNCATED if truncated else 0)
        writer = self.writer
        writer.commit(action, reward, max(self._version, 0), flags)
        if not flags:
            history.push(observation)
            writer.observe(observation, history.age)
            self._broken = False
            return
        writer.close(observation, history.next_age)
        if game_over:
            writer.add_score(self._score)
            self._score = 0.0
        self._mark = writer.mark()  # what a reset does can break off no step
        self._restart(None)

    def break_off(self) -> bool:
        """After an exception, if the runner is to go on: send what is whole.

        Returns:
            True if a step was under way. Then the stream is to be sealed, the score of the game
            is discarded, and the next step begins an episode.
        """
        if not self._broken:
            self.writer.flush()
            return False
        self.writer.cut(self._mark)
        self._score = 0.0
        return True

    def refresh(self) -> None:
        """Take over the newest published weights, if there are newer ones."""
        board = self._board
        if board is None or board.version == self._version:
            return
        self.activity.enter(_PREDICTING)
        if self._model is None:
            assert isinstance(self._runner.predictor, LocalPredictor)
            self._model = self._runner.predictor.factory()
        version, weights = board.read()
        self._model.set_weights(weights)
        self._version = version
        self.activity.enter(_RUNNING)

    def q_values(self, states: Array) -> Array:
        """Checked Q ``(1, num_actions)`` for ``(1, *state_shape, history_len)``."""
        q = self._predicted(states)
        self.activity.enter(_RUNNING)
        return q

    def _predicted(self, states: Array) -> Array:
        """The same; what is done next is for the caller to tell: a step needs no RUNNING."""
        if self._model is not None:
            self.activity.enter(_PREDICTING)
            # A copy, in the order of its frames in memory: a model that writes in its input
            # must not change what the next action is chosen on.
            own = states.copy(order="K")
            return read_q(self._model(own), len(states), self.player.num_actions)
        if self._ask is None:
            raise PredictorError("there is no predictor to ask for Q values")
        self.activity.enter(_PREDICTION_WAIT)
        # In the precision in which an answer reaches another process, so that an act() which
        # computes with it does the same on every backend.
        return np.asarray(self._ask(states), np.float64)

    def draw_action(self, exploration: float) -> int | None:
        """A random action with probability `exploration`, else None.

        Drawn in blocks, since single draws cost ten times as much.
        """
        if not self._draws:
            self._draws = self.rng.random(_DRAWS).tolist()
        if self._draws.pop() >= exploration:
            return None
        if not self._action_draws:
            self._action_draws = self.rng.integers(
                self.player.num_actions, size=_DRAWS
            ).tolist()
        return self._action_draws.pop()

    def close(self) -> None:
        """Close the player, once."""
        self.activity.enter(Doing.CLOSING)
        self.player.close()

    def _choose(self, exploration: float) -> int:
        """As `EnvRunner.act` says, or as who has overridden it says."""
        if self._own_act:
            return self._checked(self._runner.act(self._history.state(), exploration))
        action = self.draw_action(exploration)
        if action is None:
            action = int(self._predicted(self._history.state()[None])[0].argmax())
        return action

    def _checked(self, action: Any) -> int:
        try:
            number = operator.index(action)
        except TypeError:
            number = -1
        if not 0 <= number < self.player.num_actions:
            raise PlayerError(
                f"act() returned {action!r:.80}; expected an action from 0 to "
                f"{self.player.num_actions - 1}"
            )
        return number

    def _restart(self, seed: int | None) -> None:
        self.activity.enter(Doing.RESET)
        observation = self.player.reset(seed)
        self.activity.enter(_RUNNING)
        self._history.restart(observation)
        self.writer.observe(observation, 0)
        self._broken = False


def _is_overridden(runner: EnvRunner, name: str) -> bool:
    """By a subclass, or in this one runner."""
    return getattr(getattr(runner, name), "__func__", None) is not getattr(EnvRunner, name)


def _seeds(
    own: int | None, given: np.random.SeedSequence
) -> list[np.random.SeedSequence]:
    """Two sequences: for the runner and for the player; `own` replaces the manager's entropy."""
    if own is not None:
        given = np.random.SeedSequence(own, spawn_key=given.spawn_key[-1:])
    key = given.spawn_key
    return [np.random.SeedSequence(given.entropy, spawn_key=(*key, i)) for i in range(2)]
