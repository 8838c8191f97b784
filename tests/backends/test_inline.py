"""The contract, in the caller's own thread; and Ctrl-C, which only there comes between steps."""

import pytest

from mprunner import EnvRunner, EnvRunnerManager
from tests.backends.contract import BackendContract
from tests.support.streams import RecordingMemory, check_joints, check_samples
from tests.support.tagged import TAG_SHAPE
from tests.support.toys import InterruptedPlayer
from tests.support.waiting import HANG_S


class TestInline(BackendContract):
    options = {"backend": "inline"}
    synchronous = True


@pytest.mark.parametrize("where", ["before step", "after step", "before reset", "after reset"])
@pytest.mark.parametrize("num_steps", [1, 4])
def test_one_may_go_on_after_ctrl_c(where, num_steps):
    memory = RecordingMemory(200, TAG_SHAPE, 3, "int32")
    error = KeyboardInterrupt()
    runner = EnvRunner(
        lambda: InterruptedPlayer(0, 5, where=where, error=error), None, memory, 3
    )
    with EnvRunnerManager([runner], 4, backend="inline") as manager:
        for i in range(20):
            try:
                manager.step(1.0, num_steps)
            except KeyboardInterrupt:
                assert error is not None
                error = None
        assert manager.join(HANG_S)
        assert error is None
        stats = manager.stats()
        assert stats.steps_asked == 20 * num_steps == stats.steps_stored + stats.steps_lost
        assert stats.steps_stored == memory.num_steps
        assert stats.outstanding == 0
        assert set(memory.scores) == {5.0}
        check_joints(memory.records[0], 3)
        check_samples(memory)
