"""OpenAI's own dialect, for the server behind an ``--upstream`` node: what is asked there, and what its chunks mean.

Servers differ in what they know beyond the common core, so a field is sent only where the request departs from its
default. Several answers, or several prompts, are asked for one after the other: many servers ignore ``n`` and
lists of prompts, and the mesh must get as many answers as it was promised. Tool calls come from other servers in
pieces and leave here whole, as every head's do. Thoughts that a server leaves in the text, between their marks, are
taken out of it.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec

from meshnet_node.answer_parser import AnswerParser, Content, Part, Thinking, joined
from meshnet_protocol.messages import (
    PENALTY_TOKENS_DEFAULT,
    Choice,
    ChoiceLogprobs,
    ContentLogprob,
    Delta,
    FunctionDelta,
    HeadRequest,
    PromptTokensDetails,
    ToolCallDelta,
    TopLogprob,
    Usage,
)

CHAT_PATH, COMPLETION_PATH = "/chat/completions", "/completions"
SEEDS = 2**31
"""Servers take seeds of 32 bits at least, some of them signed."""
TOOL_CALLS_MAX = 128

Json = dict[str, Any]
_DEFAULTS = HeadRequest()


@dataclass(frozen=True, slots=True)
class UpstreamAsk:
    """One answer, as it is asked for."""

    index: int
    path: str
    body: Json

    def new_reader(self) -> "AnswerReader":
        """A text completion is text, whatever it looks like."""
        return AnswerReader(self.index, AnswerParser() if self.path == CHAT_PATH else None)


def asks_of(request: HeadRequest, model: str) -> Iterator[UpstreamAsk]:
    """One for each answer the request wants, in the order of their indices."""
    common = _common(request) | {"model": model, "stream": True, "stream_options": {"include_usage": True}}
    for index in range(max(1, len(request.prompts)) * request.n):
        body = dict(common)
        if request.seed is not None:
            body["seed"] = (request.seed + index % request.n) % SEEDS
        if request.prompts:
            yield UpstreamAsk(index, COMPLETION_PATH, body | {"prompt": request.prompts[index // request.n]})
        else:
            yield UpstreamAsk(index, CHAT_PATH, body | _chat_only(request))


def _common(request: HeadRequest) -> Json:
    body: Json = {"temperature": request.temperature}
    for name in ("top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty", "stop", "ignore_eos", "grammar"):
        value = getattr(request, name)
        if value != getattr(_DEFAULTS, name):
            body[name] = value
    if request.max_tokens is not None:
        body["max_tokens"] = request.max_tokens
    if request.repeat_penalty != 1.0:  # llama.cpp's name for it, and that of the others
        body |= {"repeat_penalty": request.repeat_penalty, "repetition_penalty": request.repeat_penalty}
    if request.penalty_tokens != PENALTY_TOKENS_DEFAULT:
        body["repeat_last_n"] = request.penalty_tokens
    if request.logit_bias:
        body["logit_bias"] = {str(token): bias for token, bias in request.logit_bias.items()}
    if request.response_schema is not None:
        body["response_format"] = _response_format(request.response_schema)
    if request.top_logprobs is not None:
        chat = {"logprobs": True, "top_logprobs": request.top_logprobs}
        body |= {"logprobs": request.top_logprobs} if request.prompts else chat
    return body


def _response_format(schema: Json) -> Json:
    if not schema:
        return {"type": "json_object"}
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}


def _chat_only(request: HeadRequest) -> Json:
    body: Json = {"messages": request.messages}
    if request.tools:
        body["tools"] = [{"type": "function", "function": msgspec.to_builtins(tool)} for tool in request.tools]
        named = {"type": "function", "function": {"name": request.tool_choice}}
        body["tool_choice"] = request.tool_choice if request.tool_choice in ("auto", "required") else named
    return body


@dataclass(slots=True)
class AnswerReader:
    """Reads one answer's chunks. What it raises on nonsense: KeyError, TypeError, ValueError, AttributeError."""

    index: int
    parser: AnswerParser | None = None
    """Tells thoughts from the rest of the text; None: all of it is text."""
    usage: Usage | None = None
    piece_count: int = 0
    """Chunks that had something in them: stands for tokens where the server counts none."""
    finish_reason: str | None = None
    _calls: dict[int, Json] = field(default_factory=dict)

    def read(self, chunk: Json) -> Choice | None:
        """What the chunk adds to the answer, if it adds something."""
        if chunk.get("error") is not None:
            error = chunk["error"]
            raise ValueError(str(error.get("message") if isinstance(error, dict) else error))
        if chunk.get("usage") is not None:
            self.usage = _usage(chunk["usage"])
        if not chunk.get("choices"):
            return None
        choice: Json = chunk["choices"][0]
        self.finish_reason = choice.get("finish_reason") or self.finish_reason
        delta = choice.get("delta") or {"content": choice.get("text")}
        self._gather_calls(delta.get("tool_calls") or ())
        text, thoughts = _text(delta.get("content")), _text(delta.get("reasoning_content") or delta.get("reasoning"))
        logprobs = _logprobs(choice.get("logprobs"))
        if text is None and thoughts is None and logprobs is None:
            return None
        self.piece_count += 1
        held: list[Part] = []
        if thoughts is not None and self.parser is not None:
            # The server tells them apart itself: what looks like their marks is text.
            held, self.parser = self.parser.finish(), None
        added = self._delta([*held, *self._parts(text or "")], thoughts)
        return None if added.is_empty and logprobs is None else Choice(index=self.index, delta=added, logprobs=logprobs)

    def finish(self) -> list[Choice]:
        """The answer's last words: what was held back, its tool calls, and why it ended."""
        calls = [
            ToolCallDelta(
                index=number,
                id=call["id"] or f"call_{self.index}_{number}",
                function=FunctionDelta(name=call["name"], arguments=call["arguments"] or "{}"),
            )
            for number, (_, call) in enumerate(sorted(self._calls.items()))
        ]
        reason = "tool_calls" if calls and self.finish_reason != "length" else self.finish_reason or "stop"
        rest = msgspec.structs.replace(self._delta(self.parser.finish() if self.parser else []), tool_calls=calls)
        end = Choice(index=self.index, delta=Delta(), finish_reason=reason)
        return [end] if rest.is_empty else [Choice(index=self.index, delta=rest), end]

    def _parts(self, text: str) -> list[Part]:
        return self.parser.push(text) if self.parser else [Content(text)]

    @staticmethod
    def _delta(parts: list[Part], thoughts: str | None = None) -> Delta:
        return Delta(content=joined(parts, Content), reasoning_content=thoughts or joined(parts, Thinking))

    def _gather_calls(self, deltas: Any) -> None:
        for position, delta in enumerate(deltas):
            number = int(delta.get("index", position))
            if number not in self._calls and len(self._calls) >= TOOL_CALLS_MAX:
                raise ValueError(f"more than {TOOL_CALLS_MAX} tool calls")
            self.piece_count += 1
            call = self._calls.setdefault(number, {"id": "", "name": "", "arguments": ""})
            function = delta.get("function") or {}
            call["id"] = delta.get("id") or call["id"]
            call["name"] += _text(function.get("name")) or ""
            call["arguments"] += _text(function.get("arguments")) or ""


