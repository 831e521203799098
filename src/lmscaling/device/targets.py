"""What was to be reached on one GPU, set beside what was measured there.

A target is a number with its source and a query that gives what was measured for it. All are for a
GPU of the H100's class, in bfloat16; a roofline counts what must be moved and multiplied, and a
prediction adds an assumed share of it.
"""

from dataclasses import dataclass
from pathlib import Path

import duckdb

from lmscaling.store import build as store

ACCEPTED = "what the design of the kernels was accepted for"
LLM_C = "llm.c on H100 (github.com/karpathy/llm.c, discussions 481 and 677)"


@dataclass(frozen=True, kw_only=True)
class Target:
    """One number to reach."""

    name: str
    unit: str
    value: float
    at_least: bool
    """Whether more is better; else less is."""
    source: str
    query: str
    """SQL over the views of the store: one number, NULL or no row where nothing was measured."""

    def verdict(self, measured: float | None) -> str:
        """Reached, or missed by how much of the target."""
        if measured is None:
            return "not measured"
        share = measured / self.value if self.at_least else self.value / measured
        if share >= 1:
            return "reached"
        return f"missed by {abs(measured / self.value - 1):.0%}"


def _kernel(passes: str) -> str:
    """Median time per token and head of the fused kernels where sequences fill the device, ps."""
    return f"""
        SELECT 1e3 * median(ns_per_token_head) FROM kernel_times
        WHERE kind = 'linear' AND implementation = 'chunked' AND dtype = 'bfloat16'
            AND passes = '{passes}' AND batch > 1
    """


def _ratio(kind: str, aggregate: str) -> str:
    """How many times as long others take, forward and backward, at the same full shapes."""
    return f"""
        SELECT {aggregate}(best / ns_per_token_head) FROM kernel_times ours JOIN (
            SELECT min(ns_per_token_head) AS best, batch, n_head, context, passes, setup
            FROM kernel_times WHERE kind = '{kind}' AND status = 'done' GROUP BY ALL
        ) USING (batch, n_head, context, passes, setup)
        WHERE kind = 'linear' AND implementation = 'chunked' AND status = 'done'
            AND dtype = 'bfloat16' AND passes = 'forward+backward' AND batch > 1 AND context >= 512
    """


def _throughput(size: str, what: str) -> str:
    """The best of softmax's ways at 1,024 tokens."""
    return f"""
        SELECT max({what}) FROM speeds
        WHERE kind = 'time_throughput' AND source = 'measured' AND size = '{size}'
            AND attention = 'softmax' AND context = 1024 AND status = 'done'
    """


def _speed_up(kind: str, size: str, context: int) -> str:
    """How many times as fast as the best of softmax the linear model is."""
    return f"""
        SELECT min(seconds) FILTER (attention = 'softmax')
            / min(seconds) FILTER (attention = 'linear')
        FROM speeds
        WHERE kind = '{kind}' AND source = 'measured' AND size = '{size}'
            AND context = {context} AND batch = 1
    """


TARGETS = (
    Target(
        name="fused linear attention, forward, full device", unit="ps per token, head", value=185,
        at_least=False, source=ACCEPTED, query=_kernel("forward"),
    ),
    Target(
        name="the same, forward and backward", unit="ps per token, head", value=600,
        at_least=False, source=ACCEPTED, query=_kernel("forward+backward"),
    ),
    Target(
        name="one sequence of 131,072 tokens, 12 heads, forward and backward", unit="ms", value=1.2,
        at_least=False, source=ACCEPTED,
        query="""
            SELECT 1e3 * min(median_seconds) FROM kernel_times
            WHERE kind = 'linear' AND implementation = 'chunked' AND dtype = 'bfloat16'
                AND passes = 'forward+backward' AND batch = 1 AND n_head = 12 AND context = 131072
        """,
    ),
    Target(
        name="flash-linear-attention over ours, median", unit="times as long", value=3,
        at_least=True, source=ACCEPTED, query=_ratio("peer", "median"),
    ),
    Target(
        name="best softmax over ours, least from 512 tokens", unit="times as long", value=1,
        at_least=True, source=ACCEPTED, query=_ratio("softmax", "min"),
    ),
    *(
        Target(
            name=f"{size} softmax at 1,024 tokens", unit="tokens per second", value=pace,
            at_least=True, source=LLM_C, query=_throughput(size, "batch * context / seconds"),
        )
        for size, pace in (("124M", 468e3), ("355M", 188e3), ("1558M", 46.8e3))
    ),
    *(
        Target(
            name=f"{size} softmax at 1,024 tokens", unit="% MFU", value=35, at_least=True,
            source="least that a compiled model with flash should reach",
            query=_throughput(size, "100 * mfu"),
        )
        for size in ("355M", "774M", "1558M")
    ),
    Target(
        name="124M step at 65,536 tokens, best softmax over linear", unit="times as long",
        value=6.1, at_least=True, source="prediction: ours at 60 % of the roofline",
        query=_speed_up("time_step", "124M", 65536),
    ),
    Target(
        name="124M token behind 16,384, softmax over linear", unit="times as long", value=3.4,
        at_least=True, source="roofline of weights, cache and state",
        query=_speed_up("time_decode", "124M", 16384),
    ),
    Target(
        name="dq of the fused kernels on a trained model, worst layer", unit="% from float64",
        value=0.5, at_least=False, source="emulated roundings of random numbers",
        query="""
            SELECT 100 * max(dq_error) FROM numerics
            WHERE implementation = 'chunked'
                AND device IN (SELECT device FROM checks WHERE dtype = 'bfloat16')
        """,
    ),
)  # fmt: skip


def measure(db: duckdb.DuckDBPyConnection) -> list[float | None]:
    """What was measured for each target."""
    found = [db.sql(target.query).fetchall() for target in TARGETS]
    return [rows[0][0] if rows else None for rows in found]


def table(exports: Path | None) -> str:
    """Targets and measurements as a table in Markdown; without a store only the targets."""
    measured: list[float | None] = [None] * len(TARGETS)
    said = "Not yet measured on a GPU."
    if exports:
        with store.connect(exports) as db:
            measured = measure(db)
            said = _where(db)
    lines = ["| what | target | measured | verdict |", "| --- | --- | --- | --- |"]
    for target, found in zip(TARGETS, measured, strict=True):
        bound = "at least" if target.at_least else "at most"
        shown = "not yet" if found is None else f"{found:,.3g}" if found < 1e3 else f"{found:,.0f}"
        lines.append(
            f"| {target.name} | {bound} {target.value:,g} {target.unit} | {shown} | "
            f"{target.verdict(found)} |"
        )
    return "\n".join([*lines, "", said])


def _where(db: duckdb.DuckDBPyConnection) -> str:
    """On which device, when and with which versions."""
    rows = db.sql("""
        SELECT setup, any_value(driver_version), left(min(started), 10), left(max(started), 10),
            max(copy_bytes_per_second) / 1e9, max(matmul_flops) / 1e12
        FROM ceilings GROUP BY setup ORDER BY setup
    """).fetchall()
    return "\n".join(
        f"Measured on {setup}{f', driver {driver}' if driver else ''}, {first} to {last}: copy "
        f"{copy:,.3g} GB/s, product {product:,.3g} TFLOP/s."
        for setup, driver, first, last, copy, product in rows
    ) or "Nothing was measured here."  # fmt: skip
