"""The engine: a node's layers, run by one thread for all of its sessions.

    asyncio ──step──> inbox ──> engine thread: batch, decode ──result──> asyncio
              open, close, recut: bookkeeping under a lock, the thread is told

llama.cpp contexts are not thread-safe, and decodes that run side by side would only share the same cores. So
one thread owns them all; it spends its time inside llama.cpp, where the GIL is released.

Slots are counted here, at once, as sessions open and close. The thread tidies a closed session's slot before
it runs anything that was handed in later, so a slot may be given away again in the same moment. A session's
first step says where its rows begin: whatever its slot holds from there on is dropped.
"""

import asyncio
import logging
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import Self

import numpy as np

from meshnet_node.engine import exactness
from meshnet_node.engine.architectures import check_architecture, enterable_at
from meshnet_node.engine.gguf_file import ModelFile
from meshnet_node.engine.grammar_draws import DrawPool, GrammarDraws
from meshnet_node.engine.held_file import HeldFile, held_file
from meshnet_node.engine.loop import (
    AnswerWanted,
    EngineLoop,
    EngineStopped,
    GenerationRetired,
    PrefixTaken,
    SessionClosed,
    StepArrived,
)
from meshnet_node.engine.loop_answer import LoopAnswer
from meshnet_node.engine.sampling import TokenSampler
from meshnet_node.engine.session import Answer, EngineSession, StepInput, StepResult, StepWork, rows_of_step
from meshnet_node.engine.shard import EngineOptions, Generation, load_generation
from meshnet_node.engine.slots import HeldRows, Place, SlotTable
from meshnet_node.engine.vocabulary import Vocabulary
from meshnet_node.errors import ContextOverflowError, DecodeError, EngineClosedError, NodeError
from meshnet_protocol.ids import SessionId
from meshnet_protocol.layers import LayerRange
from meshnet_protocol.messages import Exactness, ModelCard, Sampling
from meshnet_protocol.prefix import named_tokens

__all__ = ["Engine", "EngineOptions", "EngineSession", "StepInput", "StepResult"]

log = logging.getLogger("meshnet.engine")

# llama.cpp calls back into Python between the nodes of its graph, and each time the engine thread waits for
# the GIL. The default of 5 ms lets a busy event loop stretch a decode of 20 ms many times over.
SWITCH_INTERVAL_S = 0.0005

BENCHMARK_S = 0.4
BENCHMARK_STEPS_MAX = 512
BENCHMARK_CHUNK_ROWS = 16
CHUNK_OVERHEAD_ROWS = 1.0
"""Before it is measured."""
CONTEXT_TOKENS_PER_COPIED = 512
"""A slot is copied whole: on CPUs, 1,000 positions of a context cost less than a third of computing a token."""
_GREEDY = Sampling(temperature=0.0)


