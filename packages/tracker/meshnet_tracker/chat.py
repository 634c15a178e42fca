"""One chat's record, from the first byte in to the one outcome it ends with. Times are of one monotonic clock."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from meshnet_protocol.ids import NodeId
from meshnet_protocol.messages import Choice, ChoiceSoFar, HopTiming, Usage
from meshnet_tracker.answer_progress import AnswerProgress
from meshnet_tracker.errors import (
    AttemptFailedError,
    ClientError,
    ClientGoneError,
    NodeLostError,
    OverloadedError,
    ShuttingDownError,
)
from meshnet_tracker.fleet import ServedModel
from meshnet_tracker.head_events import HeadEvent
from meshnet_tracker.openai_schema import ChatCall, Dialect
from meshnet_tracker.outcomes import Outcome
from meshnet_tracker.router import RouteDecision

CLIENT_WAIT_S_MAX = 0.25
CLIENT_WAIT_SHARE_MAX = 0.05
NO_USAGE = Usage(prompt_tokens=0, completion_tokens=0, total_tokens=0)


@dataclass(slots=True)
class Run:
    """One attempt: on which route, what it drew, how it ended."""

    decision: RouteDecision
    tokens_before: int
    completion_tokens: int = 0
    outcome: Outcome | None = None
    """None while it runs, and if the chat ended by somebody else's doing."""
    culprit: NodeId | None = None


@dataclass(slots=True, kw_only=True)
class Chat:
    """Filled in as the chat goes on. What an attempt brought stays when another one takes over from it."""

    request_id: str
    received_at: float
    client: str = ""
    """Who asks, for fair turns; shown to nobody."""
    dialect: Dialect = Dialect.CHAT
    call: ChatCall | None = None
    model: ServedModel | None = None
    progress: AnswerProgress | None = None
    runs: list[Run] = field(default_factory=list)
    outcome: Outcome | None = None
    culprit: NodeId | None = None
    error: Mapping[str, Any] | None = None
    """What the client was told, as far as others may read it (``openai_errors.public_part``)."""
    is_sampled: bool = False
    dispatched_at: float = 0.0
    first_text_at: float | None = None
    last_byte_at: float | None = None
    client_wait_s: float = 0.0
    """How long the head's stream stood still because the client did not take more."""
    timings: tuple[HopTiming, ...] = ()

    def understand(self, call: ChatCall, model: ServedModel) -> None:
        self.call, self.model, self.progress = call, model, AnswerProgress(call)

    @property
    def understood(self) -> tuple[ChatCall, ServedModel, AnswerProgress]:
        """What is asked, of which model, and how far it is: known as soon as the request is parsed."""
        assert self.call is not None
        assert self.model is not None
        assert self.progress is not None
        return self.call, self.model, self.progress

    @property
    def decision(self) -> RouteDecision | None:
        """Of the latest attempt."""
        return self.runs[-1].decision if self.runs else None

    @property
    def exact_class(self) -> str | None:
        """Whose bits the text so far was made of: routes of this class go on with the very text that was due."""
        drawn_on = next((run.decision for run in self.runs if run.completion_tokens), None)
        return drawn_on.exact_class if drawn_on else None

    @property
    def attempts(self) -> int:
        return len(self.runs)

    def begin_attempt(self, decision: RouteDecision, now: float) -> tuple[ChoiceSoFar, ...]:
        """What the head must go on from."""
        progress = self.understood[2]
        self.runs.append(Run(decision, tokens_before=progress.drawn_tokens))
        self.dispatched_at = now
        self.last_byte_at = None
        self.client_wait_s = 0.0
        self.timings = ()
        return progress.begin_attempt()

    def end_attempt(self, failure: AttemptFailedError | None = None) -> None:
        run = self.runs[-1]
        run.completion_tokens = self.usage.completion_tokens - run.tokens_before
        run.outcome = failure.outcome if failure else self.outcome
        run.culprit = failure.culprit if failure else None

    def take(self, event: HeadEvent, now: float) -> tuple[list[Choice], bool]:
        """Note what the head reports. What it adds to the answers, and whether it is a sign of life."""
        if event.meshnet is not None:
            self.timings = event.meshnet.timings or self.timings
        added, is_alive = self.understood[2].take(event)
        if self.first_text_at is None and any(not choice.delta.is_empty for choice in added):
            self.first_text_at = now
        return added, is_alive

    def complete(self, now: float) -> None:
        """The head's last byte is here."""
        self.last_byte_at = now
        self.outcome = Outcome.COMPLETED

    @property
    def usage(self) -> Usage:
        return self.progress.usage if self.progress else NO_USAGE

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
        """One complete answer that one route ran from start to end, at its own speed and not that of a slow reader."""
        if self.outcome is not Outcome.COMPLETED or self.run_s is None or self.understood[0].choice_count > 1:
            return False
        if self.runs[-1].tokens_before:
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
            "culprit": self.culprit,
            "error": self.error,
            "attempts": self.attempts,
            "runs": self._run_summaries(),
            "is_sampled": self.is_sampled,
            "finish_reason": self.progress.finish_reason if self.progress else None,
            "prompt_tokens": usage.prompt_tokens,
            "completion_tokens": usage.completion_tokens,
            "tps": self.runs[-1].completion_tokens / run_s if run_s else None,
            "seconds": now - self.received_at,
            "ttft_s": None if self.first_text_at is None else self.first_text_at - self.received_at,
            "choice_count": self.call.choice_count if self.call else None,
            "seed": self.call.head_request.seed if self.call else None,
            "hops": self._hop_summaries(),
        }

    def _run_summaries(self) -> list[dict[str, Any]]:
        """Who drew what: the tokens of all runs together are the chat's, and the prompt is one run's alone."""
        first = next((run for run in self.runs if run.completion_tokens), self.runs[-1] if self.runs else None)
        return [
            {
                "signature": run.decision.signature,
                "outcome": run.outcome,
                "culprit": run.culprit,
                "prompt_tokens": self.usage.prompt_tokens if run is first else 0,
                "completion_tokens": run.completion_tokens,
            }
            for run in self.runs
        ]

    def _hop_summaries(self) -> list[dict[str, Any]]:
        """What each hop of the last run did for this chat, and where its time went if the head reported that."""
        if not self.runs:
            return []
        run = self._run_summaries()[-1]
        timings = {timing.node_id: msgspec.structs.asdict(timing) for timing in self.timings}
        return [
            {
                "node_id": hop.node_id,
                "start_layer": hop.start_layer,
                "end_layer": hop.end_layer,
                "work_units": hop.work_units(run["prompt_tokens"] + run["completion_tokens"]),
                "timing": timings.get(hop.node_id),
            }
            for hop in self.runs[-1].decision.route.hops
        ]


def outcome_of(error: Exception) -> Outcome:
    """How a chat that ends in ``error`` ended: by whose doing."""
    match error:
        case ClientGoneError():
            return Outcome.CLIENT_GONE
        case ClientError():
            return Outcome.CLIENT_ERROR
        case OverloadedError():
            return Outcome.OVERLOAD
        case ShuttingDownError():
            return Outcome.SHUTDOWN
        case NodeLostError():
            return error.outcome
        case _:
            return Outcome.NODE_FAULT
