"""The messages of a chat, in all the forms clients write them, into role and text. All raise MalformedRequestError."""

import json
from typing import Any

from meshnet_tracker.errors import MalformedRequestError
from meshnet_tracker.openai_fields import Json

ROLES = {"system", "developer", "user", "assistant", "tool", "function"}


def read_messages(fields: Json) -> list[Json]:
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
    read: Json = {
        "role": "system" if role == "developer" else role,
        "content": _content(message.get("content"), f"{param}.content"),
    }
    calls = message.get("tool_calls")
    if not calls and message.get("function_call") is not None:  # as it was said before there were tools
        calls = [{"function": message["function_call"]}]
    if calls:
        read["tool_calls"] = _tool_calls(calls, f"{param}.tool_calls")
    for name in ("tool_call_id", "name"):
        if isinstance(message.get(name), str):
            read[name] = message[name]
    return read


def _content(content: Any, param: str) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise MalformedRequestError(f"'{param}' must be a string or an array of parts.", param=param)
    return "\n".join(_part(part, f"{param}[{index}]") for index, part in enumerate(content))


def _part(part: Any, param: str) -> str:
    """A model that refused to answer said so in words, and is shown them again."""
    kind = part.get("type") if isinstance(part, dict) else None
    if kind not in ("text", "refusal"):
        raise MalformedRequestError(f"'{param}' must be a part of type 'text', got {kind!r}.", param=param)
    text = part.get(kind)
    if not isinstance(text, str):
        raise MalformedRequestError(f"'{param}.{kind}' must be a string.", param=f"{param}.{kind}")
    return text


def _tool_calls(calls: Any, param: str) -> list[Json]:
    if not isinstance(calls, list):
        raise MalformedRequestError(f"'{param}' must be an array.", param=param)
    return [_tool_call(call, f"{param}[{index}]") for index, call in enumerate(calls)]


def _tool_call(call: Any, param: str) -> Json:
    function = call.get("function") if isinstance(call, dict) else None
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(name, str) or not name:
        raise MalformedRequestError(f"'{param}' must be a function call with a name.", param=param)
    assert isinstance(function, dict)
    arguments = function.get("arguments") or "{}"
    if not isinstance(arguments, str | dict):
        raise MalformedRequestError(f"'{param}.function.arguments' must be a string of JSON.", param=param)
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return {"id": str(call.get("id") or ""), "type": "function", "function": {"name": name, "arguments": text}}
