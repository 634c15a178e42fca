"""Chats whose every word is known beforehand, and what a client sees of them."""

import http.client
import json
import time
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

CHAT, COMPLETION = "/v1/chat/completions", "/v1/completions"
CLIENT_TIMEOUT_S = 90.0

_STORY = {"messages": [{"role": "user", "content": "Tell me a long story about the sea."}]}
_SEEDED = {"temperature": 0.9, "top_p": 0.95, "seed": 7, "ignore_eos": True}
_LOOK = {"name": "look", "parameters": {"type": "object", "properties": {"at": {"enum": ["sea", "sky"]}}}}
_TOOL = {"type": "function", "function": _LOOK}

WAYS: dict[str, tuple[str, dict[str, Any]]] = {
    "greedy": (CHAT, _STORY | {"temperature": 0, "max_tokens": 48, "ignore_eos": True}),
    "seeded with penalties": (CHAT, _STORY | _SEEDED | {"presence_penalty": 0.7, "max_tokens": 48}),
    "probabilities": (CHAT, _STORY | _SEEDED | {"logprobs": True, "top_logprobs": 2, "max_tokens": 32}),
    "two answers": (CHAT, _STORY | _SEEDED | {"n": 2, "max_tokens": 24}),
    "grammar": (CHAT, _STORY | _SEEDED | {"grammar": 'root ::= ([a-z]+ " ")+ "日本."', "max_tokens": 40}),
    "tool": (CHAT, _STORY | {"tools": [_TOOL], "tool_choice": "required", "temperature": 0, "max_tokens": 60}),
    "completion": (COMPLETION, {"prompt": "The sea is", **_SEEDED, "max_tokens": 40}),
}


@dataclass(slots=True)
class Seen:
    """What one client got: the answers, how it ended, and how long it had to wait for a next word."""

    request_id: str
    status: int
    answers: dict[int, dict[str, Any]] = field(default_factory=dict)
    usage: dict[str, int] | None = None
    errors: list[Any] = field(default_factory=list)
    endings: int = 0
    pause_s_max: float = 0.0

    @property
    def words(self) -> Any:
        """All that must not depend on what became of the nodes."""
        tokens = None if self.usage is None else (self.usage["prompt_tokens"], self.usage["completion_tokens"])
        return self.answers, tokens


def ask(url: str, way: str, *, is_stream: bool, route: list[str] | None = None, on_word: Any = None) -> Seen:
    """One chat to its end; ``on_word`` is called with every chunk of a stream that brings something."""
    path, fields = WAYS[way]
    body = fields | {"stream": is_stream} | ({"route": route} if route else {})
    if is_stream:
        body |= {"stream_options": {"include_usage": True}}
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=CLIENT_TIMEOUT_S)
    try:
        connection.request("POST", path, json.dumps(body))
        response = connection.getresponse()
        seen = Seen(response.headers["x-request-id"], response.status)
        if response.status != 200 or not is_stream:
            _read_whole(seen, json.loads(response.read()))
        else:
            _read_stream(seen, response, on_word)
        return seen
    finally:
        connection.close()


def _read_whole(seen: Seen, answer: dict[str, Any]) -> None:
    seen.endings = 1
    if "error" in answer:
        seen.errors.append(answer["error"])
        return
    for choice in answer["choices"]:
        message = choice.get("message") or {"content": choice["text"]}
        calls = [call["function"] for call in message.get("tool_calls") or ()]
        _add(seen, choice["index"], message["content"] or "", calls, choice["logprobs"], choice["finish_reason"])
    seen.usage = answer["usage"]


def _read_stream(seen: Seen, response: http.client.HTTPResponse, on_word: Any) -> None:
    latest = time.monotonic()
    for line in response:
        data = line.strip().removeprefix(b"data: ")
        if not line.startswith(b"data: "):
            continue
        if data == b"[DONE]":
            seen.endings += 1
            continue
        event = json.loads(data)
        if "error" in event:
            seen.errors.append(event["error"])
            continue
        for choice in event["choices"]:
            delta = choice.get("delta") or {"content": choice.get("text")}
            calls = [call["function"] for call in delta.get("tool_calls") or ()]
            _add(seen, choice["index"], delta.get("content") or "", calls, choice["logprobs"], choice["finish_reason"])
            if delta.get("content") and on_word is not None:
                on_word()
        seen.usage = event.get("usage") or seen.usage
        seen.pause_s_max = max(seen.pause_s_max, time.monotonic() - latest)
        latest = time.monotonic()


def _add(seen: Seen, index: int, content: str, calls: list[Any], logprobs: Any, finish: str | None) -> None:
    answer = seen.answers.setdefault(index, {"content": "", "calls": [], "logprobs": [], "finish": None})
    answer["content"] += content
    answer["calls"] += calls
    answer["logprobs"] += (logprobs or {}).get("content") or []
    answer["finish"] = finish or answer["finish"]