class Engine:
    """Runs the layers of one shard. All methods may be called from any thread, ``step`` from any event loop."""

    def __init__(
        self, model: ModelFile, card: ModelCard, generation: Generation, options: EngineOptions, proven: Exactness
    ) -> None:
        """Use ``load``."""
        self.card = card
        self.exactness = proven
        self.shard: LayerRange = generation.shard
        self.hidden_size = model.hidden_size
        self.options = options
        self.vocabulary = Vocabulary(model.path)
        self.model = model
        self.chunk_overhead_rows = CHUNK_OVERHEAD_ROWS
        """A decode's own cost, in rows, whatever it computes; ``measure_layer_tokens_per_s`` finds out."""
        self._lock = threading.Lock()
        self._cutting = threading.Lock()
        self._current = generation
        self._generations = [generation]
        self._slots = SlotTable(options.slots, copy_tokens_min=options.context_tokens // CONTEXT_TOKENS_PER_COPIED)
        self._draw_pool = DrawPool(model.path, sessions_max=options.slots)
        self._open_sessions: set[EngineSession] = set()
        self._is_closed = False
        self._failure: NodeError | None = None
        self._failure_watchers: list[Callable[[], None]] = []
        self._loop = EngineLoop(options, self._take_failure)
        self._thread = threading.Thread(target=self._loop.run, name="engine", daemon=True)
        self._thread.start()

    @classmethod
    def load(
        cls,
        path: Path | ModelFile,
        shard: LayerRange | None,
        options: EngineOptions,
        *,
        entry_layers: frozenset[int] = frozenset(),
    ) -> Self:
        """Slice, load and start (None: all layers): blocks for as long as reading them takes.

        Raises ModelFileError, UnsupportedArchitectureError, LayersError, LayerKindsError, NotExactError.
        """
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        model = ModelFile.open(path) if isinstance(path, Path) else path
        check_architecture(model)
        shard = shard or LayerRange(0, model.layer_count - 1)
        model.check_range(shard)
        card = model.card(options.cache_dir)
        if options.context_tokens > card.context_tokens:
            asked, trained = options.context_tokens, card.context_tokens
            log.warning("--context-tokens %d: the model was trained for %d, so it is %d", asked, trained, trained)
        options = options.fitted_to(model)
        pieces = shard.cut_at(enterable_at(model, shard, entry_layers))
        generation = load_generation(model, shard, pieces, options, number=0)
        try:
            return cls(model, card, generation, options, exactness.prove(generation, options))
        except BaseException:
            generation.close()
            raise

    @property
    def entry_layers(self) -> tuple[int, ...]:
        """Layers at which a session may enter now; the shard's first is always one of them."""
        return self._current.entry_layers

    def held_file(self) -> HeldFile:
        """The part of the model's file that is on this machine, to be handed on. Reads files."""
        return held_file(self.model, self._current.pieces, self.options.cache_dir)

    @property
    def queue_depth(self) -> int:
        """Sessions that are open."""
        return self._slots.in_use

    @property
    def kv_tokens(self) -> int:
        """Positions held: of open sessions, and remembered of ended ones."""
        with self._lock:
            return sum(session.next_position for session in self._open_sessions) + self._slots.remembered_tokens

    @property
    def kv_tokens_max(self) -> int:
        return self.options.slots * self.options.context_tokens

    @property
    def generation_count(self) -> int:
        """Cuts of the shard that are loaded: 1, or more while sessions finish on an older one."""
        return len(self._generations)

    def open_session(
        self,
        session_id: SessionId,
        layers: LayerRange,
        sampling: Sampling | None,
        *,
        prefix: Sequence[bytes] = (),
        hop_count: int = 1,
    ) -> EngineSession:
        """Take a slot for a session over ``layers``; ``sampling`` is used where they end the model.

        ``prefix`` is the prompt's chain: ``held_tokens`` of the session then says how much of it the slot
        holds, and its first step may begin there. ``hop_count`` is the length of its route.
        Raises NoFreeSlotError, EntryLayerError, EngineClosedError.
        """
        with self._lock:
            self._check_open()
            generation = self._current
            first_segment = generation.segment_at(layers)
            sampler: TokenSampler | None = None
            grammar_draws: GrammarDraws | None = None
            if layers.next_layer == self.card.layer_count:
                sampling = sampling or _GREEDY
                if sampling.grammar:
                    grammar_draws = self._draw_pool.lease(sampling)
                else:
                    sampler = TokenSampler(sampling, self.vocabulary)
            taken = self._slots.take(Place(generation.number, first_segment), prefix, self._rows_in_use())
            session = EngineSession(session_id, layers, taken.slot, generation, first_segment, hop_count, tuple(prefix))
            session.held_tokens = session.done_position = session.next_position = taken.held_tokens
            session.sampler, session.grammar_draws = sampler, grammar_draws
            if taken.copy_from is not None:
                self._loop.inbox.put(PrefixTaken(session, taken.copy_from))
            self._open_sessions.add(session)
            generation.session_count += 1
        return session

    def step(self, session: EngineSession, step: StepInput) -> asyncio.Future[StepResult]:
        """Run a step's rows through the session's layers. Steps of a session complete in the order of the calls.

        To cancel the future does not cancel the step: close the session for that. The future raises StepError,
        ContextOverflowError, DecodeError (the session is lost), EngineClosedError.
        """
        answer = LoopAnswer(session, step.position)
        try:
            self._submit(session, step, answer)
        except NodeError as error:
            answer.set_exception(error)
        return answer.future

    async def wait_answer(self) -> None:
        """Returns when the engine's thread has come by: soon, unless it hangs. Raises EngineClosedError."""
        answered = asyncio.Event()
        loop = asyncio.get_running_loop()

        def answer() -> None:
            with suppress(RuntimeError):  # the loop was closed: nobody waits any more
                loop.call_soon_threadsafe(answered.set)

        with self._lock:
            self._check_open()
            self._loop.inbox.put(AnswerWanted(answer))
        await answered.wait()
        with self._lock:
            self._check_open()

    def close_session(self, session: EngineSession, *, remember: tuple[bytes, ...] = ()) -> None:
        """Give the slot back; steps under way fail with EngineClosedError. May be called again.

        ``remember`` is the chain of the session's rows: the slot keeps them until somebody needs it. A failed
        session, and layers that cannot be rolled back to the middle of a text, remember nothing.
        """
        with self._lock:
            if session.is_closed or self._is_closed:
                return
            session.is_closed = True
            self._open_sessions.discard(session)
            tokens = min(session.done_position, named_tokens(len(remember)))
            if session.failure is not None or not session.generation.can_rewind:
                tokens = 0
            self._slots.give_back(session.slot, HeldRows(session.place, remember, tokens) if tokens else None)
            self._loop.inbox.put(SessionClosed(session, keep_tokens=tokens))
            session.generation.session_count -= 1
            self._retire_if_unused(session.generation)

    async def recut(self, entry_layers: frozenset[int]) -> None:
        """Cut the shard at these layers (those outside it are ignored); returns when they can be entered.

        Sessions that are open go on undisturbed. Raises what ``load`` raises; the old cut then stays.
        """
        await asyncio.to_thread(self._recut, entry_layers)

    def measure_layer_tokens_per_s(self) -> float:
        """Layers times tokens per second of one idle stream, decoded for about half a second. Takes a slot.

        It is the node's self-test too: at a model's end it draws tokens. Raises DecodeError if it cannot compute.
        """
        session = self.open_session(SessionId("benchmark"), self.shard, _GREEDY)
        try:
            self._run_benchmark_step(session)  # first touch of weights and buffers
            began_s = time.perf_counter()
            steps = 0
            while (elapsed_s := time.perf_counter() - began_s) < BENCHMARK_S and steps < self._benchmark_steps_max:
                self._run_benchmark_step(session)
                steps += 1
            self._measure_chunk(session, row_s=elapsed_s / steps)
        finally:
            self.close_session(session)
        return self.shard.layer_count * steps / elapsed_s

    def check_grammar(self, grammar: str) -> None:
        """Blocks for at most a few seconds. Raises GrammarError if a session could not follow it, NoFreeSlotError."""
        self._draw_pool.check(grammar)

    @property
    def failure(self) -> NodeError | None:
        """Why the engine will never compute again, if it will not: a bug met its thread, not a single step."""
        return self._failure

    def watch_failure(self, watcher: Callable[[], None]) -> None:
        """``watcher`` is called once, by any thread, when there is a failure; at once if there is one already."""
        with self._lock:
            self._failure_watchers.append(watcher)
            has_failed = self._failure is not None
        if has_failed:
            watcher()

    def close(self) -> None:
        """Stop the thread and free everything; what is under way fails with EngineClosedError."""
        with self._cutting:
            with self._lock:
                if self._is_closed:
                    return
                self._is_closed = True
                self._loop.inbox.put(EngineStopped())
            self._thread.join()
            self._draw_pool.close()
            for generation in self._generations:
                generation.close()
            self._generations.clear()

    @property
    def _benchmark_steps_max(self) -> int:
        return min(BENCHMARK_STEPS_MAX, self.options.context_tokens - 1)

    def _measure_chunk(self, session: EngineSession, *, row_s: float) -> None:
        rows = min(BENCHMARK_CHUNK_ROWS, self.options.chunk_tokens, self.options.context_tokens - session.next_position)
        if rows < 2:
            return
        began_s = time.perf_counter()
        self._run_benchmark_step(session, rows)
        further_row_s = (time.perf_counter() - began_s - row_s) / (rows - 1)
        if further_row_s > 0:
            self.chunk_overhead_rows = max(row_s / further_row_s - 1, 0.0)

    def _run_benchmark_step(self, session: EngineSession, rows: int = 1) -> None:
        is_head = self.shard.first == 0
        hidden = None if is_head else np.full((rows, self.hidden_size), 0.1, np.float32).data.cast("B")
        first = session.next_position
        tokens = [row % self.vocabulary.size for row in range(first, first + rows)] if is_head else None
        done: Future[StepResult] = Future()
        self._submit(session, StepInput(session.next_position, tokens, hidden, wants_token=True), done)
        result = done.result()
        if result.hidden is not None and not np.isfinite(np.frombuffer(result.hidden, np.float32)).all():
            raise DecodeError("the shard computes nonsense; its file or this build of llama.cpp is broken")

    def _submit(self, session: EngineSession, step: StepInput, answer: Answer) -> None:
        with self._lock:
            self._check_open()
            if session.is_closed:
                raise EngineClosedError("the session was closed")
            rows = rows_of_step(session, step, hidden_size=self.hidden_size, vocabulary_size=self.vocabulary.size)
            if step.position + rows.row_count > self.options.context_tokens:
                raise ContextOverflowError(step.position + rows.row_count, self.options.context_tokens)
            session.next_position = step.position + rows.row_count
            is_first, session.has_begun = not session.has_begun, True
            if is_first:
                session.done_position = step.position
            work = StepWork(step, rows, answer, time.perf_counter(), is_first=is_first)
            self._loop.inbox.put(StepArrived(session, work))

    def _recut(self, entry_layers: frozenset[int]) -> None:
        with self._cutting:
            pieces = self.shard.cut_at(enterable_at(self.model, self.shard, entry_layers))
            with self._lock:
                self._check_open()
                old = self._current
            if pieces == old.pieces:
                return
            new = load_generation(self.model, self.shard, pieces, self.options, number=old.number + 1)
            with self._lock:
                self._generations.append(new)
                self._current = new
                self._retire_if_unused(old)

    def _rows_in_use(self) -> dict[int, HeldRows]:
        """What the slots of open sessions hold, and others may copy. Call with the lock held."""
        return {
            session.slot: HeldRows(session.place, session.prefix, session.done_position)
            for session in self._open_sessions
            if session.prefix and session.failure is None and session.generation.can_rewind
        }

    def _retire_if_unused(self, generation: Generation) -> None:
        """Let the thread free a generation that is neither current nor in use. Call with the lock held."""
        if generation is not self._current and generation.session_count == 0:
            self._generations.remove(generation)
            self._slots.forget_generation(generation.number)
            self._loop.inbox.put(GenerationRetired(generation))

    def _take_failure(self, failure: NodeError) -> None:
        with self._lock:
            self._failure = failure
            watchers = list(self._failure_watchers)
        for watcher in watchers:
            watcher()

    def _check_open(self) -> None:
        if self._failure is not None:
            raise self._failure
        if self._is_closed:
            raise EngineClosedError("the engine was closed; start the node again")
