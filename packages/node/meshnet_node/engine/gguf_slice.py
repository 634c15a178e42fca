"""Cutting a range of layers out of a model: the result is a small GGUF that llama.cpp loads as it is.

    whole model               layers 10-19 of it
    ───────────               ──────────────────
    block_count 30            block_count 10
    token_embd                token_embd: see below
    blk.0 ... blk.29          blk.0 ... blk.9, which were blk.10 ... blk.19
    output_norm, output       output_norm

Tensors are written as the bytes they are. Metadata arrays with one item per layer are sliced; where an
architecture derives something from a layer's number, that is spelled out as such an array first
(``engine/architectures.py``). Layers behind the last one that predict further tokens (MTP) are left out.

A slice is first planned: its header, and which bytes of the model go where. ``slice_writer.py`` then copies
them, from a file on this disk or from far away.

The large global tensors go only where they are used:

- first layers embed tokens and need ``token_embd``; llama.cpp takes it for the missing output matrix too,
  which costs nothing, because the graph is stopped before the output matrix is used;
- last layers need the output matrix. Their input are hidden states, so ``token_embd`` is never read as an
  embedding, and the output matrix can take that name: llama.cpp falls back to it when ``output`` is absent;
- layers in between need neither. Their vocabulary is declared to be a few tokens without text, which makes
  the ``token_embd`` that llama.cpp insists on a few kilobytes of zeros.

Some architectures insist on ``output`` as well. Then the matrix that is not used is a hole in the file: it reads
as zeros and takes neither disk nor, as nobody touches it, memory.
"""

import os
import re
import struct
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType, GGUFValueType, GGUFWriter, ReaderTensor

from meshnet_node.engine.architectures import Architecture, LayerPattern, check_cut
from meshnet_node.engine.gguf_file import LAYER_TENSOR, MetadataValue, ModelFile
from meshnet_node.engine.slice_writer import Copy, SlicePlan, write_slice
from meshnet_node.errors import ModelFileError
from meshnet_protocol.ids import ModelKey, make_model_key
from meshnet_protocol.layers import LayerRange

SLICE_FORMAT = 3
"""Part of a cached slice's name: raise it when slices are written differently."""

PLACEHOLDER_TOKENS = 32

_TOKEN_EMBEDDING = "token_embd.weight"  # noqa: S105 - a tensor's name
_OUTPUT = "output.weight"
_NOT_PER_LAYER = frozenset({"rope.dimension_sections"})
_WRITTEN_ANEW = frozenset({"general.architecture", "general.alignment"})


def cached_slice(model: ModelFile, layers: LayerRange, cache_dir: Path) -> Path:
    """The file to load these layers from: the model's own for all of them, else a slice made at most once.

    Raises ModelFileError if the slice cannot be written.
    """
    check_cut(model, layers)
    if model.is_whole(layers) and model.is_local:
        return model.path
    path = slice_path(model, layers, cache_dir)
    try:
        if path.is_file():
            os.utime(path)  # in use: see model_catalog.unused_files
        else:
            slice_layers(model, layers, path)
    except OSError as error:
        raise ModelFileError(
            f"cannot write layers {layers} to {cache_dir} ({error.strerror}): make room there, or set --cache-dir"
        ) from error
    return path


def slice_path(model: ModelFile, layers: LayerRange, cache_dir: Path) -> Path:
    """Where ``cached_slice`` keeps these layers."""
    name = f"{model.name}-{model.fingerprint(cache_dir)[:16]}-v{SLICE_FORMAT}-{layers}.gguf"
    return cache_dir / "slices" / name


@dataclass(frozen=True, slots=True)
class SliceName:
    """What the name of a kept slice tells."""

    model_key: ModelKey
    slice_format: int
    layers: LayerRange


def read_slice_name(path: Path) -> SliceName | None:
    """The other way round; None if it is no such name."""
    found = re.fullmatch(r"(.+)-([0-9a-f]{16})-v(\d+)-(\d+)-(\d+)\.gguf", path.name)
    if found is None:
        return None
    name, fingerprint, slice_format, first, last = found.groups()
    return SliceName(
        make_model_key(name=name, fingerprint=fingerprint), int(slice_format), LayerRange(int(first), int(last))
    )


