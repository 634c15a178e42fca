"""A node's model file, for nodes that join: whatever part of it this node holds, as ranges of the whole.

GET /v1/models/{model_key}            what file it is
GET /v1/models/{model_key}/file       a range of it; the answer may be shorter than asked for
GET /v1/models/{model_key}/manifest   one hash per tensor, from nodes that have the whole file

Readers show a pass of the tracker (``reader_gate.py``). Who asks for more than is held gets what stands before the
gap, or 416. Answers are bounded and few at a time, so that handing on a model does not stop chats.
"""

import asyncio
import re
from pathlib import Path

import msgspec
from aiohttp import web

from meshnet_node.chat_writer import error_body
from meshnet_node.engine.api import Engine, HeldFile
from meshnet_node.errors import NoPassError, SourceError
from meshnet_node.http_limits import write_in_time
from meshnet_node.reader_gate import ReaderGate
from meshnet_protocol.messages import SharedFile
from meshnet_protocol.tickets import PASS_HEADER

ANSWER_BYTES_MAX = 8 * 1024 * 1024
PIECE_BYTES_MAX = 256 * 1024
"""In memory for one reader, however slow."""
ANSWERS_AT_ONCE_MAX = 2
_RANGE = re.compile(r"bytes=(\d+)-(\d*)")


class ModelServer:
    """Serves one engine's model file; without a ``gate``, to everybody."""

    def __init__(self, engine: Engine, cache_dir: Path, gate: ReaderGate | None = None) -> None:
        self._engine = engine
        self._gate = gate
        self._cache_dir = cache_dir
        self._turns = asyncio.Semaphore(ANSWERS_AT_ONCE_MAX)

    def add_to(self, app: web.Application) -> None:
        app.router.add_get("/v1/models/{model_key}", self.serve_card)
        app.router.add_get("/v1/models/{model_key}/file", self.serve_file)
        app.router.add_get("/v1/models/{model_key}/manifest", self.serve_manifest)

    async def serve_card(self, request: web.Request) -> web.Response:
        held = await self._held(request)
        shared = SharedFile(
            file_name=held.file_name,
            byte_count=held.byte_count,
            fingerprint=self._engine.card.fingerprint,
            has_manifest=held.is_whole,
        )
        return web.json_response(body=msgspec.json.encode(shared))

    async def serve_file(self, request: web.Request) -> web.StreamResponse:
        held = await self._held(request)
        match = _RANGE.fullmatch(request.headers.get("Range", "bytes=0-"))
        start = int(match[1]) if match else held.byte_count
        asked_end = int(match[2]) + 1 if match and match[2] else held.byte_count
        end = min(asked_end, held.byte_count, start + ANSWER_BYTES_MAX, held.end_of(start))
        headers = {"Accept-Ranges": "bytes", "ETag": f'"{self._engine.card.fingerprint}"'}
        if end <= start:
            headers["Content-Range"] = f"bytes */{held.byte_count}"
            return web.Response(status=416, headers=headers, text="this node does not hold these bytes\n")
        try:
            piece = await self._read(held, start, end)
        except SourceError as error:
            return web.Response(status=410, text=f"{error}\n")
        headers["Content-Range"] = f"bytes {start}-{end - 1}/{held.byte_count}"
        headers["Content-Type"] = "application/octet-stream"
        response = web.StreamResponse(status=206, headers=headers)
        response.content_length = end - start
        await response.prepare(request)
        while True:
            await write_in_time(response, piece)
            start += len(piece)
            if start >= end:
                break
            piece = await self._read(held, start, end)
        await response.write_eof()
        return response

    async def _read(self, held: HeldFile, start: int, end: int) -> bytes:
        async with self._turns:
            return await asyncio.to_thread(held.read, start, min(end, start + PIECE_BYTES_MAX))

    async def serve_manifest(self, request: web.Request) -> web.Response:
        if not (await self._held(request)).is_whole:
            raise web.HTTPNotFound(text="this node holds a part of the model and cannot vouch for the rest\n")
        manifest = await asyncio.to_thread(self._engine.model.cached_manifest, self._cache_dir)
        return web.json_response(body=msgspec.json.encode(manifest))

    async def _held(self, request: web.Request) -> HeldFile:
        self._check_pass(request)
        if request.match_info["model_key"] != self._engine.card.model_key:
            raise web.HTTPNotFound(text=f"this node serves {self._engine.card.model_key}\n")
        return await asyncio.to_thread(self._engine.held_file)

    def _check_pass(self, request: web.Request) -> None:
        if self._gate is None:
            return
        try:
            self._gate.check(request.headers.get(PASS_HEADER, ""))
        except NoPassError as error:
            body = msgspec.json.encode({"error": error_body(error)}).decode()
            raise web.HTTPUnauthorized(text=body, content_type="application/json") from error
