"""An Atari 2600 game as a player: preprocessing and emulator calls in one short path.

Importing this module needs nothing of the extra ``atari``; making a player does.
"""

from __future__ import annotations

import operator
from typing import Any, cast

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium import spaces
from gymnasium.error import ResetNeeded
from gymnasium.utils import seeding

from mprunner.atari.frames import FrameReducer
from mprunner.atari.games import RESTORABLE, find_rom, import_extra
from mprunner.errors import ClosedError, ConfigurationError

Frame = npt.NDArray[np.uint8]

_NOOP, _FIRE = 0, 1
_FRAMES_PER_SECOND = 60


class AtariPlayer(gymnasium.Env[Frame, int]):
    """An Atari game with the customary preprocessing (Machado et al., 2018).

    The same frames, bit for bit, as ``gymnasium.wrappers.AtariPreprocessing`` over
    ``gymnasium.make("ALE/...-v5", frameskip=1, repeat_action_probability=...)`` gives for the
    same seed and actions, if ``fire_on_reset=False`` (the wrapper never presses fire). Where an
    episode ends in the middle of a step, that includes the wrapper's choice to repeat the
    pooled screen of the step before.

    Runners call a factory: ``EnvRunner(functools.partial(AtariPlayer, "breakout"), ...)``.
    A player itself can not be pickled.

    ALE's log level is one for the whole process; making a player sets it to errors only, as
    ``gymnasium.make("ALE/...")`` does too.

    Args:
        game: a ROM's name ("breakout") or a gymnasium id ("ALE/Breakout-v5",
            "BreakoutNoFrameskip-v4"). An id only names the game; its settings are not taken over.
        frame_skip: emulated frames per step, at least 1; the last two are pooled by their maximum.
        screen_size: height and width of an observation in pixels, at least 1.
        noop_max: a game starts with 1 to `noop_max` frames without action, drawn from the seed;
            0 for none.
        fire_on_reset: after a reset press fire for one step where the game has a fire button, so
            that the ball is in play.
        life_loss_terminates: a lost life ends the episode: ``terminated`` with lives left. The
            next `reset()` then goes on with the same game by one step without action (and fire);
            what is scored in it is added to the reward of the next step.
        max_num_frames: emulated frames after which a game is truncated, at least 1; None for no
            limit. Frames without action at the start count.
        repeat_action_probability: chance that a frame repeats the last action (sticky actions),
            0 to 1.
        full_action_space: every action of the console, also those that the game does not use.
        interpolation: "area", as customary, or "linear", which is faster.
        mode: the game's mode, None for its first one.
        difficulty: the game's difficulty, None for its first one.
        render_mode: "rgb_array" or None.

    Attributes:
        game: the ROM's name.
        action_space: Discrete.
        observation_space: Box ``(screen_size, screen_size)`` uint8.

    Raises:
        ConfigurationError: an argument cannot work, or there is no such game.
        MissingExtraError: ale-py or OpenCV is not installed.
    """

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 15}
    _start_state: Any  # the emulator's after a true reset; None where it is not known or not used

    def __init__(
        self,
        game: str,
        *,
        frame_skip: int = 4,
        screen_size: int = 84,
        noop_max: int = 30,
        fire_on_reset: bool = True,
        life_loss_terminates: bool = False,
        max_num_frames: int | None = 108_000,
        repeat_action_probability: float = 0.0,
        full_action_space: bool = False,
        interpolation: str = "area",
        mode: int | None = None,
        difficulty: int | None = None,
        render_mode: str | None = None,
    ) -> None:
        self._ale: Any = None
        self._ready = False
        _check(repeat_action_probability, max_num_frames, render_mode)
        self._frame_skip = _integer("frame_skip", frame_skip, 1)
        self._noop_max = _integer("noop_max", noop_max, 0)
        screen_size = _integer("screen_size", screen_size, 1)
        ale_py = import_extra("ale_py", "ale-py")
        cv2 = import_extra("cv2", "opencv-python-headless")
        self.game, self._path = find_rom(ale_py, game)

        ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
        self._ale = ale = ale_py.ALEInterface()
        ale.setFloat("repeat_action_probability", float(repeat_action_probability))
        ale.setInt("max_num_frames_per_episode", max_num_frames or 0)
        self._mode, self._difficulty = mode, difficulty
        self._load(None)
        self._act, self._game_over, self._get_lives, self._get_screen = (
            ale.act, ale.game_over, ale.lives, ale.getScreenGrayscale
        )
        self._choose_actions(ale_py.Action.FIRE, fire_on_reset, full_action_space)
        self._restorable = repeat_action_probability == 0 and self._starts_alike()
        self._life_loss_terminates = bool(life_loss_terminates)
        self._lives, self._life_lost, self._carried_reward = 0, False, 0.0
        self._frames = FrameReducer(cv2, ale.getScreenDims(), screen_size, interpolation)
        self._describe(screen_size, render_mode)

    @property
    def ale(self) -> Any:
        """The ``ale_py.ALEInterface``, for what this class does not offer; None once closed."""
        return self._ale

    def get_action_meanings(self) -> list[str]:
        """Names of the actions, in their order ("NOOP", "FIRE", ...)."""
        return list(self._meanings)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Frame, dict[str, Any]]:
        """Begin an episode: a new game, or the same game after a lost life.

        Args:
            seed: at least 0; begins a new game whose randomness, and that of all games after
                it, follows from the seed alone.
            options: not used.

        Returns:
            The observation, and the info that `step` describes, after a seed also with "seeds".

        Raises:
            ClosedError: after `close()`.
        """
        self._check_open()
        super().reset(seed=seed)
        same_game = self._life_lost and seed is None
        self._life_lost = False
        self._carried_reward = 0.0
        self._ready = True
        if same_game:
            seeds: dict[str, Any] = {}
            self._carried_reward, fresh, over = self._advance(_NOOP)
        else:
            seeds, over = self._begin_game(seed), False
            self._frames.begin()
            self._get_screen(self._frames.newest)
            fresh = True
        if self._fire and not over:
            reward, fresh, over = self._advance(_FIRE)
            if same_game:
                self._carried_reward += reward
        if not fresh:
            # A game or a life ended meanwhile. Show it as it is; the next step reports its end.
            self._life_lost = False
            self._frames.begin()
            self._get_screen(self._frames.newest)
        return self._frames.observe(), {**self._info(), **seeds}

    def step(self, action: int) -> tuple[Frame, float, bool, bool, dict[str, Any]]:
        """Do one action for ``frame_skip`` frames.

        Args:
            action: 0 to ``action_space.n - 1``.

        Returns:
            - observation: a new array ``(screen_size, screen_size)`` uint8.
            - reward: score of these frames, unclipped.
            - terminated: the game is over, or a life was lost and ``life_loss_terminates``.
            - truncated: the game reached ``max_num_frames``.
            - info: "lives" (left; 0 if the game is over), "episode_frame_number" (emulated
              frames of this game) and "frame_number" (since the last seed).

        Raises:
            ConfigurationError: there is no such action.
            ClosedError: after `close()`.
            gymnasium.error.ResetNeeded: before the first `reset()`.
        """
        if not self._ready:
            self._check_open()
            raise ResetNeeded("step() before reset(); call reset() first")
        if not 0 <= action < len(self._codes):
            raise ConfigurationError(
                f"action is {action!r:.80}; expected 0 to {len(self._codes) - 1}"
            )
        reward, fresh, over = self._advance(self._codes[action])
        if self._carried_reward:
            reward += self._carried_reward
            self._carried_reward = 0.0
        observation = self._frames.observe(fresh)
        info = self._info()
        if not over:
            return observation, reward, self._life_lost, False, info
        terminated = bool(self._game_over(with_truncation=False))
        if terminated:
            info["lives"] = 0  # whatever the game says: "lives left" would mean that it goes on
        return observation, reward, terminated, bool(self._ale.game_truncated()), info

    def render(self) -> Frame | None:
        """The screen as it is now, ``(height, width, 3)`` uint8; None without a render mode.

        Raises:
            ClosedError: after `close()`.
        """
        self._check_open()
        return self._ale.getScreenRGB() if self.render_mode == "rgb_array" else None

    def close(self) -> None:
        """Free the emulator. Only the first call does anything."""
        self._ready = False
        self._ale = self._start_state = None
        self._act = self._game_over = self._get_lives = self._get_screen = None

    def _starts_alike(self) -> bool:
        """Whether a start may be restored, but for sticky actions, which outlast a restoring."""
        return (
            self.game in RESTORABLE
            and self._mode is None
            and self._difficulty is None
            # Until the first frame after it, the screen is that of the game before.
            and self._noop_max > 0
        )

    def _choose_actions(self, fire: Any, fire_on_reset: bool, full_action_space: bool) -> None:
        minimal = self._ale.getMinimalActionSet()
        actions = self._ale.getLegalActionSet() if full_action_space else minimal
        self._meanings = [action.name for action in actions]
        self._codes = [action.value for action in actions]
        self._fire = bool(fire_on_reset) and fire in minimal

    def _describe(self, screen_size: int, render_mode: str | None) -> None:
        """Fill in what gymnasium wants to know of an environment."""
        fps = max(1, _FRAMES_PER_SECOND // self._frame_skip)
        self.metadata = {**type(self).metadata, "render_fps": fps}
        self.render_mode = render_mode
        self.action_space = cast(spaces.Space[int], spaces.Discrete(len(self._codes)))
        self.observation_space = spaces.Box(0, 255, (screen_size, screen_size), np.uint8)

    def _check_open(self) -> None:
        if self._ale is None:
            raise ClosedError(f"this AtariPlayer ({self.game}) is closed")

    def _advance(self, code: int) -> tuple[float, bool, bool]:
        """Emulate up to ``frame_skip`` frames.

        Returns:
            The reward; whether the frames' end was reached, and with it new screens to pool;
            whether the game is over or truncated.
        """
        act, game_over, frames = self._act, self._game_over, self._frames
        reward = 0.0
        for frames_left in range(self._frame_skip - 1, -1, -1):
            reward += act(code)
            if game_over():
                self._life_lost = False
                return reward, False, True
            if self._life_loss_terminates and self._loses_life():
                return reward, False, False
            if frames_left == 1:
                self._get_screen(frames.older)
        self._get_screen(frames.newest)
        return reward, True, False

    def _loses_life(self) -> bool:
        """Whether the last frame cost a life, and not the last one.

        Some games report no lives for a few frames before they are over (Q*bert); the end of
        the game is then what ends the episode.
        """
        before, self._lives = self._lives, self._get_lives()
        self._life_lost = 0 < self._lives < before
        return self._life_lost

    def _begin_game(self, seed: int | None) -> dict[str, Any]:
        """Start a new game with its frames without action; returns the seeds for the info.

        Draws as ``gymnasium.wrappers.AtariPreprocessing`` does, also where a game ends within
        its first frames.
        """
        seeds = self._restart(seed)
        if self._noop_max:
            for _ in range(self.np_random.integers(1, self._noop_max + 1)):
                self._act(_NOOP)
                if self._game_over():
                    self._start_state = None  # its screen would be missing if this was the last
                    seeds = self._restart(seed)
        self._lives = self._get_lives()
        return seeds

    def _restart(self, seed: int | None) -> dict[str, Any]:
        seeds = {} if seed is None else {"seeds": self._load(seed)}
        ale = self._ale
        before = ale.getFrameNumber()
        if self._start_state is None:
            ale.reset_game()
            self._start_num_frames = ale.getFrameNumber() - before
            if self._restorable:
                self._start_state = ale.cloneState()
        else:
            ale.restoreState(self._start_state)
            self._frames_forgotten += before + self._start_num_frames - ale.getFrameNumber()
        return seeds

    def _load(self, seed: int | None) -> tuple[Any, Any]:
        """Load the ROM, whose randomness is then that of ``ale_py.env.AtariEnv`` for `seed`."""
        numpy_seed, ale_seed = np.random.SeedSequence(seed).generate_state(2)
        if seed is not None:
            self._np_random = seeding.np_random(int(numpy_seed))[0]
        ale = self._ale
        self._start_state = None
        ale.setInt("random_seed", int(ale_seed.astype(np.int32)))
        ale.loadROM(self._path)
        if self._mode is not None:
            _choice("mode", self._mode, ale.getAvailableModes())
            ale.setMode(self._mode)
        if self._difficulty is not None:
            _choice("difficulty", self._difficulty, ale.getAvailableDifficulties())
            ale.setDifficulty(self._difficulty)
        self._start_num_frames = self._frames_forgotten = 0
        return numpy_seed, ale_seed

    def _info(self) -> dict[str, Any]:
        ale = self._ale
        return {
            "lives": ale.lives(),
            "episode_frame_number": ale.getEpisodeFrameNumber(),
            "frame_number": ale.getFrameNumber() + self._frames_forgotten,
        }


def _integer(name: str, value: Any, minimum: int) -> int:
    try:
        number = operator.index(value)
    except TypeError:
        number = minimum - 1
    if isinstance(value, bool) or number < minimum:
        raise ConfigurationError(f"{name} is {value!r:.80}; expected an integer >= {minimum}")
    return number


def _check(probability: Any, max_num_frames: Any, render_mode: Any) -> None:
    if not isinstance(probability, (int, float, np.number)) or not 0 <= probability <= 1:
        raise ConfigurationError(
            f"repeat_action_probability is {probability!r:.80}; expected a number from 0 to 1"
        )
    if max_num_frames is not None:
        _integer("max_num_frames", max_num_frames, 1)
    if render_mode not in (None, "rgb_array"):
        raise ConfigurationError(
            f"render_mode is {render_mode!r:.80}; expected 'rgb_array' or None"
        )


def _choice(name: str, value: Any, choices: list[int]) -> None:
    if value not in choices:
        raise ConfigurationError(
            f"{name} is {value!r:.80}; this game has {', '.join(map(str, choices))}"
        )
