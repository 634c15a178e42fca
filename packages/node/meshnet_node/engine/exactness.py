"""Exactness: does this node compute the same bits however rows are grouped? Proven at start, not assumed.

llama.cpp picks other kernels for other numbers of rows. With flash attention and a KV cache whose keys are not F16
the attention is exact whatever the grouping (``cache_types.py``); the matrix products are exact for some weight types
on every build and for others only on special builds. Instead of trusting a table, a node tries it: the same rows one
by one, all at once and beside a second sequence must give equal bits.

The *class* names what the bits depend on besides the weights. Two exact nodes of one class compute equal bits, so
a chat may move between them and go on with the very text that was due.
"""

import hashlib
import os
from collections.abc import Sequence

import llama_cpp
import numpy as np

from meshnet_node.engine.segment import FloatRows, Segment, SequenceRows
from meshnet_node.engine.shard import EngineOptions, Generation
from meshnet_node.errors import NotExactError
from meshnet_protocol.messages import Exactness

TEST_ROWS = 24
"""Enough for every kernel that is chosen by the number of rows: tiles begin at 8, and some at 16."""
_TILED_VARIABLE = "GGML_CPU_TILED_MM_FORCE"
_CLASS_BYTES = 6


def prove(generation: Generation, options: EngineOptions) -> Exactness:
    """This node's exactness. Call before anybody else uses the generation: slots 0 and 1 are emptied again.

    Raises NotExactError if the owner insists on an exact node and this one is none.
    """
    description = describe(generation.segments[0], options)
    class_id = hashlib.blake2b(description.encode(), digest_size=_CLASS_BYTES).hexdigest()
    is_exact = _passes(generation.segments, options) if options.is_exact else None
    if options.exact == "on" and not is_exact:
        raise NotExactError(description)
    return Exactness(mode=options.exact, is_exact=is_exact, class_id=class_id, description=description)


def describe(segment: Segment, options: EngineOptions) -> str:
    """What equal bits depend on besides weights and rows, as a person may read it."""
    system = " ".join(llama_cpp.llama_print_system_info().decode().split())
    tiled = os.environ.get(_TILED_VARIABLE, "0")
    gpu = f"; {options.gpu_layers} layers on a GPU" if options.gpu_layers else ""
    return f"llama-cpp-python {llama_cpp.__version__}; KV cache {segment.cache}; tiled {tiled}{gpu}; {system}"


def _passes(segments: Sequence[Segment], options: EngineOptions) -> bool:
    count = min(TEST_ROWS, options.rows_max, options.context_tokens)
    one_by_one = [_run(segments, {0: (position, 1)})[0] for position in range(count)]
    _forget(segments)
    at_once = _run(segments, {0: (0, count)})[0]
    _forget(segments)
    if options.slots == 1:
        return _is_same(one_by_one, at_once)
    half = min(count, options.rows_max // 2)
    together = _run(segments, {0: (0, half), 1: (0, half)})
    _forget(segments)
    return (
        _is_same(one_by_one, at_once)
        and _is_same(one_by_one[:half], together[0])
        and _is_same(one_by_one[:half], together[1])
    )


def _run(segments: Sequence[Segment], pieces: dict[int, tuple[int, int]]) -> list[FloatRows]:
    """What the last segment makes of each slot's rows, given (position, count): hidden states, or last logits."""
    hidden: list[FloatRows | None] = [None] * len(pieces)
    for number, segment in enumerate(segments):
        inputs = [
            _rows(segment, slot, position, count, hidden[index], is_first=number == 0)
            for index, (slot, (position, count)) in enumerate(pieces.items())
        ]
        results = segment.decode(inputs)
        hidden = [result.hidden if result.hidden is not None else result.logits for result in results]
    return [np.array(rows) for rows in hidden]


def _rows(
    segment: Segment, slot: int, position: int, count: int, hidden: FloatRows | None, *, is_first: bool
) -> SequenceRows:
    """Rows that depend on their positions only."""
    positions = np.arange(position, position + count, dtype=np.int32)
    if segment.shape.takes_tokens:
        return SequenceRows(slot, position, count, 3 + 7 * positions % segment.vocabulary_size, None, True)
    if is_first:
        waves = np.arange(1, segment.shape.hidden_size + 1, dtype=np.float32)
        hidden = np.sin(np.outer(positions + 1, waves)).astype(np.float32)
    return SequenceRows(slot, position, count, None, hidden, True)


def _is_same(one_by_one: Sequence[FloatRows], at_once: FloatRows) -> bool:
    """Of hidden states all rows are compared; logits come for the last row only."""
    if at_once.ndim == 1:
        return np.array_equal(one_by_one[-1], at_once)
    return np.array_equal(np.concatenate(one_by_one), at_once)


def _forget(segments: Sequence[Segment]) -> None:
    for segment in segments:
        for slot in (0, 1):
            segment.forget(slot)
