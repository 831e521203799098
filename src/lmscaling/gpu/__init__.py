"""Half an hour on one GPU: what tells most is measured first, in calls that may end at any moment.

``jobs`` lists the measurements in the order of their value; ``call`` makes as many as there is time
for, and writes each one down as soon as it is known; ``archive`` carries the records elsewhere.
"""

PARTS = ("ceiling", "right", "step", "layer", "decode", "train", "peer")
"""Of what is measured, in order."""
