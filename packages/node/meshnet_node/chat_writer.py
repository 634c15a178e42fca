"""How a head's answers look on the wire: chunks of an OpenAI chat stream, or one object.

Token ids and timings ride along in ``meshnet``. Text completions are written in the same words: whoever asked
the tracker for one gets it from there in the completions' own form.
"""

import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any
from uuid import uuid4

import msgspec

from meshnet_node.answer_parser import Content, Thinking, joined
from meshnet_node.errors import LinkError, NodeError, RemoteHopError, RequestError, UpstreamRefusalError
from meshnet_node.head import ChatBegun, ChatEnd, ChatEvent, ChoiceDelta, ChoiceEnd, HeadChat, PrefillProgress
from meshnet_node.tool_format import ParsedCall
from meshnet_protocol.ids import NodeId
from meshnet_protocol.messages import (
    ChatChunk,
    Choice,
    ChoiceLogprobs,
    ContentLogprob,
    Delta,
    FunctionDelta,
    HeadReport,
    ToolCallDelta,
    Usage,
)
from meshnet_protocol.whole_choice import WholeChoice


class ChatWriter:
    """Writes one request's answers. ``for_tracker``: with chunks on the side that say nothing to a client."""

    def __init__(self, model: str, *, for_tracker: bool = False) -> None:
        self._for_tracker = for_tracker
        self._id = f"chatcmpl-{uuid4().hex}"
        self._created = int(time.time())
        self._model = model
        self._index = -1
        self._call_count = 0

    async def write(self, chat: HeadChat) -> AsyncGenerator[bytes, None]:
        """The stream's events, but its last."""
        async with aclosing(chat.stream()) as events:
            async for event in events:
                for chunk in self._chunks(event):
                    yield b"data: " + msgspec.json.encode(chunk) + b"\n\n"

    async def collect(self, chat: HeadChat) -> bytes:
        """All answers as one ``chat.completion`` object."""
        choices: dict[int, WholeChoice] = {}
        usage: Usage | msgspec.UnsetType = msgspec.UNSET
        async with aclosing(chat.stream()) as events:
            async for event in events:
                for chunk in self._chunks(event):
                    usage = chunk.usage or usage
                    for choice in chunk.choices:
                        choices.setdefault(choice.index, WholeChoice()).take(choice)
        return msgspec.json.encode(
            {
                "id": self._id,
                "object": "chat.completion",
                "created": self._created,
                "model": self._model,
                "choices": [choice.in_chat(index) for index, choice in choices.items()],
                "usage": usage,
            }
        )

    def error(self, error: NodeError) -> bytes:
        return b"data: " + msgspec.json.encode({"error": error_body(error)}) + b"\n\n"

    def _chunks(self, event: ChatEvent) -> list[ChatChunk]:
        match event:
            case ChatBegun(prompt_tokens, resumed_tokens):
                return self._aside(HeadReport(prompt_tokens=prompt_tokens, resumed_tokens=resumed_tokens))
            case PrefillProgress(tokens):
                return self._aside(HeadReport(prefilled_tokens=tokens))
            case ChoiceDelta(is_replayed=True):
                self._delta(event)  # counts its tool calls
                return []
            case ChoiceDelta(index):
                begins = index != self._index
                delta = self._delta(event)
                chunk = self._chunk(
                    [Choice(index=index, delta=delta, logprobs=_logprobs(event.logprobs))],
                    meshnet=HeadReport(token_ids=event.token_ids, logprobs=event.raw_logprobs),
                )
                role = Choice(index=index, delta=Delta(role="assistant", content=""))
                return [self._chunk([role]), chunk] if begins else [chunk]
            case ChoiceEnd(index, finish_reason):
                return [self._chunk([Choice(index=index, delta=Delta(), finish_reason=finish_reason)])]
            case ChatEnd(usage, timings):
                return [self._chunk([], usage=usage, meshnet=HeadReport(timings=timings))]

    def _aside(self, report: HeadReport) -> list[ChatChunk]:
        return [self._chunk([], meshnet=report)] if self._for_tracker else []

    def _delta(self, event: ChoiceDelta) -> Delta:
        if event.index != self._index:
            self._index, self._call_count = event.index, 0
        calls = [self._call(part) for part in event.parts if isinstance(part, ParsedCall)]
        return Delta(
            content=joined(event.parts, Content),
            reasoning_content=joined(event.parts, Thinking),
            tool_calls=calls,
        )

    def _call(self, call: ParsedCall) -> ToolCallDelta:
        self._call_count += 1
        return ToolCallDelta(
            index=self._call_count - 1,
            id=f"call_{uuid4().hex[:24]}",
            function=FunctionDelta(name=call.name, arguments=call.arguments),
        )

    def _chunk(self, choices: list[Choice], **fields: Any) -> ChatChunk:
        return ChatChunk(id=self._id, created=self._created, model=self._model, choices=choices, **fields)


def error_body(error: NodeError) -> dict[str, str | None]:
    """An OpenAI error object. ``culprit`` is the hop further down that failed, where one did, and ``reporter`` the hop
    before it, if it is the link between the two that broke; empty stands for the head itself."""
    culprit: NodeId | None = None
    reporter: NodeId | None = None
    match error:
        case LinkError():
            culprit, reporter = error.node_id, NodeId("")
        case RemoteHopError():
            culprit, reporter = error.culprit, error.reporter
        case _:
            pass
    return {
        "message": str(error),
        "type": "meshnet_node_error",
        "param": error.param if isinstance(error, RequestError | UpstreamRefusalError) else None,
        "code": error.code,
        "culprit": culprit,
        "reporter": reporter,
    }


def _logprobs(entries: Sequence[ContentLogprob]) -> ChoiceLogprobs | None:
    return ChoiceLogprobs(content=list(entries)) if entries else None
