"""Start the command line: ``python -m lmscaling VERB``."""

if __name__ == "__main__":
    from lmscaling.cli import main

    main()
