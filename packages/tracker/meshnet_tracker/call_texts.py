"""What was asked and answered, of the latest calls, for an owner who wants to see it (``--show-texts``).

In memory only, and apart from everything that is logged or stored: events and call records never hold a word of a
prompt, so nothing of this can get there by accident. Of each call the end of the prompt and the beginning of the
answers are kept, a bounded number of characters of either.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from meshnet_protocol.messages import Choice, Delta, HeadRequest

CALLS_MAX = 200
PROMPT_CHARS_MAX = ANSWER_CHARS_MAX = 8000


@dataclass(slots=True)
class _CallText:
    prompt: list[dict[str, str]]
    is_prompt_cut: bool
    answers: dict[int, list[tuple[str, str]]] = field(default_factory=dict)
    """Pieces by answer, each with what it is a piece of: content, reasoning or a tool call."""
    chars_left: int = ANSWER_CHARS_MAX
    is_answer_cut: bool = False


class CallTexts:
    """Texts of at most ``CALLS_MAX`` calls; the oldest make room for new ones."""

    def __init__(self) -> None:
        self._calls: dict[str, _CallText] = {}

    def begin(self, call_id: str, request: HeadRequest) -> None:
        prompt, is_cut = _end_of(_prompt_parts(request))
        self._calls[call_id] = _CallText(prompt, is_cut)
        if len(self._calls) > CALLS_MAX:
            del self._calls[next(iter(self._calls))]

    def add(self, call_id: str, choices: Iterable[Choice]) -> None:
        """What a head has added to the answers."""
        call = self._calls.get(call_id)
        if call is None:
            return
        for choice in choices:
            for kind, text in _pieces(choice.delta):
                kept = text[: call.chars_left]
                call.is_answer_cut |= len(kept) < len(text)
                call.chars_left -= len(kept)
                if kept:
                    call.answers.setdefault(choice.index, []).append((kind, kept))

    def text(self, call_id: str) -> dict[str, Any] | None:
        """None if nothing is kept of this call."""
        call = self._calls.get(call_id)
        if call is None:
            return None
        return {
            "prompt": call.prompt,
            "is_prompt_cut": call.is_prompt_cut,
            "answers": [_whole(call.answers[index]) for index in sorted(call.answers)],
            "is_answer_cut": call.is_answer_cut,
        }


def _prompt_parts(request: HeadRequest) -> list[tuple[str, str]]:
    parts = [(str(message.get("role", "")), str(message.get("content") or "")) for message in request.messages]
    prompts = [one if isinstance(one, str) else f"({len(one)} token ids)" for one in request.prompts]
    return parts + [("prompt", prompt) for prompt in prompts]


def _end_of(parts: list[tuple[str, str]]) -> tuple[list[dict[str, str]], bool]:
    """The last ``PROMPT_CHARS_MAX`` characters, and whether any are missing: what was just asked stands last."""
    kept: list[dict[str, str]] = []
    chars_left = PROMPT_CHARS_MAX
    for role, text in reversed(parts):
        if chars_left <= 0:
            return kept[::-1], True
        kept.append({"role": role, "text": text[-chars_left:]})
        chars_left -= max(1, len(text))
    return kept[::-1], chars_left < 0


def _pieces(delta: Delta) -> Iterable[tuple[str, str]]:
    if delta.reasoning_content:
        yield "reasoning", delta.reasoning_content
    if delta.content:
        yield "content", delta.content
    for call in delta.tool_calls:
        yield "tool_calls", f"{call.function.name}({call.function.arguments})"


def _whole(pieces: list[tuple[str, str]]) -> dict[str, str]:
    kinds = dict.fromkeys(kind for kind, _ in pieces)
    return {kind: "".join(text for other, text in pieces if other == kind) for kind in kinds}
