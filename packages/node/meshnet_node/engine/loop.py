"""The engine thread's loop: events come in, batches are computed, results go out.

The loop is the only caller of llama.cpp once a generation is loaded. It sleeps while nothing is ready, and
between two decodes it takes in whatever has arrived meanwhile: that is how steps of different users find
each other in one batch.
"""

import logging
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import assert_never

from meshnet_node.engine.batch import Batch, ReadyRows, choose_batch
from meshnet_node.engine.groups import DecodeGroups
from meshnet_node.engine.sampling import Draw
from meshnet_node.engine.segment import FloatRows, RowsResult
from meshnet_node.engine.session import EngineSession, StepWork
from meshnet_node.engine.shard import EngineOptions, Generation
from meshnet_node.errors import DecodeError, EngineClosedError, NodeError

log = logging.getLogger("meshnet.engine")


@dataclass(frozen=True, slots=True)
class PrefixTaken:
    """The session begins with what another slot holds. Said before anything changes that slot."""

    session: EngineSession
    copy_from: int


@dataclass(frozen=True, slots=True)
class StepArrived:
    session: EngineSession
    work: StepWork


@dataclass(frozen=True, slots=True)
class SessionClosed:
    session: EngineSession
    keep_tokens: int
    """Rows that its slot goes on holding."""


@dataclass(frozen=True, slots=True)
class TokenDrawn:
    """Beside this thread, under a grammar."""

    session: EngineSession
    work: StepWork
    outcome: Draw | NodeError


@dataclass(frozen=True, slots=True)
class GenerationRetired:
    """No session is left on it and none will come."""

    generation: Generation


@dataclass(frozen=True, slots=True)
class AnswerWanted:
    """Somebody asks whether this thread is alive."""

    answer: Callable[[], None]


@dataclass(frozen=True, slots=True)
class EngineStopped:
    pass


Event = PrefixTaken | StepArrived | SessionClosed | TokenDrawn | GenerationRetired | AnswerWanted | EngineStopped


