"""An OpenAI request, as clients in the field really write it, into a ``HeadRequest``.

Lenient in: null means absent, unknown fields are ignored, values come in all their forms. Strict where a
wrong guess would be worse than a refusal: a field whose meaning would be lost is refused unless it asks for
nothing. The one field of our own, ``route``, must be exactly a list of node ids.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from random import Random
from typing import Any

from meshnet_protocol.ids import NodeId
from meshnet_protocol.messages import PENALTY_TOKENS_DEFAULT, PENALTY_TOKENS_MAX, HeadRequest
from meshnet_tracker.errors import InvalidRouteError, MalformedRequestError
from meshnet_tracker.openai_fields import (
    INTEGER_MAX,
    TOKENS_MAX,
    Json,
    decode_object,
    flag,
    integer,
    logit_bias,
    number,
    stop_strings,
    token_limit,
    typed,
)
from meshnet_tracker.openai_messages import read_messages
from meshnet_tracker.openai_tools import read_response_format, read_tools

SEED_MIN, SEED_MAX = -(2**63), INTEGER_MAX
# Every JSON reader holds 53 bits exactly, so that a seed can be copied from an event to repeat a chat.
DRAWN_SEED_BITS = 53
ROUTE_HOPS_MAX = 1000
CHOICES_MAX = 128
TOP_LOGPROBS_MAX = 20

# What each of these fields may say without asking for something that is not there.
_UNSUPPORTED_IN_CHATS: dict[str, Callable[[Any], bool]] = {
    "functions": lambda value: value == [],
    "function_call": lambda value: value in ("none", "auto"),
}
_UNSUPPORTED_IN_COMPLETIONS: dict[str, Callable[[Any], bool]] = {
    "echo": lambda value: value is False,
    "suffix": lambda value: value == "",
}
_INSTEAD = {
    "functions": "use 'tools'",
    "function_call": "use 'tool_choice'",
    "echo": "put the prompt before the answer yourself",
    "suffix": "put what follows into the prompt",
}


class Dialect(StrEnum):
    """In which of OpenAI's two forms a request came, and its answer goes."""

    CHAT = "chat"
    COMPLETION = "completion"


CHARS_PER_TOKEN = 4


@dataclass(frozen=True, slots=True)
class ChatCall:
    """What a client asked for. ``head_request`` lacks its model name and plan until a route is chosen."""

    model: str | None
    is_stream: bool
    includes_usage: bool
    pinned: tuple[NodeId, ...] | None
    head_request: HeadRequest
    dialect: Dialect = Dialect.CHAT

    @property
    def choice_count(self) -> int:
        return self.head_request.n * max(1, len(self.head_request.prompts))

    @property
    def prompt_tokens_about(self) -> int:
        """A guess from the length of the text: only the head can count tokens."""
        contents = (message.get("content") for message in self.head_request.messages)
        return sum(len(content) for content in contents if isinstance(content, str)) // CHARS_PER_TOKEN


def parse_request(body: bytes, dialect: Dialect, *, seed_rng: Random) -> ChatCall:
    """Raises MalformedRequestError or InvalidRouteError. A request without a seed gets one drawn."""
    parse = parse_chat if dialect is Dialect.CHAT else parse_completion
    return parse(body, seed_rng=seed_rng)


def parse_chat(body: bytes, *, seed_rng: Random) -> ChatCall:
    """Body of ``POST /v1/chat/completions``. Raises as ``parse_request``."""
    fields = decode_object(body)
    _refuse(fields, _UNSUPPORTED_IN_CHATS)
    tools, tool_choice = read_tools(fields)
    return _call(
        fields,
        seed_rng,
        Dialect.CHAT,
        messages=read_messages(fields),
        top_logprobs=_chat_logprobs(fields),
        tools=tools,
        tool_choice=tool_choice,
        response_schema=read_response_format(fields),
    )


def parse_completion(body: bytes, *, seed_rng: Random) -> ChatCall:
    """Body of ``POST /v1/completions``. Raises as ``parse_request``."""
    fields = decode_object(body)
    _refuse(fields, _UNSUPPORTED_IN_COMPLETIONS)
    best_of = integer(fields, "best_of", 1, CHOICES_MAX)
    if best_of not in (None, 1, _choice_count(fields)):
        raise MalformedRequestError("'best_of' other than 'n' is not supported by this server.", param="best_of")
    prompts = _prompts(fields)
    return _call(
        fields,
        seed_rng,
        Dialect.COMPLETION,
        prompts=prompts,
        top_logprobs=_completion_logprobs(fields),
        response_schema=read_response_format(fields),
    )


