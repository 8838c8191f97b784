"""The contract, in the caller's own thread."""

from tests.backends.contract import BackendContract


class TestInline(BackendContract):
    options = {"backend": "inline"}
    synchronous = True
