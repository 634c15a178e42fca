"""A chat at one head: post it, and read the answer's stream. Everything that can break becomes ours here.

    200, then a stream up to ``[DONE]``   HeadEvent, HeadEvent, ...
    400, 413, 422                         RefusedByHeadError: another head would say the same
    any other status                      AttemptFailedError: another route may still serve the chat
    no connection, a broken stream        AttemptFailedError that names the head as suspect

The head is always asked to stream, so that a client that leaves frees it at the next token.
"""

import ssl
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Any

import aiohttp
import msgspec

from meshnet_protocol.errors import RemoteProtocolError
from meshnet_protocol.ids import NodeId
from meshnet_protocol.messages import HeadRequest, PlannedHop
from meshnet_tracker.errors import AttemptFailedError, RefusedByHeadError
from meshnet_tracker.head_events import HeadEvent, decode_event
from meshnet_tracker.sse import DONE, EventParser

CONNECT_S_MAX = 3.0
SILENCE_S_MAX = 300.0
ERROR_BODY_BYTES_MAX = 64 * 1024
CONNECTIONS_MAX = 10_000
REFUSALS = {400, 413, 422}
OVERLOAD_CODES = {"no_free_slot", "overloaded"}

_JSON = {"content-type": "application/json"}
_NETWORK_ERRORS = (aiohttp.ClientError, TimeoutError, OSError)


def open_session(tls: ssl.SSLContext | None = None) -> aiohttp.ClientSession:
    """One session for all heads: it keeps connections alive between chats. The caller closes it."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=CONNECTIONS_MAX, keepalive_timeout=60, ssl=tls or True),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S_MAX, sock_read=SILENCE_S_MAX),
        auto_decompress=False,
    )


@asynccontextmanager
async def open_chat(
    session: aiohttp.ClientSession, head: PlannedHop, request: HeadRequest
) -> AsyncIterator[AsyncIterator[HeadEvent]]:
    """The accepted chat's events. Leaving the context closes the connection unless the stream was read out.

    Raises RefusedByHeadError or AttemptFailedError, here and while the events are read.
    """
    url = f"{head.url.rstrip('/')}/v1/chat/completions"
    try:
        response = await session.post(url, data=msgspec.json.encode(request), headers=_JSON, allow_redirects=False)
    except _NETWORK_ERRORS as error:
        raise _unreachable(head.node_id, error) from error
    async with response:
        if response.status != 200:
            raise await _failure(response, head.node_id)
        async with aclosing(_read_events(response, head.node_id)) as events:
            yield events


async def _read_events(response: aiohttp.ClientResponse, head: NodeId) -> AsyncGenerator[HeadEvent, None]:
    parser = EventParser()
    try:
        async for received in response.content.iter_any():
            for data in parser.feed(received):
                if data == DONE:
                    # The body's last, empty chunk is read too, so that the connection can serve the next chat.
                    await response.read()
                    return
                event = decode_event(data)
                if event.error is not None:
                    raise _failed(event.error, head)
                yield event
    except _NETWORK_ERRORS as error:
        raise _unreachable(head, error) from error
    except (msgspec.MsgspecError, RemoteProtocolError) as error:
        raise AttemptFailedError(f"head {head} sent an unreadable stream: {error}") from error
    raise AttemptFailedError(f"head {head} ended its stream early", suspects=(head,))


async def _failure(response: aiohttp.ClientResponse, head: NodeId) -> AttemptFailedError | RefusedByHeadError:
    try:
        body = await response.content.read(ERROR_BODY_BYTES_MAX)
        error = msgspec.json.decode(body, type=dict[str, dict[str, Any]])["error"]
    except _NETWORK_ERRORS as broken:
        return _unreachable(head, broken)
    except (msgspec.MsgspecError, KeyError):
        error = {"message": f"head {head} answered {response.status}", "code": None}
    if response.status in REFUSALS:
        return RefusedByHeadError(status=response.status, error=error)
    return _failed(error, head, is_overload=response.status == 429)


def _unreachable(head: NodeId, error: Exception) -> AttemptFailedError:
    return AttemptFailedError(f"head {head}: {type(error).__name__}: {error}", suspects=(head,))


def _failed(error: dict[str, Any], head: NodeId, *, is_overload: bool = False) -> AttemptFailedError:
    """``culprit`` is the node further down the route that the head could not reach, where it says so."""
    culprit = error.get("culprit")
    return AttemptFailedError(
        f"head {head}: {error.get('message', 'failed')}",
        suspects=(NodeId(culprit),) if isinstance(culprit, str) else (),
        is_overload=is_overload or error.get("code") in OVERLOAD_CODES,
    )
