"""The callback that takes hidden states out of the graph: the same in C and in Python."""

from pathlib import Path

import numpy as np
import pytest

from meshnet_node.engine import segment as segment_module
from meshnet_node.engine.cache_types import cache_types
from meshnet_node.engine.gguf_file import ModelFile
from meshnet_node.engine.gguf_slice import cached_slice
from meshnet_node.engine.segment import FloatRows, Segment, SegmentSettings, SegmentShape, SequenceRows
from meshnet_node.engine.tap import native_callback
from meshnet_protocol.layers import LayerRange


def hidden_of(model: ModelFile, cache_dir: Path, prompt: list[int]) -> FloatRows:
    layers = LayerRange(0, 2)
    shape = SegmentShape(layers.layer_count, model.hidden_size, takes_tokens=True, gives_logits=False)
    cache = cache_types(model, is_exact=True, on_gpu=False)
    settings = SegmentSettings(slots=4, context_tokens=64, rows_max=64, threads=1, gpu_layers=0, cache=cache)
    segment = Segment(cached_slice(model, layers, cache_dir), shape, settings)
    # A gap between the slots makes two ubatches of it, so that the callback fires twice.
    inputs = [SequenceRows(slot, 0, len(prompt), np.asarray(prompt, np.int32), None, False) for slot in (0, 2)]
    results = [result.hidden for result in segment.decode(inputs)]
    segment.close()
    assert results[0] is not None
    assert results[1] is not None
    return np.concatenate([results[0], results[1]])


def test_c_and_python_take_the_same_rows(model: ModelFile, cache_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert native_callback(), "this installation could not compile the callback; is there a C compiler?"
    native = hidden_of(model, cache_dir, [5, 6, 7])
    monkeypatch.setattr(segment_module, "native_callback", lambda: None)

    python = hidden_of(model, cache_dir, [5, 6, 7])

    assert np.array_equal(native, python)
    assert np.array_equal(native[:3], native[3:])
    assert np.abs(native).max() > 0
