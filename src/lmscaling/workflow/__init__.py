"""What the rules of the workflow ask: which jobs there are, and what each reads and needs."""
