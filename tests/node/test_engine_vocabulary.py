"""Text to tokens and back, and chats to prompts, with the real model's tokenizer and template."""

from pathlib import Path

import pytest

from meshnet_node.engine.vocabulary import ChatTemplate, Vocabulary
from meshnet_node.errors import ModelFileError, TemplateError
from node.engine_helpers import write_tiny_model


@pytest.fixture(scope="module")
def vocabulary(model_path: Path) -> Vocabulary:
    return Vocabulary(model_path)


@pytest.mark.parametrize("text", ["", "Hello, world", "naïve café 🎉", "line\n\n\tindent", "x" * 3000])
def test_pieces_of_a_text_make_the_text(vocabulary: Vocabulary, text: str) -> None:
    tokens = vocabulary.tokenize(text, add_special=False, parse_special=False)

    assert b"".join(vocabulary.piece(token) for token in tokens).decode() == text


def test_special_tokens_are_parsed_only_when_asked_and_render_as_nothing(vocabulary: Vocabulary) -> None:
    parsed = vocabulary.tokenize("<|im_end|>", add_special=False, parse_special=True)
    literal = vocabulary.tokenize("<|im_end|>", add_special=False, parse_special=False)

    assert len(parsed) == 1
    assert vocabulary.is_end(parsed[0])
    assert vocabulary.piece(parsed[0]) == b""
    assert len(literal) > 1
    assert not any(vocabulary.is_end(token) for token in literal)


def test_tokens_outside_the_vocabulary_render_as_nothing(vocabulary: Vocabulary) -> None:
    assert vocabulary.piece(-1) == vocabulary.piece(vocabulary.size) == b""


def test_a_chat_is_rendered_with_the_models_own_template(vocabulary: Vocabulary) -> None:
    chat = vocabulary.render_chat([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}])

    assert chat.text == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )
    assert not chat.add_special


def test_a_template_may_refuse_messages() -> None:
    template = ChatTemplate("{{ raise_exception('roles must alternate') }}", bos_text="", eos_text="")

    with pytest.raises(TemplateError, match="roles must alternate"):
        template.render([{"role": "user", "content": "Hi"}])


def test_a_template_that_does_not_compile_says_so() -> None:
    with pytest.raises(TemplateError, match="broken"):
        ChatTemplate("{% for %}", bos_text="", eos_text="")


def test_a_model_without_a_template_cannot_chat(tmp_path: Path) -> None:
    vocabulary = Vocabulary(write_tiny_model(tmp_path / "tiny.gguf"))

    with pytest.raises(TemplateError, match="no chat template"):
        vocabulary.render_chat([{"role": "user", "content": "Hi"}])


def test_a_file_without_a_vocabulary_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "bad.gguf"
    path.write_bytes(b"GGUF nonsense")

    with pytest.raises(ModelFileError, match="vocabulary"):
        Vocabulary(path)
