"""Start the command line: ``python -m lmscaling VERB``."""

import sys

from lmscaling.runtime import forks

if __name__ == "__main__":
    forks.ask(sys.argv[1:])

    from lmscaling.cli import main

    main()
