"""Kinds of datasets, found by file name: ``hub.py`` defines ``class Hub``, for ``kind: hub``.
The contract is ``data.dataset.Dataset``. Planning imports these modules, so they import readers
inside the methods that need them."""
