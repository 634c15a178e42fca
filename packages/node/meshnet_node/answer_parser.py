"""What an answer's text is made of: thinking, content, tool calls. Fed piece by piece, it gives parts as soon as
they are known to be what they are.

    start ──"<think>"──> thinking ──"</think>"──> content ──opening──> call ──closing──> content
      └──── anything else ────────────────────────>┘

Text that might still become a marker is held back, and comes out as what it was when it does not. A call
that turns out to be none is content, unless the answer had to be a call, or was cut short in the middle of one, by a
token limit or a stop string: nobody can use a call's beginning, and as content it would be taken for the answer.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto

from meshnet_node.text_stream import overlap
from meshnet_node.tool_format import PYTHON_TAG, ParsedCall, ToolFormat, begins_call, parse_calls

MARK_CHARS_MIN = 2
"""Of a mark that a cut answer ends in; less may be anything: a single '<' is a comparison as well."""
THINKING_MARKS = (("<think>", "</think>"), ("[THINK]", "[/THINK]"))


@dataclass(frozen=True, slots=True)
class Thinking:
    text: str


@dataclass(frozen=True, slots=True)
class Content:
    text: str


Part = Thinking | Content | ParsedCall


def joined(parts: Sequence[Part], kind: type[Thinking] | type[Content]) -> str | None:
    """All text of one kind; None if there is none."""
    return "".join(part.text for part in parts if isinstance(part, kind)) or None


class _State(Enum):
    START = auto()
    THINKING = auto()
    CONTENT = auto()
    CALL = auto()


def thinking_mark_at_end(prompt: str) -> str | None:
    """The closing mark due first, where a template has opened the thinking itself."""
    return next((closing for opening, closing in THINKING_MARKS if prompt.rstrip().endswith(opening)), None)


class AnswerParser:
    """One answer's parser. ``tools``: names that may be called, in ``tool_format``."""

    def __init__(
        self,
        *,
        tool_format: ToolFormat | None = None,
        tools: frozenset[str] = frozenset(),
        must_call: bool = False,
        closing: str | None = None,
    ) -> None:
        """``must_call``: a grammar lets nothing but a call be drawn. ``closing``: the answer begins inside its
        thinking, which ends there."""
        self._format = tool_format if tools else None
        self._tools = tools
        self._must_call = must_call
        self._closing = closing or ""
        self._state = _State.THINKING if closing else _State.START
        self._held = ""
        self._is_after_mark = closing is not None
        """Blank space right behind a mark belongs to the mark."""
        self._shown = False
        self._is_cut = False
        self.call_count = 0

    def push(self, text: str) -> list[Part]:
        self._held += text
        return self._advance(is_last=False)

    def finish(self, *, is_cut: bool = False) -> list[Part]:
        """What was held back. ``is_cut``: the model had more to say."""
        self._is_cut = is_cut
        return self._advance(is_last=True)

    def _advance(self, *, is_last: bool) -> list[Part]:
        parts: list[Part] = []
        before: tuple[_State, str] | None = None
        while before != (self._state, self._held):
            before = (self._state, self._held)
            match self._state:
                case _State.START:
                    self._start(is_last)
                case _State.THINKING:
                    self._think(parts, is_last)
                case _State.CONTENT:
                    self._show(parts, is_last)
                case _State.CALL:
                    self._call(parts, is_last)
        return [part for part in parts if not (self._must_call and isinstance(part, Content))]

    def _start(self, is_last: bool) -> None:
        text = self._held.lstrip()
        for opening, closing in THINKING_MARKS:
            if text.startswith(opening):
                self._held, self._closing = text[len(opening) :], closing
                self._state, self._is_after_mark = _State.THINKING, True
                return
        if is_last or not any(opening.startswith(text) for opening, _ in THINKING_MARKS):
            self._state = _State.CONTENT

    def _think(self, parts: list[Part], is_last: bool) -> None:
        if self._is_after_mark and not self._skip_blank(is_last):
            return
        text, found, rest = self._held.partition(self._closing)
        if found:
            _add(parts, Thinking(text.rstrip()))
            self._held, self._state, self._is_after_mark = rest, _State.CONTENT, True
            return
        self._held = self._keep_from(parts, Thinking, text, len(text) if is_last else _safe_end(text, self._closing))

    def _show(self, parts: list[Part], is_last: bool) -> None:
        if self._is_after_mark and not self._skip_blank(is_last):
            return
        tools = self._format
        if tools is not None and not tools.opening and not self._shown:
            text = self._held.lstrip()
            if text.startswith(("{", PYTHON_TAG)):
                self._state = _State.CALL
                return
            if not is_last and PYTHON_TAG.startswith(text):
                return
        text, found, rest = self._held.partition(tools.opening) if tools and tools.opening else (self._held, "", "")
        if found:
            _add(parts, Content(text.rstrip()))
            self._held, self._state = rest, _State.CALL
            return
        mark = "" if tools is None else tools.opening or ("" if self._shown else PYTHON_TAG)
        if self._is_cut and overlap(text, mark) >= MARK_CHARS_MIN:
            text = text[: _safe_end(text, mark)]
        is_sure = is_last or tools is None or not tools.opening
        end = len(text) if is_sure else _safe_end(text, mark)
        self._shown = self._shown or end > 0
        self._held = self._keep_from(parts, Content, text, end)

    def _call(self, parts: list[Part], is_last: bool) -> None:
        assert self._format is not None
        closing = self._format.closing
        text, found, rest = self._held.partition(closing) if closing else (self._held, "", "")
        if not found and not is_last:
            return
        calls = parse_calls(text, self._tools)
        self.call_count += len(calls)
        parts.extend(calls)
        if not calls and not (self._is_cut and not found and begins_call(text, self._tools, self._format)):
            _add(parts, Content(self._format.opening + text + found))
        self._held, self._state, self._shown, self._is_after_mark = rest, _State.CONTENT, True, bool(calls)

    @staticmethod
    def _keep_from(parts: list[Part], kind: type[Thinking] | type[Content], text: str, end: int) -> str:
        _add(parts, kind(text[:end]))
        return text[end:]

    def _skip_blank(self, is_last: bool) -> bool:
        self._held = self._held.lstrip()
        if not self._held and not is_last:
            return False
        self._is_after_mark = False
        return True


def _safe_end(text: str, mark: str) -> int:
    """How much of the text is certainly not the mark, nor the blank space before it, which belongs to the mark."""
    return len(text[: len(text) - overlap(text, mark)].rstrip())


def _add(parts: list[Part], part: Thinking | Content) -> None:
    if part.text:
        parts.append(part)
