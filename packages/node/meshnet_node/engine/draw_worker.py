"""A process that draws under one grammar at a time, so that a grammar can take nothing but its own chat with it.

What a grammar costs llama.cpp for one token may grow without any bound, cannot be interrupted, and ends the process
where memory does. ``grammar_draws.py`` starts these processes, waits for them only so long, and ends them.

    parent ──frame: open | draw | close──> worker ──frame: nothing, a draw or an error──> parent

A frame is a length of four bytes and msgpack. The logits follow their frame as they are.
"""

import os
import sys
import threading
import time
from pathlib import Path
from typing import BinaryIO

import msgspec
import numpy as np

from meshnet_node.engine.sampling import Draw, TokenSampler
from meshnet_node.engine.vocabulary import Vocabulary
from meshnet_node.errors import NodeError
from meshnet_protocol.messages import Sampling

MEMORY_BYTES_MAX = 1 << 30
"""What a worker may take beyond what it has once it is ready."""
ORPHAN_LOOK_PERIOD_S = 1.0
LENGTH_BYTES = 4


class Ask(msgspec.Struct, frozen=True):
    """``sampling``: open, first of all. ``logits_bytes``: draw for ``position``. Neither: close."""

    sampling: Sampling | None = None
    position: int = 0
    logits_bytes: int = 0


class Answer(msgspec.Struct, frozen=True):
    draw: Draw | None = None
    error: str = ""


def write_frame(stream: BinaryIO, message: Ask | Answer, rest: bytes | memoryview = b"") -> None:
    data = msgspec.msgpack.encode(message)
    stream.write(len(data).to_bytes(LENGTH_BYTES, "little") + data)
    if rest:
        stream.write(rest)
    stream.flush()


def main() -> None:
    """Serve standard input until it ends."""
    vocabulary = Vocabulary(Path(sys.argv[1]))
    _bound_memory()
    threading.Thread(target=_end_with_parent, args=(os.getppid(),), daemon=True).start()
    requests, replies = sys.stdin.buffer, sys.stdout.buffer
    write_frame(replies, Answer())
    sampler: TokenSampler | None = None
    while head := requests.read(LENGTH_BYTES):
        ask = msgspec.msgpack.decode(requests.read(int.from_bytes(head, "little")), type=Ask)
        answer = Answer()
        if ask.sampling is not None:
            try:
                sampler = TokenSampler(ask.sampling, vocabulary)
            except NodeError as error:
                answer = Answer(error=str(error))
        elif ask.logits_bytes:
            assert sampler is not None
            logits = np.frombuffer(requests.read(ask.logits_bytes), np.float32)
            answer = Answer(sampler.draw(logits, position=ask.position))
        else:
            sampler = None
        write_frame(replies, answer)


def _bound_memory() -> None:
    try:
        import resource
    except ImportError:  # not on Windows
        return
    pages = int(Path("/proc/self/statm").read_text().split()[0]) if Path("/proc/self/statm").exists() else 0
    if pages:
        limit = pages * os.sysconf("SC_PAGE_SIZE") + MEMORY_BYTES_MAX
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def _end_with_parent(parent: int) -> None:
    """A grammar that never comes to an end must not outlive a node that was killed."""
    while os.getppid() == parent:
        time.sleep(ORPHAN_LOOK_PERIOD_S)
    os._exit(1)


if __name__ == "__main__":
    main()
