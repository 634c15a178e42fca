"""Cutting a range of layers out of a model: the result is a small GGUF that llama.cpp loads as it is.

    whole model               layers 10-19 of it
    ───────────               ──────────────────
    block_count 30            block_count 10
    token_embd                token_embd: see below
    blk.0 ... blk.29          blk.0 ... blk.9, which were blk.10 ... blk.19
    output_norm, output       output_norm

Tensors are written as the bytes they are. Metadata arrays with one item per layer are sliced; where an
architecture derives something from a layer's number, that is spelled out as such an array first.

The large global tensors go only where they are used:

- first layers embed tokens and need ``token_embd``; llama.cpp takes it for the missing output matrix too,
  which costs nothing, because the graph is stopped before the output matrix is used;
- last layers need the output matrix. Their input are hidden states, so ``token_embd`` is never read as an
  embedding, and the output matrix can take that name: llama.cpp falls back to it when ``output`` is absent;
- layers in between need neither. Their vocabulary is declared to be a few tokens without text, which makes
  the ``token_embd`` that llama.cpp insists on a few kilobytes of zeros.

Only architectures for which a test shows "split == whole, bit for bit" are accepted.
"""

import os
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType, GGUFValueType, GGUFWriter

from meshnet_node.engine.gguf_file import LAYER_TENSOR, MetadataValue, ModelFile
from meshnet_node.errors import ModelFileError, UnsupportedArchitectureError
from meshnet_protocol.layers import LayerRange

SLICE_FORMAT = 2
"""Part of a cached slice's name: raise it when slices are written differently."""

PLACEHOLDER_TOKENS = 32

_TOKEN_EMBEDDING = "token_embd.weight"  # noqa: S105 - a tensor's name
_OUTPUT = "output.weight"
_NOT_PER_LAYER = frozenset({"rope.dimension_sections"})
_WRITTEN_ANEW = frozenset({"general.architecture", "general.alignment"})


@dataclass(frozen=True, slots=True)
class LayerPattern:
    """Something llama.cpp would derive from a layer's number, spelled out."""

    key: str
    flags: Sequence[bool]
    """One for each layer of the whole model."""
    setting_key: str
    """Metadata that turns the feature on. Layers that make no use of it are cut without it, because
    llama.cpp aborts the process if the feature is on and no layer has it."""


@dataclass(frozen=True, slots=True)
class Architecture:
    """What must be known of a kind of model to cut it anywhere."""

    patterns: Callable[[ModelFile], Sequence[LayerPattern]] = lambda _: ()
    why_not: Callable[[ModelFile], str] = lambda _: ""
    """A reason to refuse this very model; empty if there is none."""


GEMMA3_WINDOW_PERIOD = 6
"""llama.cpp's default: of six layers, the last attends to everything."""
GEMMA3_27B_LAYERS = 62


def _gemma3_windows(model: ModelFile) -> Sequence[LayerPattern]:
    if not model.integer("attention.sliding_window"):
        return ()
    key = "gemma3.attention.sliding_window_pattern"
    written = model.metadata.get(key)
    if written is not None and written.item_type is not None:
        flags = [bool(item) for item in written.items()]
    else:
        period = model.integer("attention.sliding_window_pattern") or GEMMA3_WINDOW_PERIOD
        flags = [layer % period < period - 1 for layer in range(model.layer_count)]
    return (LayerPattern(key, flags, "gemma3.attention.sliding_window"),)


def _why_not_gemma3(model: ModelFile) -> str:
    # llama.cpp knows the 27B model, whose attention is scaled differently, by its number of layers.
    is_27b = model.layer_count == GEMMA3_27B_LAYERS
    return "the 27B model's attention scale depends on its layer count" if is_27b else ""


VERIFIED_ARCHITECTURES: dict[str, Architecture] = {
    "llama": Architecture(),
    "gemma3": Architecture(patterns=_gemma3_windows, why_not=_why_not_gemma3),
}


def check_architecture(model: ModelFile) -> Architecture:
    """Raises UnsupportedArchitectureError unless splitting this kind of model is known to be exact."""
    architecture = VERIFIED_ARCHITECTURES.get(model.architecture)
    if architecture is None:
        raise UnsupportedArchitectureError(model.architecture, VERIFIED_ARCHITECTURES)
    if reason := architecture.why_not(model):
        raise UnsupportedArchitectureError(model.architecture, VERIFIED_ARCHITECTURES, reason=reason)
    return architecture


def cached_slice(model: ModelFile, layers: LayerRange, cache_dir: Path) -> Path:
    """The file to load these layers from: the model's own for all of them, else a slice made at most once.

    Raises ModelFileError if the slice cannot be written.
    """
    check_architecture(model)
    model.check_range(layers)
    if model.is_whole(layers):
        return model.path
    name = f"{model.name}-{model.fingerprint(cache_dir)[:16]}-v{SLICE_FORMAT}-{layers}.gguf"
    path = cache_dir / "slices" / name
    try:
        if not path.is_file():
            slice_layers(model, layers, path)
    except OSError as error:
        raise ModelFileError(
            f"cannot write layers {layers} to {cache_dir} ({error.strerror}): make room there, or set --cache-dir"
        ) from error
    return path


