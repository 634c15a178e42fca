"""What a chat's heads have said so far: enough for another head to go on from there, without a word twice.

A head sends the ids of drawn tokens at once and their text when it may be shown. Both come in one event, so what
is known here is always whole: the client has got exactly the text that these tokens let out. Kept are ids, and
the probabilities that wait for their text; the text itself has gone to the client.

An event that cannot be, such as a word after an answer's end, is the head's fault and raises AttemptFailedError.
"""

from collections import deque
from dataclasses import dataclass, field

import msgspec

from meshnet_protocol.messages import Choice, ChoiceSoFar, Delta, TokenLogprobs, Usage
from meshnet_tracker.errors import AttemptFailedError
from meshnet_tracker.head_events import HeadEvent
from meshnet_tracker.openai_schema import ChatCall
from meshnet_tracker.outcomes import Outcome

FINISH_REASONS = {"stop", "length", "tool_calls", "content_filter"}


@dataclass(slots=True)
class _Answer:
    token_ids: list[int] = field(default_factory=list)
    logprobs: deque[TokenLogprobs] = field(default_factory=deque)
    """Of the last tokens, as long as their text is held back."""
    has_begun: bool = False
    is_finished: bool = False
    is_accounted_for: bool = True
    """All that was shown of it follows from its ids."""


