"""The two forms of an answer: a chat's and a text completion's. Words only; when they are sent is ``chat_reply.py``'s.

Both are made of the same choices, as heads write them: a chat's are handed on as they are, a text completion's
are rewritten.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

from meshnet_protocol.messages import ChatChunk, Choice, ChoiceLogprobs, ContentLogprob, Delta, Usage
from meshnet_protocol.whole_choice import WholeChoice
from meshnet_tracker.openai_schema import Dialect


@dataclass(frozen=True, slots=True)
class ReplyIdentity:
    """What every part of one answer repeats. ``created`` is Unix time in seconds."""

    id: str
    created: int
    model: str
    system_fingerprint: str


class ReplyShape(Protocol):
    """``index``: which of the request's answers."""

    id_prefix: str

    def opening(self, index: int) -> Choice | None:
        """What an answer begins with, before its first text."""
        ...

    def chunk(self, identity: ReplyIdentity, choices: Sequence[Choice], usage: Usage | msgspec.UnsetType) -> bytes: ...
    def whole(self, identity: ReplyIdentity, choices: dict[int, WholeChoice], usage: Usage) -> bytes: ...


class ChatShape:
    id_prefix = "chatcmpl-"

    def opening(self, index: int) -> Choice | None:
        return Choice(index=index, delta=Delta(role="assistant", content=""))

    def chunk(self, identity: ReplyIdentity, choices: Sequence[Choice], usage: Usage | msgspec.UnsetType) -> bytes:
        chunk = ChatChunk(
            id=identity.id,
            created=identity.created,
            model=identity.model,
            system_fingerprint=identity.system_fingerprint,
            choices=list(choices),
            usage=usage,
        )
        return msgspec.json.encode(chunk)

    def whole(self, identity: ReplyIdentity, choices: dict[int, WholeChoice], usage: Usage) -> bytes:
        written = [choice.in_chat(index) for index, choice in sorted(choices.items())]
        return msgspec.json.encode(_object(identity, "chat.completion", written) | {"usage": usage})


class CompletionShape:
    id_prefix = "cmpl-"

    def __init__(self) -> None:
        self._offsets: dict[int, int] = {}
        """Characters of each answer so far: where its next token begins."""

    def opening(self, index: int) -> Choice | None:
        return None

    def chunk(self, identity: ReplyIdentity, choices: Sequence[Choice], usage: Usage | msgspec.UnsetType) -> bytes:
        written = [self._choice(choice) for choice in choices]
        counted = {} if usage is msgspec.UNSET else {"usage": usage}
        return msgspec.json.encode(_object(identity, "text_completion", written) | counted)

    def whole(self, identity: ReplyIdentity, choices: dict[int, WholeChoice], usage: Usage) -> bytes:
        written = []
        for index, choice in sorted(choices.items()):
            whole = Choice(
                index=index,
                delta=Delta(content="".join(choice.content)),
                logprobs=ChoiceLogprobs(content=choice.logprobs) if choice.logprobs else None,
                finish_reason=choice.finish_reason,
            )
            written.append(self._choice(whole))
        return msgspec.json.encode(_object(identity, "text_completion", written) | {"usage": usage})

    def _choice(self, choice: Choice) -> dict[str, Any]:
        return {
            "index": choice.index,
            "text": choice.delta.content or "",
            "logprobs": None if choice.logprobs is None else self._logprobs(choice.index, choice.logprobs.content),
            "finish_reason": choice.finish_reason,
        }

    def _logprobs(self, index: int, entries: Sequence[ContentLogprob]) -> dict[str, Any]:
        """The older form of the same figures: columns instead of rows."""
        offsets = []
        for entry in entries:
            offsets.append(self._offsets.get(index, 0))
            self._offsets[index] = offsets[-1] + len(entry.token)
        return {
            "tokens": [entry.token for entry in entries],
            "token_logprobs": [entry.logprob for entry in entries],
            "top_logprobs": [{top.token: top.logprob for top in entry.top_logprobs} for entry in entries],
            "text_offset": offsets,
        }


def shape_of(dialect: Dialect) -> ReplyShape:
    """A new one for each answer."""
    return ChatShape() if dialect is Dialect.CHAT else CompletionShape()


def _object(identity: ReplyIdentity, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "id": identity.id,
        "object": kind,
        "created": identity.created,
        "model": identity.model,
        "system_fingerprint": identity.system_fingerprint,
        "choices": choices,
    }
