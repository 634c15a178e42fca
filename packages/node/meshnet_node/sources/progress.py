"""How far a download is, as log lines. A terminal gets a bar instead: see the command line."""

import time
from collections.abc import Callable

import structlog

LINE_PERIOD_S = 5.0

log = structlog.get_logger()


def log_progress(what: str) -> Callable[[int, int], None]:
    """A line every few seconds, and one at the end."""
    next_line_at = 0.0

    def report(done: int, total: int) -> None:
        nonlocal next_line_at
        now = time.monotonic()
        if now >= next_line_at or done >= total:
            next_line_at = now + LINE_PERIOD_S
            log.info(what, done_mb=round(done / 1e6, 1), total_mb=round(total / 1e6, 1))

    return report
