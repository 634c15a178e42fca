"""How a step's outcome gets from the engine's thread to the event loop that waits for it."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from meshnet_node.engine.session import EngineSession, StepResult
from meshnet_node.errors import NodeError


class LoopAnswer:
    """One hand-over. ``asyncio.wrap_future`` would chain two futures, with a lock and a condition for each step."""

    def __init__(self, session: EngineSession, position: int) -> None:
        """Of a step of ``session`` whose rows begin there."""
        self._session = session
        self._position = position
        self._loop = asyncio.get_running_loop()
        self.future: asyncio.Future[StepResult] = self._loop.create_future()

    def set_result(self, result: StepResult, /) -> None:
        self._tell(self._set_result, result)

    def set_exception(self, error: NodeError, /) -> None:
        self._tell(self._set_exception, error)

    def _tell(self, tell: Callable[[Any], None], outcome: StepResult | NodeError) -> None:
        with suppress(RuntimeError):  # the loop was closed: nobody waits any more
            self._loop.call_soon_threadsafe(tell, outcome)

    def _set_result(self, result: StepResult) -> None:
        self._session.done_position = max(self._session.done_position, self._position + result.row_count)
        if not self.future.done():  # cancelled meanwhile
            self.future.set_result(result)

    def _set_exception(self, error: NodeError) -> None:
        if not self.future.done():
            self.future.set_exception(error)
            self.future.exception()  # whoever waits still gets it; nobody may be waiting any more
