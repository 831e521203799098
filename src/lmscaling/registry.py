"""The folder is the registry: a variant, a figure or a claim exists because its file does.

Names are read from file stems without importing anything, so that planning a study never loads
torch or duckdb.
"""

from pathlib import Path

PACKAGE = Path(__file__).parent


def sources(folder: str, helpers: frozenset[str] = frozenset()) -> dict[str, Path]:
    """Source files of ``lmscaling/<folder>/`` by stem, sorted; ``_*`` and ``helpers`` left out."""
    paths = sorted((PACKAGE / folder).glob("*.py"))
    return {p.stem: p for p in paths if not p.stem.startswith("_") and p.stem not in helpers}


def attentions() -> list[str]:
    """Names of the attention variants, which are the legal values of ``axes.attention``."""
    return list(sources("attention"))


def implementations(attention: str) -> list[str]:
    """Names of the ways in which an attention variant can be computed; none if it has one."""
    return list(sources(f"kernels/{attention}"))


def kinds() -> list[str]:
    """Names of the kinds of measurements, which are the sections under ``speed:``."""
    return list(sources("bench/kinds"))


def figures() -> dict[str, Path]:
    """Figure modules by name; the workflow makes each source an input of its figure."""
    return sources("figures")


def claims() -> dict[str, Path]:
    """Modules of the claims of the literature by name."""
    return sources("claims")
