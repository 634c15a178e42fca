"""Keeps web pages away from a node's HTTP port.

Trackers and hops call a node by its advertised address and send no Origin. A browser's page is turned away by its
Origin; a page whose own name was made to point here (DNS rebinding) by the Host it asks for.
"""

from collections.abc import Awaitable, Callable
from urllib.parse import urlsplit

from aiohttp import web
from aiohttp.typedefs import Middleware

from meshnet_protocol.hosts import is_address

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def own_callers_only(advertised_url: str) -> Middleware:
    """Middleware that answers 403 to everybody who does not call this node by an address or its advertised name."""
    own_name = urlsplit(advertised_url).hostname

    @web.middleware
    async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.headers.get("Origin"):
            return _refusal("nodes do not answer web pages: call the tracker")
        host = request.headers.get("Host", "")
        name = _name_of(host)
        if name not in (own_name, "localhost") and not is_address(name):
            return _refusal(f"this node does not answer as {host!r}: call it by its address, or --advertise that name")
        return await handler(request)

    return guard


def _refusal(message: str) -> web.Response:
    error = {"message": message, "type": "invalid_request_error", "param": None, "code": "forbidden"}
    return web.json_response({"error": error}, status=403)


def _name_of(host: str) -> str:
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""
