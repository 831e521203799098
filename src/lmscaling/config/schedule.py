"""The learning rate of every update: a study's schedule after a warm-up, or a branch's decay.

Training asks ``WarmUp`` or ``Decay`` for the rate of each update, from 1, and nothing else. A share
``spent`` of the budget, 0 to 1, was spent before it. ``factor(spent)`` of a schedule is the rate as
a share of the peak rate.
"""

import math
from typing import Annotated, Any, Literal, get_args

from pydantic import BeforeValidator, Field
from pydantic.dataclasses import dataclass

from lmscaling.types import STRICT, Number, Share

BRANCH_AT = 0.8
"""A branch leaves its trunk at this share of its own end, as in warmup-stable-decay schedules with
a decay of a fifth (Haegele et al. 2024, arXiv:2405.18392)."""


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Constant:
    """The peak rate until the budget is spent. Decayed branches start from runs that have it."""

    kind: Literal["constant"]

    def factor(self, spent: float) -> float:
        """The peak rate throughout."""
        return 1.0


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Cosine:
    """Half a period of a cosine, from the peak rate to ``final_share`` of it: Loshchilov and Hutter
    2017 (arXiv:1608.03983), eq. 5, without restarts."""

    kind: Literal["cosine"]
    final_share: Annotated[float, Field(ge=0, le=1), Number] = 0.1
    """Rate at the end of the budget, as a share of the peak rate."""

    def factor(self, spent: float) -> float:
        """1 at the start, ``final_share`` when the budget is spent."""
        fall = (1 - math.cos(math.pi * spent)) / 2
        return 1 - (1 - self.final_share) * fall


@dataclass(frozen=True, kw_only=True, config=STRICT)
class WarmupStableDecay:
    """The peak rate, then a linear decay to zero: Haegele et al. 2024 (arXiv:2405.18392), a linear
    cooldown over a fifth of the run."""

    kind: Literal["warmup_stable_decay"]
    decay_share: Share = 0.2
    """Share of the budget over which the rate decays."""

    def factor(self, spent: float) -> float:
        """1 until the decay begins, 0 when the budget is spent."""
        return min(1.0, (1 - spent) / self.decay_share)


Schedule = Constant | Cosine | WarmupStableDecay
KINDS: dict[str, type[Schedule]] = {
    get_args(kind.__annotations__["kind"])[0]: kind for kind in get_args(Schedule)
}
"""Schedules by the value of ``kind``."""

CONSTANT: Schedule = Constant(kind="constant")
"""The default of a study. No run's hash contains it."""


def _named(value: Any) -> Any:
    """``cosine`` is short for ``{kind: cosine}``."""
    return {"kind": value} if isinstance(value, str) else value


def _accept_name(schema: dict[str, Any]) -> None:
    """Let editors accept the short form, too."""
    schema["oneOf"].append({"enum": list(KINDS)})


AnySchedule = Annotated[
    Schedule,
    Field(discriminator="kind", json_schema_extra=_accept_name),
    BeforeValidator(_named),
]
"""The schedule of a study file: a kind with its fields, or the name of a kind."""


@dataclass(frozen=True)
class WarmUp:
    """The rates of a trunk: a linear rise over the first updates, times the schedule's factor."""

    peak: float
    """Largest rate."""
    updates: int
    """Updates of the rise; 0 is none."""
    schedule: Schedule

    def rate(self, update: int, spent: float) -> float:
        """The rate of an update."""
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
        """The rate of an update; ``spent`` is not used."""
        return self.peak * ((self.end - update) / (self.end - self.start))
