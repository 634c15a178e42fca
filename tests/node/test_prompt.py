"""What a head makes of a request before anything is computed, with the real model's tokenizer."""

from pathlib import Path
from typing import Any

import pytest

from meshnet_node.engine.vocabulary import RenderedChat, Vocabulary
from meshnet_node.prompt import Work, understand
from meshnet_protocol.messages import HeadRequest, Tool
from node.engine_helpers import follows

THINKING_BEGINS = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n<think>\n"


class ThinkingVocabulary(Vocabulary):
    """The model's, with a template that opens the thinking itself, as those of models that always think do."""

    def render_chat(self, *_: Any) -> RenderedChat:
        return RenderedChat(THINKING_BEGINS, add_special=False)


@pytest.fixture(scope="module")
def vocabulary(model_path: Path) -> Vocabulary:
    return ThinkingVocabulary(model_path)


def work_of(vocabulary: Vocabulary, **fields: Any) -> tuple[Work, str]:
    request = HeadRequest(messages=[{"role": "user", "content": "Hi"}], **fields)
    work = understand(vocabulary, request, context_tokens=4096, check_grammar=lambda _: None)
    return work, b"".join(vocabulary.piece(token, special=True) for token in work.prompts[0]).decode()


@pytest.mark.parametrize(
    "shape",
    [
        {"response_schema": {"type": "object"}},
        {"grammar": 'root ::= "yes" | "no"'},
        {"tools": [Tool(name="look")], "tool_choice": "required"},
    ],
)
def test_where_a_grammar_leaves_no_room_for_thoughts_they_are_closed_before_they_begin(
    vocabulary: Vocabulary, shape: dict[str, Any]
) -> None:
    """Else the answer would be read as thoughts, because nothing ever ends them."""
    work, prompt = work_of(vocabulary, **shape)

    assert work.reading is not None
    assert work.reading.closing is None
    assert prompt.endswith("<think>\n\n</think>\n\n")


@pytest.mark.parametrize("shape", [{}, {"grammar": 'root ::= [a-z]+ "</think>" [a-z]+'}])
def test_elsewhere_a_model_that_always_thinks_does(vocabulary: Vocabulary, shape: dict[str, Any]) -> None:
    work, prompt = work_of(vocabulary, **shape)

    assert work.reading is not None
    assert work.reading.closing == "</think>"
    assert prompt == THINKING_BEGINS


def test_tools_and_a_shape_for_the_answer_leave_the_choice_to_the_model(vocabulary: Vocabulary) -> None:
    """Arguments are the model's own there, whatever a grammar makes of their schema."""
    tools = [Tool(name="look", parameters={"type": "object", "not": {}}), Tool(name="go")]
    schema = {"properties": {"x": {"type": "integer"}}, "required": ["x"]}
    work, _ = work_of(vocabulary, tools=tools, response_schema=schema)

    for call in ('{"name": "look", "arguments": {"at": 1}}', '{"name": "go", "arguments": {}}'):
        assert follows(vocabulary, work.grammar, f"<tool_call>\n{call}\n</tool_call>")
    assert follows(vocabulary, work.grammar, '{"x": 5}')
    for neither in ("hello", '{"y": 5}', '<tool_call>\n{"name": "fly", "arguments": {}}\n</tool_call>'):
        assert not follows(vocabulary, work.grammar, neither)
    assert work.reading is not None
    assert not work.reading.must_call
