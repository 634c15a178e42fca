"""What the HTTP faces of both kinds of node have in common: a port, a server, and how answers are written."""

import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiohttp import web

from meshnet_node.chat_writer import error_body
from meshnet_node.errors import NodeError, SettingsError
from meshnet_node.http_limits import HEAD_S_MAX

SSE_DONE = b"data: [DONE]\n\n"


def bind(host: str, port: int) -> socket.socket:
    """A listening socket, before anything heavy is loaded. Raises SettingsError if the port is taken."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=128)
    except OSError as error:
        raise SettingsError(
            f"cannot listen on {host}:{port} ({error.strerror}); choose another --port, or 0 for any free one"
        ) from error


@asynccontextmanager
async def serving(
    app: web.Application, listener: socket.socket, tls: ssl.SSLContext | None = None
) -> AsyncIterator[None]:
    """Serve ``app`` until the context ends."""
    # A client that goes away cancels its handler, and with it the chat on every hop.
    runner = web.AppRunner(
        app, handler_cancellation=True, access_log=None, shutdown_timeout=1.0, keepalive_timeout=HEAD_S_MAX
    )
    await runner.setup()
    try:
        await web.SockSite(runner, listener, ssl_context=tls).start()
        yield
    finally:
        await runner.cleanup()


async def start_sse(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(
        headers={
            "Content-Type": "text/event-stream; charset=utf-8",
            "Cache-Control": "no-cache",
            "X-Accel-Buffering": "no",
        }
    )
    await response.prepare(request)
    return response


def error_response(error: NodeError) -> web.Response:
    return web.json_response({"error": error_body(error)}, status=error.http_status)
