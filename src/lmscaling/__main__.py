"""Start the command line: ``python -m lmscaling VERB``."""

from lmscaling.cli import main

if __name__ == "__main__":
    main()
