"""What attempts spend, noted while they train: a kill loses ten seconds of the account."""

# Hooks of callbacks that know which module they belong to.
# pyright: reportIncompatibleMethodOverride=false

from lightning.pytorch import Trainer

from lmscaling.train.callbacks.between import Between
from lmscaling.train.callbacks.budget import Budget
from lmscaling.train.ledger import Ledger
from lmscaling.train.module import Training


class Beats(Between):
    """Writes into the ledger of a run when an attempt begins, and every few seconds. Only for
    rank 0.

    Args:
        ledger: The ledger.
        budget: The budget of the run, which comes before this callback.
    """

    def __init__(self, ledger: Ledger, budget: Budget) -> None:
        self.ledger, self.budget = ledger, budget

    def on_train_start(self, trainer: Trainer, pl_module: Training) -> None:
        """The attempt begins."""
        self.ledger.write("begin", trainer.global_step, self.budget.seconds)

    def between(self, trainer: Trainer, pl_module: Training) -> None:
        """Note the time that has been spent, if the last entry is old."""
        self.ledger.beat(trainer.global_step, self.budget.seconds)
