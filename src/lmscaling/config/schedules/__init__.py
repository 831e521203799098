"""Schedules of the learning rate: one file a kind, found by its file name.

A file defines ``class Schedule``, a frozen dataclass with the field ``kind``, which has no default
and accepts the file stem only, and the method ``factor`` of the protocol in ``config/schedule.py``.
The stem is then a legal value of ``schedule:`` in a study file.
"""