class AnswerProgress:
    """All answers of one request, over all attempts at it."""

    def __init__(self, call: ChatCall) -> None:
        self._answers = [_Answer() for _ in range(call.choice_count)]
        self._wants_logprobs = call.head_request.top_logprobs is not None
        self._wants_tokens = call.head_request.max_tokens != 0
        self._usage: Usage | None = None
        self._prefilled = 0
        self._resumed_tokens = 0
        self._is_confirmed = True
        self._reports = False
        self._pieces_shown = 0
        self.prompt_tokens = 0
        self.finish_reason: str | None = None
        """Of the latest answer that ended."""

    @property
    def drawn_tokens(self) -> int:
        return sum(len(answer.token_ids) for answer in self._answers)

    @property
    def is_complete(self) -> bool:
        """Every answer that was asked for has come to its end."""
        return all(answer.is_finished for answer in self._answers)

    @property
    def can_be_resumed(self) -> bool:
        """False if a head has shown text without saying what it was made of."""
        return all(answer.is_finished or answer.is_accounted_for for answer in self._answers)

    @property
    def has_begun(self) -> bool:
        return any(answer.has_begun for answer in self._answers)

    def check_end(self) -> None:
        """The head says that it is done. Raises AttemptFailedError if it is not."""
        if self._wants_tokens and not self.usage.completion_tokens and not self.has_begun:
            for answer in self._answers:
                answer.is_finished = False
            raise AttemptFailedError("the head drew no token where some were due", outcome=Outcome.DEGENERATE)
        if not self.is_complete:
            raise AttemptFailedError("the head ended its stream without a finish reason", outcome=Outcome.DEGENERATE)

    @property
    def usage(self) -> Usage:
        """Each token counts once, whoever drew it. A head that tells no ids is believed its own count.

        Until such a head has told it, and if it never does, each piece of text counts for a token.
        """
        reported = self._usage or Usage(prompt_tokens=0, completion_tokens=0, total_tokens=0)
        prompt = self.prompt_tokens or reported.prompt_tokens
        drawn = self.drawn_tokens or reported.completion_tokens or self._pieces_shown
        return Usage(
            prompt_tokens=prompt,
            completion_tokens=drawn,
            total_tokens=prompt + drawn,
            prompt_tokens_details=reported.prompt_tokens_details,
        )

    def begin_attempt(self) -> tuple[ChoiceSoFar, ...]:
        """What the next head must know; empty for one that begins at the beginning."""
        self._prefilled = 0
        self._reports = False
        self._usage = None
        begun = [index for index, answer in enumerate(self._answers) if answer.has_begun or answer.is_finished]
        so_far = tuple(_so_far(answer) for answer in self._answers[: begun[-1] + 1]) if begun else ()
        self._resumed_tokens = sum(len(answer.token_ids) for answer in so_far)
        self._is_confirmed = not so_far
        return so_far

    def take(self, event: HeadEvent) -> tuple[list[Choice], bool]:
        """What the event adds to the answers, and whether it is a sign of life. Raises AttemptFailedError."""
        is_alive = self._take_report(event)
        added = []
        for choice in event.choices:
            answer = self._answer(choice.index)
            finish_reason = self._finish(answer, choice)
            if finish_reason is None and choice.logprobs is None and choice.delta.is_empty:
                continue
            is_alive = True
            answer.has_begun |= choice.logprobs is not None or not choice.delta.is_empty
            self._pieces_shown += not choice.delta.is_empty
            self._account_for(answer, choice)
            added.append(
                msgspec.structs.replace(choice, delta=_without_role(choice.delta), finish_reason=finish_reason)
            )
        return added, is_alive

    def _take_report(self, event: HeadEvent) -> bool:
        if event.usage is not None:
            self._usage = event.usage
        report = event.meshnet
        self._reports = self._reports or report is not None
        if report is None:
            return event.usage is not None
        if report.prompt_tokens is not None:
            self.prompt_tokens = report.prompt_tokens
        if not self._is_confirmed and report.resumed_tokens != self._resumed_tokens:
            raise AttemptFailedError(f"the head resumes {report.resumed_tokens} tokens of {self._resumed_tokens}")
        self._is_confirmed = True
        has_advanced = report.prefilled_tokens > self._prefilled
        self._prefilled = max(self._prefilled, report.prefilled_tokens)
        if report.token_ids:
            answer = self._answer(event.choices[0].index if event.choices else -1)
            answer.token_ids.extend(report.token_ids)
            answer.has_begun = True
            if self._wants_logprobs:
                answer.logprobs.extend(report.logprobs)
                answer.is_accounted_for &= len(report.logprobs) == len(report.token_ids)
            self._prefilled = 0
        return has_advanced or bool(report.token_ids or report.timings) or report.prompt_tokens is not None

    def _answer(self, index: int) -> _Answer:
        if not self._is_confirmed:
            raise AttemptFailedError("the head does not say that it goes on from what was there")
        if not 0 <= index < len(self._answers):
            raise AttemptFailedError(f"the head speaks of answer {index} of {len(self._answers)}")
        answer = self._answers[index]
        if answer.is_finished:
            raise AttemptFailedError(f"the head goes on with answer {index}, which has ended")
        return answer

    def _finish(self, answer: _Answer, choice: Choice) -> str | None:
        if choice.finish_reason is None:
            return None
        # A head that reports no tokens is heard out: only its own count at the end tells whether there were any.
        if self._wants_tokens and self._reports and not answer.has_begun and choice.delta.is_empty:
            raise AttemptFailedError("the head drew no token where some were due", outcome=Outcome.DEGENERATE)
        answer.is_finished = True
        self.finish_reason = choice.finish_reason if choice.finish_reason in FINISH_REASONS else "stop"
        return self.finish_reason

    def _account_for(self, answer: _Answer, choice: Choice) -> None:
        if not choice.delta.is_empty and not answer.token_ids:
            answer.is_accounted_for = False
        if choice.logprobs is not None:
            for _ in range(min(len(choice.logprobs.content), len(answer.logprobs))):
                answer.logprobs.popleft()


def _so_far(answer: _Answer) -> ChoiceSoFar:
    waiting = () if answer.is_finished else tuple(answer.logprobs)
    return ChoiceSoFar(token_ids=tuple(answer.token_ids), logprobs=waiting, is_finished=answer.is_finished)


def _without_role(delta: Delta) -> Delta:
    return delta if delta.role is None else msgspec.structs.replace(delta, role=None)
