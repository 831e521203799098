"""Kinds of measurements of the speed study, one per file; ``config/kinds.py`` says what it holds."""
