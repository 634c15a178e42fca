"""An OpenAI chat request, as clients in the field really write it, into a ``HeadRequest``.

Lenient in: null means absent, unknown fields are ignored, integers may be written 5.0, ``stop`` and
``content`` come in all their forms. Strict where a wrong guess would be worse than a refusal: a field
whose meaning would be lost (``n``, ``tools``, ``logprobs``, ...) is refused unless it asks for nothing.
The one field of our own, ``route``, must be exactly a list of node ids.
"""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

import msgspec

from meshnet_protocol.ids import NodeId
from meshnet_protocol.messages import HeadRequest
from meshnet_tracker.errors import InvalidRouteError, MalformedRequestError

SEED_MIN, SEED_MAX = -(2**63), 2**63 - 1
# Every JSON reader holds 53 bits exactly, so that a seed can be copied from an event to repeat a chat.
DRAWN_SEED_BITS = 53
TOKENS_MAX = 2**31 - 1
ROUTE_HOPS_MAX = 1000
ROLES = {"system", "developer", "user", "assistant", "tool", "function"}

Json = dict[str, Any]

# What each of these fields may say without asking for something that is not there yet.
_UNSUPPORTED: dict[str, Callable[[Any], bool]] = {
    "n": lambda value: value == 1,
    "tools": lambda value: value == [],
    "tool_choice": lambda value: value in ("none", "auto"),
    "functions": lambda value: value == [],
    "function_call": lambda value: value in ("none", "auto"),
    "logprobs": lambda value: value is False,
    "top_logprobs": lambda value: value == 0,
    "logit_bias": lambda value: value == {},
    "response_format": lambda value: value == {"type": "text"},
    "frequency_penalty": lambda value: value == 0,
    "presence_penalty": lambda value: value == 0,
    "repeat_penalty": lambda value: value == 1,
    "grammar": lambda value: value == "",
}

CHARS_PER_TOKEN = 4


@dataclass(frozen=True, slots=True)
class ChatCall:
    """What a client asked for. ``head_request`` lacks its model name and plan until a route is chosen."""

    model: str | None
    is_stream: bool
    includes_usage: bool
    pinned: tuple[NodeId, ...] | None
    head_request: HeadRequest

    @property
    def prompt_tokens_about(self) -> int:
        """A guess from the length of the text: only the head can count tokens."""
        contents = (message.get("content") for message in self.head_request.messages)
        return sum(len(content) for content in contents if isinstance(content, str)) // CHARS_PER_TOKEN


def parse_chat(body: bytes, *, seed_rng: Random) -> ChatCall:
    """Raises MalformedRequestError or InvalidRouteError. A request without a seed gets one drawn."""
    fields = _decode_object(body)
    for name, is_neutral in _UNSUPPORTED.items():
        if name in fields and not is_neutral(fields[name]):
            raise MalformedRequestError(f"'{name}' is not supported by this server yet.", param=name)
    stream_options = _typed(fields, "stream_options", dict, "an object") or {}
    seed = _integer(fields, "seed", SEED_MIN, SEED_MAX)
    return ChatCall(
        model=_typed(fields, "model", str, "a string") or None,
        is_stream=bool(_typed(fields, "stream", bool, "a boolean")),
        includes_usage=bool(_typed(stream_options, "include_usage", bool, "a boolean")),
        pinned=_route(fields),
        head_request=HeadRequest(
            messages=_messages(fields),
            temperature=_number(fields, "temperature", 0, 2, default=1.0),
            top_p=_number(fields, "top_p", 0, 1, default=1.0),
            top_k=max(0, _integer(fields, "top_k", -1, TOKENS_MAX) or 0),
            min_p=_number(fields, "min_p", 0, 1, default=0.0),
            seed=seed_rng.getrandbits(DRAWN_SEED_BITS) if seed is None else seed,
            max_tokens=_token_limit(fields),
            stop=_stop(fields),
            ignore_eos=bool(_typed(fields, "ignore_eos", bool, "a boolean")),
        ),
    )


