"""The outermost ASGI layer: request ids, forgiving paths, CORS, keys, and the chat endpoint before the framework.

OpenAI endpoints        any web page may call them: preflights are answered, no credentials
everything else         only pages of the tracker's own origin, so that a page elsewhere cannot drive an
                        open tracker on somebody's loopback address; and what arrives there must name it as
                        such, for a page's own name can be made to point to it (DNS rebinding)

Then keys: which surface a path belongs to and what opens it is ``access.py``'s to say.
"""

import re
import time
import uuid
from collections.abc import Callable, Mapping
from urllib.parse import SplitResult, urlsplit

from meshnet_protocol.hosts import is_address, is_loopback
from meshnet_tracker.access import (
    LOGIN_PATH,
    NODE_PATHS,
    OPENAI_PATH,
    Access,
    Refusal,
    Role,
    Surface,
    client_name,
    shows_a_key,
    surface_of,
)
from meshnet_tracker.asgi import (
    CHAT_PATH,
    COMPLETION_PATH,
    Asgi,
    Headers,
    Message,
    Receive,
    Scope,
    Send,
    client_address,
    send_error,
)
from meshnet_tracker.body_reader import paced
from meshnet_tracker.errors import NodeProofError, TooManyGuessesError
from meshnet_tracker.guesses import Guesses
from meshnet_tracker.openai_errors import (
    HttpError,
    foreign_host,
    foreign_origin,
    refused_access,
    to_http,
    too_many_guesses,
    wrong_method,
)

CORS_MAX_AGE_S = 86400
PAGE_PATH = "/"

_ALLOW_ORIGIN = (b"access-control-allow-origin", b"*")
_EXPOSE = (b"access-control-expose-headers", b"x-request-id, x-meshnet-route, retry-after")


class TrackerApp:
    """``chat`` takes the chats, ``rest`` everything else, the lifespan included.

    ``check_reader`` is told the headers of a signed question and what is asked; it raises NodeProofError.
    ``allowed_hosts``: names, beside addresses and localhost, by which the tracker may be called.
    """

    def __init__(
        self,
        *,
        chat: Asgi,
        rest: Asgi,
        access: Access,
        check_reader: Callable[[Mapping[str, str], str], None],
        guesses: Guesses,
        allowed_hosts: frozenset[str] = frozenset(),
        wall_clock: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._chat = chat
        self._rest = rest
        self._access = access
        self._check_reader = check_reader
        self._allowed_hosts = allowed_hosts
        self._wall_clock = wall_clock
        self._guesses = guesses
        self._clock = clock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._rest(scope, receive, send)
            return
        request_id = f"req_{uuid.uuid4().hex}"
        receive = paced(receive)
        headers = dict(scope["headers"])
        asked = scope.get("raw_path") or scope["path"].encode()
        asked += b"?" + scope["query_string"] if scope["query_string"] else b""
        scope = _with_plain_path(scope, request_id, client_name(headers))
        path = scope["path"]
        is_openai = OPENAI_PATH.fullmatch(path) is not None
        own_headers = [(b"x-request-id", request_id.encode()), *([_ALLOW_ORIGIN, _EXPOSE] if is_openai else [])]

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *own_headers]
            await send(message)

        if is_openai and scope["method"] == "OPTIONS":
            await _answer_preflight(headers, send_with_id)
        elif not is_openai and (error := self._foreign(scope, headers)) is not None:
            await send_error(send_with_id, error)
        elif (refusal := self._refusal(scope, headers)) is not None:
            wait_s = self._note_guess(scope, headers, refusal)
            await _refuse(refusal, path, wait_s, send_with_id)
        elif (error := self._unproven(scope, headers, asked)) is not None:
            await send_error(send_with_id, error)
        elif path not in (CHAT_PATH, COMPLETION_PATH):
            await self._rest(scope, receive, send_with_id)
        elif scope["method"] != "POST":
            await send_error(send_with_id, wrong_method(scope["method"], path, allowed="POST"))
        else:
            await self._chat(scope, receive, send_with_id)

    def _refusal(self, scope: Scope, headers: dict[bytes, bytes]) -> Refusal | None:
        role = self._access.role_of(headers, is_own_page=_is_own_origin(headers), now=self._wall_clock())
        scope["state"]["role"] = role
        return self._access.refusal(surface_of(scope["path"]), role)

    def _note_guess(self, scope: Scope, headers: dict[bytes, bytes], refusal: Refusal) -> int | None:
        """For how many seconds who sent this wrong key should keep away; None: it was no key, or not one too many."""
        if refusal is not Refusal.WRONG_KEY or not shows_a_key(headers):
            return None
        return self._guesses.note(client_address(scope), self._clock())

    def _unproven(self, scope: Scope, headers: dict[bytes, bytes], asked: bytes) -> HttpError | None:
        """Why a signed question is not one of somebody who may join; None: it is, or nobody has to sign."""
        if scope["state"]["role"] is not Role.SIGNER or surface_of(scope["path"]) is not Surface.MEMBER:
            return None
        try:
            texts = {name.decode("latin-1"): value.decode("latin-1") for name, value in headers.items()}
            with self._guesses.counting(client_address(scope), self._clock()):
                self._check_reader(texts, asked.decode("latin-1"))
        except (NodeProofError, TooManyGuessesError) as error:
            return to_http(error)
        return None

    def _foreign(self, scope: Scope, headers: dict[bytes, bytes]) -> HttpError | None:
        """Why this is not for the page, or under the name, that it comes from; None: it is."""
        if not _is_own_origin(headers):
            return foreign_origin(headers[b"origin"].decode("latin-1"))
        host = headers.get(b"host", b"").decode("latin-1")
        if not self._is_own_host(scope, host):
            return foreign_host(host)
        return None

    def _is_own_host(self, scope: Scope, host: str) -> bool:
        """Names are checked where a foreign page could do harm: over loopback, and wherever no key is asked for.

        A node's own words are signed, so that no page can make them up, and nodes may know the tracker by any name.
        """
        server = scope.get("server")
        is_over_loopback = server is not None and is_loopback(str(server[0]))
        if not is_over_loopback and (self._access.is_guarded or scope["path"] in NODE_PATHS):
            return True
        name = _split(f"//{host}").hostname or ""
        is_local = name == "localhost" or name.endswith(".localhost") or name in self._allowed_hosts
        return is_local or (is_loopback(name) if is_over_loopback else is_address(name))


async def _refuse(refusal: Refusal, path: str, wait_s: int | None, send: Send) -> None:
    """A person who opens the dashboard is led to the login, everybody else is told what is missing."""
    if wait_s is not None:
        await send_error(send, too_many_guesses(wait_s))
        return
    if path == PAGE_PATH and refusal is Refusal.WRONG_KEY:
        see_login: Headers = ((b"location", LOGIN_PATH.encode()), (b"cache-control", b"no-store"))
        await send({"type": "http.response.start", "status": 303, "headers": [*see_login]})
        await send({"type": "http.response.body", "body": b""})
        return
    await send_error(send, refused_access(refusal))


def _with_plain_path(scope: Scope, request_id: str, client: str) -> Scope:
    """Double and trailing slashes mean nothing: clients build base URLs in every way."""
    path = re.sub(r"/{2,}", "/", scope["path"])
    path = path.rstrip("/") or "/"
    state = {**scope.get("state", {}), "request_id": request_id, "client": client}
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


def _split(url: str) -> SplitResult:
    """Its parts; nothing but empty ones of what is no URL, such as ``http://[``, which is then nobody's own."""
    try:
        return urlsplit(url)
    except ValueError:
        return urlsplit("")
