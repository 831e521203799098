"""Row."""
from typing import NamedTuple
class Row(NamedTuple):
    law: str; family: str; fitter: str; quantity: str; bias: float; rmse: float; coverage: float; width: float; studies: int; printed: float = 1.0