def slice_layers(model: ModelFile, layers: LayerRange, target_path: Path) -> None:
    """Write these layers as a GGUF of their own; readers see it whole or not at all.

    Raises UnsupportedArchitectureError, LayersError, LayerKindsError, SourceError, OSError.
    """
    write_slice(model, plan_slice(model, layers), target_path)


@dataclass(frozen=True, slots=True)
class _SliceTensor:
    """A tensor of the slice: a copy of one of the model's, or a hole."""

    name: str
    shape: tuple[int, ...]
    """Innermost dimension last, as numpy has it."""
    tensor_type: GGMLQuantizationType
    byte_count: int
    origin: ReaderTensor | None


def plan_slice(model: ModelFile, layers: LayerRange) -> SlicePlan:
    """The slice's header, and where the rest of it comes from."""
    architecture = check_cut(model, layers)
    tensors = list(_tensors_of(model, layers, architecture))
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "header.gguf"
        writer = _SliceWriter(path, model.architecture)
        try:
            _add_metadata(writer, model, layers, architecture)
            for tensor in tensors:
                writer.add_tensor_info(
                    tensor.name, tensor.shape, np.dtype(np.float32), tensor.byte_count, raw_dtype=tensor.tensor_type
                )
            writer.write_header_to_file()
            writer.write_kv_data_to_file()
            writer.write_ti_data_to_file()
        finally:
            writer.close()
        header = path.read_bytes()
    position = GGUFWriter.ggml_pad(len(header), writer.data_alignment)
    copies: list[Copy] = []
    for tensor in tensors:
        if tensor.origin is not None:
            copies.append(Copy(tensor.origin, target=position))
        position += GGUFWriter.ggml_pad(tensor.byte_count, writer.data_alignment)
    return SlicePlan(header=header, byte_count=position, copies=tuple(copies))


class _SliceWriter(GGUFWriter):
    """``GGUFWriter`` that also takes values as the bytes they had in another file."""

    def _pack_val(
        self, val: Any, vtype: GGUFValueType, add_vtype: bool, sub_type: GGUFValueType | None = None
    ) -> bytes:
        if isinstance(val, MetadataValue):
            return struct.pack("<I", val.value_type) + val.raw.tobytes()
        return super()._pack_val(val, vtype, add_vtype, sub_type)

    def add_raw(self, key: str, value: MetadataValue) -> None:
        self.add_key_value(key, value, value.value_type)

    def add_bools(self, key: str, values: Sequence[bool]) -> None:
        self.add_key_value(key, values, GGUFValueType.ARRAY, sub_type=GGUFValueType.BOOL)


def _is_head(layers: LayerRange) -> bool:
    return layers.first == 0


def _is_tail(model: ModelFile, layers: LayerRange) -> bool:
    return layers.next_layer == model.layer_count


def _has_vocabulary(model: ModelFile, layers: LayerRange) -> bool:
    return _is_head(layers) or _is_tail(model, layers)


def _add_metadata(writer: _SliceWriter, model: ModelFile, layers: LayerRange, architecture: Architecture) -> None:
    prefix = model.architecture
    left_out = {*_WRITTEN_ANEW, f"{prefix}.block_count", f"{prefix}.nextn_predict_layers"}
    if not _is_head(layers):
        left_out |= {f"{prefix}.{key}" for key in architecture.head_only_keys}
    if model.alignment != writer.data_alignment:
        writer.add_custom_alignment(model.alignment)
    writer.add_uint32(f"{prefix}.block_count", layers.layer_count)
    for pattern in architecture.patterns(model):
        left_out |= _add_pattern(writer, pattern, layers)
    if not _has_vocabulary(model, layers):
        left_out |= {f"{prefix}.vocab_size"} | {key for key in model.metadata if key.startswith("tokenizer.")}
        writer.add_string("tokenizer.ggml.model", "no_vocab")
        writer.add_uint32(f"{prefix}.vocab_size", PLACEHOLDER_TOKENS)
    per_layer = _per_layer_keys(model)
    for key, value in model.metadata.items():
        if key not in left_out and not key.startswith("split."):
            writer.add_raw(key, _slice_items(value, layers) if key in per_layer else value)


