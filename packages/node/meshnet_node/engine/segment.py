"""A segment: consecutive layers as one llama.cpp model and context, with a KV cache for every slot.

Rows go in as token ids (segments that start at layer 0) or as hidden states, and come out as hidden states
or, behind the model's last layer, as logits.

Results must not depend on who else is in the batch, so: flash attention on, a KV cache of types for which it is
exact (``cache_types.py``; unless the node's owner gave that up for faster prompts), one KV stream for each slot, and
a full-size cache for sliding windows, so that a sequence's cells always lie in the order of its positions.

llama.cpp regroups the rows of a batch by sequence: equally many rows of sequences with consecutive numbers
form a ubatch, and a gap in the numbers starts the next one. A decode here therefore takes the same number
of rows from each of its sequences and puts them in the order of their slots: then the rows of all ubatches,
one after the other, are the rows of the batch.
"""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
import numpy.typing as npt

from meshnet_node.engine.cache_types import CacheTypes
from meshnet_node.engine.llama import start_llama, take_errors
from meshnet_node.engine.tap import HiddenTap, native_callback
from meshnet_node.errors import DecodeError, ModelFileError

FloatRows = npt.NDArray[np.float32]
TokenRows = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class SegmentShape:
    """What a segment is, whatever file it comes from."""

    layer_count: int
    hidden_size: int
    takes_tokens: bool
    gives_logits: bool


@dataclass(frozen=True, slots=True)
class SegmentSettings:
    slots: int
    context_tokens: int
    """Positions each slot has room for."""
    rows_max: int
    """Most rows in one decode."""
    threads: int
    gpu_layers: int
    cache: CacheTypes


@dataclass(frozen=True, slots=True)
class SequenceRows:
    """Consecutive rows of one sequence."""

    slot: int
    position: int
    """Of the first row; must follow the last one this slot has seen."""
    row_count: int
    tokens: TokenRows | None
    hidden: FloatRows | None
    """Shape (row_count, hidden_size)."""
    wants_logits: bool
    """Of the last row, if the segment gives logits."""


@dataclass(frozen=True, slots=True)
class RowsResult:
    hidden: FloatRows | None
    """Shape (row_count, hidden_size), owned by the receiver; None behind the last layer."""
    logits: FloatRows | None
    """Shape (vocabulary,), valid until the segment's next decode; None unless asked for."""


