"""Errors: settled before the 200 where they can be, and always in one form."""

from typing import Any
from urllib.parse import urlsplit

import pytest

from .endpoint import CHAT, COMPLETION, FRANCE, Endpoint


@pytest.mark.parametrize("path", [CHAT, COMPLETION])
@pytest.mark.parametrize("body", [b"", b"[]", b"{", b"null", rb'{"prompt": "\ud800", "messages": ["\ud800"]}'])
def test_a_body_that_is_no_object_is_a_400(endpoint: Endpoint, path: str, body: bytes) -> None:
    answer = endpoint.send("POST", path, body)

    assert (answer.status, answer.error["code"], answer.headers["content-type"]) == (400, None, "application/json")


@pytest.mark.parametrize(
    ("fields", "status", "code"),
    [
        ({"model": "nobody/has-this"}, 404, "model_not_found"),
        ({"route": ["nobody"]}, 400, "invalid_route"),
        ({"route": []}, 400, "invalid_route"),
        ({"messages": [{"role": "user", "content": "word " * 6000}]}, 400, "context_length_exceeded"),
        ({"grammar": "root ::= ("}, 400, "invalid_grammar"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_each_kind_of_error_has_its_status_and_code(
    endpoint: Endpoint, fields: dict[str, Any], status: int, code: str, stream: bool
) -> None:
    answer = endpoint.chat(**fields, stream=stream)

    assert (answer.status, answer.error["code"]) == (status, code)
    assert set(answer.error) == {"message", "type", "param", "code"}
    assert answer.headers["x-request-id"]


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", COMPLETION, 405), ("PUT", CHAT, 405), ("DELETE", "/v1/models", 405), ("GET", "/v1/nothing", 404)],
)
def test_unknown_paths_and_wrong_methods_are_told_in_json(
    endpoint: Endpoint, method: str, path: str, status: int
) -> None:
    answer = endpoint.send(method, path)
    assert (answer.status, set(answer.error)) == (status, {"message", "type", "param", "code"})


def test_every_answer_has_an_id_and_names_its_arm(endpoint: Endpoint) -> None:
    answer = endpoint.chat(max_tokens=1, route=endpoint.routes[3])

    assert answer.headers["x-request-id"]
    assert answer.headers["x-meshnet-route"].count(" -> ") == 2


@pytest.mark.parametrize("path", [CHAT, COMPLETION, "/v1/models"])
def test_any_page_may_ask_the_openai_endpoints(endpoint: Endpoint, path: str) -> None:
    origin = {"Origin": "https://page.example"}
    preflight = endpoint.send("OPTIONS", path, headers=origin | {"Access-Control-Request-Headers": "x-stainless-os"})

    assert preflight.status == 204
    assert preflight.headers["access-control-allow-headers"] == "x-stainless-os"
    assert preflight.headers["access-control-allow-credentials"] is None


@pytest.mark.parametrize("path", ["/v1/nodes", "/v1/routing", "/v1/events", "/v1/nodes/register"])
def test_a_page_whose_name_was_made_to_point_here_gets_nothing_but_models(endpoint: Endpoint, path: str) -> None:
    """DNS rebinding: the page's own name leads to loopback, so its origin and the host agree."""
    port = urlsplit(endpoint.url).port
    rebound = {"Host": f"page.example:{port}", "Origin": f"http://page.example:{port}"}
    method = "POST" if path.endswith("register") else "GET"

    for headers in (rebound, {"Host": rebound["Host"]}):
        assert endpoint.send(method, path, headers=headers).status == 403
    assert endpoint.send("GET", "/v1/models", headers=rebound).status == 200
    assert endpoint.send("GET", "/v1/nodes", headers={"Host": f"localhost:{port}"}).status == 200


def test_a_chat_needs_no_content_type(endpoint: Endpoint) -> None:
    assert endpoint.chat(FRANCE, max_tokens=1).status == 200
