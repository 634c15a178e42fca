"""``meshnet node`` for the live routing benchmark: SIGUSR1 makes its pretended delay five times as long, SIGUSR2 ends
that.

A machine has one speed, so the benchmark's nodes pretend theirs by ``--layer-delay-ms``. That is fixed for a node's
life; a slow-down in the middle is pretended here, and only here.
"""

import signal
import time
from types import SimpleNamespace

from meshnet_cli.main import main
from meshnet_node.engine import loop

SLOWER = 5.0


def pretend() -> None:
    factor = 1.0

    def set_factor(number: int, _: object) -> None:
        nonlocal factor
        factor = SLOWER if number == signal.SIGUSR1 else 1.0

    for number in (signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, set_factor)
    # The engine sleeps for nothing but its pretended delay.
    loop.time = SimpleNamespace(  # type: ignore[assignment,attr-defined]
        perf_counter=time.perf_counter, sleep=lambda seconds: time.sleep(factor * seconds)
    )


if __name__ == "__main__":
    pretend()
    main()
