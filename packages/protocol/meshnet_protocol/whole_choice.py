"""An answer as it adds up from its pieces, and its form in a ``chat.completion``: the same from tracker and head."""

from dataclasses import dataclass, field
from typing import Any

from meshnet_protocol.messages import Choice, ContentLogprob, ToolCallDelta


@dataclass(slots=True)
class WholeChoice:
    """One answer. ``take`` its pieces in their order."""

    content: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    tool_calls: list[ToolCallDelta] = field(default_factory=list)
    logprobs: list[ContentLogprob] = field(default_factory=list)
    finish_reason: str = "stop"

    def take(self, choice: Choice) -> None:
        self.content.append(choice.delta.content or "")
        self.reasoning.append(choice.delta.reasoning_content or "")
        self.tool_calls += choice.delta.tool_calls
        if choice.logprobs is not None:
            self.logprobs += choice.logprobs.content
        if choice.finish_reason is not None:
            self.finish_reason = choice.finish_reason

    def in_chat(self, index: int) -> dict[str, Any]:
        """An entry of a whole chat's ``choices``."""
        message: dict[str, Any] = {"role": "assistant", "content": "".join(self.content)}
        if reasoning := "".join(self.reasoning):
            message["reasoning_content"] = reasoning
        if self.tool_calls:
            message["content"] = message["content"] or None
            message["tool_calls"] = [
                {"id": call.id, "type": call.type, "function": call.function} for call in self.tool_calls
            ]
        logprobs = {"content": self.logprobs} if self.logprobs else None
        return {"index": index, "message": message, "logprobs": logprobs, "finish_reason": self.finish_reason}
