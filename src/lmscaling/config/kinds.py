"""The kinds of measurements as the study file sees them: ``speed:`` has one section per kind.

A kind is a file in ``bench/kinds/`` and is found by being there. It has a docstring, ``SECTION``
(the type of its section), ``sweeps(section, planner)`` and ``measure(sweep, point)``. Only
``measure`` loads torch, so that a study can be planned without it.
"""

from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field
from pydantic.dataclasses import dataclass

from lmscaling import registry
from lmscaling.config.speed import Speed
from lmscaling.config.types import STRICT
from lmscaling.records.schema import meanings

MODULES: dict[str, ModuleType] = {
    kind: import_module(f"lmscaling.bench.kinds.{kind}") for kind in registry.kinds()
}
"""The file of each kind."""

DESCRIPTIONS = {kind: (module.__doc__ or "").split("\n")[0] for kind, module in MODULES.items()}
"""What each kind measures, by the first line of its file."""


def _with_sections() -> Any:
    """``Speed`` with the section of each kind."""
    sections = {
        kind: Annotated[module.SECTION | None, Field(description=DESCRIPTIONS[kind])]
        for kind, module in MODULES.items()
    }
    common = {  # pydantic does not take the strings under the fields of a base class
        name: Annotated[type_, Field(description=meanings(Speed)[name])]
        for name, type_ in Speed.__annotations__.items()
    }
    body = dict.fromkeys(sections, None) | {"__annotations__": common | sections}
    body["__doc__"] = Speed.__doc__
    return dataclass(type("Speed", (Speed,), body), config=STRICT, frozen=True, kw_only=True)


if TYPE_CHECKING:
    SpeedSection = Speed
else:
    SpeedSection = _with_sections()
