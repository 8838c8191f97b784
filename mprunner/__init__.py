"""A pool of simulator processes that fills one replay memory."""

from mprunner._version import __version__

__all__ = ["__version__"]
