"""A law: wherever an answer is broken off, another head goes on so that the whole is what it would have been.

Real engines behind real sockets; what one head has said is kept by the tracker's own ``AnswerProgress``. The model is
cut down to two layers at each end: it talks nonsense, which is hard on text machinery, and quick.
"""

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from meshnet_node.engine.api import Engine
from meshnet_protocol.layers import LayerRange
from meshnet_protocol.messages import ChoiceSoFar, HeadRequest
from meshnet_tracker.answer_progress import AnswerProgress
from meshnet_tracker.head_events import HeadEvent, decode_event
from meshnet_tracker.openai_schema import ChatCall
from node.engine_helpers import options
from node.route_helpers import LocalRoute, local_route

SEEDED = {"temperature": 1.5, "seed": 11, "max_tokens": 14, "ignore_eos": True}
PENALTIES = {"presence_penalty": 0.7, "frequency_penalty": 0.4, "repeat_penalty": 1.15}
CALL = {"name": "look", "parameters": {"type": "object", "properties": {"at": {"enum": ["sea", "sky"]}}}}
CUTS_MAX = 12
WAYS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0, "max_tokens": 14},
    "seeded, with penalties": SEEDED | PENALTIES,
    "probabilities behind a stop string": SEEDED
    | {"grammar": 'root ::= "one two three four five"', "stop": ["e six", "five"], "top_logprobs": 2, "max_tokens": 40},
    "characters of many tokens": SEEDED
    | {"grammar": 'root ::= "naïve 🎉 日本 🧑‍🚀"', "max_tokens": 60, "top_logprobs": 0},
    "a tool call": SEEDED | {"tools": [CALL], "tool_choice": "required", "max_tokens": 60},
    "two tool calls and words": SEEDED
    | {
        "tools": [CALL],
        "grammar": 'root ::= "ah" call "so" call\ncall ::= "<tool_call>{\\"name\\": \\"look\\", '
        '\\"arguments\\": {\\"at\\": \\"sea\\"}}</tool_call>"',
        "max_tokens": 120,
    },
    "thoughts": SEEDED | {"grammar": 'root ::= "<think>it is \\n so</think> indeed <thin"', "max_tokens": 60},
    "two answers": SEEDED | PENALTIES | {"n": 2, "max_tokens": 7, "top_logprobs": 1},
    "completions of two prompts": SEEDED | {"prompts": ["One", "Two or"], "messages": [], "max_tokens": 6},
    "answers without a token": SEEDED | {"n": 2, "max_tokens": 0},
}


@pytest.fixture(scope="module")
def engines(model_path: Path, cache_dir: Path) -> Iterator[list[Engine]]:
    settings = options(cache_dir, slots=4, context_tokens=512, chunk_tokens=16)
    built = [Engine.load(model_path, LayerRange(*shard), settings) for shard in ((0, 1), (28, 29))]
    yield built
    for engine in built:
        engine.close()


class Client:
    """What a client of the tracker would have got, over all heads."""

    def __init__(self, request: dict[str, Any]) -> None:
        head_request = msgspec.convert(request, type=HeadRequest)
        call = ChatCall(model=None, is_stream=True, includes_usage=True, pinned=None, head_request=head_request)
        self.progress = AnswerProgress(call)
        self.answers: dict[int, dict[str, Any]] = {}

    def hear(self, event: HeadEvent) -> None:
        for choice in self.progress.take(event)[0]:
            new: dict[str, Any] = {"content": "", "thoughts": "", "calls": [], "logprobs": [], "finish": None}
            answer = self.answers.setdefault(choice.index, new)
            answer["content"] += choice.delta.content or ""
            answer["thoughts"] += choice.delta.reasoning_content or ""
            answer["calls"] += [(call.index, call.function) for call in choice.delta.tool_calls]
            answer["logprobs"] += choice.logprobs.content if choice.logprobs else []
            answer["finish"] = choice.finish_reason


