"""Training of one cell: ``cell.json`` and tokens become a log and a record."""