class Segment:
    """One slice, loaded. Not thread-safe: whoever owns it makes all calls, one at a time."""

    def __init__(self, path: Path, shape: SegmentShape, settings: SegmentSettings) -> None:
        """Raises ModelFileError if llama.cpp cannot load the slice or has no memory for its cache."""
        start_llama()
        self.shape = shape
        self._settings = settings
        self._tap = None
        if not shape.gives_logits:
            self._tap = HiddenTap(shape.layer_count - 1, hidden_size=shape.hidden_size, native=native_callback())
        self._model = _load_model(path, settings)
        try:
            _check_loaded(self._model, shape)
            self._context = _make_context(self._model, path, settings, self._tap)
        except BaseException:
            llama_cpp.llama_model_free(self._model)
            raise
        self._memory = llama_cpp.llama_get_memory(self._context)
        self.vocabulary_size = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self._model))
        self._logits_row = ctypes.c_float * self.vocabulary_size
        self._batch = _Batch(settings.rows_max, shape, position_planes=_position_planes(self._model, shape))
        self._is_open = True

    @property
    def cache(self) -> CacheTypes:
        return self._settings.cache

    def decode(self, inputs: Sequence[SequenceRows]) -> list[RowsResult]:
        """Run rows of several sequences, the same number of each, through the layers.

        Results come in the order of ``inputs``. Raises DecodeError if llama.cpp fails; sequences in this
        batch are then lost and must be forgotten, all others go on.
        """
        assert self._is_open
        in_slot_order = inputs if len(inputs) == 1 else sorted(inputs, key=lambda rows: rows.slot)
        row_count = self._batch.fill(in_slot_order, all_outputs=self._tap is not None)
        if self._tap is not None:
            self._tap.arm(row_count)
        status = llama_cpp.llama_decode(self._context, self._batch.batch)
        if status != 0:
            raise DecodeError(f"llama.cpp could not compute {row_count} rows (status {status}): {take_errors()}")
        results = self._results_of(in_slot_order)
        if len(inputs) == 1:
            return results
        by_slot = dict(zip((rows.slot for rows in in_slot_order), results, strict=True))
        return [by_slot[rows.slot] for rows in inputs]

    @property
    def can_rewind(self) -> bool:
        """A KV cache can drop a text's end; the state of recurrent layers cannot be taken back."""
        return not (llama_cpp.llama_model_is_recurrent(self._model) or llama_cpp.llama_model_is_hybrid(self._model))

    def copy(self, source: int, slot: int) -> None:
        """Give a slot the rows of another, all of them. llama.cpp copies the whole slot, with the next decode."""
        assert self._is_open
        assert source != slot
        llama_cpp.llama_memory_seq_cp(self._memory, source, slot, -1, -1)

    def rewind(self, slot: int, position: int) -> bool:
        """Drop a slot's rows from ``position`` on; False if the memory cannot (0 always works)."""
        assert self._is_open
        return bool(llama_cpp.llama_memory_seq_rm(self._memory, slot, position, -1))

    def forget(self, slot: int) -> None:
        """Empty a slot's KV cache."""
        self.rewind(slot, 0)

    def close(self) -> None:
        """Free context and model. Nothing else may be called after it."""
        if self._is_open:
            self._is_open = False
            llama_cpp.llama_free(self._context)
            llama_cpp.llama_model_free(self._model)

    def _results_of(self, inputs: Sequence[SequenceRows]) -> list[RowsResult]:
        row_count = inputs[0].row_count
        if self._tap is None:
            return [
                RowsResult(None, self._logits_at((number + 1) * row_count - 1) if rows.wants_logits else None)
                for number, rows in enumerate(inputs)
            ]
        try:
            hidden = self._tap.take()
        except BufferError as error:
            raise DecodeError(f"llama.cpp gave {error}; this is a bug") from error
        return [RowsResult(hidden[start : start + row_count], None) for start in range(0, len(hidden), row_count)]

    def _logits_at(self, batch_row: int) -> FloatRows:
        address = ctypes.cast(llama_cpp.llama_get_logits_ith(self._context, batch_row), ctypes.c_void_p).value
        assert address is not None
        return np.frombuffer(self._logits_row.from_address(address), np.float32)


