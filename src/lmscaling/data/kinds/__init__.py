"""Kinds of datasets: one module each, found by file name.

``hub.py`` defines ``class Hub(Dataset)``, a row of the study file with ``kind: hub``; the contract
is ``config.datasets.Dataset``. Planning imports these modules, so they import readers and network
clients only inside the methods that need them.
"""
