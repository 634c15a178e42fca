"""Serves the dashboard: one page at ``/`` and its modules under ``/ui``.

The content security policy allows this tracker and nothing else: no inline script, no other host. Files
are revalidated at every load (they carry an ETag), so that a page never mixes two releases.
"""

import os
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from starlette.responses import FileResponse, Response
from starlette.staticfiles import StaticFiles

STATIC = Path(__file__).parent / "static"
PAGE_HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "cache-control": "no-cache",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}


class _Assets(StaticFiles):
    """Starlette's static files, with the page's headers on each."""

    def file_response(self, full_path: str | os.PathLike[str], *args: Any, **kwargs: Any) -> Response:
        response = super().file_response(full_path, *args, **kwargs)
        response.headers.update(PAGE_HEADERS)
        return response


def add_pages(app: FastAPI) -> None:
    @app.get("/", include_in_schema=False)
    async def dashboard() -> Response:
        return FileResponse(STATIC / "index.html", headers=PAGE_HEADERS)

    app.mount("/ui", _Assets(directory=STATIC))
