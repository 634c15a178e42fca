"""How long an attempt may be without a sign of life, and how it is cut off.

Every wait for the head goes through ``AttemptWatch.wait``, and nothing else does: time in which the client takes
nothing is not the head's silence, and a write to the client is never cut in its middle, so that what counts as
shown has been shown. Nor is time in which the tracker itself stood still (``meshnet_protocol/patience.py``).

    silence for too long           AttemptFailedError, a timeout of the head
    a node of the route is gone    AttemptFailedError, its fault
    the chat's own time is up      NodeLostError: no further attempt
    the tracker stops              ShuttingDownError
"""

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from meshnet_protocol.awake_timeout import AwakeTimeout
from meshnet_protocol.ids import NodeId
from meshnet_protocol.patience import Patience
from meshnet_tracker.errors import AttemptFailedError, NodeLostError, ShuttingDownError
from meshnet_tracker.outcomes import Outcome

T = TypeVar("T")


class AttemptWatch:
    """Of one attempt. Times are the event loop's."""

    def __init__(self, head: NodeId, *, silence_s_max: float, ends_at: float) -> None:
        self._head = head
        self._silence_s_max = silence_s_max
        self._ends_at = ends_at
        self._silence = Patience(silence_s_max, asyncio.get_running_loop().time())
        self._cut: AttemptFailedError | ShuttingDownError | None = None
        self._timeout: AwakeTimeout | None = None

    @property
    def has_slept(self) -> bool:
        """The tracker stood still during the attempt: how it went says nothing about the nodes."""
        return self._silence.has_slept

    async def wait(self, awaitable: Awaitable[T]) -> T:
        """Raises AttemptFailedError, NodeLostError or ShuttingDownError instead, where something ends the wait."""
        self._timeout = AwakeTimeout(self._silence, until=0.0 if self._cut else self._ends_at)
        try:
            async with self._timeout:
                return await awaitable
        except TimeoutError as error:
            raise self._why() from error
        except AttemptFailedError as error:
            # Who could not be heard for so long may have given up on us, and rightly.
            error.is_blameless |= self.has_slept
            raise
        finally:
            self._timeout = None

    def note_life(self) -> None:
        self._silence.renew(asyncio.get_running_loop().time())

    def cut_off(self, why: AttemptFailedError | ShuttingDownError) -> None:
        """End the attempt: at once if it waits for the head, else as soon as it would."""
        self._cut = self._cut or why
        if self._timeout is not None:
            self._timeout.end()

    def _why(self) -> AttemptFailedError | NodeLostError | ShuttingDownError:
        if self._cut is not None:
            return self._cut
        if asyncio.get_running_loop().time() >= self._ends_at:
            return NodeLostError("The chat has taken all the time that a chat may take.", outcome=Outcome.TIMEOUT)
        return AttemptFailedError(
            f"head {self._head} gave no sign of life for {self._silence_s_max:g} s",
            outcome=Outcome.TIMEOUT,
            culprit=self._head,
            wants_probe=True,
        )
