"""The contract, in processes, by each way to start them."""

import pytest

from tests.backends.contract import AsynchronousContract, StartContract


class TestForkserver(AsynchronousContract):
    options = {"backend": "process", "start_method": "forkserver"}
    remote = True


@pytest.mark.slow  # half a second of imports per worker; the fork server has the same contract
class TestSpawn(StartContract):
    options = {"backend": "process", "start_method": "spawn"}
    remote = True
