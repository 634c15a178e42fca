"""A session at the engine, and the way of one of its steps through the segments.

    step of 300 rows ──cut──> piece of 128 ──segment 0──> hidden ──segment 1──> hidden or logits
                              piece of 128 ...
                              piece of 44  ...                                  ──> token

Nothing here calls llama.cpp.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from meshnet_node.engine.batch import ReadyRows, Stage
from meshnet_node.engine.grammar_draws import GrammarDraws
from meshnet_node.engine.sampling import Draw, TokenSampler
from meshnet_node.engine.segment import FloatRows, RowsResult, SequenceRows, TokenRows
from meshnet_node.engine.shard import Generation
from meshnet_node.engine.slots import Place
from meshnet_node.errors import NodeError, StepError
from meshnet_protocol.ids import SessionId
from meshnet_protocol.layers import LayerRange
from meshnet_protocol.messages import TokenLogprobs


@dataclass(frozen=True, slots=True)
class StepInput:
    """Consecutive rows of one session, as token ids or as hidden states."""

    position: int
    """Of the first row; follows the last row of the session's previous step."""
    tokens: Sequence[int] | None
    """For sessions that start at layer 0."""
    hidden: memoryview | None
    """For all others: float32, row-major, rows x hidden size. Must not change until the step is done."""
    wants_token: bool
    """At the model's last layer: draw the token that follows the last row."""


@dataclass(frozen=True, slots=True)
class StepResult:
    token_id: int | None
    """Set if the session ends at the model's last layer and the step asked for it."""
    hidden: memoryview | None
    """Bytes of float32 rows, one for each row of the step, if the session ends before the model does."""
    logprobs: TokenLogprobs | None
    """Of the token, if the session's sampling asks for them."""
    queue_s: float
    """Time the step spent waiting for its turns."""
    compute_s: float
    """Time its decodes took, those it shared with other sessions counted in full."""
    row_count: int


@dataclass(eq=False, slots=True)
class EngineSession:
    """What ``Engine.open_session`` returns. Callers hand it back and look at its ids only."""

    session_id: SessionId
    layers: LayerRange
    slot: int
    generation: Generation
    first_segment: int
    hop_count: int = 1
    """Of its route."""
    prefix: tuple[bytes, ...] = ()
    """Its prompt's chain, if others may have its rows."""
    next_position: int = 0
    """Position the next step must have; moved on as steps are handed in."""
    held_tokens: int = 0
    """Rows of the prompt that the slot held when the session opened; its first step may begin there or before."""
    has_begun: bool = False
    """Its first step was handed in."""
    done_position: int = 0
    """All rows before it are computed, and told or found in the slot; its first step drops what it found behind it."""
    is_closed: bool = False
    sampler: TokenSampler | None = None
    """Set if the session ends at the model's last layer. From here on: the engine thread's."""
    grammar_draws: GrammarDraws | None = None
    """Set instead of the sampler if the answer must follow a grammar."""
    works: "deque[StepWork]" = field(default_factory=deque)
    failure: NodeError | None = None
    turn: int = 0
    """The lowest of all waiting sessions has waited longest."""
    turn_rows_left: int = 0
    """Rows it may compute before it goes to the back."""

    @property
    def place(self) -> Place:
        return Place(self.generation.number, self.first_segment)


