"""One chat's record, from the first byte in to the one outcome it ends with. Times are of one monotonic clock."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import msgspec

from meshnet_protocol.messages import Choice, Delta, HopTiming, Usage
from meshnet_tracker.errors import ClientError, ClientGoneError, EmptyAnswerError, OverloadedError
from meshnet_tracker.fleet import ServedModel
from meshnet_tracker.head_events import HeadEvent
from meshnet_tracker.openai_schema import ChatCall, Dialect
from meshnet_tracker.router import RouteDecision

CLIENT_WAIT_S_MAX = 0.25
CLIENT_WAIT_SHARE_MAX = 0.05
FINISH_REASONS = {"stop", "length", "tool_calls", "content_filter"}


class Outcome(StrEnum):
    COMPLETED = "completed"
    DEGENERATE = "degenerate"
    """Every route that was tried said it was done and had drawn nothing, where something was due."""
    NODE_FAULT = "node_fault"
    CLIENT_GONE = "client_gone"
    CLIENT_ERROR = "client_error"
    OVERLOAD = "overload"


@dataclass(slots=True, kw_only=True)
class Chat:
    """Filled in as the chat goes on; what an attempt brought is forgotten when another one starts."""

    request_id: str
    received_at: float
    dialect: Dialect = Dialect.CHAT
    call: ChatCall | None = None
    model: ServedModel | None = None
    decision: RouteDecision | None = None
    attempts: int = 0
    outcome: Outcome | None = None
    is_sampled: bool = False
    dispatched_at: float = 0.0
    first_text_at: float | None = None
    last_byte_at: float | None = None
    client_wait_s: float = 0.0
    """How long the head's stream stood still because the client did not take more."""
    finish_reason: str | None = None
    """Of the latest answer that ended."""
    finished_choices: int = 0
    drawn_tokens: int = 0
    reported_usage: Usage | None = None
    timings: tuple[HopTiming, ...] = ()

    @property
    def understood(self) -> tuple[ChatCall, ServedModel]:
        """What is asked, and of which model: known as soon as the request is parsed."""
        assert self.call is not None
        assert self.model is not None
        return self.call, self.model

    def begin_attempt(self, decision: RouteDecision, now: float) -> None:
        self.decision = decision
        self.attempts += 1
        self.dispatched_at = now
        self.first_text_at = self.last_byte_at = self.finish_reason = self.reported_usage = None
        self.drawn_tokens = self.finished_choices = 0
        self.client_wait_s = 0.0
        self.timings = ()

    def take(self, event: HeadEvent, now: float) -> list[Choice]:
        """Note what the head reports, and give back what it adds to the answers."""
        if event.usage is not None:
            self.reported_usage = event.usage
        if event.meshnet is not None:
            self.drawn_tokens += len(event.meshnet.token_ids)
            self.timings = event.meshnet.timings or self.timings
        added = []
        for choice in event.choices:
            reason = choice.finish_reason
            if reason is not None and reason not in FINISH_REASONS:
                reason = "stop"
            if reason is not None:
                self.finish_reason = reason
                self.finished_choices += 1
            if reason is not None or choice.logprobs is not None or not choice.delta.is_empty:
                delta = _without_role(choice.delta)
                added.append(msgspec.structs.replace(choice, delta=delta, finish_reason=reason))
        if self.first_text_at is None and any(not choice.delta.is_empty for choice in added):
            self.first_text_at = now
        return added

    @property
    def is_answered(self) -> bool:
        """Every answer that was asked for has come to its end."""
        return self.finished_choices == self.understood[0].choice_count

    @property
    def is_empty(self) -> bool:
        """Not a token was drawn, where one was due."""
        call, _ = self.understood
        return call.head_request.max_tokens != 0 and not self.usage.completion_tokens

    def complete(self, now: float) -> None:
        """The head's last byte is here."""
        self.last_byte_at = now
        self.outcome = Outcome.COMPLETED

    @property
    def usage(self) -> Usage:
        """The head's own count; without one, the tokens it was seen to draw."""
        return self.reported_usage or Usage(
            prompt_tokens=0, completion_tokens=self.drawn_tokens, total_tokens=self.drawn_tokens
        )

    @property
    def run_s(self) -> float | None:
        """From dispatch to the head until its last byte arrived."""
        return None if self.last_byte_at is None else self.last_byte_at - self.dispatched_at

    @property
    def route_ttft_s(self) -> float | None:
        """From dispatch to the head until its first text."""
        return None if self.first_text_at is None else self.first_text_at - self.dispatched_at

    @property
    def tells_of_its_route(self) -> bool:
        """One complete answer whose speed was the route's own, and not that of a client which reads slowly."""
        if self.outcome is not Outcome.COMPLETED or self.run_s is None or self.understood[0].choice_count > 1:
            return False
        return self.client_wait_s <= max(CLIENT_WAIT_S_MAX, CLIENT_WAIT_SHARE_MAX * self.run_s)

    def summary(self, now: float) -> dict[str, Any]:
        """The fields of the ``chat finished`` event. Null where the chat did not get that far."""
        usage, run_s = self.usage, self.run_s
        return {
            "request_id": self.request_id,
            "model": self.model.model_key if self.model else None,
            "outcome": (self.outcome or Outcome.NODE_FAULT).value,
            "signature": self.decision.signature if self.decision else None,
            "mode": self.decision.mode.value if self.decision else None,
            "attempts": self.attempts,
            "is_sampled": self.is_sampled,
            "finish_reason": self.finish_reason,
            "prompt_tokens": usage.prompt_tokens,
            "completion_tokens": usage.completion_tokens,
            "tps": usage.completion_tokens / run_s if run_s else None,
            "seconds": now - self.received_at,
            "ttft_s": None if self.first_text_at is None else self.first_text_at - self.received_at,
            "seed": self.call.head_request.seed if self.call else None,
            "hops": self._hop_summaries(),
        }

    def _hop_summaries(self) -> list[dict[str, Any]]:
        """What each hop ran, and where its time went if the head reported that."""
        if self.decision is None:
            return []
        timings = {timing.node_id: msgspec.structs.asdict(timing) for timing in self.timings}
        return [
            {
                "node_id": hop.node_id,
                "start_layer": hop.start_layer,
                "end_layer": hop.end_layer,
                "work_units": hop.work_units(self.usage.prompt_tokens + self.usage.completion_tokens),
                "timing": timings.get(hop.node_id),
            }
            for hop in self.decision.route.hops
        ]


def _without_role(delta: Delta) -> Delta:
    return delta if delta.role is None else msgspec.structs.replace(delta, role=None)


def outcome_of(error: Exception) -> Outcome:
    """How a chat that ends in ``error`` ended: by whose doing."""
    match error:
        case ClientGoneError():
            return Outcome.CLIENT_GONE
        case ClientError():
            return Outcome.CLIENT_ERROR
        case OverloadedError():
            return Outcome.OVERLOAD
        case EmptyAnswerError():
            return Outcome.DEGENERATE
        case _:
            return Outcome.NODE_FAULT
