"""Documents that cannot be read: an error, or left out and counted, as the row says."""

from collections import Counter

from lmscaling.errors import UserError

REMEDY = "get the file again from its source, or write on_bad: skip in the dataset's row"


class BadDocuments:
    """Counts the documents of one file that cannot be read.

    Args:
        largest_share: Largest share of the documents that may be left out; 0 for none.
    """

    def __init__(self, largest_share: float) -> None:
        self.largest_share = largest_share
        self.counts: Counter[str] = Counter()
        """Documents that were left out, by reason."""
        self._first = ""

    def add(self, reason: str, sentence: str) -> None:
        """Leave out a document.

        Args:
            reason: Why it cannot be read, in few words.
            sentence: The same as an error, with file and line.

        Raises:
            UserError: None may be left out.
        """
        if not self.largest_share:
            raise UserError(sentence)
        self.counts[reason] += 1
        self._first = self._first or sentence

    def check(self, what: str, n: int) -> None:
        """Compare the number of bad documents with what is allowed.

        Args:
            what: The file.
            n: Number of its documents, bad ones included.

        Raises:
            UserError: More were left out.
        """
        bad = self.counts.total()
        if bad > self.largest_share * n:
            reasons = ", ".join(f"{count:,} {reason}" for reason, count in self.counts.items())
            raise UserError(
                f"{what}: {bad:,} of {n:,} documents cannot be read ({reasons}); allowed: a "
                f"share of {self.largest_share:g}, bad_share: in the dataset's row; the first: "
                f"{self._first}"
            )
