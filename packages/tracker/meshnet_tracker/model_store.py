"""The tracker's own store: model files that it hands to nodes, so that the first nodes of a mesh need no other source.

GET /v1/store                            which models
GET /v1/store/{model_key}                what file it is
GET /v1/store/{model_key}/file           ranges of it
GET /v1/store/{model_key}/manifest       one hash per tensor, against which a node checks what arrives

A node with the whole file answers the same under ``/v1/models``; ``mesh:NAME`` asks them all alike. What is in a
file, this package does not know: whoever starts the tracker looks into it and says so.
"""

import asyncio
from collections.abc import Sequence
from pathlib import Path

from fastapi import FastAPI
from starlette.responses import FileResponse, Response
from starlette.types import Receive, Scope, Send

from meshnet_tracker.errors import UnknownModelError
from meshnet_tracker.replies import json_reply
from meshnet_tracker.settings import StoredModel

READERS_MAX = 8
RETRY_AFTER_S = 2


def add_store_endpoints(app: FastAPI, models: Sequence[StoredModel]) -> None:
    by_key = {str(model.model_key): model for model in models}
    readers = asyncio.Semaphore(READERS_MAX)

    def stored(model_key: str) -> StoredModel:
        if model_key not in by_key:
            has = ", ".join(by_key) or "nothing"
            raise UnknownModelError(f"model {model_key!r} is not in this tracker's store, which has {has}")
        return by_key[model_key]

    @app.get("/v1/store")
    async def list_store() -> Response:
        return json_reply({"models": [{"name": model.name, "model_key": key} for key, model in by_key.items()]})

    @app.get("/v1/store/{model_key}")
    async def card(model_key: str) -> Response:
        return json_reply(stored(model_key).shared)

    @app.get("/v1/store/{model_key}/manifest")
    async def manifest(model_key: str) -> Response:
        return Response(stored(model_key).manifest, media_type="application/json")

    @app.get("/v1/store/{model_key}/file")
    async def file(model_key: str) -> Response:
        model = stored(model_key)
        if readers.locked():  # nodes come again by themselves, and chats go first
            return Response(status_code=503, headers={"retry-after": str(RETRY_AFTER_S)})
        await readers.acquire()
        return _LentFile(model.path, readers)


class _LentFile(FileResponse):
    """Gives its turn back when it has ended, also if the reader goes away in the middle."""

    def __init__(self, path: Path, readers: asyncio.Semaphore) -> None:
        super().__init__(path, media_type="application/octet-stream")
        self._readers = readers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._readers.release()
