"""A head's translation of a request: which token ids go in, and by which rules the answer is drawn and read.

Everything here may refuse the request, and nothing has been promised to the client yet.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from meshnet_node.answer_parser import AnswerParser, thinking_mark_at_end
from meshnet_node.engine.api import GrammarWriter, RenderedChat, Vocabulary, grammar_of_schema
from meshnet_node.errors import ContextOverflowError, GrammarError, RequestError
from meshnet_node.prompt_shield import Shield, Span, SpecialNames, texts_of
from meshnet_node.tool_format import (
    HERMES,
    ToolFormat,
    describe_in_system,
    format_of_template,
    template_messages,
    template_tool,
)
from meshnet_protocol.messages import HeadRequest, Sampling, Tool

TOKEN_CHARS_MAX = 256
"""More than the longest token of any vocabulary in use (long runs of spaces or dashes)."""


@dataclass(frozen=True, slots=True)
class Reading:
    """How an answer's text is read; ``None`` in a text completion: as it is."""

    tool_format: ToolFormat = HERMES
    tools: frozenset[str] = frozenset()
    must_call: bool = False
    closing: str | None = None
    markers: Mapping[int, bytes] = field(default_factory=dict)
    """Special tokens that must show, because they mark tool calls or thinking."""

    def new_parser(self) -> AnswerParser:
        return AnswerParser(
            tool_format=self.tool_format, tools=self.tools, must_call=self.must_call, closing=self.closing
        )


@dataclass(frozen=True, slots=True)
class Work:
    """A request as the route runs it."""

    prompts: tuple[tuple[int, ...], ...]
    grammar: str
    reading: Reading | None


def understand(
    vocabulary: Vocabulary,
    request: HeadRequest,
    *,
    context_tokens: int,
    check_grammar: Callable[[str], None] | None = None,
) -> Work:
    """``check_grammar`` may be left out for requests that shape nothing.

    Raises TemplateError, GrammarError or RequestError, ContextOverflowError among them, NoFreeSlotError.
    """
    if request.prompts:
        prompts = tuple(_encode_text(vocabulary, prompt, context_tokens) for prompt in request.prompts)
        work = Work(prompts, _own_grammar(request), None)
    else:
        work = _understand_chat(vocabulary, request, context_tokens)
    check_context(work.prompts, context_tokens)
    if work.grammar:
        assert check_grammar is not None
        try:
            check_grammar(work.grammar)
        except GrammarError as error:
            shape = "tools" if request.response_schema is None else "response_format"
            raise error.about("grammar" if request.grammar else shape) from error
    return work


def check_context(prompts: Sequence[Sequence[int]], context_tokens: int) -> None:
    """Raises ContextOverflowError unless every prompt leaves room for a token."""
    longest = max(len(prompt) for prompt in prompts)
    if longest >= context_tokens:
        raise ContextOverflowError(longest, context_tokens)


def sampling_of(
    request: HeadRequest, *, grammar: str, prompt: Sequence[int], choice: int, vocabulary_size: int
) -> Sampling:
    """How the tail draws this choice. Biases of tokens the model does not have mean nothing."""
    sampling = Sampling(
        temperature=request.temperature,
        top_p=request.top_p,
        top_k=request.top_k,
        min_p=request.min_p,
        seed=request.seed or 0,
        choice=choice,
        presence_penalty=request.presence_penalty,
        frequency_penalty=request.frequency_penalty,
        repeat_penalty=request.repeat_penalty,
        penalty_tokens=request.penalty_tokens,
        logit_bias=tuple((token, bias) for token, bias in request.logit_bias.items() if 0 <= token < vocabulary_size),
        top_logprobs=None if request.top_logprobs is None else min(request.top_logprobs, vocabulary_size),
        grammar=grammar,
    )
    if not sampling.has_penalties or not request.penalty_tokens:
        return sampling
    return msgspec.structs.replace(sampling, prompt_tail=tuple(prompt[-request.penalty_tokens :]))


def _understand_chat(vocabulary: Vocabulary, request: HeadRequest, context_tokens: int) -> Work:
    messages = template_messages(request.messages)
    written = [messages, msgspec.to_builtins(request.tools)]
    _check_written(len(messages), texts_of(written), context_tokens)
    shield = Shield(SpecialNames(vocabulary.control_names), written)
    tools = msgspec.convert(shield.cover(written[1]), list[Tool])
    chat, tool_format = _render(vocabulary, shield.cover(messages), tools)
    must_call = bool(request.tools) and request.tool_choice != "auto"
    is_shaped_by_tools = must_call or (bool(request.tools) and request.response_schema is not None)
    grammar = _call_grammar(request, tool_format) if is_shaped_by_tools else _own_grammar(request)
    text, closing = _leave_thinking(chat.text, grammar)
    _check_size(text, context_tokens)
    ids = _tokenize(vocabulary, shield.spans(text), add_special=chat.add_special)
    names = frozenset(tool.name for tool in request.tools)
    marks = [*(tool_format.markers if names else ()), "<think>", "</think>", "[THINK]", "[/THINK]"]
    markers = {token: mark.encode() for mark in marks if (token := vocabulary.marker_token(mark)) is not None}
    return Work((tuple(ids),), grammar, Reading(tool_format, names, must_call, closing, markers))


