"""The one place where the tracker's errors become HTTP, in the shape OpenAI's clients parse.

Every error body is ``{"error": {"message", "type", "param", "code"}}``; ``code`` is a string or null.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, assert_never

import msgspec

from meshnet_tracker.access import Refusal
from meshnet_tracker.errors import (
    BadSignatureError,
    BodyTooLargeError,
    BodyTooSlowError,
    ClientError,
    InvalidRouteError,
    MalformedRequestError,
    MeshError,
    NodeLostError,
    NoRouteError,
    NotAdmittedError,
    OverloadedError,
    RateLimitedError,
    RefusedByHeadError,
    RegistrationConflictError,
    RegistrationRefusedError,
    RouteUnavailableError,
    ShuttingDownError,
    StaleProofError,
    TooManyGuessesError,
    UnknownModelError,
    UnreachableNodeError,
)

RETRY_AFTER_S = 1
MESSAGE_CHARS_MAX = 300
_INVALID = "invalid_request_error"
_SERVER = "server_error"

# The first entry whose class matches wins, so the more special classes stand first.
_TABLE: tuple[tuple[type[Exception], int, str, str | None], ...] = (
    (BodyTooLargeError, 413, _INVALID, None),
    (BodyTooSlowError, 408, _INVALID, "request_timeout"),
    (UnknownModelError, 404, _INVALID, "model_not_found"),
    (InvalidRouteError, 400, _INVALID, "invalid_route"),
    (ClientError, 400, _INVALID, None),
    (NoRouteError, 503, _SERVER, "no_route"),
    (RouteUnavailableError, 503, _SERVER, "route_unavailable"),
    (NodeLostError, 503, _SERVER, "node_lost"),
    (RateLimitedError, 429, _SERVER, "rate_limit_exceeded"),
    (OverloadedError, 503, _SERVER, "overloaded"),
    (ShuttingDownError, 503, _SERVER, "shutting_down"),
    (RegistrationConflictError, 409, _INVALID, "registration_conflict"),
    (UnreachableNodeError, 400, _INVALID, "node_unreachable"),
    (StaleProofError, 401, _INVALID, "stale_proof"),
    (BadSignatureError, 401, _INVALID, "bad_signature"),
    (NotAdmittedError, 403, _INVALID, "not_admitted"),
    (RegistrationRefusedError, 400, _INVALID, "registration_refused"),
)


@dataclass(frozen=True, slots=True)
class HttpError:
    """An error as it goes over the wire; ``error`` is the inner object of the body."""

    status: int
    error: Mapping[str, Any]
    headers: Mapping[str, str] = field(default_factory=dict)

    def body(self) -> bytes:
        return msgspec.json.encode({"error": self.error})


def error_object(message: str, *, kind: str, param: str | None = None, code: str | None = None) -> dict[str, Any]:
    return {"message": message, "type": kind, "param": param, "code": code}


def to_http(error: Exception) -> HttpError:
    """Status, body and headers of any exception; one that is not ours becomes a 500 that gives nothing away."""
    if isinstance(error, RefusedByHeadError):
        return HttpError(error.status, _complete(error.error))
    if isinstance(error, TooManyGuessesError):
        told = error_object(str(error), kind=_INVALID, code="too_many_wrong_proofs")
        return HttpError(429, told, {"retry-after": str(error.wait_s)})
    for kind, status, type_name, code in _TABLE:
        if isinstance(error, kind):
            return HttpError(
                status,
                error_object(
                    str(error),
                    kind=type_name,
                    param=getattr(error, "param", None),
                    code=error.code if isinstance(error, MalformedRequestError) else code,
                ),
                _headers_of(error),
            )
    return HttpError(500, error_object("The tracker failed to handle this request.", kind=_SERVER))


def _headers_of(error: Exception) -> dict[str, str]:
    if isinstance(error, MeshError):
        return {"retry-after": str(RETRY_AFTER_S)}
    # What is still to come of the request would be read as the next one.
    return {"connection": "close"} if isinstance(error, BodyTooSlowError) else {}


def public_part(error: Exception, told: HttpError) -> dict[str, Any]:
    """What of an error those may read who did not ask: where what a client sent may be quoted, no message."""
    quotes_nobody = isinstance(error, MeshError | UnknownModelError | InvalidRouteError | BodyTooLargeError)
    return {
        "status": told.status,
        "code": told.error["code"],
        "param": told.error["param"],
        "message": told.error["message"][:MESSAGE_CHARS_MAX] if quotes_nobody else None,
    }


def unknown_path(path: str) -> HttpError:
    return HttpError(404, error_object(f"Unknown path {path!r}.", kind=_INVALID, code="unknown_url"))


def wrong_method(method: str, path: str, *, allowed: str) -> HttpError:
    return HttpError(
        405,
        error_object(f"{path} does not take {method}.", kind=_INVALID, code="method_not_allowed"),
        {"allow": allowed},
    )


def refused_access(refusal: Refusal) -> HttpError:
    """What somebody without the right key is told, and how to get further."""
    match refusal:
        case Refusal.WRONG_KEY:
            message = "Incorrect API key provided, or none: send one as 'Authorization: Bearer KEY'."
            error = error_object(message, kind=_INVALID, code="invalid_api_key")
            return HttpError(401, error, {"www-authenticate": "Bearer"})
        case Refusal.ADMIN_KEY_NEEDED:
            message = "This endpoint needs the tracker's admin key, and this is a client's."
            return HttpError(403, error_object(message, kind=_INVALID, code="admin_key_needed"))
        case Refusal.CLOSED:
            message = "This endpoint is closed: the tracker has API keys and no admin key. Start it with --admin-key."
            return HttpError(403, error_object(message, kind=_INVALID, code="admin_closed"))
        case _:
            assert_never(refusal)


def too_many_guesses(wait_s: int) -> HttpError:
    message = f"Incorrect API key provided, as too often before from this address: wait {wait_s} s, and check the key."
    error = error_object(message, kind=_INVALID, code="too_many_wrong_keys")
    return HttpError(429, error, {"retry-after": str(wait_s)})


def foreign_origin(origin: str) -> HttpError:
    return HttpError(403, error_object(f"This endpoint does not answer pages of {origin!r}.", kind=_INVALID))


def foreign_host(host: str) -> HttpError:
    message = (
        f"This endpoint does not answer as {host!r}: call it by an IP address or as localhost, "
        f"or start the tracker with --allow-host {host.partition(':')[0] or 'NAME'}"
    )
    return HttpError(403, error_object(message, kind=_INVALID))


def _complete(error: Mapping[str, Any]) -> dict[str, Any]:
    """A head's error object in our words: all four fields, and the type that clients know."""
    return error_object(
        str(error.get("message", "")),
        kind=_INVALID,
        param=error.get("param"),
        code=None if error.get("code") is None else str(error["code"]),
    )