def _call(fields: Json, seed_rng: Random, dialect: Dialect, **own: Any) -> ChatCall:
    """``own``: the fields of the head's request that only this dialect has, or has in its own form."""
    stream_options = typed(fields, "stream_options", dict, "an object") or {}
    seed = integer(fields, "seed", SEED_MIN, SEED_MAX)
    call = ChatCall(
        model=typed(fields, "model", str, "a string") or None,
        is_stream=flag(fields, "stream"),
        includes_usage=flag(stream_options, "include_usage"),
        pinned=_route(fields),
        dialect=dialect,
        head_request=HeadRequest(
            n=_choice_count(fields),
            temperature=number(fields, "temperature", 0, 2, default=1.0),
            top_p=number(fields, "top_p", 0, 1, default=1.0),
            top_k=max(0, integer(fields, "top_k", -1, TOKENS_MAX) or 0),
            min_p=number(fields, "min_p", 0, 1, default=0.0),
            presence_penalty=number(fields, "presence_penalty", -2, 2, default=0.0),
            frequency_penalty=number(fields, "frequency_penalty", -2, 2, default=0.0),
            repeat_penalty=number(fields, "repeat_penalty", 0.01, 10, default=1.0),
            penalty_tokens=_penalty_tokens(fields),
            logit_bias=logit_bias(fields),
            seed=seed_rng.getrandbits(DRAWN_SEED_BITS) if seed is None else seed,
            max_tokens=token_limit(fields),
            stop=stop_strings(fields),
            ignore_eos=flag(fields, "ignore_eos"),
            cache_prompt=fields.get("cache_prompt") is None or flag(fields, "cache_prompt"),
            grammar=typed(fields, "grammar", str, "a string") or "",
            **own,
        ),
    )
    _check_one_shape(call)
    return call


def _refuse(fields: Json, unsupported: Mapping[str, Callable[[Any], bool]]) -> None:
    for name, is_neutral in unsupported.items():
        if name in fields and not is_neutral(fields[name]):
            raise MalformedRequestError(f"'{name}' is not supported by this server; {_INSTEAD[name]}.", param=name)


def _check_one_shape(call: ChatCall) -> None:
    """An answer can follow one grammar only."""
    request = call.head_request
    must_call = bool(request.tools) and request.tool_choice != "auto"
    if request.grammar and (must_call or request.response_schema is not None):
        other = "tool_choice" if must_call else "response_format"
        raise MalformedRequestError(f"'grammar' and '{other}' exclude each other; send one of them.", param="grammar")
    if call.choice_count > CHOICES_MAX:
        raise MalformedRequestError(f"At most {CHOICES_MAX} answers can be asked for at once.", param="n")


def _choice_count(fields: Json) -> int:
    count = integer(fields, "n", 1, CHOICES_MAX)
    return 1 if count is None else count


def _penalty_tokens(fields: Json) -> int:
    """llama.cpp's ``repeat_last_n``; -1 stands for the whole context there."""
    count = integer(fields, "repeat_last_n", -1, TOKENS_MAX)
    if count is None:
        return PENALTY_TOKENS_DEFAULT
    return PENALTY_TOKENS_MAX if count < 0 else min(count, PENALTY_TOKENS_MAX)


def _chat_logprobs(fields: Json) -> int | None:
    count = integer(fields, "top_logprobs", 0, TOP_LOGPROBS_MAX)
    if flag(fields, "logprobs"):
        return count or 0
    if count:
        raise MalformedRequestError("'top_logprobs' needs 'logprobs' to be true.", param="top_logprobs")
    return None


def _completion_logprobs(fields: Json) -> int | None:
    """Here ``logprobs`` is the number of likeliest tokens itself; some clients say true or false all the same."""
    wanted = fields.get("logprobs")
    if isinstance(wanted, bool):
        return 0 if wanted else None
    return integer(fields, "logprobs", 0, TOP_LOGPROBS_MAX)


def _prompts(fields: Json) -> list[str | list[int]]:
    """A text, token ids, or an array of either."""
    prompt = fields.get("prompt")
    if prompt is None:
        raise MalformedRequestError("'prompt' is missing.", param="prompt", code="missing_required_parameter")
    if isinstance(prompt, str) or _is_token_ids(prompt):
        return [prompt]
    if not isinstance(prompt, list) or not all(isinstance(one, str) or _is_token_ids(one) for one in prompt):
        raise MalformedRequestError(
            "'prompt' must be a string, an array of token ids, or an array of either.", param="prompt"
        )
    if not prompt:
        raise MalformedRequestError("'prompt' must not be empty.", param="prompt", code="empty_array")
    return prompt


def _is_token_ids(value: Any) -> bool:
    is_list = isinstance(value, list) and bool(value)
    return is_list and all(isinstance(token, int) and not isinstance(token, bool) and token >= 0 for token in value)


def _route(fields: Json) -> tuple[NodeId, ...] | None:
    route = fields.get("route")
    if route is None:
        return None
    is_list_of_ids = isinstance(route, list) and all(isinstance(node_id, str) and node_id for node_id in route)
    if not is_list_of_ids or not 1 <= len(route) <= ROUTE_HOPS_MAX:
        raise InvalidRouteError("'route' must be a non-empty array of node ids.", param="route")
    if len(set(route)) != len(route):
        raise InvalidRouteError("'route' names a node twice.", param="route")
    return tuple(NodeId(node_id) for node_id in route)
