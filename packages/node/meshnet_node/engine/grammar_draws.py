"""Drawing under a grammar, beside the engine's thread: in processes that can be ended.

The engine's thread hands over a row of logits and goes on with everybody else; when the token is there, or the time
is up, it is told. So a grammar that llama.cpp needs seconds for delays its own chat only, and one that never ends
costs it ``DRAW_S_MAX`` and its session an error. A process serves one session at a time and is kept for the next.
"""

import logging
import os
import select
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, cast

import msgspec

from meshnet_node.engine.draw_worker import LENGTH_BYTES, Answer, Ask, write_frame
from meshnet_node.engine.sampling import Draw, FloatRow
from meshnet_node.errors import DecodeError, GrammarError, NodeError, NoFreeSlotError
from meshnet_protocol.messages import Sampling
from meshnet_protocol.patience import Patience

log = logging.getLogger("meshnet.engine")

DRAW_S_MAX = 3.0
START_S_MAX = 60.0
IDLE_WORKERS_MAX = 2
CHECKS_MAX = 2
"""Grammars of new requests that are looked at at a time."""
CHECK_WAIT_S_MAX = 10.0

Told = Callable[[Draw | NodeError], None]


class DrawPool:
    """The processes of one engine. ``close`` ends them all."""

    def __init__(self, vocabulary_path: Path, *, sessions_max: int, draw_s_max: float = DRAW_S_MAX) -> None:
        self._path = vocabulary_path
        self._draw_s_max = draw_s_max
        self._sessions_max = sessions_max
        self._threads = ThreadPoolExecutor(sessions_max, thread_name_prefix="grammar")
        self._checks = threading.Semaphore(CHECKS_MAX)
        self._lock = threading.Lock()
        self._idle: list[_Worker] = []
        self._in_use: set[_Worker] = set()
        self._is_closed = False

    def lease(self, sampling: Sampling) -> "GrammarDraws":
        return GrammarDraws(self, sampling)

    def check(self, grammar: str) -> None:
        """Whether a session can follow it. Blocks for at most a few seconds; raises GrammarError, NoFreeSlotError.

        Reading a grammar may take llama.cpp as long as drawing under it, for the same reasons.
        """
        if not self._checks.acquire(timeout=CHECK_WAIT_S_MAX):
            raise NoFreeSlotError(self._sessions_max)
        try:
            worker = self.take()
            try:
                worker.open(Sampling(grammar=grammar))
                worker.clear()
            finally:
                self.give_back(worker)
        finally:
            self._checks.release()

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            workers = [*self._idle, *self._in_use]
            self._idle.clear()
        for worker in workers:
            worker.end()  # whoever waits for one in use is told
        self._threads.shutdown(wait=True, cancel_futures=True)
        for worker in workers:
            worker.dispose()

    def run(self, work: Callable[[], None]) -> None:
        self._threads.submit(work)

    def take(self) -> "_Worker":
        """An idle process, or a new one: blocks for as long as that takes. Raises DecodeError."""
        with self._lock:
            worker = self._idle.pop() if self._idle else None
        worker = worker or _Worker(self._path, self._draw_s_max)
        with self._lock:
            self._in_use.add(worker)
            is_closed = self._is_closed
        if is_closed:
            self.give_back(worker)
            raise DecodeError("the engine was closed")
        return worker

    def give_back(self, worker: "_Worker") -> None:
        with self._lock:
            self._in_use.discard(worker)
            keeps = worker.is_fit and not self._is_closed and len(self._idle) < IDLE_WORKERS_MAX
            if keeps:
                self._idle.append(worker)
        if not keeps:
            worker.dispose()


