"""``python -m cleanfeed``: the command line goes in, the exit code of the command comes out."""

from __future__ import annotations

import sys

from cleanfeed.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
