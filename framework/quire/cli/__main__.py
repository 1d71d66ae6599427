"""`python -m quire.cli`: the same as `quire`."""

import sys

from quire.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
