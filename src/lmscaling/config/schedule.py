"""The learning rate of every update: a study's schedule after a warm-up, or a branch's decay.

A study names a kind of schedule, a file of ``config/schedules/``. Training turns it into
``Rates``, which it asks for the rate of each update and nothing else.
"""

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any, Protocol, Union

from pydantic import BeforeValidator, Field

from lmscaling import registry

BRANCH_AT = 0.8
"""A branch leaves its trunk at this share of its own end, as in warmup-stable-decay schedules with
a decay of a fifth (Haegele et al. 2024, arXiv:2405.18392)."""


class Schedule(Protocol):
    """What the ``class Schedule`` of every file in ``config/schedules/`` offers."""

    @property
    def kind(self) -> str:
        """The file stem."""
        ...

    def factor(self, spent: float) -> float:
        """The rate as a share of the peak rate, when a share ``spent`` of the budget, 0 to 1, was
        spent before the update."""
        ...


KINDS: dict[str, Any] = {
    stem: import_module(f"lmscaling.config.schedules.{stem}").Schedule
    for stem in registry.sources("config/schedules")
}
"""Schedules by the value of ``kind``."""

CONSTANT: Schedule = KINDS["constant"](kind="constant")
"""The default of a study. No run's hash contains it."""


def _named(value: Any) -> Any:
    """``cosine`` is short for ``{kind: cosine}``."""
    return {"kind": value} if isinstance(value, str) else value


def _accept_name(schema: dict[str, Any]) -> None:
    """Let editors accept the short form, too."""
    schema["oneOf"].append({"enum": list(KINDS)})


if TYPE_CHECKING:
    AnySchedule = Schedule
else:
    AnySchedule = Annotated[
        Union[tuple(KINDS.values())],  # noqa: UP007  the kinds are known at run time only
        Field(discriminator="kind", json_schema_extra=_accept_name),
        BeforeValidator(_named),
    ]
"""The schedule of a study file: a kind with its fields, or the name of a kind."""


class Rates(Protocol):
    """The learning rates of one run."""

    def rate(self, update: int, spent: float) -> float:
        """The rate of an update.

        Args:
            update: Number of the update, from 1.
            spent: Share of the budget, 0 to 1, that was spent before it.
        """
        ...


@dataclass(frozen=True)
class WarmUp:
    """The rates of a trunk: a linear rise over the first updates, times the schedule's factor."""

    peak: float
    """Largest rate."""
    updates: int
    """Updates of the rise; 0 is none."""
    schedule: Schedule

    def rate(self, update: int, spent: float) -> float:
        """See ``Rates.rate``."""
        return self.peak * min(1.0, update / max(1, self.updates)) * self.schedule.factor(spent)


@dataclass(frozen=True)
class Decay:
    """The rates of a branch: a linear fall from the trunk's rate to zero at the last update.

    The rate depends on updates only. One that followed the clock would end above zero.
    """

    peak: float
    """Rate of the trunk's last update."""
    start: int
    """The trunk's last update."""
    end: int
    """The branch's last update, whose rate is zero."""

    def rate(self, update: int, spent: float) -> float:
        """See ``Rates.rate``; ``spent`` is not used."""
        return self.peak * ((self.end - update) / (self.end - self.start))
