"""The endpoints for people who look: overview, calls, their live stream, arm history, Prometheus metrics."""

import time
from typing import Annotated, Protocol

from fastapi import FastAPI, Header, Query, Response
from starlette.responses import StreamingResponse

from meshnet_tracker.asgi import Receive, Scope, Send, bounded_send
from meshnet_tracker.call_texts import CallTexts
from meshnet_tracker.calls import CALLS_PER_READ_MAX
from meshnet_tracker.errors import ClientGoneError
from meshnet_tracker.fleet import Fleet
from meshnet_tracker.observers import Observers
from meshnet_tracker.openai_errors import HttpError, error_object
from meshnet_tracker.overview import overview
from meshnet_tracker.readiness import Readiness
from meshnet_tracker.replies import json_reply
from meshnet_tracker.router import Router
from meshnet_tracker.routing_stats import RouteStatsStore

STREAM_HEADERS = {"cache-control": "no-cache", "x-accel-buffering": "no"}


class ObservedParts(Protocol):
    """What these endpoints need of the tracker."""

    fleet: Fleet
    stats: RouteStatsStore
    router: Router
    readiness: Readiness
    observers: Observers
    texts: CallTexts | None


class _EventStream(StreamingResponse):
    """A stream that a reader may leave, or stall, without anybody else noticing."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, bounded_send(send))
        except* ClientGoneError:
            pass


def add_observer_endpoints(app: FastAPI, parts: ObservedParts) -> None:
    _add_call_endpoints(app, parts.observers)
    _add_text_endpoint(app, parts.texts)

    @app.get("/v1/overview")
    async def get_overview() -> Response:
        pulse = parts.observers.pulse
        return json_reply(overview(parts.fleet, parts.router, parts.stats, parts.readiness, pulse, time.monotonic()))

    @app.get("/v1/routing/history")
    async def routing_history() -> Response:
        """Per arm of the routing table: its last samples, and where a step's time goes on each hop."""
        models, now = [model for model in parts.fleet.models() if model.nodes], time.monotonic()
        signatures = [arm.signature for model in models for arm in parts.router.listed(model, now)]
        return json_reply({"arms": {signature: parts.observers.arms.arm(signature) for signature in signatures}})

    @app.get("/metrics", include_in_schema=False)
    async def metrics(accept: Annotated[str, Header()] = "") -> Response:
        body, content_type = parts.observers.metrics.page(accept)
        return Response(body, headers={"content-type": content_type})


def _add_call_endpoints(app: FastAPI, observers: Observers) -> None:
    @app.get("/v1/calls")
    async def calls(limit: Annotated[int, Query(ge=1, le=CALLS_PER_READ_MAX)] = 100) -> Response:
        """The latest first."""
        return json_reply({"calls": observers.calls.latest(limit)})

    @app.get("/v1/calls/stream")
    async def stream(last_event_id: Annotated[str, Header()] = "") -> Response:
        """Server-sent events: the latest calls, then every call as it changes."""
        observers.watchers.admit()
        events = observers.watchers.stream(last_event_id)
        return _EventStream(events, media_type="text/event-stream", headers=STREAM_HEADERS)

    @app.get("/v1/calls/{call_id}")
    async def call(call_id: str) -> Response:
        found = observers.calls.call(call_id)
        if found is None:
            return _not_found(f"The call {call_id!r} is not among the latest that the tracker keeps.", "call_not_found")
        return json_reply(found)


def _add_text_endpoint(app: FastAPI, texts: CallTexts | None) -> None:
    @app.get("/v1/calls/{call_id}/text")
    async def text(call_id: str) -> Response:
        """Prompt and answers of one of the latest calls, if the tracker's owner wants them shown."""
        if texts is None:
            return _not_found("This tracker keeps no texts; start it with --show-texts to see them.", "texts_not_kept")
        found = texts.text(call_id)
        if found is None:
            return _not_found(f"No text of the call {call_id!r} is kept: only of the latest calls.", "call_not_found")
        return json_reply(found)


def _not_found(message: str, code: str) -> Response:
    error = HttpError(404, error_object(message, kind="invalid_request_error", code=code))
    return Response(error.body(), error.status, media_type="application/json")
