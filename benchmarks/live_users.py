"""Users of the live routing benchmark: the same chats in the same order for every router. Standard library only.

Each user asks, waits for the whole answer, and asks again. The lengths of the answers are drawn per user and
turn, so that every router is asked the same.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from random import Random
from typing import Any

TOKENS_MIN, TOKENS_MAX = 8, 12
"""Short, so that there are many chats; below 8 tokens a request is no sample."""
FAILURE_PAUSE_S = 0.5

Ask = Callable[[str, int], Awaitable[int]]
"""A prompt and a number of tokens to the number of tokens that came; raises what went wrong."""


@dataclass(frozen=True, slots=True)
class Asked:
    """One chat: when it was asked, in seconds of the run; how long it took; what it brought, 0 if it failed."""

    at_s: float
    seconds: float
    tokens: int


async def run_users(ask: Ask, *, users: int, seconds: float) -> list[Asked]:
    started = time.perf_counter()
    asked: list[Asked] = []

    async def user(number: int) -> None:
        rng = Random(f"user {number}")
        turn = 0
        while (at_s := time.perf_counter() - started) < seconds:
            turn += 1
            tokens = rng.randint(TOKENS_MIN, TOKENS_MAX)
            try:
                got = await ask(f"Write about {100 * number + turn} boats.", tokens)
            except Exception:
                got = 0
                await asyncio.sleep(FAILURE_PAUSE_S)
            asked.append(Asked(at_s, time.perf_counter() - started - at_s, got))

    await asyncio.gather(*(user(number) for number in range(users)))
    return asked


def as_rows(asked: list[Asked]) -> list[dict[str, Any]]:
    return [asdict(one) for one in asked]