def sum_usage(readers: list[AnswerReader], answers_per_prompt: int) -> Usage:
    """The prompt counts once, however many answers it gets."""
    counts = [reader.usage or _pieces(reader) for reader in readers]
    prompts = counts[::answers_per_prompt]
    prompt, completion = sum(one.prompt_tokens for one in prompts), sum(one.completion_tokens for one in counts)
    cached = sum(one.prompt_tokens_details.cached_tokens for one in prompts)
    return Usage(
        prompt_tokens=prompt,
        completion_tokens=completion,
        total_tokens=prompt + completion,
        prompt_tokens_details=PromptTokensDetails(cached_tokens=cached),
    )


def _pieces(reader: AnswerReader) -> Usage:
    return Usage(prompt_tokens=0, completion_tokens=reader.piece_count, total_tokens=reader.piece_count)


def _usage(usage: Json) -> Usage:
    prompt, completion = int(usage.get("prompt_tokens") or 0), int(usage.get("completion_tokens") or 0)
    if prompt < 0 or completion < 0:
        raise ValueError("usage below zero")
    cached = int((usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0)
    details = PromptTokensDetails(cached_tokens=cached)
    total = prompt + completion
    return Usage(prompt_tokens=prompt, completion_tokens=completion, total_tokens=total, prompt_tokens_details=details)


def _text(value: Any) -> str | None:
    if value is not None and not isinstance(value, str):
        raise TypeError("a text that is none")
    return value or None


def _logprobs(logprobs: Any) -> ChoiceLogprobs | None:
    """Of a chat, or of a text completion, which has another form."""
    if not logprobs:
        return None
    if "tokens" in logprobs:
        entries = [_completion_entry(logprobs, number) for number in range(len(logprobs["tokens"]))]
    else:
        entries = [
            ContentLogprob(
                token=entry["token"],
                logprob=entry["logprob"],
                bytes=_bytes(entry),
                top_logprobs=[
                    _top(top["token"], top["logprob"], _bytes(top)) for top in entry.get("top_logprobs") or ()
                ],
            )
            for entry in logprobs.get("content") or ()
        ]
    return ChoiceLogprobs(content=entries) if entries else None


def _completion_entry(logprobs: Json, number: int) -> ContentLogprob:
    token = logprobs["tokens"][number]
    tops = (logprobs.get("top_logprobs") or {number: None})[number] or {}
    return ContentLogprob(
        token=token,
        logprob=logprobs["token_logprobs"][number] or 0.0,
        bytes=list(token.encode()),
        top_logprobs=[_top(text, value, list(text.encode())) for text, value in tops.items()],
    )


def _bytes(entry: Json) -> list[int]:
    return entry.get("bytes") or list(entry["token"].encode())


def _top(token: str, logprob: float, data: list[int]) -> TopLogprob:
    return TopLogprob(token=token, logprob=logprob, bytes=data)
