"""Thinking, content and tool calls are told apart, however the text arrives."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshnet_node.answer_parser import AnswerParser, Content, Part, Thinking, thinking_mark_at_end
from meshnet_node.tool_format import (
    HERMES,
    LLAMA3,
    MISTRAL,
    ParsedCall,
    ToolFormat,
    describe_in_system,
    format_of_template,
    parse_calls,
    template_messages,
)
from meshnet_protocol.messages import Tool

TOOLS = frozenset({"look", "go"})
LOOK = ParsedCall("look", '{"at": "it"}')
CALL = '{"name": "look", "arguments": {"at": "it"}}'
PARAMETERS_CALL = '{"name": "look", "parameters": {"at": "it"}}'

Case = tuple[ToolFormat | None, str, list[Part]]
CASES: list[Case] = [
    (None, "plain", [Content("plain")]),
    (None, "<think>\nhm \n</think>\n\nyes", [Thinking("hm"), Content("yes")]),
    (None, "<think></think>yes", [Content("yes")]),
    (None, "<think>never ends ", [Thinking("never ends ")]),
    (None, "[THINK]a[/THINK]b", [Thinking("a"), Content("b")]),
    (None, "<thin", [Content("<thin")]),
    (None, "a <think>b</think>", [Content("a <think>b</think>")]),
    (None, f"<tool_call>{CALL}</tool_call>", [Content(f"<tool_call>{CALL}</tool_call>")]),
    (HERMES, f"<tool_call>\n{CALL}\n</tool_call>", [LOOK]),
    (HERMES, f"Well. <tool_call>{CALL}</tool_call>\n<tool_call>{CALL}</tool_call>", [Content("Well."), LOOK, LOOK]),
    (HERMES, f"<think>a</think>\n<tool_call>{CALL}</tool_call> done", [Thinking("a"), LOOK, Content("done")]),
    (HERMES, "<tool_call>nonsense</tool_call>!", [Content("<tool_call>nonsense</tool_call>!")]),
    (HERMES, f"<tool_call>{CALL}", [LOOK]),
    (HERMES, '<tool_call>{"name": "lo', [Content('<tool_call>{"name": "lo')]),
    (HERMES, "a < b ", [Content("a < b ")]),
    (MISTRAL, f"[TOOL_CALLS] [{CALL}, {CALL}]", [LOOK, LOOK]),
    (MISTRAL, '[TOOL_CALLS]look[ARGS]{"at": "it"}', [LOOK]),
    (LLAMA3, PARAMETERS_CALL, [LOOK]),
    (LLAMA3, f"<|python_tag|>{PARAMETERS_CALL}; {PARAMETERS_CALL}", [LOOK, LOOK]),
    (LLAMA3, '{"some": "json"}', [Content('{"some": "json"}')]),
    (LLAMA3, "It is {x}", [Content("It is {x}")]),
]


def parsed(tool_format: ToolFormat | None, pieces: list[str], closing: str | None = None) -> list[Part]:
    """The parts, with neighbours of one kind joined."""
    parser = AnswerParser(tool_format=tool_format, tools=TOOLS if tool_format else frozenset(), closing=closing)
    parts = [part for piece in pieces for part in parser.push(piece)] + parser.finish()
    joined: list[Part] = []
    for part in parts:
        last = joined[-1] if joined else None
        if isinstance(part, Content) and isinstance(last, Content):
            joined[-1] = Content(last.text + part.text)
        elif isinstance(part, Thinking) and isinstance(last, Thinking):
            joined[-1] = Thinking(last.text + part.text)
        else:
            joined.append(part)
    return joined


@given(st.sampled_from(CASES), st.lists(st.integers(0, 200), max_size=8))
def test_an_answer_is_the_same_however_its_text_is_cut(case: Case, cuts: list[int]) -> None:
    tool_format, text, expected = case
    edges = [0, *sorted(cut % (len(text) + 1) for cut in cuts), len(text)]

    assert parsed(tool_format, [text[a:b] for a, b in pairwise(edges)]) == expected
    assert parsed(tool_format, list(text)) == expected


@pytest.mark.parametrize(
    ("tool_format", "text"),
    [(HERMES, f"<tool_call>\n{CALL}\n</tool_call>"), (MISTRAL, f"[TOOL_CALLS][{CALL}]"), (LLAMA3, PARAMETERS_CALL)],
)
def test_of_a_call_that_had_to_be_made_and_was_cut_short_nothing_shows(tool_format: ToolFormat, text: str) -> None:
    """Wherever a token limit or a stop string cuts it."""
    for end in range(len(text) + 1):
        parser = AnswerParser(tool_format=tool_format, tools=TOOLS, must_call=True)
        parts = [part for piece in text[:end] for part in parser.push(piece)] + parser.finish()

        assert parts in ([], [LOOK])
    assert parts == [LOOK]


@pytest.mark.parametrize(
    ("tool_format", "text"),
    [
        (HERMES, f"Well. <tool_call>\n{CALL}\n</tool_call>"),
        (MISTRAL, f"[TOOL_CALLS][{CALL}]"),
        (LLAMA3, PARAMETERS_CALL),
        (LLAMA3, '{"type": "function", "name": "look", "parameters": {"at": "it"}}'),
        (LLAMA3, f"<|python_tag|>{PARAMETERS_CALL}"),
    ],
)
def test_of_a_call_that_was_cut_short_no_beginning_shows(tool_format: ToolFormat, text: str) -> None:
    """Wherever it is cut, but behind a first character that may be anything."""
    for end in range(len(text) + 1):
        parser = AnswerParser(tool_format=tool_format, tools=TOOLS)
        parts = [part for piece in text[:end] for part in parser.push(piece)] + parser.finish(is_cut=True)

        shown = "".join(part.text for part in parts if isinstance(part, Content))
        assert shown.rstrip("<[ ") in "Well."
        assert [part for part in parts if not isinstance(part, Content)] in ([], [LOOK])
    assert parts[-1] == LOOK


@pytest.mark.parametrize(
    ("tool_format", "text"),
    [
        (HERMES, "a <"),
        (HERMES, "a <to b"),
        (LLAMA3, '{"some": "js'),
        (LLAMA3, '{"name": "Anna", "age'),
        (LLAMA3, '{"name": "lookout", "x'),
        (None, "<tool_call>{"),
    ],
)
def test_of_what_is_no_call_all_shows_where_it_is_cut(tool_format: ToolFormat | None, text: str) -> None:
    parser = AnswerParser(tool_format=tool_format, tools=TOOLS)
    parts = [part for piece in text for part in parser.push(piece)] + parser.finish(is_cut=True)

    assert "".join(part.text for part in parts if isinstance(part, Content)) == text


@given(st.text(alphabet="a <>tolcink_/{}\n", max_size=60))
def test_text_without_marks_comes_out_as_it_went_in(text: str) -> None:
    parts = parsed(HERMES, list(text))
    if not text.lstrip().startswith("<think>") and "<tool_call>" not in text:
        assert "".join(part.text for part in parts if isinstance(part, Content)) == text


def test_a_template_may_have_opened_the_thinking_itself() -> None:
    closing = thinking_mark_at_end("<|assistant|>\n<think>\n")

    assert closing == "</think>"
    assert parsed(None, ["so\n</thi", "nk>\nyes"], closing) == [Thinking("so"), Content("yes")]
    assert thinking_mark_at_end("<|assistant|>\n") is None


def test_the_form_of_calls_is_read_from_the_template() -> None:
    assert format_of_template("... <tool_call> ...") is HERMES
    assert format_of_template("... [TOOL_CALLS] ...") is MISTRAL
    assert format_of_template('... {"name": ..., "parameters": ...} <|python_tag|>') is LLAMA3
    assert format_of_template("nothing of the kind") is HERMES


@pytest.mark.parametrize("text", ["", "[]", "1", '{"name": "else", "arguments": {}}', f"{CALL} and more", "[" * 9999])
def test_what_is_not_entirely_calls_of_known_tools_is_none(text: str) -> None:
    assert parse_calls(text, TOOLS) == []


def test_a_template_without_tools_gets_them_in_words() -> None:
    call = {"id": "1", "type": "function", "function": {"name": "look", "arguments": '{"at": "it"}'}}
    messages = template_messages(
        [
            {"role": "system", "content": "Be kind."},
            {"role": "user", "content": "Look!"},
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "content": "seen", "tool_call_id": "1"},
        ]
    )
    system, _, assistant, result = describe_in_system(messages, [Tool(name="look", description="Looks.")])

    assert system["content"].startswith("Be kind.")
    assert '"name": "look"' in system["content"]
    assert assistant == {
        "role": "assistant",
        "content": '<tool_call>\n{"name": "look", "arguments": {"at": "it"}}\n</tool_call>',
    }
    assert result == {"role": "user", "content": "<tool_response>\nseen\n</tool_response>"}
