"""Text to tokens and back, and chats to text: the model's own tokenizer and chat template.

Both come from the GGUF, loaded without its weights. The template is rendered by llama-cpp-python's
formatter, in a sandbox.
"""

import ctypes
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import jinja2
import llama_cpp
from llama_cpp.llama_chat_format import Jinja2ChatFormatter

from meshnet_node.engine.llama import start_llama, take_errors
from meshnet_node.errors import ModelFileError, TemplateError

_PIECE_BYTES = 64
_PARSED_ATTRIBUTES = llama_cpp.LLAMA_TOKEN_ATTR_CONTROL | llama_cpp.LLAMA_TOKEN_ATTR_UNKNOWN
_NO_TOKEN = -1


@dataclass(frozen=True, slots=True)
class RenderedChat:
    """A chat as the text the model was trained on."""

    text: str
    add_special: bool
    """Whether the tokenizer must still put the model's start token before it."""


class Vocabulary:
    """A model's tokenizer. Immutable once made, and safe to use from any thread."""

    def __init__(self, path: Path) -> None:
        """Raises ModelFileError if llama.cpp cannot read the file's vocabulary."""
        start_llama()
        params = llama_cpp.llama_model_default_params()
        params.vocab_only = True
        model = llama_cpp.llama_model_load_from_file(str(path).encode(), params)
        if not model:
            raise ModelFileError(f"llama.cpp cannot read the vocabulary of {path}: {take_errors()}")
        weakref.finalize(self, llama_cpp.llama_model_free, model)
        self._vocab: Any = llama_cpp.llama_model_get_vocab(model)
        self.size = int(llama_cpp.llama_vocab_n_tokens(self._vocab))
        bos = int(llama_cpp.llama_vocab_bos(self._vocab))
        self.start_token = bos if bos != _NO_TOKEN else int(llama_cpp.llama_vocab_eos(self._vocab))
        self.end_token = int(llama_cpp.llama_vocab_eos(self._vocab))
        self._adds_bos = bool(llama_cpp.llama_vocab_get_add_bos(self._vocab))
        self._bos_text = self._special_text(llama_cpp.llama_vocab_bos(self._vocab))
        template = llama_cpp.llama_model_chat_template(model, None)
        self._eos_text = self._special_text(llama_cpp.llama_vocab_eos(self._vocab))
        self._template = None if template is None else self._compile(template.decode("utf-8"))

    @property
    def handle(self) -> Any:
        """llama.cpp's own vocabulary; lives as long as this object."""
        return self._vocab

    @property
    def chat_template(self) -> "ChatTemplate":
        """Raises TemplateError if the model has none."""
        if self._template is None:
            raise TemplateError(
                "this model has no chat template: ask for a text completion, or serve an instruction-tuned model"
            )
        return self._template

    def render_chat(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] = ()
    ) -> RenderedChat:
        """The prompt for the assistant's next message. Raises TemplateError."""
        text = self.chat_template.render(messages, tools)
        starts_itself = bool(self._bos_text) and text.startswith(self._bos_text)
        return RenderedChat(text, add_special=self._adds_bos and not starts_itself)

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """Token ids. ``add_special``: with the model's own start and end tokens, if it wants any;
        ``parse_special``: take ``<|im_end|>`` and the like for the tokens they name."""
        data = text.encode("utf-8")
        room = len(data) + 2
        tokens = (llama_cpp.llama_token * room)()
        count = llama_cpp.llama_tokenize(self._vocab, data, len(data), tokens, room, add_special, parse_special)
        if count < 0:
            tokens = (llama_cpp.llama_token * -count)()
            count = llama_cpp.llama_tokenize(self._vocab, data, len(data), tokens, -count, add_special, parse_special)
        return list(tokens[:count])

    def piece(self, token: int, *, special: bool = False) -> bytes:
        """A token's bytes, maybe a part of a UTF-8 character. Special tokens render as nothing, or as their names."""
        return self._render(token, special=special)

    def marker_token(self, text: str) -> int | None:
        """The one token that this text is, if the model has such a token."""
        tokens = self.tokenize(text, add_special=False, parse_special=True)
        return tokens[0] if len(tokens) == 1 else None

    @cached_property
    def control_names(self) -> frozenset[str]:
        """What ``parse_special`` reads as tokens, and nothing else does."""
        return frozenset(
            self._special_text(token)
            for token in range(self.size)
            if llama_cpp.llama_vocab_get_attr(self._vocab, token) & _PARSED_ATTRIBUTES
        )

    def is_end(self, token: int) -> bool:
        """Whether the model ends its turn with this token."""
        return bool(llama_cpp.llama_vocab_is_eog(self._vocab, token))

    def _compile(self, template: str) -> "ChatTemplate":
        return ChatTemplate(template, bos_text=self._bos_text, eos_text=self._eos_text)

    def _special_text(self, token: int) -> str:
        if token == _NO_TOKEN:
            return ""
        return self._render(token, special=True).decode("utf-8", errors="replace")

    def _render(self, token: int, *, special: bool) -> bytes:
        if not 0 <= token < self.size:
            return b""
        room = _PIECE_BYTES
        while True:
            buffer = ctypes.create_string_buffer(room)
            size = llama_cpp.llama_token_to_piece(self._vocab, token, buffer, room, 0, special)
            if size >= 0:
                return buffer.raw[:size]
            room = -size


class ChatTemplate:
    """A model's chat template. Safe to use from any thread."""

    def __init__(self, source: str, *, bos_text: str, eos_text: str) -> None:
        """Raises TemplateError if the template does not compile."""
        self.source = source
        try:
            self._formatter = Jinja2ChatFormatter(source, eos_token=eos_text, bos_token=bos_text)
        except jinja2.TemplateError as error:
            raise TemplateError(f"the model's chat template is broken ({error}); choose another model") from error

    def render(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] = ()) -> str:
        """The messages as one text that ends where the assistant begins.

        Raises TemplateError if the template refuses them, for instance roles that do not alternate.
        """
        try:
            # A template that was made for tools asks whether there are any, and an empty list is not None.
            offered: Any = [dict(tool) for tool in tools] or None
            copies: Any = [dict(message) for message in messages]
            return str(self._formatter(messages=copies, tools=offered).prompt)
        except (jinja2.TemplateError, ValueError, TypeError, KeyError) as error:
            raise TemplateError(f"the model's chat template refuses these messages: {error}") from error