def _leave_thinking(prompt: str, grammar: str) -> tuple[str, str | None]:
    """The prompt, and the mark that ends the thinking it begins, if any.

    A template may open the thinking itself. A grammar that knows no end of it leaves no room for thoughts: the answer
    would be taken for one, so it is closed before it begins, as templates do it for models told not to think.
    """
    closing = thinking_mark_at_end(prompt)
    if closing is None or not grammar or closing in grammar:
        return prompt, closing
    return f"{prompt.rstrip()}\n\n{closing}\n\n", None


def _render(
    vocabulary: Vocabulary, messages: Sequence[Mapping[str, Any]], tools: Sequence[Tool]
) -> tuple[RenderedChat, ToolFormat]:
    """The prompt with its tools: by the template, or, where it has no place for them, in the system message."""
    if not tools:
        return vocabulary.render_chat(messages), HERMES
    chat = vocabulary.render_chat(messages, [template_tool(tool) for tool in tools])
    bare = vocabulary.render_chat(messages)
    if chat.text != bare.text:
        return chat, format_of_template(vocabulary.chat_template.source)
    return vocabulary.render_chat(describe_in_system(messages, tools)), HERMES


def _tokenize(vocabulary: Vocabulary, spans: Sequence[Span], *, add_special: bool) -> list[int]:
    ids: list[int] = []
    for index, span in enumerate(spans):
        begins = add_special and index == 0
        ids += vocabulary.tokenize(span.text, add_special=begins, parse_special=not span.is_plain)
    return ids


def _own_grammar(request: HeadRequest) -> str:
    if request.response_schema is None:
        return request.grammar
    try:
        return grammar_of_schema(request.response_schema)
    except GrammarError as error:
        raise error.about("response_format") from error


def _call_grammar(request: HeadRequest, tool_format: ToolFormat) -> str:
    """A grammar of exactly one call of one of the tools, or of the one that is named; where the model may call and
    need not, of such a call, with any arguments as always there, or of what the answer must be."""
    writer = GrammarWriter()
    is_free = request.tool_choice == "auto"
    calls = []
    for index, tool in enumerate(request.tools):
        if is_free or request.tool_choice in ("required", tool.name):
            schema = {} if is_free else tool.parameters
            arguments = _add_schema(writer, schema, f"tools[{index}].function.parameters")
            name = writer.literal(f'{{"name": "{tool.name}", "{tool_format.arguments_key}": ')
            calls.append(writer.add_rule(f"call{index}", f'{name} {arguments} "}}"'))
    root = _marked(writer, writer.add_rule("call", " | ".join(calls)), tool_format)
    if is_free and request.response_schema is not None:
        root += f" | {_add_schema(writer, request.response_schema, 'response_format')}"
    return writer.write(root)


def _add_schema(writer: GrammarWriter, schema: Mapping[str, Any], param: str) -> str:
    try:
        return writer.add_schema(schema or {"type": "object"})
    except GrammarError as error:
        raise error.about(param) from error


def _marked(writer: GrammarWriter, body: str, tool_format: ToolFormat) -> str:
    match tool_format.name:
        case "mistral":
            return f'{writer.literal(tool_format.opening + "[")} {body} "]"'
        case "hermes":
            begin, end = writer.literal(f"{tool_format.opening}\n"), writer.literal(f"\n{tool_format.closing}")
            return f"{begin} {body} {end}"
        case _:
            return body


def _encode_text(vocabulary: Vocabulary, prompt: str | list[int], context_tokens: int) -> tuple[int, ...]:
    if isinstance(prompt, str):
        _check_size(prompt, context_tokens)
        ids = vocabulary.tokenize(prompt, add_special=True, parse_special=True)
        # An empty prompt is "anything": the model's own start, or its end of a text before.
        return tuple(ids) or (vocabulary.start_token,)
    if not prompt or not all(0 <= token < vocabulary.size for token in prompt):
        raise RequestError(f"a prompt of token ids needs at least one, each from 0 to {vocabulary.size - 1}", "prompt")
    return tuple(prompt)


def _check_written(message_count: int, texts: Iterable[str], context_tokens: int) -> None:
    """Told before a template sees it: a message costs a token at least, and millions would take minutes to render."""
    tokens_min = max(message_count, sum(map(len, texts)) // TOKEN_CHARS_MAX)
    if tokens_min >= context_tokens:
        raise ContextOverflowError(tokens_min, context_tokens)


def _check_size(text: str, context_tokens: int) -> None:
    """Told by its size before it is tokenized: a prompt of megabytes fits no context."""
    tokens_min = len(text) // TOKEN_CHARS_MAX
    if tokens_min >= context_tokens:
        raise ContextOverflowError(tokens_min, context_tokens)
