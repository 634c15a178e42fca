"""Requests made up by schemathesis against a running tracker with a head behind it: never a 5xx by our own fault.

The tracker describes its own endpoints; the OpenAI ones are bare ASGI, so their description is here.
"""

import asyncio
import json
from collections.abc import Iterator
from contextlib import AsyncExitStack
from threading import Event, Thread
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis.core.result import Ok

from meshnet_cli.tracker_api import get_json
from meshnet_tracker.testing import running_head, running_tracker

CASES = 60
FUZZ = settings(
    max_examples=25,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
    report_multiple_bugs=False,
)
ANYTHING: dict[str, Any] = {}
STREAM_WITHOUT_END = "/v1/calls/stream"
MESH_ERRORS = {502, 503}
MESSAGE = {
    "type": "object",
    "properties": {
        "role": {"enum": ["system", "user", "assistant", "tool", "developer", "nobody"]},
        "content": {"anyOf": [{"type": "string"}, {"type": "array", "items": ANYTHING, "maxItems": 3}, ANYTHING]},
        "tool_calls": ANYTHING,
    },
}
COMMON = {
    "model": {"enum": ["tiny", "absent", None, 1]},
    "max_tokens": {"anyOf": [{"type": "integer"}, ANYTHING]},
    "temperature": {"anyOf": [{"type": "number"}, ANYTHING]},
    "n": {"anyOf": [{"type": "integer", "minimum": -1, "maximum": 3}, {"type": "string"}]},
    "stop": ANYTHING,
    "seed": ANYTHING,
    "logit_bias": ANYTHING,
    "stream": {"anyOf": [{"type": "boolean"}, ANYTHING]},
    "stream_options": ANYTHING,
    "response_format": ANYTHING,
    "tools": ANYTHING,
    "tool_choice": ANYTHING,
    "route": ANYTHING,
    "unknown_field": ANYTHING,
}


def operation(**properties: Any) -> dict[str, Any]:
    body = {"anyOf": [{"type": "object", "properties": COMMON | properties}, ANYTHING]}
    return {
        "post": {
            "requestBody": {"content": {"application/json": {"schema": body}}},
            "responses": {"default": {"description": "anything"}},
        }
    }


OPENAI = {
    "openapi": "3.1.0",
    "info": {"title": "OpenAI's endpoints", "version": "1"},
    "paths": {
        "/v1/chat/completions": operation(messages={"type": "array", "items": MESSAGE, "maxItems": 3}),
        "/v1/completions": operation(prompt=ANYTHING, suffix=ANYTHING, echo=ANYTHING),
        "/v1/nodes/register": operation(),
        "/v1/nodes/heartbeat": operation(),
        "/v1/nodes/leave": operation(),
    },
}


@pytest.fixture(scope="module")
def tracker_url() -> Iterator[str]:
    """A tracker and a head on a loop of their own, as schemathesis waits for its answers."""
    urls: list[str] = []
    is_up, is_over = Event(), Event()

    async def serve() -> None:
        async with AsyncExitStack() as stack:
            tracker = await stack.enter_async_context(running_tracker())
            head = await stack.enter_async_context(running_head())
            tracker.register("whole", "0-39", url=head.url)
            urls.append(tracker.url)
            is_up.set()
            await asyncio.to_thread(is_over.wait)

    thread = Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    assert is_up.wait(20)
    yield urls[0]
    is_over.set()
    thread.join(20)


def check(case: Any, url: str) -> None:
    response = case.call(base_url=url, timeout=10)
    assert response.status_code < 500 or response.status_code in MESH_ERRORS, case.as_curl_command()
    assert response.headers["x-request-id"][0].startswith("req_")
    kind = response.headers.get("content-type", [""])[0]
    if response.status_code >= 400:
        error = json.loads(response.content)["error"]
        assert set(error) == {"message", "type", "param", "code"}, case.as_curl_command()
        assert isinstance(error["message"], str)
        assert "Traceback" not in error["message"]
        assert kind.startswith("application/json")
    if kind.startswith("text/event-stream"):
        assert response.content.endswith(b"data: [DONE]\n\n")


def fuzz(description: dict[str, Any], url: str) -> int:
    """Every operation of the description with made-up cases; how many cases there were."""
    count = 0
    for found in schemathesis.openapi.from_dict(description).get_all_operations():
        assert isinstance(found, Ok)
        strategy = found.ok().as_strategy()

        @FUZZ
        @given(case=strategy)
        def run(case: Any) -> None:
            nonlocal count
            count += 1
            check(case, url)

        run()
    return count


def test_what_clients_and_nodes_may_send_never_breaks_the_tracker(tracker_url: str) -> None:
    assert fuzz(OPENAI, tracker_url) > CASES


def test_what_the_tracker_describes_of_itself_never_breaks_it(tracker_url: str) -> None:
    described = get_json(tracker_url, "/openapi.json")
    del described["paths"][STREAM_WITHOUT_END]
    assert fuzz(described, tracker_url) > CASES
