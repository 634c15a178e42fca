"""Wrong keys, signatures and join tokens, counted per address: who sends too many is told to wait, and the owner hears
of it.

A right key is never refused for the guesses of others: many people share an address behind a router, and all of them
behind a reverse proxy. So this cannot keep a lucky guess out; only the length of keys does that. What is saved is
work, what clients with an old key learn is to come back later, and what is won is that somebody notices.
"""

import ipaddress
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from meshnet_tracker.errors import NodeProofError, TooManyGuessesError

GUESSES_MAX = 20
"""Wrong ones that an address may send within a window before it is told to wait for the next one."""
WINDOW_S = 60.0
ADDRESSES_MAX = 10_000
IPV6_NETWORK_BITS = 64
"""What one customer of a provider has: all addresses in it are as good as one."""


class Guesses:
    """``tell`` hears of each address, once a window, that sends too many. Times are seconds of one monotonic clock."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self._windows: dict[str, tuple[float, int]] = {}
        """Since when, and how many. A window is never made longer, so the oldest stands first."""

    def note(self, address: str, now: float) -> int | None:
        """Count a wrong key. None, or for how many seconds its sender should keep away: it was one too many."""
        self._forget_old(now)
        place = _network_of(address)
        since, count = self._windows.get(place, (now, 0))
        self._windows[place] = (since, count + 1)
        if len(self._windows) > ADDRESSES_MAX:
            del self._windows[next(iter(self._windows))]
        if count == GUESSES_MAX:
            self._tell(place)
        return None if count < GUESSES_MAX else math.ceil(since + WINDOW_S - now)

    @contextmanager
    def counting(self, address: str, now: float) -> Iterator[None]:
        """Counts a wrong proof that is found inside. Raises TooManyGuessesError in its place if it was one too many."""
        try:
            yield
        except NodeProofError as error:
            if error.is_guess and (wait_s := self.note(address, now)) is not None:
                raise TooManyGuessesError(wait_s) from error
            raise

    def _forget_old(self, now: float) -> None:
        while self._windows:
            oldest, (since, _) = next(iter(self._windows.items()))
            if now - since < WINDOW_S:
                return
            del self._windows[oldest]


def _network_of(address: str) -> str:
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return address
    if parsed.version == 4:
        return address
    return str(ipaddress.ip_network((parsed, IPV6_NETWORK_BITS), strict=False))
