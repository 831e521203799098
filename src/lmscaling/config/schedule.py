"""When the learning rate falls."""

BRANCH_AT = 0.8
"""A branch leaves its trunk at this share of its own end, as in warmup-stable-decay schedules with
a decay of a fifth (Haegele et al. 2024, arXiv:2405.18392)."""
