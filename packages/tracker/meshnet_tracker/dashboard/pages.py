"""Serves the dashboard: one page at ``/`` and its modules under ``/ui``; a login where the tracker has keys.

The content security policy allows this tracker and nothing else: no inline script, no other host. Files
are revalidated at every load (they carry an ETag), so that a page never mixes two releases.
"""

import html
import os
import time
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import msgspec
from fastapi import FastAPI, Request
from starlette.responses import FileResponse, HTMLResponse, RedirectResponse, Response
from starlette.staticfiles import StaticFiles

from meshnet_tracker.access import LOGIN_COOKIE, LOGIN_PATH, LOGIN_S, LOGOUT_PATH, Access
from meshnet_tracker.asgi import client_address
from meshnet_tracker.errors import BodyTooLargeError
from meshnet_tracker.guesses import Guesses

LOGIN_BYTES_MAX = 4096
SEE_OTHER, TOO_MANY_REQUESTS = 303, 429
NOTICE_PLACE = "<!-- notice -->"
WRONG_KEY = "That is not the tracker's admin key. Copy it again, without spaces around it."
TOO_MANY_KEYS = "Too many wrong keys came from your address. The right one works; others wait {wait_s} s."
STATIC = Path(__file__).parent / "static"
PAGE_HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; "
        "base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
    ),
    "cache-control": "no-cache",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}

# Without a referrer a browser sends a form's own origin as "null", and the login would be a stranger's.
LOGIN_HEADERS = PAGE_HEADERS | {"referrer-policy": "same-origin"}


class _Assets(StaticFiles):
    """Starlette's static files, with the page's headers on each."""

    def file_response(self, full_path: str | os.PathLike[str], *args: Any, **kwargs: Any) -> Response:
        response = super().file_response(full_path, *args, **kwargs)
        response.headers.update(PAGE_HEADERS)
        return response


def add_pages(app: FastAPI, access: Access, guesses: Guesses, *, shows_texts: bool) -> None:
    _add_login(app, access, guesses)
    facts = msgspec.json.encode({"has_login": access.is_guarded, "shows_texts": shows_texts})

    @app.get("/", include_in_schema=False)
    async def dashboard() -> Response:
        return FileResponse(STATIC / "index.html", headers=PAGE_HEADERS)

    @app.get("/v1/dashboard", include_in_schema=False)
    async def page_facts() -> Response:
        """What the pages must know of themselves."""
        return Response(facts, media_type="application/json")

    app.mount("/ui", _Assets(directory=STATIC))


def _add_login(app: FastAPI, access: Access, guesses: Guesses) -> None:
    @app.get(LOGIN_PATH, include_in_schema=False)
    async def login_page(failed: str | None = None) -> Response:
        return HTMLResponse(_login_page("" if failed is None else WRONG_KEY), headers=LOGIN_HEADERS)

    @app.post(LOGIN_PATH, include_in_schema=False)
    async def log_in(request: Request) -> Response:
        body = b""
        async for part in request.stream():
            body += part
            if len(body) > LOGIN_BYTES_MAX:
                raise BodyTooLargeError(f"a login of more than {LOGIN_BYTES_MAX} bytes")
        key = parse_qs(body).get(b"key", [b""])[0].strip()
        cookie = access.log_in(key, time.time())
        if cookie is None:
            wait_s = guesses.note(client_address(request.scope), time.monotonic())
            return _login_failed(wait_s)
        response = RedirectResponse("/", SEE_OTHER)
        # Not for scripts, and never sent along when another site's page asks.
        response.set_cookie(
            LOGIN_COOKIE, cookie, max_age=LOGIN_S, httponly=True, samesite="strict", secure=_is_encrypted(request)
        )
        return response

    @app.post(LOGOUT_PATH, include_in_schema=False)
    async def log_out() -> Response:
        response = RedirectResponse(LOGIN_PATH, SEE_OTHER)
        response.delete_cookie(LOGIN_COOKIE, httponly=True, samesite="strict")
        return response


def _login_page(notice: str = "") -> str:
    shown = f'<p class="failure" role="alert">{html.escape(notice)}</p>' if notice else ""
    return (STATIC / "login.html").read_text().replace(NOTICE_PLACE, shown)


def _login_failed(wait_s: int | None) -> Response:
    if wait_s is None:
        return RedirectResponse(f"{LOGIN_PATH}?failed=1", SEE_OTHER)
    headers = LOGIN_HEADERS | {"retry-after": str(wait_s)}
    return HTMLResponse(_login_page(TOO_MANY_KEYS.format(wait_s=wait_s)), TOO_MANY_REQUESTS, headers)


def _is_encrypted(request: Request) -> bool:
    """Here, or as far as the reverse proxy before the tracker. Who lies about it only spoils their own login."""
    return request.url.scheme == "https" or request.headers.get("x-forwarded-proto") == "https"
