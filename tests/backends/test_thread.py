"""The contract, in threads."""

from tests.backends.contract import AsynchronousContract


class TestThread(AsynchronousContract):
    options = {"backend": "thread"}
