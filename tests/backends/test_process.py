"""The contract, in processes, by each way to start them."""

from tests.backends.contract import AsynchronousContract, StartContract


class TestForkserver(AsynchronousContract):
    options = {"backend": "process", "start_method": "forkserver"}
    remote = True


class TestSpawn(StartContract):
    options = {"backend": "process", "start_method": "spawn"}
    remote = True


class TestFork(StartContract):
    options = {"backend": "process", "start_method": "fork"}
    remote = True