def _decode_object(body: bytes) -> Json:
    """The body's fields without the nulls. Lone surrogates and bad UTF-8 fail here, as does NaN."""
    try:
        decoded = msgspec.json.decode(body)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise MalformedRequestError(f"The body is not valid JSON: {error}.") from error
    if not isinstance(decoded, dict):
        raise MalformedRequestError("The body must be a JSON object.")
    return {name: value for name, value in decoded.items() if value is not None}


def _typed(fields: Json, name: str, kind: type, description: str) -> Any:
    value = fields.get(name)
    if value is not None and not isinstance(value, kind):
        raise MalformedRequestError(f"'{name}' must be {description}.", param=name)
    return value


def _number(fields: Json, name: str, low: float, high: float, *, default: float) -> float:
    value = fields.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise MalformedRequestError(f"'{name}' must be a number.", param=name)
    if not low <= value <= high:
        raise MalformedRequestError(f"'{name}' must be between {low} and {high}, got {value}.", param=name)
    return float(value)


def _integer(fields: Json, name: str, low: int, high: int) -> int | None:
    value = fields.get(name)
    if value is None:
        return None
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise MalformedRequestError(f"'{name}' must be an integer.", param=name)
    if not low <= value <= high:
        raise MalformedRequestError(f"'{name}' must be between {low} and {high}.", param=name)
    return value


def _token_limit(fields: Json) -> int | None:
    """The smaller of the two names for it; far too much is as good as no limit, because the context caps it."""
    limits = [
        min(limit, TOKENS_MAX)
        for limit in (_integer(fields, name, 0, SEED_MAX) for name in ("max_tokens", "max_completion_tokens"))
        if limit is not None
    ]
    return min(limits, default=None)


def _stop(fields: Json) -> list[str]:
    stop = fields.get("stop", [])
    texts = [stop] if isinstance(stop, str) else stop
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise MalformedRequestError("'stop' must be a string or an array of strings.", param="stop")
    return [text for text in texts if text]


def _messages(fields: Json) -> list[Json]:
    messages = fields.get("messages")
    if messages is None:
        raise MalformedRequestError("'messages' is missing.", param="messages", code="missing_required_parameter")
    if not isinstance(messages, list):
        raise MalformedRequestError("'messages' must be an array.", param="messages")
    if not messages:
        raise MalformedRequestError("'messages' must not be empty.", param="messages", code="empty_array")
    return [_message(message, f"messages[{index}]") for index, message in enumerate(messages)]


def _message(message: Any, param: str) -> Json:
    if not isinstance(message, dict):
        raise MalformedRequestError(f"'{param}' must be an object.", param=param)
    role = message.get("role")
    if not isinstance(role, str) or role not in ROLES:
        raise MalformedRequestError(f"'{param}.role' must be one of {', '.join(sorted(ROLES))}.", param=f"{param}.role")
    if message.get("tool_calls") or message.get("function_call"):
        raise MalformedRequestError(
            f"'{param}': tool calls are not supported by this server yet.", param=f"{param}.tool_calls"
        )
    content = _content(message.get("content"), f"{param}.content")
    return {"role": "system" if role == "developer" else role, "content": content}


def _content(content: Any, param: str) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise MalformedRequestError(f"'{param}' must be a string or an array of parts.", param=param)
    return "\n".join(_part(part, f"{param}[{index}]") for index, part in enumerate(content))


def _part(part: Any, param: str) -> str:
    kind = part.get("type") if isinstance(part, dict) else None
    if kind != "text":
        raise MalformedRequestError(f"'{param}' must be a part of type 'text', got {kind!r}.", param=param)
    text = part.get("text")
    if not isinstance(text, str):
        raise MalformedRequestError(f"'{param}.text' must be a string.", param=f"{param}.text")
    return text


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
