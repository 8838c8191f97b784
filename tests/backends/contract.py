"""What every backend must do; each inherits it in a test file of its own.

Whole streams are compared, never samples of them: a player tags its observations, a memory
keeps all that it is given, and `tests.support.streams` knows what must have come.
"""

from tests.backends.contract_acting import Acting
from tests.backends.contract_failures import Failures
from tests.backends.contract_pace import Pace, RunAhead
from tests.backends.contract_streams import Streams
from tests.support.pool_case import PoolCase


class BackendContract(Streams, Acting, Pace, Failures):
    """For every backend."""


class AsynchronousContract(BackendContract, RunAhead):
    """For those whose runners run ahead of the caller."""


class StartContract(PoolCase):
    """What could depend on how a process is started, and not only on what it does then."""

    thorough = False

    test_every_kind_of_episode = Streams.test_every_kind_of_episode
    test_dtypes_are_bit_exact = Streams.test_dtypes_are_bit_exact
    test_scores_are_exactly_those_played = Streams.test_scores_are_exactly_those_played
    test_the_original_loop = Streams.test_the_original_loop
    test_an_environment_instead_of_a_factory = Streams.test_an_environment_instead_of_a_factory
    test_a_class_made_in_a_function = Streams.test_a_class_made_in_a_function
    test_local_weights = Acting.test_local_weights_are_the_newest_at_the_next_job
    test_seeds = Acting.test_seeds
    test_step_blocks = RunAhead.test_step_blocks_and_workers_do_only_what_they_are_asked
    test_a_thousand_steps_then_close = Pace.test_a_thousand_steps_then_close
    test_after_close = Pace.test_after_close
    test_context_manager = Pace.test_context_manager
    test_a_player_that_cannot_start = Failures.test_a_player_that_cannot_start
    test_a_player_that_raises = Failures.test_a_player_that_raises
    check_closed = Pace.check_closed
    check_awkward = Failures.check_awkward
