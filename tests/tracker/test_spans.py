"""Finished calls as spans: with the SDK's own exporter, and over the wire to a collector that the environment names."""

import asyncio
from typing import Any

import pytest
from aiohttp import web
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from dashboard.stage import Stage, stage
from meshnet_tracker.spans import write_spans, writer_from_environment

COLLECTOR = "OTEL_EXPORTER_OTLP_ENDPOINT"


def spans_of(call: dict[str, Any]) -> list[ReadableSpan]:
    exporter, provider = InMemorySpanExporter(), TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    write_spans(provider.get_tracer("test"), call)
    return sorted(exporter.get_finished_spans(), key=lambda span: (span.start_time or 0, span.name))


async def latest_call(scene: Stage, **fields: Any) -> dict[str, Any]:
    headers = await scene.chat(**fields)
    call: dict[str, Any] = await scene.get(f"/v1/calls/{headers['x-request-id']}")
    return call


async def test_a_chat_that_was_taken_over_is_a_tree_of_request_attempts_and_hops() -> None:
    async with stage() as scene:
        scene.heads["fast"].breaks_after = 4
        while len((call := await latest_call(scene, stream=True))["attempts"]) == 1:
            pass
    spans = spans_of(call)
    by_name = {span.name: span for span in spans}
    request = by_name[f"chat {call['model']}"]
    parents = {span.name: span.parent.span_id if span.parent else None for span in spans}

    assert sorted(by_name) == ["attempt 1", "attempt 2", request.name, "hop slow"]
    ids = {name: span.context.span_id for name, span in by_name.items() if span.context}
    assert parents["attempt 1"] == parents["attempt 2"] == ids[request.name]
    assert parents["hop slow"] == ids["attempt 2"]
    assert [by_name[name].status.status_code for name in ("attempt 1", "attempt 2", request.name)] == [
        *(StatusCode.ERROR, StatusCode.UNSET, StatusCode.UNSET)
    ]
    assert (request.end_time or 0) - (request.start_time or 0) == pytest.approx(1e9 * call["seconds"], abs=1e3)
    assert [event.name for event in request.events] == ["first token"]
    hop = by_name["hop slow"]
    assert hop.attributes is not None
    assert (hop.attributes["meshnet.layers"], hop.attributes["meshnet.compute_s"]) == ("0-39", 0.5)
    assert (hop.end_time or 0) - (hop.start_time or 0) == pytest.approx(0.65e9, abs=1e3)
    assert "secret" not in "".join(span.to_json() for span in spans)


async def test_a_refused_chat_is_one_span_and_no_error_of_the_mesh() -> None:
    async with stage() as scene:
        refused = spans_of(await latest_call(scene, temperature=9))
        unserved = spans_of(await latest_call(scene, model="half"))

    assert [span.status.status_code for span in refused] == [StatusCode.UNSET]
    assert [span.status.status_code for span in unserved] == [StatusCode.ERROR]
    assert "held by no ready node" in str(unserved[0].status.description)


async def test_a_collector_named_by_the_environment_gets_the_spans_when_the_tracker_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    received = ExportTraceServiceRequest()

    async def collect(request: web.Request) -> web.Response:
        received.MergeFromString(await request.read())
        return web.Response()

    app = web.Application()
    app.router.add_post("/v1/traces", collect)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        monkeypatch.setenv(COLLECTOR, f"http://127.0.0.1:{runner.addresses[0][1]}")
        async with asyncio.timeout(20), stage() as scene:
            await scene.chat(route=[scene.node_ids["slow"]])
    finally:
        await runner.cleanup()

    (of_service,) = received.resource_spans
    names = [span.name for scope in of_service.scope_spans for span in scope.spans]
    assert sorted(names) == ["attempt 1", "chat tiny@f00dfeedcafe", "hop slow"]
    assert "meshnet-tracker" in str(of_service.resource)


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {COLLECTOR: "http://127.0.0.1:4318", "OTEL_SDK_DISABLED": "true"},
        {COLLECTOR: "http://127.0.0.1:4318", "OTEL_TRACES_EXPORTER": "none"},
        {COLLECTOR: "http://127.0.0.1:4318", "OTEL_TRACES_EXPORTER": "zipkin"},
    ],
)
def test_there_are_no_spans_unless_they_are_asked_for(environment: dict[str, str]) -> None:
    assert writer_from_environment(environment) is None
