"""Training of one cell: from ``cell.json`` and tokens to a log and a record."""
