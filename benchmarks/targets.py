"""Performance targets for one GPU, compared with what was measured there.

    python benchmarks/targets.py                            # the targets
    python benchmarks/targets.py results/measured/<device>  # with measurements

All targets are for a GPU of the H100's class, in bfloat16. A roofline counts the bytes that must be
moved and the FLOPs; a prediction assumes that a share of it is reached.
"""

import sys
from pathlib import Path
from typing import NamedTuple

import duckdb

from lmscaling.store import build as store

LLM_C = "llm.c on H100 (github.com/karpathy/llm.c, discussions 481 and 677)"
DESIGN = "design goal of the kernels"


class Target(NamedTuple):
    """A number to reach."""

    name: str
    bound: str
    """``at least`` or ``at most``."""
    value: float
    unit: str
    source: str
    query: str
    """SQL over the views of the store: one number, or NULL or no row if nothing was measured."""

    def verdict(self, measured: float | None) -> str:
        """Whether it is reached, or by which share of the target it is missed."""
        if measured is None:
            return "not measured"
        share = measured / self.value if self.bound == "at least" else self.value / measured
        return "reached" if share >= 1 else f"missed by {abs(measured / self.value - 1):.0%}"


FUSED = "kind = 'linear' AND implementation = 'chunked' AND dtype = 'bfloat16'"
"""Times of the fused kernels in the view ``kernel_times``."""


def _fused_ps(passes: str) -> str:
    """Median time per token and head of batches that fill the device, in picoseconds."""
    return f"""
        SELECT 1e3 * median(ns_per_token_head) FROM kernel_times
        WHERE {FUSED} AND passes = '{passes}' AND batch > 1
    """


def _time_over_fused(kind: str, aggregate: str) -> str:
    """Time of the best kernel of a kind over ours, forward and backward, at the same shapes."""
    return f"""
        SELECT {aggregate}(best / ns_per_token_head) FROM kernel_times ours JOIN (
            SELECT min(ns_per_token_head) AS best, batch, n_head, context, passes, setup
            FROM kernel_times WHERE kind = '{kind}' AND status = 'done' GROUP BY ALL
        ) USING (batch, n_head, context, passes, setup)
        WHERE {FUSED} AND status = 'done' AND passes = 'forward+backward' AND batch > 1
            AND context >= 512
    """


def _softmax_throughput(size: str, expression: str) -> str:
    """The fastest implementation of softmax at 1,024 tokens."""
    return f"""
        SELECT max({expression}) FROM speeds
        WHERE kind = 'time_step' AND batch > 1 AND source = 'measured' AND size = '{size}'
            AND attention = 'softmax' AND context = 1024 AND status = 'done'
    """


def _speed_up(kind: str, size: str, context: int) -> str:
    """Time of the fastest implementation of softmax over the fastest of linear attention."""
    return f"""
        SELECT min(seconds) FILTER (attention = 'softmax')
            / min(seconds) FILTER (attention = 'linear')
        FROM speeds
        WHERE kind = '{kind}' AND source = 'measured' AND size = '{size}'
            AND context = {context} AND batch = 1
    """


SEQUENCE_MS = f"""
    SELECT 1e3 * min(median_seconds) FROM kernel_times
    WHERE {FUSED} AND passes = 'forward+backward' AND batch = 1 AND n_head = 12
        AND context = 131072
"""

TARGETS = tuple(Target(*row) for row in (
    ("fused linear attention, forward, full device", "at most", 185, "ps per token and head",
     DESIGN, _fused_ps("forward")),
    ("the same, forward and backward", "at most", 600, "ps per token and head",
     DESIGN, _fused_ps("forward+backward")),
    ("one sequence of 131,072 tokens, 12 heads, forward and backward", "at most", 1.2, "ms",
     DESIGN, SEQUENCE_MS),
    ("flash-linear-attention against ours, median", "at least", 3, "times as long",
     DESIGN, _time_over_fused("peer", "median")),
    ("fastest softmax against ours, minimum from 512 tokens", "at least", 1, "times as long",
     DESIGN, _time_over_fused("softmax", "min")),
    *((f"{size} softmax at 1,024 tokens", "at least", pace, "tokens per second",
       LLM_C, _softmax_throughput(size, "batch * context / seconds"))
      for size, pace in (("124M", 468e3), ("355M", 188e3), ("1558M", 46.8e3))),
    *((f"{size} softmax at 1,024 tokens", "at least", 35, "% MFU",
       "minimum for a compiled model with flash", _softmax_throughput(size, "100 * mfu"))
      for size in ("355M", "774M", "1558M")),
    ("124M step at 65,536 tokens, fastest softmax against linear", "at least", 6.1,
     "times as long", "prediction: ours at 60 % of the roofline",
     _speed_up("time_step", "124M", 65536)),
    ("124M token after 16,384, softmax against linear", "at least", 3.4, "times as long",
     "roofline of weights, cache and state", _speed_up("time_decode", "124M", 16384)),
))  # fmt: skip


def measure(db: duckdb.DuckDBPyConnection) -> list[float | None]:
    """The measured number for each target; None if there is none."""
    results = [db.sql(target.query).fetchall() for target in TARGETS]
    return [rows[0][0] if rows else None for rows in results]


def table(exports: Path | None) -> str:
    """Targets and measurements as a table in Markdown; without a store only the targets."""
    measured: list[float | None] = [None] * len(TARGETS)
    setups = "Not yet measured on a GPU."
    if exports:
        with store.connect(exports) as db:
            measured, setups = measure(db), _setups(db)
    lines = ["| what | target | measured | verdict |", "| --- | --- | --- | --- |"]
    for target, number in zip(TARGETS, measured, strict=True):
        shown = (
            "not yet" if number is None else f"{number:,.3g}" if number < 1e3 else f"{number:,.0f}"
        )
        lines.append(
            f"| {target.name} | {target.bound} {target.value:,g} {target.unit} | {shown} | "
            f"{target.verdict(number)} |"
        )
    return "\n".join([*lines, "", setups])


def _setups(db: duckdb.DuckDBPyConnection) -> str:
    """Device, versions and dates of the measurements."""
    rows = db.sql("""
        SELECT setup, any_value(driver_version), left(min(started), 10), left(max(started), 10),
            max(copy_bytes_per_second) / 1e9, max(matmul_flops) / 1e12
        FROM ceilings WHERE copy_bytes_per_second > 0 AND matmul_flops > 0
        GROUP BY setup ORDER BY setup
    """).fetchall()
    return "\n".join(
        f"Measured on {setup}{f', driver {driver}' if driver else ''}, {first} to {last}: copy "
        f"{copy:,.3g} GB/s, matrix product {product:,.3g} TFLOP/s."
        for setup, driver, first, last, copy, product in rows
    ) or "Nothing was measured here."  # fmt: skip


if __name__ == "__main__":
    study = Path(sys.argv[1]) if sys.argv[1:] else None
    if study:
        store.build(study)
    print(table(study and study / "store"))
