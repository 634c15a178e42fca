"""What shapes an answer: tools, the choice among them, and response formats. All raise MalformedRequestError."""

import re
from typing import Any

from meshnet_protocol.messages import Tool
from meshnet_tracker.errors import MalformedRequestError
from meshnet_tracker.openai_fields import Json, typed

TOOLS_MAX = 128
_MODES = ("none", "auto", "required")
_TOOL_NAME = re.compile(r"[a-zA-Z0-9_.-]{1,64}")


def read_tools(fields: Json) -> tuple[list[Tool], str]:
    """The tools the model is told of, and whether it may, must, or must with a certain one."""
    offered = typed(fields, "tools", list, "an array") or []
    if len(offered) > TOOLS_MAX:
        raise MalformedRequestError(f"'tools' has more than {TOOLS_MAX} entries.", param="tools")
    tools = [_tool(tool, f"tools[{index}]") for index, tool in enumerate(offered)]
    names = [tool.name for tool in tools]
    if len(set(names)) < len(names):
        raise MalformedRequestError("'tools' names a function twice.", param="tools")
    choice = fields.get("tool_choice", "auto")
    if isinstance(choice, dict) and choice.get("type") == "allowed_tools":
        allowed, choice = _allowed(choice)
        if unknown := allowed - set(names):
            raise MalformedRequestError(
                f"'tool_choice' allows {min(unknown)!r}, which is none of the tools: {', '.join(names)}.",
                param="tool_choice",
            )
        tools = [tool for tool in tools if tool.name in allowed]
    choice = _choice(choice)
    if choice in ("none", "auto"):
        return ([] if choice == "none" else tools), "auto"
    if not tools:
        raise MalformedRequestError("'tool_choice' asks for a call, and there are no 'tools'.", param="tool_choice")
    if choice != "required" and choice not in names:
        raise MalformedRequestError(
            f"'tool_choice' names {choice!r}, which is none of the tools: {', '.join(names)}.", param="tool_choice"
        )
    return tools, choice


def read_response_format(fields: Json) -> Json | None:
    """The JSON schema the answer must follow; an empty one for any object."""
    wanted = typed(fields, "response_format", dict, "an object") or {"type": "text"}
    kind = wanted.get("type")
    if kind == "text":
        return None
    if kind == "json_object":
        return _schema(wanted.get("schema") or {}, "response_format.schema")
    if kind != "json_schema":
        raise MalformedRequestError(
            f"'response_format.type' must be text, json_object or json_schema, got {kind!r}.",
            param="response_format.type",
        )
    described = wanted.get("json_schema", wanted)
    if not isinstance(described, dict) or described.get("schema") is None:
        raise MalformedRequestError(
            "'response_format.json_schema' must be an object with a 'schema'.", param="response_format.json_schema"
        )
    return _schema(described["schema"], "response_format.json_schema.schema")


def _schema(schema: Any, param: str) -> Json:
    if not isinstance(schema, dict):
        raise MalformedRequestError(f"'{param}' must be a JSON schema, which is an object.", param=param)
    return schema


def _tool(tool: Any, param: str) -> Tool:
    kind = tool.get("type", "function") if isinstance(tool, dict) else None
    if kind != "function":
        raise MalformedRequestError(f"'{param}' must be a tool of type 'function', got {kind!r}.", param=param)
    function = tool.get("function")
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(function, dict) or not isinstance(name, str) or not _TOOL_NAME.fullmatch(name):
        raise MalformedRequestError(
            f"'{param}.function.name' must be 1 to 64 of a-z, A-Z, 0-9, '_', '-' and '.'.",
            param=f"{param}.function.name",
        )
    description = function.get("description") or ""
    if not isinstance(description, str):
        raise MalformedRequestError(
            f"'{param}.function.description' must be a string.", param=f"{param}.function.description"
        )
    parameters = _schema(function.get("parameters") or {}, f"{param}.function.parameters")
    return Tool(name=name, description=description, parameters=parameters)


def _allowed(choice: Json) -> tuple[set[str], Any]:
    """The names of a subset of the tools, and whether one of it may or must be called."""
    described = choice.get("allowed_tools", choice)
    offered = described.get("tools") if isinstance(described, dict) else None
    if not isinstance(offered, list) or not offered:
        raise MalformedRequestError(
            "'tool_choice.allowed_tools' must be an object with a 'mode' and some 'tools'.", param="tool_choice"
        )
    return {_choice(tool) for tool in offered}, described.get("mode", "auto")


def _choice(choice: Any) -> str:
    """``none``, ``auto``, ``required`` or a function's name."""
    if choice in _MODES:
        return str(choice)
    if choice == "any":
        return "required"
    if isinstance(choice, dict) and choice.get("type", "function") == "function":
        function = choice.get("function", choice)
        name = function.get("name") if isinstance(function, dict) else None
        if name in _MODES:
            raise MalformedRequestError(
                f"A function called {name!r} cannot be asked for; rename it.", param="tool_choice"
            )
        if isinstance(name, str):
            return name
    raise MalformedRequestError(
        "'tool_choice' must be none, auto, required, or {'type': 'function', 'function': {'name': ...}}.",
        param="tool_choice",
    )