class EngineLoop:
    """Everything in here belongs to the engine thread, except ``inbox``."""

    def __init__(self, options: EngineOptions, on_failure: Callable[[NodeError], None]) -> None:
        """``on_failure`` hears of a bug that ends the thread, and lets nothing new into the inbox from then on."""
        self._on_failure = on_failure
        self.inbox: SimpleQueue[Event] = SimpleQueue()
        self._options = options
        self._busy: dict[int, EngineSession] = {}
        """Sessions with a step to compute, by slot."""
        self._drawing: dict[StepWork, EngineSession] = {}
        """Steps whose token is being drawn beside this thread."""
        self._session_slots: set[int] = set()
        """Slots that have been used since they were last emptied."""
        self._groups = DecodeGroups()
        self._after_decode = False
        self._turn = 0
        self._is_stopped = False

    def run(self) -> None:
        """The thread's body; returns after ``EngineStopped``, or after a bug, of which everybody is told."""
        end = EngineClosedError("the engine was closed")
        try:
            self._run_until_stopped()
        except Exception as error:
            log.exception("the engine thread failed")
            end = EngineClosedError(f"the engine failed: {error!r}; see this node's log, and start the node again")
            self._on_failure(end)
        self._fail_all(end)

    def _fail_all(self, error: NodeError) -> None:
        for session in [*self._busy.values(), *self._drawing.values()]:
            self._fail(session, error)
        with suppress(Empty):
            while True:
                event = self.inbox.get_nowait()
                if isinstance(event, StepArrived):
                    event.work.answer.set_exception(error)
                elif isinstance(event, AnswerWanted):
                    event.answer()  # who asked looks at the engine's state next

    def _run_until_stopped(self) -> None:
        hold_s = 0.0
        while not self._is_stopped:
            self._take_events(hold_s if self._busy else None)
            batch, hold_s = self._choose()
            if batch is not None:
                self._run_batch(batch)

    def _choose(self) -> tuple[Batch | None, float]:
        """The next batch; without one, how long to wait for the rest of a group."""
        ready = self._ready()
        now = time.perf_counter()
        steps = {rows.slot: self._busy[rows.slot].works[0].arrived_s for rows in ready if rows.row_count == 1}
        held = self._groups.held_until(steps, now)
        batch = choose_batch(
            [rows for rows in ready if rows.slot not in held] if held else ready,
            rows_max=self._options.rows_max,
            after_decode=self._after_decode,
            session_count=len(self._session_slots),
            group_of=self._groups.group_of,
        )
        # A prompt's piece takes much longer than a group is held: it must not slip in before.
        if held and (batch is None or (batch.is_prefill and not self._after_decode)):
            return None, min(held.values()) - now
        return batch, 0.0

    def _take_events(self, wait_s: float | None) -> None:
        """All events that are there; waits for the first for so long, None: until there is one."""
        try:
            event = self.inbox.get(block=wait_s != 0, timeout=wait_s or None)
            while True:
                self._handle(event)
                event = self.inbox.get_nowait()
        except Empty:
            return

    def _handle(self, event: Event) -> None:
        match event:
            case PrefixTaken(session, copy_from):
                for segment in session.generation.segments[session.first_segment :]:
                    segment.copy(copy_from, session.slot)
            case StepArrived(session, work):
                self._accept(session, work)
            case SessionClosed(session, keep_tokens):
                self._forget(session, keep_tokens)
            case TokenDrawn(session, work, outcome):
                self._take_drawn(session, work, outcome)
            case GenerationRetired(generation):
                generation.close()
            case AnswerWanted(answer):
                answer()
            case EngineStopped():
                self._is_stopped = True
            case _:
                assert_never(event)

    def _accept(self, session: EngineSession, work: StepWork) -> None:
        if session.failure is not None:
            work.answer.set_exception(session.failure)
            return
        if work.is_first and not self._rewind(session, work.step.position):
            self._fail(session, DecodeError("the slot could not be rewound; this is a bug"))
            work.answer.set_exception(session.failure or EngineClosedError("the session was closed"))
            return
        work.segment = session.first_segment
        if work.rows.row_count == 1 or session.turn_rows_left <= 0:
            self._to_the_back(session)
        session.works.append(work)
        self._busy[session.slot] = session
        self._session_slots.add(session.slot)

    def _rewind(self, session: EngineSession, position: int) -> bool:
        """Drop what the session's slot holds from ``position`` on; False if a segment could not."""
        is_done = True
        for segment in session.generation.segments[session.first_segment :]:
            is_done &= segment.rewind(session.slot, position)
        return is_done

    def _forget(self, session: EngineSession, keep_tokens: int) -> None:
        self._fail(session, EngineClosedError("the session was closed"))
        self._rewind(session, keep_tokens)
        self._session_slots.discard(session.slot)
        self._groups.left(session.slot)
        session.sampler = None
        if session.grammar_draws is not None:
            session.grammar_draws.close()

    def _fail(self, session: EngineSession, error: NodeError) -> None:
        """End all steps of a session, and every later one."""
        session.failure = error
        drawing = [work for work, owner in self._drawing.items() if owner is session]
        for work in drawing:
            del self._drawing[work]
        for work in [*drawing, *session.works]:
            work.answer.set_exception(error)
        session.works.clear()
        if self._busy.get(session.slot) is session:
            del self._busy[session.slot]

    def _ready(self) -> list[ReadyRows]:
        return [session.works[0].ready_rows(session) for session in self._busy.values()]

    def _run_batch(self, batch: Batch) -> None:
        self._after_decode = not batch.is_prefill
        sessions = [self._busy[slot] for slot in batch.slots]
        try:
            self._decode(sessions, batch)
        except DecodeError as error:
            # llama.cpp fails a batch as a whole; alone, those that can go on do.
            if len(sessions) > 1:
                for slot in batch.slots:
                    self._run_batch(Batch(batch.stage, (slot,), batch.row_count))
            else:
                log.warning("a step failed: %s", error)
                self._fail(sessions[0], error)
        except Exception as error:
            # A bug must cost the sessions it met, not the node.
            log.exception("a batch failed")
            for session in sessions:
                self._fail(session, DecodeError(f"the engine failed: {error!r}; see this node's log"))

    def _decode(self, sessions: list[EngineSession], batch: Batch) -> None:
        segment = sessions[0].generation.segments[batch.stage.segment]
        began_s = time.perf_counter()
        results = segment.decode([session.works[0].piece(session, batch.row_count) for session in sessions])
        if self._options.layer_delay_s:
            time.sleep(self._options.layer_delay_s * segment.shape.layer_count)
        compute_s = time.perf_counter() - began_s
        for session, result in zip(sessions, results, strict=True):
            session.works[0].compute_s += compute_s
            self._advance(session, batch.row_count, result)
        if not batch.is_prefill:
            self._groups.decoded(time.perf_counter() - began_s)

    def _advance(self, session: EngineSession, row_count: int, result: RowsResult) -> None:
        row: list[tuple[FloatRows, int]] = []

        def draw(logits: FloatRows, position: int) -> Draw | None:
            if session.sampler is not None:
                return session.sampler.draw(logits, position=position)
            row.append((logits.copy(), position))  # the next decode writes over them
            return None

        work = session.works[0]
        is_done = work.advance(session, row_count, result, draw)
        if work.is_at_entry:
            session.turn_rows_left -= row_count
            if session.turn_rows_left <= 0:
                self._to_the_back(session)
        if is_done:
            session.works.popleft()
            if not session.works:
                del self._busy[session.slot]
            if work.step.wants_token:
                self._groups.stepped(session.slot, hop_count=session.hop_count)
            if row:
                self._draw_beside(session, work, *row[0])
            else:
                work.answer.set_result(work.result(time.perf_counter()))

    def _draw_beside(self, session: EngineSession, work: StepWork, logits: FloatRows, position: int) -> None:
        assert session.grammar_draws is not None
        self._drawing[work] = session
        session.grammar_draws.draw(logits, position, lambda outcome: self.inbox.put(TokenDrawn(session, work, outcome)))

    def _take_drawn(self, session: EngineSession, work: StepWork, outcome: Draw | NodeError) -> None:
        if self._drawing.pop(work, None) is None:
            return  # the session was closed meanwhile, and its steps have been told
        if isinstance(outcome, NodeError):
            work.answer.set_exception(outcome)
            self._fail(session, outcome)
        else:
            work.drawn = outcome
            work.answer.set_result(work.result(time.perf_counter()))

    def _to_the_back(self, session: EngineSession) -> None:
        """Short prompts are finished one after the other, long ones take turns."""
        self._turn += 1
        session.turn = self._turn
        session.turn_rows_left = self._options.chunk_tokens
