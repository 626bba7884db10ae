"""The entry point of `python -m capsweep`, which is the same as the command `capsweep`."""

import sys

from capsweep.cli.program import main

if __name__ == "__main__":
    sys.exit(main())
