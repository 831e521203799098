"""What the ranks of a run agree on after each update: rank 0 decides and broadcasts.

Clocks differ between ranks, and ranks that stop at different updates would wait for each other
forever. The message is a few numbers, sent between CPUs, so it does not wait for a device.
"""

from typing import Any

import torch
from torch import distributed


class Agreement:
    """A channel from rank 0 to the other ranks; with one rank it returns what it is given."""

    def __init__(self) -> None:
        self._group: Any = None
        if distributed.is_initialized() and distributed.get_world_size() > 1:
            self._group = distributed.new_group(backend="gloo")

    def broadcast(self, *numbers: float) -> list[float]:
        """The numbers of rank 0, on every rank, as float64; a decision is 0 or 1."""
        if self._group is None:
            return list(numbers)
        message = torch.tensor(numbers, dtype=torch.float64)
        distributed.broadcast(message, src=0, group=self._group)
        return message.tolist()
