"""How large the pieces of a prompt are on their way down a route.

Every hop works on another chunk at the same time, so small chunks fill the pipeline sooner; but each decode has a
cost of its own, whatever it computes (the weights are read once). Of ``n`` rows in chunks of ``c`` on ``h`` hops, each
of which needs ``(f + s c) / h`` for a chunk, the last one is through after ``n / c + h - 1`` of such times. That is
least at ``c = sqrt(n (f / s) / (h - 1))``: the trade between bubbles and overhead of pipelines in micro-batches
(Huang et al., "GPipe", 2019). ``f / s`` is what an engine measures at its start: how many rows cost what a decode
costs by itself.
"""

from math import ceil, sqrt

CHUNK_ROWS_MIN = 16
"""Smaller ones gain nothing: kernels work on blocks of this size, and each chunk is a message on every link."""


def chunk_rows(row_count: int, *, hop_count: int, overhead_rows: float, rows_max: int) -> int:
    """Rows of each chunk but the last, at most ``rows_max``; chunks of a prompt are equally large, give or take one.

    ``overhead_rows`` is a decode's own cost, in rows.
    """
    best = rows_max
    if hop_count > 1:
        best = round(sqrt(row_count * overhead_rows / (hop_count - 1)))
    best = min(max(best, CHUNK_ROWS_MIN), rows_max)
    return ceil(row_count / ceil(row_count / best))
