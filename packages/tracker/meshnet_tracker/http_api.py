"""Every endpoint but the chat itself: models, health, the routing table, events; and all others, added from here.

All of them are coroutines although most never wait: the framework would run plain functions in threads,
and the tracker's state belongs to the event loop. Bodies and answers are encoded with msgspec; every
error, the framework's own included, leaves in OpenAI's form through ``openai_errors``.
"""

import time
from typing import Annotated, Any, Protocol

import msgspec
from fastapi import FastAPI, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from meshnet_tracker.access import Access, Role
from meshnet_tracker.call_texts import CallTexts
from meshnet_tracker.dashboard.pages import add_pages
from meshnet_tracker.errors import MalformedRequestError, TrackerError
from meshnet_tracker.events import EVENTS_PER_READ_MAX, EventLog
from meshnet_tracker.fleet import Fleet, FleetEvent, ServedModel
from meshnet_tracker.guesses import Guesses
from meshnet_tracker.model_store import add_store_endpoints
from meshnet_tracker.node_api import add_node_endpoints
from meshnet_tracker.node_auth import NodeAuth
from meshnet_tracker.node_probe import NodeProbe
from meshnet_tracker.node_reads import add_node_reads
from meshnet_tracker.observer_api import add_observer_endpoints
from meshnet_tracker.observers import Observers
from meshnet_tracker.openai_errors import HttpError, error_object, to_http, unknown_path, wrong_method
from meshnet_tracker.readiness import Readiness
from meshnet_tracker.replies import json_reply
from meshnet_tracker.router import Router
from meshnet_tracker.routing_stats import RouteStatsStore
from meshnet_tracker.routing_table import routing_table
from meshnet_tracker.settings import TrackerSettings
from meshnet_tracker.ticket_office import TicketOffice

READY_RETRY_S = 5


class TrackerParts(Protocol):
    """What the endpoints need of the tracker."""

    settings: TrackerSettings
    fleet: Fleet
    stats: RouteStatsStore
    router: Router
    readiness: Readiness
    events: EventLog
    observers: Observers
    texts: CallTexts | None
    access: Access
    guesses: Guesses
    node_auth: NodeAuth
    tickets: TicketOffice
    probe: NodeProbe

    def handle(self, event: FleetEvent) -> None: ...


def add_endpoints(app: FastAPI, parts: TrackerParts) -> None:
    _add_error_handlers(app)
    _add_model_endpoints(app, parts)
    _add_observer_endpoints(app, parts)
    add_node_endpoints(app, parts)
    add_node_reads(app, parts)
    add_observer_endpoints(app, parts)
    add_store_endpoints(app, parts.settings.store)
    add_pages(app, parts.access, parts.guesses, shows_texts=parts.texts is not None)


def _add_model_endpoints(app: FastAPI, parts: TrackerParts) -> None:
    created = int(time.time())

    @app.get("/v1/models")
    async def list_models() -> Response:
        ready = _readiness_by_name(parts)
        aliases = {alias: ready[name] for alias, name in parts.settings.model_aliases.items() if name in ready}
        models = [_model_object(name, created, is_ready=is_ready) for name, is_ready in (ready | aliases).items()]
        return json_reply({"object": "list", "data": models})

    @app.get("/v1/models/{model_id:path}")
    async def get_model(model_id: str) -> Response:
        model = parts.router.resolve_model(model_id)
        is_ready = parts.readiness.is_ready(model, time.monotonic())
        name = model_id if model_id in parts.settings.model_aliases else model.card.name
        return json_reply(_model_object(name, created, is_ready=is_ready))

    @app.get("/health")
    async def health(request: Request) -> Response:
        """200 as long as the tracker lives; ``ready`` says whether any model can produce a token (``readiness.py``).

        Which models there are is told to those who may chat with them.
        """
        ready = _readiness_by_name(parts)
        told = {"status": "ok", "ready": any(ready.values())}
        may_know = request.state.role in (Role.CLIENT, Role.ADMIN)
        return json_reply(told | {"models": list(ready)} if may_know else told)

    @app.get("/health/ready")
    async def health_ready() -> Response:
        """For load balancers: 200 if any model can produce a token, else 503."""
        is_ready = any(_readiness_by_name(parts).values())
        headers = {} if is_ready else {"retry-after": str(READY_RETRY_S)}
        body = msgspec.json.encode({"ready": is_ready})
        return Response(body, 200 if is_ready else 503, headers=headers, media_type="application/json")

    # Load balancers and uptime monitors ask this way. The server leaves the body out.
    for path, endpoint in (("/health", health), ("/v1/models", list_models), ("/v1/models/{model_id:path}", get_model)):
        app.add_api_route(path, endpoint, methods=["HEAD"], include_in_schema=False)


def _add_observer_endpoints(app: FastAPI, parts: TrackerParts) -> None:
    @app.get("/v1/routing")
    async def routing(model: str | None = None) -> Response:
        models = [m for m in _live_models(parts) if not model or model in (m.card.name, m.model_key)]
        if not models and model:
            models = [parts.router.resolve_model(model)]
        return json_reply(routing_table(parts.router, parts.stats, models, time.monotonic()))

    @app.get("/v1/events")
    async def events(
        after: Annotated[int, Query(ge=0)] = 0,
        limit: Annotated[int, Query(ge=1, le=EVENTS_PER_READ_MAX)] = EVENTS_PER_READ_MAX,
    ) -> Response:
        """``next_after`` is what to ask with next time."""
        found = parts.events.read(after=after, limit=limit)
        next_after = found[-1]["id"] if found else parts.events.last_id
        return json_reply({"events": found, "next_after": next_after})


def _add_error_handlers(app: FastAPI) -> None:
    @app.exception_handler(TrackerError)
    async def tracker_error(_: Request, error: TrackerError) -> Response:
        return _error(to_http(error))

    @app.exception_handler(RequestValidationError)
    async def bad_query(_: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        name = str(first["loc"][-1])
        return _error(to_http(MalformedRequestError(f"'{name}': {first['msg']}.", param=name)))

    @app.exception_handler(HTTPException)
    async def no_such_endpoint(request: Request, error: HTTPException) -> Response:
        path = request.url.path
        if error.status_code == 404:
            return _error(unknown_path(path))
        if error.status_code == 405:
            return _error(wrong_method(request.method, path, allowed=(error.headers or {}).get("Allow", "")))
        return _error(HttpError(error.status_code, error_object(str(error.detail), kind="invalid_request_error")))

    @app.exception_handler(Exception)
    async def bug(_: Request, error: Exception) -> Response:
        return _error(to_http(error))


def _live_models(parts: TrackerParts) -> list[ServedModel]:
    return [model for model in parts.fleet.models() if model.nodes]


def _readiness_by_name(parts: TrackerParts) -> dict[str, bool]:
    """Of files of different contents under one name, one that is ready will do."""
    now = time.monotonic()
    ready: dict[str, bool] = {}
    for model in _live_models(parts):
        ready[model.card.name] = ready.get(model.card.name, False) or parts.readiness.is_ready(model, now)
    return ready


def _model_object(name: str, created: int, *, is_ready: bool) -> dict[str, Any]:
    """OpenAI's fields, and whether a chat may expect to be served."""
    return {"id": name, "object": "model", "created": created, "owned_by": "meshnet", "ready": is_ready}


def _error(error: HttpError) -> Response:
    return Response(error.body(), error.status, headers=dict(error.headers), media_type="application/json")
