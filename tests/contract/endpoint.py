"""A client that hides nothing: status, headers and bytes as they came, beside the parsed words."""

import http.client
import json
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from urllib.parse import urlsplit

from meshnet_cli.tracker_api import get_json

CHAT, COMPLETION = "/v1/chat/completions", "/v1/completions"
STORY = [{"role": "user", "content": "Tell me a long story about the sea."}]
FRANCE = [{"role": "user", "content": "What is the capital of France? Answer in one sentence."}]


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    headers: http.client.HTTPMessage
    text: str

    @property
    def json(self) -> Any:
        return json.loads(self.text)

    @property
    def error(self) -> Any:
        return self.json["error"]

    @property
    def choice(self) -> Any:
        assert self.status == 200, self.text
        (choice,) = self.json["choices"]
        return choice

    @property
    def content(self) -> Any:
        return self.choice["message"]["content"]

    @property
    def events(self) -> list[Any]:
        """Of a stream, without comments and the final mark."""
        assert self.status == 200, self.text
        *blocks, done, nothing = self.text.split("\n\n")
        assert (done, nothing) == ("data: [DONE]", "")
        return [json.loads(block.removeprefix("data: ")) for block in blocks if not block.startswith(":")]

    def joined(self, name: str = "content") -> str:
        """All that the stream's deltas say under a name."""
        choices = [choice for event in self.events for choice in event["choices"]]
        return "".join(choice["delta"].get(name) or "" for choice in choices)


@dataclass(frozen=True)
class Endpoint:
    url: str

    @cached_property
    def routes(self) -> dict[int, list[str]]:
        """By how many hops they have."""
        nodes = get_json(self.url, "/v1/nodes")["nodes"]
        ids = {node["node_id"].split(".")[0]: node["node_id"] for node in nodes}
        names = {1: ["whole"], 2: ["first", "whole"], 3: ["first", "middle", "last"]}
        return {count: [ids[name] for name in hops] for count, hops in names.items()}

    def send(self, method: str, path: str, body: bytes | None = None, headers: dict[str, str] | None = None) -> Answer:
        connection = http.client.HTTPConnection(urlsplit(self.url).netloc, timeout=60)
        try:
            connection.request(method, path, body, headers or {})
            response = connection.getresponse()
            return Answer(response.status, response.headers, response.read().decode())
        finally:
            connection.close()

    def post(self, path: str, **fields: Any) -> Answer:
        return self.send("POST", path, json.dumps(fields).encode())

    def chat(self, messages: Any = None, **fields: Any) -> Answer:
        defaults = {"messages": messages or FRANCE, "max_tokens": 16, "temperature": 0}
        return self.post(CHAT, **(defaults | fields))

    def complete(self, prompt: Any, **fields: Any) -> Answer:
        return self.post(COMPLETION, **({"prompt": prompt, "max_tokens": 8, "temperature": 0} | fields))