class _Batch:
    """A ``llama_batch`` whose arrays are made once and filled for every decode."""

    def __init__(self, rows_max: int, shape: SegmentShape, *, position_planes: int) -> None:
        self._takes_tokens = shape.takes_tokens
        self._tokens = np.zeros(rows_max if shape.takes_tokens else 0, np.int32)
        self._hidden = np.zeros((0 if shape.takes_tokens else rows_max, shape.hidden_size), np.float32)
        self._offsets = np.arange(rows_max, dtype=np.int32)
        self._positions = np.zeros(rows_max, np.int32)
        self._planes = self._positions if position_planes == 1 else np.zeros(rows_max * position_planes, np.int32)
        """What llama.cpp reads: the positions of all rows, once for every plane."""
        self._slots = np.zeros(rows_max, np.int32)
        self._slot_counts = np.ones(rows_max, np.int32)
        self._slot_pointers = self._slots.ctypes.data + self._slots.itemsize * np.arange(rows_max, dtype=np.uintp)
        self._outputs = np.zeros(rows_max, np.int8)
        self.batch: Any = llama_cpp.llama_batch(
            n_tokens=0,
            token=_pointer(self._tokens, llama_cpp.llama_token) if shape.takes_tokens else None,
            embd=None if shape.takes_tokens else _pointer(self._hidden, ctypes.c_float),
            pos=_pointer(self._planes, llama_cpp.llama_pos),
            n_seq_id=_pointer(self._slot_counts, ctypes.c_int32),
            seq_id=_pointer(self._slot_pointers, ctypes.POINTER(llama_cpp.llama_seq_id)),
            logits=_pointer(self._outputs, ctypes.c_int8),
        )

    def fill(self, inputs: Sequence[SequenceRows], *, all_outputs: bool) -> int:
        """Lay the rows out one sequence after the other; returns how many there are."""
        assert len({rows.row_count for rows in inputs}) == 1, "llama.cpp would reorder the rows"
        assert len({rows.slot for rows in inputs}) == len(inputs)
        end = 0
        for rows in inputs:
            part = slice(end, end := end + rows.row_count)
            if self._takes_tokens:
                assert rows.tokens is not None
                self._tokens[part] = rows.tokens
            else:
                assert rows.hidden is not None
                self._hidden[part] = rows.hidden
            self._positions[part] = rows.position + self._offsets[: rows.row_count]
            self._slots[part] = rows.slot
            self._outputs[part] = all_outputs
            self._outputs[end - 1] = all_outputs or rows.wants_logits
        if self._planes is not self._positions:
            self._fill_planes(end)
        self.batch.n_tokens = end
        return end

    def _fill_planes(self, row_count: int) -> None:
        """Text stands at the same place in time, height and width; the last plane of several is unused, and 0."""
        plane_count = len(self._planes) // len(self._positions)
        for plane in range(plane_count - 1):
            self._planes[plane * row_count : (plane + 1) * row_count] = self._positions[:row_count]
        self._planes[(plane_count - 1) * row_count : plane_count * row_count] = 0


def _pointer(array: npt.NDArray[Any], item: Any) -> Any:
    return array.ctypes.data_as(ctypes.POINTER(item))


def _load_model(path: Path, settings: SegmentSettings) -> Any:
    params = llama_cpp.llama_model_default_params()
    params.n_gpu_layers = settings.gpu_layers
    params.load_mode = llama_cpp.LLAMA_LOAD_MODE_MMAP
    model = llama_cpp.llama_model_load_from_file(str(path).encode(), params)
    if not model:
        raise ModelFileError(f"llama.cpp cannot load {path}: {take_errors()}")
    return model


def _check_loaded(model: Any, shape: SegmentShape) -> None:
    assert llama_cpp.llama_model_n_layer(model) == shape.layer_count
    assert llama_cpp.llama_model_n_embd(model) == shape.hidden_size


_MULTI_ROPE_TYPES = frozenset({8, 24, 40})  # enum llama_rope_type: mrope, vision, imrope
_MULTI_ROPE_PLANES = 4


def _position_planes(model: Any, shape: SegmentShape) -> int:
    """How many positions llama.cpp reads for each row. It expands those of tokens itself, those of states not."""
    is_multi = llama_cpp.llama_model_rope_type(model) in _MULTI_ROPE_TYPES
    return _MULTI_ROPE_PLANES if is_multi and not shape.takes_tokens else 1


def _make_context(model: Any, path: Path, settings: SegmentSettings, tap: HiddenTap | None) -> Any:
    params = llama_cpp.llama_context_default_params()
    params.n_seq_max = settings.slots
    params.n_ctx = settings.context_tokens * settings.slots
    params.kv_unified = False
    params.n_batch = params.n_ubatch = settings.rows_max
    params.n_threads = params.n_threads_batch = settings.threads
    params.flash_attn_type = llama_cpp.LLAMA_FLASH_ATTN_TYPE_ENABLED
    params.type_k, params.type_v = settings.cache.key.number, settings.cache.value.number
    params.swa_full = True
    params.no_perf = True
    if tap is not None:
        params.cb_eval = tap.callback
        params.cb_eval_user_data = tap.user_data
    context = llama_cpp.llama_init_from_model(model, params)
    if not context:
        raise ModelFileError(
            f"llama.cpp cannot make {settings.slots} slots of {settings.context_tokens} tokens for {path}: "
            f"{take_errors()}; try fewer --slots or a smaller --context-tokens"
        )
    return context
