"""What people write is text, whatever special tokens it spells.

A chat template puts the model's special tokens between messages by their names, so the rendered prompt is
tokenized with such names read as tokens. A message that spells one (``<|im_end|>``) must not end its own turn
that way. So such names are put between two marks before the template sees them, and the rendered text is cut at
the marks: inside, names are text.

The marks are characters that nobody's text has in it. Only names of control tokens are covered: a template may look for
others (``</think>``) in messages itself, and a tokenizer reads those as tokens wherever they are.
"""

import heapq
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from meshnet_node.errors import TemplateError

NESTING_MAX = 100
_PREFIX_CHARS = 3
_MARK_CANDIDATES = range(0xF0000, 0xFFFFE)  # a plane of characters without meaning


@dataclass(frozen=True, slots=True)
class Span:
    """A piece of a rendered chat."""

    text: str
    is_plain: bool
    """Names of special tokens in it are text."""


class SpecialNames:
    """The names of a model's control tokens, and where a text spells one."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names = frozenset(name for name in names if name)
        lengths: dict[str, set[int]] = {}
        for name in self._names:
            lengths.setdefault(name[:_PREFIX_CHARS], set()).add(len(name))
        # By their beginnings, so that a long text is looked through once, however many names there are.
        self._lengths = {prefix: sorted(found, reverse=True) for prefix, found in lengths.items()}
        self._firsts = {name[0] for name in self._names}

    def find(self, text: str) -> Iterator[tuple[int, int]]:
        """Start and end of each name, the longest of those that begin at one place, without overlap."""
        end = 0
        # Merged as they are found: a text may be nothing but beginnings.
        for start in heapq.merge(*(_positions(text, first) for first in self._firsts)):
            if start >= end and (length := self._length_at(text, start)):
                end = start + length
                yield start, end

    def _length_at(self, text: str, start: int) -> int:
        for size in range(_PREFIX_CHARS, 0, -1):
            for length in self._lengths.get(text[start : start + size], ()):
                if text[start : start + length] in self._names:
                    return length
        return 0


class Shield:
    """Covers names in what people wrote, and finds them again in what a template made of it."""

    def __init__(self, names: SpecialNames, written: object) -> None:
        """``written``: all that people wrote, as JSON has it. Raises TemplateError if it nests too deep."""
        self._names = names
        texts = list(texts_of(written))
        self._is_needed = any(True for text in texts for _ in names.find(text))
        used = {character for text in texts for character in text if ord(character) in _MARK_CANDIDATES}
        free = (mark for number in _MARK_CANDIDATES if (mark := chr(number)) not in used)
        self._opening, self._closing = next(free, ""), next(free, "")
        if not self._closing:
            raise TemplateError("the messages use every private character there is; leave two of them out")

    def cover(self, value: Any) -> Any:
        """The same JSON, with names covered in all its texts."""
        if not self._is_needed:
            return value
        match value:
            case str():
                return self._cover_text(value)
            case Mapping():
                return {self._cover_text(key): self.cover(item) for key, item in value.items()}
            case list() | tuple():
                return [self.cover(item) for item in value]
            case _:
                return value

    def spans(self, rendered: str) -> tuple[Span, ...]:
        """The text without marks, cut where names are text."""
        if not self._is_needed:
            return (Span(rendered, is_plain=False),)
        spans: list[Span] = []
        for piece in rendered.split(self._opening):
            name, closing, rest = piece.partition(self._closing)
            # A template may have cut through a name: a mark without its other half only goes.
            if closing and spans:
                spans.append(Span(name, is_plain=True))
                spans.append(Span(rest.replace(self._closing, ""), is_plain=False))
            else:
                spans.append(Span(piece.replace(self._closing, ""), is_plain=False))
        return tuple(span for span in spans if span.text)

    def _cover_text(self, text: str) -> str:
        covered, end = "", 0
        for start, stop in self._names.find(text):
            covered += f"{text[end:start]}{self._opening}{text[start:stop]}{self._closing}"
            end = stop
        return covered + text[end:]


def _positions(text: str, character: str) -> Iterator[int]:
    start = text.find(character)
    while start >= 0:
        yield start
        start = text.find(character, start + 1)


def texts_of(value: object, depth: int = 0) -> Iterator[str]:
    """All texts in it, keys among them. Raises TemplateError if it nests too deep."""
    if depth > NESTING_MAX:
        raise TemplateError(f"messages or tools nest more than {NESTING_MAX} levels; make them flatter")
    match value:
        case str():
            yield value
        case Mapping():
            for key, item in value.items():
                yield str(key)
                yield from texts_of(item, depth + 1)
        case list() | tuple():
            for item in value:
                yield from texts_of(item, depth + 1)
