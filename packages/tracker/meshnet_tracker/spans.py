"""Finished calls as OpenTelemetry spans: one for the request, one for each attempt, one for each hop of the last.

Off, and its packages not even loaded, unless the standard ``OTEL_*`` variables ask for it. ``put_nowait`` only queues;
spans are made in another thread, a while after the chat, with the times it really had.

Hops report durations and never timestamps, because clocks of machines differ. So a hop's span begins with its attempt
and is as long as the hop queued, computed and sent; the three are its attributes.
"""

import asyncio
import os
from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import structlog
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer, set_span_in_context

from meshnet_tracker.calls import CallRecord

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

CALLS_WAITING_MAX = 2048
FLUSH_PERIOD_S = 1.0
SERVICE = "meshnet-tracker"
_NS = 1_000_000_000
_NOT_THE_MESHS_FAULT = {"completed", "client_gone", "client_error"}

_log = structlog.get_logger("meshnet.tracker")


class SpanWriter:
    """Turns calls into spans of ``provider``; ``close`` when nobody puts any more."""

    def __init__(self, provider: "TracerProvider") -> None:
        self._provider = provider
        self._tracer = provider.get_tracer(SERVICE)
        self._waiting: deque[CallRecord] = deque(maxlen=CALLS_WAITING_MAX)

    def put_nowait(self, call: CallRecord) -> None:
        self._waiting.append(call)

    async def flush_forever(self) -> None:
        while True:
            await asyncio.sleep(FLUSH_PERIOD_S)
            await asyncio.to_thread(self._flush)

    async def close(self) -> None:
        await asyncio.to_thread(self._close)

    def _flush(self) -> None:
        while self._waiting:
            write_spans(self._tracer, self._waiting.popleft())

    def _close(self) -> None:
        self._flush()
        self._provider.shutdown()


def write_spans(tracer: Tracer, call: CallRecord) -> None:
    """A finished call's spans, each begun and ended at the times it had."""
    began, ended = call["at"], call["at"] + call["seconds"]
    request = tracer.start_span(
        f"chat {call['model'] or 'refused'}", kind=SpanKind.SERVER, start_time=_ns(began), attributes=_attributes(call)
    )
    if call["ttft_s"] is not None:
        request.add_event("first token", timestamp=_ns(began + call["ttft_s"]))
    _note_end(request, call["outcome"], (call["error"] or {}).get("message"))
    for number, attempt in enumerate(call["attempts"], start=1):
        kept = ("signature", "mode", "reason", "outcome", "culprit", "resumed_tokens", "drawn_tokens")
        span = tracer.start_span(
            f"attempt {number}",
            set_span_in_context(request),
            SpanKind.CLIENT,
            _known({f"meshnet.{name}": attempt[name] for name in kept}),
            start_time=_ns(attempt["at"]),
        )
        _note_end(span, attempt["outcome"], attempt["error"])
        if number == len(call["attempts"]):
            _write_hops(tracer, span, call["hops"], attempt["at"])
        span.end(_ns(attempt["at"] + (attempt["seconds"] or 0.0)))
    request.end(_ns(ended))


def _write_hops(tracer: Tracer, attempt: Span, hops: list[dict[str, Any]], began: float) -> None:
    for hop in hops:
        timing = hop["timing"]
        if timing is None:
            continue
        attributes = {
            f"meshnet.{name}": timing[name] for name in ("node_id", "steps", "queue_s", "compute_s", "link_s")
        }
        attributes["meshnet.layers"] = f"{hop['start_layer']}-{hop['end_layer']}"
        name = f"hop {hop['node_id'].partition('.')[0]}"
        span = tracer.start_span(name, set_span_in_context(attempt), attributes=attributes, start_time=_ns(began))
        span.end(_ns(began + sum(max(0.0, timing[part]) for part in ("queue_s", "compute_s", "link_s"))))


def _attributes(call: CallRecord) -> dict[str, Any]:
    """In the conventions' words where they have one."""
    names = {"model": "gen_ai.request.model", "prompt_tokens": "gen_ai.usage.input_tokens"}
    names |= {"completion_tokens": "gen_ai.usage.output_tokens", "seed": "gen_ai.request.seed"}
    names |= {"id": "meshnet.request_id", "signature": "meshnet.signature", "outcome": "meshnet.outcome"}
    return {"gen_ai.operation.name": "chat"} | _known({names[field]: call[field] for field in names})


def _note_end(span: Span, outcome: str | None, message: str | None) -> None:
    if outcome is not None and outcome not in _NOT_THE_MESHS_FAULT:
        span.set_attribute("error.type", outcome)
        span.set_status(Status(StatusCode.ERROR, message))


def _known(attributes: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in attributes.items() if value is not None}


def _ns(unix_s: float) -> int:
    return int(unix_s * _NS)


def writer_from_environment(environment: Mapping[str, str] = os.environ) -> SpanWriter | None:
    """None unless the variables name a collector. What cannot be had is warned of and stops no tracker."""
    exporter = environment.get("OTEL_TRACES_EXPORTER", "otlp")
    named = {"OTEL_TRACES_EXPORTER", "OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"}
    is_disabled = environment.get("OTEL_SDK_DISABLED", "").lower() == "true"
    if is_disabled or exporter == "none" or not any(environment.get(name) for name in named):
        return None
    if exporter != "otlp":
        _log.warning("no spans: OTEL_TRACES_EXPORTER may be otlp or none", exporter=exporter)
        return None
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import SERVICE_NAME, OTELResourceDetector, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError:
        _log.warning("no spans: OTEL_* asks for them, but OpenTelemetry is not installed; uv sync --extra otel")
        return None
    resource = Resource({SERVICE_NAME: SERVICE}).merge(OTELResourceDetector().detect())
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return SpanWriter(provider)
