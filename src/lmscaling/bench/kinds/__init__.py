"""Kinds of measurements of the speed study; ``config/kinds.py`` says what their files hold."""
