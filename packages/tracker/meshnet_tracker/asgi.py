"""The few ASGI words that the endpoints of chats and the app around it share."""

from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any

from meshnet_protocol.awake_timeout import AwakeTimeout
from meshnet_tracker.errors import ClientGoneError
from meshnet_tracker.openai_errors import HttpError

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Headers = Iterable[tuple[bytes, bytes]]
Asgi = Callable[[Scope, Receive, Send], Awaitable[None]]

CHAT_PATH = "/v1/chat/completions"
COMPLETION_PATH = "/v1/completions"
CLIENT_WRITE_S_MAX = 30.0
JSON_HEADERS = ((b"content-type", b"application/json"),)


def client_key(scope: Scope) -> str:
    """Who asks, as far as fairness goes: who was recognised by a key, else the key itself, else the address."""
    recognised = scope.get("state", {}).get("client_key")
    if isinstance(recognised, str):
        return recognised
    authorization: bytes | None = dict(scope["headers"]).get(b"authorization")
    if authorization is not None:
        return authorization.decode("latin-1")
    return client_address(scope)


def client_address(scope: Scope) -> str:
    return str(scope["client"][0]) if scope.get("client") else ""


async def wait_until_gone(receive: Receive) -> None:
    """Returns when the client has closed its connection."""
    while (await receive())["type"] != "http.disconnect":
        pass


def bounded_send(send: Send) -> Send:
    """``send`` that raises ClientGoneError where nobody reads: closed, or stalled for ``CLIENT_WRITE_S_MAX``."""

    async def send_or_give_up(message: Message) -> None:
        try:
            async with AwakeTimeout(CLIENT_WRITE_S_MAX):
                await send(message)
        except OSError as error:  # TimeoutError is one too.
            raise ClientGoneError(f"the client stopped reading: {type(error).__name__}") from error

    return send_or_give_up


async def send_json(send: Send, status: int, body: bytes, headers: Headers = ()) -> None:
    length = (b"content-length", str(len(body)).encode())
    await send({"type": "http.response.start", "status": status, "headers": [*JSON_HEADERS, length, *headers]})
    await send({"type": "http.response.body", "body": body})


async def send_error(send: Send, error: HttpError, headers: Headers = ()) -> None:
    own = [(name.encode(), value.encode()) for name, value in error.headers.items()]
    await send_json(send, error.status, error.body(), [*own, *headers])