def _add_pattern(writer: _SliceWriter, pattern: LayerPattern, layers: LayerRange) -> set[str]:
    """Returns the metadata that must not be copied then."""
    flags = pattern.flags[layers.first : layers.next_layer]
    if pattern.setting_key is not None and not any(flags):
        return {pattern.key, pattern.setting_key}
    writer.add_bools(pattern.key, flags)
    return {pattern.key}


def _per_layer_keys(model: ModelFile) -> frozenset[str]:
    """Metadata of the architecture with one item for each layer."""
    prefix = f"{model.architecture}."
    item_counts = {model.layer_count, model.integer("block_count")}
    return frozenset(
        key
        for key, value in model.metadata.items()
        if key.startswith(prefix)
        and key.removeprefix(prefix) not in _NOT_PER_LAYER
        and value.item_type not in (None, GGUFValueType.STRING)
        and value.item_count in item_counts
    )


def _slice_items(value: MetadataValue, layers: LayerRange) -> MetadataValue:
    assert value.item_type is not None
    items = value.items()[layers.first : layers.next_layer]
    prefix = struct.pack("<IQ", value.item_type, len(items))
    return MetadataValue(value.value_type, value.item_type, np.frombuffer(prefix + items.tobytes(), np.uint8))


def _tensors_of(model: ModelFile, layers: LayerRange, architecture: Architecture) -> Iterator[_SliceTensor]:
    yield _token_embedding_of(model, layers, needs_output=architecture.needs_output)
    for name, tensor in model.tensors.items():
        if name in (_TOKEN_EMBEDDING, _OUTPUT):
            continue
        match = LAYER_TENSOR.fullmatch(name)
        if match is None:
            # Norms, scales and rope factors: small, and llama.cpp insists on some of them everywhere.
            yield _copy_of(tensor, name)
        elif layers.first <= int(match[1]) <= layers.last:
            yield _copy_of(tensor, f"blk.{int(match[1]) - layers.first}.{match[2]}")
    output = model.tensors.get(_OUTPUT)
    if output is None:
        return
    if _is_tail(model, layers) and (_is_head(layers) or architecture.needs_output):
        yield _copy_of(output, _OUTPUT)
    elif architecture.needs_output:
        yield _hole_like(output, _OUTPUT) if _is_head(layers) else _placeholder(model, _OUTPUT)


def _token_embedding_of(model: ModelFile, layers: LayerRange, *, needs_output: bool) -> _SliceTensor:
    """The matrix to go by the name of the token embedding: see the module's docstring."""
    embedding = model.tensors[_TOKEN_EMBEDDING]
    if not _has_vocabulary(model, layers):
        return _placeholder(model, _TOKEN_EMBEDDING)
    if _is_head(layers):
        return _copy_of(embedding, _TOKEN_EMBEDDING)
    output = model.tensors.get(_OUTPUT)
    if output is not None and needs_output:
        return _hole_like(embedding, _TOKEN_EMBEDDING)
    return _copy_of(output or embedding, _TOKEN_EMBEDDING)


def _copy_of(tensor: ReaderTensor, name: str) -> _SliceTensor:
    shape = tuple(int(size) for size in reversed(tensor.shape.tolist()))
    return _SliceTensor(name, shape, tensor.tensor_type, int(tensor.n_bytes), tensor)


def _hole_like(tensor: ReaderTensor, name: str) -> _SliceTensor:
    copy = _copy_of(tensor, name)
    return _SliceTensor(name, copy.shape, copy.tensor_type, copy.byte_count, None)


def _placeholder(model: ModelFile, name: str) -> _SliceTensor:
    shape = (PLACEHOLDER_TOKENS, model.hidden_size)
    return _SliceTensor(name, shape, GGMLQuantizationType.F32, 4 * PLACEHOLDER_TOKENS * model.hidden_size, None)
