"""The contract, in threads."""

from tests.backends.contract import BackendContract


class TestThread(BackendContract):
    options = {"backend": "thread"}