def slice_layers(model: ModelFile, layers: LayerRange, target_path: Path) -> None:
    """Write these layers as a GGUF of their own; readers see it whole or not at all.

    Raises UnsupportedArchitectureError, LayersError, OSError.
    """
    architecture = check_architecture(model)
    model.check_range(layers)
    target_path.parent.mkdir(parents=True, exist_ok=True)
    temporary = target_path.with_name(f".{target_path.name}.{os.getpid()}.{os.urandom(4).hex()}")
    writer = _SliceWriter(temporary, model.architecture)
    try:
        _add_metadata(writer, model, layers, architecture.patterns(model))
        for name, data, tensor_type in _tensors_of(model, layers):
            writer.add_tensor(name, data, raw_dtype=tensor_type)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        temporary.replace(target_path)
    finally:
        writer.close()
        temporary.unlink(missing_ok=True)


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


def _add_metadata(writer: _SliceWriter, model: ModelFile, layers: LayerRange, patterns: Sequence[LayerPattern]) -> None:
    prefix = model.architecture
    left_out = {*_WRITTEN_ANEW, f"{prefix}.block_count"}
    if model.alignment != writer.data_alignment:
        writer.add_custom_alignment(model.alignment)
    writer.add_uint32(f"{prefix}.block_count", layers.layer_count)
    for pattern in patterns:
        left_out.add(pattern.key)
        if any(flags := pattern.flags[layers.first : layers.next_layer]):
            writer.add_bools(pattern.key, flags)
        else:
            left_out.add(pattern.setting_key)
    if not _has_vocabulary(model, layers):
        left_out |= {f"{prefix}.vocab_size"} | {key for key in model.metadata if key.startswith("tokenizer.")}
        writer.add_string("tokenizer.ggml.model", "no_vocab")
        writer.add_uint32(f"{prefix}.vocab_size", PLACEHOLDER_TOKENS)
    per_layer = _per_layer_keys(model)
    for key, value in model.metadata.items():
        if key not in left_out and not key.startswith("split."):
            writer.add_raw(key, _slice_items(value, layers) if key in per_layer else value)


def _per_layer_keys(model: ModelFile) -> frozenset[str]:
    """Metadata of the architecture with one item for each layer."""
    prefix = f"{model.architecture}."
    return frozenset(
        key
        for key, value in model.metadata.items()
        if key.startswith(prefix)
        and key.removeprefix(prefix) not in _NOT_PER_LAYER
        and value.item_type not in (None, GGUFValueType.STRING)
        and value.item_count == model.layer_count
    )


def _slice_items(value: MetadataValue, layers: LayerRange) -> MetadataValue:
    assert value.item_type is not None
    items = value.items()[layers.first : layers.next_layer]
    prefix = struct.pack("<IQ", value.item_type, len(items))
    return MetadataValue(value.value_type, value.item_type, np.frombuffer(prefix + items.tobytes(), np.uint8))


_NamedTensor = tuple[str, npt.NDArray[Any], GGMLQuantizationType]


def _tensors_of(model: ModelFile, layers: LayerRange) -> Iterator[_NamedTensor]:
    yield _token_embedding_of(model, layers)
    for name, tensor in model.tensors.items():
        if name in (_TOKEN_EMBEDDING, _OUTPUT):
            continue
        match = LAYER_TENSOR.fullmatch(name)
        if match is None:
            # Norms, scales and rope factors: small, and llama.cpp insists on some of them everywhere.
            yield name, tensor.data, tensor.tensor_type
        elif layers.first <= int(match[1]) <= layers.last:
            yield f"blk.{int(match[1]) - layers.first}.{match[2]}", tensor.data, tensor.tensor_type
    if _is_head(layers) and _is_tail(model, layers) and (output := model.tensors.get(_OUTPUT)):
        yield _OUTPUT, output.data, output.tensor_type


def _token_embedding_of(model: ModelFile, layers: LayerRange) -> _NamedTensor:
    """The matrix to go by the name of the token embedding: see the module's docstring."""
    embedding = model.tensors[_TOKEN_EMBEDDING]
    if not _has_vocabulary(model, layers):
        zeros = np.zeros((PLACEHOLDER_TOKENS, model.hidden_size), np.float32)
        return _TOKEN_EMBEDDING, zeros, GGMLQuantizationType.F32
    source = embedding if _is_head(layers) else model.tensors.get(_OUTPUT, embedding)
    return _TOKEN_EMBEDDING, source.data, source.tensor_type