async def said_by_head(route: LocalRoute, way: dict[str, Any], so_far: tuple[ChoiceSoFar, ...] = ()) -> list[HeadEvent]:
    body = route.body("Tell me of the sea.", stream=True, so_far=msgspec.to_builtins(so_far), **way)
    async with route.http.post(route.chat_url, json=body) as response:
        assert response.status == 200, await response.text()
        *lines, done = (line for line in (await response.text()).split("\n\n") if line)
    assert done == "data: [DONE]"
    return [decode_event(line.removeprefix("data: ").encode()) for line in lines]


def cuts_of(events: list[HeadEvent]) -> list[int]:
    """All of a short answer; of a long one some, the first and the last among them. The last cut is a whole answer."""
    return sorted({*range(0, len(events), 1 + len(events) // CUTS_MAX), len(events) - 2, len(events) - 1})


def tokens_of(client: Client) -> tuple[int, int]:
    usage = client.progress.usage
    return usage.prompt_tokens, usage.completion_tokens


@asynccontextmanager
async def route_of(engines: list[Engine], folder: Path) -> AsyncIterator[LocalRoute]:
    async with local_route(engines, folder) as route:
        yield route
        await route.wait_idle()


@pytest.mark.parametrize("way", WAYS)
async def test_wherever_an_answer_breaks_off_the_whole_is_the_same(
    engines: list[Engine], tmp_path: Path, way: str
) -> None:
    async with route_of(engines, tmp_path) as route:
        request = {"messages": [{"role": "user", "content": "x"}]} | WAYS[way]
        events = await said_by_head(route, WAYS[way])
        undisturbed = Client(request)
        undisturbed.progress.begin_attempt()
        for event in events:
            undisturbed.hear(event)
        assert undisturbed.progress.is_complete

        for cut in cuts_of(events):
            broken = Client(request)
            broken.progress.begin_attempt()
            for event in events[:cut]:
                broken.hear(event)
            if broken.progress.is_complete:
                break
            so_far = broken.progress.begin_attempt()
            for event in await said_by_head(route, WAYS[way], so_far):
                broken.hear(event)

            assert broken.answers == undisturbed.answers, f"broken off after {cut} events"
            counts = [
                (p.usage.prompt_tokens, p.usage.completion_tokens) for p in (broken.progress, undisturbed.progress)
            ]
            assert counts[0] == counts[1]
        else:
            raise AssertionError("the last word ends it")


async def test_an_answer_may_break_off_at_every_single_token(engines: list[Engine], tmp_path: Path) -> None:
    way = WAYS["probabilities behind a stop string"]
    request = {"messages": [{"role": "user", "content": "x"}]} | way
    async with route_of(engines, tmp_path) as route:
        undisturbed, broken = Client(request), Client(request)
        undisturbed.progress.begin_attempt()
        for event in await said_by_head(route, way):
            undisturbed.hear(event)
        attempts = 0
        while not broken.progress.is_complete:
            attempts += 1
            so_far, drawn = broken.progress.begin_attempt(), broken.progress.drawn_tokens
            for event in await said_by_head(route, way, so_far):
                broken.hear(event)
                if broken.progress.drawn_tokens > drawn:
                    break

    assert broken.answers == undisturbed.answers
    assert attempts >= broken.progress.drawn_tokens > 5


@pytest.mark.parametrize(
    ("so_far", "code"),
    [
        ([{"token_ids": [10**6]}], "invalid_request"),
        ([{"token_ids": [-1]}], "invalid_request"),
        ([{"token_ids": [1], "is_finished": True}], "invalid_request"),
        ([{"token_ids": [1]}, {"token_ids": [1]}], "invalid_request"),
        ([{"token_ids": [1] * 600}], "context_length_exceeded"),
    ],
)
async def test_what_nobody_can_go_on_from_is_refused_before_anything_runs(
    engines: list[Engine], tmp_path: Path, so_far: Any, code: str
) -> None:
    async with route_of(engines, tmp_path) as route:
        answer = await route.chat("Hi", so_far=so_far)
    assert answer["error"]["code"] == code, json.dumps(answer)