def rows_of_step(session: EngineSession, step: StepInput, *, hidden_size: int, vocabulary_size: int) -> "StepRows":
    """The step's rows, checked. Raises StepError."""
    may_begin = not session.has_begun and 0 <= step.position <= session.held_tokens
    if step.position != session.next_position and not may_begin:
        raise StepError(f"a step at position {step.position}; the session goes on at {session.next_position}")
    takes_tokens = session.layers.first == 0
    if takes_tokens != (step.hidden is None) or takes_tokens != (step.tokens is not None):
        raise StepError(f"a session of layers {session.layers} takes {'tokens' if takes_tokens else 'hidden states'}")
    if step.tokens is not None:
        if not step.tokens or not all(0 <= token < vocabulary_size for token in step.tokens):
            raise StepError(f"a step needs token ids, from 0 to {vocabulary_size - 1}")
        return StepRows(len(step.tokens), np.asarray(step.tokens, np.int32), None)
    assert step.hidden is not None
    row_bytes = hidden_size * np.dtype(np.float32).itemsize
    if not step.hidden.nbytes or step.hidden.nbytes % row_bytes:
        raise StepError(f"hidden states of {step.hidden.nbytes} bytes; rows are {row_bytes} bytes each")
    hidden = np.frombuffer(step.hidden, np.float32).reshape(-1, hidden_size)
    return StepRows(len(hidden), None, hidden)


@dataclass(frozen=True, slots=True)
class StepRows:
    row_count: int
    tokens: TokenRows | None
    hidden: FloatRows | None


class Answer(Protocol):
    """Where a step's outcome goes, told by the engine thread exactly once."""

    def set_result(self, result: StepResult, /) -> None: ...

    def set_exception(self, error: NodeError, /) -> None: ...


@dataclass(eq=False, slots=True)
class StepWork:
    """A step under way: which of its rows are done, and where the piece being computed is."""

    step: StepInput
    rows: StepRows
    answer: Answer
    arrived_s: float
    is_first: bool = False
    """Of its session: what the slot holds from its position on belongs to somebody else's text."""
    compute_s: float = 0.0
    segment: int = 0
    drawn: Draw | None = None
    _done_rows: int = 0
    _piece: FloatRows | None = None
    """Hidden states of the piece under way, once it has left its first segment."""
    _hidden: list[FloatRows] = field(default_factory=list)

    @property
    def is_at_entry(self) -> bool:
        """No piece is between two segments."""
        return self._piece is None

    def ready_rows(self, session: EngineSession) -> ReadyRows:
        is_cut = self._piece is not None
        count = len(self._piece) if self._piece is not None else self.rows.row_count - self._done_rows
        return ReadyRows(session.slot, Stage(session.generation.number, self.segment), count, is_cut, session.turn)

    def piece(self, session: EngineSession, row_count: int) -> SequenceRows:
        """The next rows to compute at the current segment."""
        part = slice(self._done_rows, self._done_rows + row_count)
        enters = self._piece is None
        return SequenceRows(
            slot=session.slot,
            position=self.step.position + self._done_rows,
            row_count=row_count,
            tokens=self.rows.tokens[part] if enters and self.rows.tokens is not None else None,
            hidden=self.rows.hidden[part] if enters and self.rows.hidden is not None else self._piece,
            wants_logits=self.step.wants_token and part.stop == self.rows.row_count,
        )

    def advance(
        self, session: EngineSession, row_count: int, result: RowsResult, draw: Callable[[FloatRows, int], Draw | None]
    ) -> bool:
        """Take what a segment made of the piece; True if that was the step's last."""
        if self.segment + 1 < len(session.generation.segments):
            self._piece = result.hidden
            self.segment += 1
            return False
        if result.hidden is not None:
            self._hidden.append(result.hidden)
        self._done_rows += row_count
        self._piece = None
        self.segment = session.first_segment
        if result.logits is not None:
            self.drawn = draw(result.logits, self.step.position + self._done_rows)
        return self._done_rows == self.rows.row_count

    def result(self, now_s: float) -> StepResult:
        hidden = None
        if self._hidden:
            rows = self._hidden[0] if len(self._hidden) == 1 else np.concatenate(self._hidden)
            hidden = rows.data.cast("B")
        queue_s = max(now_s - self.arrived_s - self.compute_s, 0.0)
        token_id, logprobs = (None, None) if self.drawn is None else (self.drawn.token_id, self.drawn.logprobs)
        return StepResult(
            token_id, hidden, logprobs, queue_s=queue_s, compute_s=self.compute_s, row_count=self.rows.row_count
        )
