"""The tree is as drawn, and every error survives a queue."""

from __future__ import annotations

import inspect
import pickle
import re
import signal

import pytest

from mprunner import errors

EXAMPLES = [
    errors.MprunnerError("m"),
    errors.ConfigurationError("c"),
    errors.MissingExtraError("from_torch", "torch", "torch"),
    errors.ClosedError("closed"),
    errors.PlayerError("p"),
    errors.PredictorError("q"),
    errors.NotEnoughRows("n"),
    errors.StorageError("s"),
    errors.ClusterError("gone"),
    errors.WorkerError(3, "w"),
    errors.WorkerRaised(1, "in the player's step()", "KeyError", "'key'", "Traceback ...\n"),
    errors.WorkerDied(2, 4711, -9, "starting", "a stack"),
    errors.WorkerDied(2, None, None, "starting"),
    errors.WorkerStalled(0, 4711, "in the player's reset()", 3.25, "step_timeout is 3 s", ""),
]


def actual_tree():
    """Name -> name of its parent here, of every error in the module."""
    kinds = {
        name: kind
        for name, kind in vars(errors).items()
        if inspect.isclass(kind) and issubclass(kind, Exception)
    }
    return {name: kind.__mro__[1].__name__ for name, kind in kinds.items()}


def drawn_tree():
    """The same from the docstring's drawing."""
    parents, path = {}, []
    for line in errors.__doc__.splitlines():
        found = re.match(r"    ((?:[| ]   )*)(?:[|`]-- )?([A-Z]\w+)(?: |$)", line)
        if found is None:
            continue
        depth = (found.start(2) - 4) // 4
        del path[depth:]
        parents[found[2]] = path[-1] if path else "Exception"
        path.append(found[2])
    return parents


def test_the_tree_is_as_drawn():
    assert drawn_tree() == actual_tree()


def test_configuration_errors_are_value_errors():
    assert issubclass(errors.ConfigurationError, ValueError)
    assert issubclass(errors.MissingExtraError, ImportError)


def test_there_is_an_example_of_each():
    assert {type(error).__name__ for error in EXAMPLES} == set(actual_tree())


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_pickle_round_trip(error, protocol):
    again = pickle.loads(pickle.dumps(error, protocol))
    assert type(again) is type(error)
    assert str(again) == str(error)
    assert again.args == error.args
    assert vars(again) == vars(error)


def test_a_missing_extra_says_how_to_install_it():
    error = errors.MissingExtraError("The Atari player", "ale-py", "atari")
    assert str(error) == "The Atari player needs the package ale-py: pip install 'mprunner[atari]'"


def test_a_worker_that_raised():
    error = errors.WorkerRaised(1, "in the player's step()", "KeyError", "'key'", "the traceback\n")
    assert str(error) == (
        "worker 1 raised KeyError while in the player's step(): 'key'\n\n"
        "Traceback in worker 1:\nthe traceback"
    )
    assert error.worker == 1
    assert error.activity == "in the player's step()"
    assert error.original_type == "KeyError"
    assert error.original_message == "'key'"
    assert error.original_traceback == "the traceback\n"


def test_a_worker_that_died():
    error = errors.WorkerDied(2, 4711, -signal.SIGSEGV, "in the player's step()", "line 1\n")
    assert str(error) == (
        "worker 2 (pid 4711) died of signal SIGSEGV while in the player's step(); "
        "its stack:\nline 1"
    )
    assert (error.worker, error.pid, error.exitcode) == (2, 4711, -signal.SIGSEGV)


def test_a_worker_that_stalled():
    error = errors.WorkerStalled(0, 7, "starting", 3.25, "step_timeout is 3 s", "")
    assert str(error) == (
        "worker 0 (pid 7) has been starting for 3.2 s (step_timeout is 3 s); "
        "its stack:\n(it could not be read)"
    )
    assert (error.worker, error.pid, error.activity, error.seconds) == (0, 7, "starting", 3.25)


@pytest.mark.parametrize(
    "exitcode, words",
    [
        (None, "an unknown cause"),
        (0, "exit code 0"),
        (3, "exit code 3"),
        (-signal.SIGKILL, "signal SIGKILL"),
        (-signal.SIGTERM, "signal SIGTERM"),
        (-200, "signal 200"),
    ],
)
def test_exit_codes_have_names(exitcode, words):
    assert errors.describe_exit(exitcode) == words
