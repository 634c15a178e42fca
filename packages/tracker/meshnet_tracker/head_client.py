"""A chat at one head: post it, and read the answer's stream. Everything that can break becomes ours here.

    200, then a stream up to ``[DONE]``   HeadEvent, HeadEvent, ...
    400, 413, 422, with a reason          RefusedByHeadError: another head would say the same
    any other status                      AttemptFailedError: another route may still serve the chat
    no connection, a broken stream        AttemptFailedError that names the head as unreachable

The head is always asked to stream, so that a client that leaves frees it at the next token. How long it may be
silent is not decided here: ``attempt_watch.py``.
"""

import ssl
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Any

import aiohttp
import msgspec

from meshnet_protocol.errors import RemoteProtocolError
from meshnet_protocol.ids import NodeId
from meshnet_protocol.messages import TICKET_EXPIRED_CODE, HeadRequest, PlannedHop
from meshnet_tracker.errors import AttemptFailedError, RefusedByHeadError
from meshnet_tracker.head_events import HeadEvent, decode_event
from meshnet_tracker.outcomes import Outcome
from meshnet_tracker.sse import DONE, EventParser

CONNECT_S_MAX = 3.0
ERROR_BODY_BYTES_MAX = 64 * 1024
CONNECTIONS_MAX = 10_000
REFUSALS = {400, 413, 422}
REQUEST_FAULT_CODES = {"invalid_grammar"}
"""Of errors in a stream that are the request's own fault, and come up only when the answer is drawn."""
OVERLOAD_CODES = {"no_free_slot", "overloaded"}
PROBED_CODES = {"upstream"}
"""The head is there, and what it stands for may not be: a probe of the head tells."""

_JSON = {"content-type": "application/json"}
_NETWORK_ERRORS = (aiohttp.ClientError, TimeoutError, OSError)
_BROKEN_OFF = (aiohttp.ClientPayloadError, aiohttp.ServerDisconnectedError, ConnectionResetError)


def open_session(tls: ssl.SSLContext | None = None) -> aiohttp.ClientSession:
    """One session for all heads: it keeps connections alive between chats. The caller closes it."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=CONNECTIONS_MAX, keepalive_timeout=60, ssl=tls or True),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S_MAX),
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
                    raise _broken_stream(event.error, head)
                yield event
    except _NETWORK_ERRORS as error:
        raise _unreachable(head, error) from error
    except (msgspec.MsgspecError, RemoteProtocolError) as error:
        raise AttemptFailedError(f"head {head} sent an unreadable stream: {error}", culprit=head) from error
    raise AttemptFailedError(
        f"head {head} ended its stream early", outcome=Outcome.DEGENERATE, culprit=head, wants_probe=True
    )


async def _failure(response: aiohttp.ClientResponse, head: NodeId) -> AttemptFailedError | RefusedByHeadError:
    try:
        body = await response.content.read(ERROR_BODY_BYTES_MAX)
        error = msgspec.json.decode(body, type=dict[str, dict[str, Any]])["error"]
    except _NETWORK_ERRORS as broken:
        return _unreachable(head, broken)
    except (msgspec.MsgspecError, RecursionError, KeyError):
        # Whatever the status: nobody who understood the request answers like this.
        return AttemptFailedError(f"head {head} answered {response.status} without a reason", culprit=head)
    if response.status in REFUSALS and isinstance(error.get("message"), str):
        return RefusedByHeadError(status=response.status, error=error)
    return _failed(error, head, is_overload=response.status == 429)


def _broken_stream(error: dict[str, Any], head: NodeId) -> AttemptFailedError | RefusedByHeadError:
    if error.get("code") in REQUEST_FAULT_CODES:
        return RefusedByHeadError(status=400, error=error)
    return _failed(error, head)


def _unreachable(head: NodeId, error: Exception) -> AttemptFailedError:
    if isinstance(error, _BROKEN_OFF):
        return AttemptFailedError(f"head {head} broke its connection off", culprit=head, wants_probe=True)
    why = f"{type(error).__name__}: {error}"
    return AttemptFailedError(f"head {head} cannot be reached: {why}", culprit=head, wants_probe=True)


def _failed(error: dict[str, Any], head: NodeId, *, is_overload: bool = False) -> AttemptFailedError:
    """Where the head names a culprit further down the route, and who could not reach it, they are believed so far."""
    culprit, reporter = error.get("culprit"), error.get("reporter")
    is_overload = is_overload or error.get("code") in OVERLOAD_CODES
    return AttemptFailedError(
        f"head {head}: {error.get('message', 'failed')}",
        outcome=Outcome.OVERLOAD if is_overload else Outcome.NODE_FAULT,
        culprit=NodeId(culprit) if isinstance(culprit, str) and culprit else head,
        reporter=NodeId(reporter or head) if isinstance(reporter, str) else None,
        wants_probe=error.get("code") in PROBED_CODES,
        is_blameless=error.get("code") == TICKET_EXPIRED_CODE,
    )
