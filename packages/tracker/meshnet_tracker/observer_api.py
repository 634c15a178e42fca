"""The endpoints for people who look: overview, calls, their live stream, arm history, Prometheus metrics."""

import time
from typing import Annotated, Any, Protocol

import msgspec
from fastapi import FastAPI, Header, Query, Response
from starlette.responses import StreamingResponse

from meshnet_tracker.asgi import Receive, Scope, Send, bounded_send
from meshnet_tracker.calls import CALLS_PER_READ_MAX
from meshnet_tracker.errors import ClientGoneError
from meshnet_tracker.fleet import Fleet
from meshnet_tracker.observers import Observers
from meshnet_tracker.openai_errors import HttpError, error_object
from meshnet_tracker.overview import overview
from meshnet_tracker.router import Router
from meshnet_tracker.routing_stats import RouteStatsStore

STREAM_HEADERS = {"cache-control": "no-cache", "x-accel-buffering": "no"}


class ObservedParts(Protocol):
    """What these endpoints need of the tracker."""

    fleet: Fleet
    stats: RouteStatsStore
    router: Router
    observers: Observers


class _EventStream(StreamingResponse):
    """A stream that a reader may leave, or stall, without anybody else noticing."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, bounded_send(send))
        except* ClientGoneError:
            pass


def add_observer_endpoints(app: FastAPI, parts: ObservedParts) -> None:
    _add_call_endpoints(app, parts.observers)

    @app.get("/v1/overview")
    async def get_overview() -> Response:
        return _json(overview(parts.fleet, parts.router, parts.stats, parts.observers.pulse, time.monotonic()))

    @app.get("/v1/routing/history")
    async def routing_history() -> Response:
        """Per arm of the routing table: its last samples, and where a step's time goes on each hop."""
        models, now = [model for model in parts.fleet.models() if model.nodes], time.monotonic()
        signatures = [arm.signature for model in models for arm in parts.router.listed(model, now)]
        return _json({"arms": {signature: parts.observers.arms.arm(signature) for signature in signatures}})

    @app.get("/metrics", include_in_schema=False)
    async def metrics(accept: Annotated[str, Header()] = "") -> Response:
        body, content_type = parts.observers.metrics.page(accept)
        return Response(body, headers={"content-type": content_type})


def _add_call_endpoints(app: FastAPI, observers: Observers) -> None:
    @app.get("/v1/calls")
    async def calls(limit: Annotated[int, Query(ge=1, le=CALLS_PER_READ_MAX)] = 100) -> Response:
        """The latest first."""
        return _json({"calls": observers.calls.latest(limit)})

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
            message = f"The call {call_id!r} is not among the latest that the tracker keeps."
            error = HttpError(404, error_object(message, kind="invalid_request_error", code="call_not_found"))
            return Response(error.body(), error.status, media_type="application/json")
        return _json(found)


def _json(value: Any) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json")
