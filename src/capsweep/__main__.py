"""`python -m capsweep` is the `capsweep` command."""

import sys

from capsweep.cli.program import main

if __name__ == "__main__":
    sys.exit(main())
