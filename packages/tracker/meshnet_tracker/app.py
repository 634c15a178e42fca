"""The outermost ASGI layer: request ids, forgiving paths, CORS, and the chat endpoint before the framework.

OpenAI endpoints        any web page may call them: preflights are answered, no credentials
everything else         only pages of the tracker's own origin, so that a page elsewhere cannot drive an
                        open tracker on somebody's loopback address; and what arrives there must name it as
                        such, for a page's own name can be made to point to it (DNS rebinding)
"""

import ipaddress
import re
import uuid
from urllib.parse import SplitResult, urlsplit

from meshnet_tracker.asgi import CHAT_PATH, COMPLETION_PATH, Asgi, Message, Receive, Scope, Send, send_error
from meshnet_tracker.openai_errors import foreign_host, foreign_origin, wrong_method

CORS_MAX_AGE_S = 86400

_OPENAI_PATH = re.compile(r"/v1/(chat/completions|completions|models(/.*)?)|/health")
_ALLOW_ORIGIN = (b"access-control-allow-origin", b"*")
_EXPOSE = (b"access-control-expose-headers", b"x-request-id, x-meshnet-route, retry-after")


class TrackerApp:
    """``chat`` takes the chats, ``rest`` everything else, the lifespan included."""

    def __init__(self, *, chat: Asgi, rest: Asgi) -> None:
        self._chat = chat
        self._rest = rest

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._rest(scope, receive, send)
            return
        request_id = f"req_{uuid.uuid4().hex}"
        scope = _with_plain_path(scope, request_id)
        headers = dict(scope["headers"])
        is_openai = _OPENAI_PATH.fullmatch(scope["path"]) is not None
        own_headers = [(b"x-request-id", request_id.encode()), *([_ALLOW_ORIGIN, _EXPOSE] if is_openai else [])]

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *own_headers]
            await send(message)

        if is_openai and scope["method"] == "OPTIONS":
            await _answer_preflight(headers, send_with_id)
        elif not is_openai and not _is_own_origin(headers):
            origin = headers[b"origin"].decode("latin-1")
            await send_error(send_with_id, foreign_origin(origin))
        elif not is_openai and not _is_own_host(scope, headers):
            await send_error(send_with_id, foreign_host(headers.get(b"host", b"").decode("latin-1")))
        elif scope["path"] not in (CHAT_PATH, COMPLETION_PATH):
            await self._rest(scope, receive, send_with_id)
        elif scope["method"] != "POST":
            await send_error(send_with_id, wrong_method(scope["method"], scope["path"], allowed="POST"))
        else:
            await self._chat(scope, receive, send_with_id)


def _with_plain_path(scope: Scope, request_id: str) -> Scope:
    """Double and trailing slashes mean nothing: clients build base URLs in every way."""
    path = re.sub(r"/{2,}", "/", scope["path"])
    path = path.rstrip("/") or "/"
    state = {**scope.get("state", {}), "request_id": request_id}
    return {**scope, "path": path, "raw_path": path.encode(), "state": state}


async def _answer_preflight(headers: dict[bytes, bytes], send: Send) -> None:
    """Whatever headers the page asks for are allowed; there are no cookies that could be abused."""
    allowed = headers.get(b"access-control-request-headers", b"*")
    own = [
        (b"access-control-allow-methods", b"GET, POST, OPTIONS"),
        (b"access-control-allow-headers", allowed),
        (b"access-control-max-age", str(CORS_MAX_AGE_S).encode()),
    ]
    await send({"type": "http.response.start", "status": 204, "headers": own})
    await send({"type": "http.response.body", "body": b""})


def _is_own_origin(headers: dict[bytes, bytes]) -> bool:
    origin = headers.get(b"origin")
    return origin is None or _split(origin.decode("latin-1")).netloc.encode("latin-1") == headers.get(b"host")


def _is_own_host(scope: Scope, headers: dict[bytes, bytes]) -> bool:
    """Over loopback only this machine's own names may be used; elsewhere names are the owner's to give."""
    server = scope.get("server")
    if server is None or not _is_loopback(str(server[0])):
        return True
    host = _split(f"//{headers.get(b'host', b'').decode('latin-1')}").hostname or ""
    return host == "localhost" or host.endswith(".localhost") or _is_loopback(host)


def _split(url: str) -> SplitResult:
    """Its parts; nothing but empty ones of what is no URL, such as ``http://[``, which is then nobody's own."""
    try:
        return urlsplit(url)
    except ValueError:
        return urlsplit("")


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
