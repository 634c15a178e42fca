"""When to try a chat on another route, and when to give it up.

Attempts that bring the answer no further are few in a row, whatever breaks them; attempts in all are bounded too, so
that a chat which gets on by a token at a time ends some day. A chat pinned to its route has no other one.
"""

from dataclasses import dataclass, field

from meshnet_protocol.ids import Signature
from meshnet_tracker.chat import Chat
from meshnet_tracker.errors import AttemptFailedError, NodeLostError, OverloadedError
from meshnet_tracker.outcomes import Outcome

FRUITLESS_ATTEMPTS_MAX = 3
"""In a row, without a single further token."""
ATTEMPTS_MAX = 16


@dataclass(slots=True)
class Tries:
    """The attempts of one chat since it was last let in."""

    chat: Chat
    failed: list[Signature] = field(default_factory=list)
    """Routes that failed it since it last got on."""
    fruitless: int = 0
    """Attempts in a row without a token; the one that brought the last token is none of them."""
    failure: AttemptFailedError | None = None

    def note(self, signature: Signature, failure: AttemptFailedError) -> None:
        self.failure = failure
        if self.chat.runs[-1].completion_tokens:
            self.failed.clear()  # it went on: what failed further back may serve again
            self.fruitless = 0
        else:
            self.fruitless += 1
        self.failed.append(signature)

    @property
    def are_over(self) -> bool:
        """Too many, or nobody else could go on from what there is."""
        call, _, progress = self.chat.understood
        is_at_end = self.fruitless >= FRUITLESS_ATTEMPTS_MAX or self.chat.attempts >= ATTEMPTS_MAX
        has_no_other = call.pinned is not None or not progress.can_be_resumed
        return not progress.is_complete and (is_at_end or has_no_other)

    def loss(self) -> OverloadedError | NodeLostError:
        """What the client is told: the last failure tells more than that no route is left."""
        failure = self.failure
        assert failure is not None
        if failure.is_overload:
            return OverloadedError(f"Every route that was tried is full: {failure}.")
        said = "The answer is empty or cut short" if failure.outcome is Outcome.DEGENERATE else "The chat was lost"
        return NodeLostError(
            f"{said} on every route that was tried, and no other is left: {failure}.",
            outcome=failure.outcome,
            culprit=failure.culprit,
        )
