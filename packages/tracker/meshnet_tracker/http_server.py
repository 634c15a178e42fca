"""The HTTP server under the tracker: uvicorn, with an end that loses nothing.

uvicorn stops listening at once and lets running requests end. The tracker must know of the first; pages' live streams
would never end by themselves; and chats that do not end in time hear why, where uvicorn would only break them.
"""

import asyncio
import math
import socket
from collections.abc import Callable
from types import FrameType

import uvicorn
from starlette.types import ASGIApp

from meshnet_tracker.settings import TrackerSettings

SHUTDOWN_S_MAX = 8
"""For what must still be said when the time of running chats is over."""
LISTEN_BACKLOG = 2048


class HttpServer(uvicorn.Server):
    """One application's server. ``on_stop`` is told as soon as nobody new is let in; ``end_watchers`` ends the live
    streams then, ``end_chats`` the chats that still run after the drain timeout.
    """

    def __init__(
        self,
        app: ASGIApp,
        settings: TrackerSettings,
        *,
        on_stop: Callable[[], None],
        end_watchers: Callable[[], None],
        end_chats: Callable[[], None],
    ) -> None:
        tls = settings.server_tls
        super().__init__(
            uvicorn.Config(
                app,
                loop="uvloop",
                http="httptools",
                ws="none",
                access_log=False,
                log_level="warning",
                server_header=False,
                timeout_graceful_shutdown=math.ceil(settings.drain_timeout_s) + SHUTDOWN_S_MAX,
                ssl_context_factory=None if tls is None else lambda _config, _default: tls,
            )
        )
        self._drain_timeout_s = settings.drain_timeout_s
        self._on_stop, self._end_watchers, self._end_chats = on_stop, end_watchers, end_chats

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._on_stop()
        super().handle_exit(sig, frame)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._end_watchers()
        async with asyncio.TaskGroup() as tasks:
            ending = tasks.create_task(self._end_chats_in_time())
            await super().shutdown(sockets)
            ending.cancel()

    async def _end_chats_in_time(self) -> None:
        await asyncio.sleep(self._drain_timeout_s)
        self._end_chats()


def listen(settings: TrackerSettings) -> socket.socket:
    """A listening socket, so that the port is known, and connections wait, before the server runs.

    Raises OSError if the address is taken.
    """
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((settings.host, settings.port))
        listener.listen(LISTEN_BACKLOG)
    except BaseException:
        listener.close()
        raise
    return listener


def url_of(listener: socket.socket, scheme: str = "http") -> str:
    host, port = listener.getsockname()[:2]
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
