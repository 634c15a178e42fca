"""How a model writes tool calls: three common forms, which one a template speaks, and text into calls.

    hermes    <tool_call>{"name": ..., "arguments": {...}}</tool_call>   Qwen, Hermes, and whoever is told to
    mistral   [TOOL_CALLS][{"name": ..., "arguments": {...}}, ...]
    llama3    {"name": ..., "parameters": {...}}                         the whole answer is the call

A model whose template ignores tools is told about them in its system message, in the first form.
"""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from meshnet_protocol.messages import Tool

PYTHON_TAG = "<|python_tag|>"
_CALL_BEGINNINGS = ('{"name":"', '{"type":"function","name":"')
_INSTRUCTIONS = """You can call functions. These are the functions, as JSON:
<tools>
{tools}
</tools>
To call a function, answer with nothing but its name and arguments as JSON inside these tags:
<tool_call>
{{"name": "<function name>", "arguments": {{"<parameter>": "<value>"}}}}
</tool_call>"""


@dataclass(frozen=True, slots=True)
class ParsedCall:
    name: str
    arguments: str
    """JSON, as a text."""


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """``opening`` begins a call anywhere in the answer, or, if empty, the answer is one when it begins with ``{``."""

    name: str
    opening: str
    closing: str
    arguments_key: str
    markers: tuple[str, ...]
    """Texts that may be special tokens of the model, which would otherwise show as nothing."""


HERMES = ToolFormat("hermes", "<tool_call>", "</tool_call>", "arguments", ("<tool_call>", "</tool_call>"))
MISTRAL = ToolFormat("mistral", "[TOOL_CALLS]", "", "arguments", ("[TOOL_CALLS]", "[ARGS]"))
LLAMA3 = ToolFormat("llama3", "", "", "parameters", (PYTHON_TAG,))


def format_of_template(source: str) -> ToolFormat:
    """The form a chat template asks its model for; Hermes' where it does not tell."""
    if MISTRAL.opening in source:
        return MISTRAL
    if HERMES.opening not in source and (PYTHON_TAG in source or '"parameters":' in source):
        return LLAMA3
    return HERMES


def parse_calls(text: str, names: frozenset[str]) -> list[ParsedCall]:
    """The calls that ``text`` is: one JSON object, several, or an array of them. Empty unless all of it is calls
    of known tools."""
    text = text.strip().removeprefix(PYTHON_TAG).strip()
    head, separator, rest = text.partition("[ARGS]")
    if separator:
        text = f'{{"name": {json.dumps(head.strip())}, "arguments": {rest}}}'
    calls: list[ParsedCall] = []
    decoder = json.JSONDecoder()
    while text:
        try:
            value, end = decoder.raw_decode(text)
        except (ValueError, RecursionError):
            return []
        calls += [call for item in (value if isinstance(value, list) else [value]) if (call := _call(item, names))]
        if len(calls) < (len(value) if isinstance(value, list) else 1):
            return []
        text = text[end:].lstrip(" \t\r\n;,")
    return calls


def begins_call(text: str, names: frozenset[str], tool_format: ToolFormat) -> bool:
    """Whether ``text`` is what a call begins with. Behind a mark, everything is; else JSON is told from a call by what
    it says first."""
    if tool_format.opening or text.lstrip().startswith(PYTHON_TAG):
        return True
    bare = "".join(text.split())
    for beginning in _CALL_BEGINNINGS:
        name, quote, _ = bare.removeprefix(beginning).partition('"')
        if beginning.startswith(bare):
            return True
        if bare.startswith(beginning) and (name in names if quote else any(known.startswith(name) for known in names)):
            return True
    return False


def describe_in_system(messages: Sequence[Mapping[str, Any]], tools: Sequence[Tool]) -> list[dict[str, Any]]:
    """The chat for a template that knows no tools: descriptions in the system message, calls and results as text."""
    described = "\n".join(json.dumps(template_tool(tool)["function"], ensure_ascii=False) for tool in tools)
    instructions = _INSTRUCTIONS.format(tools=described)
    plain = [_plain_message(message) for message in messages]
    if plain and plain[0]["role"] == "system":
        plain[0]["content"] = f"{plain[0]['content']}\n\n{instructions}"
        return plain
    return [{"role": "system", "content": instructions}, *plain]


def template_tool(tool: Tool) -> dict[str, Any]:
    """A tool as chat templates expect it."""
    function = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
    return {"type": "function", "function": function}


def template_messages(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Messages as chat templates expect them: the arguments of earlier calls as objects, not as texts."""
    return [
        {**message, "tool_calls": [_with_object_arguments(call) for call in message["tool_calls"]]}
        if message.get("tool_calls")
        else dict(message)
        for message in messages
    ]


def _call(item: Any, names: frozenset[str]) -> ParsedCall | None:
    if not isinstance(item, dict) or item.get("name") not in names:
        return None
    arguments = item.get("arguments", item.get("parameters", {}))
    if isinstance(arguments, str):
        return ParsedCall(item["name"], arguments)
    return ParsedCall(item["name"], json.dumps(arguments, ensure_ascii=False))


def _with_object_arguments(call: Mapping[str, Any]) -> dict[str, Any]:
    function = dict(call["function"])
    if not isinstance(function["arguments"], str):
        return dict(call)
    with suppress(ValueError, RecursionError):  # a model may have written something else: it is shown that again
        function["arguments"] = json.loads(function["arguments"])
    return {**call, "function": function}


def _plain_message(message: Mapping[str, Any]) -> dict[str, Any]:
    content = str(message.get("content") or "")
    if message["role"] in ("tool", "function"):
        return {"role": "user", "content": f"<tool_response>\n{content}\n</tool_response>"}
    calls = [_with_object_arguments(call)["function"] for call in message.get("tool_calls") or ()]
    texts = [f"<tool_call>\n{json.dumps(call, ensure_ascii=False)}\n</tool_call>" for call in calls]
    return {"role": message["role"], "content": "\n".join([content, *texts] if content else texts)}