class GrammarDraws:
    """One session's draws, one at a time."""

    def __init__(self, pool: DrawPool, sampling: Sampling) -> None:
        self._pool = pool
        self._sampling = sampling
        self._worker: _Worker | None = None
        self._lock = threading.Lock()
        self._is_drawing = False
        self._is_closed = False

    def draw(self, logits: FloatRow, position: int, told: Told) -> None:
        """Returns at once; ``told`` is called by another thread, exactly once. ``logits`` must stay as they are."""
        with self._lock:
            assert not self._is_drawing
            self._is_drawing = True
        self._pool.run(lambda: told(self._outcome(logits, position)))

    def close(self) -> None:
        """Ends a draw that is under way."""
        with self._lock:
            self._is_closed = True
            worker, is_drawing = self._worker, self._is_drawing
            if not is_drawing:
                self._worker = None
        if worker is None:
            return
        if is_drawing:
            worker.end()  # whoever waits for it gives it back
        else:
            self._pool.run(lambda: self._release(worker))

    def _outcome(self, logits: FloatRow, position: int) -> Draw | NodeError:
        try:
            return self._opened().draw(logits, position)
        except NodeError as error:
            return error
        except Exception as error:  # somebody waits for an outcome, whatever it is
            log.exception("a draw failed")
            return DecodeError(f"drawing failed: {error!r}; see this node's log")
        finally:
            with self._lock:
                self._is_drawing = False
                worker = self._worker if self._is_closed else None
            if worker is not None:
                self._pool.give_back(worker)

    def _opened(self) -> "_Worker":
        if self._worker is None:
            worker = self._pool.take()
            with self._lock:
                self._worker = worker
            worker.open(self._sampling)
        return self._worker

    def _release(self, worker: "_Worker") -> None:
        with suppress(NodeError):  # then it is not fit any more
            worker.clear()
        self._pool.give_back(worker)


class _Worker:
    """One process."""

    def __init__(self, vocabulary_path: Path, draw_s_max: float) -> None:
        """Blocks until it is ready. Raises DecodeError."""
        self.is_fit = True
        self._draw_s_max = draw_s_max
        command = [sys.executable, "-m", "meshnet_node.engine.draw_worker", str(vocabulary_path)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)  # noqa: S603 - ours
        try:
            self._receive(START_S_MAX)
        except NodeError as error:
            self.dispose()
            raise DecodeError(f"the process for grammars did not start ({error}); is memory short?") from error

    def open(self, sampling: Sampling) -> None:
        if error := self._call(Ask(sampling=sampling)).error:
            raise GrammarError(error)

    def draw(self, logits: FloatRow, position: int) -> Draw:
        answer = self._call(Ask(position=position, logits_bytes=logits.nbytes), logits.data.cast("B"))
        assert answer.draw is not None
        return answer.draw

    def clear(self) -> None:
        self._call(Ask())

    def end(self) -> None:
        """May be called by any thread, also while another one waits for an answer."""
        self.is_fit = False
        self._process.kill()

    def dispose(self) -> None:
        """For its owner, once nobody waits for an answer."""
        self.end()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with suppress(OSError):  # what was left to write has no reader any more
                pipe.close()

    def _call(self, ask: Ask, rest: bytes | memoryview = b"") -> Answer:
        try:
            write_frame(cast(BinaryIO, self._process.stdin), ask, rest)
        except OSError as error:
            raise self._lost() from error
        return self._receive(self._draw_s_max)

    def _receive(self, timeout_s: float) -> Answer:
        silence = Patience(timeout_s, time.monotonic())
        size = int.from_bytes(self._read(LENGTH_BYTES, silence), "little")
        return msgspec.msgpack.decode(self._read(size, silence), type=Answer)

    def _read(self, size: int, silence: Patience) -> bytes:
        assert self._process.stdout is not None
        descriptor, data = self._process.stdout.fileno(), b""
        while len(data) < size:
            is_there = select.select([descriptor], [], [], silence.next_look_s)[0]
            silence.look(time.monotonic())
            if not is_there and not silence.is_over:
                continue
            if not is_there:
                self.end()
                raise GrammarError(
                    f"the grammar took longer than {self._draw_s_max:g} s for one step; use fewer optional or "
                    "ambiguous parts in a row"
                )
            piece = os.read(descriptor, size - len(data))
            if not piece:
                raise self._lost()
            data += piece
        return data

    def _lost(self) -> NodeError:
        self.end()
        return GrammarError("the grammar needs more memory than there is for one, or llama.cpp cannot follow it")
