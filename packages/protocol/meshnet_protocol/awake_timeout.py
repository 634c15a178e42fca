"""``asyncio.timeout`` for waiting on others: it counts only time in which this process was awake (``patience.py``).

Here, and not twice, because tracker and node never meet. The one module of this package with an event loop, of which
it wants nothing but a timer.
"""

import asyncio
from types import TracebackType

from meshnet_protocol.patience import Patience


class AwakeTimeout:
    """``async with AwakeTimeout(seconds):`` raises TimeoutError when they are over, as ``asyncio.timeout`` does.

    Given a ``Patience``, it goes on with what is left of that, and may be used again. ``until``, a time of the event
    loop, ends it too, whoever sleeps.
    """

    def __init__(self, patience: float | Patience, *, until: float | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        self.patience = patience if isinstance(patience, Patience) else Patience(patience, self._loop.time())
        self._until = until
        self._timer: asyncio.Handle | None = None
        self._timeout: asyncio.Timeout | None = None

    async def __aenter__(self) -> Patience:
        self.patience.go_on(self._loop.time())
        self._timeout = await asyncio.timeout_at(self._until).__aenter__()
        # On the loop's next turn: what is done at once, as most writes are, pays for no timer.
        self._timer = self._loop.call_soon(self._look)
        return self.patience

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._timer is not None
        assert self._timeout is not None
        self._timer.cancel()
        self.patience.look(self._loop.time())
        timeout, self._timeout = self._timeout, None
        await timeout.__aexit__(kind, error, traceback)

    def end(self) -> None:
        """It is over now, if anybody waits."""
        if self._timeout is not None and not self._timeout.expired():
            self._timeout.reschedule(self._loop.time())

    def _look(self) -> None:
        self.patience.look(self._loop.time())
        if self.patience.is_over:
            self.end()
        else:
            self._timer = self._loop.call_later(self.patience.next_look_s, self._look)
