"""``python -m mprunner``: the same as the command ``mprunner``."""

import sys

from mprunner.cli import main

if __name__ == "__main__":
    sys.exit(main())
